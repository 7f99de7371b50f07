"""A policy that rates arms by linear functions of features, and knows how uncertain it is of their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import UserError, closest
from rlrun.core.policy import Act, Mode, Pass, Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiDiscrete, Nested
from rlrun.models.encoders import NetConfig, mlp
from rlrun.models.model import Model
from rlrun.models.normalizer import FiltersObservations
from rlrun.ops.ridge import deviation
from rlrun.ops.slates import drawn_log_prob, drawn_slate, ranked
from rlrun.policies.exploration import ExplorationConfig, Explorer


@dataclass(frozen=True, kw_only=True)
class BanditExplorationConfig(ExplorationConfig):
    """How a bandit explores: by its own uncertainty, uniformly at random, or as a class says."""

    KINDS: ClassVar[tuple[str, ...]] = ("uncertainty", "random")


@dataclass(frozen=True)
class Arms:
    """What of an environment its arms are."""

    count: int  # arms of which one is taken, or those of which a slate is made
    places: int | None  # places of a slate; None: one arm is taken
    items: str | None  # name of the observation part [A, E] that describes the arms; None: every arm has own weights
    features: int  # E
    rest: EnvSpec | None  # the environment without the parts `items` and `click`; None if nothing else is observed


def arms_of(spec: EnvSpec, items: str | None, click: str) -> Arms:
    """Raises UserError where an environment's actions or observations do not fit."""
    action, name, space = spec.action, spec.name, spec.observation
    if isinstance(action, MultiDiscrete):
        if len(set(action.sizes)) != 1 or len(action.shape) != 1:
            raise UserError(f"a bandit takes one arm, or a slate with the same choices in each place, not {action}")
        if items is None:
            raise UserError(
                f"{name} takes slates, for which a bandit needs algo.items and algo.click, the names of the parts of"
                " observations with the items and with the place that was chosen last"
            )
        if len(action.sizes) > action.sizes[0]:
            raise UserError(
                f"{name} asks for slates of {len(action.sizes)} items, and there are only {action.sizes[0]} candidates"
            )
        if "action_mask" in spec.obs:
            raise UserError(f"{name} masks its actions, and slates are made of all candidates that are shown")
        count, places = action.sizes[0], len(action.sizes)
    else:
        assert isinstance(action, Discrete)
        count, places = action.n, None
    if items is None:
        return Arms(count, places, None, 0, spec)
    parts = space.parts if isinstance(space, Nested) else {}
    for option, part in (("items", items), ("click", click))[: 1 if places is None else 2]:
        if part not in parts:
            raise UserError(
                f"algo.{option}={part}: {name} observes {space}, which has no such part.{closest(part, list(parts))}"
            )
    found = parts[items]
    if not isinstance(found, Box) or len(found.shape) != 2 or found.shape[0] != count:
        raise UserError(f"algo.items={items} must hold a row of numbers for each of the {count} arms, not {found}")
    if places is not None and (not isinstance(parts[click], Discrete) or parts[click].n != places + 1):
        raise UserError(f"algo.click={click} must be Discrete({places + 1}), and it is {parts[click]}")
    assert isinstance(space, Nested)
    rest = tuple((key, value) for key, value in space.spaces if key != items and (places is None or key != click))
    left = replace(spec, obs={**spec.obs, "observation": replace(space, spaces=rest)}) if rest else None
    return Arms(count, places, items, found.shape[1], left)


class Features(nn.Module):
    """The features that an arm's reward is a linear function of.

    Without items they are those of the observation and the same for every arm. With items they are an item's own
    numbers, and with `products` also the products of each of them with each number of the rest of the observation. A
    net, if there is one, reads an item and the rest, or the observation."""

    def __init__(self, arms: Arms, model: Model, products: bool, intercept: bool, net: NetConfig | None):
        super().__init__()
        self.arms, self.products, self.intercept = arms, products, intercept
        if products and (arms.items is None or arms.rest is None):
            raise UserError(
                "algo.products=true multiplies items by the rest of an observation, and there is"
                f" {'no algo.items' if arms.items is None else 'nothing but the items'}"
            )
        self.sees_rest = arms.rest is not None and (arms.items is None or products or net is not None)
        self.trunk: Any = model.trunk(arms.rest) if self.sees_rest else None  # type: ignore[arg-type]
        rest = 0 if self.trunk is None else self.trunk.features
        if arms.items is None:
            size = rest
        elif products:
            size = arms.features * (1 + rest)
        else:
            size = arms.features + (rest if net is not None else 0)
        self.inputs = size  # numbers that the net reads
        self.net: nn.Module | None = None
        if self.trunk is not None and any(True for _ in self.trunk.parameters()):
            own = "" if net is not None else "; algo=neural_linear trains the layers of algo.net"
            raise UserError(
                "a bandit trains no layers of model.*, which would stay random: leave model.hidden empty, and use"
                f" observations that are vectors or choices{own}"
            )
        if net is not None:
            self.net = mlp((size, *net.hidden), net.activation, net.layer_norm)
            size = net.hidden[-1] if net.hidden else size
        self.size = size + intercept

    def forward(self, obs: Batch, is_first: Tensor) -> Tensor:
        """obs [T, B, ...], is_first [T, B] -> [T, B, A, d] with items, or else [T, B, 1, d]."""
        return self.of(self.raw(obs, is_first))

    def raw(self, obs: Batch, is_first: Tensor) -> Tensor:
        """What the net, if there is one, reads [T, B, A or 1, inputs]."""
        arms = self.arms
        observation: Any = obs["observation"]
        rest: Tensor | None = None
        if self.trunk is not None:
            about = obs
            if arms.rest is not None and arms.items is not None:
                space = arms.rest.observation
                assert isinstance(space, Nested)
                about = obs.replace(observation=Batch({name: observation[name] for name in space.parts}))
            rest = self.trunk(about, is_first, Batch())[0].unsqueeze(-2)  # [T, B, 1, F]
        if arms.items is None:
            assert rest is not None
            return rest
        x = observation[arms.items].float()
        if rest is not None and self.products:
            return torch.cat([x, (x.unsqueeze(-1) * rest.unsqueeze(-2)).flatten(-2)], -1)
        return x if rest is None else torch.cat([rest.expand(*x.shape[:-1], -1), x], -1)

    def of(self, raw: Tensor) -> Tensor:
        """Features [..., d] of what the net reads [..., inputs]."""
        x = raw if self.net is None else self.net(raw)
        return nn.functional.pad(x, (0, 1), value=1.0) if self.intercept else x


