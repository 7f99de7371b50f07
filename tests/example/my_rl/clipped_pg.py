"""Clipped PG: REINFORCE whose returns to go are bounded. A whole algorithm is a Config and an Algorithm; rlrun/algos/pg.py is its model.

Rows: fragments [T, B] of the newest policy, used once. Recorded: nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.actor_critic import ActorCriticConfig
from rlrun.models.model import Model
from rlrun.ops.returns import gae
from rlrun.policies import DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    bound: float


class ClippedPG(Algorithm):
    cfg: Config
    policy: DistributionPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(rows=cfg.fragment_length, columns=cfg.columns, core_every=cfg.fragment_length, on_policy=True)

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> DistributionPolicy:
        return DistributionPolicy(spec, model, cfg.explorer(spec))

    def __init__(self, policy: DistributionPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    @recorded
    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, valid = self.cfg, batch.valid
        mean = self.mean_over(valid)
        nothing = torch.zeros(len(batch.reward) + 1, batch.reward.shape[1], device=valid.device)  # [T+1, B]
        to_go = gae(batch.reward, batch.discount(cfg.discount), nothing[:-1], nothing[1:], valid, 1.0).clamp(
            -cfg.bound, cfg.bound
        )
        dist, _ = self.policy.unroll(batch)
        dist = dist[:-1].given(batch.action)
        policy_loss = -mean(dist.log_prob(batch.action) * to_go)
        entropy = mean(dist.entropy())
        loss = policy_loss - cfg.entropy_coef(clock) * entropy
        return Update(self.report({"policy_loss": policy_loss, "entropy": entropy}, self.optimizer.step(loss, clock)))
