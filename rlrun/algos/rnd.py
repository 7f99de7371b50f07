"""RND: random network distillation (Burda et al. 2018, arXiv:1810.12894) around another algorithm that learns the
policy of one agent from its rewards, for example algo=rnd algo@algo.inner=ppo. docs/exploration.md says which
algorithms can be inside.

Rows: those of the inner algorithm (algo.inner), which learns from the sum of the environment's and an intrinsic
reward.
Recorded: what the inner algorithm records.
There are two networks over observations: a target f with random weights, which stays as it is, and a predictor, which
learns the target's outputs. The intrinsic reward of row t is the squared error ||predictor(s) - f(s)||^2 at
s = s_t+1 (section 2.2), divided by the running deviation of its discounted returns and weighted by intrinsic_coef. It
is computed before the predictor learns from the batch. Both networks see observations whose numbers have been
normalised by running moments and bounded to observation_clip (section 2.4); choices are one-hot and stay as they are.
The predictor learns from a random share of the rows, update_share.
Around an algorithm with a replay, the reward of a row is computed anew whenever the row is drawn. An old row therefore
pays what its state is worth now, and not what it was worth when it was played: a reward that was stored then would draw
the policy to states that are known by now. Moments are those of the rows drawn.
Differs from the paper: the inner algorithm has one value for the sum of both rewards. The paper learns two values, and
its intrinsic return goes on past the end of an episode. Here, novelty after the end of an episode is not counted. The
running deviation is that of discounted sums of intrinsic rewards within a fragment, which begin with 0 at its first
row; fragments from a replay have n_step rows. The first batch initialises the moments of observations, where the paper
takes random steps.
Stacked frames are seen whole, where the paper takes the newest one.
The inner algorithm's reward_clip bounds the environment's rewards only, and its normalize_reward must be false.
Reported returns are those of the environment alone.
Metrics: those of the inner algorithm; learn/intrinsic_reward: mean per row, weighted; prediction_error: mean squared
error before it is divided; intrinsic_deviation: what it is divided by; predictor_loss; rnd_grad_norm, rnd_lr and
rnd_skipped_updates, which mean the same as those of the inner algorithm.
The predictor's extra layers (predictor_hidden) are for images. Where an observation is a single choice, as on
FrozenLake, they let what is learnt about one state disturb the others, and errors do not fall to 0: set
predictor_hidden=[] there.
Checked: tests/algos/test_rnd.py (errors, moments and returns by hand), tuned/rnd/ (a FrozenLake of 24x24, which PPO
alone does not learn).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rlrun.algos.mbmpo import IMAGINES, MBMPO
from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.conditions import FILTERED, REWARDING_LAYERS, OnlyFor
from rlrun.core.metrics import Means
from rlrun.core.moments import Moments, RunningMoments
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.policy import Policy
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, ShareBelowOne
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, EnvSpec, leaves
from rlrun.families.intrinsic import (
    check_inner,
    check_minibatches,
    column_parts,
    flat_rows,
    make_inner,
    needs_around,
    random_features,
)
from rlrun.models.encoders import mlp
from rlrun.models.model import Model, orthogonal
from rlrun.models.normalizer import TINY, ObservationFilters
from rlrun.ops.transforms import clip_reward


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    inner: Any  # Inner
    intrinsic_coef: Annotated[Schedule, NotNegative]
    intrinsic_discount: Annotated[float, ShareBelowOne]
    observation_clip: Annotated[float, Positive, OnlyFor(FILTERED)]
    feature_size: Annotated[int, Count]
    feature_hidden: tuple[Annotated[int, Count], ...]
    predictor_hidden: tuple[Annotated[int, Count], ...]
    activation: Annotated[Literal["tanh", "relu", "elu", "silu"], OnlyFor(REWARDING_LAYERS)]
    update_share: Annotated[float, PositiveShare]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    num_minibatches: Annotated[int, Count]

    def __post_init__(self):
        check_inner(self.name, self.inner)


class RND(Algorithm):
    holds_another = True
    cfg: Config
    inner: Algorithm

    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        return IMAGINES if issubclass(inner, MBMPO) else None

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        needs = needs_around(cfg.inner)
        return replace(needs, shared=(*needs.shared, max(1, needs.columns // cfg.num_minibatches)))

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> Policy:
        return cfg.inner.algorithm.make_policy(spec, model, cfg.inner.cfg)

    def __init__(self, policy: Policy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.inner = make_inner(cfg.inner, policy, spec, ctx, "intrinsic_coef")
        check_minibatches(cfg.num_minibatches, self.share(self.needs(cfg).columns))
        self.model = Distillation(spec, cfg).to(ctx.device)
        self.rng = ctx.another_rng()  # the shuffles of the inner algorithm must not change which rows are drawn
        self.returns = RunningMoments(()).to(ctx.device)
        self.optimizer = ctx.optimizer(self.model.predictor.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, valid = self.cfg, batch.valid
        following = self.model.filters.moments(batch.obs["observation"][1:], valid)
        self.merge_filters(self.model.filters, [following])
        with torch.no_grad():
            error = self.model(batch).masked_fill(~valid, 0.0)  # [T, B]
        self.returns.merge(self.moments(running_returns(error, valid, cfg.intrinsic_discount), valid))
        deviation = (self.returns.variance + TINY).sqrt().float()
        intrinsic = cfg.intrinsic_coef(clock) * error / deviation  # [T, B]
        before = self.report(
            {"intrinsic_reward": self.mean(intrinsic, valid), "prediction_error": self.mean(error, valid)},
            {"intrinsic_deviation": deviation},
        )
        shares, steps = Means(), Means()
        learnt = batch.replace(valid=valid & self.drawn(valid))
        for part in column_parts(learnt, cfg.num_minibatches, self.ctx.rng):
            loss = self.loss(part)
            steps.add({f"rnd_{name}": value for name, value in self.optimizer.step(loss, clock).items()})
            shares.add({"predictor_loss": loss})
        extrinsic = clip_reward(batch.reward, cfg.inner.cfg.reward_clip)
        update = self.inner.update(batch.replace(reward=extrinsic + intrinsic), clock)
        return Update({**update.metrics, **before, **self.report(shares.tensors(), steps.tensors())}, update.writes)

    def drawn(self, valid: Tensor) -> Tensor:
        """Draws which rows [T, B] bool the predictor learns from; each is one of them with probability update_share."""
        return self.ctx.rand(valid.T.shape, self.rng).T < self.cfg.update_share

    def loss(self, batch: Batch) -> Tensor:
        """Returns this learner's share of the predictor's loss [], the mean error of the live rows of a batch
        [T(+1), B]."""
        return self.mean(self.model(batch), batch.valid)

    def absorb_returns(self, moments: list[Moments | None]) -> None:  # type: ignore[override]
        self.inner.absorb_returns(moments)


def running_returns(reward: Tensor, valid: Tensor, discount: float) -> Tensor:
    """Returns the sums [T, B] of the rewards up to each row, discounted backwards in time.

        R_t = discount R_t-1 + r_t, with R = 0 before row 0

    Dead rows are no time: their sum is that of the row before. The ends of episodes change nothing. reward [T, B] is
    not read in dead rows. The authors' code has these sums too (its RewardForwardFilter).
    """
    sums, before = torch.empty_like(reward), torch.zeros_like(reward[0])
    for t in range(len(reward)):
        before = torch.where(valid[t], discount * before + reward[t], before)
        sums[t] = before
    return sums


class Distillation(nn.Module):
    """Holds the target, the predictor and the filters of their inputs."""

    def __init__(self, spec: EnvSpec, cfg: Config):
        super().__init__()
        boxes = [(path, space) for path, space in leaves(spec.observation) if isinstance(space, Box)]
        self.filters = ObservationFilters(boxes, cfg.observation_clip)
        self.target = random_features(spec, cfg.feature_hidden, cfg.activation, cfg.feature_size)
        self.target.requires_grad_(False)
        widths = (cfg.feature_size, *cfg.predictor_hidden)
        self.predictor = random_features(spec, cfg.feature_hidden, cfg.activation, cfg.feature_size)
        if cfg.predictor_hidden:  # layers that the target lacks, so that the predictor can become the target's equal
            behind = nn.Sequential(
                nn.ReLU(), mlp(widths, cfg.activation), nn.Linear(cfg.predictor_hidden[-1], cfg.feature_size)
            )
            orthogonal(behind, math.sqrt(2.0))
            self.predictor.extend(behind)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the squared errors [T, B] of the observations behind the rows of a batch [T(+1), B].

        Those of dead rows have no meaning."""
        following = flat_rows(self.filters(batch.obs["observation"][1:]))
        error = (self.predictor(following) - self.target(following)).square().sum(-1)
        return error.unflatten(0, batch.reward.shape)
