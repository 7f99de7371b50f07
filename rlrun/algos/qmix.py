"""QMIX: monotonic value function factorisation (Rashid et al. 2018, arXiv:1803.11485).

All agents of an environment learn together: their rewards are added up, and a mixing network, which only the learner
has, turns the values of their actions into the value of the team. Agents share one network of action values.

Rows: sequences of burn_in + sequence_length rows from replay, which begin at every sequence_stride-th row. Without
memory, sequence_length=1 learns from single transitions; longer ones hold fewer observations twice. A row holds all
agents (envs/joint.py).
Recorded: q_taken and q_max, sums over agents, with input_priorities. First priorities have this sum in place of the
mixer, which samplers do not have.
Differs from the paper: sequences in place of whole episodes (with sequence_stride as long as an episode and the row
that resets it, they are whole episodes). An agent that is not there adds nothing to the sum of the first layer, while
PyMARL goes on mixing the value of its no-op. target_update_interval counts updates, where PyMARL counts episodes.
n-step and lambda-returns do not reach beyond the end of a sequence (lambda-returns: PyMARL2, Hu et al. 2021,
arXiv:2102.03479).
Refused, because they are for one agent: exploration other than epsilon_greedy, head.noisy, model.observation_filter.
Metrics: learn/loss: mean of weighted losses; td_error: mean |target - Q_tot|; q: mean Q_tot of the actions taken;
target; epsilon; grad_norm before clipping; lr.
Checked: tests/algos/test_qmix.py (losses by hand, monotonicity, masks, absent agents, memory), tuned/qmix/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import EXPERIENCE, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.follower import Follower
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import WITH_MEMORY
from rlrun.families.q_learning import QConfig
from rlrun.models.mixers import MonotonicMixer
from rlrun.models.model import Model
from rlrun.ops.returns import lambda_return, n_step_return
from rlrun.ops.td import huber
from rlrun.ops.transforms import clip_reward
from rlrun.policies import JointQPolicy


@dataclass(frozen=True, kw_only=True)
class MixedConfig(QConfig):
    """Options of QMIX, VDN and independent Q-learning."""

    agent_id: bool
    double: bool
    lambda_: Annotated[float, Share]
    huber_delta: Annotated[float, Positive] | None
    reward_shift: float
    reward_scale: Annotated[float, Positive]
    sequence_length: Annotated[int, Count]
    burn_in: Annotated[int, NotNegative, WITH_MEMORY]
    sequence_stride: Annotated[int, Count]
    zero_init_state: Annotated[bool, WITH_MEMORY, OnlyFor(EXPERIENCE)]

    def learnt(self, reward: Tensor) -> Tensor:
        """Rewards as the values count them: clipped, shifted and scaled."""
        return (clip_reward(reward, self.reward_clip) + self.reward_shift) * self.reward_scale

    def returns(self, reward: Tensor, terminated: Tensor, valid: Tensor, next_value: Tensor) -> Tensor:
        """Returns the targets [T, B] of values: n-step or lambda-returns of rewards [T, B].

        next_value [T, B] is the value of the observation that follows each row."""
        if self.lambda_:
            return lambda_return(reward, terminated, valid, next_value, self.discount, self.lambda_)
        return n_step_return(reward, terminated, valid, next_value, self.discount, self.n_steps[0])

    def __post_init__(self):
        super().__post_init__()
        if self.lambda_ and self.n_steps != (1, 1):
            raise ValueError("lambda_ mixes returns of all lengths: set it to 0, or n_step to 1")
        if self.n_steps[0] != self.n_steps[1]:
            raise ValueError("n_step must be one number, not a range: a sequence has a return for each of its rows")
        if self.n_steps[0] > self.sequence_length:
            raise ValueError(f"n_step {self.n_steps[0]} is longer than the sequences of {self.sequence_length} rows")
        if self.lambda_ and self.sequence_length == 1:
            raise ValueError("lambda_ mixes the returns of a sequence's rows, and sequence_length is 1: set it to 0")
        if self.learning_starts < self.burn_in + self.sequence_length:
            raise ValueError(
                f"learning_starts {self.learning_starts} is below the {self.burn_in + self.sequence_length} rows of a"
                " sequence"
            )
        if self.head.noisy:
            raise ValueError("head.noisy is for one agent; several explore by epsilon_greedy")


@dataclass(frozen=True, kw_only=True)
class Config(MixedConfig):
    mixer_embed: Annotated[int, Count]
    hypernet_layers: Annotated[int, Count]
    hypernet_hidden: Annotated[int, Count, OnlyWith("hypernet_layers", 2)]

    def __post_init__(self):
        super().__post_init__()
        if self.hypernet_layers > 2:
            raise ValueError("hypernet_layers must be 1 or 2")


class QMIX(Algorithm):
    knows_first_priority = True
    records: ClassVar[tuple[str, ...]] = ("q_taken", "q_max")  # by samplers, for first_priority
    cfg: Any
    policy: JointQPolicy

    @classmethod
    def needs(cls, cfg: MixedConfig) -> Needs:
        record = cls.records if cfg.input_priorities else ()
        return Needs(
            rows=cfg.burn_in + cfg.sequence_length,
            columns=cfg.batch_size,
            actions=("multi_discrete",),
            record=record,
            core_every=cfg.sequence_stride,
            joint=True,
            replay=cfg.from_replay.of_sequences(cfg.sequence_length, cfg.burn_in, cfg.sequence_stride),
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: MixedConfig) -> JointQPolicy:
        if model.cfg.memory.kind == "none" and cfg.burn_in:
            raise UserError(f"{cfg.name}: burn_in is for networks with memory: set it to 0, or choose model/memory=gru")
        return JointQPolicy(spec, model, cfg.head, cfg.explorer(spec), cfg.agent_id)

    @classmethod
    def first_priority(cls, cfg: MixedConfig, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [T + 1, N]: mean |error| of the sums of the agents' values, which are
        known without a mixer."""
        part = rows.map(lambda x: x[cfg.burn_in :])
        valid = part.valid[:-1]
        reward = cfg.learnt(part.reward[:-1].sum(-1))
        target = cfg.returns(reward, part.terminated[:-1], valid, part.q_max[1:])
        error = (target - part.q_taken[:-1]).abs().masked_fill(~valid, 0.0)
        return error.sum(0) / valid.sum(0).clamp(min=1)

    def __init__(self, policy: JointQPolicy, spec: EnvSpec, cfg: MixedConfig, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.mixer = self.make_mixer().to(ctx.device)
        self.target_mixer = copy.deepcopy(self.mixer).requires_grad_(False)
        self.following = [Follower(self.target, policy)]
        if list(self.mixer.parameters()):
            self.following.append(Follower(self.target_mixer, self.mixer))
        parameters = [*policy.parameters(), *self.mixer.parameters()]
        self.optimizer = ctx.optimizer(parameters, cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    def make_mixer(self) -> nn.Module:
        cfg, state = self.cfg, self.spec.obs["state"].shape[0]
        return MonotonicMixer(self.policy.agents, state, cfg.mixer_embed, cfg.hypernet_layers, cfg.hypernet_hidden)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics, writes = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            for follower in self.following:
                follower.move(self.cfg.target_tau)
        return Update(metrics | self.policy.explored(clock), writes)

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes one gradient step and returns metrics of the whole batch and new priorities [B]."""
        loss, priority, shares = self.loss(batch)
        steps = self.optimizer.step(loss, clock)
        return Update(self.report(shares, steps), {"priority": priority})

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns this learner's share of the loss [], priorities [B] and shares of metrics.

        batch is [burn_in + T (+ 1), B] with core [1, B, N]."""
        cfg = self.cfg
        next_q, q = self.values(batch)  # [T, B, N, A], [T + 1, B, N, A]
        rows = batch.map(lambda x: x[cfg.burn_in :]).replace(weight=batch.weight) if cfg.burn_in else batch
        alive = rows["obs"]["alive"].bool()  # [T + 1, B, N]
        q_taken = q[:-1].gather(-1, rows.action.unsqueeze(-1)).squeeze(-1).masked_fill(~alive[:-1], 0.0)  # [T, B, N]
        with torch.no_grad():
            best = (q[1:] if cfg.double else next_q).argmax(-1, keepdim=True)
            value = next_q.gather(-1, best).squeeze(-1).masked_fill(~alive[1:], 0.0)  # [T, B, N]
            target = self.target_of(rows, value, alive[:-1])
        q_tot = self.mixed(self.mixer, q_taken, rows["obs"]["state"][:-1])  # [T, B]; [T, B, N] without a mixer (iql.py)
        return self.errors(target - q_tot, target, rows, alive[:-1])

    def target_of(self, rows: Batch, value: Tensor, alive: Tensor) -> Tensor:
        """Returns y_tot of eq. 6 [T, B]: the team's reward plus the discounted value of the team in the next row, from
        the target networks. value [T, B, N] holds the target network's value of each agent's best action in the next
        row; alive [T, B, N] says which agents are there."""
        cfg = self.cfg
        reward = cfg.learnt(rows.reward.sum(-1))
        next_value = self.mixed(self.target_mixer, value, rows["obs"]["state"][1:])
        return cfg.returns(reward, rows.terminated, rows.valid, next_value)

    def mixed(self, mixer: nn.Module, q: Tensor, state: Tensor) -> Tensor:
        """Mixes the values of the agents' actions [T, B, N] into the value of the team, Q_tot [T, B]."""
        return mixer(q, state)

    def errors(
        self, td_error: Tensor, target: Tensor, rows: Batch, alive: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns the loss, priorities and metrics of the team's TD errors [T, B] (eq. 5)."""
        valid = rows.valid
        td_error = td_error.masked_fill(~valid, 0.0)
        mean = self.mean_over(valid)
        loss = mean(rows.weight * huber(td_error, self.cfg.huber_delta))
        abs_td_error = td_error.detach().abs()
        priority = abs_td_error.sum(0) / valid.sum(0).clamp(min=1)
        shares = {
            "loss": loss,
            "td_error": mean(abs_td_error),
            "q": mean(target - td_error.detach()),
            "target": mean(target),
        }
        return loss, priority, shares

    def values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the target network's values [T, B, N, A] of the rows behind each row that is learnt from, and the
        online network's [T + 1, B, N, A] of all rows."""
        if self.policy.core_spec():
            return self.unroll(self.target, batch)[1:], self.unroll(self.policy, batch)
        # Without memory each row stands alone. The last one has no gradient, and a backward pass of zeros takes as long
        # as any other.
        obs, is_first, none = batch["obs"], batch["is_first"], Batch()
        with torch.no_grad():
            last = self.policy(obs[-1:], is_first[-1:], none)[0]  # type: ignore[index]
        online = self.policy(obs[:-1], is_first[:-1], none)[0]  # type: ignore[index]
        return self.target(obs[1:], is_first[1:], none)[0], torch.cat([online, last])  # type: ignore[index]

    def unroll(self, policy: JointQPolicy, batch: Batch) -> Tensor:
        """Returns values [T + 1, B, N, A] of the rows after burn-in, which only brings the memory up to date."""
        burn_in, obs, is_first = self.cfg.burn_in, batch["obs"], batch["is_first"]
        state = batch["core"][0] if "core" in batch else Batch()
        if self.cfg.zero_init_state:
            state = state.map(torch.zeros_like)
        if burn_in:
            with torch.no_grad():
                _, state = policy(obs[:burn_in], is_first[:burn_in], state)
        return policy(obs[burn_in:], is_first[burn_in:], state)[0]
