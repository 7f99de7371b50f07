"""How many threads an update takes, found out by trying."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import torch

WARM_UP = 1  # updates after a change that are not counted
TRIED = 5  # updates that are
HOPELESS = 1.5  # times the best so far: not tried to the end
AGAIN_SEC = 30.0


class TunedThreads:
    """Gives PyTorch threads for what is done inside it, and one thread outside. All numbers of threads are tried at the start and every AGAIN_SEC, and at
    once when updates become slow: two threads are up to twice as fast as one on idle cores, and many times slower beside another busy process."""

    def __init__(self, choices: Sequence[int], now: Callable[[], float] = time.perf_counter):
        self.choices, self.now = tuple(choices), now
        self.chosen = self.choices[0]
        self.expected = float("inf")  # seconds of an update
        self.recent: deque[float] = deque(maxlen=TRIED)
        self.trials: list[int] = list(self.choices)  # still to be tried, the first one is
        self.seconds: list[float] = []  # of its updates
        self.results: dict[int, float] = {}
        self.again = 0.0

    @property
    def threads(self) -> int:
        return self.trials[0] if self.trials else self.chosen

    def __enter__(self) -> None:
        if len(self.choices) > 1:
            torch.set_num_threads(self.threads)
            self.started = self.now()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if len(self.choices) > 1:
            torch.set_num_threads(1)
            self.note(self.now() - self.started)

    def note(self, seconds: float) -> None:
        """An update took so long."""
        if self.trials:
            self._tried(seconds)
            return
        self.recent.append(seconds)
        slow = len(self.recent) == TRIED and min(self.recent) > HOPELESS * self.expected
        if slow or self.now() >= self.again:
            self.trials, self.results = list(self.choices), {}

    def _tried(self, seconds: float) -> None:
        self.seconds.append(seconds)
        counted = self.seconds[WARM_UP:]
        hopeless = bool(counted and self.results) and min(counted) > HOPELESS * min(self.results.values())
        if len(counted) < TRIED and not hopeless:
            return
        self.results[self.trials.pop(0)] = statistics.median(counted)
        self.seconds = []
        if not self.trials:
            self.chosen = min(self.results, key=self.results.__getitem__)
            self.expected = self.results[self.chosen]
            self.recent.clear()
            self.again = self.now() + AGAIN_SEC
