"""Estimates of the policy's value from recorded episodes while a run learns: their options, and when they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from rlrun.core.algorithm import Algorithm
from rlrun.core.conditions import MODELLED, OnlyFor, OnlyWith
from rlrun.core.ranges import Count, PositiveShareBelowOne, Share
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.core.timing import Every

Method = Literal["is", "pdis", "wis", "step_wis", "dm", "dr", "wdr"]
METHODS: tuple[str, ...] = get_args(Method)
# Estimates with these weights and clock: their metrics by name, without prefix.
Estimating = Callable[[Algorithm, Clock], Mapping[str, float | None]]
WITH_METHODS = OnlyWith("methods")


@dataclass(frozen=True, kw_only=True)
class EstimateConfig:
    methods: Annotated[tuple[Method, ...], OnlyWith("..every")]
    path: Annotated[str | None, WITH_METHODS]
    episodes: Annotated[Annotated[int, Count] | None, WITH_METHODS]
    greedy: Annotated[bool, WITH_METHODS]
    discount: Annotated[Annotated[float, Share] | None, WITH_METHODS]
    interval: Annotated[Literal["bootstrap", "t"], WITH_METHODS]
    confidence: Annotated[float, PositiveShareBelowOne, WITH_METHODS]
    updates: Annotated[int, Count, WITH_METHODS, OnlyFor(MODELLED)]

    def __post_init__(self):
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(f"methods names one of {', '.join(self.methods)} twice")
        if self.path == "":
            raise ValueError("path must name a folder or a file")


NO_ESTIMATES = EstimateConfig(
    methods=(), path=None, episodes=None, greedy=False, discount=None, interval="bootstrap", confidence=0.95, updates=1
)


class Estimates:
    """Estimates at regular intervals of env steps, in this process."""

    def __init__(self, every: int | None, make: Estimating | None, signals: Signals):
        """make: None if nothing is estimated."""
        self.interval, self.making, self.signals = every, make, signals
        self.row: dict[str, float | None] = {}  # metrics that have not been logged yet
        self.wanted = False  # whether estimates are due

    @property
    def on(self) -> bool:
        return self.making is not None and self.interval is not None

    def begin(self, clock: Clock) -> None:
        self.every = Every(self.interval if self.on else None, clock.env_steps)

    def due(self, clock: Clock) -> bool:
        """Whether to estimate now."""
        self.wanted = self.every(clock.env_steps) or self.wanted
        return self.wanted and self.signals.stop is None

    def make(self, algorithm: Algorithm, clock: Clock) -> None:
        """Estimates with the current weights. The next row will contain the numbers."""
        assert self.making is not None
        made = self.making(algorithm, clock)
        self.wanted, self.row = False, {f"estimate/{name}": value for name, value in made.items()}

    def take_row(self) -> dict[str, float | None]:
        """Returns the metrics that have not been logged yet, once."""
        row, self.row = self.row, {}
        return row

    def state(self) -> dict[str, Any]:
        """Estimates that are due are made by a resumed run."""
        return {"estimating": self.wanted}

    def load(self, run: Mapping[str, Any]) -> None:
        self.wanted = self.on and run.get("estimating", False)
