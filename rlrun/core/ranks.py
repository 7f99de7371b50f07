"""Ranks: the learners of one run, which make every update together and hold the same weights at all times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Ranks:
    """A learner that is alone. With company (dataflow.ranks) every call below must be made by all learners, in the same order."""

    def __init__(self, rank: int = 0, world: int = 1):
        self.rank, self.world = rank, world

    def sum(self, x: Tensor) -> Tensor:
        """Over all learners; the same bits on each."""
        return x

    def sum_(self, x: Tensor) -> None:
        """Replaces x by its sum over all learners."""
        if self.world > 1:
            x.copy_(self.sum(x))

    def gather(self, x: Tensor) -> list[Tensor]:
        """x [n] float64 on the CPU, n may differ -> every learner's, by rank."""
        return [x]

    def first(self, x: int) -> int:
        """Rank 0's."""
        return x

    def everyones(self, text: str) -> list[str]:
        """By rank."""
        numbers = self.gather(torch.tensor(list(text.encode()), dtype=torch.float64))
        return [bytes(part.to(torch.uint8).tolist()).decode() for part in numbers]

    def largest(self, x: float) -> float:
        """Of all learners' numbers."""
        return x if self.world == 1 else max(float(part) for part in self.gather(torch.tensor([x], dtype=torch.float64)))

    def all(self, x: bool) -> bool:
        """Whether it holds for every learner."""
        return x if self.world == 1 else bool(self.sum(torch.tensor(float(x))) == self.world)

    def sum_each(self, metrics: Mapping[str, Tensor | float]) -> dict[str, Any]:
        """Scalars [] summed over all learners, in one exchange."""
        if self.world == 1 or not metrics:
            return dict(metrics)
        total = self.sum(torch.stack([torch.as_tensor(value).detach().float() for value in metrics.values()]))
        return dict(zip(metrics, total, strict=True))


ALONE = Ranks()
