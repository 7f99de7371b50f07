"""A clock that stands still while this process is stopped, as by Ctrl-Z or by `scontrol suspend`.

Whoever waits for another process, and gives up after some seconds, reads this clock. By the system's clock, a run that
was stopped for ten minutes would find, when it goes on, that nobody has said a word for ten minutes."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LOOK_SEC = 0.5  # seconds between two looks at the system's clock
STOPPED_SEC = 5.0  # a look that comes so much too late means that the process was stopped
# A look is late too while C code keeps Python's lock (GIL). The thread that looks wakes up 200 times a second then, to
# ask for the lock. One that is stopped never does.
WAKES_PER_SEC = 20.0


class _Stops:
    """When this process was stopped, as a thread of its own finds by looking at the clock too late."""

    def __init__(self) -> None:
        # A signal's handler may look while the thread that it interrupts does.
        self.pid, self.lock = os.getpid(), threading.RLock()
        self.looked, self.total = time.monotonic(), 0.0
        self.stops: deque[tuple[float, float]] = deque(maxlen=1000)  # beginnings and ends
        self.woken = 0  # how often the thread had woken up when it looked last
        self.thread = threading.Thread(target=self._keep_looking, name="awake", daemon=True)
        self.thread.start()

    def _keep_looking(self) -> None:
        while True:
            time.sleep(LOOK_SEC)
            self.look()
            self.woken = _wakes(self.thread)

    def look(self) -> tuple[float, float]:
        """Returns the time now, and for how many seconds the process was stopped so far. The thread that looks first
        after a stop records it."""
        with self.lock:
            now = time.monotonic()
            late = now - self.looked - LOOK_SEC
            if late > STOPPED_SEC and _wakes(self.thread) - self.woken < WAKES_PER_SEC * late:
                self.stops.append((self.looked + LOOK_SEC, now))
                self.total += late
            self.looked = max(self.looked, now)  # a signal's handler may have looked meanwhile
            return now, self.total


def _wakes(thread: threading.Thread) -> int:
    """How often a thread of this process has gone on after it had waited; 0 where the system does not say it."""
    try:
        said = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    except OSError:  # only Linux has it
        return 0
    return next((int(line.split()[1]) for line in said.splitlines() if line.startswith("voluntary_ctxt_switches")), 0)


_stops: _Stops | None = None


def _of_process() -> _Stops:
    """This process's own; one that was forked does not have its parent's thread."""
    global _stops
    if _stops is None or _stops.pid != os.getpid():
        _stops = _Stops()
    return _stops


def awake() -> float:
    """Seconds on the system's monotonic clock, without those for which this process was stopped."""
    now, stopped = _of_process().look()
    return now - stopped


def awake_since(moment_ns: int) -> float:
    """Seconds since this moment of time.monotonic_ns(), without those for which this process was stopped."""
    stops, moment = _of_process(), moment_ns / 1e9
    now, _ = stops.look()
    return now - moment - sum(max(0.0, end - max(begin, moment)) for begin, end in list(stops.stops))


def patiently(wait: Callable[[float], T], timeout: float) -> T:
    """Returns what wait(timeout) does. If that is nothing, and the process was stopped meanwhile, it waits again for
    the rest of the time."""
    end = awake() + timeout
    found = wait(timeout)
    while not found and (left := end - awake()) > 0.0:
        found = wait(left)
    return found
