"""APPO: asynchronous PPO in the form of IMPACT (Luo et al. 2020, arXiv:1912.00167).

Its clipped surrogate takes both the advantages and the reference probabilities from a target policy.

Rows: fragments [T, B] from policies that are a few updates old. The paper's circular buffer of N train batches, each
of which is used K times (section 4.1.2), is set by runner.minibatch_buffer_size and runner.num_sgd_iter.
Recorded: log_prob, the behaviour policy's log pi_worker(a|x); the recurrent state at row 0.
Differs from the paper: advantages are V-trace under the target policy, or GAE (vtrace=false, which assumes that rows
are recent), or, with use_critic=false too, the discounted rewards of the rows that follow. An adaptive KL penalty
KL(target || current) may be added, as in RLlib. The target may follow by Polyak steps.
Metrics: learn/policy_loss, value_loss and entropy per row; rho_mean: mean ratio of target to behaviour probability;
is_clipped: share of rows where the ratio of behaviour to target probability was above is_clip; approx_kl: mean of
(ratio - 1) - log ratio of the current to the target policy; clip_fraction; kl and kl_coef when the penalty is on;
explained_variance of the target network's values; grad_norm before clipping; lr; with value_lr, value_grad_norm,
value_lr and value_skipped_updates of the value's own optimiser.
Checked: tests/algos/test_appo.py (the surrogate by hand, target updates), tests/ops/test_vtrace.py, tuned/appo/.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.follower import Follower
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.actor_critic import ActorCriticConfig, optimizers
from rlrun.models.model import Model
from rlrun.ops.distributions import Distribution
from rlrun.ops.policy_loss import LARGEST_LOG_RATIO, adapt_kl_coef_, bounded
from rlrun.ops.returns import gae
from rlrun.ops.transforms import clip_reward
from rlrun.ops.vtrace import Bootstrap, vtrace
from rlrun.policies import DistributionPolicy


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    value_lr: Annotated[Schedule, NotNegative] | None
    use_critic: bool
    vtrace: bool
    value_coef: Annotated[float, NotNegative, OnlyWith("use_critic")]
    lambda_: Annotated[float, Share, OnlyWith("use_critic")]
    advantage_bootstrap: Bootstrap
    rho_clip: Annotated[float, OnlyWith("vtrace", True)]
    c_clip: Annotated[float, OnlyWith("vtrace", True)]
    pg_rho_clip: Annotated[float, OnlyWith("vtrace", True)]
    clip: Annotated[Schedule, NotNegative]
    is_clip: Annotated[float, Positive]
    target_update_interval: Annotated[int, Count]
    target_tau: Annotated[float, PositiveShare]
    kl_coef: Annotated[float, NotNegative]
    kl_target: Annotated[float, Positive, OnlyWith("kl_coef")]

    def __post_init__(self):
        super().__post_init__()
        if self.advantage_bootstrap != "target" and not self.vtrace:
            raise ValueError("advantage_bootstrap belongs to V-trace: with vtrace=false advantages are GAE anyway")
        if not self.use_critic and self.vtrace:
            raise ValueError("V-trace needs values: use_critic=false goes with vtrace=false")
        if not self.use_critic and self.value_lr is not None:
            raise ValueError("value_lr is for values, which are not learnt with use_critic=false")


class Reference(NamedTuple):
    """What the losses compare the newest policy with, for rows [T, B]."""

    dist: Distribution  # of the target policy
    log_prob: Tensor  # its log pi of the actions
    worker_log_prob: Tensor  # log pi_worker of the actions, as the sampler recorded it
    log_rho: Tensor  # log of pi_target / pi_worker; 0 on dead rows
    value: Tensor  # the target network's values
    advantage: Tensor
    target: Tensor  # what the newest values are regressed on


class APPO(Algorithm):
    cfg: Config
    policy: DistributionPolicy
    filters_pixels = True
    kl_coef: Tensor

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
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.following = Follower(self.target, policy)
        self.optimizer, self.value_optimizer = optimizers(policy, cfg, cfg.value_lr, ctx)
        self.register_buffer("kl_coef", torch.tensor(cfg.kl_coef, device=ctx.device))

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, update = self.cfg, self.learn(batch, clock)
        if (clock.updates + 1) % cfg.target_update_interval == 0:
            # The KL is measured before the target moves: right after a copy it is 0 by construction.
            if cfg.kl_coef > 0:
                adapt_kl_coef_(self.kl_coef, self.moved(batch), cfg.kl_target)
            self.following.move(cfg.target_tau)
        return update

    @recorded
    def learn(self, batch: Batch, clock: Clock) -> Update:
        """Makes one gradient step on a batch [T(+1), B], or one of the policy and one of the value with value_lr."""
        policy_loss, value_loss, metrics = self.loss(batch, self.cfg.clip(clock), self.cfg.entropy_coef(clock))
        if self.value_optimizer is None:
            return Update({**metrics, **self.optimizer.step(policy_loss + self.cfg.value_coef * value_loss, clock)})
        # The trunks share nothing, so the two graphs are disjoint.
        value_steps = self.value_optimizer.step(self.cfg.value_coef * value_loss, clock)
        steps = self.optimizer.step(policy_loss, clock)
        return Update({**metrics, **steps, **{f"value_{name}": value for name, value in value_steps.items()}})

    @torch.no_grad()
    def moved(self, batch: Batch) -> Tensor:
        """Returns the mean KL(target || current) [] over the batch's live rows."""
        old, new = (policy.unroll(batch)[0][:-1].given(batch.action) for policy in (self.target, self.policy))
        kl = old.kl(new)
        return self.total(self.mean(kl, batch.valid))

    @torch.no_grad()
    def reference(self, batch: Batch) -> Reference:
        """Evaluates the target policy on a batch [T(+1), B], and returns its probabilities, values and advantages."""
        cfg, valid = self.cfg, batch.valid
        dist, value = self.target.unroll(batch)  # over T+1 rows
        dist, now, after = dist[:-1].given(batch.action), value[:-1], value[1:]
        log_prob = dist.log_prob(batch.action)
        # The loss divides by pi_worker and multiplies with it again. Below e^-20 pi_target that would be infinity times
        # 0, so a smaller pi_worker counts as e^-20 pi_target.
        worker_log_prob = torch.maximum(batch.log_prob, log_prob - LARGEST_LOG_RATIO)
        log_rho = (log_prob - worker_log_prob).masked_fill(~valid, 0.0)
        reward, discount = clip_reward(batch.reward, cfg.reward_clip), batch.discount(cfg.discount)
        if cfg.vtrace:
            target, advantage = vtrace(
                log_rho,
                discount,
                reward,
                now,
                after,
                valid,
                rho_clip=cfg.rho_clip,
                c_clip=cfg.c_clip,
                pg_rho_clip=cfg.pg_rho_clip,
                lambda_=cfg.lambda_,
                bootstrap=cfg.advantage_bootstrap,
            )
        elif cfg.use_critic:
            advantage = gae(reward, discount, now, after, valid, cfg.lambda_)
            target = advantage + now
        else:
            nothing = torch.zeros_like(reward)
            target = advantage = gae(reward, discount, nothing, nothing, valid, 1.0)
        return Reference(dist, log_prob, worker_log_prob, log_rho, now, advantage, target)

    def loss(self, batch: Batch, clip: float, entropy_coef: float) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns this learner's shares of the losses on a batch [T(+1), B], and the metrics of the whole batch.

        The losses are the policy's [], with the entropy bonus and the penalty, and the value's [], 0 without a
        critic."""
        cfg, valid = self.cfg, batch.valid
        mean = self.mean_over(valid)
        old = self.reference(batch)
        dist, value = self.policy.unroll(batch)
        dist, value = dist[:-1].given(batch.action), value[:-1]
        log_prob = dist.log_prob(batch.action)
        # Section 4.1.1: the ratio is min(pi_worker / pi_target, rho) pi / pi_worker. It equals pi / pi_target as
        # long as pi_worker / pi_target does not exceed rho (is_clip).
        worker_over_target = (-old.log_rho).exp()
        log_ratio_to_worker = (log_prob - old.worker_log_prob).masked_fill(~valid, 0.0)
        ratio_to_worker = log_ratio_to_worker.clamp(max=2 * LARGEST_LOG_RATIO).exp()
        ratio = worker_over_target.clamp(max=cfg.is_clip) * ratio_to_worker
        surrogate = torch.minimum(ratio * old.advantage, ratio.clamp(1 - clip, 1 + clip) * old.advantage)
        policy_loss = -mean(surrogate)
        value_loss = mean(0.5 * (old.target - value).square()) if cfg.use_critic else torch.zeros_like(policy_loss)
        entropy = mean(dist.entropy())
        loss = policy_loss - entropy_coef * entropy
        kl = None
        if cfg.kl_coef > 0:
            kl = mean(old.dist.kl(dist))
            loss = loss + self.kl_coef * kl
        with torch.no_grad():
            log_ratio = bounded((log_prob - old.log_prob).masked_fill(~valid, 0.0))
            shares = {
                "policy_loss": policy_loss,
                "entropy": entropy,
                "approx_kl": mean(log_ratio.exp() - 1 - log_ratio),
                "rho_mean": mean(old.log_rho.exp()),
                "is_clipped": mean((worker_over_target > cfg.is_clip).float()),
                "clip_fraction": mean(((ratio - 1).abs() > clip).float()),
            }
            same = {}
            if cfg.use_critic:
                shares["value_loss"] = value_loss
                same["explained_variance"] = self.explained_variance(old.target, old.value, valid)
            if kl is not None:
                shares["kl"], same["kl_coef"] = kl, self.kl_coef.clone()
        return loss, value_loss, self.report(shares, same)
