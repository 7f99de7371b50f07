"""DQN: deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236), with its usual extensions as options.

Rows: fragments of n_step rows from replay, folded into single transitions.
Recorded: q_taken and q_max with input_priorities, for the first priorities.
Options: double (van Hasselt et al. 2016, arXiv:1509.06461, eq. 4), head.dueling (Wang et al. 2016), head.noisy
(Fortunato et al. 2018), n_step, which is fixed or drawn from a range (Sutton 1988), replay=prioritized (Schaul et al.
2016); exploration.kind: epsilon_greedy, soft_q or parameter_noise.
Differs from the paper: the optimiser is Adam. The target network is copied every target_update_interval updates, or
follows by Polyak steps (target_tau).
Metrics: learn/loss: mean of weighted losses; td_error: mean |target - Q|; q: mean value of the actions taken; target;
epsilon: the schedule's value; grad_norm before clipping; lr.
Checked: tests/algos/test_dqn.py (targets by hand), tests/ops/test_td.py, tests/replay/, tuned/dqn/.
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
from rlrun.core.ranges import Positive
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import recorded_priority
from rlrun.families.q_learning import QConfig
from rlrun.models.model import Model
from rlrun.models.noisy import draw_noise
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import huber, taken
from rlrun.ops.transforms import clip_reward
from rlrun.policies import QPolicy


@dataclass(frozen=True, kw_only=True)
class Config(QConfig):
    double: bool
    huber_delta: Annotated[float, Positive] | None


class DQN(Algorithm):
    knows_first_priority = True
    cfg: Config
    policy: QPolicy
    target: QPolicy

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
        return QPolicy(spec, model, cfg.head, cfg.explorer(spec))

    @classmethod
    def first_priority(cls, cfg: Config, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [n + 1, N] as they were recorded."""
        return recorded_priority(cfg, rows)

    def __init__(self, policy: QPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.following = Follower(self.target, policy)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics, writes = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.following.move(self.cfg.target_tau)  # "every C steps reset Q^ = Q"
        return Update(metrics | self.policy.explored(clock), writes)

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes one gradient step on (y_j - Q(phi_j, a_j; theta))^2.

        Returns metrics of the whole batch and new priorities [B]."""
        loss, priority, shares = self.loss(batch)
        steps = self.optimizer.step(loss, clock)
        return Update(self.report(shares, steps), {"priority": priority})

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
                draw_noise(self.policy, self.ctx.rng)  # independent of the above (Fortunato et al. 2018, section 3.1)
            else:
                next_value = next_q.max(-1).values
            target = reward + discount * next_value  # y_j of algorithm 1
        q = taken(self.policy.values(ends[:1])[0], batch.action[0])  # [B]
        td_error = target - q
        loss = self.mean(batch.weight * huber(td_error, cfg.huber_delta))
        priority = td_error.detach().abs()
        return (
            loss,
            priority,
            {"loss": loss, "td_error": self.mean(priority), "q": self.mean(q), "target": self.mean(target)},
        )
