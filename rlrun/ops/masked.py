"""Reductions over live rows."""

from torch import Tensor


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Sum of x [T, B] over valid [T, B] -> []. A dead row's x may be anything, NaN included."""
    return x.masked_fill(~valid, 0.0).sum()


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean of x [T, B] over valid [T, B] -> []; 0 when no row is live."""
    return masked_sum(x, valid) / valid.sum().clamp(min=1)


def explained_variance(target: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over live rows of [T, B] -> []: 1 is a perfect prediction, 0 no better than a constant."""

    def variance(x: Tensor) -> Tensor:
        return masked_mean((x - masked_mean(x, valid)).square(), valid)

    return 1.0 - variance(target - value) / variance(target).clamp(min=1e-8)


def masked_normalize(x: Tensor, valid: Tensor) -> Tensor:
    """x [T, B] with mean 0 and standard deviation 1 over live rows; dead rows become 0."""
    centred = (x - masked_mean(x, valid)).masked_fill(~valid, 0.0)
    return centred / (masked_mean(centred.square(), valid).sqrt() + 1e-8)
