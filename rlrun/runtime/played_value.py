"""The value of a policy as its own games show it, which estimates from data are compared with (rlrun estimate)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rlrun.core.env import EnvFactory
from rlrun.core.policy import Mode, Policy
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.ops.estimators import student
from rlrun.samplers.evaluator import Evaluator, together


@dataclass
class PlayedValue:
    """Means over full games, unclipped, with Student's t intervals (None with one game)."""

    episodes: int
    value: float  # of discounted returns
    low: float | None
    high: float | None
    return_mean: float  # without discount
    return_low: float | None
    return_high: float | None
    length_mean: float

    def covered_by(self, low: float | None, high: float | None) -> bool | None:
        """Whether an interval covers the value; None if there is no interval."""
        return None if low is None or high is None else low <= self.value <= high


def played_value(
    policy: Policy,
    factory: EnvFactory,
    mode: Mode,
    clock: Clock,
    discount: float,
    episodes: int,
    seeds: Seeds,
    confidence: float,
) -> PlayedValue:
    """Plays full games. They count as those of data do: as far as a time limit lets them go."""
    evaluator = Evaluator(factory, together(factory.spec, episodes), seeds)
    try:
        games = evaluator.games(policy, episodes, mode, clock, discount=discount)
    finally:
        evaluator.close()

    def mean(values: list[float]) -> tuple[float, float | None, float | None]:
        low, high = student(torch.tensor(values, dtype=torch.float64), confidence)
        known = math.isfinite(low)
        return sum(values) / len(values), low if known else None, high if known else None

    return PlayedValue(
        len(games),
        *mean([game.discounted for game in games]),
        *mean([game.ret for game in games]),
        sum(game.length for game in games) / len(games),
    )
