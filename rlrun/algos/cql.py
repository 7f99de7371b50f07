"""CQL: conservative Q-learning (Kumar et al. 2020, arXiv:2006.04779), on SAC, for continuous and discrete actions.

SAC (sac.py) whose critics are pushed down on the actions that they rate highest, and up on those of the data, so that
the policy does not follow values that no data support. algo=discrete_cql does the same to a DQN.

Rows: as in sac.py, most often of a data set.
Recorded: nothing.
Options: min_q_weight is the weight of the penalty. It stands beside squared TD errors without their factor 0.5, as in
the authors' code. temperature belongs to the penalty's log-sum-exp. For continuous actions, the log-sum-exp is
estimated by importance sampling from 3 num_actions actions for each row: uniform ones, the policy's, and the policy's
in the next state, all of them valued in this state (CQL(H) of the paper, version 3 of the authors' code). Its constant
-log(3 num_actions) is left out, as there. It has no gradient, but it shifts the gap that lagrangian_threshold bounds.
With lagrangian=true the penalty has a further weight alpha', which keeps min_q_weight times the gap near
lagrangian_threshold (eq. 30). In the first bc_iters updates the actor clones the data. deterministic_backup leaves the
entropy out of the targets; the next action is sampled either way.
Differs from the paper: what differs in sac.py. All gradients use the parameters before the update.
Metrics: those of sac.py; gap: mean over critics of the penalty, which is the log-sum-exp minus the value of the data's
action; alpha_prime and alpha_prime_lr with lagrangian. actor_loss: minus log pi of the data's actions in place of -Q,
in the first bc_iters updates.
Checked: tests/algos/test_offline.py (min_q_weight=0 is sac to the bit; the penalty by hand, against an integral and of
a constant Q; unseen actions of a small MDP), tuned/cql/.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn

from rlrun.algos import sac
from rlrun.core.algorithm import LearnerContext, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import CONTINUOUS, OnlyFor, OnlyWith
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, EnvSpec
from rlrun.families.off_policy import Transitions, step_metrics, transitions, values_taken, weight_decay
from rlrun.ops.td import huber
from rlrun.policies import StochasticActor


@dataclass(frozen=True, kw_only=True)
class Config(sac.Config):
    bc_iters: Annotated[int, NotNegative]
    min_q_weight: Annotated[float, NotNegative]
    temperature: Annotated[float, Positive, OnlyWith("min_q_weight")]
    num_actions: Annotated[int, Count, OnlyFor(CONTINUOUS), OnlyWith("min_q_weight")]
    lagrangian: Annotated[bool, OnlyWith("min_q_weight")]
    lagrangian_threshold: Annotated[float, OnlyWith("lagrangian")]
    deterministic_backup: bool

    def __post_init__(self):
        super().__post_init__()
        if self.lagrangian and self.min_q_weight == 0:
            raise ValueError("lagrangian adapts the penalty's weight, and min_q_weight=0 leaves the penalty out")


class CQL(sac.SAC):
    LARGEST = 1e6  # of alpha'
    cfg: Config

    def __init__(self, policy: StochasticActor, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.log_alpha_prime: nn.Parameter | None = None
        if cfg.lagrangian:
            self.log_alpha_prime = nn.Parameter(torch.zeros((), device=ctx.device))
            plain = replace(cfg.optimizer, weight_decay=0.0, max_grad_value=0.0, agc=0.0)
            self.alpha_prime_optimizer = ctx.optimizer([self.log_alpha_prime], plain, cfg.critic_lr, 0.0)

    def update(self, batch: Batch, clock: Clock) -> Update:
        update = self.learn(batch, clock, cloning=clock.updates < self.cfg.bc_iters)
        if (clock.updates + 1) % self.cfg.target_update_interval == 0:
            self.critic_following.move(self.cfg.target_tau)
        return update

    @recorded
    def learn(self, batch: Batch, clock: Clock, cloning: bool = False) -> Update:
        """Makes a step of critics, actor and temperatures. All gradients use the parameters before this update."""
        rows = transitions(self, batch)
        alpha = self.temperature.alpha
        learn_actor = self.clone if cloning else self.learn_actor
        (abs_td_error, critic_shares), (log_prob, actor_shares) = self.ctx.beside(
            lambda: self.learn_critics(rows, alpha),
            lambda: learn_actor(rows, alpha),
        )
        shares = critic_shares | actor_shares | self.learn_temperature(rows, log_prob)
        same = {"alpha": alpha}
        steps = {
            "critic": self.critic_optimizer.apply(clock),
            "actor": self.actor_optimizer.apply(clock),
            "alpha": self.alpha_optimizer.apply(clock),
        }
        if self.log_alpha_prime is not None:
            same["alpha_prime"] = self.alpha_prime
            self.learn_alpha_prime(critic_shares["gap"])
            steps["alpha_prime"] = self.alpha_prime_optimizer.apply(clock)
            # Where the bound is on alpha' alone, its logarithm has no gradient beyond it and never comes back.
            with torch.no_grad():
                self.log_alpha_prime.clamp_(max=math.log(self.LARGEST))
        return Update(self.report(shares, step_metrics(**steps), same), {"priority": rows.priority(abs_td_error)})

    def learn_critics(self, rows: Transitions, alpha: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Differentiates the critics' loss. Returns absolute TD errors [N] and shares of metrics."""
        cfg = self.cfg
        with torch.no_grad():
            features = self.target_critic.features(rows.then)
            next_soft = self.soft(self.target_critic, features, rows.then, self.target_rng)
            value = next_soft.q if cfg.deterministic_backup else next_soft.q - alpha * next_soft.log_prob
            target = rows.reward + rows.discount * value  # [N]
        now = self.critic.features(rows.now)
        q = values_taken(self.critic, now, self.policy, rows.action)  # [E, N]
        td_error = target - q
        errors = huber(td_error, cfg.huber_delta).sum(0)
        shares = {}
        if cfg.min_q_weight > 0:
            gap = self.log_sum_exp(now, rows) - q  # [E, N], eq. 4
            factor = cfg.min_q_weight if self.log_alpha_prime is None else cfg.min_q_weight * self.alpha_prime
            errors = errors + 0.5 * factor * gap.sum(0)  # 0.5, because the squared errors are halved too
            shares = {"gap": rows.mean(gap.mean(0)).detach()}
        loss = rows.mean(rows.weight * errors)
        self.critic_optimizer.differentiate(loss + weight_decay(self.critic, self.part(cfg.l2)))
        abs_td_error = td_error.detach().abs().mean(0)  # [N]
        named = {"td_error": abs_td_error, "q": q.mean(0), "target": target}
        return abs_td_error, {"critic_loss": loss, **{name: rows.mean(x) for name, x in named.items()}, **shares}

    def log_sum_exp(self, features: Tensor, rows: Transitions) -> Tensor:
        """Returns temperature * log of the integral of exp(Q / temperature) over all actions [E, N], without -log 3N.

        features [N, F] are those of the critics in these rows. For discrete actions it is the exact sum."""
        temperature = self.cfg.temperature
        if not isinstance(self.spec.action, Box):
            q, mask = self.critic.of(features, None)[..., 0] / temperature, rows.now.mask  # [E, N, A]
            if mask is not None:  # at an end all may be illegal
                legal = mask.bool()
                q = q.masked_fill(~legal & legal.any(-1, keepdim=True), -torch.inf)
            return temperature * q.logsumexp(-1)
        with torch.no_grad():
            action, log_density = self.candidates(rows)
        repeated = features.unsqueeze(1).expand(*action.shape[:2], features.shape[1]).flatten(0, 1)  # [N 3K, F]
        q = self.critic.of(repeated, action.flatten(0, 1))[..., 0].unflatten(1, log_density.shape)  # [E, N, 3K]
        # Importance sampling: log of the sum of exp(Q / temperature) / density.
        return temperature * (q / temperature - log_density).logsumexp(-1)

    def candidates(self, rows: Transitions) -> tuple[Tensor, Tensor]:
        """Draws K uniform actions for each row, K of the policy, and K of the policy in the next state.

        Returns them [N, 3K, A] with the log densities of each in the distribution that it was drawn from [N, 3K]."""
        count, action_size, rng = self.cfg.num_actions, self.spec.action.size, self.target_rng  # type: ignore[union-attr]
        shape = len(rows.reward), count
        drawn = [2.0 * self.ctx.rand((*shape, action_size), rng) - 1.0]
        log_density = [torch.full(shape, action_size * math.log(0.5), device=rows.reward.device)]
        row = torch.arange(shape[0], device=rows.reward.device).repeat_interleave(count)  # [N K]
        for seen in (rows.now, rows.then):
            action, log_prob = self.ctx.rsample(self.policy.net.of(seen)[row], rng)
            drawn.append(action.reshape(*shape, action_size))
            log_density.append(log_prob.view(shape))
        return torch.cat(drawn, 1), torch.cat(log_density, 1)

    def clone(self, rows: Transitions, alpha: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Takes the place of learn_actor() in the first bc_iters updates, and clones the data.

        The loss is alpha log pi(own action | s) - log pi(action of the data | s); for discrete actions, minus the exact
        entropy stands in place of the first log pi. Returns log pi of the actor's own actions [N] and shares of
        metrics."""
        dist = self.policy.net.of(rows.now)
        if isinstance(self.spec.action, Box):
            log_prob = self.ctx.rsample(dist, self.ctx.rng)[1]
        else:
            log_prob = -dist.entropy()
        loss = rows.mean(alpha * log_prob - dist.log_prob(rows.action))
        self.actor_optimizer.differentiate(loss + weight_decay(self.policy.net, self.part(self.cfg.l2)))
        return log_prob, {"actor_loss": loss}

    @property
    def alpha_prime(self) -> Tensor:
        """alpha' [], without gradient."""
        assert self.log_alpha_prime is not None
        return self.log_alpha_prime.detach().exp().clamp(max=self.LARGEST)

    def learn_alpha_prime(self, gap: Tensor) -> None:
        """Differentiates the loss of log alpha'. gap [] is this learner's share of the mean gap of the critics."""
        assert self.log_alpha_prime is not None
        critics, threshold = self.critic.count, self.part(self.cfg.lagrangian_threshold)
        factor = self.log_alpha_prime.exp()  # learn() keeps it at most LARGEST
        # Half the sum over critics, as in the authors' code.
        self.alpha_prime_optimizer.differentiate(-factor * 0.5 * critics * (self.cfg.min_q_weight * gap - threshold))
