"""LinUCB: upper confidence bounds of linear rewards (Li et al. 2010, arXiv:1003.0146, algorithm 1).

Every arm's reward is a linear function of features, learnt by ridge regression. Exploring takes the arm with the
largest x' theta + alpha sqrt(x' A^-1 x).

Rows: fragments [T, B] of the newest policy. Each is used once. Only a row's own reward is learnt; later rewards and the
values of next states are not used.
Recorded: nothing.
Options: items, the observation part that describes the arms, which then share their weights (RLlib's parametric models;
the paper's algorithm 2, which has both kinds of weights, is not here); products, the products of an item's numbers with
those of the user; alpha; ridge, the lambda of the regression; intercept, one more feature that is always 1. For a slate
of items, each place is a row: the item that was chosen is paid the reward, and the others 0.
Differs from the paper: all rows of a batch are added at once. RLlib multiplies the covariance by its alpha before it
takes the root, so that its alpha is the square of this one, and multiplies the bound by 0.3 where items describe the
arms; it has no intercept.
Refused: model.observation_filter, whose moments change what features mean while they are added up.
Metrics: learn/error: mean |reward - mean reward predicted|; bound: mean of sqrt(x' A^-1 x) of the arms taken; pulls:
rows learnt from so far. sample/regret, where the environment knows it (envs/bandits.py).
Checked: tests/ops/test_ridge.py, tests/algos/test_bandits.py (the regression in closed form, exactly 10.0 on RLlib's
simple bandit), tuned/lin_ucb/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.conditions import OnlyWith
from rlrun.core.ranges import NotNegative
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.bandits import EXPLORING, BanditConfig, Regression, pulls_of
from rlrun.models.model import Model
from rlrun.policies.bandits import BanditPolicy


@dataclass(frozen=True, kw_only=True)
class Config(BanditConfig):
    products: Annotated[bool, OnlyWith("items")]
    alpha: Annotated[float, NotNegative, *EXPLORING]


class LinUCB(Algorithm):
    cfg: Config
    policy: BanditPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return cfg.needs

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> BanditPolicy:
        return BanditPolicy(
            spec,
            model,
            cfg.explorer(spec),
            cfg.items,
            cfg.click,
            cfg.products,
            cfg.intercept,
            cfg.ridge,
            "bound",
            cfg.alpha,
        )

    def __init__(self, policy: BanditPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.regression = Regression(len(policy.mean), policy.features.size, cfg.ridge).to(ctx.device)

    @torch.no_grad()
    def update(self, batch: Batch, clock: Clock) -> Update:
        policy, pulls = self.policy, pulls_of(self.policy, batch, self.cfg.click)
        valid = pulls.valid
        predicted = (pulls.x * policy.mean[pulls.arm]).sum(-1)
        bound = torch.einsum("ni,nij->nj", pulls.x, policy.root[pulls.arm]).norm(dim=-1)
        mean = self.mean_over(valid)
        shares = {"error": mean((pulls.y - predicted).abs()), "bound": mean(bound)}
        self.regression.add([self.total(part) for part in self.regression.of(pulls)])
        theta, root = self.regression.solve()
        policy.mean.copy_(theta)
        policy.root.copy_(root)
        policy.count.copy_(self.regression.count)
        return Update(self.report(shares, {"pulls": self.regression.count.sum()}))
