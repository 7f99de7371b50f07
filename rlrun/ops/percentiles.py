"""The spread of returns, by which DreamerV3 scales advantages."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def percentile(ordered: Tensor, count: Tensor, percent: float) -> Tensor:
    """The percentile [] of the first `count` [] of numbers [N] in ascending order, interpolated linearly between
    neighbours as NumPy does."""
    last = (count - 1).clamp(min=0)
    place = last.double() * (percent / 100.0)
    before = place.long()
    low, high = ordered.index_select(0, torch.stack((before, torch.minimum(before + 1, last))))
    return torch.lerp(low, high, (place - before).to(ordered))


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
        """Moves the averages towards the percentiles of returns [N]; gives the scale max(limit, high - low) [].

        Returns that are inf do not count. If none counts, the averages stay."""
        ordered = returns.sort().values  # those that do not count come last
        count = (ordered < math.inf).sum()
        newest = torch.stack([percentile(ordered, count, percent) for percent in self.percents])
        self.ends.copy_(torch.where(count > 0, self.ends.lerp(newest, self.rate), self.ends))
        return (self.ends[1] - self.ends[0]).clamp(min=self.limit)
