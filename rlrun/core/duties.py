"""The duties of a run between updates: to stop and to save; evaluation_duty.py and logs.py have the others. Each duty
says when it is due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from rlrun.core.algorithm import Algorithm
from rlrun.core.conditions import COUNTED, JUDGED, SAVED_WHEN_BETTER, OnlyFor
from rlrun.core.evaluation_duty import Evaluations
from rlrun.core.metrics import EpisodeStatistics
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.core.timing import Every


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    return_mean: Annotated[float | None, OnlyFor(COUNTED)]
    wall_sec: Annotated[float, Positive] | None
    no_improvement_steps: Annotated[Annotated[int, Positive] | None, OnlyFor(JUDGED)]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: Annotated[int, Count] | None
    every_sec: Annotated[float, NotNegative] | None
    best_every_sec: Annotated[Annotated[float, NotNegative] | None, OnlyFor(SAVED_WHEN_BETTER)]
    keep: Annotated[int, Count]
    first_sec: Annotated[float, Positive] | None


RETURN, RATING = "mean return", "rating"  # what decides which weights are the best


class Progress:
    """Counts what a run has done and how well it does. Checkpoints hold all of it."""

    def __init__(self, episode_window: int = 100) -> None:
        self.clock = Clock()
        self.episodes = EpisodeStatistics(episode_window)
        self.agent_steps = 0  # decisions of all agents, where environments have several
        self.best: float | None = None  # the best metric seen
        self.judged = RETURN  # what the metric is
        self.best_at = 0  # env steps of the last improvement
        self.wall_before = 0.0  # seconds of earlier sessions
        self.started = time.monotonic()

    @property
    def best_return(self) -> float | None:
        """The best mean return, where returns are what runs are judged by."""
        return self.best if self.judged == RETURN else None

    @property
    def wall_sec(self) -> float:
        """Seconds of training since the first start. The time between two sessions does not count."""
        return self.wall_before + time.monotonic() - self.started

    def judge(self, metric: float | None, at: int | None = None) -> None:
        """Records the metric if it is the best so far. at: env steps of the weights that reached it, by default now."""
        if improves(metric, self.best):
            self.best, self.best_at = metric, self.clock.env_steps if at is None else at

    def state(self) -> dict[str, Any]:
        return {
            "env_steps": self.clock.env_steps,
            "updates": self.clock.updates,
            "agent_steps": self.agent_steps,
            "episodes": self.episodes.state(),
            "best": self.best,
            "best_at": self.best_at,
            "wall_sec": self.wall_sec,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.clock = Clock(state["env_steps"], state["updates"])
        self.episodes.load(state["episodes"])
        self.agent_steps = state.get("agent_steps", 0)  # missing in old checkpoints
        self.best, self.best_at = state["best"], state["best_at"]
        self.judged = RATING if state.get("judged_by") == RATING else RETURN
        self.wall_before = state["wall_sec"] + state.get("lost_sec", 0.0)  # of a run that begins again by itself


def improves(metric: float | None, best: float | None) -> bool:
    """Tells whether a metric is better than the best so far. What is not a finite number is never better than anything:
    the user's own evaluation may give one, and JSON cannot hold it."""
    return metric is not None and math.isfinite(metric) and (best is None or not metric <= best)


class Stops:
    """Ends the run at its last env step, at a stop condition, at a signal or when its recording fails."""

    def __init__(
        self, total: int, cfg: StopConfig, signals: Signals, progress: Progress, learning_starts: int | None = None
    ):
        """total: env steps of the whole run. learning_starts: env steps before the first update; None: those of a
        batch."""
        self.total, self.cfg, self.signals, self.progress = total, cfg, signals, progress
        self.learning_starts = learning_starts
        self.waits_for: Callable[[], list[str]] = list  # policies without rows, for which the others wait
        self.updated = True  # whether the last thing that the run did was an update, and not to put rows into a replay
        self.status, self.reason = "RUNNING", ""
        self.asked: str | None = None  # why a program that made the run asks it to stop
        self.reached = False  # whether the run has stopped because its return is what it was to reach
        self.saving = False  # whether the learners write their replays, for which they may need a while

    def due(self, clock: Clock, trouble: str | None = None) -> bool:
        """Returns whether the run is over. If it is, `status` and `reason` say why. trouble: why it cannot go on."""
        found = self._found(clock) if trouble is None else ("FAILED", trouble)
        if found is not None:
            self.status, self.reason = found
        return self.status != "RUNNING"

    def _found(self, clock: Clock) -> tuple[str, str] | None:
        cfg, progress = self.cfg, self.progress
        episodes = progress.episodes
        mean = None if cfg.return_mean is None else episodes.mean
        if self.signals.stop is not None:
            return "INTERRUPTED", f"{self.signals.stop.name} received"
        if self.asked is not None:
            return "STOPPED", self.asked
        if cfg.return_mean is not None and episodes.full and mean is not None and mean >= cfg.return_mean:
            self.reached = True
            return (
                "STOPPED",
                f"mean return {mean:.2f} of the last {len(episodes.returns)} episodes >= {cfg.return_mean:g}",
            )
        if clock.env_steps >= self.total:
            return "COMPLETED", self._completed(clock)
        if cfg.wall_sec is not None and progress.wall_sec >= cfg.wall_sec:
            return "STOPPED", f"{progress.wall_sec:.0f} s >= {cfg.wall_sec:g}"
        if cfg.no_improvement_steps is not None and progress.best is not None:
            if clock.env_steps - progress.best_at >= cfg.no_improvement_steps:
                return "STOPPED", f"no better {progress.judged} for {cfg.no_improvement_steps} env steps"
        return None

    def stopping_sec(self) -> float | None:
        """Returns for how many seconds a signal has asked the run to stop in the middle of an update. None: none has,
        or the run is stopping already, or it saves."""
        if self.signals.stop is None or self.status != "RUNNING" or self.saving:
            return None
        return time.monotonic() - self.signals.stopped_at

    def count_again(self, clock: Clock) -> None:
        """Makes `reason` agree with a clock that has also counted what other learners did until they were held."""
        if self.status == "COMPLETED":
            self.reason = self._completed(clock)

    def _completed(self, clock: Clock) -> str:
        """Says how the run has come to its last env step."""
        steps, starts = clock.env_steps, self.learning_starts
        if clock.updates == 0:
            why = "no update was due before the end"
            if waits := self.waits_for():
                named = ", ".join(waits)
                why = f"the agents of {named} took part in no step, and all policies learn from their rows together"
            if starts is not None and steps < starts:
                why = f"learning starts after {starts} env steps (learning_starts)"
            return f"{steps} env steps; nothing was learnt, because {why}"
        if steps == self.total:
            return f"{steps} env steps"
        why = "the last update was finished" if self.updated else "environments step together"
        return f"{steps} env steps, a few more than env_steps={self.total} because {why}"


