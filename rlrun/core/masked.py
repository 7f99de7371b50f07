"""Reductions over live rows. With `ranks` over those of all learners."""

import torch
from torch import Tensor

from rlrun.core.ranks import ALONE, Ranks


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Sum of x [T, B] over valid [T, B] -> []. A dead row's x may be anything, NaN included."""
    return x.masked_fill(~valid, 0.0).sum()


def masked_mean(x: Tensor, valid: Tensor, count: Tensor | None = None) -> Tensor:
    """Mean of x [T, B] over valid [T, B] -> []; 0 when no row is live. With `count` [], the live rows of a batch of which this is a part: this part's
    share of the whole batch's mean. Shares add up, over microbatches and over learners."""
    return masked_sum(x, valid) / (valid.sum().clamp(min=1) if count is None else count)


def masked_moments(x: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> tuple[Tensor, Tensor]:
    """Mean [K] and variance [K] of x [K, T, B] over valid [T, B]; 0 when no row is live."""
    count = valid.sum().to(x.dtype).expand(1)
    total = ranks.sum(torch.cat([count, x.masked_fill(~valid, 0.0).sum((1, 2))]))
    count, mean = total[0].clamp(min=1), total[1:] / total[0].clamp(min=1)
    squared = (x - mean[:, None, None]).masked_fill(~valid, 0.0).square().sum((1, 2))
    return mean, ranks.sum(squared) / count


def explained_variance(target: Tensor, value: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """1 - Var(target - value) / Var(target) over live rows of [T, B] -> []: 1 is a perfect prediction, 0 no better than a constant."""
    _, variance = masked_moments(torch.stack([target - value, target]), valid, ranks)
    return 1.0 - variance[0] / variance[1].clamp(min=1e-8)


def masked_normalize(x: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """x [T, B] with mean 0 and standard deviation 1 over live rows; dead rows become 0."""
    mean, variance = masked_moments(x.unsqueeze(0), valid, ranks)
    return (x - mean).masked_fill(~valid, 0.0) / (variance.sqrt() + 1e-8)
