"""All sinks of a run's rows. progress.jsonl is written at once; the others run on a thread that cannot disturb training
when it falls behind or fails."""

from __future__ import annotations

import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlrun.core.awake import awake
from rlrun.core.outputs import tell
from rlrun.core.passwords import masked

PENDING = 10_000  # rows that may wait for slow sinks; further rows are dropped and counted
CLOSE_SEC = 20.0  # at the end of a run, slow sinks that make no progress for so long are left behind
SAY_SEC = 3.0  # a wait that is longer is announced
CPU_SEC = 0.05  # so much work of the loggers' thread counts as progress, such as importing TensorBoard


class Sink(Protocol):
    def log(self, row: dict[str, Any]) -> None: ...

    def close(self, status: str, summary: dict[str, Any]) -> None: ...


class _Histograms(NamedTuple):
    """Numbers by name, at this many env steps."""

    steps: int
    numbers: Mapping[str, Any]


class _Drawing(NamedTuple):
    """A picture that is still to be drawn, at this many env steps."""

    steps: int
    draw: Callable[[], Path]  # draws it and returns its file


class _Picture(NamedTuple):
    steps: int
    file: Path


class _End(NamedTuple):
    """The last thing that sinks are told."""

    status: str
    summary: dict[str, Any]


class Sinks:
    """The run itself calls `direct` sinks. `slow` sinks are made and called on the loggers' thread."""

    def __init__(self, direct: list[Sink], slow: dict[str, Callable[[], Sink]]):
        self.direct = direct
        self.makers = slow
        self.taken = 0  # items that the loggers' thread has begun with
        self.rows: queue.Queue = queue.Queue()
        self.dropped = 0
        self.warned: set[str] = set()
        self.thread = threading.Thread(target=self._work, name="loggers", daemon=True)
        self.thread.start()

    def log(self, row: dict[str, Any]) -> None:
        for sink in list(self.direct):
            if not self._guard(type(sink).__name__, lambda sink=sink: sink.log(row)):  # type: ignore[misc]
                self.direct.remove(sink)
        if self.rows.qsize() < PENDING:
            self.rows.put(row)
        else:
            self.dropped += 1

    def draw(self, steps: int, histograms: Mapping[str, Any]) -> None:
        """Hands histograms to the sinks that can draw them."""
        if histograms and self.rows.qsize() < PENDING:
            self.rows.put(_Histograms(steps, histograms))

    def picture(self, steps: int, draw: Callable[[], Path]) -> None:
        """Has a picture drawn on the loggers' thread, and hands its file to the sinks that can show one."""
        if self.rows.qsize() < PENDING:
            self.rows.put(_Drawing(steps, draw))

    def close_direct(self, status: str, summary: dict[str, Any]) -> None:
        """Closes the direct sinks, which takes no time. close() does so too, unless it has been done."""
        direct, self.direct = self.direct, []
        for sink in direct:
            self._guard(type(sink).__name__, lambda sink=sink: sink.close(status, summary))  # type: ignore[misc]

    def close(
        self,
        status: str,
        summary: dict[str, Any],
        hurried: Callable[[], bool] = lambda: False,
        at_most: float = math.inf,
    ) -> None:
        """Closes all sinks, and waits for the slow ones as long as they make progress.

        A short run may end before TensorBoard is even imported. The wait ends early when hurried() is true, at a
        Ctrl-C, or after `at_most` seconds; the user is told then."""
        self.close_direct(status, summary)
        self.rows.put(_End(status, summary))
        try:
            problem = self._wait(hurried, at_most)
        except KeyboardInterrupt:
            problem = "interrupted"
        if problem:
            self._warn("slow loggers", f"{problem}; the rest of their rows is only in progress.jsonl")
        if self.dropped:
            self._warn("dropped", f"{self.dropped} rows were dropped by slow sinks; progress.jsonl has them")

    def _wait(self, hurried: Callable[[], bool], at_most: float) -> str:
        """Returns an empty string when the thread is done, or why it was left behind."""
        began = heard = awake()
        done, said = self._done(), False
        while self.thread.is_alive():
            now = awake()
            if (newer := self._done()) != done:
                done, heard = newer, now
            if hurried():
                return "interrupted"
            if now - heard >= CLOSE_SEC or now - began >= at_most:
                return f"still busy after {now - began:.0f} s"
            if now - began >= SAY_SEC and not said:
                said = True
                names = " and ".join(self.makers)
                what = f"{names} to store the last rows" if names else "the last pictures to be drawn"
                tell(f"  waiting for {what}; Ctrl-C ends the wait")
            self.thread.join(0.05)
        return ""

    def _done(self) -> tuple[int, int]:
        """A measure of what the loggers' thread has done; it changes while there is progress."""
        try:
            clock = time.pthread_getcpuclockid(self.thread.ident or 0)
            return self.taken, int(time.clock_gettime(clock) / CPU_SEC)
        except (OSError, AttributeError):  # the thread has just ended, or the system has no such clock
            return self.taken, 0

    def _work(self) -> None:
        sinks: dict[str, Sink] = {}
        for name, make in self.makers.items():
            self._guard(name, lambda name=name, make=make: sinks.__setitem__(name, make()))  # type: ignore[misc]
        while True:
            item = self.rows.get()
            self.taken += 1
            if isinstance(item, _Drawing):
                item = self._drawn(item)
            for name in list(sinks):
                if not self._guard(name, lambda sink=sinks[name], item=item: self._hand(sink, item)):  # type: ignore[misc]
                    del sinks[name]
            if isinstance(item, _End):
                return

    def _drawn(self, drawing: _Drawing) -> _Picture | None:
        """Returns the picture, or None if it cannot be drawn, which is said once."""
        try:
            return _Picture(drawing.steps, drawing.draw())
        except Exception as error:
            self._warn("pictures", f"{error} (this picture is left out; the run goes on)")
            return None

    @staticmethod
    def _hand(sink: Any, item: dict[str, Any] | _Histograms | _Picture | _End | None) -> None:
        if isinstance(item, _End):
            sink.close(*item)
        elif isinstance(item, _Histograms):
            if hasattr(sink, "draw"):
                sink.draw(*item)
        elif isinstance(item, _Picture):
            if hasattr(sink, "show"):
                sink.show(*item)
        elif item is not None:
            sink.log(item)

    def _guard(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
            return True
        except Exception as error:
            rest = "" if name == "Jsonl" else "; progress.jsonl continues"
            self._warn(name, f"{error} (this logger is left out from now on{rest})")
            return False

    def _warn(self, name: str, text: str) -> None:
        if name not in self.warned:
            self.warned.add(name)
            tell(f"rlrun: {name}: {masked(text)}", sys.stderr)
