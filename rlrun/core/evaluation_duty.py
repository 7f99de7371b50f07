"""A run's duty to evaluate between updates, in the trainer or in processes beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from rlrun.core.algorithm import Algorithm
from rlrun.core.conditions import DRAWING, PLAYED, OnlyFor, OnlyWith
from rlrun.core.estimates import EstimateConfig
from rlrun.core.evaluation import Evaluated, Evaluators
from rlrun.core.metrics import finite, spread
from rlrun.core.ranges import Count, NotNegative
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.core.timing import Every

# Evaluates in this process: (algorithm, clock, number of the evaluation, whether to end early) -> result or returns.
Play = Callable[[Algorithm, Clock, int, Callable[[], bool]], Evaluated | list[float]]

GAMES = (OnlyWith("every"), OnlyFor(PLAYED))


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    every: Annotated[int, Count] | None
    episodes: Annotated[int, Count, OnlyWith("env_steps", None), *GAMES]
    env_steps: Annotated[Annotated[int, Count] | None, OnlyWith("function", None), *GAMES]
    greedy: Annotated[bool, OnlyFor(DRAWING), *GAMES]
    workers: Annotated[int, NotNegative, *GAMES]
    parallel: Annotated[Literal["auto"] | bool, OnlyWith("workers")]
    function: Annotated[str | None, *GAMES]
    estimate: EstimateConfig

    def __post_init__(self):
        if self.parallel is True and self.workers == 0:
            raise ValueError("parallel=true needs processes that evaluate: workers=1 or more")
        if self.function is not None and self.workers > 1:
            raise ValueError(
                f"workers={self.workers}: a function of your own evaluates in one process (workers 0 or 1)"
            )
        if self.function is None and self.env_steps is None and self.workers > self.episodes:
            raise ValueError(f"workers={self.workers} are more than the {self.episodes} episodes that they share")

    @property
    def beside(self) -> bool:
        """Whether training goes on while games are played."""
        return self.workers > 0 and self.parallel is not False


class Running(NamedTuple):
    """An evaluation that processes beside the trainer are making."""

    clock: Clock  # of the weights that are evaluated
    snapshot: Any  # what a checkpoint of these weights will hold


class Evaluations:
    """Plays full games with the current policy at regular intervals of env steps.

    In the trainer, an evaluation is over when it returns. Processes beside it make one evaluation at a time while
    training goes on: what becomes due meanwhile begins when they are done, once."""

    def __init__(self, cfg: EvalConfig, play: Play | None, signals: Signals, crew: Evaluators | None = None):
        """play: evaluates in this process. crew: evaluates in others, which is preferred."""
        self.cfg, self.play, self.signals, self.crew = cfg, play, signals, crew
        self.mean: float | None = None  # the mean return of the last evaluation
        self.at: int | None = None  # env steps of the weights that it evaluated
        self.count = 0  # number of evaluations that are over
        self.fresh = False  # whether an evaluation of the current weights ended in this tick
        self.row: dict[str, float | None] = {}  # metrics that have not been logged yet
        self.running: Running | None = None
        self.wanted = False  # whether one is due

    @property
    def on(self) -> bool:
        return (self.play is not None or self.crew is not None) and self.cfg.every is not None

    def begin(self, clock: Clock) -> None:
        self.every = Every(self.cfg.every if self.on else None, clock.env_steps)

    def due(self, clock: Clock) -> bool:
        """Whether to evaluate now."""
        self.wanted = self.every(clock.env_steps) or self.wanted
        return self.wanted and self.running is None and self.signals.stop is None

    def start(self, algorithm: Algorithm, clock: Clock, snapshot: Callable[[], Any]) -> None:
        """Begins an evaluation in processes beside this one."""
        assert self.crew is not None
        self.crew.begin(algorithm.policy, clock, self.count)
        self.running, self.wanted = Running(clock, snapshot()), False

    def finish(self, wait: bool, interrupted: Callable[[], bool]) -> tuple[Running, Evaluated] | None:
        """Returns the evaluation that ran and its result, if it is over. wait: until it is over, or interrupted."""
        assert self.crew is not None and self.running is not None
        made = self.crew.result()
        while wait and made is None and not interrupted():
            made = self.crew.result(timeout_sec=0.2)
        if made is None:
            return None
        ran, self.running = self.running, None
        self.note(made, ran.clock)
        return ran, made

    def make(self, algorithm: Algorithm, clock: Clock, interrupted: Callable[[], bool]) -> Evaluated | None:
        """Evaluates in this process. Returns None if a signal came before the last game ended."""
        assert self.play is not None
        played = self.play(algorithm, clock, self.count, interrupted)
        made = played if isinstance(played, Evaluated) else Evaluated(played)
        if self.signals.stop is not None or not (made.returns or made.numbers):
            return None
        self.wanted, self.fresh = False, True
        self.note(made, clock)
        return made

    def note(self, made: Evaluated, clock: Clock) -> None:
        """Counts a result, which the next row will contain. clock: that of the weights that were evaluated."""
        self.count += 1
        self.mean, self.at = made.mean, clock.env_steps
        told = made.numbers or spread("return", list(made.returns))
        self.row = {**{f"eval/{name}": value for name, value in told.items()}, "eval/env_steps": clock.env_steps}

    def take_row(self) -> dict[str, float | None]:
        """Returns the metrics that have not been logged yet, once."""
        row, self.row = self.row, {}
        return row

    def state(self) -> dict[str, Any]:
        """An evaluation that is due or running is made again by a resumed run, and counts once."""
        return finite(
            {
                "eval_mean": self.mean,
                "evaluations": self.count,
                "evaluating": self.wanted or self.running is not None,
            }
        )

    def load(self, run: dict[str, Any]) -> None:
        """Restores state(). Checkpoints of the first versions have only the first two."""
        self.mean, self.count = run["eval_mean"], run["evaluations"]
        self.wanted = self.on and run.get("evaluating", False)
        self.row = dict(run.get("unlogged", {}))
