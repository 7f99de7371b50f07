"""Optimizer.step(loss): zero, backward, sum over learners, clip, step. Nothing else calls backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.errors import RunFailed
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.schedule import Clock, Schedule

MAX_SKIPPED = 20  # consecutive non-finite gradients after which the run ends instead of idling


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    kind: Literal["adam", "radam", "rmsprop", "sgd"]
    epsilon: float
    decay: float
    momentum: float
    beta1: float
    beta2: float


class SharedState(NamedTuple):
    """Tensors in shared memory."""

    parameters: list[Tensor]
    statistics: list[dict[str, Tensor]]


class Optimizer:
    """Adam, RAdam, RMSProp or SGD over some parameters, with a schedule for lr and a bound on the global gradient norm (0: none). With several learners a
    loss is this learner's share of the whole batch's, so gradients are summed."""

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: OptimizerConfig, lr: Schedule, max_grad_norm: float, ranks: Ranks = ALONE):
        self.parameters = list(parameters)
        self.lr, self.max_grad_norm, self.ranks = lr, max_grad_norm, ranks
        self.skipped = 0  # in a row
        self.lr_scale = 1.0  # what the schedule's lr is multiplied by, see follow_kl
        self.cfg = cfg
        self.inner = self._inner(self.parameters)
        self.shared: list[nn.Parameter] | None = None  # what is stepped instead of the parameters, which then are copies

    def _inner(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        cfg, start = self.cfg, self.lr.values[0]
        if cfg.kind == "adam":
            return torch.optim.Adam(parameters, lr=start, betas=(cfg.beta1, cfg.beta2), eps=cfg.epsilon, fused=True)
        if cfg.kind == "radam":  # Liu et al. 2020, arXiv:1908.03265
            return torch.optim.RAdam(parameters, lr=start, betas=(cfg.beta1, cfg.beta2), eps=cfg.epsilon, foreach=True)
        if cfg.kind == "sgd":
            return torch.optim.SGD(parameters, lr=start, momentum=cfg.momentum, foreach=True)
        return torch.optim.RMSprop(parameters, lr=start, alpha=cfg.decay, eps=cfg.epsilon, momentum=cfg.momentum, foreach=True)

    def step(self, loss: Tensor | Iterable[Tensor], clock: Clock) -> dict[str, Tensor | float]:
        """One gradient step on a scalar loss, or on the sum of several of which only one graph is in memory at a time. A non-finite gradient changes
        nothing and is counted; RunFailed after many in a row."""
        lr = self.lr(clock) * self.lr_scale
        for group in self.inner.param_groups:
            group["lr"] = lr
        for parameter in self.parameters:
            parameter.grad = None
        for part in (loss,) if isinstance(loss, Tensor) else loss:
            part.backward(inputs=self.parameters)  # a critic that an actor learns through gets no gradient
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self.ranks.sum_into_(gradients)
        norm = nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            self.skipped += 1
            if self.skipped >= MAX_SKIPPED:
                raise RunFailed(f"{MAX_SKIPPED} updates in a row had a non-finite gradient (lr {lr:g}); the last checkpoint is from before that")
            return {"grad_norm": norm, "lr": lr, "skipped_updates": 1.0}
        self.skipped = 0
        if self.max_grad_norm > 0:
            nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, norm)
        self._apply()
        return {"grad_norm": norm, "lr": lr, "skipped_updates": 0.0}

    def follow_kl(self, clock: Clock, kl: float, target: float, bounds: tuple[float, float]) -> None:
        """Divides lr by 1.5 when a step's KL(old || new) was above twice the target, multiplies it when below half, as rl_games and rsl_rl do after
        Heess et al. (2017, arXiv:1707.02286, appendix); within bounds."""
        base = self.lr(clock)
        factor = 1 / 1.5 if kl > 2 * target else 1.5 if kl < target / 2 else 1.0
        if base > 0:
            self.lr_scale = min(max(base * self.lr_scale * factor, bounds[0]), bounds[1]) / base

    @torch.no_grad()
    def _apply(self) -> None:
        if self.shared is None:
            self.inner.step()
            return
        for copy, parameter in zip(self.parameters, self.shared, strict=True):
            parameter.grad = copy.grad
        self.inner.step()  # without a lock: Hogwild (Recht et al. 2011)

    @torch.no_grad()
    def share(self) -> SharedState:
        """Moves the statistics into shared memory and returns them with the parameters, which must be there already."""
        if not self.inner.state:  # PyTorch makes them at the first step, so there is one that leaves no trace
            before = [parameter.clone() for parameter in self.parameters]
            for parameter in self.parameters:
                parameter.grad = torch.ones_like(parameter)
            self.inner.step()
            for parameter, value in zip(self.parameters, before, strict=True):
                parameter.copy_(value)
                parameter.grad = None
                for statistic in self.inner.state[parameter].values():
                    statistic.zero_()
        for parameter in self.parameters:
            for statistic in self.inner.state[parameter].values():
                statistic.share_memory_()
        return SharedState([p.data for p in self.parameters], [dict(self.inner.state[p]) for p in self.parameters])

    def attach(self, shared: SharedState) -> None:
        """Steps change these from now on, another process's, and leave the parameters here as they are."""
        self.shared = [nn.Parameter(parameter) for parameter in shared.parameters]
        self.inner = self._inner(self.shared)
        for parameter, statistics in zip(self.shared, shared.statistics, strict=True):
            self.inner.state[parameter] = statistics

    def state_dict(self) -> dict:
        return {"inner": self.inner.state_dict(), "skipped": self.skipped, "lr_scale": self.lr_scale}

    def load_state_dict(self, state: dict) -> None:
        own = [{name: value for name, value in group.items() if name not in ("params", "lr")} for group in self.inner.param_groups]
        self.inner.load_state_dict(state["inner"])
        for group, values in zip(self.inner.param_groups, own, strict=True):
            group.update(values)  # the config's, which population-based training may have changed
        self.skipped = state["skipped"]
        self.lr_scale = state.get("lr_scale", 1.0)  # not in checkpoints of before it existed
