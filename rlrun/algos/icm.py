"""ICM: curiosity (Pathak et al. 2017, arXiv:1705.05363) around another algorithm that learns the policy of one agent
from its rewards, for example algo=icm algo@algo.inner=ppo. docs/exploration.md says which algorithms can be inside.

Rows: those of the inner algorithm (algo.inner), which learns from the sum of the environment's and an intrinsic
reward.
Recorded: what the inner algorithm records.
There are three networks: features phi(s); an inverse model, which maps phi(s_t) and phi(s_t+1) to a distribution over
a_t (eq. 3); a forward model, which maps phi(s_t) and a_t to phi(s_t+1) (eq. 4). The intrinsic reward is eta / 2 times
the squared error of the forward model (eq. 6), computed before the networks learn from the batch. Their loss, in which
both terms train the features, is (1 - beta) inverse loss + beta forward loss (eq. 7).
Differs from the paper: continuous actions have a Gaussian inverse model. The inner algorithm's reward_clip bounds the
environment's rewards only, and its normalize_reward must be false, because it would scale the sum. The policy has its
own networks, and its loss does not reach the features (the paper trains all with one loss, also with separate
networks). Around an algorithm with a replay, the reward of a row is computed anew whenever the row is drawn, so it
measures how surprising the row still is to the current networks.
Reported returns are those of the environment alone. learn/intrinsic_reward is the mean per row: where it outweighs the
environment's rewards, the policy seeks surprises instead (on CartPole, the end of the episode). If so, lower eta or
let it fall by a schedule.
Metrics: those of the inner algorithm; learn/intrinsic_reward per row; forward_loss, inverse_loss; icm_grad_norm,
icm_lr and icm_skipped_updates, which mean the same as those of the inner algorithm.
Checked: tests/algos/test_icm.py (rewards and losses by hand), tuned/icm/ (12x12 FrozenLake, which PPO alone does not
learn).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rlrun.algos.mbmpo import IMAGINES, MBMPO
from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.conditions import REWARDING_LAYERS, OnlyFor
from rlrun.core.metrics import Means
from rlrun.core.moments import Moments
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.policy import Policy
from rlrun.core.ranges import Count, NotNegative, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec, executed
from rlrun.families.intrinsic import (
    check_inner,
    check_minibatches,
    column_parts,
    flat_rows,
    make_inner,
    needs_around,
)
from rlrun.models.encoders import flat_size, flatten, mlp
from rlrun.models.heads import action_head
from rlrun.models.model import Model, encoder
from rlrun.ops.transforms import clip_reward


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    inner: Any  # Inner
    eta: Annotated[Schedule, NotNegative]
    beta: Annotated[float, Share]
    feature_size: Annotated[int, Count]
    feature_hidden: tuple[Annotated[int, Count], ...]
    inverse_hidden: tuple[Annotated[int, Count], ...]
    forward_hidden: tuple[Annotated[int, Count], ...]
    activation: Annotated[Literal["tanh", "relu", "elu", "silu"], OnlyFor(REWARDING_LAYERS)]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    num_minibatches: Annotated[int, Count]

    def __post_init__(self):
        check_inner(self.name, self.inner)


class ICM(Algorithm):
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
        self.inner = make_inner(cfg.inner, policy, spec, ctx, "eta")
        check_minibatches(cfg.num_minibatches, self.share(self.needs(cfg).columns))
        self.model = ForwardInverse(spec, cfg).to(ctx.device)
        self.optimizer = ctx.optimizer(self.model.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, valid = self.cfg, batch.valid
        with torch.no_grad():
            surprise, _ = self.model(batch)
        intrinsic = (cfg.eta(clock) * surprise).masked_fill(~valid, 0.0)  # [T, B], eq. 6
        before = {"intrinsic_reward": self.total(self.mean(intrinsic, valid))}
        shares, steps = Means(), Means()
        for part in column_parts(batch, cfg.num_minibatches, self.ctx.rng):
            loss, metrics = self.loss(part)
            steps.add({f"icm_{name}": value for name, value in self.optimizer.step(loss, clock).items()})
            shares.add(metrics)
        extrinsic = clip_reward(batch.reward, cfg.inner.cfg.reward_clip)
        update = self.inner.update(batch.replace(reward=extrinsic + intrinsic), clock)
        return Update({**update.metrics, **before, **self.report(shares.tensors(), steps.tensors())}, update.writes)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns this learner's share of the loss [] and of its metrics on a batch [T(+1), B].

        The loss is eq. 7 without the policy's part."""
        forward, inverse = self.model(batch)
        mean = self.mean_over(batch.valid)
        forward_loss, inverse_loss = mean(forward), mean(inverse)
        loss = (1 - self.cfg.beta) * inverse_loss + self.cfg.beta * forward_loss
        return loss, {"forward_loss": forward_loss.detach(), "inverse_loss": inverse_loss.detach()}

    def absorb_returns(self, moments: list[Moments | None]) -> None:  # type: ignore[override]
        self.inner.absorb_returns(moments)


class ForwardInverse(nn.Module):
    """Holds the three networks: features, forward model and inverse model."""

    def __init__(self, spec: EnvSpec, cfg: Config):
        super().__init__()
        self.space = spec.action
        seen, size = encoder(spec, "auto", cfg.feature_hidden, cfg.activation), cfg.feature_size
        self.features = nn.Sequential(seen, nn.Linear(seen.features, size))  # type: ignore[arg-type]
        self.forward_net = nn.Sequential(mlp((size + flat_size(spec.action), *cfg.forward_hidden), cfg.activation))
        self.forward_net.append(
            nn.Linear(cfg.forward_hidden[-1] if cfg.forward_hidden else size + flat_size(spec.action), size)
        )
        self.inverse_net = mlp((2 * size, *cfg.inverse_hidden), cfg.activation)
        self.inverse_head = action_head(
            spec.action, cfg.inverse_hidden[-1] if cfg.inverse_hidden else 2 * size, _linear, "gaussian", 0.0
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the forward loss [T, B] and the inverse loss [T, B] of a batch [T(+1), B].

        They are half the squared error of phi(s_t+1) and -log p(a_t). The losses of dead rows have no meaning.

        The forward model is given the actions that were executed, because only these move the environment. The inverse
        model predicts those that were drawn: many executed ones lie on a bound exactly, where a distribution of them
        has no density, and a Gaussian that was fitted to them could become ever narrower."""
        rows, columns = batch.reward.shape
        phi = self.features(flat_rows(batch.obs["observation"])).unflatten(0, (rows + 1, columns))  # [T+1, B, F]
        chosen = flatten(self.space, flat_rows(executed(self.space, batch.action))).unflatten(0, (rows, columns))
        predicted = self.forward_net(torch.cat([phi[:-1], chosen], -1))
        forward = 0.5 * (predicted - phi[1:]).square().sum(-1)
        inverse = self.inverse_head(self.inverse_net(torch.cat([phi[:-1], phi[1:]], -1)), None)
        return forward, -inverse.log_prob(batch.action)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    return nn.Linear(inputs, outputs)
