"""IMPALA: importance-weighted actor-learner architecture (Espeholt et al. 2018, arXiv:1802.01561).

Rows: fragments [T, B] from policies that are a few updates old. Each is used once, unless runner.num_sgd_iter or
runner.replay_proportion use it again.
Recorded: log_prob, the behaviour policy's log mu(a|x) (eq. 1); the recurrent state at row 0.
Differs from the paper: Adam may replace RMSProp. The loss may be a mean over rows instead of their sum. With
vtrace=false every importance weight is 1, which leaves n-step returns (as RLlib's switch of that name does).
advantage_bootstrap=mixed makes lambda_ shorten advantages as well as targets, as GAE does; the paper's shortens targets
alone.
Metrics: learn/policy_loss, value_loss and entropy per row; rho_mean and rho_clipped: the mean importance weight pi/mu
and the share of weights above rho_clip, if it clips; explained_variance: 1 - Var(target - value) / Var(target);
grad_norm before clipping; lr; with value_lr, value_grad_norm, value_lr and value_skipped_updates of the value's own
optimiser.
Checked: tests/ops/test_vtrace.py (the paper's O(T^2) sum), tests/algos/test_impala.py (a loss by hand), tuned/impala/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.ranges import NotNegative, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.actor_critic import ActorCriticConfig, optimizers
from rlrun.models.model import Model
from rlrun.ops.transforms import clip_reward
from rlrun.ops.vtrace import Bootstrap, vtrace
from rlrun.policies import DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    value_lr: Annotated[Schedule, NotNegative] | None
    vtrace: bool
    rho_clip: Annotated[float, OnlyWith("vtrace", True)]
    c_clip: Annotated[float, OnlyWith("vtrace", True)]
    pg_rho_clip: Annotated[float, OnlyWith("vtrace", True)]
    lambda_: Annotated[float, Share]
    advantage_bootstrap: Bootstrap
    loss_reduction: Literal["mean", "sum"]


class Impala(Algorithm):
    cfg: Config
    policy: DistributionPolicy
    filters_pixels = True

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(
            rows=cfg.fragment_length, columns=cfg.columns, record=("log_prob",), core_every=cfg.fragment_length
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> DistributionPolicy:
        return DistributionPolicy(spec, model, cfg.explorer(spec))

    def __init__(self, policy: DistributionPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.optimizer, self.value_optimizer = optimizers(policy, cfg, cfg.value_lr, ctx)

    @recorded
    def update(self, batch: Batch, clock: Clock) -> Update:
        policy_loss, value_loss, metrics = self.loss(batch, self.cfg.entropy_coef(clock))
        if self.value_optimizer is None:
            steps = self.optimizer.step(policy_loss + self.cfg.value_coef * value_loss, clock)
        else:  # The trunks share nothing, so the two graphs are disjoint.
            value_steps = self.value_optimizer.step(self.cfg.value_coef * value_loss, clock)
            steps = self.optimizer.step(policy_loss, clock) | {
                f"value_{name}": value for name, value in value_steps.items()
            }
        return Update({**metrics, **steps})

    def loss(self, batch: Batch, entropy_coef: float) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns the policy loss [] (with the entropy bonus), the value loss [] and metrics of a batch [T(+1), B]."""
        cfg, valid = self.cfg, batch.valid
        mean = self.mean_over(valid)
        scale = self.live(valid) if cfg.loss_reduction == "sum" else 1.0
        dist, values = self.policy.unroll(batch)  # over T+1 rows
        value, next_value = values[:-1], values[1:].detach()  # [T, B]
        dist = dist[:-1].given(batch.action)
        log_prob = dist.log_prob(batch.action)  # [T, B]
        log_rho = (log_prob.detach() - batch.log_prob) if cfg.vtrace else torch.zeros_like(batch.log_prob)
        reward = clip_reward(batch.reward, cfg.reward_clip)
        target, advantage = vtrace(
            log_rho,
            batch.discount(cfg.discount),
            reward,
            value.detach(),
            next_value,
            valid,
            rho_clip=cfg.rho_clip,
            c_clip=cfg.c_clip,
            pg_rho_clip=cfg.pg_rho_clip,
            lambda_=cfg.lambda_,
            bootstrap=cfg.advantage_bootstrap,
        )
        policy_loss = -mean(log_prob * advantage)
        value_loss = mean(0.5 * (target - value).square())
        entropy = mean(dist.entropy())
        shares = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        if cfg.vtrace:
            rho = log_rho.exp()
            shares |= {"rho_mean": mean(rho)}
            if cfg.rho_clip > 0:  # 0: nothing is clipped
                shares |= {"rho_clipped": mean((rho > cfg.rho_clip).float())}
        metrics = self.report(shares, {"explained_variance": self.explained_variance(target, value.detach(), valid)})
        return scale * (policy_loss - entropy_coef * entropy), scale * value_loss, metrics
