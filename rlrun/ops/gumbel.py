"""Choices that are drawn in a way that a gradient can follow."""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-20  # uniform numbers below it count as this, because log 0 is not finite


def gumbel(uniform: Tensor) -> Tensor:
    """Returns standard Gumbel noise -log(-log u) for uniform numbers u in [0, 1)."""
    return -torch.log(-torch.log(uniform.clamp(min=LEAST)))


def straight_through(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Returns one-hot choices [..., A] whose gradient is that of the softmax of (logits + noise) / temperature.

    With Gumbel noise the choices have the probabilities softmax(logits), at any temperature.

    Source: Jang et al. 2017, arXiv:1611.01144, section 2.2; Maddison et al. 2017, arXiv:1611.00712.

    Args: logits, noise [..., A]. Illegal choices have logits far below all others.
    """
    disturbed = logits + noise
    soft = torch.softmax(disturbed / temperature, -1)
    hard = torch.zeros_like(soft).scatter(-1, disturbed.argmax(-1, keepdim=True), 1.0)
    return hard + (soft - soft.detach())
