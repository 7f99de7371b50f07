"""QR-DQN: quantile regression DQN (Dabney et al. 2018, arXiv:1710.10044).

The network predicts num_quantiles quantiles of the return, all equally likely.

Rows: fragments of n_step rows from replay, folded into single transitions.
Recorded: q_taken and q_max with input_priorities, for the first priorities.
Differs from the paper: double, dueling, noisy and n_step are options. With prioritized replay, priorities are the
absolute differences of mean values.
Metrics: learn/loss: mean of weighted quantile losses; td_error: mean |target - Q| of the quantiles' means; q: mean
value of the actions taken; epsilon; grad_norm before clipping; lr.
Checked: tests/ops/test_td.py (the loss by hand and its minimum), tests/algos/test_dqn.py, tuned/qr_dqn/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.follower import Follower
from rlrun.core.ranges import Count, Finite
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import recorded_priority
from rlrun.families.q_learning import QConfig
from rlrun.models.model import Model
from rlrun.models.noisy import draw_noise
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import quantile_huber, taken
from rlrun.ops.transforms import clip_reward
from rlrun.policies import QPolicy


@dataclass(frozen=True, kw_only=True)
class Config(QConfig):
    double: bool
    num_quantiles: Annotated[int, Count]
    huber_delta: Annotated[float, Finite]


class QRDQN(Algorithm):
    knows_first_priority = True
    cfg: Config
    policy: QPolicy
    target: QPolicy
    fraction: Tensor

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        record = ("q_taken", "q_max") if cfg.input_priorities else ()
        return Needs(
            rows=cfg.n_steps[1],
            columns=cfg.batch_size,
            actions=("discrete",),
            record=record,
            only_weights=True,
            replay=cfg.from_replay,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> QPolicy:
        # Its q() is the mean over quantiles.
        return QPolicy(spec, model, cfg.head, cfg.explorer(spec), cfg.num_quantiles)

    @classmethod
    def first_priority(cls, cfg: Config, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [n + 1, N] as they were recorded."""
        return recorded_priority(cfg, rows)

    def __init__(self, policy: QPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.following = Follower(self.target, policy)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)
        middle = (torch.arange(cfg.num_quantiles, device=ctx.device) + 0.5) / cfg.num_quantiles  # lemma 2
        self.register_buffer("fraction", middle, persistent=False)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics, writes = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.following.move(self.cfg.target_tau)
        return Update(metrics | self.policy.explored(clock), writes)

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes one gradient step and returns metrics of the whole batch and new priorities [B]."""
        loss, priority, shares = self.loss(batch)
        steps = self.optimizer.step(loss, clock)
        return Update(self.report(shares, steps), {"priority": priority})

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns this learner's share of the loss [], absolute differences of means [B] and shares of metrics.

        batch is [n, B] with obs [2, B]."""
        cfg, ends, policy = self.cfg, batch.ends(), self.policy
        reward, discount = fold_n_step(
            clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount
        )
        for network in (policy, self.target):
            draw_noise(network, self.ctx.rng)
        with torch.no_grad():
            next_quantiles = self.target.head_outputs(ends[1:])[0]  # [B, A, N]
            chooser = next_quantiles
            if cfg.double:
                chooser = policy.head_outputs(ends[1:])[0]
                draw_noise(policy, self.ctx.rng)  # independent of the choice above (Fortunato et al. 2018, sec. 3.1)
            best = policy.legal_q(chooser, ends["obs"][1]).argmax(-1)
            target = reward[:, None] + discount[:, None] * taken(next_quantiles, best)  # [B, N]
        quantile = taken(policy.head_outputs(ends[:1])[0], batch.action[0])  # [B, N]
        loss = self.mean(
            batch.weight * quantile_huber(quantile, self.fraction.expand_as(quantile), target, cfg.huber_delta)
        )
        value = quantile.detach().mean(-1)
        priority = (target.mean(-1) - value).abs()
        return loss, priority, {"loss": loss, "td_error": self.mean(priority), "q": self.mean(value)}
