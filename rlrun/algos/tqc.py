"""TQC: truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269): SAC whose critics say distributions, of which the most optimistic part is cut off.
Among the readable ones the best of this line: Stable-Baselines3's own figures at 1M env steps are 12,090 for TQC and 9,535 for SAC on HalfCheetah.

Rows: fragments of n_step rows from replay, folded into single transitions; the entropy of rows between is left out.
Recorded: nothing.
Options: num_critics, num_quantiles, dropped_quantiles (of each critic, d in the paper); SAC's others.
Differs from the paper: critics and policy learn side by side from the parameters that both had before the update (algorithm 1 steps the critics first; the
authors' code, too, works all losses out before the first step); n_step and prioritized replay may be chosen.
Metrics: learn/critic_loss: sum over critics of means of weighted losses; actor_loss: mean of alpha log pi - Q; alpha_loss; alpha; entropy: mean -log pi of the
policy's own actions; td_error: mean |mean target - Q|; q: mean value of the actions taken; target; critic_, actor_ and alpha_grad_norm before clipping, and lr.
Checked: tests/algos/test_actor_critics.py (targets and losses by hand), tuned/tqc/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import LearnerContext, Update
from rlrun.core.batch import Batch
from rlrun.core.off_policy import OffPolicyActorCriticConfig
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.models.critic import Critics
from rlrun.models.model import Model
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import quantile_huber
from rlrun.ops.transforms import clip_reward
from rlrun.policies import OffPolicyActorCritic, StochasticActor, target_entropy_of


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyActorCriticConfig):
    num_critics: Annotated[int, Count]
    num_quantiles: Annotated[int, Count]
    dropped_quantiles: Annotated[int, NotNegative]
    initial_alpha: Annotated[float, Positive]
    alpha_lr: Annotated[Schedule, NotNegative]
    target_entropy: Literal["auto"] | float

    def __post_init__(self):
        super().__post_init__()
        if self.dropped_quantiles >= self.num_quantiles:
            raise ValueError(f"dropped_quantiles {self.dropped_quantiles} must be below num_quantiles {self.num_quantiles}")
        if self.huber_delta is None:
            raise ValueError("huber_delta must be a number: quantiles are learnt by a Huber loss (1 in the paper)")
        if self.input_priorities:
            raise ValueError(f"input_priorities are worked out by samplers, which have no critics of {self.name}; ddpg and td3 can")


class TQC(OffPolicyActorCritic):
    action_kinds: ClassVar[tuple[str, ...]] = ("box",)
    side_by_side: ClassVar[bool] = True
    cfg: Config
    policy: StochasticActor

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> StochasticActor:
        return StochasticActor(spec, model, cfg.actor, cfg.random_steps)

    @classmethod
    def make_critic(cls, spec: EnvSpec, model: Model, cfg: Config) -> Critics:
        return Critics(spec, model, cfg.critic, cfg.num_critics, cfg.num_quantiles)

    def __init__(self, policy: StochasticActor, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.log_alpha = nn.Parameter(torch.tensor(cfg.initial_alpha, device=ctx.device).log())
        self.target_entropy = target_entropy_of(spec.action, cfg.target_entropy)  # type: ignore[arg-type]
        self.alpha_optimizer = ctx.optimizer([self.log_alpha], cfg.optimizer, cfg.alpha_lr, 0.0)
        self.target_rng = ctx.another_rng()
        self.learn = self.recorded(self._learn)
        self.kept = cfg.num_critics * (cfg.num_quantiles - cfg.dropped_quantiles)
        self.fraction = (torch.arange(cfg.num_quantiles, device=ctx.device) + 0.5) / cfg.num_quantiles  # tau of every quantile [K]

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.critic_following.move(self.cfg.target_tau)
        return update

    def _learn(self, batch: Batch, clock: Clock) -> Update:
        cfg, ranks, ends = self.cfg, self.ctx.ranks, batch.ends()
        obs, first = self.policy.seen(ends.obs), ends.is_first
        now, then = (obs[:1], first[:1]), (obs[1:], first[1:])
        reward, discount = fold_n_step(clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount)
        alpha = self.log_alpha.detach().exp()

        def critics() -> tuple[Tensor, dict[str, Tensor]]:
            with torch.no_grad():
                next_action, next_log_prob = self.policy.output(*then)[0].rsample(self.target_rng, ranks.rank, ranks.world)
                pooled = self.target_critic(*then, self.policy.flat(next_action)).transpose(0, 1).flatten(1)  # [B, E K]
                smallest = pooled.sort(-1).values[:, : self.kept]
                target = reward[:, None] + discount[:, None] * (smallest - alpha * next_log_prob[:, None])  # [B, kept], eq. 10
            quantile = self.critic(*now, self.policy.flat(batch.action[0]))  # [E, B, K]
            assert cfg.huber_delta is not None
            fraction = self.fraction.expand(quantile.shape[1:])
            losses = torch.stack([quantile_huber(one, fraction, target, cfg.huber_delta) for one in quantile]) / cfg.num_quantiles  # [E, B], eq. 11
            loss = self.mean(batch.weight * losses.sum(0))
            self.critic_optimizer.differentiate(loss + self.l2(self.critic))
            q = quantile.detach().mean((0, 2))  # [B]
            size = (target.mean(-1) - q).abs()
            return size, {"critic_loss": loss, "td_error": self.mean(size), "q": self.mean(q), "target": self.mean(target)}

        def actor() -> dict[str, Tensor]:
            action, log_prob = self.policy.output(*now)[0].rsample(self.ctx.rng, ranks.rank, ranks.world)
            value = self.critic.of(self.fixed_features(*now), self.policy.flat(action)).mean((0, 2))  # [B], nothing cut off: eq. 13
            loss = self.mean(alpha * log_prob - value)
            self.actor_optimizer.differentiate(loss + self.l2(self.policy.net))
            alpha_loss = -self.mean(self.log_alpha * (log_prob.detach() + self.target_entropy))
            self.alpha_optimizer.differentiate(alpha_loss)
            return {"actor_loss": loss, "alpha_loss": alpha_loss, "entropy": -self.mean(log_prob)}

        (size, shares), more = self.ctx.beside(critics, actor)
        steps = {"critic": self.critic_optimizer, "actor": self.actor_optimizer, "alpha": self.alpha_optimizer}
        metrics = self.report(shares | more, **{net: optimizer.apply(clock) for net, optimizer in steps.items()})
        return Update(metrics | {"alpha": alpha}, {"priority": size})
