"""Optimizer.step(loss): zero, backward, clip, step. Nothing else calls backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rlrun.core.errors import RunFailed
from rlrun.core.schedule import Clock, Schedule

MAX_SKIPPED = 20  # consecutive non-finite gradients after which the run ends instead of idling


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    kind: Literal["adam", "rmsprop"]
    epsilon: float
    decay: float
    momentum: float
    beta1: float
    beta2: float


class Optimizer:
    """Adam or RMSProp over some parameters, with a schedule for lr and a bound on the global gradient norm (0: none)."""

    def __init__(self, parameters: Iterable[nn.Parameter], cfg: OptimizerConfig, lr: Schedule, max_grad_norm: float):
        self.parameters = list(parameters)
        self.lr, self.max_grad_norm = lr, max_grad_norm
        self.skipped = 0  # in a row
        start = lr.values[0]
        self.inner: torch.optim.Optimizer
        if cfg.kind == "adam":
            self.inner = torch.optim.Adam(self.parameters, lr=start, betas=(cfg.beta1, cfg.beta2), eps=cfg.epsilon, fused=True)
        else:
            self.inner = torch.optim.RMSprop(self.parameters, lr=start, alpha=cfg.decay, eps=cfg.epsilon, momentum=cfg.momentum, foreach=True)

    def step(self, loss: Tensor | Iterable[Tensor], clock: Clock) -> dict[str, Tensor | float]:
        """One gradient step on a scalar loss, or on the sum of several of which only one graph is in memory at a time. A non-finite gradient changes
        nothing and is counted; RunFailed after many in a row."""
        lr = self.lr(clock)
        for group in self.inner.param_groups:
            group["lr"] = lr
        self.inner.zero_grad(set_to_none=True)
        for part in (loss,) if isinstance(loss, Tensor) else loss:
            part.backward()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            self.skipped += 1
            if self.skipped >= MAX_SKIPPED:
                raise RunFailed(f"{MAX_SKIPPED} updates in a row had a non-finite gradient (lr {lr:g}); the last checkpoint is from before that")
            return {"grad_norm": norm, "lr": lr, "skipped_updates": 1.0}
        self.skipped = 0
        if self.max_grad_norm > 0:
            nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, norm)
        self.inner.step()
        return {"grad_norm": norm, "lr": lr, "skipped_updates": 0.0}

    def state_dict(self) -> dict:
        return {"inner": self.inner.state_dict(), "skipped": self.skipped}

    def load_state_dict(self, state: dict) -> None:
        self.inner.load_state_dict(state["inner"])
        self.skipped = state["skipped"]
