"""The two protocols by which rows and weights leave a process.

Shared memory implements them now (Slots, WeightBus); an engine for many machines can do so later. Users know only these
protocols. Both are sent to worker processes, so implementations must be picklable for spawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from torch import nn

from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock

Key = Hashable  # names a place in a FragmentStore; only the store knows what it means


class FragmentStore(Protocol):
    """Places for fragments of one layout. A sampler fills a place, sends its key in a Header, and fills it again when
    the learner has given it back."""

    @property
    def keys(self) -> Sequence[Key]:
        """The keys of all places, always in the same order."""
        ...

    def view(self, key: Key) -> Batch:
        """Returns the rows of a place as a view, which any process that has the store can read and write."""
        ...

    def pin(self) -> None:
        """Makes copies to the GPU as fast as this memory allows. Called once, in the process that uses the GPU."""
        ...

    def unpin(self) -> None:
        """Undoes pin(). Does nothing if pin() was not called."""
        ...


class WeightStore(Protocol):
    """The newest parameters and buffers of one module, and the clock at which they were made. One process writes, and
    any number of processes read."""

    @property
    def version(self) -> int:
        """The number of publish() calls so far."""
        ...

    def publish(self, module: nn.Module | None, clock: Clock) -> int:
        """Makes these weights the newest; None repeats the old ones with a new clock. Returns the version."""
        ...

    def read(self, module: nn.Module, seen: int) -> tuple[int, Clock, int] | None:
        """Copies weights newer than version `seen` into the module and returns (version, clock, number of updates that
        made the weights), or None if there are none. The clock may be newer than the weights."""
        ...
