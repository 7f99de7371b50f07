"""PG: REINFORCE (Williams 1992, Machine Learning 8, p. 229), with reward to go and an optional learned baseline.

Rows: fragments [T, B] that the newest policy sampled. Each is used once.
Recorded: value, for the baseline; the recurrent state at row 0.
Differs from the paper: steps follow batches of rows instead of episodes. An episode that a fragment cuts continues in
the next one. Without a baseline, its rows count the rewards up to the cut (as in RLlib's PG); with one, the value at
the cut stands for the rest.
Metrics: learn/policy_loss and entropy per row; return_to_go: mean return of rows from there on; value_loss and
explained_variance with a baseline; grad_norm; lr.
Checked: tests/ops/test_returns.py (the discounted sum by its definition), tests/algos/test_pg.py (a loss by hand),
tuned/pg/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.ranges import NotNegative
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.actor_critic import ActorCriticConfig, check_normalized
from rlrun.models.model import Model
from rlrun.ops.returns import gae
from rlrun.ops.transforms import clip_reward
from rlrun.policies import DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    baseline: bool
    value_coef: Annotated[float, NotNegative, OnlyWith("baseline", True)]
    normalize_advantage: bool


class PG(Algorithm):
    cfg: Config
    policy: DistributionPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        record = ("value",) if cfg.baseline else ()
        return Needs(
            rows=cfg.fragment_length,
            columns=cfg.columns,
            record=record,
            core_every=cfg.fragment_length,
            on_policy=True,
            only_weights=True,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> DistributionPolicy:
        return DistributionPolicy(spec, model, cfg.explorer(spec))

    def __init__(self, policy: DistributionPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        policy.need_probabilities()
        if cfg.normalize_advantage:
            check_normalized(cfg.batch_size * spec.columns_per_env, "batch_size")
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    @recorded
    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, valid = self.cfg, batch.valid
        mean = self.mean_over(valid)
        if cfg.baseline:
            old = torch.cat([batch.value, self.policy.last_value(batch).unsqueeze(0)])  # [T+1, B]
        else:
            old = torch.zeros(len(batch.reward) + 1, batch.reward.shape[1], device=batch.reward.device)
        reward = clip_reward(batch.reward, cfg.reward_clip)
        advantage = gae(reward, batch.discount(cfg.discount), old[:-1], old[1:], valid, 1.0)
        to_go = advantage + old[:-1]
        if cfg.normalize_advantage:
            advantage = self.normalize(advantage, valid)
        dist, value = self.policy.unroll(batch)
        dist = dist[:-1].given(batch.action)
        policy_loss = -mean(dist.log_prob(batch.action) * advantage)
        entropy = mean(dist.entropy())
        loss = policy_loss - cfg.entropy_coef(clock) * entropy
        metrics = {"policy_loss": policy_loss, "entropy": entropy, "return_to_go": mean(to_go)}
        if cfg.baseline:
            value_loss = mean(0.5 * (to_go - value[:-1]).square())
            loss = loss + cfg.value_coef * value_loss
            metrics["value_loss"] = value_loss
        before = {"explained_variance": self.explained_variance(to_go, old[:-1], valid)} if cfg.baseline else {}
        return Update(self.report(metrics, before, self.optimizer.step(loss, clock)))
