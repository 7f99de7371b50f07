"""SAC: soft actor-critic with a learned entropy weight (Haarnoja et al. 2018, arXiv:1812.05905).

For discrete actions it is the variant of Christodoulou 2019, arXiv:1910.07207.

Rows: fragments of n_step rows from replay, folded into single transitions. The entropy of the rows in between is left
out, as in RLlib. With memory: sequences with burn-in, of which every row is learnt from (RLlib's RNNSAC).
Recorded: nothing.
Options: twin_q: two critics, of which the smaller value is used; initial_alpha, alpha_lr (0 keeps alpha constant),
target_entropy; model.action_distribution: squashed_gaussian or beta; n_step, replay=prioritized, huber_delta, l2.
Differs from the paper: as in the authors' code, alpha's loss is linear in log alpha, and critics and policy both learn
from the parameters before the update, whereas algorithm 1 steps the critics first. Losses are halves of squared errors.
The log standard deviation of actions is bounded to [-5, 2]; the authors' code bounds it to [-20, 2].
Metrics: learn/critic_loss: sum over critics of means of weighted losses; actor_loss: mean of alpha log pi - Q;
alpha_loss; alpha; entropy: mean -log pi of the policy's own actions; td_error: mean |target - Q| over critics; q: mean
value of the actions taken; target; critic_grad_norm, actor_grad_norm and alpha_grad_norm before clipping; critic_lr,
actor_lr, alpha_lr.
Checked: tests/algos/test_actor_critics.py (losses by hand for continuous and discrete actions, which gradient reaches
what), tuned/sac/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.follower import Follower
from rlrun.core.ranges import Finite, NotNegative, Real
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import (
    DrawnActorConfig,
    Temperature,
    Transitions,
    step_metrics,
    transitions,
    values_taken,
    weight_decay,
)
from rlrun.models.critic import Critics
from rlrun.models.model import Model, Seen
from rlrun.ops.distributions import Categorical
from rlrun.ops.td import huber
from rlrun.policies import StochasticActor


@dataclass(frozen=True, kw_only=True)
class Config(DrawnActorConfig):
    twin_q: bool
    initial_alpha: Annotated[float, Finite]
    alpha_lr: Annotated[Schedule, NotNegative]
    target_entropy: Annotated[Literal["auto"] | Annotated[float, Real], OnlyWith("alpha_lr")]


class Soft(NamedTuple):
    """A row's value and log-probability: those of one drawn action, or expectations over discrete actions."""

    q: Tensor  # smallest value of the critics [N]
    log_prob: Tensor  # [N]: minus an estimate of the entropy; minus the exact entropy for discrete actions


