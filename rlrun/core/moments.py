"""Count, mean and sum of squared deviations, which can be merged exactly over parallel workers (Chan, Golub and LeVeque
1979, eq. 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.core.ranks import ALONE, Ranks


class Moments(NamedTuple):
    """The number of samples, their mean, and the sum of their squared deviations from it. The number is a tensor [] on
    a GPU where nothing should wait for it."""

    samples: float | Tensor
    mean: Tensor | float
    m2: Tensor | float


def moments_of(x: Tensor) -> Moments:
    """The moments of x [N, ...] over its first dimension, in float64."""
    if not len(x):
        zero = torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device)
        return Moments(0.0, zero, zero)
    if x.dtype == torch.uint8:
        return _moments_of_bytes(x)
    x = x.double()
    mean = x.mean(0)
    return Moments(float(len(x)), mean, (x - mean).square().sum(0))


def masked_moments_of(x: Tensor, live: Tensor) -> Moments:
    """The moments of the live rows of x [N, ...], where live is [N]. On a GPU nothing waits for them: rows are not
    picked, which would need their number, but dead ones have a weight of 0."""
    if x.dtype == torch.uint8:
        return _masked_moments_of_bytes(x, live)
    weight = live.double()
    samples = weight.sum()
    weight = weight.view(-1, *[1] * (x.ndim - 1))
    values = x.double().masked_fill(weight == 0, 0.0)  # whatever a dead row holds
    mean = values.sum(0) / samples.clamp(min=1)
    return Moments(samples, mean, ((values - mean) * weight).square_().sum(0))


def _masked_moments_of_bytes(x: Tensor, live: Tensor) -> Moments:
    """The same for bytes. float32 sums of at most 256 bytes and of their squares are exact."""
    total, squares = (torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device) for _ in range(2))
    for part, weight in zip(x.split(256), live.float().split(256), strict=True):
        values = part * weight.view(-1, *[1] * (x.ndim - 1))
        total += values.sum(0)
        squares += values.square_().sum(0)
    samples = live.sum(dtype=torch.float64)
    mean = total / samples.clamp(min=1)
    return Moments(samples, mean, (squares - total * mean).clamp(min=0))


def _moments_of_bytes(x: Tensor) -> Moments:
    """The same for bytes, 64 rows at a time: a batch of images would take gigabytes as float64. float32 sums of so few
    bytes and of their squares are exact."""
    total, squares = (torch.zeros(x.shape[1:], dtype=torch.float64, device=x.device) for _ in range(2))
    for part in x.split(64):
        values = part.float()
        total += values.sum(0)
        squares += values.square_().sum(0)
    mean = total / len(x)
    return Moments(float(len(x)), mean, (squares - total * mean).clamp(min=0))


def plain(moments: Sequence[Moments] | None) -> list[Moments] | None:
    """The moments as NumPy arrays, since tensors would be sent between processes as shared memory."""
    return None if moments is None else [Moments(m.samples, np.asarray(m.mean), np.asarray(m.m2)) for m in moments]  # type: ignore[arg-type]


class RunningMoments(nn.Module):
    """The moments of everything that was merged. They are buffers, so that they are saved, restored and published with
    the module that holds them."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(shape, dtype=torch.float64))
        self.count: Tensor
        self.mean: Tensor
        self.m2: Tensor

    @torch.no_grad()
    def merge(self, other: Moments) -> None:
        """Adds the other's samples, as if all had been seen here. The order of merges matters only for rounding."""
        samples = other.samples
        if isinstance(samples, Tensor) and samples.device != self.mean.device:
            samples = float(samples)
        if not isinstance(samples, Tensor) and samples == 0:
            return
        seen = self.count + samples
        total = seen.clamp(min=1)
        shift = torch.as_tensor(other.mean, dtype=torch.float64, device=self.mean.device) - self.mean
        self.m2 += torch.as_tensor(other.m2, dtype=torch.float64, device=self.mean.device) + shift.square() * (
            self.count * samples / total
        )
        self.mean += shift * (samples / total)
        self.count.copy_(seen)

    @property
    def variance(self) -> Tensor:
        """The variance of all samples; it is 1 before the second sample."""
        return torch.where(self.count > 1, self.m2 / self.count.clamp(min=1), torch.ones_like(self.m2))


def fold(kept: list[Any], new: Any) -> None:
    """Appends what Policy.moments() returned. Where it and the last one are lists of moments, they become one, so that
    no more is kept for many rows than for a few."""
    if kept and all(isinstance(one, list) and all(isinstance(m, Moments) for m in one) for one in (kept[-1], new)):
        pairs = zip(kept[-1], new, strict=True)
        kept[-1] = [merged(pair, torch.as_tensor(pair[0].mean).shape, ALONE) for pair in pairs]
    else:
        kept.append(new)


def merged(parts: Sequence[Moments], shape: torch.Size, ranks: Ranks) -> Moments:
    """The combined moments of all learners' samples. Each learner passes any number of parts, whose mean and m2 have
    this shape."""
    if len(parts) == 1 and ranks.world == 1:
        return parts[0]  # and on the device where it is
    total = RunningMoments(tuple(shape))
    for part in parts:
        total.merge(part)
    if ranks.world > 1:
        flat = torch.cat([total.count.reshape(1), total.mean.flatten(), total.m2.flatten()])
        total = RunningMoments(tuple(shape))
        for row in ranks.gather(flat):
            mean, m2 = row[1:].chunk(2)
            total.merge(Moments(float(row[0]), mean.view(shape), m2.view(shape)))
    return Moments(float(total.count), total.mean, total.m2)
