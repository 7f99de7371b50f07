"""The spread of returns, by which DreamerV3 scales advantages."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def percentile(ordered: Tensor, percent: float) -> Tensor:
    """The percentile [] of numbers [N] in ascending order, interpolated linearly between neighbours as NumPy does."""
    place = percent / 100.0 * (len(ordered) - 1)
    before = min(int(place), len(ordered) - 1)
    after = min(before + 1, len(ordered) - 1)
    return torch.lerp(ordered[before], ordered[after], place - before)


class ReturnRange(nn.Module):
    """Exponential moving averages of a low and a high percentile of returns.

    Source: Hafner et al. 2025, arXiv:2301.04104v2, "Actor critic learning". The averages begin at 0 and are not
    corrected for it, as in the author's code."""

    def __init__(self, low: float, high: float, rate: float, limit: float):
        """low, high: percent. rate: weight of the newest percentiles. limit: smallest scale."""
        super().__init__()
        self.percents, self.rate, self.limit = (low, high), rate, limit
        self.register_buffer("ends", torch.zeros(2))
        self.ends: Tensor

    @torch.no_grad()
    def follow(self, returns: Tensor) -> Tensor:
        """Moves the averages towards the percentiles of returns [N]; gives the scale max(limit, high - low) []."""
        ordered = returns.sort().values
        self.ends.lerp_(torch.stack([percentile(ordered, percent) for percent in self.percents]), self.rate)
        return (self.ends[1] - self.ends[0]).clamp(min=self.limit)
