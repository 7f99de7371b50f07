"""The options that all algorithms of the Q-learning family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlrun.core.conditions import FIRST_PRIORITIES, OnlyFor
from rlrun.core.ranges import NotNegative, Range
from rlrun.core.schedule import Schedule
from rlrun.families.off_policy import OffPolicyConfig
from rlrun.models.heads import QHeadConfig
from rlrun.policies import ActingConfig, ValueExplorationConfig


@dataclass(frozen=True, kw_only=True)
class QConfig(OffPolicyConfig, ActingConfig):
    """Shared options. conf/algo/<name>.yaml explains each; an algorithm's own Config adds its other options."""

    lr: Annotated[Schedule, NotNegative]
    head: QHeadConfig
    exploration: ValueExplorationConfig


@dataclass(frozen=True, kw_only=True)
class CategoricalQConfig(QConfig):
    """Options of algorithms that learn distributions over fixed values (Bellemare et al. 2017)."""

    input_priorities: Annotated[bool, OnlyFor(FIRST_PRIORITIES)]
    num_atoms: Annotated[int, Range(2)]
    v_min: float
    v_max: float

    def __post_init__(self):
        super().__post_init__()
        if self.input_priorities:
            raise ValueError(
                f"input_priorities must be false: they are absolute TD errors, but {self.name}'s priorities are KL "
                "divergences, which samplers do not compute"
            )
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min {self.v_min:g} must be below v_max {self.v_max:g}")
