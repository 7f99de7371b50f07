"""Several learners: processes of torch.distributed, with gloo between CPUs and NCCL between GPUs.

Rank 0 is the run's own process and starts the others as workers. A worker that dies breaks its connections, so that
the others do not wait for it. Between GPUs this holds for whatever goes through the CPU (counts, decisions, every
update). If a process dies inside an NCCL exchange, PyTorch's watchdog has to act, which has not been tested.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlrun.core.errors import ProcessLost
from rlrun.core.ranks import Ranks
from rlrun.dataflow.workers import READY, Workers, start_sec

SAVE_SEC = 900.0  # the longest time that a learner may take to write its replay
LARGE = 2**15  # tensors with at least this many numbers are gradients and not counts
# The timeout of all ranks but 0, because rank 0 may evaluate and save for as long as it takes. If it ends, its
# connections break anyway.
FOREVER = timedelta(days=7)


class Disconnected(Exception):
    """The connection to another learner is broken."""


def _together(exchange: Callable[..., Any], *args: Any) -> None:
    """Runs an exchange and turns its RuntimeError into Disconnected. Gloo and NCCL raise RuntimeError when a connection
    breaks, which must be distinguished from errors in other code."""
    try:
        exchange(*args)
    except RuntimeError as error:
        raise Disconnected(str(error)) from error


class ProcessRanks(Ranks):
    """One of `world` learners. Gradients are exchanged on the learners' device, counts and decisions on the CPU."""

    def __init__(self, rank: int, world: int, store: str, timeout_sec: float):
        if sys.platform == "linux":
            # All learners are on this machine, so the loopback interface works whatever the host name resolves to.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        super().__init__(rank, world)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        patience = timedelta(seconds=timeout_sec) if rank == 0 else FOREVER
        dist.init_process_group(
            backend, store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=patience
        )
        self.store = store
        # Memory that all learners share, one tensor for each size and dtype of large tensors.
        self.memory: dict[tuple[int, torch.dtype], Tensor] = {}
        _together(dist.barrier)  # makes the connections now and not in the middle of the first update

    def sum(self, x: Tensor) -> Tensor:
        total = x.detach().clone()
        _together(dist.all_reduce, total)
        return total

    def sum_(self, x: Tensor) -> None:
        """Sums x over all learners, in place.

        Large tensors on CPUs are summed through memory that all learners share, where each one sums its part of the
        numbers. Gloo, which uses sockets, takes three times as long.
        """
        n = x.numel()
        if n < LARGE or x.device.type != "cpu":
            super().sum_(x)
            return
        memory = self._memory(n, x.dtype)
        memory[self.rank].view(x.shape).copy_(x)
        _together(dist.barrier)
        mine = slice(self.rank * n // self.world, (self.rank + 1) * n // self.world)
        torch.sum(memory[: self.world, mine], 0, out=memory[self.world, mine])
        _together(dist.barrier)  # all sums must be complete before any is read or the memory is used again
        x.copy_(memory[self.world].view(x.shape))

    def _memory(self, n: int, dtype: torch.dtype) -> Tensor:
        """Returns memory [world + 1, n] that all learners share: a row for each learner, and one for the sums."""
        key = (n, dtype)
        if key not in self.memory:
            path = Path(f"{self.store}-{n}-{str(dtype).rpartition('.')[2]}")
            self.memory[key] = torch.from_file(str(path), shared=True, size=(self.world + 1) * n, dtype=dtype).view(
                self.world + 1, n
            )
            _together(dist.barrier)
            if self.rank == 0:
                path.unlink()  # all learners have mapped it by now; without the file a killed run leaves nothing behind
        return self.memory[key]

    def gather(self, x: Tensor) -> list[Tensor]:
        sizes = torch.zeros(self.world, dtype=torch.int64)
        sizes[self.rank] = len(x)
        _together(dist.all_reduce, sizes)
        padded = torch.zeros(max(1, int(sizes.max())), dtype=torch.float64)
        padded[: len(x)] = x
        everyone = [torch.empty_like(padded) for _ in range(self.world)]
        _together(dist.all_gather, everyone, padded)
        return [part[:size] for part, size in zip(everyone, sizes.tolist(), strict=True)]

    def first(self, x: int) -> int:
        said = torch.tensor([x])
        _together(dist.broadcast, said, 0)
        return int(said.item())

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def learner_process(
    pipe: Any, learn: Callable[[Ranks], None], rank: int, world: int, store: str, timeout_sec: float, threads: int
) -> None:
    """The process of a learner other than the first. It calls learn(ranks), which returns when the run is over."""
    torch.set_num_threads(threads)
    pipe.send(READY)
    ranks = ProcessRanks(rank, world, store, timeout_sec)
    try:
        learn(ranks)
    except Disconnected:
        pipe.poll(10.0)  # waits until rank 0 has noticed the dead learner and closes the pipe, or has died itself
        raise
    finally:
        ranks.close()


@contextmanager
def company(world: int, learn: Callable[[Ranks], None], timeout_sec: float, threads: int):
    """Yields the ranks of this process, while learn(ranks) runs in a separate process for every other rank.

    Raises RunFailed with the reason when one of them fails. At the end all processes are stopped. learn is pickled.
    """
    if world == 1:
        yield Ranks()
        return
    workers, ranks = Workers(), None
    with tempfile.TemporaryDirectory(
        prefix=f"rlrun-ranks-{os.getpid()}-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as folder:
        store = str(Path(folder) / "store")
        try:
            jobs = {f"learner-{rank}": (learn, rank, world, store, timeout_sec, threads) for rank in range(1, world)}
            workers.start_all(learner_process, jobs, learner=True)
            try:
                ranks = ProcessRanks(0, world, store, max(timeout_sec, start_sec(), SAVE_SEC))
                yield ranks
            except Disconnected as error:
                workers.receive_or_nothing(1.0)  # raises RunFailed with the reason if a learner has died
                raise ProcessLost(f"a learner does not answer: {error}") from error
        finally:
            if ranks is not None:
                ranks.close()
            workers.stop()
