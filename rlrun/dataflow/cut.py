"""The straggler cut of DD-PPO (Wijmans et al. 2020, arXiv:1911.00357, section 3): once enough learners have filled their fragments, the others stop short."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FLOOR = 0.25  # of a fragment's rows that everyone collects, lest a batch become too small (the paper's preemption threshold)


class Cut:
    """Shared by all learners; each writes its own number only. Picklable for spawn."""

    def __init__(self, world: int, share: float):
        self.enough = math.ceil(share * world)
        self.finished = torch.zeros(world, dtype=torch.int64).share_memory_()  # rounds that each learner has collected

    def of(self, rank: int) -> LearnersCut:
        return LearnersCut(self.finished, self.enough, rank)


class LearnersCut:
    """One learner's side of the cut."""

    def __init__(self, finished: Tensor, enough: int, rank: int):
        self.finished, self.enough, self.rank = finished, enough, rank
        self.round = 1

    def due(self, row: int, rows: int) -> bool:
        """Before row `row` of a fragment of `rows`: whether to stop here."""
        return row >= FLOOR * rows and int((self.finished >= self.round).sum()) >= self.enough

    def done(self) -> None:
        """This learner's part of a train batch is there."""
        self.finished[self.rank] = self.round
        self.round += 1
