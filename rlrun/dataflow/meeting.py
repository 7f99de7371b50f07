"""Where the learners of one run meet: a store of torch.distributed that all of them reach, and the network between
them.

On one machine the store is a file, and gloo uses the loopback interface. Between machines the first learner's process
serves a TCPStore at the address by which the others reach it, and nowhere else.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist

from rlrun.core.errors import RunFailed
from rlrun.core.variables import variables
from rlrun.dataflow.cut import LearnersCut

NAMED = "GLOO_SOCKET_IFNAME"  # the environment variable in which gloo looks for the name of a network interface
LOOK_SEC = 0.005  # seconds between two looks at how many learners have finished


class Disconnected(Exception):
    """The connection to another learner is broken."""


def together(exchange: Callable[..., Any], *args: Any) -> Any:
    """Runs an exchange and turns its RuntimeError into Disconnected. Gloo and NCCL raise RuntimeError when a connection
    breaks, which must be distinguished from errors in other code."""
    try:
        return exchange(*args)
    except RuntimeError as error:
        raise Disconnected(str(error)) from error


def serve(address: str, world: int, timeout_sec: float) -> dist.TCPStore:
    """Returns the store of the first learner, which listens at a free port of this address alone.

    Raises RunFailed where this machine has no such address."""
    try:
        return _serve(address, world, timeout_sec)
    except NotImplementedError:  # the libuv server of older PyTorch takes no socket; its other server does
        return _serve(address, world, timeout_sec, use_libuv=False)


def _serve(address: str, world: int, timeout_sec: float, **more: bool) -> dist.TCPStore:
    try:
        family, *_, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(place[:2], family=family, backlog=4 * world)
    except OSError as error:
        raise RunFailed(f"the learners cannot meet at {address}, the address of this machine: {error}") from None
    return dist.TCPStore(
        address,
        listener.getsockname()[1],
        world,
        is_master=True,
        timeout=timedelta(seconds=timeout_sec),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
        **more,
    )


def join(address: str, port: int, world: int, timeout_sec: float) -> dist.TCPStore:
    """Returns the store that the first learner serves. Raises RunFailed where it is not reached."""
    try:
        return dist.TCPStore(address, port, world, timeout=timedelta(seconds=timeout_sec), wait_for_workers=False)
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        raise RunFailed(f"the first learner was not reached at {address}:{port}: {said}") from None


def arrive(store: dist.Store) -> None:
    """Tells the first learner that this one is about to connect to the others."""
    together(store.add, "here", 1)


def arrived(store: dist.Store) -> int:
    """Returns how many of the other learners are about to connect."""
    return int(together(store.add, "here", 0))


def interface_to(address: str) -> str:
    """Returns the name of the network interface by which this machine reaches an address.

    Raises RunFailed where there is none; the environment variable GLOO_SOCKET_IFNAME can name one."""
    try:
        family, kind, *_, place = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as asked:
            asked.connect(place)  # sends nothing, and lets the system choose a way
            own = asked.getsockname()[0]
    except OSError as error:
        raise RunFailed(f"this machine does not reach the first learner's address {address}: {error}") from None
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == own for one in addresses):
            return name
    raise RunFailed(
        f"no network interface of this machine has the address {own}, by which it reaches {address}; the environment"
        f" variable {NAMED} can name one"
    )


@contextlib.contextmanager
def through(address: str | None) -> Iterator[None]:
    """Lets gloo use the interface by which this machine reaches an address, or the loopback interface (None), unless
    the environment names one."""
    if os.environ.get(NAMED) or (address is None and sys.platform != "linux"):
        yield
        return
    with variables({NAMED: "lo" if address is None else interface_to(address)}):
        yield


def connections() -> set[int]:
    """Returns the descriptors of this process's TCP connections."""
    return {one.fd for one in psutil.Process().net_connections("tcp") if one.raddr}


def break_off(descriptors: Iterable[int]) -> None:
    """Ends connections, so that nothing waits for the other side any more. Their owner closes the descriptors."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.shutdown(socket.SHUT_RDWR)


class StoreCut:
    """The straggler cut of learners on several machines, which count themselves in their store."""

    def __init__(self, store: dist.Store, world: int, share: float):
        self.store, self.enough = store, math.ceil(share * world)

    def of(self, rank: int) -> LearnersCut:
        return _CountedCut(self.store, self.enough, rank)


class _CountedCut(LearnersCut):
    def __init__(self, store: dist.Store, enough: int, rank: int):
        super().__init__(enough)
        self.store, self.rank = store, rank
        self.looked, self.seen = 0.0, 0

    def finished(self) -> int:
        """The learners that have collected this round's rows. A look at the store takes as long as several env steps,
        so what the last one found is used for a while."""
        now = time.monotonic()
        if self.seen < self.enough and now - self.looked >= LOOK_SEC:
            self.looked, self.seen = now, self._add(0)
        return self.seen

    def done(self) -> None:
        self._add(1)
        if self.rank == 0 and self.round > 2:  # all learners have made the update behind that round
            together(self.store.delete_key, self._key(self.round - 2))
        self.round, self.looked, self.seen = self.round + 1, 0.0, 0

    def _key(self, round_: int) -> str:
        return f"finished-{round_}"

    def _add(self, count: int) -> int:
        return int(together(self.store.add, self._key(self.round), count))
