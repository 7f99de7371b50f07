"""A watchdog for processes that step environments themselves, where no parent sees that they hang."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rlrun.core.outputs import tell
from rlrun.core.pulse import POLICY, Limits, Pulses, watch

LOOK_SEC = 0.5
GRACE_SEC = 10.0  # between interrupting an environment and giving it up


class Hang(Exception):
    """Raised inside an environment's step() or reset() that has taken too long."""


class Watchdog:
    """Watches this process's pulse from a thread. An environment that hangs in Python code is interrupted by a Hang,
    which counts as an exception of its own. One that hangs in other code cannot be interrupted, unless it is a call
    that a signal ends, such as time.sleep(), in the main thread."""

    def __init__(self, limits: Limits, stuck: Callable[[str], None]):
        """stuck: called, in the watchdog's thread, with a sentence about an environment that could not be interrupted.

        Must be made in the thread that steps the environments."""
        self.limits, self.stuck = limits, stuck
        self.pulse = Pulses(1, shared=False).of(0)
        self.pulse.beat(POLICY)
        watch(self.pulse)
        self.over = threading.Event()
        self.main = threading.current_thread() is threading.main_thread()
        self.before: Any = signal.signal(signal.SIGALRM, self._interrupt) if self.main else None
        self.ident = threading.get_ident()
        self.thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self.thread.start()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        said = self.pulse.hang(self.limits)
        if said is not None:  # otherwise it has returned in the meantime
            raise Hang(said)

    def _look(self) -> None:
        while not self.over.wait(LOOK_SEC):
            said = self.pulse.hang(self.limits)
            if said is None:
                continue
            if self.main:
                signal.pthread_kill(self.ident, signal.SIGALRM)
            else:
                _raise_in(self.ident, said)
            if self.over.wait(GRACE_SEC):
                return
            said = self.pulse.hang(self.limits)
            if said is not None:
                self.stuck(f"an environment {said}, and it cannot be interrupted")
                return

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        watch(None)
        if self.main:
            signal.signal(signal.SIGALRM, self.before)


def _raise_in(ident: int, said: str) -> None:
    """Raises a Hang between two steps of the Python code of a thread. Signals arrive in the main thread alone."""

    def init(self: Hang) -> None:
        Exception.__init__(self, said)

    # The thread makes the exception itself, from a class and without arguments.
    kind = type(Hang.__name__, (Hang,), {"__init__": init})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(kind))


def _give_up(reason: str) -> None:
    tell(f"rlrun: {reason}", sys.stderr)
    os._exit(1)


@contextmanager
def watched(limits: Limits) -> Iterator[None]:
    """Watches environments that this thread steps inside the block. One that cannot be interrupted ends the process
    with a sentence."""
    dog = Watchdog(limits, _give_up)
    try:
        yield
    finally:
        dog.close()
