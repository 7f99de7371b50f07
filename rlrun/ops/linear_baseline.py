"""A linear baseline of returns: least squares on features of observation and time."""

import torch
from torch import Tensor

OBSERVATION_BOUND = 10.0
TIME_SCALE = 100.0  # rows


def features(obs: Tensor, row: Tensor) -> Tensor:
    """Features [..., 2 D + 4] of observations [..., D] and of their places in their episodes, row [...] (Duan et al.
    2016, arXiv:1604.06778, section 4.1): the observation, bounded, its square, three powers of the time, and 1."""
    obs = obs.double().clamp(-OBSERVATION_BOUND, OBSERVATION_BOUND)
    time = (row.double() / TIME_SCALE).unsqueeze(-1)
    return torch.cat([obs, obs.square(), time, time.square(), time**3, torch.ones_like(time)], -1)


@torch.no_grad()
def fitted(x: Tensor, target: Tensor, valid: Tensor, ridge: float) -> Tensor:
    """Weights [G, F] of G regressions of targets [G, N] on features x [G, N, F], over valid [G, N].

    They minimise sum (x w - target)^2 + ridge w^2. Without a valid row they are 0. ridge: positive; the result is
    computed in float64."""
    x = x.double().masked_fill(~valid.unsqueeze(-1), 0.0)
    target = target.double().masked_fill(~valid, 0.0)
    square = x.transpose(1, 2) @ x + ridge * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return torch.linalg.solve(square, (x.transpose(1, 2) @ target.unsqueeze(-1))).squeeze(-1)


def rows_since_start(is_first: Tensor) -> Tensor:
    """The place [T, B] of every row in its episode, from is_first [T, B]; before the first start, rows count from 0."""
    number = torch.arange(len(is_first), device=is_first.device).unsqueeze(1).expand_as(is_first)
    return number - torch.where(is_first, number, 0).cummax(0).values
