"""The options that all algorithms of the Q-learning family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlrun.core.ranges import NotNegative, Range
from rlrun.core.schedule import Schedule
from rlrun.families.off_policy import OffPolicyConfig
from rlrun.models.heads import QHeadConfig
from rlrun.policies import ExplorationConfig


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
