"""Sampler: the interface between environments and runners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment


class Sampler(Protocol):
    """Collects fragments with the published weights. Runners use this protocol only, so that an implementation can also
    run on other machines."""

    columns: int  # columns in one fragment
    total_columns: int

    @property
    def queued(self) -> int:
        """Filled fragments that nobody has taken yet."""
        ...

    def begin(self) -> None:
        """Starts the workers, as take() also does. publish() must have been called before."""
        ...

    def take(self, count: int) -> Sequence[Fragment]:
        """Returns `count` fragments, oldest first. A serial sampler collects them now; others wait for their workers.
        Raises RunFailed when a worker died."""
        ...

    def free(self, fragments: Sequence[Fragment]) -> None:
        """Gives the memory of these fragments back. Their rows must not be read afterwards."""
        ...

    def handles(self) -> list[Any]:
        """Returns handles for multiprocessing.connection.wait that become ready when a fragment may have arrived; empty
        for samplers that have no such handles."""
        ...

    def check(self) -> None:
        """Raises RunFailed when a worker died. Does not block."""
        ...

    def at_work(self) -> bool:
        """Returns whether an environment is in a step or a reset, or has made one since this was asked last. Samplers
        on other machines do not know, and say no."""
        ...

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        """Makes these the weights to act with; None sends only the clock."""
        ...

    def restart(self, generation: int) -> None:
        """Breaks all columns (Columns.restart)."""
        ...

    def save(self) -> dict: ...

    def load(self, saved: dict) -> None: ...

    def close(self) -> None: ...
