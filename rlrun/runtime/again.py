"""Lets a run begin again from its newest checkpoint when it has lost a process that nothing replaces while it runs:
another learner, a shard of the replay, or a process that has not answered for too long."""

from __future__ import annotations

import time

from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import ProcessLost, RunFailed, UserError
from rlrun.core.restarts import PROCESS_REPEATS, Repeated, Restarts
from rlrun.core.signals import Signals

FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 1.0, 60.0  # before a run begins again: the first pause, and the longest
# How often a run begins again from one checkpoint, at least. The window of the budget forgets failures that are minutes
# apart, so a run that fails each time before its next save would go on for ever. One that fails now and then saves in
# between, even where hours lie between two saves.
SAME_CHECKPOINT = 5

Restored = tuple[dict, dict]


class Again:
    """What the sessions of one command know of each other."""

    def __init__(self, restarts: Restarts, signals: Signals):
        self.restarts, self.signals = restarts, signals
        self.repeated = Repeated(PROCESS_REPEATS)
        self.times = 0  # how often the run has begun again
        self.began: int | None = None  # the env steps at which it did
        self.moment: tuple[int, int] | None = None  # env steps and updates of the checkpoint from which it did
        self.same = 0  # how often in a row it did from there
        self.wall_sec = 0.0  # the training time of the run when it last failed
        self.failed_at = 0.0  # when that was (time.monotonic())

    def checkpoint(
        self, error: BaseException, checkpoints: Checkpoints, env_steps: int, wall_sec: float
    ) -> Restored | None:
        """Returns the checkpoint from which the run begins again, or None where it ends, as after a signal to stop.

        error: what has ended the session. env_steps: those that it had taken. wall_sec: its training time. Raises
        RunFailed where the budget of the run is spent, where the same process is lost again and again, or where the run
        gets no further than this checkpoint."""
        if not isinstance(error, ProcessLost) or self.restarts.limit == 0:
            return None
        self.wall_sec, self.failed_at = wall_sec, time.monotonic()
        checkpoints.tidy()  # processes that are gone now may have written to a save that was given up
        if not checkpoints.names():
            return None
        if self.signals.stop is not None:
            return None
        try:
            restored = checkpoints.load()
        except UserError as damaged:
            raise RunFailed(f"{error}\nThe run does not begin again: {damaged}") from None
        steps = None if self.began is None else env_steps - self.began
        if self.repeated(str(error), steps):
            raise RunFailed(f"{error}\nThis has happened {self.repeated.times} times in a row, soon after each start.")
        at = restored[1]["env_steps"]
        moment = at, restored[1]["updates"]
        self.same = self.same + 1 if moment == self.moment else 1
        self.moment = moment
        if self.same > (most := max(SAME_CHECKPOINT, self.restarts.limit // 4)):
            raise RunFailed(
                f"{error}\nThe run has begun again {most} times from its checkpoint at {at} env steps, and each time it"
                " failed before it saved another one. If these failures have nothing to do with each other, a smaller"
                " checkpoint.every_sec may help."
            )
        self.restarts.run_failed(str(error), at, env_steps - at)
        self.times, self.began = self.times + 1, at
        return restored

    def count_lost_time(self, restored: Restored) -> None:
        """Adds what the failure has cost to the training time of the restored run, so that stop.wall_sec holds."""
        restored[1]["lost_sec"] = self.wall_sec + time.monotonic() - self.failed_at - restored[1]["wall_sec"]

    def pause(self) -> None:
        """Waits before the run begins again, longer after every failure that the budget still remembers."""
        pause = min(LONGEST_PAUSE_SEC, FIRST_PAUSE_SEC * 2 ** (len(self.restarts.times) - 1))
        end = time.monotonic() + pause
        while time.monotonic() < end and self.signals.stop is None:
            time.sleep(0.05)
