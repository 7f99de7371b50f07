"""The straggler cut of DD-PPO: once enough learners have filled their fragments, the others stop early.

Source: Wijmans et al. 2020, arXiv:1911.00357, section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The share of a fragment's rows that every learner collects, so that batches do not become too small (the paper's
# preemption threshold).
FLOOR = 0.25


class Cut:
    """State that all learners share. Each writes only its own number. Picklable for spawn."""

    def __init__(self, world: int, share: float):
        self.enough = math.ceil(share * world)
        self.finished = torch.zeros(world, dtype=torch.int64).share_memory_()  # number of rounds each has collected

    def of(self, rank: int) -> LearnersCut:
        return LearnersCut(self.finished, self.enough, rank)


class LearnersCut:
    """One learner's side of the cut."""

    def __init__(self, finished: Tensor, enough: int, rank: int):
        self.finished, self.enough, self.rank = finished, enough, rank
        self.round = 1

    def due(self, row: int, rows: int) -> bool:
        """Whether to stop before row `row` of a fragment with `rows` rows."""
        return row >= FLOOR * rows and int((self.finished >= self.round).sum()) >= self.enough

    def done(self) -> None:
        """Called when this learner has collected its part of a train batch."""
        self.finished[self.rank] = self.round
        self.round += 1
