"""The options that all algorithms of the Q-learning family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlrun.core.off_policy import OffPolicyConfig
from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class QHeadConfig:
    """Between features and action values."""

    hidden: Literal["auto"] | tuple[int, ...]
    encoder_layer: bool
    dueling: bool
    gradient_scale: float
    noisy: bool
    sigma0: float

    def __post_init__(self):
        if self.hidden != "auto" and any(width < 1 for width in self.hidden):
            raise ValueError("hidden must be auto or a list of positive widths")
        if not 0 < self.gradient_scale <= 1:
            raise ValueError("gradient_scale must lie in (0, 1]")
        if self.sigma0 < 0:
            raise ValueError("sigma0 must not be negative")


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
class QConfig(OffPolicyConfig):
    """conf/algo/<name>.yaml says what each is; an algorithm's own Config adds the rest."""

    lr: Schedule
    head: QHeadConfig
    exploration: ExplorationConfig

    def __post_init__(self):
        super().__post_init__()
        if min(self.lr.values) < 0:
            raise ValueError("lr must not be negative")


@dataclass(frozen=True, kw_only=True)
class CategoricalQConfig(QConfig):
    """Of distributions over fixed values (Bellemare et al. 2017)."""

    num_atoms: int
    v_min: float
    v_max: float

    def __post_init__(self):
        super().__post_init__()
        if self.num_atoms < 2:
            raise ValueError("num_atoms must be at least 2")
        if self.input_priorities:
            raise ValueError(f"input_priorities are sizes of TD errors; {self.name}'s priorities are KL divergences, which samplers do not work out")
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min {self.v_min:g} must be below v_max {self.v_max:g}")
