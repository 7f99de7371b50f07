"""What evolution shares between learner and samplers: a table of noise, and what came of playing with a policy moved along a piece of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.core.errors import UserError
from rlrun.core.moments import Moments
from rlrun.core.seeding import Seeds

BYTES = 4  # of a number of the table


@dataclass(frozen=True, kw_only=True)
class FromPopulation:
    """What an algorithm that learns from returns alone asks for."""

    pairs: int  # of mirrored perturbations per update, at least
    min_env_steps: int  # per update, at least
    noise_std: float
    noise_size: int  # numbers in the table
    eval_share: float  # of the episodes beside them, by the unperturbed policy
    action_noise: float
    reward_offset: float = 0.0  # taken from every reward in what is learnt from
    reward_signs: bool = False  # what is learnt from are sums of rewards' signs


class Played(NamedTuple):
    """An episode."""

    ret: float
    length: int
    fitness: float  # what is learnt from: the return less the offset of every step, or the sum of rewards' signs


class Rollout(NamedTuple):
    """Both episodes of a pair: with the parameters moved by noise_std times the table's numbers from `offset` on, and moved the other way."""

    offset: int
    plus: Played
    minus: Played


class Report(NamedTuple):
    """What a sampler has played."""

    worker: int
    order: int  # among those of an update
    rollouts: tuple[Rollout, ...]
    evaluations: tuple[Played, ...]  # by the unperturbed policy
    env_steps: int
    seconds: tuple[float, float]  # in the environment, in the policy
    moments: list[Moments] | None  # of observations, for the filter


class NoiseTable:
    """Standard normal numbers in shared memory, the same for every process of the machine (Salimans et al. 2017, arXiv:1703.03864, section 2.1). Picklable for
    spawn."""

    def __init__(self, size: int, seeds: Seeds):
        self.numbers = torch.empty(size).share_memory_()
        self.numbers.normal_(generator=seeds.generator("noise"))

    def piece(self, offset: int, count: int) -> Tensor:
        """[count]"""
        return self.numbers[offset : offset + count]


def check_noise(size: int, parameters: int, available: int, shared: int) -> None:
    """UserError where the table does not fit. parameters: of a policy; available: bytes of memory; shared: bytes of shared memory."""
    if size < parameters:
        raise UserError(f"algo.noise_size={size:,} is less than the policy's {parameters:,} parameters: a perturbation is a piece of the table")
    for free, what in ((available, "memory"), (shared, "shared memory (/dev/shm)")):
        if size * BYTES > free:
            raise UserError(f"algo.noise_size={size:,} is a table of {size * BYTES / 1e9:.1f} GB, and {free / 1e9:.1f} GB of {what} are free: make it smaller")
