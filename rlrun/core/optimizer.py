"""Optimizer.step(loss) zeroes the gradient, differentiates, sums over learners, clips and steps. Nothing else calls
backward.

The formulas are PyTorch's, except for rmsprop_tf (core/rmsprop_tf.py) and laprop (core/laprop.py).

If several losses are differentiated side by side, differentiate() does the first two and apply() the rest.

On a GPU nothing is read back: the device itself decides whether a gradient is finite, and check() reads how often it
was not."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from rlrun.core.conditions import OnlyWith
from rlrun.core.errors import Diverged
from rlrun.core.laprop import LaProp
from rlrun.core.ranges import NotNegative, Positive, Share, ShareBelowOne
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.rmsprop_tf import RMSpropTF, initial_statistics
from rlrun.core.schedule import Clock, Schedule, number_type

MAX_SKIPPED = 20  # consecutive non-finite gradients after which the run ends instead of idling


ADAMS, RMSPROPS = ("adam", "adamw", "radam", "laprop"), ("rmsprop", "rmsprop_tf")
SMALLEST_NORM = 1e-3  # a parameter's norm counts as this at least, where its gradient is clipped relative to it


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    kind: Literal["adam", "adamw", "radam", "laprop", "rmsprop", "rmsprop_tf", "sgd"]
    # With 0, a parameter whose gradient was always 0 would become 0 / 0.
    epsilon: Annotated[float, Positive, OnlyWith("kind", *ADAMS, *RMSPROPS)]
    decay: Annotated[float, Share, OnlyWith("kind", *RMSPROPS)]
    momentum: Annotated[float, NotNegative, OnlyWith("kind", *RMSPROPS, "sgd")]
    centered: Annotated[bool, OnlyWith("kind", *RMSPROPS)]
    beta1: Annotated[float, ShareBelowOne, OnlyWith("kind", *ADAMS)]
    beta2: Annotated[float, ShareBelowOne, OnlyWith("kind", *ADAMS)]
    weight_decay: Annotated[float, NotNegative]
    max_grad_value: Annotated[float, NotNegative]
    agc: Annotated[float, NotNegative]
    warmup_updates: Annotated[int, NotNegative]

    def __post_init__(self):
        if self.centered and self.kind not in ("rmsprop", "rmsprop_tf"):
            raise ValueError(f"centered is for kind=rmsprop and rmsprop_tf, not for {self.kind}")
        if self.momentum > 0 and self.kind not in ("rmsprop", "rmsprop_tf", "sgd"):
            raise ValueError(
                f"momentum is for kind=rmsprop, rmsprop_tf and sgd, not for {self.kind}, which has beta1 instead"
            )


def without_compiler(kind: type[torch.optim.Optimizer]) -> Any:
    """A subclass of this optimiser whose methods are the same functions without the wrappers of torch.compile.

    A wrapper imports torch._dynamo, and SymPy with it, at its first call. That takes a second of every process, and
    nothing here is compiled. Gradients stay switched off during a step, which one of the wrappers did as well."""
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "state_dict", "step")}
    return type(kind.__name__, (kind,), plain | {"step": torch.no_grad()(plain["step"])})


Adam = without_compiler(torch.optim.Adam)
AdamW = without_compiler(torch.optim.AdamW)  # Loshchilov & Hutter 2019, arXiv:1711.05101
RAdam = without_compiler(torch.optim.RAdam)  # Liu et al. 2020, arXiv:1908.03265
SGD = without_compiler(torch.optim.SGD)
RMSprop = without_compiler(torch.optim.RMSprop)
TensorFlowsRMSprop = without_compiler(RMSpropTF)
LapropStep = without_compiler(LaProp)


ALIGNED = 16  # numbers; every parameter begins at a multiple of these, which is a cache line of float32


class SharedState(NamedTuple):
    """An optimiser's parameters, statistics and number of steps in shared memory."""

    numbers: Tensor
    statistics: dict[str, Tensor]
    steps: Tensor


