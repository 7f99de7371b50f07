"""TQC: SAC with truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269).

The critics predict distributions of returns, and the most optimistic part of each is cut off. Stable-Baselines3 reports
12,090 for TQC and 9,535 for SAC on HalfCheetah at 1M env steps.

Rows: fragments of n_step rows from replay, folded into single transitions. The entropy of the rows in between is left
out. With memory: sequences with burn-in, of which every row is learnt from.
Recorded: nothing.
Options: num_critics, num_quantiles, dropped_quantiles (per critic, d in the paper); the other options of SAC.
Differs from the paper: critics and policy both learn from the parameters before the update, whereas algorithm 1 steps
the critics first (the authors' code, too, computes all losses before the first step). n_step and prioritized replay
are options.
Metrics: learn/critic_loss: sum over critics of means of weighted losses; actor_loss: mean of alpha log pi - Q;
alpha_loss; alpha; entropy: mean -log pi of the policy's own actions; td_error: mean |mean target - Q|; q: mean value
of the actions taken; target; critic_grad_norm, actor_grad_norm and alpha_grad_norm before clipping; critic_lr,
actor_lr, alpha_lr.
Checked: tests/algos/test_actor_critics.py (targets and losses by hand), tuned/tqc/.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.follower import Follower
from rlrun.core.ranges import Count, Finite, NotNegative, Real
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import (
    DrawnActorConfig,
    Temperature,
    Transitions,
    step_metrics,
    transitions,
    weight_decay,
)
from rlrun.models.critic import Critics
from rlrun.models.model import Model
from rlrun.ops.td import quantile_huber
from rlrun.policies import StochasticActor


@dataclass(frozen=True, kw_only=True)
class Config(DrawnActorConfig):
    num_critics: Annotated[int, Count]
    num_quantiles: Annotated[int, Count]
    dropped_quantiles: Annotated[int, NotNegative]
    initial_alpha: Annotated[float, Finite]
    alpha_lr: Annotated[Schedule, NotNegative]
    target_entropy: Annotated[Literal["auto"] | Annotated[float, Real], OnlyWith("alpha_lr")]

    def __post_init__(self):
        super().__post_init__()
        if self.dropped_quantiles >= self.num_quantiles:
            raise ValueError(
                f"dropped_quantiles {self.dropped_quantiles} must be below num_quantiles {self.num_quantiles}"
            )
        if self.huber_delta is None or math.isinf(self.huber_delta):
            raise ValueError(
                "huber_delta must be a finite number: quantiles are learnt by a Huber loss (1 in the paper)"
            )


class TQC(Algorithm):
    side_by_side: ClassVar[bool] = True
    cfg: Config
    policy: StochasticActor

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(
            rows=cfg.rows,
            columns=cfg.batch_size,
            actions=("box",),
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
        self.critic = Critics(spec, ctx.model, cfg.critic, cfg.num_critics, cfg.num_quantiles).to(ctx.device)
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
        self.kept = cfg.num_critics * (cfg.num_quantiles - cfg.dropped_quantiles)
        # tau of every quantile [K]
        self.fraction = (torch.arange(cfg.num_quantiles, device=ctx.device) + 0.5) / cfg.num_quantiles

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
            next_action, next_log_prob = self.ctx.rsample(self.policy.net.of(rows.then), self.target_rng)
            pooled = self.target_critic(rows.then, self.policy.flat(next_action)).transpose(0, 1).flatten(1)  # [N, E K]
            smallest = pooled.sort(-1).values[:, : self.kept]
            # [N, kept], eq. 10
            target = rows.reward[:, None] + rows.discount[:, None] * (smallest - alpha * next_log_prob[:, None])
        quantile = self.critic(rows.now, self.policy.flat(rows.action))  # [E, N, K]
        assert cfg.huber_delta is not None
        fraction = self.fraction.expand(quantile.shape[1:])
        # [E, N], eq. 11
        losses = (
            torch.stack([quantile_huber(one, fraction, target, cfg.huber_delta) for one in quantile])
            / cfg.num_quantiles
        )
        loss = rows.mean(rows.weight * losses.sum(0))
        self.critic_optimizer.differentiate(loss + weight_decay(self.critic, self.part(cfg.l2)))
        q = quantile.detach().mean((0, 2))  # [N]
        abs_td_error = (target.mean(-1) - q).abs()
        named = {"td_error": abs_td_error, "q": q, "target": target.mean(-1)}
        return abs_td_error, {"critic_loss": loss, **{name: rows.mean(x) for name, x in named.items()}}

    def learn_actor(self, rows: Transitions, alpha: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Differentiates the actor's loss. Returns log pi of its own actions [N] and shares of metrics."""
        with torch.no_grad():
            features = self.critic.features(rows.now)  # Only the actor gets this loss's gradient.
        action, log_prob = self.ctx.rsample(self.policy.net.of(rows.now))
        value = self.critic.of(features, self.policy.flat(action)).mean((0, 2))  # [N], eq. 13, without truncation
        loss = rows.mean(alpha * log_prob - value)
        self.actor_optimizer.differentiate(loss + weight_decay(self.policy.net, self.part(self.cfg.l2)))
        return log_prob, {"actor_loss": loss}

    def learn_temperature(self, rows: Transitions, log_prob: Tensor) -> dict[str, Tensor]:
        """Differentiates the loss of log alpha. Returns shares of metrics."""
        loss = -rows.mean(self.temperature.loss(log_prob, rows.now.mask))
        self.alpha_optimizer.differentiate(loss)
        return {"alpha_loss": loss, "entropy": -rows.mean(log_prob)}
