"""What the column `t` counts in files of other libraries.

RLlib counts the steps of each episode from 0, so that `t` tells where steps are missing. Other writers count from 1, or
all rows of a set from its beginning to its end. The rows themselves show which of these it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class StepCount(NamedTuple):
    """How t counts the steps of an episode."""

    first: float = 0.0  # the t of its first step

    def begins(self, t: float) -> bool:
        """Whether this is the first step of an episode."""
        return t <= self.first

    def follows(self, t: np.ndarray, before: np.ndarray | float) -> np.ndarray:
        """[n] whether steps come directly behind those whose t is given by `before`."""
        return t == before + 1


@dataclass
class Counting:
    """Finds out how t counts. Call see() with the rows of a set in their order."""

    smallest: float = np.inf
    behind: Counter[float] = field(default_factory=Counter)  # how far t goes on from the end of an episode to the next row
    last: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0, dtype=bool))  # t and ended of the last row

    def see(self, t: np.ndarray, ended: np.ndarray) -> None:
        """t [n] of the next rows. ended [n]: whether their episodes end with them."""
        if not t.size:
            return
        t, ended = np.append(self.last[0], t), np.append(self.last[1], ended)
        self.last = t[-1:].copy(), ended[-1:].copy()
        self.smallest = min(self.smallest, float(t.min()))
        self.behind.update(np.diff(t)[ended[:-1]].tolist())

    @property
    def found(self) -> StepCount | None:
        """How t counts; None if it does not begin again with each episode, and so says nothing about them."""
        onwards = self.behind[1.0]
        again = sum(times for step, times in self.behind.items() if step <= 0)
        if onwards > again:
            return None
        return StepCount(1.0 if self.smallest == 1 else 0.0)
