"""R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019).

The paper is "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR. rlpyt's R2D1 is the same
algorithm on one machine.

Rows: sequences of burn_in + sequence_length rows from replay. They begin at every sequence_stride-th row, where the
recurrent state is stored.
Recorded: q_taken and q_max with input_priorities, for the first priorities.
Differs from the paper: an n-step return does not reach beyond the end of its sequence. Adam's epsilon is an option. The
default exponents of prioritized replay are 0.6 and 0.4 (the paper: 0.9 and 0.6).
Sequences cross the ends of episodes, where the recurrent state begins anew.
Metrics: learn/loss: mean of weighted losses; td_error: mean |target - Q| in rescaled values; q: mean rescaled value of
the actions taken; epsilon; grad_norm before clipping; lr.
Checked: tests/algos/test_r2d2.py (targets by hand, burn-in against unrolling from the start), tests/ops/test_td.py,
tests/replay/, tuned/r2d2/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import EXPERIENCE, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.follower import Follower
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.q_learning import QConfig
from rlrun.models.model import Model
from rlrun.models.noisy import draw_noise
from rlrun.ops.returns import n_step_return
from rlrun.ops.td import huber, signed_hyperbolic, signed_parabolic
from rlrun.ops.transforms import clip_reward
from rlrun.policies import QPolicy


@dataclass(frozen=True, kw_only=True)
class Config(QConfig):
    burn_in: Annotated[int, NotNegative]
    sequence_length: Annotated[int, Count]
    sequence_stride: Annotated[int, Count]
    zero_init_state: Annotated[bool, OnlyFor(EXPERIENCE)]
    value_rescaling: Annotated[float, Positive] | None
    priority_eta: Annotated[float, Share, OnlyWith("replay.name", "prioritized")]
    double: bool
    huber_delta: Annotated[float, Positive] | None

    def __post_init__(self):
        super().__post_init__()
        if self.n_steps[0] != self.n_steps[1]:
            raise ValueError("n_step must be one number, not a range: a sequence has a return for each of its rows")
        if self.n_steps[1] > self.sequence_length:
            raise ValueError(
                f"n_step {self.n_steps[1]} is more than sequence_length {self.sequence_length}: a return does not reach"
                " beyond the end of its sequence"
            )
        if self.learning_starts < self.burn_in + self.sequence_length:
            raise ValueError(
                f"learning_starts {self.learning_starts} is below the {self.burn_in + self.sequence_length} rows of a"
                " sequence"
            )


class RecurrentQPolicy(QPolicy):
    remembers = True


class R2D2(Algorithm):
    knows_first_priority = True
    cfg: Config
    policy: RecurrentQPolicy
    target: RecurrentQPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        record = ("q_taken", "q_max") if cfg.input_priorities else ()
        return Needs(
            rows=cfg.burn_in + cfg.sequence_length,
            columns=cfg.batch_size,
            actions=("discrete",),
            record=record,
            core_every=cfg.sequence_stride,
            replay=cfg.from_replay.of_sequences(cfg.sequence_length, cfg.burn_in, cfg.sequence_stride),
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> RecurrentQPolicy:
        if model.cfg.memory.kind == "none":
            raise UserError("r2d2 needs a model with memory (model=lstm, gru or gtrxl); use algo=dqn without memory")
        return RecurrentQPolicy(spec, model, cfg.head, cfg.explorer(spec))

    @classmethod
    def first_priority(cls, cfg: Config, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [T + 1, N] from the n-step errors of the values recorded while acting."""
        valid = rows.valid[cfg.burn_in : -1]
        part = rows.map(lambda x: x[cfg.burn_in :])
        value = cls.unscaled(cfg, part.q_max[1:])
        reward = clip_reward(part.reward[:-1], cfg.reward_clip)
        target = n_step_return(reward, part.terminated[:-1], valid, value, cfg.discount, cfg.n_steps[0])
        return cls.priority(cfg, cls.scaled(cfg, target) - part.q_taken[:-1], valid)

    def __init__(self, policy: RecurrentQPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
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
        """Returns this learner's share of the loss [], priorities [B] and shares of metrics.

        batch is [burn_in + T (+ 1), B] with core [1, B]."""
        cfg = self.cfg
        for policy in (self.policy, self.target):
            draw_noise(policy, self.ctx.rng)
        next_q = self.unroll(self.target, batch)[1:]  # [T, B, A]
        chooser = next_q
        if cfg.double and cfg.head.noisy:
            with torch.no_grad():
                chooser = self.unroll(self.policy, batch)[1:]
            draw_noise(self.policy, self.ctx.rng)  # independent of the choice above (Fortunato et al. 2018, sec. 3.1)
        q = self.unroll(self.policy, batch)  # [T + 1, B, A]
        if cfg.double and not cfg.head.noisy:
            chooser = q[1:]
        rows = batch.map(lambda x: x[cfg.burn_in :]) if cfg.burn_in else batch
        valid = rows.valid  # [T, B]
        with torch.no_grad():
            best = chooser.argmax(-1, keepdim=True)
            next_value = self.unscaled(cfg, next_q.gather(-1, best).squeeze(-1))
            reward = clip_reward(rows.reward, cfg.reward_clip)
            target = self.scaled(
                cfg, n_step_return(reward, rows.terminated, valid, next_value, cfg.discount, cfg.n_steps[0])
            )
        q_taken = q[:-1].gather(-1, rows.action.unsqueeze(-1)).squeeze(-1)  # [T, B]
        td_error = (target - q_taken).masked_fill(~valid, 0.0)
        mean = self.mean_over(valid)
        loss = mean(batch.weight * huber(td_error, cfg.huber_delta))
        error = td_error.detach()
        return loss, self.priority(cfg, error, valid), {"loss": loss, "td_error": mean(error.abs()), "q": mean(q_taken)}

    def unroll(self, policy: QPolicy, batch: Batch) -> Tensor:
        """Returns values [T + 1, B, A] of the rows after burn-in, which only brings the recurrent state up to date."""
        burn_in, obs, is_first = self.cfg.burn_in, batch["obs"], batch["is_first"]
        state = batch["core"][0]
        if self.cfg.zero_init_state:
            state = state.map(torch.zeros_like)
        if burn_in:
            with torch.no_grad():
                _, state = policy(obs[:burn_in], is_first[:burn_in], state)
        return policy(obs[burn_in:], is_first[burn_in:], state)[0]

    @staticmethod
    def priority(cfg: Config, td_error: Tensor, valid: Tensor) -> Tensor:
        """Returns eta max |error| + (1 - eta) mean |error| of live rows [B] (section 2.3)."""
        abs_td_error = td_error.abs().masked_fill(~valid, 0.0)
        return cfg.priority_eta * abs_td_error.max(0).values + (1 - cfg.priority_eta) * abs_td_error.sum(0) / valid.sum(
            0
        ).clamp(min=1)

    @staticmethod
    def scaled(cfg: Config, x: Tensor) -> Tensor:
        """Applies the value rescaling h of section 2.3."""
        return x if cfg.value_rescaling is None else signed_hyperbolic(x, cfg.value_rescaling)

    @staticmethod
    def unscaled(cfg: Config, x: Tensor) -> Tensor:
        """Applies the inverse of h, which turns rescaled values into returns."""
        return x if cfg.value_rescaling is None else signed_parabolic(x, cfg.value_rescaling)
