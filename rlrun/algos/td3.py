"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477).

Rows: fragments of n_step rows from replay, folded into single transitions.
Recorded: with input_priorities q_taken and q_max, for the first priorities; the critics then travel with the policy.
Options: twin_q: two critics of which the smaller counts (section 4.2); policy_delay (section 5.2): updates of the critics per step of the policy and, by
target_update_interval, of the targets; target_noise, target_noise_clip (section 5.3); DDPG's others.
Differs from the paper: losses are halves of squared errors.
Metrics: learn/critic_loss: sum over critics of means of weighted losses; actor_loss: -Q1 of the policy's own actions, when it is stepped; td_error: mean
|target - Q| over critics; q: mean value of the actions taken; target; noise_scale; critic_grad_norm and actor_grad_norm before clipping; critic_lr, actor_lr.
Checked: tests/algos/test_actor_critics.py (losses by hand, the delays), tuned/td3/.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

import torch

from rlrun.core.algorithm import LearnerContext, Update
from rlrun.core.batch import Batch
from rlrun.core.off_policy import ActionNoiseConfig, OffPolicyActorCriticConfig
from rlrun.core.ranges import Count, NotNegative
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.models.critic import Critics
from rlrun.models.model import Model
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import huber
from rlrun.ops.transforms import clip_reward
from rlrun.policies import DeterministicActorCritic, DeterministicPolicy


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyActorCriticConfig):
    twin_q: bool
    policy_delay: Annotated[int, Count]
    target_noise: Annotated[float, NotNegative]
    target_noise_clip: Annotated[float, NotNegative]
    exploration: ActionNoiseConfig


class TD3(DeterministicActorCritic):
    cfg: Config

    @classmethod
    def make_critic(cls, spec: EnvSpec, model: Model, cfg: Config) -> Critics:
        return Critics(spec, model, cfg.critic, 2 if cfg.twin_q else 1)

    def __init__(self, policy: DeterministicPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.learn_critics = self.recorded(functools.partial(self._learn, delayed=True))
        self.learn_all = self.recorded(functools.partial(self._learn, delayed=False))

    def update(self, batch: Batch, clock: Clock) -> Update:
        delayed = (clock.updates + 1) % self.cfg.policy_delay != 0
        metrics, writes = (self.learn_critics if delayed else self.learn_all)(batch, clock)
        self.follow(clock)
        return Update(metrics | self.policy.explored(clock), writes)

    def _learn(self, batch: Batch, clock: Clock, delayed: bool) -> Update:
        cfg, ends = self.cfg, batch.ends()
        obs, first = self.policy.seen(ends.obs), ends.is_first
        now, then = (obs[:1], first[:1]), (obs[1:], first[1:])
        reward, discount = fold_n_step(clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount)
        with torch.no_grad():
            next_action = self.target_actor(*then, Batch())[0][0]
            drawn = torch.randn(self.ctx.ranks.world, *next_action.shape, generator=self.ctx.rng, device=next_action.device)  # for all learners
            noise = drawn[self.ctx.ranks.rank] * cfg.target_noise
            next_action = (next_action + noise.clamp(-cfg.target_noise_clip, cfg.target_noise_clip)).clamp(-1.0, 1.0)  # eq. 14
            target = reward + discount * self.target_critic(*then, next_action)[:, :, 0].min(0).values  # [B], eq. 10

        q = self.critic(*now, self.policy.flat(batch.action[0]))[:, :, 0]  # [E, B]
        td_error = target - q
        critic_loss = self.mean(batch.weight * huber(td_error, cfg.huber_delta).sum(0))
        critic_steps = self.critic_optimizer.step(critic_loss + self.l2(self.critic), clock)
        size = td_error.detach().abs().mean(0)  # [B]
        shares = {"critic_loss": critic_loss, "td_error": self.mean(size), "q": self.mean(q), "target": self.mean(target)}

        actor_steps: dict = {}
        if not delayed:
            actor_loss = -self.mean(self.critic.of(self.fixed_features(*now), self.policy.output(*now)[0])[0])
            actor_steps = self.actor_optimizer.step(actor_loss + self.l2(self.policy.net), clock)
            shares["actor_loss"] = actor_loss
        return Update(self.report(shares, critic=critic_steps, actor=actor_steps), {"priority": size})
