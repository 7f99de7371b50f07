"""A policy that chooses slates by a model of the user's choice and by the values of single documents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.conditions import OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Pass, Policy
from rlrun.core.ranges import Count, Positive, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.models.encoders import LAYERS, NetConfig
from rlrun.models.model import Model
from rlrun.models.normalizer import FiltersObservations
from rlrun.models.slates import AffinityNet, PairNet, display_of
from rlrun.ops.slates import SlateRule, best_slate, drawn_log_prob, drawn_slate, slate_value
from rlrun.policies.exploration import EXPLORING, ExplorationConfig, Explorer, softened

Choice = Literal["network", "affinity"]
NETWORK = OnlyWith("..choice", "network")
LEAST = 1e-30  # weight of a candidate, relative to the most attractive one


@dataclass(frozen=True, kw_only=True)
class ChoiceNetConfig(NetConfig):
    """Options of the network that is a model of choices."""

    hidden: Annotated[tuple[Annotated[int, Count], ...], NETWORK]
    activation: Annotated[Literal["tanh", "relu", "elu", "silu"], NETWORK, LAYERS]
    layer_norm: Annotated[bool, NETWORK, LAYERS]


@dataclass(frozen=True, kw_only=True)
class SlateExplorationConfig(ExplorationConfig):
    """How a policy of slates explores; eval_epsilon is the epsilon of greedy acting."""

    KINDS: ClassVar[tuple[str, ...]] = ("epsilon_greedy", "soft_q", "random")
    epsilon: Annotated[Schedule, Share, EXPLORING, OnlyWith("kind", "epsilon_greedy", "soft_q")]
    eval_epsilon: Annotated[float, Share]
    temperature: Annotated[float, Positive, EXPLORING, OnlyWith("kind", "soft_q")]


class Pairs(NamedTuple):
    """What a policy says of candidates and of choosing none of them."""

    weight: Tensor  # how attractive each candidate is [..., C], the largest weight being 1
    nothing: Tensor  # the same of choosing nothing [...]
    value: Tensor  # what is expected to follow if it is chosen [..., C]
    null: Tensor  # what is expected to follow if nothing is chosen [...]; 0 where that is not learnt
    places: Tensor  # factors of places [S]

    def row(self, number: int) -> Pairs:
        """What is said of one row."""
        weight, nothing, value, null = (part[number] for part in (self.weight, self.nothing, self.value, self.null))
        return Pairs(weight, nothing, value, null, self.places)

    def worth(self, slate: Tensor) -> Tensor:
        """The values [...] of slates [..., S]."""
        return slate_value(self.weight, self.nothing, self.value, self.null, slate, self.places)

    def best(self, rule: SlateRule) -> Tensor:
        """Slates [..., S] by a rule of ops/slates.py."""
        return best_slate(self.weight, self.nothing, self.value, self.null, self.places, rule)

    def gains(self, slate: Tensor) -> Tensor:
        """How fast the value of a slate rises [..., C] as each candidate is given a further place in it: the derivative
        of slate_value by the factor of that place, at 0."""
        v = self.weight * (self.value - self.worth(slate).unsqueeze(-1))
        return v / (self.nothing + (self.weight.gather(-1, slate) * self.places).sum(-1)).unsqueeze(-1)


class SlatePolicy(FiltersObservations, Policy):
    """Takes the best slate, or a random one of different documents with probability epsilon, or draws documents by how
    fast they raise the slate's value (soft Q)."""

    def __init__(
        self,
        spec: EnvSpec,
        model: Model,
        explorer: Explorer,
        parts: tuple[str, str],
        q: NetConfig,
        choice: Choice,
        choice_net: NetConfig,
        place_factors: bool,
        null_value: bool,
        rule: SlateRule,
    ):
        """parts: the names of the observation parts with the candidates and with the place that was chosen."""
        super().__init__()
        assert isinstance(explorer.cfg, SlateExplorationConfig)
        if model.cfg.memory.kind != "none":
            raise UserError("slateq learns from single rows, without memory: leave out model=lstm, gru and gtrxl")
        self.spec, self.explorer, self.explore = spec, explorer, explorer.cfg
        self.display = display_of(spec, *parts)
        self.rule: SlateRule = rule
        self.null_value = null_value
        self.filter = model.filter(spec)
        self.q_net = PairNet(self.display, model, q)
        self.choice_net: nn.Module = (
            AffinityNet(self.display) if choice == "affinity" else PairNet(self.display, model, choice_net)
        )
        # Logarithms of the factors of places, of which the first one is 1.
        self.place_logits = nn.Parameter(torch.zeros(self.display.size - 1)) if place_factors else None

    def core_spec(self) -> RowSpec:
        return {}

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        known: RowSpec = {"log_prob": Field((), torch.float32)}
        return {name: known[name] for name in names}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        return Batch(self.explorer.initial_state(columns, place, device))

    def log_places(self) -> Tensor:
        """Logarithms of the factors of places [S]."""
        first = torch.zeros(1, device=next(self.parameters()).device)
        if self.place_logits is None:
            return first.expand(self.display.size)
        return torch.cat([first, self.place_logits])

    def choice_logits(self, rows: Batch, slate: Tensor) -> Tensor:
        """Logits [T, B, S + 1] of what a user does with slates [T, B, S]; the last one is of choosing nothing.

        rows: obs and is_first [T, B, ...]."""
        logits = self.choice_net(self.seen(rows["obs"]), rows["is_first"])
        shown = logits[..., :-1].gather(-1, slate) + self.log_places()
        return torch.cat([shown, logits[..., -1:]], -1)

    def values(self, rows: Batch) -> Tensor:
        """Values [T, B, C + 1] of candidates if they are chosen, and of choosing nothing, by rows as above."""
        return self.q_net(self.seen(rows["obs"]), rows["is_first"])

    def pairs(self, rows: Batch, values: Tensor | None = None) -> Pairs:
        """What the policy says of rows as above. values: those of another network, in place of values(rows)."""
        values = self.values(rows) if values is None else values
        logits = self.choice_net(self.seen(rows["obs"]), rows["is_first"])
        # The bound keeps the chances in a slate defined whose documents are all far less attractive than another one.
        weights = (logits - logits.max(-1, keepdim=True).values).exp().clamp(min=LEAST)
        null = values[..., -1] if self.null_value else torch.zeros_like(values[..., -1])
        return Pairs(weights[..., :-1], weights[..., -1], values[..., :-1], null, self.log_places().exp())

    def explored(self, clock: Clock) -> dict[str, float]:
        """Returns the schedule's epsilon as a metric."""
        return self.explorer.measured("epsilon", lambda: self.explore.epsilon(clock))

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
        asked, mode = mode, self.explorer.mode(mode)
        pairs = self.pairs(Batch(obs=obs.map(lambda x: x.unsqueeze(0)), is_first=is_first.unsqueeze(0)))
        pairs = pairs.row(0)
        best = pairs.best(self.rule)
        who = self.explorer.stand_in(mode, clock)
        if who is not None and who is not self.explorer.uniform:
            action, log_prob, changed = self.explorer.choose(who, pairs.gains(best), obs, is_first, state, clock, rng)
            unknown = torch.full(is_first.shape, math.nan, device=is_first.device) if log_prob is None else log_prob
            return Act(action, Batch(dict(state.items()) | changed), Batch(dict.fromkeys(record, unknown)))
        none = torch.zeros_like(pairs.weight)
        if mode == "explore" and self.explore.kind == "soft_q":
            best = drawn_slate(softened(pairs.gains(best), self.explore.temperature), self.display.size, rng)
        epsilon = 1.0 if who is not None else self._epsilon(asked, clock)
        explores = torch.rand(is_first.shape, generator=rng, device=is_first.device) < epsilon
        action = torch.where(explores.unsqueeze(-1), drawn_slate(none, self.display.size, rng), best)
        told = {}
        if "log_prob" in record:
            told["log_prob"] = self._log_prob(pairs, action, mode, epsilon)
        return Act(action, state, Batch(told))

    def _epsilon(self, asked: Mode, clock: Clock) -> float:
        """Returns the probability of a random slate."""
        if self.explorer.mode(asked) == "explore":
            return self.explore.epsilon(clock)
        return self.explore.eval_epsilon if asked == "greedy" else 0.0  # training without exploration has none

    def _log_prob(self, pairs: Pairs, action: Tensor, mode: Mode, epsilon: float) -> Tensor:
        best = pairs.best(self.rule)
        uniform = drawn_log_prob(torch.zeros_like(pairs.weight), action)
        if mode == "explore" and self.explore.kind == "soft_q":
            own = drawn_log_prob(softened(pairs.gains(best), self.explore.temperature), action).exp()
        else:
            own = (action == best).all(-1).float()
        return (epsilon * uniform.exp() + (1.0 - epsilon) * own).log()

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        action: Tensor = batch["action"]  # type: ignore[assignment]
        asked, mode, count = mode, self.explorer.mode(mode), len(batch["action"])
        obs, is_first = batch["obs"][:count], batch["is_first"][:count]
        pairs = self.pairs(Batch(obs=obs, is_first=is_first))
        who = self.explorer.stand_in(mode, clock)
        if who is not None and who is not self.explorer.uniform:
            return self.explorer.log_prob(who, pairs.gains(pairs.best(self.rule)), obs, action, clock)
        return self._log_prob(pairs, action, mode, 1.0 if who is not None else self._epsilon(asked, clock))

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        rows = Batch(obs=obs.map(lambda x: x.unsqueeze(0)), is_first=is_first.unsqueeze(0))
        return self.pairs(rows).best(self.rule)[0], state

    def recordable(self, what: Pass) -> bool:
        return what == "learning" or self.explorer.recordable
