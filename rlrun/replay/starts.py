"""The rows of a replay at which fragments begin, and the draws among them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import Diverged, RunFailed
from rlrun.core.schedule import Clock
from rlrun.replay.layout import Layout, PrioritizedReplayConfig
from rlrun.replay.sum_tree import SumTree

REDRAWS = 100  # of starts that were dead, before the live ones are looked up among all


class Starts:
    """Knows which starts may be drawn, and draws them uniformly or in proportion to priorities (Schaul et al. 2016,
    arXiv:1511.05952).

    A start is given by its column and its absolute row, which counts all rows that were ever stored in the column. Its
    leaf is its number among the starts that the ring has room for."""

    def __init__(self, layout: Layout, rng: torch.Generator, priorities: PrioritizedReplayConfig | None, lag: int):
        """lag: the number of rows that must be present after a fragment before it may be drawn."""
        self.layout, self.rng, self.priorities, self.lag = layout, rng, priorities, lag
        self.length = layout.rows_per_column
        self.head = np.zeros(layout.blocks, dtype=np.int64)  # for each block, the absolute number of the next row
        self.first = 0  # absolute number of the first row that was ever stored, see Replay.forget()
        self.per_column = self.length // layout.starts_every
        self.may = np.zeros(layout.columns * self.per_column, dtype=bool)  # by leaf: whether it may be drawn
        self.count = 0  # number of true entries in `may`
        # With new_first: for each column, the absolute number of the row where the next fragment begins that is new.
        self.new = np.zeros(layout.columns, dtype=np.int64)
        self.tree = None if priorities is None else SumTree(len(self.may))
        self.largest = 1.0  # largest priority ** alpha so far, which new rows get
        self.largest_weight = 1.0  # largest (N P)^-beta in the last batch, by which its weights were divided

    # -- where they lie ----------------------------------------------------------------------------------------------

    def window(self, block: int) -> tuple[int, int]:
        """Returns the absolute rows [low, high), multiples of starts_every, at which complete fragments of this block
        begin: all their rows and the stacked frames before them are present."""
        layout, head, every = self.layout, int(self.head[block]), self.layout.starts_every
        oldest = max(self.first, head - self.length + 1)
        low = oldest + (layout.stack - 1 if oldest else 0)
        low = -(-low // every) * every
        high = (head - layout.rows - self.lag) // every * every + every
        return low, max(high, low)

    def windows(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields every column with the rows at which its complete fragments begin."""
        for block in range(self.layout.blocks):
            low, high = self.window(block)
            for column in range(block * self.layout.block, (block + 1) * self.layout.block):
                yield column, np.arange(low, high, self.layout.starts_every)

    def leaf(self, column: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Returns the leaves [...] of starts, from column [...] and absolute row [...]."""
        return column * self.per_column + row % self.length // self.layout.starts_every

    def place(self, leaf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the columns and absolute rows of starts, given their leaves."""
        column, slot = leaf // self.per_column, leaf % self.per_column * self.layout.starts_every
        head = self.head[column // self.layout.block]
        return column, head - 1 - (head - 1 - slot) % self.length  # the newest row in this slot

    # -- which may be drawn ------------------------------------------------------------------------------------------

    def set(self, leaf: np.ndarray, may: np.ndarray | bool, priority: np.ndarray | float) -> None:
        """Says whether these starts may be drawn, and with which priority ** alpha, 0 for those that may not."""
        before = int(self.may[leaf].sum())
        self.may[leaf] = may
        self.count += int(self.may[leaf].sum()) - before
        if self.tree is not None:
            self.tree.set(leaf, priority)

    def scaled(self, priority: Tensor) -> np.ndarray:
        """Returns (priority + priority_epsilon) ** alpha, as the tree holds it.
        Raises Diverged when a priority is negative or not finite."""
        value = priority.detach().double().cpu().numpy()
        if not np.isfinite(value).all() or (value < 0).any():
            raise Diverged("a priority is negative or not finite: the loss has diverged")
        assert self.priorities is not None
        return (value + self.priorities.priority_epsilon) ** self.priorities.alpha

    def forget(self, row: int) -> None:
        """Begins again with the absolute row `row`, and no start may be drawn."""
        self.set(np.arange(len(self.may)), False, 0.0)
        self.head[:], self.new[:], self.first = row, row, row

    # -- drawing -----------------------------------------------------------------------------------------------------

    def draw(self, count: int, clock: Clock) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns columns [count], absolute rows [count] and weights [count] float32."""
        if self.tree is not None:
            return self._by_priority(count, clock, self.tree)
        if self.layout.new_first and (new := self.take_new(count)):
            begun = np.array(new, dtype=np.int64)
            column, row = begun.T
            if len(new) < count:
                others = self._any(count - len(new))
                column, row = np.concatenate((column, others[0])), np.concatenate((row, others[1]))
            return column, row, np.ones(count, dtype=np.float32)
        return *self._any(count), np.ones(count, dtype=np.float32)

    def take_new(self, count: int) -> list[tuple[int, int]]:
        """Takes up to `count` fragments that were never drawn, those with the oldest rows first, as (column, row).

        Those of a column follow each other, and the row behind one fragment, whose observation it has too, is its own
        (the online queue of danijar/dreamerv3 @ e3f0224, embodied/core/replay.py). Fragments whose rows are gone, or
        that hold dead rows alone, are passed over."""
        layout = self.layout
        found: list[tuple[int, int]] = []
        bounds = np.repeat([self.window(block) for block in range(layout.blocks)], layout.block, axis=0)
        step = -(-(layout.rows + 1) // layout.starts_every) * layout.starts_every
        behind = np.maximum(bounds[:, 0] - self.new, 0)
        self.new += -(-behind // step) * step
        while len(found) < count:
            column = int(np.where(self.new < bounds[:, 1], self.new, np.iinfo(np.int64).max).argmin())
            row = int(self.new[column])
            if row >= bounds[column, 1]:
                break
            self.new[column] += step
            if self.may[self.leaf(np.array([column]), np.array([row]))][0]:
                found.append((column, row))
        return found

    def _any(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws uniformly over all starts."""
        layout, every = self.layout, self.layout.starts_every
        windows = [self.window(block) for block in range(layout.blocks)]
        sizes = np.array([(high - low) // every for low, high in windows])
        ends = (sizes * layout.block).cumsum()
        if self.count == 0:
            raise RunFailed("replay was asked for rows before it had any")
        column, row = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        missing = np.arange(count)
        for _ in range(REDRAWS):  # dead starts are drawn again
            pick = torch.randint(int(ends[-1]), (missing.size,), generator=self.rng).numpy()
            block = np.searchsorted(ends, pick, side="right")
            within = pick - (ends - sizes * layout.block)[block]
            column[missing] = block * layout.block + within % layout.block
            row[missing] = np.array([low for low, _ in windows])[block] + within // layout.block * every
            missing = missing[~self.may[self.leaf(column[missing], row[missing])]]
            if not missing.size:
                break
        else:
            live = np.flatnonzero(self.may)
            pick = torch.randint(live.size, (missing.size,), generator=self.rng).numpy()
            column[missing], row[missing] = self.place(live[pick])
        return column, row

    def _by_priority(self, count: int, clock: Clock, tree: SumTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Makes one draw from each of `count` equal stretches of the sum of priorities (appendix B.2.1). Where all
        priorities are 0, which priority_epsilon=0 allows, all starts are alike."""
        total = tree.total
        if total <= 0:
            self.largest_weight = 1.0
            return *self._any(count), np.ones(count, dtype=np.float32)
        target = (np.arange(count) + torch.rand(count, generator=self.rng, dtype=torch.float64).numpy()) * (
            total / count
        )
        leaf = tree.find(target)
        column, row = self.place(leaf)
        # w = (N P)^-beta. N and the sum of priorities cancel when weights are divided by the largest of the batch, and
        # not where the batch has parts from several replays.
        assert self.priorities is not None
        beta = self.priorities.beta(clock)
        weight = tree.leaves[leaf] ** -beta
        self.largest_weight = float(weight.max()) * (total / self.count) ** beta
        return column, row, (weight / weight.max()).astype(np.float32)
