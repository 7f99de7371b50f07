"""Signal handlers, which only set flags that the run reads between updates."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

from rlrun.core.outputs import to_nowhere

# A process whose parent dies is told so once for each of the parent's threads, a moment apart. Nobody asks twice so
# soon.
SAME_SEC = 1.0
STOPPING = (
    b"\nrlrun: the run saves and ends after this update; Ctrl-C again ends it at once, with its newest checkpoint\n"
)


class Signals:
    """Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) request a checkpoint and the end of the run; SIGUSR1
    requests a checkpoint. A second Ctrl-C, or a second one of the others after SAME_SEC, ends the run at once. Where
    SIGHUP is ignored, as under nohup, it stays so."""

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.stopped_at = 0.0
        self.save = False
        self.before: dict[int, object] = {}
        self.terminals: list[int] = []  # outputs that a person reads

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, self._on_stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self.before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
            self.terminals = [output for output in (1, 2) if os.isatty(output)]
        self.before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._on_save)

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.before = {}

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self.stop is None:
            self.stop, self.stopped_at = signal.Signals(number), time.monotonic()
            if number == signal.SIGINT and os.isatty(2):  # with a slow environment, an update may take minutes
                os.write(2, STOPPING)
        elif number == signal.SIGINT or time.monotonic() - self.stopped_at > SAME_SEC:
            raise KeyboardInterrupt

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        """Stops, and writes no more to the terminal, which is gone: that would raise an error."""
        for output in self.terminals:
            to_nowhere(output)
        self._on_stop(number, frame)

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True
