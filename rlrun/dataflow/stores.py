"""The two doors through which rows and weights leave a process: shared memory implements them today (Slots, WeightBus), an engine of many machines later.

Whoever uses them knows these protocols alone. Both travel to worker processes, so what implements them must be picklable for spawn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from torch import nn

from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock

Key = Hashable  # which place of a FragmentStore; only the store knows what it means


class FragmentStore(Protocol):
    """Places for fragments of one layout. A sampler fills a place, says its key in a Header, and fills it anew when the learner has given it back."""

    @property
    def keys(self) -> Sequence[Key]:
        """Of all places, always in the same order."""
        ...

    def view(self, key: Key) -> Batch:
        """The place's rows, to be written and read where they are, in any process that has the store."""
        ...

    def pin(self) -> None:
        """Called once in the process that has the GPU: makes copies to it as quick as this memory allows."""
        ...

    def unpin(self) -> None:
        """Undoes pin(); does nothing where it was not called."""
        ...


class WeightStore(Protocol):
    """One module's newest parameters and buffers, and the clock at which they were made. One process writes, any number read."""

    @property
    def version(self) -> int:
        """0 before anything was published, then one more with every publish()."""
        ...

    def publish(self, module: nn.Module | None, clock: Clock) -> int:
        """Makes these weights the newest; None repeats the old ones with a new clock. Returns the version."""
        ...

    def read(self, module: nn.Module, seen: int) -> tuple[int, Clock] | None:
        """Copies weights newer than version `seen` into the module -> (version, clock), or None when there are none."""
        ...
