"""Symmetric logarithms, and numbers that are predicted as distributions over exponentially spaced bins.

Source: Hafner et al. 2025, "Mastering diverse control tasks through world models", Nature 640 (arXiv:2301.04104v2),
"Robust predictions". Where the paper leaves something open, the author's code decides (danijar/dreamerv3 @ e3f0224).
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 20.0  # the outermost bins are symexp(-20) and symexp(20), which is about 4.85e8


def symlog(x: Tensor) -> Tensor:
    """sign(x) ln(|x| + 1)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """sign(x) (exp(|x|) - 1), the inverse of symlog."""
    return x.sign() * x.abs().expm1()


def symexp_bins(count: int) -> Tensor:
    """The values [count] of bins that are evenly spaced in symlog space, from symexp(-20) to symexp(20). They are
    mirrored, so that they are exactly antisymmetric; with an odd number the middle one is exactly 0."""
    lower = symexp(torch.linspace(-LARGEST, 0.0, (count + 1) // 2))
    return torch.cat([lower, -lower.flip(0)[count % 2 :]])


def two_hot(target: Tensor, bins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two bins next to each target [...] and the weight of the upper one: (lower [...], upper [...], weight [...]).

    The weights are the shares of the distance between the two bins, in the space of the targets. A target beyond the
    last bin has that bin alone."""
    last = len(bins) - 1
    lower = (torch.searchsorted(bins, target.contiguous(), right=True) - 1).clamp(0, last)
    upper = (lower + 1).clamp(max=last)
    below, above = bins[lower], bins[upper]
    share = ((target - below) / (above - below).clamp(min=torch.finfo(bins.dtype).tiny)).clamp(0.0, 1.0)
    return lower, upper, share


def two_hot_loss(logits: Tensor, bins: Tensor, *targets: tuple[Tensor, float]) -> Tensor:
    """The sum over targets, each with its weight, of the cross entropies [...] between the two-hot encodings of targets
    [...] and softmax(logits).

    Args: logits [..., K]; bins [K], ascending."""
    places, weights = [], []
    for target, factor in targets:
        lower, upper, share = two_hot(target, bins)
        places += [lower, upper]
        weights += [factor * (1.0 - share), factor * share]
    picked = logits.log_softmax(-1).gather(-1, torch.stack(places, -1))
    return -(picked * torch.stack(weights, -1)).sum(-1)


def expected(logits: Tensor, bins: Tensor) -> Tensor:
    """The mean [...] of softmax(logits) [..., K] over antisymmetric bins [K], of which there is an odd number.

    Bins with opposite values are subtracted first. Equal logits therefore give exactly 0, as the initial logits of
    rewards and values are meant to."""
    middle = len(bins) // 2
    chances = logits.softmax(-1)
    difference = chances[..., middle + 1 :] - chances[..., :middle].flip(-1)
    return (difference * bins[middle + 1 :]).sum(-1)
