"""Options for how policies explore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlrun.core.conditions import SEVERAL_ENVS, OnlyFor, OnlyWith
from rlrun.core.ranges import NotNegative, Positive, PositiveShare, PositiveShareBelowOne, Range, Share
from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """How a policy of action values explores; eval_epsilon is the epsilon of greedy acting."""

    kind: Literal["epsilon_greedy", "soft_q", "parameter_noise"]
    epsilon: Annotated[Schedule, Share]
    # Columns' values are log-spaced from epsilon to this.
    epsilon_min: Annotated[Annotated[float, PositiveShare] | None, OnlyFor(SEVERAL_ENVS)]
    eval_epsilon: Annotated[float, Share]
    temperature: Annotated[float, Positive, OnlyWith("kind", "soft_q")]
    noise_std: Annotated[float, Positive, OnlyWith("kind", "parameter_noise")]
    noise_epsilon: Annotated[float, PositiveShareBelowOne, OnlyWith("kind", "parameter_noise")]


@dataclass(frozen=True, kw_only=True)
class ActionNoiseConfig:
    """How a deterministic policy explores."""

    kind: Literal["ou", "gaussian", "parameter_noise"]
    std: Annotated[float, Positive]
    # From 2 on the process would grow without bound.
    theta: Annotated[float, Range(0, 2, below_highest=True), OnlyWith("kind", "ou")]
    scale: Annotated[Schedule, NotNegative]
    # Columns' values are log-spaced from scale to this.
    scale_min: Annotated[Annotated[float, Positive] | None, OnlyWith("kind", "ou", "gaussian"), OnlyFor(SEVERAL_ENVS)]

    def __post_init__(self):
        if self.kind == "parameter_noise" and self.scale_min is not None:
            raise ValueError("scale_min is only for noise in actions (ou, gaussian)")