def gathered(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """Moves the parameters into one vector [N], of which each becomes a view, and makes another vector for their
    gradients. Norms, clipping and steps are then one operation each. With many small tensors, the calls would cost more
    than the arithmetic."""
    assert all(not hasattr(parameter, "gathered") for parameter in parameters), "a parameter has one optimiser"
    ends = [0, *itertools.accumulate(-(-parameter.numel() // ALIGNED) * ALIGNED for parameter in parameters)]
    first = parameters[0]
    whole = nn.Parameter(torch.zeros(ends[-1], dtype=first.dtype, device=first.device))
    whole.grad = torch.zeros_like(whole)
    with torch.no_grad():
        for start, parameter in zip(ends, parameters, strict=False):
            place = whole.detach().as_strided(parameter.shape, parameter.stride(), start)  # keeps the memory format
            assert torch.empty_like(parameter).stride() == parameter.stride(), (
                "a view with gaps or overlaps cannot move"
            )
            place.copy_(parameter)
            parameter.data, parameter.gathered = place, True  # type: ignore[attr-defined]
    return whole


class Optimizer:
    """One of the kinds of OptimizerConfig over some parameters, with a schedule for lr and a bound on the global
    gradient norm (0: none). Frozen parameters, which need no gradient, stay what they are. cfg.max_grad_value, a bound
    on every single number of the gradient, is applied first, and cfg.agc, a bound on the norm of each parameter's
    gradient relative to that parameter's own norm, last. With several learners, a loss is this learner's share of the
    whole batch's loss, so gradients are summed. A parameter on which the loss does not depend has gradient 0."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        cfg: OptimizerConfig,
        lr: Schedule,
        max_grad_norm: float,
        ranks: Ranks = ALONE,
        deferred: bool | None = None,
    ):
        """If deferred, apply() reads nothing back from the parameters' device, so that it can be recorded
        (machine/graphs.py). None means deferred on a GPU only. Raises ValueError if all parameters are frozen."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("all parameters of a network are frozen (requires_grad=False); there is nothing to learn")
        self.lr, self.max_grad_norm, self.ranks = lr, max_grad_norm, ranks
        self.deferred = self.parameters[0].device.type == "cuda" if deferred is None else deferred
        self.skips = torch.zeros((), device=self.parameters[0].device)  # updates skipped in a row
        self.advice = ""  # what an algorithm adds to the sentence on gradients that are not finite
        self.lr_scale = 1.0  # factor of the schedule's lr, see follow_kl
        self.scale: Tensor | None = None  # the same factor on the device, see scale_on_device
        self.steps = torch.zeros((), device=self.parameters[0].device)  # taken so far; counted where lr warms up
        self.cfg = cfg
        self.whole = gathered(self.parameters)  # [N]
        self.gradients = self._parts(self.whole.grad)  # type: ignore[arg-type]
        self.places = self._parts(self.whole.detach())
        self.stepped = self.whole  # what steps change; after attach(), the shared parameters of another process
        self.inner = self._inner(self.stepped)
        if self.deferred:
            self._begin()

    @property
    def skipped(self) -> int:
        """The number of most recent updates in a row whose gradient was not finite."""
        return int(self.skips)

    def _parts(self, whole: Tensor) -> list[Tensor]:
        """Views of each parameter's part of a vector [N] that is laid out like the parameters."""
        return [
            whole.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset())
            for parameter in self.parameters
        ]

    def _inner(self, whole: nn.Parameter) -> torch.optim.Optimizer:
        cfg, start, parameters = self.cfg, self.lr.values[0], [whole]
        on_gpu = whole.device.type == "cuda"
        every: dict[str, Any] = {"lr": start, "weight_decay": cfg.weight_decay}
        adam_like = every | {"betas": (cfg.beta1, cfg.beta2), "eps": cfg.epsilon}
        rmsprop_like = every | {
            "alpha": cfg.decay,
            "eps": cfg.epsilon,
            "momentum": cfg.momentum,
            "centered": cfg.centered,
        }
        if cfg.kind == "adam":
            return Adam(parameters, **adam_like, fused=True)
        if cfg.kind == "adamw":
            return AdamW(parameters, **adam_like, fused=True)
        if cfg.kind == "radam":
            return RAdam(parameters, **adam_like, foreach=True, capturable=on_gpu)
        if cfg.kind == "sgd":
            return SGD(parameters, **every, momentum=cfg.momentum, foreach=True)
        if cfg.kind == "laprop":
            return LapropStep(parameters, **adam_like)
        if cfg.kind == "rmsprop_tf":
            return TensorFlowsRMSprop(parameters, **rmsprop_like)
        return RMSprop(parameters, **rmsprop_like, foreach=True, capturable=on_gpu)

    def step(self, loss: Tensor | Iterable[Tensor], clock: Clock) -> dict[str, Tensor | float]:
        """Takes one gradient step on a scalar loss, or on the sum of several losses, of which only one graph is in
        memory at a time. A non-finite gradient changes nothing and is counted. After MAX_SKIPPED of them in a row,
        Diverged is raised."""
        self.differentiate(loss)
        return self.apply(clock)

    def differentiate(self, loss: Tensor | Iterable[Tensor]) -> None:
        """Computes the gradient and changes nothing else, so that another optimiser's gradient may be computed at the
        same time."""
        gradient = self.whole.grad
        assert gradient is not None
        gradient.zero_()
        begin, width = self.whole.data_ptr(), self.whole.element_size()
        for parameter, place in zip(self.parameters, self.gradients, strict=True):
            assert parameter.data_ptr() == begin + width * place.storage_offset(), (
                "a parameter was moved after its optimiser was made: steps would miss it"
            )
            parameter.grad = place
        for part in (loss,) if isinstance(loss, Tensor) else loss:
            part.backward(inputs=self.parameters)  # an actor's loss gives the critic it goes through no gradient

    def apply(self, clock: Clock) -> dict[str, Tensor | float]:
        """Takes a step with the gradient that differentiate() computed, and returns the metrics of the step."""
        lr = self.lr(clock) * (self.lr_scale if self.scale is None else self.scale)
        gradient = self.whole.grad
        assert gradient is not None
        self.ranks.sum_(gradient)
        if self.deferred:
            if self.cfg.warmup_updates:
                lr = lr * self._warmth().to(number_type(gradient.device))
            return self._apply_deferred(gradient, lr)
        if self.cfg.warmup_updates:
            lr = lr * float(self._warmth())
        for group in self.inner.param_groups:
            group["lr"] = lr
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            self.skips += 1
            self.check()
            return {"grad_norm": norm, "lr": lr, "skipped_updates": 1.0}
        self.skips.zero_()
        clipped = norm
        if self.cfg.max_grad_value > 0:
            gradient.clamp_(-self.cfg.max_grad_value, self.cfg.max_grad_value)
            clipped = float(torch.linalg.vector_norm(gradient)) if self.max_grad_norm > 0 else norm
        if 0 < self.max_grad_norm < clipped:
            gradient.mul_(self.max_grad_norm / clipped)
        if self.cfg.agc > 0:
            self._clip_each()
        self._step()
        self._count()
        return {"grad_norm": norm, "lr": lr, "skipped_updates": 0.0}

    @torch.no_grad()
    def _apply_deferred(self, gradient: Tensor, lr: Tensor | float) -> dict[str, Tensor | float]:
        """apply() without reading anything back: the device undoes the step if the gradient is not finite."""
        norm = torch.linalg.vector_norm(gradient)
        failed, clipped = ~norm.isfinite(), norm
        if self.cfg.max_grad_value > 0:
            gradient.clamp_(-self.cfg.max_grad_value, self.cfg.max_grad_value)
            clipped = torch.linalg.vector_norm(gradient)
        if self.max_grad_norm > 0:
            # In float32 a number divided by a tensor is rounded twice, and apply() divides Python's numbers.
            gradient.mul_((self.max_grad_norm / clipped.double()).clamp(max=1.0).to(gradient.dtype))
        if self.cfg.agc > 0:
            self._clip_each()
        state = self.inner.state[self.stepped]
        if self.cfg.kind in ("adam", "adamw"):
            self.stepped.grad = gradient
            self._adam(gradient, state, lr, failed.float())
        else:
            place, before = self.stepped.data, self.stepped.data.clone()
            kept = [(statistic, statistic.clone()) for statistic in state.values()]
            if isinstance(self.inner, RMSpropTF | LaProp):
                self.inner.step_with(lr)
                after = place
            else:
                for group in self.inner.param_groups:
                    # A recording fixes this number. Steps of these kinds are proportional to it, so an lr that changes
                    # follows below, which is the same up to rounding.
                    group["lr"] = 1.0 if isinstance(lr, Tensor) else lr
                self.inner.step()
                after = torch.lerp(before, place, lr.to(place.dtype)) if isinstance(lr, Tensor) else place
            place.copy_(torch.where(failed, before, after))
            for statistic, old in kept:
                statistic.copy_(torch.where(failed, old, statistic))
        self.skips.copy_(torch.where(failed, self.skips + 1, 0.0))
        self._count(1.0 - failed.float())
        return {"grad_norm": norm, "lr": lr, "skipped_updates": failed.float()}

    def _warmth(self) -> Tensor:
        """The factor on lr [], which grows from 0 in the first warmup_updates steps."""
        return (self.steps / self.cfg.warmup_updates).clamp(max=1.0)

    def _count(self, taken: Tensor | float = 1.0) -> None:
        if self.cfg.warmup_updates:
            self.steps.add_(taken)

    @torch.no_grad()
    def _clip_each(self) -> None:
        """Clips each parameter's gradient by norm, relative to the parameter's own norm (Brock et al. 2021,
        arXiv:2102.06171, eq. 3, with one norm for the whole parameter as DreamerV3's code has it)."""
        norms = torch.stack(torch._foreach_norm(self.gradients))
        bounds = torch.stack(torch._foreach_norm(self.places)).clamp_(min=SMALLEST_NORM).mul_(self.cfg.agc)
        factors = (norms / bounds).clamp_(min=1.0).reciprocal_()
        torch._foreach_mul_(self.gradients, list(factors.unbind()))

    def check(self, most: int = MAX_SKIPPED) -> None:
        """Raises Diverged if the last `most` updates or more had non-finite gradients."""
        if self.skipped >= most:
            largest = max(self.lr.values) * self.lr_scale
            raise Diverged(
                f"{self.skipped} updates in a row had a non-finite gradient (lr up to {largest:g}) and changed nothing;"
                f" a checkpoint, if the run has saved one, is from before that{self.advice}"
            )

    def scale_on_device(self) -> None:
        """Lets a recorded step see what follow_kl() does between its replays. It does nothing where steps are not
        deferred."""
        if self.deferred:
            device = self.skips.device
            self.scale = torch.full((), self.lr_scale, dtype=number_type(device), device=device)

    def set_scale(self, factor: float) -> None:
        """Sets the factor of the schedule's lr."""
        self.lr_scale = factor
        if self.scale is not None:
            self.scale.fill_(factor)

    def follow_kl(self, clock: Clock, kl: float, target: float, bounds: tuple[float, float]) -> None:
        """Adapts lr, within bounds, to a step's KL(old || new): divides it by 1.5 if the KL was above twice the target,
        and multiplies it by 1.5 if the KL was below half the target, as rl_games and rsl_rl do after Heess et al.
        (2017, arXiv:1707.02286, appendix)."""
        base = self.lr(clock)
        factor = 1 / 1.5 if kl > 2 * target else 1.5 if kl < target / 2 else 1.0
        if base > 0:
            self.set_scale(min(max(base * self.lr_scale * factor, bounds[0]), bounds[1]) / base)

    def _step(self) -> None:
        """Steps without a lock even if several processes step the same parameters: Hogwild (Recht et al. 2011)."""
        gradient = self.stepped.grad = self.whole.grad
        assert gradient is not None
        state = self.inner.state.get(self.stepped)
        if self.cfg.kind not in ("adam", "adamw") or not state or self.stepped.device.type != "cpu":
            self.inner.step()
            return
        self._adam(gradient, state, self.inner.param_groups[0]["lr"])

    @torch.no_grad()
    def _adam(
        self, gradient: Tensor, state: dict[str, Tensor], lr: Tensor | float, failed: Tensor | None = None
    ) -> None:
        """Calls PyTorch's Adam kernel directly, since inner.step() spends as long again on hooks, records and lists. A
        `failed` [] of 1 makes it change nothing."""
        adam(
            [self.stepped],
            [gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            found_inf=failed,
            beta1=self.cfg.beta1,
            beta2=self.cfg.beta2,
            lr=lr,
            weight_decay=self.cfg.weight_decay,
            decoupled_weight_decay=self.cfg.kind == "adamw",
            eps=self.cfg.epsilon,
            maximize=False,
        )

    def statistics(self) -> dict[str, Tensor]:
        """Returns the statistics of all parameters, which are made now if no step has made them yet."""
        self._begin()
        return dict(self.inner.state[self.whole])

    @torch.no_grad()
    def share(self) -> SharedState:
        """Moves the statistics into shared memory and returns them with the parameters, which must be there already."""
        statistics = self.statistics()
        for statistic in statistics.values():
            statistic.share_memory_()
        self.steps.share_memory_()
        return SharedState(self.whole.data, statistics, self.steps)

    @torch.no_grad()
    def _begin(self) -> None:
        """Makes the statistics, which PyTorch does only at the first step, by a step that is undone."""
        if self.inner.state:
            return
        before = self.whole.clone()
        self.whole.grad.fill_(1.0)  # type: ignore[union-attr]
        self.inner.step()
        self.whole.copy_(before)
        state = self.inner.state[self.whole]
        if isinstance(self.inner, RMSpropTF):
            state.update(initial_statistics(self.whole.detach(), self.cfg.momentum, self.cfg.centered))
            return
        for statistic in state.values():
            statistic.zero_()

    def attach(self, shared: SharedState) -> None:
        """Makes steps change another process's shared parameters from now on, and not the parameters here."""
        self.stepped = nn.Parameter(shared.numbers)
        self.inner = self._inner(self.stepped)
        self.inner.state[self.stepped] = shared.statistics
        self.steps = shared.steps

    def state_dict(self) -> dict:
        """The state, with statistics for each parameter in the form in which PyTorch's own optimisers write them."""
        state, places = self.inner.state_dict(), range(len(self.parameters))
        known = {
            name: self._parts(value) if value.shape == self.whole.shape else [value] * len(places)
            for name, value in state["state"].get(0, {}).items()
        }
        each = {place: {name: values[place] for name, values in known.items()} for place in places} if known else {}
        groups = [{**group, "params": list(places)} for group in state["param_groups"]]
        return {
            "inner": {"state": each, "param_groups": groups},
            "skipped": self.skipped,
            "lr_scale": self.lr_scale,
            "steps": float(self.steps),
            "kind": self.cfg.kind,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Restores statistics and counters. Options of the config stay as they are here, since population-based
        training may have changed them. A parameter without saved statistics has had no gradient yet. Raises ValueError
        if the state is that of another kind of optimiser or of other parameters."""
        each, kind = state["inner"]["state"], state.get("kind", self.cfg.kind)
        if kind != self.cfg.kind:
            raise ValueError(f"the saved optimiser is {kind}, this one {self.cfg.kind}")
        if each:
            self._begin()
            if any(place >= len(self.parameters) for place in each):
                raise ValueError(f"the saved optimiser has {1 + max(each)} parameters, this one {len(self.parameters)}")
            for name, value in self.inner.state[self.stepped].items():
                whole = value.shape == self.whole.shape
                for place, part in enumerate(self._parts(value)) if whole else [(next(iter(each)), value)]:
                    if name in each.get(place, {}):  # there is no momentum buffer if momentum was 0
                        part.copy_(each[place][name])
        self.skips.fill_(float(state["skipped"]))
        self.set_scale(state.get("lr_scale", 1.0))  # old checkpoints lack it
        self.steps.fill_(state.get("steps", 0.0))
