"""Several learners: processes of torch.distributed, with gloo between CPUs and NCCL between GPUs.

Rank 0 is the run's own process. On one machine it starts the others as workers; cluster/learners.py starts those on
other machines. A learner that dies breaks its connections, so that the others do not wait for it. Between GPUs this
holds for whatever goes through the CPU (counts, decisions, every update). If a process dies inside an NCCL exchange,
PyTorch's watchdog has to act, which has not been tested.

Only tensors are exchanged, and nothing that is received is unpickled.
"""

from __future__ import annotations

import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlrun.core.awake import awake
from rlrun.core.errors import ProcessLost
from rlrun.core.pulse import DEFAULT, Limits
from rlrun.core.ranks import Ranks
from rlrun.dataflow.blackboard import FLAGS, ORDERED, ROOM, Blackboard
from rlrun.dataflow.meeting import Disconnected, break_off, connections, through, together
from rlrun.dataflow.workers import READY, Workers, start_sec

SAVE_SEC = 900.0  # the longest time that a learner may take to write its replay
LARGE = 2**15  # tensors with at least this many numbers are gradients and not counts
LOOK_SEC = 0.5  # seconds between two looks at learners on other machines while one waits for them
STOP_SEC = 10.0  # for which the first learner still waits for the others when a signal has told the run to stop
# The timeout of all ranks but 0, because rank 0 may evaluate and save for as long as it takes. If it ends, its
# connections break anyway.
FOREVER = timedelta(days=7)
GPU_LOOK_SEC = 1e-4  # between two looks at whether an exchange on GPUs has ended


def _be_patient(patience: timedelta) -> None:
    """Sets the time that an exchange of the learners may take. PyTorch before 2.14 has a private function for it."""
    known = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
    known(patience, dist.group.WORLD)


