"""Optimizer.step(loss): zero, backward, sum over learners, clip, step. Nothing else calls backward.

Where several losses are worked out side by side, differentiate() does the first two and apply() the rest.

On a GPU nothing is read back: whether a gradient is finite is decided there, and check() looks at how often it was not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from rlrun.core.errors import RunFailed
from rlrun.core.ranges import NotNegative, Share, ShareBelowOne
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.schedule import Clock, Schedule

MAX_SKIPPED = 20  # consecutive non-finite gradients after which the run ends instead of idling


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    kind: Literal["adam", "radam", "rmsprop", "sgd"]
    epsilon: Annotated[float, NotNegative]
    decay: Annotated[float, Share]
    momentum: Annotated[float, NotNegative]
    beta1: Annotated[float, ShareBelowOne]
    beta2: Annotated[float, ShareBelowOne]


ALIGNED = 16  # numbers: every parameter begins at a cache line


class SharedState(NamedTuple):
    """Tensors in shared memory."""

    numbers: Tensor
    statistics: dict[str, Tensor]


def gathered(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """Moves parameters into one vector [N], of which each is a view from then on, and their gradients into another: norms, clipping and steps are one
    operation each, where those of many small tensors would cost more than their arithmetic."""
    assert all(not hasattr(parameter, "gathered") for parameter in parameters), "a parameter has one optimiser"
    ends = [0, *itertools.accumulate(-(-parameter.numel() // ALIGNED) * ALIGNED for parameter in parameters)]
    first = parameters[0]
    whole = nn.Parameter(torch.zeros(ends[-1], dtype=first.dtype, device=first.device))
    whole.grad = torch.zeros_like(whole)
    with torch.no_grad():
        for start, parameter in zip(ends, parameters, strict=False):
            place = whole.detach().as_strided(parameter.shape, parameter.stride(), start)  # as dense as it was, in whatever order
            assert torch.empty_like(parameter).stride() == parameter.stride(), "a view with gaps or overlaps cannot move"
            place.copy_(parameter)
            parameter.data, parameter.gathered = place, True  # type: ignore[attr-defined]
    return whole


class Optimizer:
    """Adam, RAdam, RMSProp or SGD over some parameters, with a schedule for lr and a bound on the global gradient norm (0: none). With several learners a
    loss is this learner's share of the whole batch's, so gradients are summed. A parameter that a loss does not reach has gradient 0."""

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: OptimizerConfig, lr: Schedule, max_grad_norm: float, ranks: Ranks = ALONE,
                 deferred: bool | None = None):  # fmt: skip
        """deferred: apply() reads nothing back from the parameters' device (None: on a GPU), so that it can be recorded (machine/graphs.py)."""
        self.parameters = list(parameters)
        self.lr, self.max_grad_norm, self.ranks = lr, max_grad_norm, ranks
        self.deferred = self.parameters[0].device.type == "cuda" if deferred is None else deferred
        self.skips = torch.zeros((), device=self.parameters[0].device)  # updates skipped in a row
        self.lr_scale = 1.0  # what the schedule's lr is multiplied by, see follow_kl
        self.cfg = cfg
        self.whole = gathered(self.parameters)  # [N]
        self.gradients = self._parts(self.whole.grad)  # type: ignore[arg-type]
        self.stepped = self.whole  # or another process's, of which the parameters are copies
        self.inner = self._inner(self.stepped)
        if self.deferred:
            self._begin()

    @property
    def skipped(self) -> int:
        """Updates in a row, up to now, whose gradient was not finite."""
        return int(self.skips)

    def _parts(self, whole: Tensor) -> list[Tensor]:
        """What belongs to each parameter of something as long as all of them, as views."""
        return [whole.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset()) for parameter in self.parameters]

    def _inner(self, whole: nn.Parameter) -> torch.optim.Optimizer:
        cfg, start, parameters = self.cfg, self.lr.values[0], [whole]
        on_gpu = whole.device.type == "cuda"
        if cfg.kind == "adam":
            return torch.optim.Adam(parameters, lr=start, betas=(cfg.beta1, cfg.beta2), eps=cfg.epsilon, fused=True)
        if cfg.kind == "radam":  # Liu et al. 2020, arXiv:1908.03265
            return torch.optim.RAdam(parameters, lr=start, betas=(cfg.beta1, cfg.beta2), eps=cfg.epsilon, foreach=True, capturable=on_gpu)
        if cfg.kind == "sgd":
            return torch.optim.SGD(parameters, lr=start, momentum=cfg.momentum, foreach=True)
        return torch.optim.RMSprop(parameters, lr=start, alpha=cfg.decay, eps=cfg.epsilon, momentum=cfg.momentum, foreach=True, capturable=on_gpu)

    def step(self, loss: Tensor | Iterable[Tensor], clock: Clock) -> dict[str, Tensor | float]:
        """One gradient step on a scalar loss, or on the sum of several of which only one graph is in memory at a time. A non-finite gradient changes
        nothing and is counted; RunFailed after many in a row."""
        self.differentiate(loss)
        return self.apply(clock)

    def differentiate(self, loss: Tensor | Iterable[Tensor]) -> None:
        """Works the gradient out and changes nothing else, so that another optimiser's may be worked out at the same time."""
        gradient = self.whole.grad
        assert gradient is not None
        gradient.zero_()
        begin, width = self.whole.data_ptr(), self.whole.element_size()
        for parameter, place in zip(self.parameters, self.gradients, strict=True):
            assert parameter.data_ptr() == begin + width * place.storage_offset(), "a parameter was moved after its optimiser was made: steps would miss it"
            parameter.grad = place
        for part in (loss,) if isinstance(loss, Tensor) else loss:
            part.backward(inputs=self.parameters)  # a critic that an actor learns through gets no gradient

    def apply(self, clock: Clock) -> dict[str, Tensor | float]:
        """A step along the gradient of differentiate()."""
        lr = self.lr(clock) * self.lr_scale
        gradient = self.whole.grad
        assert gradient is not None
        self.ranks.sum_(gradient)
        if self.deferred:
            return self._apply_deferred(gradient, lr)
        for group in self.inner.param_groups:
            group["lr"] = lr
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            self.skips += 1
            self.check()
            return {"grad_norm": norm, "lr": lr, "skipped_updates": 1.0}
        self.skips.zero_()
        if 0 < self.max_grad_norm < norm:
            gradient.mul_(self.max_grad_norm / norm)
        self._step()
        return {"grad_norm": norm, "lr": lr, "skipped_updates": 0.0}

    @torch.no_grad()
    def _apply_deferred(self, gradient: Tensor, lr: Tensor | float) -> dict[str, Tensor | float]:
        """The same, decided on the device: a step that should not have been is taken back."""
        norm = torch.linalg.vector_norm(gradient)
        failed = ~norm.isfinite()
        if self.max_grad_norm > 0:
            gradient.mul_((self.max_grad_norm / norm).clamp(max=1.0))
        state = self.inner.state[self.stepped]
        if self.cfg.kind == "adam":
            self.stepped.grad = gradient
            self._adam(gradient, state, lr, failed.float())
        else:
            place, before = self.stepped.data, self.stepped.data.clone()
            kept = [(statistic, statistic.clone()) for statistic in state.values()]
            for group in self.inner.param_groups:
                group["lr"] = 1.0  # a number that is read while recording; these kinds' steps are proportional to it
            self.inner.step()
            place.copy_(torch.where(failed, before, torch.lerp(before, place, lr)))
            for statistic, old in kept:
                statistic.copy_(torch.where(failed, old, statistic))
        self.skips.copy_(torch.where(failed, self.skips + 1, 0.0))
        return {"grad_norm": norm, "lr": lr, "skipped_updates": failed.float()}

    def check(self) -> None:
        """RunFailed where gradients have not been finite for MAX_SKIPPED updates."""
        if self.skipped >= MAX_SKIPPED:
            largest = max(self.lr.values) * self.lr_scale
            raise RunFailed(f"{self.skipped} updates in a row had a non-finite gradient (lr up to {largest:g}); the last checkpoint is from before that")

    def follow_kl(self, clock: Clock, kl: float, target: float, bounds: tuple[float, float]) -> None:
        """Divides lr by 1.5 when a step's KL(old || new) was above twice the target, multiplies it when below half, as rl_games and rsl_rl do after
        Heess et al. (2017, arXiv:1707.02286, appendix); within bounds."""
        base = self.lr(clock)
        factor = 1 / 1.5 if kl > 2 * target else 1.5 if kl < target / 2 else 1.0
        if base > 0:
            self.lr_scale = min(max(base * self.lr_scale * factor, bounds[0]), bounds[1]) / base

    def _step(self) -> None:
        """Of several processes without a lock: Hogwild (Recht et al. 2011)."""
        gradient = self.stepped.grad = self.whole.grad
        assert gradient is not None
        state = self.inner.state.get(self.stepped)
        if self.cfg.kind != "adam" or not state or self.stepped.device.type != "cpu":
            self.inner.step()
            return
        self._adam(gradient, state, self.inner.param_groups[0]["lr"])

    @torch.no_grad()
    def _adam(self, gradient: Tensor, state: dict[str, Tensor], lr: Tensor | float, failed: Tensor | None = None) -> None:
        """What inner.step() would call after as long again of hooks, records and lists. failed []: 1 for no step at all."""
        adam([self.stepped], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]], fused=True, amsgrad=False, found_inf=failed,
             beta1=self.cfg.beta1, beta2=self.cfg.beta2, lr=lr, weight_decay=0.0, eps=self.cfg.epsilon, maximize=False)  # fmt: skip

    @torch.no_grad()
    def share(self) -> SharedState:
        """Moves the statistics into shared memory and returns them with the parameters, which must be there already."""
        self._begin()
        for statistic in self.inner.state[self.whole].values():
            statistic.share_memory_()
        return SharedState(self.whole.data, dict(self.inner.state[self.whole]))

    @torch.no_grad()
    def _begin(self) -> None:
        """PyTorch makes statistics at the first step, so there is one that leaves no trace."""
        if self.inner.state:
            return
        before = self.whole.clone()
        self.whole.grad.fill_(1.0)  # type: ignore[union-attr]
        self.inner.step()
        self.whole.copy_(before)
        for statistic in self.inner.state[self.whole].values():
            statistic.zero_()

    def attach(self, shared: SharedState) -> None:
        """Steps change these from now on, another process's, and leave the parameters here as they are."""
        self.stepped = nn.Parameter(shared.numbers)
        self.inner = self._inner(self.stepped)
        self.inner.state[self.stepped] = shared.statistics

    def state_dict(self) -> dict:
        """Statistics are those of single parameters, as PyTorch's own optimisers write them."""
        state, places = self.inner.state_dict(), range(len(self.parameters))
        known = {name: self._parts(value) if value.shape == self.whole.shape else [value] * len(places) for name, value in state["state"].get(0, {}).items()}
        each = {place: {name: values[place] for name, values in known.items()} for place in places} if known else {}
        groups = [{**group, "params": list(places)} for group in state["param_groups"]]
        return {"inner": {"state": each, "param_groups": groups}, "skipped": self.skipped, "lr_scale": self.lr_scale, "kind": self.cfg.kind}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """What a config says of the optimiser stays as it is here: population-based training may have changed it. A parameter without statistics has had no
        gradient yet. ValueError when it is another kind of optimiser's state, or one over other parameters."""
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
                    if name in each.get(place, {}):  # momentum may have been 0
                        part.copy_(each[place][name])
        self.skips.fill_(float(state["skipped"]))
        self.lr_scale = state.get("lr_scale", 1.0)  # not in checkpoints of before it existed
