"""Pieces of policy losses."""

import torch
from torch import Tensor


@torch.no_grad()
def adapt_kl_coef_(coef: Tensor, kl: Tensor | float, target: float) -> None:
    """Changes the weight [] of a KL penalty in place: up when the policy moved more than twice the target, down when less than half of it (Schulman et
    al. 2017, section 4, with RLlib's factors 1.5 and 0.5)."""
    kl = torch.as_tensor(kl)
    coef.mul_(torch.where(kl > 2.0 * target, 1.5, torch.where(kl < 0.5 * target, 0.5, 1.0)))
