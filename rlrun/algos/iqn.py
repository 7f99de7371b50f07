"""IQN: implicit quantile networks (Dabney et al. 2018, arXiv:1806.06923).

The network takes a fraction tau as an input and returns the tau-quantile of the return.

Rows: fragments of n_step rows from replay, folded into single transitions.
Recorded: q_taken and q_max with input_priorities, for the first priorities.
Differs from the paper: the policy acts on evenly spaced fractions tau instead of random ones. double, dueling, noisy
and n_step are options. With prioritized replay, priorities are the absolute differences of mean values.
Metrics: learn/loss: mean of weighted quantile losses; td_error: mean |target - Q| of the quantiles' means; q: mean
value of the actions taken; epsilon; grad_norm before clipping; lr.
Checked: tests/ops/test_td.py (the loss by hand and its minimum), tests/algos/test_dqn.py, tuned/iqn/.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

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
from rlrun.policies import QPolicy, without_meaning


@dataclass(frozen=True, kw_only=True)
class Config(QConfig):
    double: bool
    num_fractions: Annotated[int, Count]
    num_target_fractions: Annotated[int, Count]
    num_acting_fractions: Annotated[int, Count]
    num_cosines: Annotated[int, Count]
    huber_delta: Annotated[float, Finite]


class QuantilePolicy(QPolicy):
    """Computes Z_tau(x, a) = f(psi(x) * phi(tau))_a (section 3.1)."""

    def __init__(self, spec: EnvSpec, model: Model, cfg: Config):
        super().__init__(spec, model, cfg.head, cfg.explorer(spec))
        # It keeps PyTorch's initial weights: an orthogonal matrix of few columns would make its many features small.
        self.of_cosines = nn.Linear(cfg.num_cosines, self.trunk.features)
        self.register_buffer(
            "acting", (torch.arange(cfg.num_acting_fractions) + 0.5) / cfg.num_acting_fractions, persistent=False
        )
        self.register_buffer("multiples", math.pi * torch.arange(cfg.num_cosines), persistent=False)
        self.acting: Tensor
        self.multiples: Tensor

    def outputs(
        self, obs: Batch, is_first: Tensor, state: Batch, fraction: Tensor | None = None
    ) -> tuple[Tensor, Batch]:
        """Returns quantiles [T, B, A, N] and the state after the last row.

        fraction [T, B, N] holds tau; None stands for the fractions that the policy acts with."""
        if self.filter is not None:
            obs = obs.replace(observation=self.filter(obs["observation"]))
        obs, meaning = without_meaning(obs, self.embedding)
        features, after = self.trunk(obs, is_first, state)
        if fraction is None:
            fraction = self.acting.expand(*features.shape[:2], -1)
        phi = self.of_cosines((fraction.unsqueeze(-1) * self.multiples).cos()).relu()  # [T, B, N, F], eq. 4
        made = self.head(features.unsqueeze(2) * phi).squeeze(-1).transpose(-1, -2)
        return made if meaning is None else meaning @ made, after

    def quantiles(self, rows: Batch, fraction: Tensor) -> Tensor:
        """Returns quantiles [T, B, A, N] at fraction [T, B, N], without memory.

        rows have obs and is_first [T, B, ...]."""
        return self.outputs(rows["obs"], rows["is_first"], Batch(), fraction)[0]


class IQN(Algorithm):
    knows_first_priority = True
    cfg: Config
    policy: QuantilePolicy
    target: QuantilePolicy

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
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> QuantilePolicy:
        return QuantilePolicy(spec, model, cfg)

    @classmethod
    def first_priority(cls, cfg: Config, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [n + 1, N] as they were recorded."""
        return recorded_priority(cfg, rows)

    def __init__(self, policy: QuantilePolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.following = Follower(self.target, policy)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

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
        fraction = self.ctx.rand((1, len(reward), cfg.num_fractions))  # tau ~ U(0, 1) [1, B, N]
        with torch.no_grad():
            chooser = policy if cfg.double else self.target
            best = chooser.values(ends[1:])[0].argmax(-1)
            if cfg.double:
                draw_noise(policy, self.ctx.rng)  # independent of the choice above (Fortunato et al. 2018, sec. 3.1)
            next_fraction = self.ctx.rand((1, len(reward), cfg.num_target_fractions))  # tau' ~ U(0, 1) [1, B, N']
            next_quantiles = self.target.quantiles(ends[1:], next_fraction)[0]  # [B, A, N']
            target = reward[:, None] + discount[:, None] * taken(next_quantiles, best)  # [B, N']
        quantile = taken(policy.quantiles(ends[:1], fraction)[0], batch.action[0])  # [B, N]
        loss = self.mean(batch.weight * quantile_huber(quantile, fraction[0], target, cfg.huber_delta))  # eq. 3
        value = quantile.detach().mean(-1)
        priority = (target.mean(-1) - value).abs()
        return loss, priority, {"loss": loss, "td_error": self.mean(priority), "q": self.mean(value)}