class BanditPolicy(FiltersObservations, Policy):
    """Takes the arm, or the slate of arms, with the best scores: their mean rewards in greedy acting; in exploring the
    upper ends of their intervals (LinUCB), or rewards by weights that are drawn for every row (Thompson sampling)."""

    def __init__(
        self,
        spec: EnvSpec,
        model: Model,
        explorer: Explorer,
        items: str | None,
        click: str,
        products: bool,
        intercept: bool,
        ridge: float,
        rule: Literal["bound", "sample"],
        scale: float,
        pulls: int = 0,
        net: NetConfig | None = None,
    ):
        """scale: the factor of deviations (LinUCB's alpha). pulls: times that each arm is taken first."""
        super().__init__()
        if model.cfg.memory.kind != "none":
            raise UserError("a bandit's rewards depend on one row; it has no use for a memory (lstm, gru, gtrxl)")
        if model.cfg.observation_filter != "none":
            raise UserError(
                "model.observation_filter changes what a feature means from row to row, and a bandit adds up the"
                " features of all rows; use none"
            )
        self.spec, self.explorer, self.rule, self.scale, self.pulls = spec, explorer, rule, scale, pulls
        self.arms = arms_of(spec, items, click)
        if pulls and self.arms.items is not None:
            raise UserError(
                "algo.initial_pulls is for arms with weights of their own, and algo.items describes arms: set it to 0"
            )
        self.filter = model.filter(spec)
        self.features = Features(self.arms, model, products, intercept, net)
        count, size = 1 if self.arms.items is not None else self.arms.count, self.features.size
        self.mean = nn.Parameter(torch.zeros(count, size), requires_grad=False)
        root = torch.eye(size).expand(count, size, size) / math.sqrt(ridge)
        self.root = nn.Parameter(root.clone(), requires_grad=False)  # root @ root' = A^-1
        self.register_buffer("count", torch.zeros(count))  # rows that every arm has learnt from
        # The inverse gamma distribution of the variance of noise; None: it is 1.
        self.register_buffer("noise", torch.ones(2, count))
        self.samples_noise = False  # whether the variance of noise is drawn too
        self.count: Tensor
        self.noise: Tensor

    def core_spec(self) -> RowSpec:
        return {}

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows log_prob [B]; NaN where weights are drawn, since the chances of arms then have no formula."""
        known: RowSpec = {"log_prob": Field((), torch.float32)}
        return {name: known[name] for name in names}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        return Batch(self.explorer.initial_state(columns, place, self.mean.device))

    def of(self, rows: Batch) -> Tensor:
        """Features [T, B, A or 1, d] of rows with obs and is_first [T, B, ...]."""
        return self.features(self.seen(rows["obs"]), rows["is_first"])

    def means(self, x: Tensor) -> Tensor:
        """Mean rewards [..., A] for features [..., A or 1, d]."""
        return (x * self.mean).sum(-1) if self.arms.items is None else x @ self.mean[0]

    def deviations(self, x: Tensor) -> Tensor:
        """sqrt(x' A^-1 x) [..., A]."""
        if self.arms.items is not None:
            return deviation(x, self.root[0])
        return deviation(x.expand(*x.shape[:-2], self.arms.count, -1), self.root)

    def drawn(self, columns: int, rng: torch.Generator) -> Tensor:
        """Weights [B, K, d] drawn from their distribution, for each column by itself."""
        count, size = self.mean.shape
        normal = torch.randn(columns, count, size, generator=rng, device=self.mean.device)
        spread = torch.einsum("kij,bkj->bki", self.root, normal) * self.scale
        if self.samples_noise:
            shape, scale = (part.expand(columns, -1).contiguous() for part in self.noise)
            variance = scale / torch._standard_gamma(shape, generator=rng)
            spread = spread * variance.sqrt().unsqueeze(-1)
        return self.mean + spread

    def scores(self, x: Tensor, mode: Mode, rng: torch.Generator) -> Tensor:
        """Scores [B, A] of arms with features [B, A or 1, d]."""
        if mode == "greedy":
            return self.means(x)
        if self.rule == "bound":
            score = self.means(x) + self.scale * self.deviations(x)
        else:
            weights = self.drawn(len(x), rng)  # [B, K, d]
            score = (x * weights).sum(-1)
        if self.pulls:
            few = self.count < self.pulls
            # Above every other score, and higher for fewer rows (which subtracted from this would be rounded off).
            score = torch.where(few, torch.finfo(score.dtype).max / (2 + self.count), score)
        return score

    def chosen(self, score: Tensor, obs: Batch) -> Tensor:
        """The best arms [B] or slates [B, S] by scores [B, A]. If a mask makes every arm illegal (at an end), it does
        not count."""
        if self.arms.places is not None:
            return ranked(score, torch.ones(self.arms.places, device=score.device))
        if "action_mask" in obs:
            legal = obs["action_mask"].bool()  # type: ignore[union-attr]
            score = score.masked_fill(~legal & legal.any(-1, keepdim=True), -math.inf)
        return score.argmax(-1)

    def act(
        self,
        obs: Batch,
        is_first: Tensor,
        state: Batch,
        clock: Clock,
        mode: Mode,
        rng: torch.Generator,
        record: tuple[str, ...] = (),
    ) -> Act:
        mode = self.explorer.mode(mode)
        x = self.of(Batch(obs=obs.map(lambda part: part.unsqueeze(0)), is_first=is_first.unsqueeze(0)))[0]
        who, carried = self.explorer.stand_in(mode, clock), dict(state.items())
        unknown = torch.full(is_first.shape, math.nan, device=is_first.device)
        log_prob: Tensor | None = None
        if who is None:
            action = self.chosen(self.scores(x, mode, rng), obs)
            certain = mode == "greedy" or (self.rule == "bound")
            log_prob = torch.zeros_like(unknown) if certain else None
        elif who is self.explorer.uniform and self.arms.places is not None:
            even = torch.zeros_like(self.means(x))
            action = drawn_slate(even, self.arms.places, rng)
            log_prob = drawn_log_prob(even, action) if record else None
        else:
            action, log_prob, changed = self.explorer.choose(who, self.means(x), obs, is_first, state, clock, rng)
            carried |= changed
        return Act(action, Batch(carried), Batch(dict.fromkeys(record, unknown if log_prob is None else log_prob)))

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        action: Tensor = batch["action"]  # type: ignore[assignment]
        mode, count = self.explorer.mode(mode), len(action)
        obs, is_first = batch["obs"][:count], batch["is_first"][:count]
        who = self.explorer.stand_in(mode, clock)
        if who is not None:
            means = self.means(self.of(Batch(obs=obs, is_first=is_first)))
            if who is self.explorer.uniform and self.arms.places is not None:
                return drawn_log_prob(torch.zeros_like(means), action)  # slates of different items, as act() draws them
            return self.explorer.log_prob(who, means, obs, action, clock)
        best = self._certain(obs, is_first, mode)
        same = best == action if self.arms.places is None else (best == action).all(-1)
        return torch.zeros(same.shape, device=same.device).masked_fill(~same, -math.inf)

    def log_probs(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        obs, is_first, mode = batch["obs"], batch["is_first"], self.explorer.mode(mode)
        who = self.explorer.stand_in(mode, clock)
        every = [torch.full(is_first.shape, arm, device=is_first.device) for arm in range(self.arms.count)]
        if who is not None:
            means = self.means(self.of(Batch(obs=obs, is_first=is_first)))
            return torch.stack([self.explorer.log_prob(who, means, obs, arm, clock) for arm in every], -1)
        best = self._certain(obs, is_first, mode)
        taken = torch.stack([best == arm for arm in every], -1)
        return torch.zeros(taken.shape, device=taken.device).masked_fill(~taken, -math.inf)

    def _certain(self, obs: Batch, is_first: Tensor, mode: Mode) -> Tensor:
        """The arms [T, B] or slates [T, B, S] that are taken for certain. Raises UserError where weights are drawn."""
        if mode == "explore" and self.rule == "sample":
            raise UserError(
                "the probabilities of arms cannot be computed where weights are drawn; greedy=true judges greedy"
                " actions instead"
            )
        x = self.of(Batch(obs=obs, is_first=is_first)).flatten(0, 1)
        score = self.scores(x, mode, torch.Generator(x.device))  # from which nothing is drawn
        return self.chosen(score, obs.map(lambda part: part.flatten(0, 1))).unflatten(0, is_first.shape)

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        x = self.of(Batch(obs=obs.map(lambda part: part.unsqueeze(0)), is_first=is_first.unsqueeze(0)))[0]
        return self.chosen(self.means(x), obs), state

    def recordable(self, what: Pass) -> bool:
        """Returns false: gamma variables and sums over arms are no fixed kernels."""
        return False
