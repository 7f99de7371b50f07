"""conf/resources as the user asks for it, and what a run uses of a machine once a runner's layout() has decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from rlrun.core.ranges import Count

Inference = Literal["serial", "local", "batched"]
Precision = Literal["fp32", "bf16"]
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
    compile: bool
    exact: bool

    def __post_init__(self):
        if self.exact and self.inference != "serial":
            raise ValueError("exact (bit-reproducible) runs need inference=serial")
        if self.exact and self.num_learners not in ("auto", 1):
            raise ValueError("exact (bit-reproducible) runs have one learner: set num_learners=1")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a run uses. `why` says each decision in a sentence.

    A producer fills one fragment at a time: a sampler, or with batched inference one of its groups."""

    inference: Inference
    num_learners: int
    samplers_per_learner: int
    envs_per_group: int  # columns of one fragment
    device: torch.device  # of the first learner
    precision: Precision  # of the learner
    acting_precision: Precision
    learner_threads: tuple[int, ...]  # the fastest is found while the run goes on
    cuda_graphs: bool
    compile: bool
    exact: bool
    why: tuple[str, ...]

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
        """Columns of all learners."""
        return self.envs_per_group * self.producers_per_learner * self.num_learners
