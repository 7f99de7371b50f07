"""Returns and advantages of fragments in which episodes may end."""

import torch
from torch import Tensor


@torch.no_grad()
def gae(reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, valid: Tensor, lambda_: float) -> Tensor:
    """Returns the advantages [T, B] of generalised advantage estimation.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.

        A_t = delta_t + discount_t lambda A_{t+1},  delta_t = r_t + discount_t V(x_{t+1}) - V(x_t)

    A dead row (valid False) has advantage 0 and cuts the sum, so that rows before it bootstrap from its value unless
    their own discount is 0. If values are 0 and lambda_ is 1, the result is the discounted reward to go. advantage +
    value is the regression target of the value.

    Args: reward, value, next_value [T, B], where next_value[t] is V(x_{t+1}); discount [T, B], 0 where terminated;
    valid [T, B] bool. reward and discount are not read in dead rows.
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


@torch.no_grad()
def fold_n_step(reward: Tensor, terminated: Tensor, valid: Tensor, discount: float) -> tuple[Tensor, Tensor]:
    """Folds fragments of n rows into single transitions: (reward [B], discount [B] of the value that follows).

        R = sum_{k < m} discount^k r_k,  and discount^m, or 0 where one of the m rows terminated

    (Sutton 1988; Hessel et al. 2018, arXiv:1710.02298, eq. under "Multi-step learning"). The m rows end with the first
    terminated row, before the first dead row, or after n rows. Row 0 must be live. The following observation is that of
    the first dead row or, without one, the observation after the last row.

    Args: reward [n, B]; terminated, valid [n, B] bool. Dead rows are not read.
    """
    assert reward.ndim == 2 and reward.shape == terminated.shape == valid.shape, (
        reward.shape,
        terminated.shape,
        valid.shape,
    )
    if len(reward) == 1:
        return reward[0], discount * (~terminated[0]).to(reward)
    total = torch.zeros_like(reward[0])
    follows = torch.ones_like(total)  # discount^k; 0 after a termination
    going = torch.ones_like(valid[0])
    for k in range(reward.shape[0]):
        going = going & valid[k]
        total = total + torch.where(going, follows * reward[k], 0.0)
        ended = going & terminated[k]
        follows = torch.where(going, follows * discount * ~ended, follows)
        going = going & ~ended
    return total, follows


@torch.no_grad()
def n_step_return(
    reward: Tensor, terminated: Tensor, valid: Tensor, next_value: Tensor, discount: float, n: int
) -> Tensor:
    """Returns the n-step return [T, B] of every row of a sequence; 0 on dead rows.

    A return ends where fold_n_step's does, and at the end of the sequence at the latest.

    Args: reward, next_value [T, B], where next_value[t] is the value after row t; terminated, valid [T, B] bool. reward
    is not read in dead rows.
    """
    assert reward.ndim == 2 and reward.shape == terminated.shape == valid.shape == next_value.shape
    if n == 1:
        return (reward + discount * (~terminated).to(reward) * next_value).masked_fill(~valid, 0.0)
    total, follows, end = torch.zeros_like(reward), torch.ones_like(reward), torch.zeros_like(reward)
    going = torch.ones_like(valid)
    for k in range(min(n, len(reward))):
        rows = slice(k, len(reward))  # row t + k, for every t that has such a row
        here = going[: len(reward) - k] & valid[rows]
        head = slice(0, len(reward) - k)
        total[head] += torch.where(here, follows[head] * reward[rows], 0.0)
        follows[head] = torch.where(here, follows[head] * discount * ~terminated[rows], follows[head])
        end[head] = torch.where(here, next_value[rows], end[head])
        going = torch.zeros_like(going)
        going[head] = here & ~terminated[rows]
    return (total + follows * end).masked_fill(~valid, 0.0)


@torch.no_grad()
def lambda_return(
    reward: Tensor, terminated: Tensor, valid: Tensor, next_value: Tensor, discount: float, lambda_: float
) -> Tensor:
    """Returns the lambda-return [T, B] of every row of a sequence; 0 on dead rows.

        G_t = r_t + discount ((1 - lambda) V(x_{t+1}) + lambda G_{t+1})

    (Sutton and Barto 2018, eq. 12.18). With the values of best actions and the actions of another policy it is Peng's
    Q(lambda). The last row before the end of the sequence or before a dead row takes its value in place of G_{t+1}.

    Args: reward, next_value [T, B], where next_value[t] is the value after row t; terminated, valid [T, B] bool. reward
    is not read in dead rows.
    """
    value = torch.cat([torch.zeros_like(next_value[:1]), next_value[:-1]])
    follows = discount * (~terminated).to(reward)
    return (gae(reward, follows, value, next_value, valid, lambda_) + value).masked_fill(~valid, 0.0)


@torch.no_grad()
def recorded_td_error(
    reward: Tensor, terminated: Tensor, valid: Tensor, q_taken: Tensor, q_max: Tensor, discount: float
) -> Tensor:
    """Returns the TD errors [B] of single transitions from action values that were recorded while acting.

    They are first priorities (Horgan et al. 2018, arXiv:1803.00933, section 3).

    Args: reward, terminated, valid [n, B] as in fold_n_step; q_taken, q_max [n + 1, B], the recorded values of the
    action taken and of the best action in every row.
    """
    total, follows = fold_n_step(reward, terminated, valid, discount)
    over = ~valid
    end = torch.where(over.any(0), over.long().argmax(0), len(reward))
    return total + torch.where(follows > 0, follows * q_max.gather(0, end[None])[0], 0.0) - q_taken[0]


def bootstrapped_returns(reward: Tensor, discount: Tensor, next_value: Tensor, lambda_: Tensor | float) -> Tensor:
    """Returns R [T, B] of rows whose values may come from elsewhere than the rows themselves (Dreamer).

        R_t = r_t + discount_t ((1 - lambda_t) v_{t+1} + lambda_t R_{t+1}),  R_T = v_T

    Gradients go through rewards, discounts and values.

    Source: Sutton & Barto 2018, section 12.1; Hafner et al. 2020, arXiv:1912.01603, eq. 6; 2025,
    arXiv:2301.04104v2, eq. 6.

    Args: reward, discount, next_value [T, B], where next_value[t] is v_{t+1}; lambda_ a number or [T, B], 0 where the
    following return must not be used."""
    assert reward.shape == discount.shape == next_value.shape, (reward.shape, discount.shape, next_value.shape)
    steady = reward + discount * (1.0 - lambda_) * next_value
    decay = discount * lambda_
    returns, following = [], next_value[-1]
    for t in range(len(steady) - 1, -1, -1):
        following = torch.addcmul(steady[t], decay[t], following)
        returns.append(following)
    return torch.stack(returns[::-1])
