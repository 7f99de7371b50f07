"""Discrete CQL: conservative Q-learning (Kumar et al. 2020, arXiv:2006.04779, appendix F) for choices, on DQN.

A DQN (dqn.py) that also learns to rate the actions of the data above all others. algo=cql does the same to SAC.

Rows: as in dqn.py, most often of a data set.
Recorded: as in dqn.py.
Options: min_q_weight: alpha of the paper, the weight of mean(log sum_a exp Q(s, a) - Q(s, a of the data)) beside the TD
loss, as in d3rlpy; with 0 it is dqn to the bit. The other options of DQN.
Differs from the paper: it used QR-DQN, and this is a DQN with its extensions.
Metrics: those of dqn.py, and gap: the mean that min_q_weight weights.
Checked: tests/algos/test_offline.py (the loss by hand; dqn at weight 0; unseen actions of a small MDP),
tuned/discrete_cql/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.algos import dqn
from rlrun.core.batch import Batch
from rlrun.core.ranges import NotNegative
from rlrun.models.noisy import draw_noise
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import huber, taken
from rlrun.ops.transforms import clip_reward


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    min_q_weight: Annotated[float, NotNegative]


class DiscreteCQL(dqn.DQN):
    cfg: Config

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns this learner's share of the loss [], absolute TD errors [B] and shares of metrics.

        batch is [n, B] with obs [2, B]."""
        cfg, ends = self.cfg, batch.ends()
        reward, discount = fold_n_step(
            clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount
        )
        for policy in (self.policy, self.target):
            draw_noise(policy, self.ctx.rng)
        with torch.no_grad():
            next_q = self.target.values(ends[1:])[0]  # [B, A]
            if cfg.double:
                best = self.policy.values(ends[1:])[0].argmax(-1)
                next_value = taken(next_q, best)
                draw_noise(self.policy, self.ctx.rng)
            else:
                next_value = next_q.max(-1).values
            target = reward + discount * next_value
        values = self.policy.values(ends[:1])[0]  # [B, A]
        q = taken(values, batch.action[0])  # [B]
        td_error = target - q
        errors = huber(td_error, cfg.huber_delta)
        gap = values.logsumexp(-1) - q  # [B], eq. 4 with its maximum in closed form
        if cfg.min_q_weight > 0:
            errors = errors + cfg.min_q_weight * gap
        loss = self.mean(batch.weight * errors)
        priority = td_error.detach().abs()
        shares = {"loss": loss, "td_error": self.mean(priority), "q": self.mean(q), "target": self.mean(target)}
        return loss, priority, shares | {"gap": self.mean(gap.detach())}
