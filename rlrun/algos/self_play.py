"""Self-play: one policy learns by playing against snapshots of its past selves (fictitious self-play: Heinrich et al.
2015; pools of past selves as in Bansal et al. 2018, arXiv:1710.03748, and Unity ML-Agents).

The algorithm inside learns from the rows in which the newest weights acted. An episode is against one snapshot, or
against the newest weights themselves, from its beginning to its end. If it outlasts its snapshot, because
snapshot_every is short or the window small, the oldest snapshot that is still kept plays on and is rated by the result.
An episode is won where the return of the learning agent is above 0, drawn where it is 0, and lost where it is below.

Rows: those of the algorithm inside. Rows of snapshots are dead in its update.
Recorded: what the algorithm inside records, and mine, against, score and game (policies/league.py).
Metrics: those of the algorithm inside. learn/elo is the rating of the newest weights (Elo 1978; the episodes of an
update are rated in small groups, each with the same share of every result). learn/win_rate and draw_rate are about the
episodes of this update against snapshots, and learn/games is their number. learn/snapshots is the number of snapshots
taken so far, and learn/elo_of_oldest is the rating of the oldest one kept. Like all metrics, logged values are means
over updates. Where a runner uses rows again, an episode counts only at its first use.
Checked: tests/algos/test_self_play.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.moments import Moments
from rlrun.core.ranges import Count, NotNegative, Positive, Share
from rlrun.core.schedule import Clock
from rlrun.core.specs import Agents, EnvSpec
from rlrun.models.model import Model
from rlrun.policies.league import FIRST_GAME, RECORDED, SELF, LeaguePolicy

# Points that a group of games may move a rating by, at most. Many games at once would be one step of K * games points,
# which overshoots: from 695 points on, the difference of two ratings would grow from step to step.
MOST_POINTS = 160.0


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    inner: Any  # Inner
    window: Annotated[int, Count]
    snapshot_every: Annotated[int, Count]
    snapshot_win_rate: Annotated[float, Share] | None
    self_share: Annotated[float, Share]
    opponents: Literal["uniform", "prioritized"]
    elo_k: Annotated[float, Positive]
    elo_initial: Annotated[float, NotNegative]

    def __post_init__(self):
        needs = self.inner.algorithm.needs(self.inner.cfg)
        for wrong, why in (
            (needs.joint, "learns all agents together in one policy"),
            (needs.population is not None, "learns from returns, not from rows"),
            (needs.tasks is not None, "adapts its policy to tasks, to which snapshots would not be adapted"),
            (needs.every_process_learns, "lets every process learn"),
            (needs.replay is not None, "learns from a replay, whose rows would be those of snapshots too"),
        ):
            if wrong:
                raise ValueError(f"{self.inner.cfg.name} cannot be inside {self.name}, because it {why}")
        if self.self_share == 1.0:
            raise ValueError(
                "self_share=1 never plays against a snapshot;"
                f" algo={self.inner.cfg.name} lets one policy play all agents"
            )


class SelfPlay(Algorithm):
    holds_another = True
    has_rating = True
    cfg: Config
    policy: LeaguePolicy
    elo: Tensor
    elo_of: Tensor
    results: Tensor
    taken: Tensor
    last: Tensor

    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        return "it holds another algorithm itself" if inner.holds_another else None

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        needs = cfg.inner.algorithm.needs(cfg.inner.cfg)
        record = (*needs.record, *RECORDED)
        return replace(needs, record=record, only_weights=False, several=True, sees_reward=True)

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> LeaguePolicy:
        if spec.agents is None or len(spec.agents.names) < 2:
            raise UserError(f"{cfg.name} is for environments in which several agents play; {spec.name} has one")
        main = cfg.inner.algorithm.make_policy(of_main(spec, model), model, cfg.inner.cfg)
        # One more slot than is drawn from, so that a snapshot is kept until its last episodes are over.
        return LeaguePolicy(main, len(spec.agents.names), cfg.window + 1, cfg.self_share)

    def __init__(self, policy: LeaguePolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        slots = len(policy.snapshots)
        # Dead rows of snapshots are left out before minibatches are drawn (sparse).
        self.inner = cfg.inner.algorithm(
            policy.main, of_main(spec, ctx.model), cfg.inner.cfg, ctx._replace(sparse=True)
        )
        device = ctx.device
        self.register_buffer("elo", torch.tensor(cfg.elo_initial, dtype=torch.float64, device=device))
        self.register_buffer("elo_of", torch.full((slots,), cfg.elo_initial, dtype=torch.float64, device=device))
        # For each slot the episodes that main has won, drawn and lost since its last snapshot.
        self.register_buffer("results", torch.zeros(slots, 3, dtype=torch.float64, device=device))
        self.register_buffer("taken", torch.tensor(0, device=device))  # snapshots so far
        self.register_buffer("last", torch.tensor(0, device=device))  # env steps at the last one
        # The newest game of every column of the samplers that was counted. Checkpoints need not hold this, because no
        # row from before one is used after it.
        self.counted: dict[int, int] = {}
        self._snapshot(0)

    def update(self, batch: Batch, clock: Clock) -> Update:
        mine = batch["mine"]
        counted = self.count(batch)
        kept = Batch({name: value for name, value in batch.items() if name not in RECORDED})
        update = self.inner.update(kept.replace(valid=batch["valid"] & mine), clock)  # type: ignore[operator]
        self.rate(counted)
        if self.due(clock):
            self._snapshot(clock.env_steps)
        self._set_chances()
        return Update({**update.metrics, **self._metrics(counted)}, update.writes)

    def count(self, batch: Batch) -> Tensor:
        """The episodes against each snapshot that ended in this batch and in none before it, of all learners: won,
        drawn, lost [slots, 3]."""
        over = (batch["terminated"] | batch["truncated"]) & batch["mine"] & batch["valid"]  # type: ignore[operator]
        over = over & (batch["against"] != SELF)
        new = self._new(batch["game"][over])  # type: ignore[arg-type]
        against = self.policy.kept(batch["against"][over][new])  # type: ignore[arg-type, index]
        outcome = (batch["score"] + batch["reward"])[over][new]  # type: ignore[operator, index]
        counts = torch.zeros_like(self.results)
        for slot, number in enumerate(self.policy.present.tolist()):
            here = outcome[against == number] if number != SELF else outcome[:0]
            counts[slot] = torch.stack([(here > 0).sum(), (here == 0).sum(), (here < 0).sum()]).to(counts.dtype)
        return self.total(counts)

    def _new(self, games: Tensor) -> Tensor:
        """Whether each of these games [N] is new [N]. Rows of a column come in order at their first use, so that a game
        which is not newer than the column's newest one was in a batch before."""
        order = games.argsort()
        new: list[bool] = []
        for game in games[order].tolist():
            column, number = divmod(game, FIRST_GAME)
            new.append(number > self.counted.get(column, -1))
            self.counted[column] = max(number, self.counted.get(column, -1))
        return torch.empty_like(games, dtype=torch.bool).index_put(
            (order,), torch.tensor(new, dtype=torch.bool, device=games.device)
        )

    def rate(self, counts: Tensor) -> None:
        """Moves the ratings by results [slots, 3]. What main wins, its opponents lose, so that the sum of all ratings
        stays the same."""
        groups = max(1, math.ceil(float(counts.sum()) * self.cfg.elo_k / MOST_POINTS))
        part = counts / groups
        points, games = part[:, 0] + 0.5 * part[:, 1], part.sum(1)  # [slots]
        for _ in range(groups):
            expected = 1.0 / (1.0 + 10.0 ** ((self.elo_of - self.elo) / 400.0))  # [slots]
            gained = points - games * expected
            self.elo_of -= self.cfg.elo_k * gained
            self.elo += self.cfg.elo_k * gained.sum()
        self.results += counts

    def due(self, clock: Clock) -> bool:
        """Whether it is time for a snapshot."""
        if clock.env_steps - int(self.last) < self.cfg.snapshot_every:
            return False
        if self.cfg.snapshot_win_rate is None:
            return True
        games = self.results.sum()
        return bool(games > 0) and float(self.results[:, 0].sum() / games) >= self.cfg.snapshot_win_rate

    def _snapshot(self, env_steps: int) -> None:
        number = int(self.taken)
        self.policy.take_snapshot(number)
        self.elo_of[number % len(self.elo_of)] = self.elo
        self.results.zero_()
        self.taken.fill_(number + 1)
        self.last.fill_(env_steps)
        self._set_chances()

    def _set_chances(self) -> None:
        """Sets how often each snapshot is drawn: the newest `window` ones equally often or, prioritized, in proportion
        to (1 - share of points that main took from it)^2 (Vinyals et al. 2019, prioritized fictitious self-play)."""
        number = self.policy.present
        drawn = (number != SELF) & (number >= int(self.taken) - self.cfg.window)
        chance = drawn.float()
        if self.cfg.opponents == "prioritized":
            games = self.results.sum(1)
            points = torch.where(games > 0, (self.results[:, 0] + 0.5 * self.results[:, 1]) / games.clamp(min=1), 0.5)
            chance = chance * (1.0 - points.float()).square().clamp(min=1e-3)
        self.policy.chance.copy_(chance / chance.sum())

    def rating(self) -> float:
        """The Elo rating. Returns say nothing where one policy plays all agents: in a zero-sum game their sum is 0."""
        return float(self.elo)

    def _metrics(self, counts: Tensor) -> dict[str, Tensor | float]:
        games = counts.sum()
        number = self.policy.present
        oldest = torch.where(number == SELF, number.max(), number).argmin()
        told: dict[str, Tensor | float] = {
            "elo": self.elo.clone(),
            "elo_of_oldest": self.elo_of[oldest],
            "games": games,
            "snapshots": self.taken.clone(),
        }
        if games > 0:
            told |= {"win_rate": counts[:, 0].sum() / games, "draw_rate": counts[:, 1].sum() / games}
        return told

    def absorb_returns(self, moments: list[Moments | None]) -> None:  # type: ignore[override]
        self.inner.absorb_returns(moments)


def of_main(spec: EnvSpec, model: Model) -> EnvSpec:
    """The environment as the learning policy sees it: one agent, with the last reward only where its memory asks for
    it."""
    assert spec.agents is not None
    hidden = () if model.cfg.memory.previous[1] else ("prev_reward",)
    obs = {name: space for name, space in spec.obs.items() if name not in hidden}
    return replace(spec, obs=obs, agents=Agents(groups=(("main", spec.agents.names[:1]),)))
