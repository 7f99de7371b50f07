"""The options that all algorithms of the Q-learning family share, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.ranges import NotNegative, Range, Real
from rlrun.core.schedule import Schedule
from rlrun.families.off_policy import OffPolicyConfig
from rlrun.models.heads import QHeadConfig
from rlrun.ops.td import recorded_divergence
from rlrun.ops.transforms import clip_reward
from rlrun.policies import ActingConfig, ValueExplorationConfig


@dataclass(frozen=True, kw_only=True)
class QConfig(OffPolicyConfig, ActingConfig):
    """Shared options. conf/algo/<name>.yaml explains each; an algorithm's own Config adds its other options."""

    lr: Annotated[Schedule, NotNegative]
    head: QHeadConfig
    exploration: ValueExplorationConfig


@dataclass(frozen=True, kw_only=True)
class CategoricalQConfig(QConfig):
    """Options of algorithms that learn distributions over num_atoms fixed values (Bellemare et al. 2017)."""

    num_atoms: Annotated[int, Range(2)]
    v_min: Annotated[float, Real]
    v_max: Annotated[float, Real]

    def __post_init__(self):
        super().__post_init__()
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min {self.v_min:g} must be below v_max {self.v_max:g}")


def recorded_kl(cfg: CategoricalQConfig, rows: Batch) -> Tensor:
    """Returns priorities [N] of rows [n + 1, N], the KL(target || prediction) of the distributions recorded while
    acting.

    They are Rainbow's priorities (Hessel et al. 2018, arXiv:1710.02298, "The Integrated Agent"), with what samplers
    know instead of a target network, as in Ape-X (Horgan et al. 2018, arXiv:1803.00933, section 3)."""
    before = rows.map(lambda x: x[:-1])
    reward = clip_reward(before.reward, cfg.reward_clip)
    atoms = torch.linspace(cfg.v_min, cfg.v_max, cfg.num_atoms, device=reward.device)
    return recorded_divergence(
        reward, before.terminated, before.valid, rows.log_p_taken, rows.p_max, cfg.discount, atoms
    )
