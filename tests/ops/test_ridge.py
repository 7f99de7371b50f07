"""Bayesian linear regression for several arms."""

import pytest
import torch

from rlrun.ops import ridge
from rlrun.ops.ridge import deviation, noise_of, solve, sums


def rows(count=400, size=5, arms=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, size, generator=rng, dtype=torch.float64)
    arm = torch.randint(arms, (count,), generator=rng)
    theta = torch.randn(arms, size, generator=rng, dtype=torch.float64)
    y = (x * theta[arm]).sum(-1) + 0.5 * torch.randn(count, generator=rng, dtype=torch.float64)
    return x, y, arm


@pytest.mark.parametrize("together", [0, ridge.TOGETHER])
def test_sums_of_batches_are_the_closed_form_ridge_whatever_the_order(together, monkeypatch):
    """Known answer 32: theta and A^-1 equal the closed form after shuffled rows; rows that are not valid count
    nothing."""
    monkeypatch.setattr(ridge, "TOGETHER", together)
    x, y, arm = rows()
    valid = torch.arange(len(y)) % 7 != 0
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    dirty = torch.where(valid[:, None], x, torch.nan), torch.where(valid, y, torch.inf)
    precision = 0.3 * torch.eye(5, dtype=torch.float64).repeat(3, 1, 1)
    moment, squares, count = torch.zeros(3, 5).double(), torch.zeros(3).double(), torch.zeros(3).double()
    for part in order.split(32):
        added = sums(dirty[0][part], dirty[1][part], arm[part], valid[part], 3)
        precision, moment, squares, count = (a + b for a, b in zip((precision, moment, squares, count), added))
    mean, root = solve(precision, moment)
    for k in range(3):
        mine = valid & (arm == k)
        gram = x[mine].T @ x[mine] + 0.3 * torch.eye(5, dtype=torch.float64)
        torch.testing.assert_close(mean[k], torch.linalg.solve(gram, x[mine].T @ y[mine]))
        torch.testing.assert_close(root[k] @ root[k].T, torch.linalg.inv(gram))
        assert count[k] == mine.sum() and float(squares[k]) == pytest.approx(float(y[mine].square().sum()))
        at = torch.linspace(-1, 1, 5, dtype=torch.float64)
        assert float(deviation(at, root[k])) == pytest.approx(float((at @ torch.linalg.inv(gram) @ at).sqrt()))


def test_the_noise_of_many_rows_is_found_and_rounding_never_makes_it_negative():
    x, y, arm = rows(20000, arms=1)
    precision, moment, squares, count = sums(x, y, arm, torch.ones(len(y), dtype=torch.bool), 1)
    mean, _ = solve(precision + 0.25 * torch.eye(5, dtype=torch.float64), moment)
    shape, scale = noise_of(squares, mean, moment, count, 6.0, 6.0)
    assert float((scale / (shape - 1)).sqrt()) == pytest.approx(0.5, rel=0.02)
    lower = noise_of(squares * 0, mean, moment, count, 6.0, 6.0)[1]
    assert float(lower) == 6.0
