"""Temporal differences of action values: targets, projections and losses."""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.ops.returns import fold_n_step


def huber(error: Tensor, delta: float | None) -> Tensor:
    """Returns, per element, 0.5 e^2 up to |e| = delta and delta (|e| - delta / 2) beyond; 0.5 e^2 if delta is None.

    Source: Huber 1964. Its gradient is the clipped one of Mnih et al. 2015.
    """
    if delta is None:
        return 0.5 * error.square()
    size = error.abs()
    bounded = size.clamp(max=delta)
    return bounded * (size - 0.5 * bounded)


def taken(q: Tensor, action: Tensor) -> Tensor:
    """Returns the entries [B] or [B, K] of q [B, A] or [B, A, K] that belong to action [B]."""
    index = action.view(-1, 1, *([1] * (q.ndim - 2))).expand(-1, 1, *q.shape[2:])
    return q.gather(1, index).squeeze(1)


@torch.no_grad()
def categorical_projection(probability: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """Projects the distribution of reward + discount z onto the support of the atoms: [B, K].

    Source: Bellemare et al. 2017, arXiv:1707.06887, eq. 7. Values beyond the first or last atom count as that atom.

    Args: probability [B, K] over atoms [K], which are evenly spaced; reward, discount [B].
    """
    assert probability.ndim == 2 and probability.shape[1] == len(atoms), (probability.shape, atoms.shape)
    spacing = atoms[1] - atoms[0]
    value = (reward[:, None] + discount[:, None] * atoms).clamp(atoms[0], atoms[-1])  # [B, K]: new value of each atom
    # share [B, K to, K from] of a value's probability that goes to each atom: the nearer the atom, the more
    share = (1.0 - (value[:, None, :] - atoms[None, :, None]).abs() / spacing).clamp(min=0.0)
    return (share * probability[:, None, :]).sum(-1)


@torch.no_grad()
def recorded_divergence(
    reward: Tensor,
    terminated: Tensor,
    valid: Tensor,
    log_p_taken: Tensor,
    p_max: Tensor,
    discount: float,
    atoms: Tensor,
) -> Tensor:
    """Returns KL(target || prediction) [B] of single transitions, at least 0, from distributions that were recorded
    while acting.

    It is recorded_td_error (ops/returns.py) for distributions over atoms [K] (Hessel et al. 2018, arXiv:1710.02298).

    Args: reward, terminated, valid [n, B] as in fold_n_step; log_p_taken, p_max [n + 1, B, K], the recorded log
    probabilities of the atoms for the action taken, and their probabilities for the best action, in every row.
    """
    total, follows = fold_n_step(reward, terminated, valid, discount)
    over = ~valid
    end = torch.where(over.any(0), over.long().argmax(0), len(reward))
    columns = torch.arange(len(end), device=end.device)
    # What was recorded behind a terminated row means nothing; with discount 0 any distribution gives the same target.
    following = torch.where(follows[:, None] > 0, p_max[end, columns], 1.0 / len(atoms))
    target = categorical_projection(following, total, follows, atoms)
    cross_entropy = -(target * log_p_taken[0]).sum(-1)
    return (cross_entropy - torch.special.entr(target).sum(-1)).clamp(min=0.0)


def quantile_huber(quantile: Tensor, fraction: Tensor, target: Tensor, delta: float) -> Tensor:
    """Returns the loss [B] of quantile regression.

    Source: Dabney et al. 2018a, arXiv:1710.10044, eq. 9 and 10; 2018b, arXiv:1806.06923, eq. 3.

        sum_i mean_j |tau_i - 1{u_ij < 0}| L_delta(u_ij) / delta,  u_ij = target_j - quantile_i

    Args: quantile, fraction [B, N], the predictions and their tau; target [B, M], without gradient.
    """
    error = target[:, None, :] - quantile[:, :, None]  # [B, N, M]
    weight = (fraction[:, :, None] - (error.detach() < 0).float()).abs()
    return (weight * huber(error, delta) / delta).mean(2).sum(1)


def signed_hyperbolic(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """Returns h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, which compresses large returns.

    Source: Pohlen et al. 2018, arXiv:1805.11593, proposition A.2.
    """
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + epsilon * x


def signed_parabolic(x: Tensor, epsilon: float = 1e-3) -> Tensor:
    """Returns the inverse of signed_hyperbolic, in a form without cancellation near 0."""
    root = (1.0 + 4.0 * epsilon * (x.abs() + 1.0 + epsilon)).sqrt()
    # ((root - 1) / (2 epsilon))^2 - 1 = (a - 1)(a + 1) with a = 2 (|x| + 1 + epsilon) / (root + 1)
    a = 2.0 * (x.abs() + 1.0 + epsilon) / (root + 1.0)
    return x.sign() * (a - 1.0) * (a + 1.0)
