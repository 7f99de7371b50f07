"""Options of how policies explore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """How actions are chosen while learning, and (eval_epsilon) when greedy."""

    kind: Literal["epsilon_greedy", "soft_q", "parameter_noise"]
    epsilon: Schedule
    epsilon_min: float | None
    eval_epsilon: float
    temperature: float
    noise_std: float
    noise_epsilon: float

    def __post_init__(self):
        probabilities = [*self.epsilon.values, self.eval_epsilon, self.epsilon_min or 0.0]
        if not all(0 <= value <= 1 for value in probabilities):
            raise ValueError("epsilon, epsilon_min and eval_epsilon are probabilities")
        if self.epsilon_min == 0:
            raise ValueError("epsilon_min is spaced from epsilon in logarithm: it must be above 0, or null")
        if not 0 < self.noise_epsilon < 1:
            raise ValueError("noise_epsilon must lie between 0 and 1")
        if self.temperature <= 0 or self.noise_std <= 0:
            raise ValueError("temperature and noise_std must be positive")


@dataclass(frozen=True, kw_only=True)
class ActionNoiseConfig:
    """How a deterministic policy explores."""

    kind: Literal["ou", "gaussian", "parameter_noise"]
    std: float
    theta: float
    scale: Schedule
    scale_min: float | None

    def __post_init__(self):
        if self.std <= 0:
            raise ValueError("std must be positive; scale 0 is no noise")
        if not 0 <= self.theta < 2:
            raise ValueError("theta must lie in [0, 2): the process would grow without bound")
        if min(self.scale.values) < 0:
            raise ValueError("scale must not be negative")
        if self.scale_min is not None and self.scale_min <= 0:
            raise ValueError("scale_min is spaced from scale in logarithm: it must be above 0, or null")
        if self.kind == "parameter_noise" and self.scale_min is not None:
            raise ValueError("scale_min is for noise in actions (ou, gaussian)")
