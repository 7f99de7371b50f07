"""Parts of policy losses."""

import torch
from torch import Tensor

COEF_LOW, COEF_HIGH = 1e-10, 1e10
LARGEST_LOG_RATIO = 20.0  # of a new to an old probability; exp of it, 5e8, is far outside of any clip range


def bounded(log_ratio: Tensor) -> Tensor:
    """Returns log ratios [...] of new to old probabilities that are at most LARGEST_LOG_RATIO. Smaller ones stay as
    they are, to the bit, and larger ones get no gradient.

    A ratio of e^89 would be infinite in float32. The clipped loss gives such a row the gradient 0, but 0 times infinity
    is NaN, and a single row would spoil the gradient of the whole batch."""
    return log_ratio.clamp(max=LARGEST_LOG_RATIO)


@torch.no_grad()
def adapt_kl_coef_(coef: Tensor, kl: Tensor | float, target: float) -> None:
    """Adapts the weight [] of a KL penalty in place.

    It grows if kl is above twice the target and shrinks if kl is below half of it (Schulman et al. 2017, section 4,
    with RLlib's factors 1.5 and 0.5). Once it is above 0 it stays between COEF_LOW and COEF_HIGH, outside of which it
    would in the end be 0 for good, or infinite.
    """
    kl = torch.as_tensor(kl)
    coef.mul_(torch.where(kl > 2.0 * target, 1.5, torch.where(kl < 0.5 * target, 0.5, 1.0)))
    bound_coef_(coef)


@torch.no_grad()
def bound_coef_(coef: Tensor) -> None:
    """Keeps weights of KL penalties [...] within bounds, in place. Those of 0 stay 0."""
    coef.copy_(torch.where(coef > 0, coef.clamp(COEF_LOW, COEF_HIGH), coef))