class SAC(Algorithm):
    side_by_side: ClassVar[bool] = True
    cfg: Config
    policy: StochasticActor

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(
            rows=cfg.rows,
            columns=cfg.batch_size,
            actions=("box", "discrete"),
            core_every=cfg.core_every,
            replay=cfg.from_replay,
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> StochasticActor:
        cfg.check_memory(model)
        return StochasticActor(spec, model, cfg.actor, cfg.explorer(spec))

    def __init__(self, policy: StochasticActor, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        if ctx.learners > 1 and policy.kind == "beta":
            raise ValueError("model.action_distribution=beta is for one learner: resources.num_learners=1")
        self.critic = Critics(spec, ctx.model, cfg.critic, 2 if cfg.twin_q else 1).to(ctx.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.critic_following = Follower(self.target_critic, self.critic)
        alpha = cfg.initial_alpha, cfg.target_entropy
        self.temperature = Temperature(spec.action, *alpha, ctx.device, policy.kind)
        self.log_alpha = self.temperature.log_alpha
        self.critic_optimizer = ctx.optimizer(self.critic.parameters(), cfg.optimizer, cfg.critic_lr, cfg.max_grad_norm)
        self.actor_optimizer = ctx.optimizer(policy.net.parameters(), cfg.optimizer, cfg.actor_lr, cfg.max_grad_norm)
        # The temperature is no weight of a net: nothing pulls it to 1, and no bound holds its gradient.
        plain = replace(cfg.optimizer, weight_decay=0.0, max_grad_value=0.0, agc=0.0)
        self.alpha_optimizer = ctx.optimizer([self.log_alpha], plain, cfg.alpha_lr, 0.0)
        # The critics draw from a generator of their own, so that they and the actor can be computed side by side.
        self.target_rng = ctx.another_rng()

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.critic_following.move(self.cfg.target_tau)
        return update

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes a step of critics, actor and temperature. All gradients use the parameters before this update."""
        rows = transitions(self, batch)
        alpha = self.temperature.alpha
        (abs_td_error, critic_shares), (log_prob, actor_shares) = self.ctx.beside(
            lambda: self.learn_critics(rows, alpha),
            lambda: self.learn_actor(rows, alpha),
        )
        shares = critic_shares | actor_shares | self.learn_temperature(rows, log_prob)
        steps = step_metrics(
            critic=self.critic_optimizer.apply(clock),
            actor=self.actor_optimizer.apply(clock),
            alpha=self.alpha_optimizer.apply(clock),
        )
        return Update(self.report(shares, steps, {"alpha": alpha}), {"priority": rows.priority(abs_td_error)})

    def learn_critics(self, rows: Transitions, alpha: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Differentiates the critics' loss. Returns absolute TD errors [N] and shares of metrics."""
        cfg = self.cfg
        with torch.no_grad():
            features = self.target_critic.features(rows.then)
            next_soft = self.soft(self.target_critic, features, rows.then, self.target_rng)
            target = rows.reward + rows.discount * (next_soft.q - alpha * next_soft.log_prob)  # [N], eq. 3 and 5
        q = values_taken(self.critic, self.critic.features(rows.now), self.policy, rows.action)  # [E, N]
        td_error = target - q
        loss = rows.mean(rows.weight * huber(td_error, cfg.huber_delta).sum(0))
        self.critic_optimizer.differentiate(loss + weight_decay(self.critic, self.part(cfg.l2)))
        abs_td_error = td_error.detach().abs().mean(0)  # [N]
        named = {"td_error": abs_td_error, "q": q.mean(0), "target": target}
        return abs_td_error, {"critic_loss": loss, **{name: rows.mean(x) for name, x in named.items()}}

    def learn_actor(self, rows: Transitions, alpha: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Differentiates the actor's loss. Returns log pi of its own actions [N] and shares of metrics."""
        with torch.no_grad():
            features = self.critic.features(rows.now)  # Only the actor gets this loss's gradient.
        own = self.soft(self.critic, features, rows.now, self.ctx.rng)
        loss = rows.mean(alpha * own.log_prob - own.q)  # eq. 9
        self.actor_optimizer.differentiate(loss + weight_decay(self.policy.net, self.part(self.cfg.l2)))
        return own.log_prob, {"actor_loss": loss}

    def learn_temperature(self, rows: Transitions, log_prob: Tensor) -> dict[str, Tensor]:
        """Differentiates the loss of log alpha. Returns shares of metrics."""
        loss = -rows.mean(self.temperature.loss(log_prob, rows.now.mask))  # eq. 18
        self.alpha_optimizer.differentiate(loss)
        return {"alpha_loss": loss, "entropy": -rows.mean(log_prob)}

    def soft(self, critic: Critics, features: Tensor, seen: Seen, rng: torch.Generator) -> Soft:
        """Evaluates an action drawn from the current policy or, for discrete actions, the average over all of them."""
        dist = self.policy.net.of(seen)
        if isinstance(dist, Categorical):
            probability, log_probs = dist.log_probs.exp(), dist.log_probs  # [N, A]
            q = critic.of(features, None)[..., 0].min(0).values
            return Soft((probability * q).sum(-1), (probability * log_probs).sum(-1))
        action, log_prob = self.ctx.rsample(dist, rng)
        return Soft(critic.of(features, self.policy.flat(action))[..., 0].min(0).values, log_prob)
