"""Run: what every runner's loop asks between updates: log, evaluate, save, stop? No runner repeats these."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rlrun.core.algorithm import Algorithm, Update
from rlrun.core.callbacks import Callback
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import RunFailed
from rlrun.core.learners import ON, OVER, SAVE, FragmentHeader, Kept, check_equal, exchange, load_kept, save_rows
from rlrun.core.metrics import EpisodeStatistics, Means, finite
from rlrun.core.ranks import ALONE
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.core.timing import Every, Timers


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    return_mean: float | None
    wall_sec: float | None
    no_improvement_steps: int | None

    def __post_init__(self):
        if any(value is not None and value <= 0 for value in (self.wall_sec, self.no_improvement_steps)):
            raise ValueError("wall_sec and no_improvement_steps must be positive")


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    every: int | None
    episodes: int
    greedy: bool

    def __post_init__(self):
        if self.episodes < 1 or (self.every is not None and self.every < 1):
            raise ValueError("every and episodes must be at least 1")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: int | None
    every_sec: float | None
    best_every_sec: float | None
    keep: int

    def __post_init__(self):
        if self.keep < 1 or (self.every is not None and self.every < 1):
            raise ValueError("every and keep must be at least 1")


class Logger(Protocol):
    def log(self, row: dict[str, Any]) -> None: ...


class Job(Protocol):
    """What runners see of a run: Run, or FollowingLearner on learners other than the first."""

    timers: Timers
    breaks: list[Callable[[int], None]]  # what else forgets its rows when an exact run breaks its columns
    generation: int  # of env seeds: how often this run has been started, or (exact) checkpointed
    ahead: int  # env steps taken for an update that is not made yet, which count with it: set by runners whose updates take whole episodes
    hold_learners: Callable[[], Clock] | None  # set by runners whose learners do not wait: holds them, and returns the clock of all that they have done

    def begin(self, algorithm: Algorithm) -> Clock: ...

    def sampler_ready(self, sampler: Any) -> None: ...

    def keeps(self, name: str, thing: Kept) -> None:
        """After sampler_ready, by runners that have a replay, say: restores it, and saves it under this name from now on."""
        ...

    def collected(self, headers: Sequence[FragmentHeader]) -> int:
        """Takes note of the fragments that a new batch brought; returns the env steps that all learners took for it."""
        ...

    def tick(self, clock: Clock, update: Update | None) -> bool: ...


class Run:
    """One run from its first or its restored state to its end.

    `status` at the end: COMPLETED (env_steps reached), STOPPED (a stop condition; `reason` says which) or INTERRUPTED (a signal)."""

    def __init__(
        self,
        *,
        env_steps: int,
        stop: StopConfig,
        evaluation: EvalConfig,
        checkpoint: CheckpointConfig,
        log_every_sec: float,
        checkpoints: Checkpoints,
        logger: Logger,
        signals: Signals,
        evaluate: Callable[[Algorithm, Clock, int, Callable[[], bool]], list[float]] | None,
        exact: bool,
        restored: tuple[dict[str, dict], dict] | None,
        callbacks: Sequence[Callback] = (),
        save_at_end: bool = True,
    ):
        self.callbacks = callbacks
        self.total, self.stop, self.evaluation, self.checkpoint = env_steps, stop, evaluation, checkpoint
        self.log_every_sec, self.checkpoints, self.logger, self.signals, self.evaluate = log_every_sec, checkpoints, logger, signals, evaluate
        self.exact = exact  # break all columns at a checkpoint, so that a resumed run equals an uninterrupted one
        self.restored = restored
        self.hold_learners: Callable[[], Clock] | None = None
        self.ranks = ALONE  # set before the runner starts, where there are several learners
        self.timers = Timers()
        self.episodes = EpisodeStatistics()
        self.learn, self.sample = Means(), Means()
        self.status, self.reason = "RUNNING", ""
        self.generation = 0  # of env seeds: how often this run has been started, or (exact) checkpointed
        self.clock = Clock()
        self.best: float | None = None  # best metric seen
        self.saved_best: float | None = None  # metric of the checkpoint that best.json names
        self.evaluations = 0
        self.eval_row: dict[str, float | None] = {}
        self.breaks: list[Callable[[int], None]] = []  # what else forgets its rows when an exact run breaks its columns
        self.best_at = 0  # env steps of the last improvement
        self.eval_mean: float | None = None
        self.wall_before = 0.0
        self.started = self.last_log = self.last_save = self.last_best = time.monotonic()
        self.last_log_steps = 0
        self.ahead = 0
        self.save_at_end = save_at_end
        self.first_counted = 0  # column; those before it explore too much to count (Ape-X)
        self.kept: dict[str, Kept] = {}  # by the name that the runner gave it

    # -- the runner's side ---------------------------------------------------------------------------------------------------------------

    def begin(self, algorithm: Algorithm) -> Clock:
        """Restores the algorithm and the counters of a resumed run; returns the clock to start from."""
        self.algorithm = algorithm
        if self.restored is not None:
            tensors, run = self.restored
            algorithm.load_state(tensors["algorithm"])
            self.clock = Clock(run["env_steps"], run["updates"])
            self.episodes.load(run["episodes"])
            self.best, self.best_at, self.eval_mean = run["best"], run["best_at"], run["eval_mean"]
            self.saved_best, self.evaluations = run["saved_best"], run["evaluations"]
            self.wall_before = run["wall_sec"]
            self.generation = run["generation"] + (0 if self.exact else 1)
        every = self.checkpoint.every
        self.save_due = Every(every, self.clock.env_steps)
        self.eval_due = Every(self.evaluation.every if self.evaluate else None, self.clock.env_steps)
        self.last_log_steps = self.clock.env_steps
        check_equal(algorithm, self.ranks)
        return self.clock

    def sampler_ready(self, sampler: Any) -> None:
        """Restores the sampler's state (exact runs) and starts the clocks of rates and limits."""
        self.sampler = sampler
        if self.restored is not None and self.exact:  # else columns begin anew, with seeds of this generation
            sampler.load(self.restored[0]["sampler"])
            sampler.restart(self.generation)
        self.restored_rows = None if self.restored is None else self.checkpoints.directory / f"{self.restored[1]['env_steps']:012d}"
        self.restored = None
        self._tell("on_start", self)
        self.last_log = self.last_save = self.last_best = time.monotonic()
        self.timers.result()

    def keeps(self, name: str, thing: Kept) -> None:
        self.kept[name] = thing
        if self.restored_rows is not None and (said := load_kept(name, thing, self.restored_rows, 0)) is not None:
            print(f"  {said}", flush=True)

    def collected(self, headers: Sequence[FragmentHeader]) -> int:
        """Takes note of new fragments' episodes and of how old their weights were; returns the env steps that all learners took for them."""
        steps = 0
        for report in exchange(headers, self.clock, self.ranks):
            steps += report.env_steps
            for column, ret, length, info in report.episodes:
                if column < self.first_counted:
                    continue
                self.episodes.add(ret, length, info)
                self._tell("on_episode", ret, length, info)
            env_sec, policy_sec = report.seconds
            self.sample.add({"policy_lag": float(report.lag), "env_sec": env_sec, "policy_sec": policy_sec, "fragment_steps": float(report.env_steps)})
        return steps

    def tick(self, clock: Clock, update: Update | None) -> bool:
        """Between two updates. False: the run is over, and saved."""
        return self.ranks.first(ON if self._tick(clock, update) else OVER) == ON

    def _tick(self, clock: Clock, update: Update | None) -> bool:
        self.clock = clock
        if update is not None:
            self.learn.add(update.metrics)
            self._tell("on_update", clock, update.metrics)
        now, settled = time.monotonic(), False

        def still() -> None:
            """Before anything that looks at the weights for longer than a moment."""
            nonlocal settled
            if self.hold_learners is not None and not settled:
                self.clock, settled = self.hold_learners(), True

        over = self._over(now)
        if over:
            still()
        evaluated = False
        if self.signals.stop is None and self.eval_due(clock.env_steps):
            still()
            evaluated = self._evaluate()
        metric = self._metric()
        if metric is not None and (self.best is None or metric > self.best):
            self.best, self.best_at = metric, clock.env_steps
        best = metric is not None and (self.saved_best is None or metric > self.saved_best)
        due = self.save_due(clock.env_steps) or (self.checkpoint.every_sec is not None and now - self.last_save >= self.checkpoint.every_sec)
        if best and evaluated:  # what is called best is what was evaluated
            due = True
        elif best and self.evaluation_off and self.checkpoint.best_every_sec is not None:
            due = due or now - self.last_best >= self.checkpoint.best_every_sec
        if (over and self.save_at_end) or due or self.signals.save:
            self.signals.save = False
            still()
            self._save(now, metric, best and (evaluated or self.evaluation_off))
        if over or evaluated or now - self.last_log >= self.log_every_sec:
            self._log(time.monotonic())
        if over:
            self._tell("on_end", self.status)
        return not over

    def _tell(self, event: str, *facts: Any) -> None:
        """Calls a method of every callback. RunFailed naming the one that raised."""
        for callback in self.callbacks:
            try:
                getattr(callback, event)(*facts)
            except Exception as error:  # the user's own
                kind = type(callback)
                raise RunFailed(f"callbacks={kind.__module__}:{kind.__qualname__} failed in {event}: {type(error).__name__}: {error}") from error

    # -- inside --------------------------------------------------------------------------------------------------------------------------

    @property
    def wall_sec(self) -> float:
        """Since the first start, waits between sessions left out."""
        return self.wall_before + time.monotonic() - self.started

    def _over(self, now: float) -> bool:
        mean = self.episodes.mean
        if self.signals.stop is not None:
            self.status, self.reason = "INTERRUPTED", f"{self.signals.stop.name} received"
        elif self.stop.return_mean is not None and self.episodes.full and mean is not None and mean >= self.stop.return_mean:
            self.status, self.reason = (
                "STOPPED",
                f"mean return {mean:.2f} of the last {len(self.episodes.returns)} episodes >= {self.stop.return_mean:g}",
            )
        elif self.clock.env_steps >= self.total:
            self.status, self.reason = "COMPLETED", f"{self.clock.env_steps} env steps"
        elif self.stop.wall_sec is not None and self.wall_sec >= self.stop.wall_sec:
            self.status, self.reason = "STOPPED", f"{self.wall_sec:.0f} s >= {self.stop.wall_sec:g}"
        elif self.stop.no_improvement_steps is not None and self.best is not None and self.clock.env_steps - self.best_at >= self.stop.no_improvement_steps:
            self.status, self.reason = "STOPPED", f"no better mean return for {self.stop.no_improvement_steps} env steps"
        return self.status != "RUNNING"

    @property
    def evaluation_off(self) -> bool:
        return self.evaluate is None or self.evaluation.every is None

    def _metric(self) -> float | None:
        """What `best` is judged by: evaluation where it is on, else the last-100 mean."""
        if not self.evaluation_off:
            return self.eval_mean
        return self.episodes.mean if self.episodes.full else None

    def _evaluate(self) -> bool:
        """False when a signal came before it was finished."""
        assert self.evaluate is not None
        with self.timers("evaluate"):
            returns = self.evaluate(self.algorithm, self.clock, self.evaluations, self._interrupted)
        self.evaluations += 1
        if self.signals.stop is not None or not returns:
            return False
        self.eval_mean = sum(returns) / len(returns)
        self._tell("on_evaluate", self.clock, returns)
        self.eval_row = {"eval/return_mean": self.eval_mean, "eval/return_min": min(returns), "eval/return_max": max(returns)}
        return True

    def _interrupted(self) -> bool:
        """Whether a signal came. RunFailed when a sampler has died, which nobody else notices during a long evaluation."""
        self.sampler.check()
        return self.signals.stop is not None

    def _save(self, now: float, metric: float | None, best: bool) -> None:
        with self.timers("save"):
            if self.exact:
                self.generation += 1
            tensors = {
                "policy": self.algorithm.policy.state_dict(),
                "algorithm": self.algorithm.state(),
                "sampler": self.sampler.save(),
            }
            run = {
                "env_steps": self.clock.env_steps,
                "updates": self.clock.updates,
                "episodes": self.episodes.state(),
                "best": self.best,
                "best_at": self.best_at,
                "saved_best": metric if best else self.saved_best,
                "eval_mean": self.eval_mean,
                "evaluations": self.evaluations,
                "metric": metric,
                "wall_sec": self.wall_sec,
                "generation": self.generation,
            }
            rows = None
            if self.kept:
                tensors["replay"] = {name: thing.state() for name, thing in self.kept.items()}
                rows = self._save_rows if any(getattr(thing, "saved", False) for thing in self.kept.values()) else None
            saved = self.checkpoints.save(self.clock.env_steps, tensors, run, best, rows)
            if saved is None and self.status != "RUNNING":
                newest = f"the newest one is from {int(self.checkpoints.names()[-1])}" if self.checkpoints.names() else "there is none"
                raise RunFailed(f"the run ended ({self.reason}), but its last checkpoint could not be written: {newest}; free some space and resume")
            if self.exact:
                self.sampler.restart(self.generation)
                for forget in self.breaks:
                    forget(self.generation)
            if saved is not None:
                self._tell("on_save", saved, self.clock)
            if best:
                self.last_best = now  # also after a failed save: the next try waits its turn
                if saved is not None:
                    self.saved_best = metric
        self.last_save = now

    def _save_rows(self, folder: Path) -> None:
        self.ranks.first(SAVE)
        save_rows(self.kept, self.ranks, folder)

    def _log(self, now: float) -> None:
        self.algorithm.check()
        seconds = max(now - self.last_log, 1e-9)
        sample = self.sample.result()
        spent, fragment = (sample.pop("env_sec", 0.0), sample.pop("policy_sec", 0.0)), sample.pop("fragment_steps", 0.0)
        row: dict[str, Any] = {
            "env_steps": self.clock.env_steps,
            "time_sec": self.wall_sec,
            "updates": self.clock.updates,
            **{f"sample/{name}": value for name, value in self.episodes.metrics().items()},
            "sample/env_steps_per_sec": (self.clock.env_steps + self.ahead - self.last_log_steps) / seconds,
            **{f"sample/{name}": value for name, value in sample.items()},
            **{f"learn/{name}": value for name, value in self.learn.result().items()},
            **{f"time/{name}": value for name, value in self.timers.result().items()},
        }
        if sum(spent) > 0:
            row["time/sampler_env_share"] = spent[0] / sum(spent)
        if fragment > 0:
            row |= {"time/env_us": 1e6 * spent[0] / fragment, "time/policy_us": 1e6 * spent[1] / fragment}
        queued = getattr(self.sampler, "queued", None)
        if queued is not None:
            row["sample/queued_fragments"] = queued
        row |= self.eval_row
        self.eval_row = {}
        if self.ahead:
            row["sample/ahead"] = self.ahead
        self.last_log, self.last_log_steps = now, self.clock.env_steps + self.ahead
        head = {name: row.pop(name) for name in ("env_steps", "time_sec", "updates")}
        row = {**head, **finite(row)}
        self._tell("on_log", row)
        self.logger.log(finite({name: value.item() if isinstance(value, torch.Tensor) else value for name, value in row.items()}))

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, else 0."""
        return 0 if self.signals.stop is None else 128 + (self.signals.stop if self.signals.stop in (signal.SIGINT, signal.SIGTERM) else 0)