class Saves:
    """Writes checkpoints at regular intervals, for a new best metric, when a signal asks for one, and at the end."""

    def __init__(
        self, cfg: CheckpointConfig, signals: Signals, progress: Progress, evaluations: Evaluations, at_end: bool
    ):
        self.cfg, self.signals, self.progress = cfg, signals, progress
        self.evaluations, self.at_end = evaluations, at_end
        self.best: float | None = None  # the metric of the checkpoint that best.json names
        self.rating: Callable[[], float] | None = None  # that of an algorithm that judges its weights itself
        self.begin_clock()

    def begin(self, clock: Clock) -> None:
        self.every = Every(self.cfg.every, clock.env_steps)
        # A new run saves early, so that nothing that happens later can lose all of it.
        self.first_due = self.cfg.first_sec is not None and clock.env_steps == 0
        self.early = False

    def begin_clock(self) -> None:
        """Starts counting the seconds of the intervals."""
        self.now = self.last = self.last_best = time.monotonic()

    @property
    def metric(self) -> float | None:
        """The metric that decides which checkpoint is the best.

        It is the algorithm's own rating, or else the last evaluation's mean if evaluation is on, otherwise the mean of
        the last training episodes."""
        if self.by_evaluations:
            return self.evaluations.mean
        if not self.progress.episodes.full:
            return None
        return self.progress.episodes.mean if self.rating is None else self.rating()

    @property
    def by_evaluations(self) -> bool:
        """Tells whether evaluations decide which checkpoint is the best."""
        return self.evaluations.on and self.rating is None

    def judge_by(self, algorithm: Algorithm) -> None:
        """Lets an algorithm judge its weights itself if it does."""
        if algorithm.has_rating:
            self.rating, self.progress.judged = algorithm.rating, RATING

    @property
    def judged_by(self) -> str:
        """What the metric is of: evaluations, training episodes, or the algorithm's rating."""
        return RATING if self.rating is not None else "evaluations" if self.evaluations.on else "training"

    @property
    def better(self) -> bool:
        """Tells whether the metric is better than that of the best checkpoint."""
        return improves(self.metric, self.best)

    @property
    def as_best(self) -> bool:
        """Tells whether a checkpoint made now would be the best one.

        Where evaluations decide, only weights that were just evaluated can be."""
        return self.better and (self.evaluations.fresh or not self.by_evaluations)

    def due(self, clock: Clock, over: bool) -> bool:
        cfg, self.now = self.cfg, time.monotonic()
        due = self.every(clock.env_steps) or (cfg.every_sec is not None and self.now - self.last >= cfg.every_sec)
        if self.by_evaluations:
            due = due or (self.better and self.evaluations.fresh)
        elif self.better and cfg.best_every_sec is not None:
            due = due or self.now - self.last_best >= cfg.best_every_sec
        asked, self.signals.save = self.signals.save, False
        due = due or asked or (over and self.at_end)
        first = self.cfg.first_sec
        self.early = not due and self.first_due and first is not None and self.now - self.last >= first
        return due or self.early

    def made(self, metric: float | None, best: bool, written: bool) -> None:
        """Records a save. After a failed one (a full disk), the next try comes after a whole interval too."""
        self.first_due = False
        self.last = self.now
        if best:
            self.last_best = self.now
            if written:
                self.best = metric
