"""Implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169), which others call IQL. In rlrun, as in PyMARL, iql is
independent Q-learning of several agents.

It never asks for the value of an action that the data do not hold: a state's value is an expectile of the values of the
data's actions there, and the actor clones these actions, the better ones more.

Rows: fragments of n_step rows, most often of a data set, folded into single transitions. With memory: sequences with
burn-in, of which every row is learnt from.
Recorded: nothing.
Options: expectile: tau of eq. 5; beta: inverse temperature of the actor's weights (eq. 7), 0 clones all actions alike;
weight_clip: the largest weight; twin_q; value_lr; critic: the layers of the critics and of the state's value. actor_lr
falls along a cosine over the run, as in the authors' code.
Differs from the paper: actions are continuous or discrete. The actor is that of sac.py, a Gaussian squashed by tanh,
whose deviation depends on the observation, so that a run of sac can begin with its weights; in the paper only the mean
is squashed, and the deviation does not depend on the state. All losses use the parameters before the update; the
authors' code steps the value first. The critics' losses are halves of squared errors.
Metrics: learn/value_loss; critic_loss: sum over critics of means of weighted losses; actor_loss: mean of minus weight *
log pi; weight: mean weight; advantage: mean of Q - V; td_error: mean |target - Q| over critics; q: mean value of the
actions taken; value: mean V; target; value_grad_norm, critic_grad_norm and actor_grad_norm before clipping; value_lr,
critic_lr, actor_lr.
Checked: tests/algos/test_offline.py (losses by hand; expectile 0.5 is a mean, and beta 0 is bc), tuned/implicit_q/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.follower import Follower
from rlrun.core.ranges import NotNegative, Positive, PositiveShareBelowOne
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.off_policy import (
    DrawnActorConfig,
    step_metrics,
    transitions,
    values_taken,
    weight_decay,
)
from rlrun.models.critic import Critics
from rlrun.models.encoders import NetConfig
from rlrun.models.model import Model, Seen
from rlrun.ops.td import huber
from rlrun.policies import StochasticActor


@dataclass(frozen=True, kw_only=True)
class Config(DrawnActorConfig):
    twin_q: bool
    expectile: Annotated[float, PositiveShareBelowOne]
    beta: Annotated[float, NotNegative]
    weight_clip: Annotated[float, Positive]
    value_lr: Annotated[Schedule, NotNegative]


class StateValue(nn.Module):
    """V(s): an encoder, hidden layers and one number."""

    def __init__(self, spec: EnvSpec, model: Model, cfg: NetConfig):
        super().__init__()
        self.trunk = model.trunk(spec)
        self.hidden = model.hidden(self.trunk.features, cfg)
        self.linear = model.linear(cfg.hidden[-1] if cfg.hidden else self.trunk.features, 1, 1.0)

    def forward(self, seen: Seen) -> Tensor:
        """Returns values [N] of rows. The memory begins with zeros, as that of critics does."""
        return self.linear(self.hidden(self.trunk.of(seen.from_zeros())))[:, 0]


class ImplicitQ(Algorithm):
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
        return StochasticActor(spec, model, cfg.actor, cfg.explorer(spec), improved=False)

    def __init__(self, policy: StochasticActor, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.critic = Critics(spec, ctx.model, cfg.critic, 2 if cfg.twin_q else 1).to(ctx.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.critic_following = Follower(self.target_critic, self.critic)
        self.value = StateValue(spec, ctx.model, cfg.critic).to(ctx.device)
        self.critic_optimizer = ctx.optimizer(self.critic.parameters(), cfg.optimizer, cfg.critic_lr, cfg.max_grad_norm)
        self.value_optimizer = ctx.optimizer(self.value.parameters(), cfg.optimizer, cfg.value_lr, cfg.max_grad_norm)
        self.actor_optimizer = ctx.optimizer(policy.net.parameters(), cfg.optimizer, cfg.actor_lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.critic_following.move(self.cfg.target_tau)
        return update

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes a step of value, critics and actor. All gradients use the parameters before this update."""
        cfg, rows = self.cfg, transitions(self, batch)
        with torch.no_grad():
            next_value = self.value(rows.then)
            target = rows.reward + rows.discount * next_value  # [N], eq. 6
            target_features = self.target_critic.features(rows.now)
            target_q = values_taken(self.target_critic, target_features, self.policy, rows.action)  # [E, N]
            smaller_q = target_q.min(0).values  # [N]

        value = self.value(rows.now)
        advantage = smaller_q - value  # Q - V [N]
        value_loss = rows.mean(rows.weight * expectile_loss(advantage, cfg.expectile))  # eq. 5
        self.value_optimizer.differentiate(value_loss + weight_decay(self.value, self.part(cfg.l2)))

        q = values_taken(self.critic, self.critic.features(rows.now), self.policy, rows.action)  # [E, N]
        td_error = target - q
        critic_loss = rows.mean(rows.weight * huber(td_error, cfg.huber_delta).sum(0))
        self.critic_optimizer.differentiate(critic_loss + weight_decay(self.critic, self.part(cfg.l2)))

        weight = (cfg.beta * advantage.detach()).exp().clamp(max=cfg.weight_clip)
        log_prob = self.policy.net.of(rows.now).log_prob(rows.action)
        actor_loss = -rows.mean(rows.weight * weight * log_prob)  # eq. 7
        self.actor_optimizer.differentiate(actor_loss + weight_decay(self.policy.net, self.part(cfg.l2)))

        abs_td_error = td_error.detach().abs().mean(0)  # [N]
        means = {"td_error": abs_td_error, "q": q.mean(0), "value": value, "target": target}
        means |= {"advantage": advantage, "weight": weight}
        losses = {"value_loss": value_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
        shares = losses | {name: rows.mean(x.detach()) for name, x in means.items()}
        steps = step_metrics(
            value=self.value_optimizer.apply(clock),
            critic=self.critic_optimizer.apply(clock),
            actor=self.actor_optimizer.apply(clock),
        )
        return Update(self.report(shares, steps), {"priority": rows.priority(abs_td_error)})


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Returns |tau - 1(u < 0)| u^2 of errors u [N] (eq. 3), whose mean the expectile of the targets minimises."""
    return torch.where(error < 0, 1.0 - expectile, expectile) * error.square()
