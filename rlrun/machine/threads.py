"""Threads of a learner: how many an update takes, found out by trying, and two things at once."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

import torch

from rlrun.machine.products import Products

WARM_UP_SEC = 0.25  # a first update after a change is not counted, unless it is so long that beginnings hardly matter
TRIED, TRIED_SEC = 5, 2.0  # updates that are, or fewer that take so long together
HOPELESS = 1.5  # times the best so far: not tried to the end
AGAIN_SEC = (2.0, 60.0)  # until all are tried again: the first time and after a new choice, then twice as long each time, at most
AGAIN_TIMES = 20.0  # and at least so many times as long as trying the worse ones cost


First = TypeVar("First")
Second = TypeVar("Second")


class HelperTask(NamedTuple):
    """What a helper is asked to do."""

    do: Callable[[], object]
    threads: int
    answer: queue.SimpleQueue


class HelperThread:
    """Does two things that have nothing to write in common, one after the other or, while `threads` is more than 1, in two Python threads with half of
    PyTorch's threads each. Operators let go of the interpreter, so that what keeps a thread busy is arithmetic. Numbers are the same either way."""

    def __init__(self) -> None:
        self.threads = 1
        self.jobs: queue.SimpleQueue[HelperTask] = queue.SimpleQueue()
        self.helper: threading.Thread | None = None

    def __call__(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
        if self.threads == 1:
            return first(), second()
        if self.helper is None:
            self.helper = threading.Thread(target=self._help, name="beside", daemon=True)
            self.helper.start()
        answer: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()  # of this call: an interrupted one's is nobody else's
        self.jobs.put(HelperTask(second, self.threads // 2, answer))
        try:
            done = first()
        finally:
            other, error = answer.get()  # even when this thread's part failed: nobody works on after an update
        if error is not None:
            raise error
        return done, other  # type: ignore[return-value]

    def _help(self) -> None:
        threads = 0
        while True:
            job = self.jobs.get()
            if job.threads != threads:
                torch.set_num_threads(job.threads)
                threads = job.threads
            try:
                job.answer.put((job.do(), None))
            except BaseException as error:
                job.answer.put((None, error))
            del job  # and the batch that it holds


class TunedThreads:
    """Gives PyTorch threads for what is done inside it, and one thread outside. All numbers of threads are tried at the start and again from time to time, and
    at once when updates become slow: two threads are up to twice as fast as one on idle cores, and many times slower beside another busy process. A choice is
    soon looked at again: in a tenth of a second of trying, two threads may have been on one core all the time."""

    def __init__(
        self,
        choices: Sequence[int],
        now: Callable[[], float] = time.perf_counter,
        beside: HelperThread | None = None,
        products: Products | None = None,
    ):
        """beside: of an algorithm that can use it, for which half of the threads then are. products: entered too."""
        self.choices, self.now, self.beside, self.products = tuple(choices), now, beside, products
        self.chosen = self.choices[0]
        self.expected = float("inf")  # seconds of an update
        self.recent: deque[float] = deque(maxlen=TRIED)
        self.trials: list[int] = list(self.choices)  # still to be tried, the first one is
        self.seconds: list[float] = []  # of its updates
        self.results: dict[int, float] = {}
        self.tried: list[float] = []  # seconds of all updates of these trials
        self.pause = self.again = 0.0  # seconds between two trials, and when the next one is

    @property
    def threads(self) -> int:
        return self.trials[0] if self.trials else self.chosen

    def __enter__(self) -> None:
        if len(self.choices) > 1:
            self.take(self.threads)
            self.started = self.now()
        if self.products is not None:
            self.products.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.products is not None:
            self.products.__exit__(kind, error, trace)
        if len(self.choices) > 1:
            self.take(1)
            self.note(self.now() - self.started)

    def take(self, threads: int) -> None:
        """From now on."""
        if self.beside is not None:
            self.beside.threads, threads = threads, max(1, threads // 2)
        torch.set_num_threads(threads)

    def note(self, seconds: float) -> None:
        """An update took so long."""
        if self.trials:
            self._tried(seconds)
            return
        self.recent.append(seconds)
        slow = len(self.recent) == TRIED and min(self.recent) > HOPELESS * self.expected
        if slow or self.now() >= self.again:
            self.trials, self.results, self.tried = list(self.choices), {}, []

    def _tried(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.tried.append(seconds)
        counted = self.seconds[1:] if self.seconds[0] < WARM_UP_SEC else self.seconds
        hopeless = bool(counted and self.results) and min(counted) > HOPELESS * min(self.results.values())
        if len(counted) < TRIED and sum(counted) < TRIED_SEC and not hopeless:
            return
        self.results[self.trials.pop(0)] = statistics.median(counted)
        self.seconds = []
        if not self.trials:
            before, self.chosen = self.chosen, min(self.results, key=self.results.__getitem__)
            shortest, longest = AGAIN_SEC
            self.pause = min(max(shortest, 2 * self.pause), longest) if self.chosen == before else shortest
            self.expected = self.results[self.chosen]
            self.recent.clear()
            lost = sum(max(0.0, seconds - self.expected) for seconds in self.tried)
            self.again = self.now() + max(self.pause, AGAIN_TIMES * lost)
