"""Fitted Q evaluation (Le, Voloshin and Yue 2019, arXiv:1903.08738, algorithm 3): the action values of a given policy,
from rows that another one played.

Q_{k+1} is fitted to r + discount * sum_a' pi(a'|s') Q_k(s', a'), with nothing behind a terminated row. Behind a
truncated one it goes on: the values are those of episodes that no time limit cuts.

FittedQ is a network, and linear_fitted_q() is the same with linear features, of which tables are one kind. The network
differs from the paper: it makes one gradient step towards targets of a target network that follows it slowly, in place
of a whole fit of each Q_k. It begins (Q_0) with a fit to the returns that were played."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.core.follower import Follower
from rlrun.core.optimizer import Optimizer, OptimizerConfig
from rlrun.core.ranges import Count, Positive, PositiveShare
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, Discrete, EnvSpec, leaves
from rlrun.models.config import MemoryConfig
from rlrun.models.encoders import flat_size, flatten, mlp
from rlrun.models.model import Model
from rlrun.models.normalizer import ObservationFilters

CLIP = 10.0  # bound of normalised observations
FIRST = 5  # the first 1 / FIRST of the updates fit Q_0
ADAM = OptimizerConfig(
    kind="adam",
    epsilon=1e-8,
    decay=0.99,
    momentum=0.0,
    centered=False,
    beta1=0.9,
    beta2=0.999,
    weight_decay=0.0,
    max_grad_value=0.0,
    agc=0.0,
    warmup_updates=0,
)


@dataclass(frozen=True, kw_only=True)
class FittedQConfig:
    """How a network is fitted."""

    updates: Annotated[int, Count]
    batch_size: Annotated[int, Count]  # rows
    lr: Annotated[float, Positive]  # falls to a hundredth of it by a cosine
    hidden: tuple[Annotated[int, Count], ...]  # layers behind the encoder
    target_tau: Annotated[float, PositiveShare]  # share by which the target network follows at every update
    clip: bool  # whether targets are clipped to the range of possible returns


class PlayedRows(NamedTuple):
    """Rows of episodes one behind the other; each episode's last row holds its last observation and nothing else.

    M rows, of which N are steps."""

    obs: Batch  # leaves [M, ...]
    action: Tensor | Batch  # leaves [M, ...]; what stands in last rows is not read
    reward: Tensor  # [M]; not read in last rows
    terminated: Tensor  # [M] bool
    step: Tensor  # [N] numbers of the rows that are steps; the next observation of row m is that of row m + 1
    # What the policy does in every row: the probabilities [M, A] of all choices, or K actions that it draws, leaves
    # [M, K, ...]. Where an episode has terminated, they are not read.
    policy: Tensor | Batch


def linear_fitted_q(
    features: Tensor, reward: Tensor, next_features: Tensor, discount: float, *, tolerance: float = 1e-13
) -> Tensor:
    """Returns the weights w [K] to which fitted Q evaluation with Q(s, a) = f(s, a) w converges, where every fit is by
    least squares, and the shortest of several solutions. With one feature for each pair of state and action (a table),
    every fit is the mean of the targets of that pair.

    Raises ValueError if it does not converge.

    Args: features [N, K] f(s, a); reward [N]; next_features [N, K] sum_a' pi(a'|s') f(s', a'), 0 where terminated."""
    fit = torch.linalg.pinv(features.double())  # [K, N]
    constant, factor = fit @ reward.double(), discount * (fit @ next_features.double())
    weights = constant
    for _ in range(100_000):
        new = constant + factor @ weights
        if not torch.isfinite(new).all():
            break
        if (new - weights).abs().max() <= tolerance * (1 + new.abs().max()):
            return new
        weights = new
    raise ValueError("fitted Q evaluation does not converge with these features")


def return_range(reward: Tensor, discount: float) -> tuple[float, float]:
    """The smallest and the largest discounted sum of rewards between the smallest and the largest of reward [N], over
    any number of steps; infinite without a discount."""

    def forever(value: float) -> float:
        return 0.0 if value == 0 else value / (1 - discount) if discount < 1 else math.copysign(math.inf, value)

    return forever(min(0.0, float(reward.min()))), forever(max(0.0, float(reward.max())))


def returns_to_go(rows: PlayedRows, discount: float) -> Tensor:
    """Returns the discounted sum of the rewards from each row to its episode's last row [M]; 0 in last rows."""
    made, step = torch.zeros(len(rows.reward), dtype=torch.float64), torch.zeros(len(rows.reward), dtype=torch.bool)
    step[rows.step] = True
    total = 0.0
    values = []
    for reward, inside in zip(reversed(rows.reward.double().tolist()), reversed(step.tolist()), strict=True):
        total = reward + discount * total if inside else 0.0
        values.append(total)
    made[:] = torch.tensor(values[::-1], dtype=torch.float64)
    return made


