"""V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4.1)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Bootstrap = Literal["target", "mixed"]  # what an advantage bootstraps from, see vtrace()


class VTrace(NamedTuple):
    target: Tensor  # [T, B] v_s, the regression target of the value; no gradient
    advantage: Tensor  # [T, B] rho_s (r_s + discount b_{s+1} - V(x_s)), which weights the policy gradient


@torch.no_grad()
def vtrace(
    log_rho: Tensor,
    discount: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    valid: Tensor,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
    lambda_: float = 1.0,
    bootstrap: Bootstrap = "target",
) -> VTrace:
    """Returns V-trace targets (eq. 1) and policy-gradient advantages (section 4.2), both without gradient.

        v_s = V(x_s) + sum_{t>=s} discount^{t-s} (prod_{i<t} c_i) delta_t V,
        delta_t V = rho_t (r_t + discount V(x_{t+1}) - V(x_t)),
        rho = min(rho_clip, pi/mu),  c = lambda min(c_clip, pi/mu)

    An advantage bootstraps from b_{s+1}. It is v_{s+1} with bootstrap="target", as the paper writes it: lambda then
    shortens the targets alone, and with all weights 1 the advantage is r_s + discount v_{s+1} - V(x_s), which is not
    GAE(lambda). It is lambda v_{s+1} + (1 - lambda) V(x_{s+1}) with bootstrap="mixed", as in rlax
    (vtrace_td_error_and_advantage); with all weights 1 that is GAE(lambda). With lambda 1 both are the same.

    They are computed backwards (remark 1). A dead row (valid False) cuts the sum: rows before it bootstrap from the
    value of its observation, unless their own discount is 0 (terminated). A clip of 0 or less means no clip.

    Args: log_rho [T, B] log pi(a|x) - log mu(a|x); discount [T, B], 0 where terminated; reward, value, next_value [T,
    B], where next_value[t] is V(x_{t+1}); valid [T, B] bool. log_rho, reward and discount are not read in dead rows.
    """
    assert log_rho.ndim == 2, log_rho.shape
    for other in (discount, reward, value, next_value, valid):
        assert other.shape == log_rho.shape, (other.shape, log_rho.shape)
    live = valid.to(value.dtype)
    rho_raw = log_rho.masked_fill(~valid, 0.0).exp()
    discount = discount.masked_fill(~valid, 0.0)
    reward = reward.masked_fill(~valid, 0.0)

    def clipped(bound: float) -> Tensor:
        return rho_raw.clamp(max=bound) if bound > 0 else rho_raw

    c = lambda_ * clipped(c_clip)
    delta = live * clipped(rho_clip) * (reward + discount * next_value - value)  # [T, B]
    correction = torch.zeros_like(value[0])
    corrections = torch.empty_like(value)  # v_s - V(x_s)
    decay = live * discount * c
    for t in range(value.shape[0] - 1, -1, -1):
        correction = delta[t] + decay[t] * correction
        corrections[t] = correction
    target = value + corrections
    # v_{t+1} = V(x_{t+1}) + correction_{t+1}; there is no correction after the fragment's last row
    following = torch.cat([corrections[1:], torch.zeros_like(corrections[:1])])
    if bootstrap == "mixed":
        following = lambda_ * following
    advantage = live * clipped(pg_rho_clip) * (reward + discount * (next_value + following) - value)
    return VTrace(target, advantage)
