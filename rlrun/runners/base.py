"""The configuration and the factories that runtime/build.py passes to every runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch

from rlrun.core.algorithm import Algorithm
from rlrun.core.evolution import NoiseTable
from rlrun.core.pulse import DEFAULT, Limits
from rlrun.core.ranges import Positive
from rlrun.datasets.rows import DataRows
from rlrun.machine.threads import TunedThreads
from rlrun.replay.buffer import Replay
from rlrun.replay.grouped import GroupedReplay
from rlrun.replay.service import ShardedReplay
from rlrun.samplers.base import Sampler
from rlrun.samplers.population import PopulationBase


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """The options that every runner has (conf/runner/<name>.yaml explains them), and properties of the runner."""

    name: str
    queue_timeout_sec: Annotated[float, Positive]

    # Whether samplers wait for the weights of every update, so that every row is made with the weights that learn from
    # it.
    synchronous: ClassVar[bool]
    # Whether several learners make every update together; otherwise they do not wait for each other.
    lockstep: ClassVar[bool] = True


def _none(*facts: Any) -> Any:
    raise NotImplementedError


class Factories(NamedTuple):
    """The functions with which a runner makes its parts. It calls them in this order."""

    algorithm: Callable[[], Algorithm]
    sampler: Callable[[int], Sampler]  # generation: how often this run has been started
    columns: int  # columns in a train batch
    rng: Callable[[int], torch.Generator]  # argument: generation; the generator that picks replayed fragments
    replay: Callable[[int], Replay | GroupedReplay]  # argument: generation; for runner=replay
    # Arguments: generation, sampler (with processes), number of shards; for runner=distributed_replay.
    sharded_replay: Callable[[int, Any, int], ShardedReplay]
    noise: Callable[[], NoiseTable] = _none  # for runner=evolution
    population: Callable[[NoiseTable], PopulationBase] = _none
    threads: TunedThreads = TunedThreads((1,))  # entered for every update
    data: Callable[[int], DataRows] = _none  # for runner=offline, and for runner=replay with data
    data_columns: int = 0  # columns of this learner's part of a train batch that are drawn from data
    learners: int = 1  # number of processes, for runners whose learners do not work in lockstep
    learns_from_replay: bool = False
    limits: Limits = DEFAULT  # how long environments may take, for runners whose processes step them
    envs: int = 1  # environments whose rows are in one fragment
    rounds: int = 1  # rounds in a train batch, for runner=meta
    elsewhere: Callable[[int, int], Any] = _none  # (i, generation) makes the Factories of process i there; picklable
