"""A target network that moves towards the network which learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlrun.core.moments import RunningMoments


class Follower:
    """Moves a target network towards the network that it began as a copy of."""

    held = False  # whether move() does nothing, because another process moves the target

    def __init__(self, target: nn.Module, source: nn.Module):
        self.olds: list[Tensor] = list(target.parameters())
        self.news: list[Tensor] = list(source.parameters())
        self.buffers = list(zip(target.buffers(), source.buffers(), strict=True))
        pairs = zip(target.modules(), source.modules(), strict=True)
        self.filters = [
            of_both
            for old, new in pairs
            if isinstance(new, RunningMoments)
            for of_both in zip(old.buffers(), new.buffers(), strict=True)
        ]
        assert [old.shape for old in self.olds] == [new.shape for new in self.news]

    @torch.no_grad()
    def move(self, tau: float) -> None:
        """Moves the target's parameters by the share tau towards the source's (1 copies them). Buffers (counts,
        filters) are copied."""
        if self.held:
            return
        torch._foreach_lerp_(self.olds, self.news, tau)
        for kept, now in self.buffers:
            kept.copy_(now)

    @torch.no_grad()
    def renew_filters(self) -> None:
        """Copies the source's filters into the target, which may move much later. Without them, a new target would be
        given observations as they are."""
        for kept, now in self.filters:
            kept.copy_(now)
