"""Bayesian linear regression for several arms at once, each with its own weights.

With A = ridge I + sum x x' and b = sum y x, the weights are normal with mean A^-1 b and covariance s^2 A^-1, where s^2
is the variance of the noise (Bishop 2006, section 3.3). All functions take arms [K] first; d is the number of
features."""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.core.errors import RunFailed

TOGETHER = 2**16  # rows times arms up to which all arms share one product


def sums(x: Tensor, y: Tensor, arm: Tensor, valid: Tensor, arms: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns what rows add to A [K, d, d], to b [K, d], to sum y^2 [K] and to the number of rows [K].

    Args: x [N, d], y [N], arm [N], valid [N]: rows that do not count are not valid and may hold anything."""
    mine = (arm[:, None] == torch.arange(arms, device=arm.device)) & valid[:, None]  # [N, K]
    x, y = x.masked_fill(~valid[:, None], 0.0), y.masked_fill(~valid, 0.0)
    share = mine.to(x.dtype)
    if arms > 1 and mine.numel() > TOGETHER:  # every arm with its own rows alone
        precision, moment = x.new_zeros(arms, x.shape[1], x.shape[1]), x.new_zeros(arms, x.shape[1])
        for one in arm[valid].unique().tolist():
            rows, target = x[mine[:, one]], y[mine[:, one]]
            precision[one], moment[one] = rows.T @ rows, rows.T @ target
        return precision, moment, share.T @ y.square(), share.sum(0)
    weighted = share.T.unsqueeze(-1) * x  # [K, N, d]
    return weighted.transpose(1, 2) @ x, weighted.transpose(1, 2) @ y, share.T @ y.square(), share.sum(0)


def solve(precision: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean A^-1 b [K, d] and a root R [K, d, d] of the covariance, R R' = A^-1.

    Args: precision A [K, d, d], moment b [K, d]. Raises RunFailed if rounding has made A singular."""
    try:
        lower = torch.linalg.cholesky(precision)
    except torch.linalg.LinAlgError:
        largest = float(precision.diagonal(dim1=-2, dim2=-1).max()) ** 0.5
        raise RunFailed(
            f"the features of this bandit differ too much in size for a regression (the root of a sum of squares is"
            f" {largest:.3g}): scale them to about 1, for example with a wrapper (env.wrappers)"
        ) from None
    mean = torch.cholesky_solve(moment.unsqueeze(-1), lower).squeeze(-1)
    unit = torch.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device).expand_as(precision)
    return mean, torch.linalg.solve_triangular(lower, unit, upper=False).transpose(-1, -2)


def noise_of(
    squares: Tensor, mean: Tensor, moment: Tensor, count: Tensor, shape: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns shape and scale [K] of the inverse gamma distribution of s^2, from those before any row (Riquelme et al.
    2018, arXiv:1802.09127, eq. 2).

    The scale grows by half of sum y^2 - m' A m, the sum of squared errors and of the prior's pull, which rounding can
    make negative; it never falls below the one before."""
    errors = (squares - (mean * moment).sum(-1)).clamp(min=0.0)
    return shape + 0.5 * count, scale + 0.5 * errors


def deviation(x: Tensor, root: Tensor) -> Tensor:
    """Returns sqrt(x' A^-1 x) [...] for x [..., d] and a root [d, d] of A^-1, or of one [..., K] for x [..., K, d] and
    roots [K, d, d]."""
    if root.ndim == 2:
        return (x @ root).norm(dim=-1)
    return torch.einsum("...ki,kij->...kj", x, root).norm(dim=-1)
