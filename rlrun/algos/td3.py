"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

Rows: fragments of n_step rows from replay, folded into single transitions. With memory: sequences with burn-in, of
which every row is learnt from.
Recorded: q_taken and q_max with input_priorities, for the first priorities; samplers then receive the critics with the
policy.
Options: twin_q: two critics, of which the smaller value is used (section 4.2); policy_delay (section 5.2): number of
critic updates per step of the policy (target_update_interval is the number per step of the targets); target_noise,
target_noise_clip (section 5.3); the other options of DDPG.
Differs from the paper: losses are halves of squared errors.
Metrics: learn/critic_loss: sum over critics of means of weighted losses; actor_loss: mean -Q1 of the policy's own
actions, in updates that step the policy; td_error: mean |target - Q| over critics; q: mean value of the actions taken;
target; noise_scale; critic_grad_norm and actor_grad_norm before clipping; critic_lr, actor_lr.
Checked: tests/algos/test_actor_critics.py (losses by hand, the delays), tuned/td3/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.follower import Follower
from rlrun.core.ranges import Count, NotNegative
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import (
    OffPolicyActorCriticConfig,
    Transitions,
    recorded_priority,
    step_metrics,
    transitions,
    weight_decay,
)
from rlrun.models.critic import Critics
from rlrun.models.model import Model
from rlrun.ops.td import huber
from rlrun.policies import ActionNoiseConfig, DeterministicPolicy


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyActorCriticConfig):
    twin_q: bool
    policy_delay: Annotated[int, Count]
    target_noise: Annotated[float, NotNegative]
    target_noise_clip: Annotated[float, NotNegative, OnlyWith("target_noise")]
    exploration: ActionNoiseConfig


class TD3(Algorithm):
    knows_first_priority = True
    cfg: Config
    policy: DeterministicPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        record = ("q_taken", "q_max") if cfg.input_priorities else ()
        return Needs(
            rows=cfg.rows,
            columns=cfg.batch_size,
            actions=("box",),
            record=record,
            core_every=cfg.core_every,
            replay=cfg.from_replay,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> DeterministicPolicy:
        cfg.check_memory(model)
        # Samplers receive the critic with the policy, so that they can record values for priorities.
        critic = cls.make_critic(spec, model, cfg) if cfg.input_priorities else None
        return DeterministicPolicy(spec, model, cfg.actor, cfg.explorer(spec), critic)

    @classmethod
    def make_critic(cls, spec: EnvSpec, model: Model, cfg: Config) -> Critics:
        return Critics(spec, model, cfg.critic, 2 if cfg.twin_q else 1)

    @classmethod
    def first_priority(cls, cfg: Config, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [n + 1, N] as they were recorded."""
        return recorded_priority(cfg, rows)

    def __init__(self, policy: DeterministicPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.critic = policy.critic or self.make_critic(spec, ctx.model, cfg).to(ctx.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.critic_following = Follower(self.target_critic, self.critic)
        self.critic_optimizer = ctx.optimizer(self.critic.parameters(), cfg.optimizer, cfg.critic_lr, cfg.max_grad_norm)
        self.actor_optimizer = ctx.optimizer(policy.net.parameters(), cfg.optimizer, cfg.actor_lr, cfg.max_grad_norm)
        self.target_actor = copy.deepcopy(policy.net).requires_grad_(False)
        self.actor_following = Follower(self.target_actor, policy.net)

    def update(self, batch: Batch, clock: Clock) -> Update:
        delayed = (clock.updates + 1) % self.cfg.policy_delay != 0
        metrics, writes = self.learn(batch, clock, delayed=delayed)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.actor_following.move(self.cfg.target_tau)
            self.critic_following.move(self.cfg.target_tau)
        return Update(metrics | self.policy.explored(clock), writes)

    @recorded
    def learn(self, batch: Batch, clock: Clock, delayed: bool) -> Update:
        """Makes a step of the critics and, unless the policy is delayed, of the actor."""
        cfg, rows = self.cfg, transitions(self, batch)
        with torch.no_grad():
            next_action = self.target_actor.of(rows.then)
            noise = self.ctx.randn(next_action.shape) * cfg.target_noise
            # eq. 14
            next_action = (next_action + noise.clamp(-cfg.target_noise_clip, cfg.target_noise_clip)).clamp(-1.0, 1.0)
            next_q = self.target_critic(rows.then, next_action)[:, :, 0].min(0).values
            target = rows.reward + rows.discount * next_q  # [N], eq. 10

        q = self.critic(rows.now, self.policy.flat(rows.action))[:, :, 0]  # [E, N]
        td_error = target - q
        critic_loss = rows.mean(rows.weight * huber(td_error, cfg.huber_delta).sum(0))
        critic_steps = self.critic_optimizer.step(critic_loss + weight_decay(self.critic, self.part(cfg.l2)), clock)
        abs_td_error = td_error.detach().abs().mean(0)  # [N]
        shares = {
            "critic_loss": critic_loss,
            "td_error": rows.mean(abs_td_error),
            "q": rows.mean(q.mean(0)),
            "target": rows.mean(target),
        }

        actor_steps: dict = {}
        if not delayed:
            actor_loss = self.actor_loss(rows)
            actor_steps = self.actor_optimizer.step(
                actor_loss + weight_decay(self.policy.net, self.part(cfg.l2)), clock
            )
            shares["actor_loss"] = actor_loss
        steps = step_metrics(critic=critic_steps, actor=actor_steps)
        return Update(self.report(shares, steps), {"priority": rows.priority(abs_td_error)})

    def actor_loss(self, rows: Transitions) -> Tensor:
        """Returns this learner's share of mean -Q [] of the policy's own actions. Only the actor gets a gradient."""
        with torch.no_grad():
            features = self.critic.features(rows.now)
        return -rows.mean(self.critic.of(features, self.policy.net.of(rows.now))[0, :, 0])

    def renew_targets(self) -> None:
        self.target_actor.load_state_dict(self.policy.net.state_dict())
        if self.policy.critic is not None:
            self.target_critic.load_state_dict(self.critic.state_dict())
