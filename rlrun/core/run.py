"""Run: what every runner's loop asks between updates: log, evaluate, save, stop? No runner repeats these."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlrun.core.algorithm import Algorithm, Update
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.metrics import EpisodeStatistics, Means, finite
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


class Header(Protocol):
    """What is read of a fragment's header (dataflow.slots.Header)."""

    @property
    def updates(self) -> int: ...
    @property
    def env_steps(self) -> int: ...
    @property
    def episodes(self) -> Sequence[Any]: ...
    @property
    def seconds(self) -> tuple[float, float]: ...


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
        evaluate: Callable[[Algorithm, Clock], list[float]] | None,
        exact: bool,
        restored: tuple[dict[str, dict], dict] | None,
    ):
        self.total, self.stop, self.evaluation, self.checkpoint = env_steps, stop, evaluation, checkpoint
        self.log_every_sec, self.checkpoints, self.logger, self.signals, self.evaluate = log_every_sec, checkpoints, logger, signals, evaluate
        self.exact = exact  # break all columns at a checkpoint, so that a resumed run equals an uninterrupted one
        self.restored = restored
        self.timers = Timers()
        self.episodes = EpisodeStatistics()
        self.learn, self.sample = Means(), Means()
        self.status, self.reason = "RUNNING", ""
        self.generation = 0  # of env seeds: how often this run has been started, or (exact) checkpointed
        self.clock = Clock()
        self.best: float | None = None
        self.best_at = 0  # env steps of the last improvement
        self.eval_mean: float | None = None
        self.wall_before = 0.0
        self.started = self.last_log = self.last_save = self.last_best = time.monotonic()
        self.last_log_steps = 0
        self.save_at_end = True
        self.best_unsaved = False

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
            self.wall_before = run["wall_sec"]
            self.generation = run["generation"] + (0 if self.exact else 1)
        every = self.checkpoint.every
        self.save_due = Every(every, self.clock.env_steps)
        self.eval_due = Every(self.evaluation.every if self.evaluate else None, self.clock.env_steps)
        self.last_log_steps = self.clock.env_steps
        return self.clock

    def sampler_ready(self, sampler: Any) -> None:
        """Restores the sampler's state (exact runs) and starts the clocks of rates and limits."""
        self.sampler = sampler
        if self.restored is not None:
            sampler.load(self.restored[0]["sampler"])
            if self.exact:
                sampler.restart(self.generation)
        self.restored = None
        self.last_log = self.last_save = self.last_best = time.monotonic()
        self.timers.result()

    def collected(self, header: Header) -> None:
        """Takes note of a fragment's episodes and of how old its weights were."""
        for episode in header.episodes:
            self.episodes.add(episode.ret, episode.length)
        self.sample.add({"policy_lag": float(self.clock.updates - header.updates), "env_sec": header.seconds[0], "policy_sec": header.seconds[1]})

    def tick(self, clock: Clock, update: Update | None) -> bool:
        """Between two updates. False: the run is over, and saved."""
        self.clock = clock
        if update is not None:
            self.learn.add(update.metrics)
        now = time.monotonic()
        over = self._over(now)
        if self.eval_due(clock.env_steps):
            self._evaluate()
        improved = self._improved()
        due = self.save_due(clock.env_steps) or (self.checkpoint.every_sec is not None and now - self.last_save >= self.checkpoint.every_sec)
        if improved and self.checkpoint.best_every_sec is not None and now - self.last_best >= self.checkpoint.best_every_sec:
            due = True
        if (over and self.save_at_end) or due or self.signals.save:
            self.signals.save = False
            self._save(now)
        if over or now - self.last_log >= self.log_every_sec:
            self._log(now)
        return not over

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
        elif self.stop.no_improvement_steps is not None and self.clock.env_steps - self.best_at >= self.stop.no_improvement_steps:
            self.status, self.reason = "STOPPED", f"no better mean return for {self.stop.no_improvement_steps} env steps"
        return self.status != "RUNNING"

    def _metric(self) -> float | None:
        """What `best` is judged by: evaluation where it is on, else the last-100 mean."""
        if self.evaluate is not None and self.evaluation.every is not None:
            return self.eval_mean
        return self.episodes.mean if self.episodes.full else None

    def _improved(self) -> bool:
        metric = self._metric()
        if metric is None or (self.best is not None and metric <= self.best):
            return self.best_unsaved
        self.best, self.best_at = metric, self.clock.env_steps
        self.best_unsaved = True
        return True

    def _evaluate(self) -> None:
        assert self.evaluate is not None
        with self.timers("evaluate"):
            returns = self.evaluate(self.algorithm, self.clock)
        self.eval_mean = sum(returns) / len(returns)
        self.eval_row: dict[str, float | None] = {"return_mean": self.eval_mean, "return_min": min(returns), "return_max": max(returns)}
        self._log(time.monotonic(), self.eval_row)

    def _save(self, now: float) -> None:
        with self.timers("save"):
            metric = self._metric()
            best = metric is not None and self.best_unsaved and (self.best is None or metric >= self.best)
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
                "eval_mean": self.eval_mean,
                "metric": metric,
                "wall_sec": self.wall_sec,
                "generation": self.generation,
            }
            saved = self.checkpoints.save(self.clock.env_steps, tensors, run, best)
            if self.exact:
                self.sampler.restart(self.generation)
            if best and saved is not None:
                self.best_unsaved, self.last_best = False, now
        self.last_save = now

    def _log(self, now: float, evaluation: dict[str, float | None] | None = None) -> None:
        seconds = max(now - self.last_log, 1e-9)
        sample = self.sample.result()
        spent = sample.pop("env_sec", 0.0), sample.pop("policy_sec", 0.0)
        row: dict[str, Any] = {
            "env_steps": self.clock.env_steps,
            "time_sec": self.wall_sec,
            "updates": self.clock.updates,
            **{f"sample/{name}": value for name, value in self.episodes.metrics().items()},
            "sample/env_steps_per_sec": (self.clock.env_steps - self.last_log_steps) / seconds,
            **{f"sample/{name}": value for name, value in sample.items()},
            **{f"learn/{name}": value for name, value in self.learn.result().items()},
            **{f"time/{name}": value for name, value in self.timers.result().items()},
        }
        if sum(spent) > 0:
            row["time/sampler_env_share"] = spent[0] / sum(spent)
        queued = getattr(self.sampler, "queued", None)
        if queued is not None:
            row["sample/queued_fragments"] = queued
        if evaluation:
            row |= {f"eval/{name}": value for name, value in evaluation.items()}
        self.last_log, self.last_log_steps = now, self.clock.env_steps
        head = {name: row.pop(name) for name in ("env_steps", "time_sec", "updates")}
        self.logger.log({**head, **finite(row)})

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, else 0."""
        return 0 if self.signals.stop is None else 128 + (self.signals.stop if self.signals.stop in (signal.SIGINT, signal.SIGTERM) else 0)
