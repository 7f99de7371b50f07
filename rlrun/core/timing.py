"""Measures where a run spends its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timers:
    """Seconds per named section since the last result()."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.since = time.monotonic()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def result(self) -> dict[str, float]:
        """The share of the wall time that each section took since the last call. It then starts again from zero."""
        now = time.monotonic()
        wall = max(now - self.since, 1e-9)
        shares = {f"{name}_share": seconds / wall for name, seconds in self.seconds.items()}
        self.seconds, self.since = {}, now
        return shares


class Every:
    """Is true once each time a counter reaches another multiple of `steps`, and never if steps is None."""

    def __init__(self, steps: int | None, start: int = 0):
        self.steps = steps
        self.next = None if steps is None else (start // steps + 1) * steps

    def __call__(self, value: int) -> bool:
        if self.next is None or self.steps is None or value < self.next:
            return False
        self.next = (value // self.steps + 1) * self.steps
        return True
