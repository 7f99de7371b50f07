"""LinTS: Thompson sampling with linear rewards (Agrawal and Goyal 2013, arXiv:1209.3352, algorithm 1).

Every arm's reward is a linear function of features, learnt by Bayesian regression. Exploring draws weights from their
distribution for every row and takes the arm that is best by them.

Rows: fragments [T, B] of the newest policy. Each is used once. Only a row's own reward is learnt; later rewards and the
values of next states are not used.
Recorded: nothing.
Options: scale multiplies the deviations (the paper's v). noise=fixed takes a variance of 1 for the noise, as RLlib
does. noise=learnt draws the variance as well (Riquelme et al. 2018, arXiv:1802.09127, section 4.1). Its prior has
noise_shape and noise_scale, which are 6 in that paper, where ridge is 0.25 and there is an intercept. initial_pulls is
how often each arm is taken first. items, products, ridge and intercept are as in lin_ucb.py.
Differs from the paper: all rows of a batch are added at once. Every environment's row has its own draw.
Refused: model.observation_filter, whose moments change what features mean while they are added up.
Metrics: learn/error: mean |reward - mean reward predicted|; pulls: rows learnt from so far; noise_deviation: root of
the mean variance of noise, where it is learnt. sample/regret, where the environment knows it (envs/bandits.py).
Checked: tests/ops/test_ridge.py, tests/algos/test_bandits.py (the covariance of draws, exactly 10.0 on RLlib's simple
bandit), tuned/lin_ts/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.ranges import NotNegative, Positive
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.bandits import EXPLORING, BanditConfig, Regression, pulls_of
from rlrun.models.model import Model
from rlrun.ops.ridge import noise_of
from rlrun.policies.bandits import BanditPolicy

LEARNT = OnlyWith("noise", "learnt")


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(BanditConfig):
    """Options of Thompson sampling, which neural_linear has too."""

    scale: Annotated[float, NotNegative, *EXPLORING]
    noise: Literal["fixed", "learnt"]
    noise_shape: Annotated[float, Positive, LEARNT]
    noise_scale: Annotated[float, Positive, LEARNT]
    initial_pulls: Annotated[int, NotNegative, *EXPLORING]


@dataclass(frozen=True, kw_only=True)
class Config(SamplingConfig):
    products: Annotated[bool, OnlyWith("items")]


class LinTS(Algorithm):
    cfg: Config
    policy: BanditPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return cfg.needs

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> BanditPolicy:
        return sampling_policy(spec, model, cfg, products=cfg.products)

    def __init__(self, policy: BanditPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.regression = Regression(len(policy.mean), policy.features.size, cfg.ridge).to(ctx.device)

    @torch.no_grad()
    def update(self, batch: Batch, clock: Clock) -> Update:
        pulls = pulls_of(self.policy, batch, self.cfg.click)
        predicted = (pulls.x * self.policy.mean[pulls.arm]).sum(-1)
        shares = {"error": self.mean((pulls.y - predicted).abs(), pulls.valid)}
        self.regression.add([self.total(part) for part in self.regression.of(pulls)])
        return Update(self.report(shares, publish(self.policy, self.regression, self.cfg)))


def sampling_policy(spec: EnvSpec, model: Model, cfg: SamplingConfig, **more: Any) -> BanditPolicy:
    """A policy of Thompson sampling by these options."""
    made = BanditPolicy(
        spec,
        model,
        cfg.explorer(spec),
        cfg.items,
        cfg.click,
        more.get("products", False),
        cfg.intercept,
        cfg.ridge,
        "sample",
        cfg.scale,
        cfg.initial_pulls,
        more.get("net"),
    )
    made.samples_noise = cfg.noise == "learnt"
    made.noise[0], made.noise[1] = cfg.noise_shape, cfg.noise_scale
    return made


@torch.no_grad()
def publish(policy: BanditPolicy, regression: Regression, cfg: SamplingConfig) -> dict[str, Tensor]:
    """Gives the policy the distribution of weights after all rows. Returns metrics."""
    theta, root = regression.solve()
    policy.mean.copy_(theta)
    policy.root.copy_(root)
    policy.count.copy_(regression.count)
    told = {"pulls": regression.count.sum()}
    if cfg.noise == "learnt":
        shape, scale = noise_of(
            regression.squares, theta, regression.moment, regression.count, cfg.noise_shape, cfg.noise_scale
        )
        policy.noise[0].copy_(shape)
        policy.noise[1].copy_(scale)
        told["noise_deviation"] = (scale / (shape - 1.0).clamp(min=0.5)).mean().sqrt()
    return told
