"""A run's duty to log between updates: rows of metrics, and a second look at the speed of its environments."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from rlrun.core.duties import Progress
from rlrun.core.metrics import Means, finite
from rlrun.core.outputs import tell
from rlrun.core.schedule import Clock
from rlrun.core.timing import Timers

LOOK_SEC = 30.0  # seconds between two looks; a run that is shorter has little to gain from advice
BUSY = 1.5  # running and waiting processes per core; with more, times say little about the machine
# A look needs so many env steps, or LOOK_SEC spent in them: in fewer, a few pauses of a busy machine weigh too much.
LOOK_STEPS = 2000


class Logger(Protocol):
    def log(self, row: dict[str, Any]) -> None: ...


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
                tell(f"  note: {said}")
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
        self.learn, self.sample = Means(many=True), Means(many=True)
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
