"""SAC: soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) with an entropy weight that learns, and its form for choices (Christodoulou 2019,
arXiv:1910.07207).

Rows: fragments of n_step rows from replay, folded into single transitions; the entropy of rows between is left out, as in RLlib.
Recorded: nothing.
Options: twin_q: two critics of which the smaller counts; initial_alpha, alpha_lr (0: alpha stays), target_entropy; model.action_distribution:
squashed_gaussian or beta; n_step, replay=prioritized, huber_delta, l2.
Differs from the paper: alpha's loss is linear in log alpha, and critics and policy learn side by side from the parameters that both had before the update
(algorithm 1 steps the critics first), both as in the authors' code; losses are halves of squared errors.
Metrics: learn/critic_loss: sum over critics of means of weighted losses; actor_loss: mean of alpha log pi - Q; alpha_loss; alpha; entropy: mean -log pi of the
policy's own actions; td_error: mean |target - Q| over critics; q: mean value of the actions taken; target; critic_, actor_ and alpha_grad_norm before
clipping, and lr.
Checked: tests/algos/test_actor_critics.py (losses by hand for numbers and for choices, which gradient reaches what), tuned/sac/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import LearnerContext, Update
from rlrun.core.batch import Batch
from rlrun.core.off_policy import OffPolicyActorCriticConfig
from rlrun.core.ranges import NotNegative, Positive
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.models.critic import Critics
from rlrun.models.model import Model
from rlrun.ops.distributions import Categorical
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import huber, taken
from rlrun.ops.transforms import clip_reward
from rlrun.policies import OffPolicyActorCritic, StochasticActor, target_entropy_of


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyActorCriticConfig):
    twin_q: bool
    initial_alpha: Annotated[float, Positive]
    alpha_lr: Annotated[Schedule, NotNegative]
    target_entropy: Literal["auto"] | float

    def __post_init__(self):
        super().__post_init__()
        if self.input_priorities:
            raise ValueError(f"input_priorities are worked out by samplers, which have no critics of {self.name}; ddpg and td3 can")


class Soft(NamedTuple):
    """Under the policy of one row, weighed by its probabilities."""

    q: Tensor  # smallest of the critics' values [B]
    log_prob: Tensor  # [B]: minus an estimate of the entropy, for choices the entropy itself


class SAC(OffPolicyActorCritic):
    action_kinds: ClassVar[tuple[str, ...]] = ("box", "discrete")
    side_by_side: ClassVar[bool] = True
    cfg: Config
    policy: StochasticActor

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> StochasticActor:
        return StochasticActor(spec, model, cfg.actor, cfg.random_steps)

    @classmethod
    def make_critic(cls, spec: EnvSpec, model: Model, cfg: Config) -> Critics:
        return Critics(spec, model, cfg.critic, 2 if cfg.twin_q else 1)

    def __init__(self, policy: StochasticActor, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.log_alpha = nn.Parameter(torch.tensor(cfg.initial_alpha, device=ctx.device).log())
        self.target_entropy = target_entropy_of(spec.action, cfg.target_entropy)  # type: ignore[arg-type]
        self.alpha_optimizer = ctx.optimizer([self.log_alpha], cfg.optimizer, cfg.alpha_lr, 0.0)
        self.target_rng = ctx.another_rng()
        self.learn = self.recorded(self._learn)

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.critic_following.move(self.cfg.target_tau)
        return update

    def _learn(self, batch: Batch, clock: Clock) -> Update:
        cfg, ends = self.cfg, batch.ends()
        obs, first = self.policy.seen(ends.obs), ends.is_first
        now, then = (obs[:1], first[:1]), (obs[1:], first[1:])
        reward, discount = fold_n_step(clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount)
        alpha = self.log_alpha.detach().exp()

        def critics() -> tuple[Tensor, dict[str, Tensor]]:
            with torch.no_grad():
                following = self.soft(self.target_critic, self.target_critic.features(*then), *then, self.target_rng)
                target = reward + discount * (following.q - alpha * following.log_prob)  # [B], eq. 3 and 5
            q = self.values(*now, batch.action[0])  # [E, B]
            td_error = target - q
            loss = self.mean(batch.weight * huber(td_error, cfg.huber_delta).sum(0))
            self.critic_optimizer.differentiate(loss + self.l2(self.critic))
            size = td_error.detach().abs().mean(0)  # [B]
            return size, {"critic_loss": loss, "td_error": self.mean(size), "q": self.mean(q), "target": self.mean(target)}

        def actor() -> dict[str, Tensor]:
            own = self.soft(self.critic, self.fixed_features(*now), *now, self.ctx.rng)
            loss = self.mean(alpha * own.log_prob - own.q)  # eq. 9
            self.actor_optimizer.differentiate(loss + self.l2(self.policy.net))
            alpha_loss = -self.mean(self.log_alpha * (own.log_prob.detach() + self.wanted_entropy(obs)))  # eq. 18
            self.alpha_optimizer.differentiate(alpha_loss)
            return {"actor_loss": loss, "alpha_loss": alpha_loss, "entropy": -self.mean(own.log_prob)}

        (size, shares), more = self.ctx.beside(critics, actor)
        steps = {"critic": self.critic_optimizer, "actor": self.actor_optimizer, "alpha": self.alpha_optimizer}
        metrics = self.report(shares | more, **{net: optimizer.apply(clock) for net, optimizer in steps.items()})
        return Update(metrics | {"alpha": alpha}, {"priority": size})

    def wanted_entropy(self, obs: Batch) -> float | Tensor:
        """Of choices that a mask narrows: as much for the legal ones of each row [B]."""
        if self.cfg.target_entropy != "auto" or "action_mask" not in obs:
            return self.target_entropy
        return 0.98 * obs["action_mask"][0].bool().sum(-1).float().log()

    def values(self, obs: Batch, is_first: Tensor, action: Tensor) -> Tensor:
        """Of the actions taken [E, B]."""
        flat = self.policy.flat(action)
        q = self.critic(obs, is_first, flat)
        return q[..., 0] if flat is not None else torch.stack([taken(one[..., 0], action) for one in q])

    def soft(self, critic: Critics, features: Tensor, obs: Batch, is_first: Tensor, rng: torch.Generator) -> Soft:
        """Of an action that the policy draws now, or of all choices."""
        dist = self.policy.output(obs, is_first)[0]
        if isinstance(dist, Categorical):
            probability, log_probs = dist.log_probs.exp(), dist.log_probs  # [B, A]
            q = critic.of(features, None)[..., 0].min(0).values
            return Soft((probability * q).sum(-1), (probability * log_probs).sum(-1))
        action, log_prob = dist.rsample(rng, self.ctx.ranks.rank, self.ctx.ranks.world)
        return Soft(critic.of(features, self.policy.flat(action))[..., 0].min(0).values, log_prob)
