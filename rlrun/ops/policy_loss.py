"""Parts of policy losses."""

import torch
from torch import Tensor


@torch.no_grad()
def adapt_kl_coef_(coef: Tensor, kl: Tensor | float, target: float) -> None:
    """Adapts the weight [] of a KL penalty in place.

    It grows if kl is above twice the target and shrinks if kl is below half of it (Schulman et al. 2017, section 4,
    with RLlib's factors 1.5 and 0.5).
    """
    kl = torch.as_tensor(kl)
    coef.mul_(torch.where(kl > 2.0 * target, 1.5, torch.where(kl < 0.5 * target, 0.5, 1.0)))
