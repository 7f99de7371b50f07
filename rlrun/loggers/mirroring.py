"""Sends a run to MLflow while it goes on, on a thread that training never waits for.

Rows wait in progress.jsonl. A server that does not answer is asked again after pauses that grow, and then gets all that
waited. What has not been sent when the run has ended, `rlrun sync` sends.
"""

from __future__ import annotations

import os
import platform
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rlrun.core.awake import awake
from rlrun.core.outputs import tell
from rlrun.loggers.mirror import Mirror, say

FLUSH_SEC = 10.0  # seconds between two batches
AFTER_SEC = 3.0  # the most seconds that the first batch waits for a first row
FILE_SEC = 60.0  # the most seconds that the end of a run waits for a store that is a file and has not failed
FIRST_RETRY_SEC, LONGEST_RETRY_SEC = 2.0, 60.0  # pauses after a failure: the first, and the longest


class Mirroring:
    """Sends a run's rows every FLUSH_SEC, and at its end the rest."""

    def __init__(self, mirror: Mirror, values: Mapping[str, Any], facts: Mapping[str, Any], wait_sec: float):
        """wait_sec: seconds that wait() waits at most."""
        self.mirror, self.values, self.wait_sec = mirror, values, wait_sec
        self.facts = {**facts, "pid": os.getpid(), "host": platform.node()}
        self.wake = threading.Event()
        self.ended: str | None = None
        self.away = False  # whether the last attempt failed
        self.begun = False  # whether the link has been shown
        self.thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        mirror.begin_session()
        self.thread.start()

    def close(self, status: str) -> None:
        """Says that the run has ended and that its summary is written. Does not wait."""
        self.ended = status
        self.wake.set()

    def wait(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Waits until all is sent, for wait_sec seconds at most or until hurried(), and says what is missing then.

        A store that is a file is no server that may never answer: to create it takes a busy machine many seconds, and
        a run waits for FILE_SEC as long as no attempt has failed."""
        begun = awake()
        try:
            while self.thread.is_alive() and not hurried():
                patient = self.mirror.in_file and not self.away
                if awake() - begun >= (max(self.wait_sec, FILE_SEC) if patient else self.wait_sec):
                    break
                self.thread.join(0.05)
        except KeyboardInterrupt:
            pass
        self.mirror.left = self.thread.is_alive()
        if self.thread.is_alive() and (missing := self.mirror.missing(self.ended)):
            path = shlex.quote(str(self.mirror.run_dir))
            say(f"{missing} did not arrive in MLflow yet: rlrun sync {path} sends what is missing")

    def _work(self) -> None:
        self._until_a_row()
        pause = FIRST_RETRY_SEC
        while True:
            ended = self.ended
            try:
                self.mirror.send(self.values, self.facts, ended)
            except Exception as error:  # each server and store has its own exceptions
                if self.mirror.left:
                    return
                self._show_link()
                if not self.away:
                    why = (str(error).splitlines() or [type(error).__name__])[0]
                    say(f"{why} (the run goes on; its rows are sent when MLflow answers)")
                self.away, wait = True, pause
                pause = min(2 * pause, LONGEST_RETRY_SEC)
            else:
                if ended is not None:
                    return
                self._answered()
                self.away, pause, wait = False, FIRST_RETRY_SEC, FLUSH_SEC
            if self.ended is None:
                self.wake.wait(wait)
            elif self.away:
                time.sleep(min(wait, 0.5))  # the run waits for this thread, but not for long

    def _until_a_row(self) -> None:
        """Lets the run begin. To import MLflow takes this process seconds, which the first update would wait for."""
        end, before = time.monotonic() + AFTER_SEC, self._size()
        while self.ended is None and time.monotonic() < end and self._size() == before:
            self.wake.wait(0.1)

    def _size(self) -> int:
        """Bytes of the rows."""
        try:
            return (self.mirror.run_dir / "progress.jsonl").stat().st_size
        except OSError:
            return 0

    def _answered(self) -> None:
        self._show_link()
        if self.away:
            say("it answers again, and has all rows")

    def _show_link(self) -> None:
        """Prints, once, where the experiment is, if the server has answered."""
        if not self.begun and self.mirror.client is not None and (link := self.mirror.link) is not None:
            self.begun = True
            tell(f"  MLflow: {link}")
