"""The options that all algorithms of the Q-learning family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.core.schedule import Schedule
from rlrun.families.off_policy import OffPolicyConfig
from rlrun.models.heads import QHeadConfig
from rlrun.policies import ExplorationConfig


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
