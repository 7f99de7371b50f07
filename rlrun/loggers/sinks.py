"""All sinks of a run's rows. progress.jsonl is written at once; the others run on a thread that cannot disturb training
when it falls behind or fails."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from rlrun.core.passwords import masked

PENDING = 1000  # rows that may wait for slow sinks; further rows are dropped and counted
CLOSE_SEC = 20.0


class Sink(Protocol):
    def log(self, row: dict[str, Any]) -> None: ...

    def close(self, status: str, summary: dict[str, Any]) -> None: ...


class Sinks:
    """The run itself calls `direct` sinks. `slow` sinks are made and called on the loggers' thread."""

    def __init__(self, direct: list[Sink], slow: dict[str, Callable[[], Sink]]):
        self.direct = direct
        self.makers = slow
        self.rows: queue.Queue = queue.Queue(PENDING)
        self.dropped = 0
        self.warned: set[str] = set()
        self.thread = threading.Thread(target=self._work, name="loggers", daemon=True)
        self.thread.start()

    def log(self, row: dict[str, Any]) -> None:
        for sink in list(self.direct):
            if not self._guard(type(sink).__name__, lambda sink=sink: sink.log(row)):  # type: ignore[misc]
                self.direct.remove(sink)
        try:
            self.rows.put_nowait(row)
        except queue.Full:
            self.dropped += 1

    def close(self, status: str, summary: dict[str, Any]) -> None:
        """Closes all sinks. The slow ones get CLOSE_SEC to write what is waiting."""
        for sink in self.direct:
            self._guard(type(sink).__name__, lambda sink=sink: sink.close(status, summary))  # type: ignore[misc]
        try:
            self.rows.put((status, summary), timeout=CLOSE_SEC)
            self.thread.join(CLOSE_SEC)
        except queue.Full:
            pass
        if self.thread.is_alive():
            self._warn(
                "slow loggers", f"still busy after {CLOSE_SEC:.0f} s; the rest of their rows is only in progress.jsonl"
            )
        if self.dropped:
            self._warn("dropped", f"{self.dropped} rows were dropped by slow sinks; progress.jsonl has them")

    def _work(self) -> None:
        sinks: dict[str, Sink] = {}
        for name, make in self.makers.items():
            self._guard(name, lambda name=name, make=make: sinks.__setitem__(name, make()))  # type: ignore[misc]
        while True:
            item = self.rows.get()
            for name in list(sinks):
                if isinstance(item, tuple):
                    self._guard(name, lambda sink=sinks[name], item=item: sink.close(*item))  # type: ignore[misc]
                elif not self._guard(name, lambda sink=sinks[name], item=item: sink.log(item)):  # type: ignore[misc]
                    del sinks[name]
            if isinstance(item, tuple):
                return

    def _guard(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
            return True
        except Exception as error:
            self._warn(name, f"{error} (this logger is left out from now on; progress.jsonl continues)")
            return False

    def _warn(self, name: str, text: str) -> None:
        if name not in self.warned:
            self.warned.add(name)
            print(f"rlrun: {name}: {masked(text)}", file=sys.stderr, flush=True)
