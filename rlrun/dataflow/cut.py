"""The straggler cut of DD-PPO: once enough learners have filled their fragments, the others stop early.

Source: Wijmans et al. 2020, arXiv:1911.00357, section 3.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

# The share of a fragment's rows that every learner collects, so that batches do not become too small (the paper's
# preemption threshold).
FLOOR = 0.25


class LearnersCut:
    """One learner's side of the cut."""

    def __init__(self, enough: int):
        """enough: learners that must have finished."""
        self.enough, self.round = enough, 1

    def due(self, row: int, rows: int) -> bool:
        """Whether to stop before row `row` of a fragment with `rows` rows."""
        return row >= FLOOR * rows and self.finished() >= self.enough

    def finished(self) -> int:
        """How many learners have collected their rows of this round."""
        raise NotImplementedError

    def done(self) -> None:
        """Called when this learner has collected its part of a train batch."""
        raise NotImplementedError


class Cuts(Protocol):
    """What gives every learner its side. dataflow.meeting has that of learners on several machines."""

    def of(self, rank: int) -> LearnersCut: ...


class Cut:
    """State that all learners of one machine share. Each writes only its own number. Picklable for spawn."""

    def __init__(self, world: int, share: float):
        self.enough = math.ceil(share * world)
        self.finished = torch.zeros(world, dtype=torch.int64).share_memory_()  # number of rounds each has collected

    def of(self, rank: int) -> LearnersCut:
        return _SharedCut(self.finished, self.enough, rank)


class _SharedCut(LearnersCut):
    def __init__(self, rounds: Tensor, enough: int, rank: int):
        super().__init__(enough)
        self.rounds, self.rank = rounds, rank

    def finished(self) -> int:
        return int((self.rounds >= self.round).sum())

    def done(self) -> None:
        self.rounds[self.rank] = self.round
        self.round += 1
