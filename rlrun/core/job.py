"""Job is what runners see of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rlrun.core.algorithm import Algorithm, Update
from rlrun.core.learners import FragmentHeader, Kept
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.core.timing import Timers


class Job(Protocol):
    """The part of a run that runners use. Learners other than the first have a FollowingLearner in place of a Run."""

    timers: Timers
    # Called with the new generation when an exact run breaks its columns, to make other parts forget their rows.
    breaks: list[Callable[[int], None]]
    # The number of starts of this run, or of checkpoints if it is exact. Environment seeds depend on it.
    generation: int
    # Env steps taken for the next update, which the clock does not count yet. Runners that play whole episodes set it.
    ahead: int
    restarts: Restarts  # the budget for processes and environments that fail
    # Runners whose learners do not wait for each other set this. It stops the learners and returns their common clock.
    hold_learners: Callable[[], Clock] | None

    def begin(self, algorithm: Algorithm) -> Clock: ...

    def sampler_ready(self, sampler: Any) -> None: ...

    def keeps(self, name: str, thing: Kept) -> None:
        """Restores `thing` (such as a replay) and from now on saves it under this name. Call it after sampler_ready."""
        ...

    def collected(self, headers: Sequence[FragmentHeader]) -> int:
        """Records the episodes of a new batch. Returns the env steps that all learners took for it."""
        ...

    def tick(self, clock: Clock, update: Update | None) -> bool: ...

    def stopping(self) -> bool: ...

    def rescuing(self) -> AbstractContextManager[None]:
        """A context in which a failure saves what was learnt. Runners enter it where they close, at their end, what a
        checkpoint needs."""
        ...