class ProcessRanks(Ranks):
    """One of `world` learners. Gradients are exchanged on the learners' device, counts and decisions on the CPU."""

    def __init__(
        self,
        rank: int,
        world: int,
        store: dist.Store,
        timeout_sec: float,
        apart: bool = False,
        look: Callable[[float], object] | None = None,
    ):
        """store: that all learners have. apart: whether they are on several machines, and on CPUs. look: called now
        and then while this learner waits for the others, with the seconds that it has waited; it raises if it knows
        that one is gone, or that it should not wait any longer."""
        super().__init__(rank, world)
        self.apart = apart
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and not self.apart else "gloo"
        patience = timedelta(seconds=timeout_sec) if rank == 0 else FOREVER
        # All others have started by now, so that one that is not there is gone.
        connecting = min(patience, timedelta(seconds=start_sec())) if rank == 0 else FOREVER
        before = connections() if self.apart else set()
        try:
            together(dist.init_process_group, backend, None, connecting, world, rank, store)
        except Disconnected:
            dist.distributed_c10d._world.group_count = 0  # names the keys of the store, and only a success resets it
            raise
        _be_patient(patience)
        self.store = store
        self.look = look
        self.board: Blackboard | None = None
        self.connections: set[int] = set()  # with learners on other machines
        self.waiting = False  # whether an exchange has begun and not ended
        # Memory that all learners share, one tensor for each size and dtype of large tensors.
        self.memory: dict[tuple[int, torch.dtype], Tensor] = {}
        try:
            self._exchange(dist.barrier)  # makes the connections now and not in the middle of the first update
            if ORDERED and not self.apart:
                flags = self._shared("flags", (world, FLAGS), torch.int64)
                slots = self._shared("slots", (2, world, ROOM), torch.uint8)
                self.board = Blackboard(flags, slots, rank, timeout_sec if rank == 0 else None, look)
        except BaseException:
            self.connections = connections() - before if self.apart else set()
            self.close()
            raise
        if self.apart:
            self.connections = connections() - before

    def _exchange(self, exchange: Callable[..., Any], *args: Any) -> None:
        """Runs one of torch.distributed's exchanges. Raises Disconnected where another learner is gone."""
        if self.look is None:
            together(exchange, *args)
            return
        # A machine that loses its power or its network breaks no connection, so its loss is noticed by look().
        work, self.waiting = together(functools.partial(exchange, async_op=True), *args), True
        on_gpu = any(isinstance(arg, Tensor) and arg.is_cuda for arg in args)
        begun = looked = awake()
        while not work.is_completed():
            if on_gpu:  # NCCL gives an exchange up for good whose wait() has a limit of time
                time.sleep(GPU_LOOK_SEC)
            else:
                with suppress(RuntimeError):  # the time is over, or the exchange has failed
                    work.wait(timedelta(seconds=LOOK_SEC))
            if awake() - looked >= LOOK_SEC and not work.is_completed():
                looked = awake()
                self.look(looked - begun)
        together(work.wait)  # raises what has failed; on a GPU, the current stream waits for the exchange
        self.waiting = False

    def _meet(self) -> None:
        """Waits until all learners are here."""
        if self.board is not None:
            self.board.meet()
        else:
            self._exchange(dist.barrier)

    def _everyones(self, x: Tensor) -> list[Tensor] | None:
        """Every learner's x [n], which must be on the CPU, from the board; None if there is none, or no room on it."""
        return None if self.board is None or x.device.type != "cpu" else self.board.everyones(x)

    def sum(self, x: Tensor) -> Tensor:
        parts = self._everyones(x.detach().flatten())
        if parts is not None:
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
            return total.view(x.shape)
        total = x.detach().clone()
        self._exchange(dist.all_reduce, total)
        return total

    def sum_(self, x: Tensor) -> None:
        """Sums x over all learners, in place.

        Large tensors on CPUs of one machine are summed through memory that all learners share, where each one sums its
        part of the numbers. Gloo, which uses sockets, takes three times as long.
        """
        n = x.numel()
        if n < LARGE or x.device.type != "cpu" or self.apart:
            super().sum_(x)
            return
        memory = self._memory(n, x.dtype)
        memory[self.rank].view(x.shape).copy_(x)
        self._meet()
        mine = slice(self.rank * n // self.world, (self.rank + 1) * n // self.world)
        torch.sum(memory[: self.world, mine], 0, out=memory[self.world, mine])
        self._meet()  # all sums must be complete before any is read or the memory is used again
        x.copy_(memory[self.world].view(x.shape))

    def _memory(self, n: int, dtype: torch.dtype) -> Tensor:
        """Returns memory [world + 1, n] that all learners share: a row for each learner, and one for the sums."""
        key = (n, dtype)
        if key not in self.memory:
            self.memory[key] = self._shared(f"memory {n} {dtype}", (self.world + 1, n), dtype)
        return self.memory[key]

    def _shared(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns zeros that all learners share, in a file which rank 0 makes and whose path it tells by this name."""
        with nameless_file() if self.rank == 0 else nullcontext() as path:
            if path is not None:
                self.store.set(name, path)
            self._exchange(dist.barrier)
            made = torch.from_file(
                path or self.store.get(name).decode(), shared=True, size=math.prod(shape), dtype=dtype
            ).view(shape)
            self._exchange(dist.barrier)  # all learners have mapped it by now, and the file may end
        return made

    def gather(self, x: Tensor) -> list[Tensor]:
        parts = self._everyones(x)
        if parts is not None:
            return [part.clone() for part in parts]
        sizes = torch.zeros(self.world, dtype=torch.int64)
        sizes[self.rank] = len(x)
        self._exchange(dist.all_reduce, sizes)
        padded = torch.zeros(max(1, int(sizes.max())), dtype=torch.float64)
        padded[: len(x)] = x
        everyone = [torch.empty_like(padded) for _ in range(self.world)]
        self._exchange(dist.all_gather, everyone, padded)
        return [part[:size] for part, size in zip(everyone, sizes.tolist(), strict=True)]

    def first(self, x: int) -> int:
        said = torch.tensor([x])
        parts = self._everyones(said)
        if parts is not None:
            return int(parts[0])
        self._exchange(dist.broadcast, said, 0)
        return int(said.item())

    def firsts(self, data: bytes) -> bytes:
        sent = torch.empty(self.first(len(data)), dtype=torch.uint8)
        if self.rank == 0:
            sent.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._exchange(dist.broadcast, sent, 0)
        return sent.numpy().tobytes()

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
        if self.waiting:  # gloo would go on to wait for what look() has given up
            break_off(self.connections)
        if dist.is_initialized():
            dist.destroy_process_group()
        self.__dict__.pop("store", None)  # the first learner's serves the others as long as it is there


def learner_process(
    pipe: Any, learn: Callable[[Ranks], None], rank: int, world: int, store: str, timeout_sec: float, threads: int
) -> None:
    """The process of a learner other than the first. It calls learn(ranks), which returns when the run is over."""
    torch.set_num_threads(threads)
    pipe.send(READY)
    ranks = _on_this_machine(rank, world, store, timeout_sec)
    try:
        learn(ranks)
    except Disconnected:
        # Another learner is gone, and its own words, which rank 0 may be too busy to read yet, say why. Rank 0 then
        # closes the pipe, or has died itself.
        with suppress(OSError, EOFError):
            while True:
                pipe.recv()
    finally:
        ranks.close()


def patience(timeout_sec: float) -> float:
    """Returns how long the first learner waits for the others: at least as long as they may start or save."""
    return max(timeout_sec, start_sec(), SAVE_SEC)


def until_told_to_stop(look: Callable[[], object], stopping_sec: Callable[[], float | None]) -> Callable[[float], None]:
    """Returns what the first learner does now and then while it waits for the others. It raises Disconnected when the
    run has been told to stop and a wait does not end: a scheduler that has sent SIGTERM kills the process soon.

    look: raises if another learner is gone. stopping_sec: as Stops has it."""

    def look_again(waited_sec: float) -> None:
        look()
        stopping = stopping_sec()
        if stopping is not None and min(stopping, waited_sec) > STOP_SEC:
            raise Disconnected(f"no answer for {waited_sec:.0f} s")

    return look_again


def _on_this_machine(
    rank: int, world: int, path: str, timeout_sec: float, look: Callable[[float], object] | None = None
) -> ProcessRanks:
    """Returns the ranks of a learner whose others are on this machine too, and meet in a file at this path."""
    with through(None):
        return ProcessRanks(rank, world, dist.FileStore(path, world), timeout_sec, look=look)


@contextmanager
def nameless_file() -> Iterator[str]:
    """Yields a path of a file in memory that processes of this user on this machine may open. Where Linux allows, the
    file has no name, so that nothing is left of it when its processes are killed."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("rlrun-ranks")
        yield f"/proc/{os.getpid()}/fd/{file}"
        # Not after an exception: its frames may keep the store, which writes into this path once more when it ends, and
        # by then another file could have the number.
        os.close(file)
        return
    with tempfile.TemporaryDirectory(prefix=f"rlrun-ranks-{os.getpid()}-") as folder:
        yield str(Path(folder) / "store")


@contextmanager
def company(
    world: int,
    learn: Callable[[Ranks], None],
    timeout_sec: float,
    threads: int,
    stopping_sec: Callable[[], float | None] = lambda: None,
    limits: Limits = DEFAULT,
):
    """Yields the ranks of this process, while learn(ranks) runs in a separate process for every other rank.

    Raises RunFailed with the reason when one of them fails. At the end all processes are stopped. learn is pickled.
    stopping_sec: as Stops has it. limits: how long these processes may take to end.
    """
    if world == 1:
        yield Ranks()
        return
    workers, ranks = Workers(), None
    with nameless_file() as store:
        try:
            jobs = {f"learner-{rank}": (learn, rank, world, store, timeout_sec, threads) for rank in range(1, world)}
            workers.start_all(learner_process, jobs, learner=True)
            try:
                # The others need no look: when this process ends, its end of their pipes does, and so do they.
                look = until_told_to_stop(functools.partial(workers.receive_or_nothing, 0.0), stopping_sec)
                ranks = _on_this_machine(0, world, store, patience(timeout_sec), look)
                yield ranks
            except Disconnected as error:
                workers.receive_or_nothing(1.0)  # raises RunFailed with the reason if a learner has died
                raise ProcessLost(f"a learner does not answer: {error}") from error
        finally:
            # An exchange that was given up ends only when the others do, and close() would wait for it.
            given_up = ranks is not None and ranks.waiting
            if given_up:
                workers.stop_recorders(limits)
            if ranks is not None:
                ranks.close()
            if not given_up:
                workers.stop_recorders(limits)
