"""A sum tree for proportional draws in O(log N), a batch at a time.

Source: Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1.
"""

from __future__ import annotations

import numpy as np

# The number of children of a node. It keeps both the levels few and the sums short; each level takes a few NumPy calls
# for a whole batch.
WIDTH = 32


class SumTree:
    """Holds non-negative values in `size` leaves, which are 0 at first.

    A parent is computed again from all its children at every change, so that rounding errors do not accumulate.
    """

    def __init__(self, size: int):
        self.size = size
        counts = [size]
        while counts[-1] > WIDTH:
            counts.append(-(-counts[-1] // WIDTH))
        # Level 0 holds the leaves. Every level is padded to whole nodes.
        self.levels = [np.zeros((-(-count // WIDTH), WIDTH)) for count in counts]

    @property
    def leaves(self) -> np.ndarray:
        """A view [size] of the values."""
        return self.levels[0].reshape(-1)[: self.size]

    @property
    def total(self) -> float:
        return float(self.levels[-1].sum())

    def set(self, index: np.ndarray, value: np.ndarray | float) -> None:
        """Sets the leaves index [N] int64 to value [N]. If an index occurs twice, the last value is kept."""
        self.levels[0].reshape(-1)[index] = value
        for below, level in zip(self.levels, self.levels[1:], strict=False):
            index = index // WIDTH
            if index.size > WIDTH:  # neighbouring leaves share their parents
                index = np.unique(index)
            level.reshape(-1)[index] = below[index].sum(1)

    def find(self, target: np.ndarray) -> np.ndarray:
        """Returns the leaves [N] into whose intervals of the cumulative sum the targets [N], in [0, total), fall.
        Leaves with value 0 are never returned."""
        node, rows = np.zeros(len(target), dtype=np.int64), np.arange(len(target))
        for level in reversed(self.levels):
            sums = level[node].cumsum(1)  # [N, WIDTH]
            # Rounding can leave a target at or beyond the node's sum. The last child with a value takes it.
            target = np.minimum(target, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= target[:, None]).sum(1)
            target = target - np.where(child > 0, sums[rows, child - 1], 0.0)
            node = node * WIDTH + child
        return node
