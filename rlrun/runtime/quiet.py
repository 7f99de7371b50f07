"""What a run prints in a program that has called it from Python: all of it, or nothing but what its callback prints."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, Any]


class _Here(threading.local):
    """What each thread has for itself."""

    quiet: bool | None = None  # whether what it prints is dropped; None: it is in no quiet run, nor in its callback


_HERE = _Here()
_STDOUT = threading.Lock()  # of who puts something in the place of sys.stdout


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


class _Stdout:
    """Stands in the place of sys.stdout, which belongs to the whole program, while runs are quiet. What these runs
    print is dropped, and what other threads of the program print is not."""

    def __init__(self, real: Any):
        self.real, self.nowhere, self.runs = real, _Nowhere(), 0

    def __getattr__(self, name: str) -> Any:
        quiet = self.runs > 0 and _started_by_rlrun() if _HERE.quiet is None else _HERE.quiet
        return getattr(self.nowhere if quiet else self.real, name)


def _started_by_rlrun() -> bool:
    """Whether this is a thread that a run has started, such as the one that lets samplers act."""
    frame, outermost = sys._getframe(2), ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        outermost = outermost if name == "threading" else name
        frame = frame.f_back  # type: ignore[assignment]
    return outermost.startswith("rlrun.")


@contextlib.contextmanager
def printing(quiet: bool) -> Iterator[None]:
    """Drops what this thread and a run's own print inside the block, if quiet."""
    if not quiet:
        yield
        return
    with _STDOUT:
        if not isinstance(sys.stdout, _Stdout):
            sys.stdout = _Stdout(sys.stdout)
        stdout = sys.stdout
        stdout.runs += 1
    try:
        with _here(quiet=True):
            yield
    finally:
        with _STDOUT:
            stdout.runs -= 1
            if stdout.runs == 0 and sys.stdout is stdout:
                sys.stdout = stdout.real


@contextlib.contextmanager
def _here(quiet: bool) -> Iterator[None]:
    before, _HERE.quiet = _HERE.quiet, quiet
    try:
        yield
    finally:
        _HERE.quiet = before


def aloud(callback: Callable[[Row], Any]) -> Callable[[Row], Any]:
    """The callback, which may print although the run is quiet."""

    def called(row: Row) -> Any:
        with _here(quiet=False):
            return callback(row)

    return called
