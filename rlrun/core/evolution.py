"""What the learner and the samplers of evolution strategies share: a table of noise, and the results of episodes played
with policies that were perturbed by pieces of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.core.env import Failure
from rlrun.core.errors import UserError
from rlrun.core.moments import Moments
from rlrun.core.seeding import Seeds

BYTES = 4  # bytes per number in the table


@dataclass(frozen=True, kw_only=True)
class FromPopulation:
    """What an algorithm that learns only from returns asks for."""

    pairs: int  # the least number of pairs of mirrored perturbations per update
    min_env_steps: int  # the least number of env steps per update
    noise_std: float
    noise_size: int  # numbers in the table
    eval_share: float  # episodes with the unperturbed policy per pair, on average
    action_noise: float
    reward_offset: float = 0.0  # subtracted from every reward in the fitness
    reward_signs: bool = False  # the fitness is the sum of the rewards' signs


class Played(NamedTuple):
    """One finished episode."""

    ret: float
    length: int
    fitness: float  # the number learnt from: the return minus the offset of every step, or the sum of rewards' signs


class Rollout(NamedTuple):
    """The two episodes of a mirrored pair. For `plus`, noise_std times the table's numbers from `offset` on is added to
    the parameters; for `minus`, it is subtracted."""

    offset: int
    plus: Played
    minus: Played


class Report(NamedTuple):
    """The episodes that a sampler has played."""

    worker: int
    order: int  # the report's place among those of one update
    rollouts: tuple[Rollout, ...]
    evaluations: tuple[Played, ...]  # episodes of the unperturbed policy
    env_steps: int
    seconds: tuple[float, float]  # time spent in the environment and in the policy
    moments: list[Moments] | None  # moments of the observations, for the filter
    failures: tuple[Failure, ...] = ()  # of environments; an episode that broke off was played again


class NoiseTable:
    """A table of standard normal numbers in shared memory, which all processes of the machine use (Salimans et al.
    2017, arXiv:1703.03864, section 2.1). It can be pickled for spawned processes."""

    def __init__(self, size: int, seeds: Seeds):
        self.numbers = torch.empty(size).share_memory_()
        self.numbers.normal_(generator=seeds.generator("noise"))

    def piece(self, offset: int, count: int) -> Tensor:
        """`count` numbers from `offset` on, [count]."""
        return self.numbers[offset : offset + count]


def check_noise(size: int, parameters: int, available: int, shared: int) -> None:
    """Raises UserError if the table is smaller than a policy's number of `parameters`, or larger than the bytes of
    memory (`available`) or of shared memory (`shared`) that are free."""
    if size < parameters:
        raise UserError(
            f"algo.noise_size={size:,} is less than the policy's {parameters:,} parameters: "
            "a perturbation is a piece of the table"
        )
    for free, what in ((available, "memory"), (shared, "shared memory (/dev/shm)")):
        if size * BYTES > free:
            raise UserError(
                f"algo.noise_size={size:,} is a table of {size * BYTES / 1e9:.1f} GB, and {free / 1e9:.1f} GB of {what}"
                " are free: make it smaller"
            )
