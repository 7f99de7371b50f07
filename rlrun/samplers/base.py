"""Sampler: the door between environments and runners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment


class Sampler(Protocol):
    """Runners cannot tell implementations apart; later one lives on other machines."""

    columns: int  # of one fragment
    total_columns: int

    @property
    def queued(self) -> int:
        """Filled fragments that nobody has taken yet."""
        ...

    def begin(self) -> None:
        """Lets workers begin; take() does it too. publish() comes first."""
        ...

    def take(self, count: int) -> Sequence[Fragment]:
        """`count` fragments, oldest first. A serial sampler steps now; the others wait. RunFailed when a worker died."""
        ...

    def free(self, fragments: Sequence[Fragment]) -> None:
        """Gives the fragments' memory back; their rows must not be read afterwards."""
        ...

    def handles(self) -> list[Any]:
        """What becomes ready when a fragment may have come, for multiprocessing.connection.wait; empty where that cannot be said."""
        ...

    def check(self) -> None:
        """RunFailed when a worker died; returns at once."""
        ...

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        """Makes these weights the ones to act with; None sends the clock alone."""
        ...

    def restart(self, generation: int) -> None:
        """Breaks all columns (Collector.restart)."""
        ...

    def save(self) -> dict: ...

    def load(self, saved: dict) -> None: ...

    def close(self) -> None: ...
