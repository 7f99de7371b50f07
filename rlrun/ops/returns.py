"""Returns and advantages of fragments with ends."""

import torch
from torch import Tensor


@torch.no_grad()
def gae(reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, valid: Tensor, lambda_: float) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16) -> advantage [T, B].

        A_t = delta_t + discount_t lambda A_{t+1},  delta_t = r_t + discount_t V(x_{t+1}) - V(x_t)

    A dead row (valid False) has advantage 0 and cuts the sum, so that rows before it bootstrap from its value unless their own discount is 0.
    With values of zero and lambda_ 1 this is the discounted reward to go. advantage + value is the regression target of the value.

    Args: reward, value, next_value [T, B], where next_value[t] is V(x_{t+1}); discount [T, B], 0 where terminated; valid [T, B] bool. What stands
    in dead rows of reward and discount is not read.
    """
    assert reward.ndim == 2, reward.shape
    for other in (discount, value, next_value, valid):
        assert other.shape == reward.shape, (other.shape, reward.shape)
    discount = discount.masked_fill(~valid, 0.0)
    delta = (reward + discount * next_value - value).masked_fill(~valid, 0.0)
    decay = discount * lambda_
    advantage = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        following = torch.addcmul(delta[t], decay[t], following)  # decay is 0 on dead rows, and so is delta
        advantage[t] = following
    return advantage