class QNet(nn.Module):
    """Maps observations, and actions that are no single choice, to values whose mean and deviation are about 0 and 1.

    The encoder is that of a run's model, without its hidden layers and without memory. Numbers are normalised by their
    moments in the rows."""

    def __init__(self, spec: EnvSpec, model: Model, hidden: tuple[int, ...], rows: PlayedRows, rng: torch.Generator):
        super().__init__()
        self.space = spec.action
        cfg: Any = replace(model.cfg, memory=MemoryConfig(kind="none"), hidden=())
        if model.action_embedding is not None:
            cfg = replace(cfg, action_embedding=None)
        parts = [(path, part) for path, part in leaves(spec.observation) if isinstance(part, Box) and not part.image]
        self.filter = ObservationFilters(parts, CLIP) if parts else None
        if self.filter is not None:
            live = torch.ones(1, len(rows.step), dtype=torch.bool)
            seen = rows.obs["observation"]
            picked = seen.map(lambda x: x[rows.step].unsqueeze(0)) if isinstance(seen, Batch) else seen[rows.step][None]
            for one, moments in zip(self.filter.filters, self.filter.moments(picked, live), strict=True):
                one.merge(moments)  # type: ignore[operator]
        self.trunk = Model(cfg, model.precision).trunk(spec)
        told = 0 if isinstance(self.space, Discrete) else flat_size(self.space)
        self.hidden = mlp((self.trunk.features + told, *hidden), "relu")
        width = hidden[-1] if hidden else self.trunk.features + told
        self.last = nn.Linear(width, self.space.n if isinstance(self.space, Discrete) else 1)
        redraw(self, rng)

    def features(self, obs: Batch) -> Tensor:
        """[N, F] of obs [N, ...]."""
        seen = obs["observation"] if self.filter is None else self.filter(obs["observation"])
        return self.trunk.encoder(seen)

    def values(self, obs: Batch) -> Tensor:
        """[N, A] of obs [N, ...], where an action is one choice."""
        return self.last(self.hidden(self.features(obs)))

    def taken(self, obs: Batch, action: Tensor | Batch) -> Tensor:
        """[N] of obs and action [N, ...]."""
        if isinstance(self.space, Discrete):
            return self.values(obs).gather(1, action.unsqueeze(1)).squeeze(1)  # type: ignore[union-attr]
        return self.last(self.hidden(torch.cat([self.features(obs), flatten(self.space, action)], -1))).squeeze(-1)

    def expected(self, obs: Batch, policy: Tensor | Batch) -> Tensor:
        """sum_a pi(a|s) Q(s, a) [N], or the mean over K actions of the policy, of obs [N, ...] and
        PlayedRows.policy."""
        if isinstance(self.space, Discrete):
            return (self.values(obs) * policy).sum(-1)  # type: ignore[operator]
        features = self.features(obs)
        flat = policy.map(lambda x: x.flatten(0, 1)) if isinstance(policy, Batch) else policy.flatten(0, 1)
        told = flatten(self.space, flat).unflatten(0, (len(features), -1))  # [N, K, D]
        features = features.unsqueeze(1).expand(-1, told.shape[1], -1)
        return self.last(self.hidden(torch.cat([features, told], -1))).squeeze(-1).mean(1)


def redraw(net: nn.Module, rng: torch.Generator) -> None:
    """Draws PyTorch's default weights of linear and convolutional layers again, from this generator."""
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                bound = 1 / math.sqrt(layer.weight[0].numel())
                layer.weight.uniform_(-bound, bound, generator=rng)
                if layer.bias is not None:
                    layer.bias.uniform_(-bound, bound, generator=rng)


class FittedQ:
    """A network that was fitted to rows."""

    def __init__(
        self,
        spec: EnvSpec,
        model: Model,
        cfg: FittedQConfig,
        rows: PlayedRows,
        discount: float,
        rng: torch.Generator,
        told: Callable[[int], None] = lambda update: None,
    ):
        """model: whose encoder the network has. told is called after every update with its number, from 1."""
        played = returns_to_go(rows, discount)[rows.step].float()
        self.mean, self.scale = float(played.mean()), max(float(played.std(correction=0)), 1e-6)
        net = QNet(spec, model, cfg.hidden, rows, rng)
        self.target = copy.deepcopy(net).requires_grad_(False)
        following = Follower(self.target, net)
        optimizer = Optimizer(
            net.parameters(), ADAM, Schedule(((0.0, cfg.lr), (float(cfg.updates), cfg.lr / 100)), "cosine"), 0.0
        )
        low, high = return_range(rows.reward[rows.step], discount) if cfg.clip else (-math.inf, math.inf)
        first = cfg.updates // FIRST
        for update in range(cfg.updates):
            pick = torch.randint(len(rows.step), (cfg.batch_size,), generator=rng)
            step = rows.step[pick]
            if update < first:
                target = played[pick]
            else:
                if update == first:
                    following.move(1.0)
                target = rows.reward[step]
                target = target + discount * self.value(rows, step + 1).masked_fill(rows.terminated[step], 0.0)
            target = (target.clamp(low, high) - self.mean) / self.scale
            error = net.taken(rows.obs.map(lambda x, step=step: x[step]), _rows(rows.action, step)) - target  # type: ignore[misc]
            optimizer.step(error.square().mean(), Clock(update, update))
            if update >= first:
                following.move(cfg.target_tau)
            told(update + 1)

    @torch.no_grad()
    def value(self, rows: PlayedRows, index: Tensor) -> Tensor:
        """V(s) = sum_a pi(a|s) Q(s, a) [N] of these rows [N]."""
        made = self.target.expected(rows.obs.map(lambda x: x[index]), _rows(rows.policy, index))
        return made * self.scale + self.mean

    @torch.no_grad()
    def q(self, rows: PlayedRows, index: Tensor) -> Tensor:
        """Q(s, a) [N] of these rows [N] with their own actions."""
        made = self.target.taken(rows.obs.map(lambda x: x[index]), _rows(rows.action, index))
        return made * self.scale + self.mean


def _rows(tree: Tensor | Batch, index: Tensor) -> Any:
    return tree.map(lambda x: x[index]) if isinstance(tree, Batch) else tree[index]
