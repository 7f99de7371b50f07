"""A2C: synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3 with one joint update).

Rows: fragments [T, B] that the newest policy sampled. Each is used once.
Recorded: the value of the policy that acted, for the advantages; the recurrent state at row 0.
Differs from the paper: one batch of all environments replaces asynchronous workers (algo=a3c has those). GAE replaces
the n-step return, which it equals at lambda_ 1. With microbatch_size, gradients are accumulated over parts of a batch
that is too large for memory.
Metrics: learn/policy_loss, value_loss and entropy per row; explained_variance of the values recorded while acting;
grad_norm before clipping; lr.
Checked: tests/ops/test_returns.py (GAE by its definition), tests/algos/test_a2c.py (a loss by hand; microbatches equal
the whole), tuned/a2c/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.masked import masked_mean
from rlrun.core.metrics import Sums
from rlrun.core.ranges import Count, Share
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.actor_critic import ActorCriticConfig, check_normalized
from rlrun.models.model import Model
from rlrun.ops.returns import gae
from rlrun.ops.transforms import clip_reward
from rlrun.policies import DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    microbatch_size: Annotated[int, Count] | None
    lambda_: Annotated[float, Share]
    normalize_advantage: bool

    def __post_init__(self):
        super().__post_init__()
        part = self.microbatch_size
        if part is not None and (self.batch_size % part or part % self.fragment_length):
            raise ValueError(f"microbatch_size {part} must divide batch_size and be a multiple of fragment_length")


class A2C(Algorithm):
    cfg: Config
    policy: DistributionPolicy
    filters_pixels = True

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(
            rows=cfg.fragment_length,
            columns=cfg.columns,
            record=("value",),
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
        value = torch.cat([batch.value, self.policy.last_value(batch).unsqueeze(0)])  # [T+1, B]
        reward = clip_reward(batch.reward, cfg.reward_clip)
        advantage = gae(reward, batch.discount(cfg.discount), value[:-1], value[1:], valid, cfg.lambda_)
        target = advantage + value[:-1]
        before = {"explained_variance": self.explained_variance(target, value[:-1], valid)}
        if cfg.normalize_advantage:
            advantage = self.normalize(advantage, valid)
        count, sums = self.live(valid), Sums()
        columns = (cfg.microbatch_size or cfg.batch_size) // cfg.fragment_length * self.spec.columns_per_env

        def losses() -> Iterator[Tensor]:  # a generator, so that only one graph exists at a time
            for part in batch.replace(advantage=advantage, target=target).split(columns):
                yield self.loss(part, cfg.entropy_coef(clock), count, sums)

        steps = self.optimizer.step(losses(), clock)
        return Update(self.report(sums.totals, before, steps))

    def loss(self, part: Batch, entropy_coef: float, count: Tensor, sums: Sums) -> Tensor:
        """Returns a part's share [] of the mean loss over the whole batch, which has `count` live rows.

        part is [T(+1), b] with advantage and target."""
        valid = part.valid
        dist, value = self.policy.unroll(part)
        dist = dist[:-1].given(part.action)
        policy_loss = -masked_mean(dist.log_prob(part.action) * part.advantage, valid, count)
        value_loss = masked_mean(0.5 * (part.target - value[:-1]).square(), valid, count)
        entropy = masked_mean(dist.entropy(), valid, count)
        sums.add({"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy})
        return policy_loss + self.cfg.value_coef * value_loss - entropy_coef * entropy
