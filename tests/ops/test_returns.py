"""GAE against a literal and slow implementation of its definition."""

import numpy as np
import pytest
import torch

from rlrun.ops.returns import gae


def brute_force(reward, discount, value, bootstrap, valid, lambda_):
    """Computes eq. 11 to 16 per column.

    The exponentially weighted mean of k-step advantages is a sum of discounted deltas, which a dead row ends.
    """
    rows, columns = reward.shape
    values = np.concatenate([value, bootstrap[None]])
    advantage = np.zeros((rows, columns))
    for b in range(columns):
        for s in range(rows):
            weight = 1.0
            for t in range(s, rows):
                if not valid[t, b]:
                    break
                advantage[s, b] += weight * (reward[t, b] + discount[t, b] * values[t + 1, b] - values[t, b])
                weight *= lambda_ * discount[t, b]
    return advantage


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_equals_the_sum_of_deltas(lambda_):
    rng = np.random.default_rng(0)
    for _ in range(30):
        rows, columns = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        shape = (rows, columns)
        reward, value, bootstrap = rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=columns)
        discount, valid = 0.9 * (rng.random(shape) > 0.25), rng.random(shape) > 0.2
        next_value = np.concatenate([value[1:], bootstrap[None]])
        got = gae(*(torch.from_numpy(np.asarray(x)) for x in (reward, discount, value, next_value, valid)), lambda_)
        np.testing.assert_allclose(
            got.numpy(), brute_force(reward, discount, value, bootstrap, valid, lambda_), atol=1e-12
        )


def test_lambda_one_without_values_is_the_discounted_sum_to_the_end():
    zero = torch.zeros(4, 1)
    valid = torch.tensor([[True], [True], [False], [True]])
    got = gae(torch.tensor([[1.0], [2.0], [9.0], [4.0]]), torch.full((4, 1), 0.5), zero, zero, valid, 1.0)
    assert got.flatten().tolist() == [2.0, 2.0, 0.0, 4.0]


def test_garbage_in_dead_rows_changes_nothing():
    torch.manual_seed(0)
    reward, value, next_value = (torch.randn(5, 2) for _ in range(3))
    valid = torch.tensor([[1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], dtype=torch.bool)
    discount = torch.full((5, 2), 0.9)
    clean = gae(reward, discount, value, next_value, valid, 0.9)
    dirty = [torch.where(valid, x, torch.nan) for x in (reward, discount)]
    torch.testing.assert_close(gae(*dirty, value, next_value, valid, 0.9), clean)
    assert clean[~valid].abs().max() == 0
