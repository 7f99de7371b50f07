"""A learner in shared memory: several processes change its weights, buffers and optimiser statistics without waiting
for each other (Hogwild)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm
from rlrun.core.schedule import Clock


def shared_bytes(algorithm: Algorithm) -> int:
    """Returns how much shared memory a SharedLearner of this algorithm takes, in bytes: for its parameters and buffers,
    of critics and targets too, and for the statistics of its optimisers."""
    statistics = [one for _, optimizer in algorithm.optimizers() for one in optimizer.statistics().values()]
    storages = [tensor.untyped_storage() for tensor in (*algorithm.parameters(), *algorithm.buffers(), *statistics)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class SharedLearner:
    """Moves the tensors of an algorithm into shared memory. Picklable for spawn."""

    def __init__(self, algorithm: Algorithm, clock: Clock, processes: int = 1):
        """processes: how many apply gradients."""
        algorithm.share_memory()
        self.tensors: list[Tensor] = [*(p.data for p in algorithm.parameters()), *algorithm.buffers()]
        self.optimizers: dict[str, Any] = {name: optimizer.share() for name, optimizer in algorithm.optimizers()}
        self.hold = torch.zeros(1, dtype=torch.int64).share_memory_()  # 1: all wait before the next gradient
        self.time = torch.tensor([clock.env_steps, clock.updates], dtype=torch.int64).share_memory_()
        # Gradients that each process has applied. Each writes to its own number alone, because there is no lock.
        self.gradients = torch.zeros(processes, dtype=torch.int64).share_memory_()
        self.number = 0

    def attach(self, algorithm: Algorithm, number: int = 0) -> None:
        """Makes this algorithm, in process `number`, a copy whose optimisers change the shared tensors. Its targets
        move where the shared ones do, in the first process (Algorithm.move_targets)."""
        self.number = number
        for name, optimizer in algorithm.optimizers():
            optimizer.attach(self.optimizers[name])
        for follower in algorithm.followers():
            follower.held = True

    @torch.no_grad()
    def refresh(self, algorithm: Algorithm) -> None:
        """Copies the newest weights and buffers into an attached algorithm."""
        for mine, newest in zip([*algorithm.parameters(), *algorithm.buffers()], self.tensors, strict=True):
            mine.copy_(newest)

    def applied(self) -> None:
        """Says that this process has applied a gradient."""
        self.gradients[self.number] += 1

    @property
    def others(self) -> int:
        """The number of gradients that all other processes have applied so far."""
        return int(self.gradients.sum() - self.gradients[self.number])

    @property
    def clock(self) -> Clock:
        return Clock(int(self.time[0]), int(self.time[1]))

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self.time[0], self.time[1] = clock.env_steps, clock.updates
