"""TD3+BC: TD3 whose actor also learns the actions of the data (Fujimoto & Gu 2021, arXiv:2106.06860).

Rows, records and other options: as in td3.py. The rows are most often those of a data set, and observations are
normalised by its mean and deviation (model.observation_filter=mean_std), which belong to the policy.
Options: alpha: how much values count beside the data's actions (eq. 5).
Differs from the paper: what differs in td3.py. The deviation of observations is bounded by 1e-4 in place of adding
1e-3, and normalised numbers are bounded (model.observation_clip).
Metrics: those of td3.py; actor_loss has both terms.
Checked: tests/algos/test_offline.py (both losses by the paper's formulas in numpy, on normalised observations; the
gradient is that of TD3 where the policy plays the data's actions, and that of squared errors at alpha 0),
tuned/td3_bc/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.algos import td3
from rlrun.core.ranges import NotNegative
from rlrun.families.off_policy import Transitions


@dataclass(frozen=True, kw_only=True)
class Config(td3.Config):
    alpha: Annotated[float, NotNegative]


class TD3BC(td3.TD3):
    cfg: Config

    def actor_loss(self, rows: Transitions) -> Tensor:
        """Returns this learner's share of mean -lambda Q + (pi(s) - a)^2 [] (eq. 3). Only the actor gets a gradient."""
        with torch.no_grad():
            features = self.critic.features(rows.now)
        action = self.policy.net.of(rows.now)  # [N, A]
        q = self.critic.of(features, action)[0, :, 0]  # [N]
        scale = self.cfg.alpha / self.total(rows.mean(q.detach().abs())).clamp(min=1e-8)  # lambda, eq. 5
        distance = (action - self.policy.flat(rows.action)).square().mean(-1)  # [N]
        return rows.mean(distance - scale * q)
