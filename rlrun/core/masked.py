"""Reductions over live rows. Functions that take `ranks` reduce over the live rows of all learners."""

from typing import Any

import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.ranks import ALONE, Ranks


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Returns the sum [] of x [T, B] over valid [T, B]. In dead rows x may hold anything, even NaN."""
    return x.masked_fill(~valid, 0.0).sum()


def with_dead_rows(x: Batch, other: Batch, valid: Tensor) -> Batch:
    """Returns x, leaves [T, B, ...], with the numbers of `other` in the dead rows of valid [T, B]."""

    def chosen(one: Any, another: Any) -> Any:
        if isinstance(one, Batch):
            return Batch({name: chosen(one[name], another[name]) for name in one})
        return torch.where(valid.reshape(*valid.shape, *[1] * (one.ndim - valid.ndim)), one, another.to(one.dtype))

    return chosen(x, other)


def masked_mean(x: Tensor, valid: Tensor, count: Tensor | None = None) -> Tensor:
    """Returns the mean [] of x [T, B] over valid [T, B]; 0 if no row is live.

    If this is a part of a larger batch, count [] is the number of live rows in the whole batch. The result is then this
    part's share of the whole mean; shares add up over microbatches and learners.
    """
    return masked_sum(x, valid) / (valid.sum().clamp(min=1) if count is None else count)


def masked_moments(x: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> tuple[Tensor, Tensor]:
    """Returns mean [K] and variance [K] of x [K, T, B] over valid [T, B]; 0 if no row is live."""
    count = valid.sum().to(x.dtype).expand(1)
    total = ranks.sum(torch.cat([count, x.masked_fill(~valid, 0.0).sum((1, 2))]))
    count, mean = total[0].clamp(min=1), total[1:] / total[0].clamp(min=1)
    squared = (x - mean[:, None, None]).masked_fill(~valid, 0.0).square().sum((1, 2))
    return mean, ranks.sum(squared) / count


def explained_variance(target: Tensor, value: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Returns 1 - Var(target - value) / Var(target) [] over live rows of [T, B].

    1 is a perfect prediction; 0 is no better than a constant.
    """
    _, variance = masked_moments(torch.stack([target - value, target]), valid, ranks)
    # Targets that are all alike would give -inf. Where the errors are as small as the bound, it shrinks with them: the
    # returns of tiny rewards would otherwise look as if they were predicted perfectly.
    smallest = variance[0].clamp(min=1e-30, max=1e-8)
    return 1.0 - variance[0] / torch.maximum(variance[1], smallest)


def masked_normalize(x: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Scales x [T, B] to mean 0 and standard deviation 1 over live rows; dead rows become 0."""
    mean, variance = masked_moments(x.unsqueeze(0), valid, ranks)
    return (x - mean).masked_fill(~valid, 0.0) / (variance.sqrt() + 1e-8)
