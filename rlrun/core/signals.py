"""Signal handlers, which only set flags that the run reads between updates."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

# A process whose parent dies is told so once for each of the parent's threads, a moment apart. Nobody asks twice so
# soon.
SAME_SEC = 1.0


class Signals:
    """Ctrl-C and SIGTERM request a checkpoint and the end of the run; SIGUSR1 requests a checkpoint. A second Ctrl-C,
    or a second SIGTERM after SAME_SEC, ends the run at once."""

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.stopped_at = 0.0
        self.save = False
        self.before: dict[int, object] = {}

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self.before[number] = signal.signal(number, self._on_stop)
        self.before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._on_save)

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.before = {}

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self.stop is None:
            self.stop, self.stopped_at = signal.Signals(number), time.monotonic()
        elif number == signal.SIGINT or time.monotonic() - self.stopped_at > SAME_SEC:
            raise KeyboardInterrupt

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self.save = True
