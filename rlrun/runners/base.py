"""What runtime/build.py hands to every runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch

from rlrun.core.algorithm import Algorithm
from rlrun.core.evolution import NoiseTable
from rlrun.core.ranges import Positive
from rlrun.machine.threads import TunedThreads
from rlrun.replay.buffer import Replay
from rlrun.replay.service import ShardedReplay
from rlrun.samplers.base import Sampler
from rlrun.samplers.population import Population


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """The options that every runner has (conf/runner/<name>.yaml says what each is), and what a runner's file says about itself."""

    name: str
    queue_timeout_sec: Annotated[float, Positive]

    synchronous: ClassVar[bool]  # samplers wait for the weights of every update, so that no row is older than the weights that learn from it
    lockstep: ClassVar[bool] = True  # several learners make every update together; otherwise they do not wait for each other


def _none(*facts: Any) -> Any:
    raise NotImplementedError


class Factories(NamedTuple):
    """Called by the runner, in this order."""

    algorithm: Callable[[], Algorithm]
    sampler: Callable[[int], Sampler]  # generation: how often this run has been started
    columns: int  # of a train batch
    rng: Callable[[int], torch.Generator]  # generation: the stream of replayed fragments
    replay: Callable[[int], Replay]  # generation; for runner=replay
    sharded_replay: Callable[[int, Any, int], ShardedReplay]  # generation, sampler (of processes), shards; for runner=distributed_replay
    noise: Callable[[], NoiseTable] = _none  # for runner=evolution
    population: Callable[[NoiseTable], Population] = _none
    threads: TunedThreads = TunedThreads((1,))  # entered for every update
    learners: int = 1  # processes of a runner whose learners do not go in lockstep
    elsewhere: Callable[[int], Any] = lambda number: None  # picklable: the Factories of process i, called there
