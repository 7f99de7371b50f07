"""Ranks: communication between the learners of one run, which make every update together and always hold the same
weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Ranks:
    """The only learner of a run. dataflow.ranks has the subclass for several learners, with which every method below
    must be called by all learners, in the same order."""

    apart = False  # whether learners are on several machines, which may have no file system in common

    def __init__(self, rank: int = 0, world: int = 1):
        self.rank, self.world = rank, world

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over all learners, with the same bits on each."""
        return x

    def sum_(self, x: Tensor) -> None:
        """Replaces x by its sum over all learners."""
        if self.world > 1:
            x.copy_(self.sum(x))

    def gather(self, x: Tensor) -> list[Tensor]:
        """x [n], float64 on the CPU -> every learner's x, by rank. The learners' n may differ."""
        return [x]

    def first(self, x: int) -> int:
        """The x of rank 0."""
        return x

    def firsts(self, data: bytes) -> bytes:
        """The bytes of rank 0; what others pass is ignored."""
        return data

    def everyones(self, text: str) -> list[str]:
        """Every learner's text, by rank."""
        numbers = self.gather(torch.tensor(list(text.encode()), dtype=torch.float64))
        return [bytes(part.to(torch.uint8).tolist()).decode() for part in numbers]

    def largest(self, x: float) -> float:
        """The largest of all learners' x."""
        return (
            x if self.world == 1 else max(float(part) for part in self.gather(torch.tensor([x], dtype=torch.float64)))
        )

    def all(self, x: bool) -> bool:
        """Whether x is true for every learner."""
        return x if self.world == 1 else bool(self.sum(torch.tensor(float(x))) == self.world)

    def sum_each(self, metrics: Mapping[str, Tensor | float]) -> dict[str, Any]:
        """The scalars [], each summed over all learners, in one exchange."""
        if self.world == 1 or not metrics:
            return dict(metrics)
        total = self.sum(torch.stack([torch.as_tensor(value).detach().float() for value in metrics.values()]))
        return dict(zip(metrics, total, strict=True))


ALONE = Ranks()
