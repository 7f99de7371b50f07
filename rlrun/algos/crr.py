"""CRR: critic regularized regression (Wang et al. 2020, arXiv:2006.15134).

A critic is learnt from the data, and the actor clones those actions of the data that the critic rates above the actor's
own.

Rows: fragments of n_step rows, most often of a data set, folded into single transitions. With memory: sequences with
burn-in, of which every row is learnt from.
Recorded: nothing.
Options: weight: exp clones an action with weight exp(A / temperature), at most weight_clip, and binary clones it
if A > 0; advantage: A is Q of the data's action minus the mean, or the maximum, of Q over num_actions actions of
the actor; expectation is the exact mean, for discrete actions; twin_q.
Differs from the paper: critics give one number and not a distribution, as RLlib's do, and two critics, of which the
smaller value is used, are the default. Actions may be discrete. The actor is that of sac.py, a Gaussian squashed by
tanh, so that a run of sac can begin with its weights. The target of discrete actions is the exact mean over the target
actor's actions. Target networks move a little after every update; the paper copies them every 100 updates. In play the
actor acts by itself, without the critic's choice among its actions (the paper's CWP). The critics' losses are halves of
squared errors.
Metrics: learn/critic_loss: sum over critics of means of weighted losses; actor_loss: mean of minus weight * log pi;
weight: mean weight; advantage: mean A; td_error: mean |target - Q| over critics; q: mean value of the actions taken;
target; critic_grad_norm and actor_grad_norm before clipping; critic_lr, actor_lr.
Checked: tests/algos/test_crr.py (losses by hand; bc where all weights are 1), tuned/crr/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.follower import Follower
from rlrun.core.ranges import Count, Positive
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, EnvSpec
from rlrun.families.off_policy import (
    DrawnActorConfig,
    Transitions,
    step_metrics,
    transitions,
    values_taken,
    weight_decay,
)
from rlrun.models.critic import Critics
from rlrun.models.model import Model
from rlrun.ops.distributions import Categorical
from rlrun.ops.td import huber
from rlrun.policies import StochasticActor


@dataclass(frozen=True, kw_only=True)
class Config(DrawnActorConfig):
    twin_q: bool
    weight: Literal["exp", "binary"]
    temperature: Annotated[float, Positive, OnlyWith("weight", "exp")]
    weight_clip: Annotated[float, Positive, OnlyWith("weight", "exp")]
    advantage: Literal["mean", "max", "expectation"]
    num_actions: Annotated[int, Count, OnlyWith("advantage", "mean", "max")]


class CRR(Algorithm):
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
        if cfg.advantage == "expectation" and isinstance(spec.action, Box):
            raise UserError("algo.advantage=expectation is for discrete actions; mean draws num_actions actions")
        return StochasticActor(spec, model, cfg.actor, cfg.explorer(spec))

    def __init__(self, policy: StochasticActor, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        if ctx.learners > 1 and policy.kind == "beta":
            raise ValueError("model.action_distribution=beta is for one learner: resources.num_learners=1")
        self.critic = Critics(spec, ctx.model, cfg.critic, 2 if cfg.twin_q else 1).to(ctx.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.critic_following = Follower(self.target_critic, self.critic)
        self.target_actor = copy.deepcopy(policy.net).requires_grad_(False)
        self.actor_following = Follower(self.target_actor, policy.net)
        self.critic_optimizer = ctx.optimizer(self.critic.parameters(), cfg.optimizer, cfg.critic_lr, cfg.max_grad_norm)
        self.actor_optimizer = ctx.optimizer(policy.net.parameters(), cfg.optimizer, cfg.actor_lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.critic_following.move(self.cfg.target_tau)
            self.actor_following.move(self.cfg.target_tau)
        return update

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes a step of critics and actor. All gradients use the parameters before this update."""
        cfg, rows = self.cfg, transitions(self, batch)
        with torch.no_grad():
            target = rows.reward + rows.discount * self.next_value(rows)  # [N]
        features = self.critic.features(rows.now)
        q = values_taken(self.critic, features, self.policy, rows.action)  # [E, N]
        td_error = target - q
        critic_loss = rows.mean(rows.weight * huber(td_error, cfg.huber_delta).sum(0))
        self.critic_optimizer.differentiate(critic_loss + weight_decay(self.critic, self.part(cfg.l2)))

        dist = self.policy.net.of(rows.now)
        with torch.no_grad():
            advantage = q.min(0).values - self.own_value(features.detach(), dist)  # [N]
            if cfg.weight == "exp":
                weight = (advantage / cfg.temperature).exp().clamp(max=cfg.weight_clip)
            else:
                weight = (advantage > 0).float()
        actor_loss = -rows.mean(rows.weight * weight * dist.log_prob(rows.action))  # Algorithm 1
        self.actor_optimizer.differentiate(actor_loss + weight_decay(self.policy.net, self.part(cfg.l2)))

        abs_td_error = td_error.detach().abs().mean(0)  # [N]
        means = {"td_error": abs_td_error, "q": q.mean(0), "target": target, "advantage": advantage, "weight": weight}
        losses = {"critic_loss": critic_loss, "actor_loss": actor_loss}
        shares = losses | {name: rows.mean(x.detach()) for name, x in means.items()}
        steps = step_metrics(critic=self.critic_optimizer.apply(clock), actor=self.actor_optimizer.apply(clock))
        return Update(self.report(shares, steps), {"priority": rows.priority(abs_td_error)})

    def next_value(self, rows: Transitions) -> Tensor:
        """Returns E[Q'(s', a')] [N] for a' of the target actor, where Q' is the smaller value of the target critics.

        It is exact for discrete actions, and estimated by one draw for continuous ones."""
        features, dist = self.target_critic.features(rows.then), self.target_actor.of(rows.then)
        if isinstance(dist, Categorical):
            q = self.target_critic.of(features, None)[..., 0].min(0).values  # [N, A]
            return (dist.log_probs.exp() * q).sum(-1)
        action = self.ctx.rsample(dist)[0]
        return self.target_critic.of(features, self.policy.flat(action))[..., 0].min(0).values

    def own_value(self, features: Tensor, dist: Any) -> Tensor:
        """Returns the baseline of the advantage [N]: the mean or the maximum of the critics' smaller value over actions
        that the policy draws, or its exact mean over all of them with advantage=expectation.

        features [N, F] are those of the critics in these rows, dist the policy's distribution there."""
        cfg, count = self.cfg, self.cfg.num_actions
        if isinstance(dist, Categorical):
            q_all = self.critic.of(features, None)[..., 0].min(0).values  # [N, A]
            if cfg.advantage == "expectation":
                return (dist.log_probs.exp() * q_all).sum(-1)
            q = q_all.gather(1, self.choices(dist, count))  # [N, K]
        else:
            row = torch.arange(len(features), device=features.device).repeat_interleave(count)  # [N K]
            action = self.policy.flat(self.ctx.rsample(dist[row])[0])
            q = self.critic.of(features[row], action)[..., 0].min(0).values.unflatten(0, (-1, count))
        return q.mean(-1) if cfg.advantage == "mean" else q.amax(-1)

    def choices(self, dist: Categorical, count: int) -> Tensor:
        """Draws `count` discrete actions [N, K] for every row, by the inverse of the cumulative probability."""
        cumulative = dist.log_probs.exp().cumsum(-1)
        drawn = self.ctx.rand((len(cumulative), count)) * cumulative[:, -1:]
        return torch.searchsorted(cumulative, drawn, right=True).clamp(max=cumulative.shape[-1] - 1)

    def renew_targets(self) -> None:
        self.target_actor.load_state_dict(self.policy.net.state_dict())
