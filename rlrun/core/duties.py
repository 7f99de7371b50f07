"""The duties of a run between updates: to stop, save, evaluate and log. Each duty says when it is due."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch

from rlrun.core.algorithm import Algorithm
from rlrun.core.conditions import COUNTED, JUDGED, PLAYED, OnlyFor, OnlyWith
from rlrun.core.estimates import EstimateConfig
from rlrun.core.evaluation import Evaluated, Evaluators
from rlrun.core.metrics import EpisodeStatistics, Means, finite, spread
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.core.timing import Every, Timers

# Evaluates in this process: (algorithm, clock, number of the evaluation, whether to end early) -> result or returns.
Play = Callable[[Algorithm, Clock, int, Callable[[], bool]], Evaluated | list[float]]


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    return_mean: Annotated[float | None, OnlyFor(COUNTED)]
    wall_sec: Annotated[float, Positive] | None
    no_improvement_steps: Annotated[Annotated[int, Positive] | None, OnlyFor(JUDGED)]


GAMES = (OnlyWith("every"), OnlyFor(PLAYED))


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    every: Annotated[int, Count] | None
    episodes: Annotated[int, Count, *GAMES]
    env_steps: Annotated[Annotated[int, Count] | None, *GAMES]
    greedy: Annotated[bool, *GAMES]
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


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: Annotated[int, Count] | None
    every_sec: Annotated[float, NotNegative] | None
    best_every_sec: Annotated[float, NotNegative] | None
    keep: Annotated[int, Count]
    first_sec: Annotated[float, Positive] | None


class Logger(Protocol):
    def log(self, row: dict[str, Any]) -> None: ...


class Progress:
    """Counts what a run has done and how well it does. Checkpoints hold all of it."""

    def __init__(self, episode_window: int = 100) -> None:
        self.clock = Clock()
        self.episodes = EpisodeStatistics(episode_window)
        self.agent_steps = 0  # decisions of all agents, where environments have several
        self.best: float | None = None  # the best metric seen
        self.best_at = 0  # env steps of the last improvement
        self.wall_before = 0.0  # seconds of earlier sessions
        self.started = time.monotonic()

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
        self.best, self.best_at, self.wall_before = state["best"], state["best_at"], state["wall_sec"]


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
        episodes, mean = progress.episodes, progress.episodes.mean
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
                return "STOPPED", f"no better mean return for {cfg.no_improvement_steps} env steps"
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
        last = "inside the last update, which was finished" if self.updated else "with the last rows, taken together"
        return f"{steps} env steps; env_steps={self.total} was reached {last}"


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


class Saves:
    """Writes checkpoints at regular intervals, for a new best metric, when a signal asks for one, and at the end."""

    def __init__(
        self, cfg: CheckpointConfig, signals: Signals, progress: Progress, evaluations: Evaluations, at_end: bool
    ):
        self.cfg, self.signals, self.progress = cfg, signals, progress
        self.evaluations, self.at_end = evaluations, at_end
        self.best: float | None = None  # the metric of the checkpoint that best.json names
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

        It is the last evaluation's mean if evaluation is on, otherwise the mean of the last training episodes."""
        if self.evaluations.on:
            return self.evaluations.mean
        return self.progress.episodes.mean if self.progress.episodes.full else None

    @property
    def judged_by(self) -> str:
        """What the metric is of: evaluations or training episodes."""
        return "evaluations" if self.evaluations.on else "training"

    @property
    def better(self) -> bool:
        """Tells whether the metric is better than that of the best checkpoint."""
        return improves(self.metric, self.best)

    @property
    def as_best(self) -> bool:
        """Tells whether a checkpoint made now would be the best one.

        If evaluation is on, only weights that were just evaluated can be."""
        return self.better and (self.evaluations.fresh or not self.evaluations.on)

    def due(self, clock: Clock, over: bool) -> bool:
        cfg, self.now = self.cfg, time.monotonic()
        due = self.every(clock.env_steps) or (cfg.every_sec is not None and self.now - self.last >= cfg.every_sec)
        if self.better and self.evaluations.fresh:
            due = True
        elif self.better and not self.evaluations.on and cfg.best_every_sec is not None:
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


LOOK_SEC = 30.0  # seconds between two looks; a run that is shorter has little to gain from advice
BUSY = 1.5  # processes that want each core of the machine, from which on the times of this run say little about it
# A look needs so many env steps, or LOOK_SEC spent in them: in fewer, a few pauses of a busy machine weigh too much.
LOOK_STEPS = 2000


