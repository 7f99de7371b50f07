"""conf/resources as the user asks for it, and what a run uses of a machine once a runner's layout() has decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from rlrun.core.conditions import IMAGE_ENCODERS, OnlyFor
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.machine.nodes import RayConfig

Inference = Literal["serial", "local", "batched"]
Precision = Literal["fp32", "bf16"]
GAIN = 0.3  # share of a run's time that serial environments must take for processes of their own to be worth advice
CLEARLY = 2.0  # env steps must differ from what was measured before the run by this factor to be worth a message
BATCHED_GROUPS = 2  # with batched inference one group of a sampler's environments steps while the other is acted for


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig:
    inference: Literal["auto", "serial", "local", "batched"]
    num_learners: Literal["auto"] | Annotated[int, Count]
    num_samplers: Literal["auto"] | Annotated[int, Count]
    envs_per_sampler: Literal["auto"] | Annotated[int, Count]
    device: str
    precision: Literal["auto", "fp32", "bf16"]
    learner_threads: Literal["auto"] | Annotated[int, Count]
    cuda_graphs: bool
    tapes: bool
    compile: Annotated[bool, OnlyFor(IMAGE_ENCODERS)]
    exact: bool
    restarts: Annotated[int, NotNegative]
    restart_window_sec: Annotated[float, Positive]
    start_timeout_sec: Annotated[float, Positive]
    max_processes_per_core: Annotated[int, Count]
    ray: RayConfig | None

    def __post_init__(self):
        if self.exact and self.inference != "serial":
            raise ValueError("exact (bit-reproducible) runs need inference=serial")
        if self.exact and self.num_learners not in ("auto", 1):
            raise ValueError("exact (bit-reproducible) runs have one learner: set num_learners=1")
        if self.ray is not None and "auto" not in (self.num_samplers, self.ray.samplers_per_node):
            raise ValueError(
                "num_samplers counts the samplers of all nodes and ray.samplers_per_node those of each: set one"
            )


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast an environment was when inference=auto was decided, so that a run can look again.

    A short trial may miss a rare slow step, and a busy machine makes every step slow."""

    inference: Literal["serial", "local"]  # what was chosen
    env_step_sec: float  # as measured before the run
    serial_below_sec: float  # for environments that are faster, serial inference is chosen

    def second_look(self, env_step_sec: float, share: float) -> str | None:
        """Returns a sentence if the run's own env steps show that another choice would be clearly faster.

        env_step_sec: the mean of an env step in seconds. share: all env steps, as a share of the run's time."""
        below = self.serial_below_sec
        if self.inference == "serial":
            wrong, better = env_step_sec > CLEARLY * below and share > GAIN, "local"
            gain = "would give the environments processes of their own"
        else:
            wrong, better = env_step_sec * CLEARLY < below, "serial"
            gain = "would spare handing rows between processes"
        if not wrong:
            return None
        return (
            f"an env step takes {env_step_sec * 1e6:.0f} us on average, and not the {self.env_step_sec * 1e6:.0f} us"
            f" that were measured before the run, when inference={self.inference} was chosen;"
            f" resources.inference={better}, which a resumed run may set too, {gain}"
        )


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a run uses. `why` says each decision in a sentence.

    A producer fills one fragment at a time: a sampler, or with batched inference one of its groups."""

    inference: Inference
    num_learners: int
    samplers_per_learner: int
    envs_per_group: int  # environments whose rows are in one fragment
    device: torch.device  # of the first learner
    precision: Precision  # of the learner
    acting_precision: Precision
    learner_threads: tuple[int, ...]  # the fastest is found while the run goes on
    cuda_graphs: bool
    tapes: bool
    compile: bool
    exact: bool
    why: tuple[str, ...]
    pace: Pace | None = None  # if inference was chosen by the measured speed of the environment
    nodes: tuple[int, ...] = ()  # samplers of each machine, where they are on several
    # Learners of each machine, where they are on several; each has its samplers beside it. The first is the run's own.
    learner_nodes: tuple[int, ...] = ()

    @property
    def groups(self) -> int:
        """Producers in one sampler."""
        return BATCHED_GROUPS if self.inference == "batched" else 1

    @property
    def num_samplers(self) -> int:
        """Sampler processes of all learners."""
        return self.samplers_per_learner * self.num_learners

    @property
    def producers_per_learner(self) -> int:
        return self.samplers_per_learner * self.groups

    @property
    def num_envs(self) -> int:
        """Environments of all learners."""
        return self.envs_per_group * self.producers_per_learner * self.num_learners
