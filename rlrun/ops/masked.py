"""Reductions over live rows."""

from torch import Tensor


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Sum of x [T, B] over valid [T, B] -> []. A dead row's x may be anything, NaN included."""
    return x.masked_fill(~valid, 0.0).sum()


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean of x [T, B] over valid [T, B] -> []; 0 when no row is live."""
    return masked_sum(x, valid) / valid.sum().clamp(min=1)
