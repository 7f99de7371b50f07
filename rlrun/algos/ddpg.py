"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971).

Rows: fragments of n_step rows from replay, folded into single transitions.
Recorded: with input_priorities q_taken and q_max, for the first priorities; the critic then travels with the policy.
Options: n_step, replay=prioritized, huber_delta, l2; exploration.kind: ou (the paper's), gaussian or parameter_noise (Plappert et al. 2018). Twin critics,
delayed policies and smoothed targets are algo=td3.
Differs from the paper: actions enter the critic's first layer, not its second; no batch normalisation; PyTorch's first weights.
Metrics: learn/critic_loss: mean of weighted losses; actor_loss: -Q of the policy's own actions; td_error: mean |target - Q|; q: mean value of the actions
taken; target; noise_scale: the schedule's; critic_grad_norm and actor_grad_norm before clipping; critic_lr, actor_lr.
Checked: tests/algos/test_actor_critics.py (losses by hand, which gradient reaches what, the noises), tuned/ddpg/.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlrun.core.algorithm import LearnerContext, Update
from rlrun.core.batch import Batch
from rlrun.core.off_policy import ActionNoiseConfig, OffPolicyActorCriticConfig
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
    exploration: ActionNoiseConfig


class DDPG(DeterministicActorCritic):
    cfg: Config

    @classmethod
    def make_critic(cls, spec: EnvSpec, model: Model, cfg: Config) -> Critics:
        return Critics(spec, model, cfg.critic, 1)

    def __init__(self, policy: DeterministicPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.learn = self.recorded(self._learn)

    def update(self, batch: Batch, clock: Clock) -> Update:
        metrics, writes = self.learn(batch, clock)
        self.follow(clock)
        return Update(metrics | self.policy.explored(clock), writes)

    def _learn(self, batch: Batch, clock: Clock) -> Update:
        cfg, ends = self.cfg, batch.ends()
        obs, first = self.policy.seen(ends.obs), ends.is_first
        now, then = (obs[:1], first[:1]), (obs[1:], first[1:])
        reward, discount = fold_n_step(clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount)
        with torch.no_grad():
            next_action = self.target_actor(*then, Batch())[0][0]
            target = reward + discount * self.target_critic(*then, next_action)[0, :, 0]  # [B]

        q = self.critic(*now, self.policy.flat(batch.action[0]))[0, :, 0]  # [B]
        td_error = target - q
        critic_loss = self.mean(batch.weight * huber(td_error, cfg.huber_delta))
        critic_steps = self.critic_optimizer.step(critic_loss + self.l2(self.critic), clock)

        actor_loss = -self.mean(self.critic.of(self.fixed_features(*now), self.policy.output(*now)[0])[0])
        actor_steps = self.actor_optimizer.step(actor_loss + self.l2(self.policy.net), clock)

        size = td_error.detach().abs()
        shares = {"critic_loss": critic_loss, "actor_loss": actor_loss, "td_error": self.mean(size), "q": self.mean(q), "target": self.mean(target)}
        return Update(self.report(shares, critic=critic_steps, actor=actor_steps), {"priority": size})
