"""What the column `t` counts in files of other libraries.

RLlib counts the steps of each episode from 0, so that `t` tells where steps are missing. Other writers count from 1, or
in strides, such as the frames of which a step has four, or all rows of a set from its beginning to its end. The rows
themselves show which of these it is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

LONGER = 1.5  # strides that are more than one and less than two


class StepCount(NamedTuple):
    """How t counts the steps of an episode."""

    first: float = 0.0  # the t of its first step
    stride: float = 1.0  # how far t goes on from a step to the next; where it is a time, only nearly so

    def begins(self, t: float) -> bool:
        """Whether this is the first step of an episode."""
        return t < self.first + self.stride / 2

    def follows(self, t: np.ndarray, before: np.ndarray | float) -> np.ndarray:
        """[n] whether steps come directly behind those whose t is given by `before`, which is smaller."""
        return t - before < self.stride * LONGER


@dataclass
class StepCounter:
    """Finds out how t counts. Call see() with the rows of a set in their order."""

    smallest: float = np.inf
    stride: float = np.inf  # the smallest one inside an episode
    inside: int = 0  # steps inside episodes that were looked at
    jumps: int = 0  # those of them that are longer than the stride
    behind: Counter[float] = field(default_factory=Counter)  # the steps from the end of an episode to the row behind it
    last: tuple[float, bool, Any] = (np.nan, False, None)  # t, ended and episode of the last row

    def see(self, t: np.ndarray, ended: np.ndarray, episode: Sequence[Any] | None) -> None:
        """t [n] of the next rows. ended [n]: whether their episodes end with them. episode: the names of these."""
        if not t.size:
            return
        self.smallest = min(self.smallest, float(t.min()))
        before, over, name = self.last
        names = [name, *([None] * len(t) if episode is None else episode)]
        self.last = float(t[-1]), bool(ended[-1]), names[-1]
        steps = np.diff(np.append(before, t))  # the first one of all is NaN
        behind = np.append(over, ended[:-1])
        self.behind.update(steps[behind].tolist())
        same = np.array([one == other for one, other in itertools.pairwise(names)])
        self._add(steps[same & ~behind & (steps > 0)])

    def _add(self, steps: np.ndarray) -> None:
        """steps [n] of t inside episodes."""
        if not steps.size:
            return
        stride = min(self.stride, float(steps.min()))
        if self.stride >= LONGER * stride:
            self.jumps = self.inside  # all steps before are longer than this one
        self.stride = stride
        self.inside += steps.size
        self.jumps += int((steps >= LONGER * stride).sum())

    @property
    def found(self) -> StepCount | None:
        """How t counts; None if it does not begin again with each episode, and so says nothing about them."""
        stride = self.stride if self.inside else 1.0
        onwards = sum(times for step, times in self.behind.items() if 0 < step < LONGER * stride)
        again = sum(times for step, times in self.behind.items() if step <= 0)
        if onwards > again:
            return None
        # The first step of a set that counts from 1 may not be among the rows that were looked at.
        return StepCount(0.0 if self.smallest < stride / 2 else stride, stride)

    @property
    def left_out(self) -> list[str]:
        """A sentence about steps that are left out of a set without new_obs, if there are any."""
        if self.found is None or not self.jumps:
            return []
        return [
            f"Of {self.inside:,} steps inside episodes that were looked at, {self.jumps:,} are left out, because behind"
            f" them t goes on by more than {self.stride:g}, the smallest stride, so that the next step is missing. If t"
            " does not count steps, take it out of the files."
        ]
