"""Streams and events of the emulated GPU.

Kernels run at once. What a GPU does late, as far as its host can tell, is to bring numbers home and to read page-locked
memory: such work waits in its stream until somebody waits for the stream, or for an event behind it.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable

LOCK = threading.RLock()


class Stream:
    def __init__(self, device=None, priority=0):
        self.device, self.priority = device, priority
        self.late: deque[Callable[[], None]] = deque()
        self.done = 0  # works that left the queue

    @property
    def end(self) -> int:
        """The number of works that have ever been queued."""
        return self.done + len(self.late)

    def later(self, work: Callable[[], None]) -> None:
        with LOCK:
            self.late.append(work)

    def finish(self, end: int | None = None) -> None:
        """Does the works up to this number, or all of them."""
        with LOCK:
            end = self.end if end is None else end
            while self.done < end:
                self.done += 1
                self.late.popleft()()

    def synchronize(self) -> None:
        self.finish()

    def query(self) -> bool:
        return not self.late

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: "Event") -> None:
        if event.stream not in (None, self):
            self.later(event.synchronize)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = Event() if event is None else event
        event.record(self)
        return event


class Event:
    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.stream: Stream | None = None
        self.end = 0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = current_stream() if stream is None else stream
        self.end = self.stream.end

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.finish(self.end)

    def wait(self, stream: Stream | None = None) -> None:
        (current_stream() if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        """Says no once while work is left, and does it then, as if a moment had passed."""
        if self.stream is None or self.stream.done >= self.end:
            return True
        self.synchronize()
        return False


DEFAULT = Stream()
_OWN = threading.local()


def current_stream(device=None) -> Stream:
    return getattr(_OWN, "stream", DEFAULT)


@contextlib.contextmanager
def stream(chosen: Stream | None):
    before = current_stream()
    _OWN.stream = before if chosen is None else chosen
    try:
        yield
    finally:
        _OWN.stream = before
