"""A sum tree over many leaves: proportional draws in O(log N), for batches at a time (Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1)."""

from __future__ import annotations

import numpy as np

WIDTH = 32  # children of a node: few levels and short sums, each a handful of NumPy calls over a whole batch


class SumTree:
    """Non-negative values in `size` leaves, all 0 at first. A parent is summed anew from its children at every change, so that rounding does not add up."""

    def __init__(self, size: int):
        self.size = size
        counts = [size]
        while counts[-1] > WIDTH:
            counts.append(-(-counts[-1] // WIDTH))
        # level 0 holds the leaves; every level is padded to whole nodes
        self.levels = [np.zeros((-(-count // WIDTH), WIDTH)) for count in counts]

    @property
    def leaves(self) -> np.ndarray:
        """[size], a view."""
        return self.levels[0].reshape(-1)[: self.size]

    @property
    def total(self) -> float:
        return float(self.levels[-1].sum())

    def set(self, index: np.ndarray, value: np.ndarray | float) -> None:
        """index [N] int64 -> value [N]. Of an index that occurs twice the last value stays."""
        self.levels[0].reshape(-1)[index] = value
        for below, level in zip(self.levels, self.levels[1:], strict=False):
            index = index // WIDTH
            if index.size > WIDTH:  # rows in a stretch share their parents
                index = np.unique(index)
            level.reshape(-1)[index] = below[index].sum(1)

    def find(self, target: np.ndarray) -> np.ndarray:
        """target [N] in [0, total) -> the leaves [N] in whose stretch of the running sum they fall. Leaves of value 0 are never found."""
        node, rows = np.zeros(len(target), dtype=np.int64), np.arange(len(target))
        for level in reversed(self.levels):
            sums = level[node].cumsum(1)  # [N, WIDTH]
            # rounding can leave a target at or beyond the node's sum: the last child that has a value takes it
            target = np.minimum(target, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= target[:, None]).sum(1)
            target = target - np.where(child > 0, sums[rows, child - 1], 0.0)
            node = node * WIDTH + child
        return node
