"""Clipped PG: REINFORCE whose returns to go are bounded. A whole algorithm is a Config and an Algorithm; rlrun/algos/pg.py is its model.

Rows: fragments [T, B] of the newest policy, used once. Recorded: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlrun.core.actor_critic import ActorCriticConfig
from rlrun.core.algorithm import LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.core.masked import masked_mean
from rlrun.ops.returns import gae
from rlrun.policies import ActorCritic, DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    bound: float


class ClippedPG(ActorCritic):
    cfg: Config

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(rows=cfg.fragment_length, columns=cfg.columns, core_every=cfg.fragment_length, on_policy=True)

    def __init__(self, policy: DistributionPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, valid = self.cfg, batch.valid
        count = self.live(valid)
        nothing = torch.zeros(len(batch.reward) + 1, batch.reward.shape[1], device=valid.device)  # [T+1, B]
        to_go = gae(batch.reward, batch.discount(cfg.discount), nothing[:-1], nothing[1:], valid, 1.0).clamp(-cfg.bound, cfg.bound)
        dist, _ = self.policy.unroll(batch)
        dist = dist[:-1].given(batch.action)
        policy_loss = -masked_mean(dist.log_prob(batch.action) * to_go, valid, count)
        entropy = masked_mean(dist.entropy(), valid, count)
        loss = policy_loss - cfg.entropy_coef(clock) * entropy
        metrics = self.ctx.ranks.sum_each({"policy_loss": policy_loss, "entropy": entropy})
        return Update({**metrics, **self.optimizer.step(loss, clock)})
