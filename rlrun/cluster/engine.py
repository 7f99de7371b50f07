"""What rlrun asks of an engine for many machines. Ray implements it (cluster/ray_engine.py), and tests do without Ray.

A host is an object of the run's own, in a process on one machine, whose methods are called from here. Arguments and
answers are numbers, text, bytes and NumPy arrays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from rlrun.core.errors import ProcessLost
from rlrun.core.pulse import Limits
from rlrun.machine.nodes import Node


class HostLost(ProcessLost):
    """A host has died, or the machine that it was on."""

    def __init__(self, reason: str, machine: bool = False):
        """machine: whether its machine may be gone too."""
        super().__init__(reason)
        self.machine = machine


class Host(Protocol):
    """A host as its caller sees it."""

    name: str
    node: str  # name of the machine that it is on

    def call(self, method: str, *args: Any) -> Any:
        """Begins a call of one of the host's methods, which follow each other in the order of their calls. Returns what
        stands for the answer. An argument may be what put() returned."""
        ...


class Engine(Protocol):
    def nodes(self) -> Sequence[Node]:
        """Returns the machines that are there now."""
        ...

    def address(self) -> str:
        """Returns the address by which the other machines reach this one."""
        ...

    def start(self, kind: str, name: str, node: str, brief: bytes, spare: bool = False) -> Host:
        """Makes an object of the class `kind` (module:Name) with this brief, in a new process on this node. It does not
        wait for it.

        spare: it takes the place of a lost host on a node whose cores are in use already."""
        ...

    def put(self, value: Any) -> Any:
        """Stores an array, so that each machine that is given it fetches it once."""
        ...

    def wait(self, answers: Sequence[Any], timeout: float) -> list[Any]:
        """Returns those answers that are there, after at most `timeout` seconds without one."""
        ...

    def get(self, answer: Any) -> Any:
        """Returns an answer that is there. Raises HostLost if its host has died."""
        ...

    def stop(self, hosts: Sequence[Host], end_sec: float = Limits().end_sec) -> None:
        """Ends hosts, with their processes. They have end_sec to do so by themselves."""
        ...

    def close(self) -> None: ...


LOOK_SEC = 0.2  # seconds between two looks at which machines there are


def working(engine: Engine) -> list[Node]:
    """Returns the machines that are there now and have cores. Ray may run on one without, such as a head that others
    share."""
    return [node for node in engine.nodes() if node.cores]


def awaited(engine: Engine, count: int, seconds: float) -> Sequence[Node]:
    """Waits until so many machines with cores are there, but not longer. Returns all that are there then."""
    end = time.monotonic() + seconds
    while len(nodes := working(engine)) < count and time.monotonic() < end:
        time.sleep(LOOK_SEC)
    return nodes


def places(planned: Sequence[str], there: Sequence[str]) -> list[str | None]:
    """Returns the machine of each that was planned: itself if it is there, or else one that was not planned.

    Simulated nodes have other names when they have started, so they are taken in their order."""
    others = [name for name in there if name not in planned]
    return [name if name in there else others.pop(0) if others else None for name in planned]


def too_few(count: int, there: Sequence[str], seconds: float) -> str:
    return (
        f"the run was planned for {count} machines, and after {seconds:g} s the cluster has {len(there)}"
        f" ({', '.join(there)})"
    )
