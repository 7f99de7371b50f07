"""The pulse of a process that steps environments: what it is doing and since when, in memory that its parent reads.

A parent that waits for rows sees from it which of its processes hangs, and in what. Writing costs about a microsecond
for every row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from rlrun.core.awake import awake, awake_since

STARTING, WAITING, STEP, RESET, POLICY = range(5)
SAID = ("starting", "waiting", "in step()", "in reset()", "acting or learning")
# What a process writes: its activity, the nanosecond on the system's monotonic clock at which that began, the rows that
# it has stepped and those that it has handed over, and the longest step and reset so far in nanoseconds.
ACTIVITY, SINCE, ROWS, HANDED, LONGEST_STEP, LONGEST_RESET = range(6)
LEAST_STEP_SEC, LEAST_RESET_SEC = 60.0, 300.0
TIMES_LONGEST = 20.0  # `auto` is so often the longest step or reset so far


class Limits(NamedTuple):
    """Seconds that a process may take. None for steps and resets: 60 s and 300 s, or 20 times the longest so far if
    that is more."""

    step_sec: float | None = None
    reset_sec: float | None = None
    start_sec: float = 120.0
    end_sec: float = 5.0  # for a process to end by itself when it is told to


DEFAULT = Limits()


class Pulses:
    """Memory for the pulses of `count` processes. Picklable for spawn."""

    def __init__(self, count: int, shared: bool = True):
        """shared: whether other processes write or read them. A process that watches itself needs no shared memory,
        which this machine may not have."""
        self.memory = torch.zeros(count, 6, dtype=torch.int64)
        if shared:
            self.memory.share_memory_()

    def of(self, number: int) -> Pulse:
        return Pulse(self.memory[number].numpy())

    def begin(self, number: int) -> None:
        """Says that process `number` is being started."""
        self.memory[number] = torch.tensor([STARTING, time.monotonic_ns(), 0, 0, 0, 0])


class Pulse:
    """One process's pulse."""

    def __init__(self, row: np.ndarray):
        self.row = row

    def beat(self, activity: int) -> None:
        """Says what the process begins to do now."""
        # The time comes first: who reads between the two would take the old time for that of a new activity.
        self.row[SINCE] = time.monotonic_ns()
        self.row[ACTIVITY] = activity

    def stepped(self) -> None:
        """Says that a step has returned."""
        took = time.monotonic_ns() - self.row[SINCE]
        self.row[ROWS] += 1
        if took > self.row[LONGEST_STEP]:
            self._record(LONGEST_STEP)

    def was_reset(self) -> None:
        """Says that a reset has returned."""
        self._record(LONGEST_RESET)

    def _record(self, longest: int) -> None:
        """Keeps how long the process has been doing what it does, if that is the longest so far. One that was longer
        than `auto` allows has been interrupted, and is no measure of what a step may take."""
        took = self.silent_sec()
        if took <= self._automatic(longest):
            self.row[longest] = max(int(self.row[longest]), int(took * 1e9))

    def _automatic(self, longest: int) -> float:
        """Returns how many seconds a step or a reset may take if the user sets no limit."""
        least = LEAST_STEP_SEC if longest == LONGEST_STEP else LEAST_RESET_SEC
        return max(least, TIMES_LONGEST * int(self.row[longest]) / 1e9)

    def handed(self, rows: int | None = None) -> None:
        """Says that so many rows have been handed over, or all so far (None), and that the process waits for more to
        do."""
        self.row[HANDED] = self.row[ROWS] if rows is None else self.row[HANDED] + rows
        self.beat(WAITING)

    @property
    def rows(self) -> int:
        return int(self.row[ROWS])

    @property
    def unfinished(self) -> int:
        """Rows that were stepped and not handed over."""
        return int(self.row[ROWS] - self.row[HANDED])

    def silent_sec(self) -> float:
        """Seconds since the process began what it is doing, without those for which the one that asks was stopped."""
        return awake_since(int(self.row[SINCE]))

    def hang(self, limits: Limits) -> str | None:
        """Returns a phrase that says how long the process has been in step() or reset(), if that is too long."""
        activity, silent = int(self.row[ACTIVITY]), self.silent_sec()
        if activity == STEP:
            limit = limits.step_sec or self._automatic(LONGEST_STEP)
            option = "env.step_timeout_sec"
        elif activity == RESET:
            limit = limits.reset_sec or self._automatic(LONGEST_RESET)
            option = "env.reset_timeout_sec"
        elif activity == STARTING:
            limit, option = limits.start_sec, "resources.start_timeout_sec"
        else:
            return None
        if silent <= limit:
            return None
        return f"hangs: it has been {SAID[activity]} for {silent:.1f} s, and {option} allows {limit:.1f}"


_OF_PROCESS: list[Pulse] = []  # this process's own, if somebody watches it


def own() -> Pulse | None:
    """Returns the process's own pulse."""
    return _OF_PROCESS[0] if _OF_PROCESS else None


def watch(pulse: Pulse | None) -> None:
    """Makes this the process's own pulse, to which doing() writes."""
    _OF_PROCESS[:] = [] if pulse is None else [pulse]
    awake()  # notices from now on when the process is stopped


def next_step() -> None:
    """Says that a process which steps several environments one after another goes on to the next one."""
    if not _OF_PROCESS:
        return
    row = _OF_PROCESS[0].row
    if row[ACTIVITY] == STEP:
        now = time.monotonic_ns()
        if now - row[SINCE] > row[LONGEST_STEP]:
            _OF_PROCESS[0]._record(LONGEST_STEP)
        row[SINCE] = now


@contextmanager
def doing(activity: int, longest: bool = False) -> Iterator[None]:
    """Says that the process does this inside the block, and afterwards what it did before, from then on.

    longest: whether the block is one step, whose time counts for what is taken for a hang."""
    if not _OF_PROCESS:
        yield
        return
    pulse = _OF_PROCESS[0]
    before = int(pulse.row[ACTIVITY])
    pulse.beat(activity)
    try:
        yield
    finally:
        if activity == RESET:
            pulse.was_reset()
        elif longest:
            pulse._record(LONGEST_STEP)
        pulse.beat(before)