class SecondLook:
    """Looks at the speed of the environments while the run goes on, and prints once if it is not what was expected."""

    def __init__(self, judge: Callable[[float, float], str | None] | None):
        """judge: takes the mean seconds of an env step, and the share of the run's time that all of them took (above 1
        where several processes step), and returns a sentence for the user, or None. If it is None, nothing was
        expected."""
        self.judge = judge
        self.env_sec, self.steps = 0.0, 0
        self.begun = self.last = time.monotonic()

    def note(self, env_sec: float, steps: int) -> None:
        """Counts a fragment."""
        if self.judge is None:
            return
        self.env_sec, self.steps, now = self.env_sec + env_sec, self.steps + steps, time.monotonic()
        if now - self.last >= LOOK_SEC and (self.steps >= LOOK_STEPS or self.env_sec >= LOOK_SEC):
            self.last = now
            if others_are_busy():
                return
            said = self.judge(self.env_sec / self.steps, self.env_sec / (now - self.begun))
            if said is not None:
                print(f"  note: {said}", flush=True)
                self.judge = None


def others_are_busy() -> bool:
    """Whether more processes want to run on this machine than it has cores for, which makes every step look slow."""
    return os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)


RATE_SEC = 5.0  # rows that follow each other faster share a rate over this time, which is steadier


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """When a row is written: whichever of the two comes first."""

    every_sec: float | None  # None: rows follow env steps alone
    every_steps: int | Literal["auto"] | None  # None: rows follow the clock alone

    def steps_after(self, at: int, total: int) -> float:
        """The env steps of the next row after one at `at` env steps, of a run of `total`.

        auto: a row is due when the env steps have grown by a thirtieth, or by a hundredth of the whole run. So a run
        has at least 100 rows, one that is stopped early has many too, and a fast one has few hundred."""
        if self.every_steps is None:
            return math.inf
        return at + (max(1, min(at // 30, total // 100)) if self.every_steps == "auto" else self.every_steps)


class Logs:
    """Collects metrics and writes a row of them at regular intervals of seconds and of env steps."""

    def __init__(
        self, cfg: LogConfig, total: int, logger: Logger, progress: Progress, timers: Timers, from_data: bool = False
    ):
        """total: env steps of the whole run. from_data: whether env steps count rows that are learnt from."""
        self.from_data = from_data
        self.cfg, self.total, self.logger, self.progress, self.timers = cfg, total, logger, progress, timers
        self.learn, self.sample = Means(), Means()
        self.last_steps = 0
        self.next = math.inf
        self.begin_clock()

    def begin(self, clock: Clock) -> None:
        self.last_steps = clock.env_steps
        self.next = self.cfg.steps_after(clock.env_steps, self.total)

    def begin_clock(self) -> None:
        """Starts measuring rates."""
        self.last = time.monotonic()
        self.marks = deque([(self.last, self.last_steps)])  # times and env steps of the last rows

    def due(self, clock: Clock) -> bool:
        every = self.cfg.every_sec
        return clock.env_steps >= self.next or (every is not None and time.monotonic() - self.last >= every)

    def _rate(self, now: float, steps: int) -> float:
        """Env steps per second since the previous row, or since RATE_SEC ago if that is longer."""
        self.marks.append((now, steps))
        while len(self.marks) > 2 and now - self.marks[1][0] >= RATE_SEC:
            self.marks.popleft()
        then, before = self.marks[0]
        return (steps - before) / max(now - then, 1e-9)

    def row(self, evaluation: dict[str, float | None], queued: int | None, ahead: int) -> dict[str, Any]:
        """Returns all metrics since the last row.

        queued: number of filled fragments that wait. ahead: env steps of the next update, not counted by the clock."""
        now, progress = time.monotonic(), self.progress
        steps = progress.clock.env_steps + ahead
        sample = self.sample.result()
        env_sec, policy_sec, fragment = (sample.pop(name, 0.0) for name in ("env_sec", "policy_sec", "fragment_steps"))
        row: dict[str, Any] = {
            **{f"sample/{name}": value for name, value in progress.episodes.metrics().items()},
            "sample/env_steps_per_sec": self._rate(now, steps),
            **{f"sample/{name}": value for name, value in sample.items()},
            **{f"learn/{name}": value for name, value in self.learn.result().items()},
            **{f"time/{name}": value for name, value in self.timers.result().items()},
        }
        if env_sec + policy_sec > 0:
            row["time/sampler_env_share"] = env_sec / (env_sec + policy_sec)
        if fragment > 0:
            row |= {"time/env_us": 1e6 * env_sec / fragment, "time/policy_us": 1e6 * policy_sec / fragment}
        if self.from_data:
            row["time/rows_learnt"] = progress.clock.env_steps
        if progress.agent_steps:
            row["sample/agent_steps"] = progress.agent_steps
        if queued is not None:
            row["sample/queued_fragments"] = queued
        row |= evaluation
        if ahead:
            row["sample/ahead"] = ahead
        self.last, self.next = now, self.cfg.steps_after(progress.clock.env_steps, self.total)
        head = {"env_steps": progress.clock.env_steps, "time_sec": progress.wall_sec, "updates": progress.clock.updates}
        return {**head, **finite(row)}

    def write(self, row: dict[str, Any]) -> None:
        """Writes a row, to which callbacks may have added numbers or tensors."""
        self.logger.log(
            finite({name: value.item() if isinstance(value, torch.Tensor) else value for name, value in row.items()})
        )
