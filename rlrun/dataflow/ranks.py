"""Several learners: processes of torch.distributed, gloo between CPUs and NCCL between GPUs.

Rank 0 is the run's own process; it starts the others as workers, and a worker that dies breaks its connections, so that nobody waits for it. Between GPUs
that holds for what goes through the CPU (counts, decisions, every update); a process that dies inside an NCCL exchange is left to PyTorch's watchdog, which
was not tried.
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

from rlrun.core.errors import RunFailed
from rlrun.core.ranks import Ranks
from rlrun.dataflow.workers import READY, START_SEC, Workers

SAVE_SEC = 900.0  # a learner may take so long to write its replay
LARGE = 2**15  # numbers: gradients, not counts
FOREVER = timedelta(days=7)  # rank 0 may evaluate and save for as long as it takes; when it ends, its connections do


class Disconnected(Exception):
    """Another learner is gone."""


def _together(exchange: Callable[..., Any], *args: Any) -> None:
    """Gloo and NCCL raise RuntimeError when a connection breaks: tells it from those of our own code."""
    try:
        exchange(*args)
    except RuntimeError as error:
        raise Disconnected(str(error)) from error


class ProcessRanks(Ranks):
    """One of `world` learners. Gradients travel on the learners' device, counts and decisions through the CPU."""

    def __init__(self, rank: int, world: int, store: str, timeout_sec: float):
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine, whatever its host name resolves to
        super().__init__(rank, world)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        patience = timedelta(seconds=timeout_sec) if rank == 0 else FOREVER
        dist.init_process_group(backend, store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=patience)
        self.store = store
        self.memory: dict[tuple[int, torch.dtype], Tensor] = {}  # shared by all learners, one for each size of large tensors
        _together(dist.barrier)  # connections are made now and not in the middle of the first update

    def sum(self, x: Tensor) -> Tensor:
        total = x.detach().clone()
        _together(dist.all_reduce, total)
        return total

    def sum_(self, x: Tensor) -> None:
        """On CPUs through memory that all learners of this machine see: each adds up its part of the numbers. Gloo's way, through sockets, takes three
        times as long."""
        n = x.numel()
        if n < LARGE or x.device.type != "cpu":
            super().sum_(x)
            return
        memory = self._memory(n, x.dtype)
        memory[self.rank].view(x.shape).copy_(x)
        _together(dist.barrier)
        mine = slice(self.rank * n // self.world, (self.rank + 1) * n // self.world)
        torch.sum(memory[: self.world, mine], 0, out=memory[self.world, mine])
        _together(dist.barrier)  # nobody writes the next numbers before all have come here, nor takes sums before all have written
        x.copy_(memory[self.world].view(x.shape))

    def _memory(self, n: int, dtype: torch.dtype) -> Tensor:
        """[world + 1, n], the same for all learners: a row for each, and one for sums."""
        key = (n, dtype)
        if key not in self.memory:
            path = Path(f"{self.store}-{n}-{str(dtype).rpartition('.')[2]}")
            self.memory[key] = torch.from_file(str(path), shared=True, size=(self.world + 1) * n, dtype=dtype).view(self.world + 1, n)
            _together(dist.barrier)
            if self.rank == 0:
                path.unlink()  # everyone has it; a killed run leaves nothing behind
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


def learner_process(pipe: Any, learn: Callable[[Ranks], None], rank: int, world: int, store: str, timeout_sec: float, threads: int) -> None:
    """A learner other than the first: learn(ranks) until the run is over."""
    torch.set_num_threads(threads)
    pipe.send(READY)
    ranks = ProcessRanks(rank, world, store, timeout_sec)
    try:
        learn(ranks)
    except Disconnected:
        pipe.poll(10.0)  # until rank 0 has heard from the one that died, or is gone itself
        raise
    finally:
        ranks.close()


@contextmanager
def company(world: int, learn: Callable[[Ranks], None], timeout_sec: float, threads: int):
    """The ranks of this process, while learn(ranks) runs in a process of its own for every other rank. When one of them fails, RunFailed says why; in the
    end all are gone. learn is pickled."""
    if world == 1:
        yield Ranks()
        return
    workers, ranks = Workers(), None
    with tempfile.TemporaryDirectory(prefix=f"rlrun-ranks-{os.getpid()}-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        store = str(Path(folder) / "store")
        try:
            jobs = {f"learner-{rank}": (learn, rank, world, store, timeout_sec, threads) for rank in range(1, world)}
            workers.start_all(learner_process, jobs, learner=True)
            try:
                ranks = ProcessRanks(0, world, store, max(timeout_sec, START_SEC, SAVE_SEC))
                yield ranks
            except Disconnected as error:
                workers.receive_or_nothing(1.0)  # RunFailed with the reason of the one that died
                raise RunFailed(f"a learner does not answer: {error}") from error
        finally:
            if ranks is not None:
                ranks.close()
            workers.stop()
