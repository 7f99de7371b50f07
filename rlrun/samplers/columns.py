"""Columns: the environments' side of a fragment. It owns observation, reward and ends of every row; whoever acts owns action and records."""

from __future__ import annotations

import numpy as np
import torch

from rlrun.core.env import Rows, Step, VectorEnv, map_rows, write_rows
from rlrun.core.moments import Moments
from rlrun.dataflow.slots import Episode

SUCCESS = "is_success"  # an info entry of which the last value of an episode counts (Stable-Baselines3's and Gymnasium-Robotics' name)


def own(rows: Rows) -> Rows:
    return map_rows(rows, np.array)


class Columns:
    """Steps a VectorEnv through the rows of fragments and keeps the books of its episodes. `first_column` is the global number of its first one."""

    def __init__(self, env: VectorEnv, first_column: int, generation: int, return_discount: float | None = None, whole_after: int | None = None):
        """`whole_after`: every fragment begins with new episodes, and a column that has played so many rows is over when its episode ends."""
        self.whole_after, self.generation, self.fragments = whole_after, generation, 0
        self.over = np.zeros(env.count, dtype=bool)
        self.env, self.first_column, self.return_discount = env, first_column, return_discount
        self.discounted = np.zeros(env.count)  # sum of rewards so far, older ones discounted
        self.seen: list[np.ndarray] = []  # its values in this fragment
        self.obs: Rows = own(env.reset(generation))
        self.is_first = np.ones(env.count, dtype=bool)
        self.fresh: Rows | None = None  # after a break: the observations of restarted columns, waiting behind a dead row
        self.returns = np.zeros(env.count)
        self.lengths = np.zeros(env.count, dtype=np.int64)
        self.info: dict[str, np.ndarray] = {}  # of unfinished episodes: sum and count [2, B] of every numeric info entry, or its last value and 1
        self.row = 0  # absolute number of the next row
        self.live = 0
        self.episodes: list[Episode] = []

    def begin(self, view: dict) -> None:
        """Writes row 0's observation of a new fragment (Batch.numpy())."""
        if self.whole_after is not None:
            self.obs, self.fresh = own(self.env.reset((self.generation << 32) + self.fragments)), None
            self.is_first, self.over = np.ones(self.env.count, dtype=bool), np.zeros(self.env.count, dtype=bool)
            self.returns[:], self.lengths[:], self.discounted[:], self.info = 0.0, 0, 0.0, {}
            self.fragments += 1
        self._observe(view, 0)
        self.live, self.episodes, self.seen = 0, [], []

    def step(self, view: dict, t: int) -> None:
        """Row t's action is there: takes it, writes what came of it and row t+1's observation."""
        self.row += 1
        if self.fresh is not None:
            self._dead(view, t)
            self.obs, self.fresh = self.fresh, None
            self.is_first = np.ones(self.env.count, dtype=bool)
            self._observe(view, t + 1)
            return
        if self.over.all():
            self._dead(view, t)
            self._observe(view, t + 1)
            return
        step = self.env.step(map_rows(view["action"], lambda value: value[t]))
        if self.whole_after is not None:
            step = self._without_those_over(step, t)
        view["reward"][t], view["valid"][t] = step.reward, step.valid
        view["terminated"][t], view["truncated"][t] = step.terminated, step.truncated
        self.obs, self.is_first = step.obs, step.is_first
        self._observe(view, t + 1)
        self.returns += step.paid
        self.lengths += step.valid
        self.live += int(step.valid.sum())
        if self.return_discount is not None:
            self.discounted = np.where(step.valid, self.return_discount * self.discounted, self.discounted) + step.paid
            self.seen.append(self.discounted[step.valid])
            self.discounted[step.is_first | step.terminated] = 0.0  # learning's own ends, lost lives included
        if step.info:
            self._note(step)
        if step.is_first.any():
            for column in np.flatnonzero(step.is_first):
                info = {name: float(total[column] / count[column]) for name, (total, count) in self.info.items() if count[column]}
                self.episodes.append(Episode(self.first_column + int(column), float(self.returns[column]), int(self.lengths[column]), info))
            for kept in self.info.values():
                kept[:, step.is_first] = 0.0
            self.returns[step.is_first], self.lengths[step.is_first] = 0.0, 0

    def _without_those_over(self, step: Step, t: int) -> Step:
        """Columns that have played enough are stepped with the others, but their rows are dead and their episodes are nobody's."""
        assert self.whole_after is not None
        playing = ~self.over
        paid = playing.reshape(-1, *[1] * (step.reward.ndim - 1))  # as many axes as the reward has
        step = step._replace(
            reward=step.reward * paid, valid=step.valid & playing, terminated=step.terminated & playing, truncated=step.truncated & playing,
            is_first=step.is_first & playing,
        )  # fmt: skip
        self.over |= step.is_first & (t + 1 >= self.whole_after)
        return step

    def _note(self, step: Step) -> None:
        """Takes note of a row's numeric info entries."""
        for name, value in step.info.items():
            kept = self.info.setdefault(name, np.zeros((2, self.env.count)))
            seen = step.valid & np.isfinite(value)
            if name == SUCCESS:
                kept[0, seen], kept[1, seen] = value[seen], 1.0
            else:
                kept[0, seen] += value[seen]
                kept[1, seen] += 1.0

    def skip(self, view: dict, t: int, blank: bool = False) -> None:
        """Row t is cut: dead, with the observation that is still to be acted on, here and in row t+1. `blank`: nobody has acted on it either, and old rows
        must not stay where NaN or an action outside the space could be read."""
        self.row += 1
        if blank:
            for name, value in view.items():
                if name not in ("obs", "is_first", "core"):
                    map_rows(value, lambda part: part[t].fill(0))
        self._dead(view, t)
        self._observe(view, t + 1)

    @staticmethod
    def _dead(view: dict, t: int) -> None:
        view["reward"][t] = 0.0
        for name in ("valid", "terminated", "truncated"):
            view[name][t] = False

    def _observe(self, view: dict, t: int) -> None:
        write_rows(view["obs"], self.obs, t)
        view["is_first"][t] = self.is_first

    def restart(self, generation: int) -> None:
        """Breaks every column: its next row is dead and the one after begins an episode with seeds of this generation. Unfinished episodes are
        not counted. Bit-exact resume stands on this: no environment's state has to be saved."""
        self.generation = generation
        self.obs = own(self.obs)  # what the last row ended with, which environments that reuse their memory would write over
        self.fresh = own(self.env.reset(generation))
        self.info = {}
        self.returns[:], self.lengths[:], self.discounted[:] = 0.0, 0, 0.0

    def return_moments(self) -> Moments | None:
        """Of the discounted returns at the fragment's live rows so far."""
        if self.return_discount is None:
            return None
        values = np.concatenate(self.seen) if self.seen else np.zeros(0)
        return Moments(float(values.size), float(values.mean()), float(np.square(values - values.mean()).sum())) if values.size else Moments(0.0, 0.0, 0.0)

    def save(self) -> dict:
        """What a restarted Columns needs to continue bit for bit, given a restart() on both sides."""
        return {
            "obs": map_rows(self.obs, lambda value: torch.from_numpy(np.array(value))),
            "is_first": torch.from_numpy(self.is_first.copy()),
            "row": self.row,
            "fragments": self.fragments,
        }

    def load(self, saved: dict) -> None:
        self.obs = map_rows(saved["obs"], lambda value: value.numpy().copy())
        self.is_first = saved["is_first"].numpy().copy()
        self.row, self.fragments = saved["row"], saved["fragments"]
