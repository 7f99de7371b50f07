"""The options that all algorithms of the Q-learning family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlrun.core.off_policy import OffPolicyConfig
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, PositiveShareBelowOne, Range, Share
from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class QHeadConfig:
    """Between features and action values."""

    hidden: Literal["auto"] | tuple[Annotated[int, Count], ...]
    encoder_layer: bool
    dueling: bool
    gradient_scale: Annotated[float, PositiveShare]
    noisy: bool
    sigma0: Annotated[float, NotNegative]


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """How actions are chosen while learning, and (eval_epsilon) when greedy."""

    kind: Literal["epsilon_greedy", "soft_q", "parameter_noise"]
    epsilon: Annotated[Schedule, Share]
    epsilon_min: Annotated[float, PositiveShare] | None  # spaced from epsilon in logarithm
    eval_epsilon: Annotated[float, Share]
    temperature: Annotated[float, Positive]
    noise_std: Annotated[float, Positive]
    noise_epsilon: Annotated[float, PositiveShareBelowOne]


@dataclass(frozen=True, kw_only=True)
class QConfig(OffPolicyConfig):
    """conf/algo/<name>.yaml says what each is; an algorithm's own Config adds the rest."""

    lr: Annotated[Schedule, NotNegative]
    head: QHeadConfig
    exploration: ExplorationConfig


@dataclass(frozen=True, kw_only=True)
class CategoricalQConfig(QConfig):
    """Of distributions over fixed values (Bellemare et al. 2017)."""

    num_atoms: Annotated[int, Range(2)]
    v_min: float
    v_max: float

    def __post_init__(self):
        super().__post_init__()
        if self.input_priorities:
            raise ValueError(f"input_priorities are sizes of TD errors; {self.name}'s priorities are KL divergences, which samplers do not work out")
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min {self.v_min:g} must be below v_max {self.v_max:g}")
