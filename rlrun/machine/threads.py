"""Threads of a learner: tunes how many an update uses, and runs two functions at the same time."""

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

WARM_UP_SEC = 0.25  # the first update after a change does not count if it is shorter than this
TRIED, TRIED_SEC = 5, 2.0  # a trial ends after this many updates, or after this many seconds of updates
HOPELESS = 1.5  # a trial ends early if its updates take more than this many times the best time so far
LATE = 3.0  # an update goes on with the first choice once it has taken this many times what the chosen number took
# Seconds until the next trials: the first time and after a new choice, then twice as long each time, up to the second
# value.
AGAIN_SEC = (2.0, 60.0)
AGAIN_TIMES = 20.0  # the next trials also wait for this many times the seconds that the slower choices cost


First = TypeVar("First")
Second = TypeVar("Second")


class HelperTask(NamedTuple):
    """A function for the helper thread, with its number of PyTorch threads and a queue for its result."""

    do: Callable[[], object]
    threads: int
    answer: queue.SimpleQueue


class HelperThread:
    """Runs two functions that do not write to the same tensors.

    They run one after the other or, while `threads` is more than 1, in two Python threads with half of PyTorch's
    threads each. PyTorch's operators release the interpreter lock, so that both can compute. Results are the same
    either way.
    """

    def __init__(self) -> None:
        self.threads = 1
        self.jobs: queue.SimpleQueue[HelperTask | None] = queue.SimpleQueue()
        self.helper: threading.Thread | None = None

    def __call__(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
        if self.threads == 1:
            return first(), second()
        if self.helper is None:
            self.helper = threading.Thread(target=self._help, name="beside", daemon=True)
            self.helper.start()
        # every call has its own queue, so that it cannot read the answer of an interrupted call
        answer: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        self.jobs.put(HelperTask(second, self.threads // 2, answer))
        try:
            done = first()
        finally:
            other, error = answer.get()  # also after an error here: the helper must not go on after the update
        if error is not None:
            raise error
        return done, other  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the helper thread, and with it PyTorch's threads that computed for it. The next call makes a new one."""
        if self.helper is not None:
            self.jobs.put(None)
            self.helper.join(1.0)  # it works no longer, unless a second Ctrl-C has interrupted a call
            self.helper, self.jobs = None, queue.SimpleQueue()

    def _help(self) -> None:
        threads, jobs = 0, self.jobs
        while (job := jobs.get()) is not None:
            if job.threads != threads:
                torch.set_num_threads(job.threads)
                threads = job.threads
            try:
                job.answer.put((job.do(), None))
            except BaseException as error:
                job.answer.put((None, error))
            del job  # releases the batch that it holds


class TunedThreads:
    """A context that gives PyTorch the best number of threads inside and one thread outside.

    All numbers are tried at the start, from time to time, and at once when updates become slow: two threads are up to
    twice as fast as one on idle cores and many times slower beside another busy process. A new choice is soon tried
    again, because in a trial of a tenth of a second two threads may have shared one core all the time. Updates of
    several minibatches call minibatch_done() in between, so that a hopeless number of threads costs a minibatch, not a
    whole update.
    """

    def __init__(
        self,
        choices: Sequence[int],
        now: Callable[[], float] = time.perf_counter,
        beside: HelperThread | None = None,
        products: Products | None = None,
    ):
        """choices: numbers of threads to try; now: the clock in seconds; products: a context that is entered as well.

        beside: runs parts of the update side by side, with half of the threads each.
        """
        self.choices, self.now, self.beside, self.products = tuple(choices), now, beside, products
        self.chosen = self.used = self.choices[0]  # used: in the update that is being made
        self.started: float | None = None  # when that update began
        self.expected = float("inf")  # seconds of an update with the chosen number
        self.recent: deque[float] = deque(maxlen=TRIED)
        self.trials: list[int] = list(self.choices)  # numbers left to try; the first one is being tried
        self.seconds: list[float] = []  # durations of the updates in the current trial
        self.results: dict[int, float] = {}
        self.tried: list[float] = []  # durations of all updates in this round of trials
        self.pause = self.again = 0.0  # seconds between two rounds of trials; time of the next round

    @property
    def threads(self) -> int:
        return self.trials[0] if self.trials else self.chosen

    def __enter__(self) -> None:
        if len(self.choices) > 1:
            self.used = self.threads
            self.take(self.used)
            self.started = self.now()
        if self.products is not None:
            self.products.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.products is not None:
            self.products.__exit__(kind, error, trace)
        if self.started is not None:
            self.take(1)
            self.note(self.now() - self.started)
            self.started = None

    def minibatch_done(self) -> None:
        """Leaves the number of threads for the rest of this update if the update is already much too slow with it."""
        if self.started is None:
            return
        if self.trials:
            if not self.results:
                return  # there is nothing to compare the first trial with
            instead = min(self.results, key=self.results.__getitem__)
            limit = HOPELESS * self.results[instead]
        else:
            instead, limit = self.choices[0], LATE * self.expected
        if instead != self.used and self.now() - self.started > limit:
            self.take(instead)
            self.used = instead
            self.again = 0.0  # outside of trials, they begin after this update

    def take(self, threads: int) -> None:
        """Sets the number of threads from now on."""
        if self.beside is not None:
            self.beside.threads, threads = threads, max(1, threads // 2)
        torch.set_num_threads(threads)

    def note(self, seconds: float) -> None:
        """Takes note of an update's duration in seconds."""
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
