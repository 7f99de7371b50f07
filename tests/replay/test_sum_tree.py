"""Checks the sum tree against cumulative sums."""

import numpy as np
import pytest

from rlrun.replay.sum_tree import WIDTH, SumTree


@pytest.mark.parametrize("size", [5, WIDTH, WIDTH + 1, 3000])
def test_targets_fall_into_the_intervals_of_a_cumulative_sum_and_never_on_an_empty_leaf(size):
    """Whole numbers have sums without rounding, so that targets can lie exactly on the ends of intervals."""
    rng = np.random.default_rng(size)
    values = rng.integers(0, 4, size).astype(float) * (rng.random(size) < 0.5)
    values[[0, 1, -1]] = 0.0, 2.0, 0.0
    tree = SumTree(size)
    tree.set(np.arange(size), rng.random(size))
    tree.set(np.arange(size), values)
    assert tree.total == values.sum() and (tree.leaves == values).all()
    owners = np.repeat(np.arange(size), values.astype(int))  # leaf i owns [sum before it, sum up to it)
    whole = np.arange(len(owners))
    for within in (0.0, 0.5, 1 - 2**-20):
        assert (tree.find(whole + within) == owners).all()
    # Rounding can make a target as large as the sum; it belongs to the last leaf that is not empty.
    assert tree.find(np.array([tree.total])) == owners[-1]
