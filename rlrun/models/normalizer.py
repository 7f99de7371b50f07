"""Filters: running mean and deviation of observations, running scale of rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.core.moments import Moments, RunningMoments

TINY = 1e-8


class ObservationFilter(RunningMoments):
    """(x - mean) / deviation, bounded to [-clip, clip] (RLlib's MeanStdFilter; 0: no bound). Constant numbers become 0."""

    def __init__(self, shape: tuple[int, ...], clip: float):
        super().__init__(shape)
        self.clip = clip
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self.shift: Tensor
        self.scale: Tensor

    def merge(self, other: Moments) -> None:
        super().merge(other)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.variance + TINY).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] of any dtype -> float32."""
        x = (x.float() - self.shift) * self.scale
        return x.clamp(-self.clip, self.clip) if self.clip > 0 else x


class RewardScale(RunningMoments):
    """Rewards divided by the deviation of the discounted return so far (Engstrom et al. 2020, arXiv:2005.12729, appendix A.2), bounded to [-10, 10]."""

    BOUND = 10.0

    def __init__(self) -> None:
        super().__init__(())

    def forward(self, reward: Tensor) -> Tensor:
        return (reward * (self.variance + TINY).rsqrt().float()).clamp(-self.BOUND, self.BOUND)
