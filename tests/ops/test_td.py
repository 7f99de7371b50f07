"""Temporal-difference operations against their definitions, computed row by row."""

import numpy as np
import pytest
import torch

from rlrun.ops.returns import fold_n_step, lambda_return, n_step_return, recorded_td_error
from rlrun.ops.td import categorical_projection, huber, quantile_huber, signed_hyperbolic, signed_parabolic, taken


def test_fold_is_the_sum_up_to_the_first_end():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, discount = int(rng.integers(1, 6)), float(rng.uniform(0.5, 1.0))
        reward, terminated, valid = rng.normal(size=n), rng.random(n) < 0.2, rng.random(n) < 0.8
        valid[0] = True
        total, follows = 0.0, 1.0
        for k in range(n):
            if not valid[k]:
                break
            total += follows * reward[k]
            follows *= discount
            if terminated[k]:
                follows = 0.0
                break
        dirty = np.where(valid, reward, np.nan)
        got = fold_n_step(*(torch.from_numpy(x)[:, None] for x in (dirty, terminated | ~valid, valid)), discount)
        assert got[0].item() == pytest.approx(total) and got[1].item() == pytest.approx(follows)


def test_huber():
    error = torch.tensor([-3.0, -0.5, 0.0, 0.5, 1.0, 4.0])
    torch.testing.assert_close(
        huber(error, 1.0), torch.nn.functional.huber_loss(error, torch.zeros(6), reduction="none")
    )
    torch.testing.assert_close(
        huber(error, 2.0), torch.nn.functional.huber_loss(error, torch.zeros(6), reduction="none", delta=2.0)
    )
    torch.testing.assert_close(huber(error, None), 0.5 * error**2)


def test_taken():
    q = torch.arange(12.0).view(2, 3, 2)
    assert taken(q, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert taken(q[..., 0], torch.tensor([2, 0])).tolist() == [4.0, 6.0]


def test_projection_is_the_papers_algorithm_1():
    rng = np.random.default_rng(1)
    low, high, count = -2.0, 3.0, 11
    atoms = np.linspace(low, high, count)
    probability = rng.dirichlet(np.ones(count), size=50)
    reward, discount = rng.normal(0, 3, 50), rng.choice([0.0, 0.9, 1.0], 50)
    reward[:5], discount[:5] = atoms[:5], 0.0  # these values lie exactly on an atom
    expected = np.zeros((50, count))
    for i in range(50):
        for j in range(count):
            b = (np.clip(reward[i] + discount[i] * atoms[j], low, high) - low) / ((high - low) / (count - 1))
            below, above = int(np.floor(b + 1e-9)), int(np.ceil(b - 1e-9))
            if below == above:
                expected[i, below] += probability[i, j]
            else:
                expected[i, below] += probability[i, j] * (above - b)
                expected[i, above] += probability[i, j] * (b - below)
    got = categorical_projection(*(torch.from_numpy(x) for x in (probability, reward, discount, atoms)))
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(got.sum(1).numpy(), 1.0)


def test_quantile_loss_by_hand_and_its_minimum():
    loss = quantile_huber(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 3.0]]), 1.0)
    # u = target - quantile: 0.5, 3.0 (weight 0.25); -0.5, 2.0 (weights |0.75 - 1|, 0.75)
    expected = (0.25 * 0.125 + 0.25 * 2.5) / 2 + (0.25 * 0.125 + 0.75 * 1.5) / 2
    assert loss.item() == pytest.approx(expected)
    samples = torch.randn(1, 4000, generator=torch.Generator().manual_seed(0))
    quantile = torch.zeros(1, 3, requires_grad=True)
    fraction = torch.tensor([[1 / 6, 0.5, 5 / 6]])
    for _ in range(400):
        (gradient,) = torch.autograd.grad(quantile_huber(quantile, fraction, samples, 1e-3).sum(), quantile)
        quantile = (quantile - 0.05 * gradient).detach().requires_grad_()
    torch.testing.assert_close(quantile.detach(), torch.quantile(samples, fraction[0]).view(1, 3), atol=0.03, rtol=0)


def test_value_rescaling_and_its_inverse():
    x = torch.cat((torch.linspace(-1000, 1000, 4001), torch.tensor([1e-6, -1e-6, 0.0]))).double()
    torch.testing.assert_close(signed_parabolic(signed_hyperbolic(x)), x, atol=1e-9, rtol=1e-9)
    assert signed_hyperbolic(torch.tensor(3.0)).item() == pytest.approx(1.0 + 0.003)
    torch.testing.assert_close(signed_parabolic(signed_hyperbolic(x.float())), x.float(), atol=1e-4, rtol=1e-3)


def test_returns_of_a_sequence_are_folds_of_its_windows():
    rng = np.random.default_rng(2)
    for _ in range(100):
        rows, n, discount = int(rng.integers(1, 9)), int(rng.integers(1, 5)), 0.9
        reward, value = rng.normal(size=(rows, 2)), rng.normal(size=(rows, 2))
        terminated, valid = rng.random((rows, 2)) < 0.2, rng.random((rows, 2)) < 0.8
        got = n_step_return(
            *(torch.from_numpy(x) for x in (np.where(valid, reward, np.nan), terminated, valid, value)), discount, n
        )
        for t in range(rows):
            for b in range(2):
                window = slice(t, min(rows, t + n))
                if not valid[t, b]:
                    assert got[t, b] == 0
                    continue
                total, follows = (
                    x.item()
                    for x in fold_n_step(
                        *(torch.from_numpy(x[window, b : b + 1]) for x in (reward, terminated, valid)), discount
                    )
                )
                dead = np.flatnonzero(~valid[window, b])
                last = (dead[0] if dead.size else len(valid[window])) - 1
                assert got[t, b].item() == pytest.approx(total + follows * value[t + last, b])


def test_lambda_returns_mix_n_step_returns_of_all_lengths():
    """The last row before an end has the rest of the weight (Sutton and Barto 2018, eq. 12.3)."""
    rng = np.random.default_rng(4)
    for lambda_ in (0.3, 0.8, 1.0):
        rows, discount = 7, 0.9
        reward, value = (torch.from_numpy(rng.normal(size=(rows, 40))) for _ in range(2))
        terminated, valid = (
            torch.from_numpy(rng.random((rows, 40)) < 0.15),
            torch.from_numpy(rng.random((rows, 40)) < 0.8),
        )
        got = lambda_return(reward.masked_fill(~valid, torch.nan), terminated, valid, value, discount, lambda_)
        by_length = [n_step_return(reward, terminated, valid, value, discount, n) for n in range(1, rows + 1)]
        weights = [(1 - lambda_) * lambda_ ** (n - 1) for n in range(1, rows)] + [lambda_ ** (rows - 1)]
        torch.testing.assert_close(got, sum(w * one for w, one in zip(weights, by_length, strict=True)))


def test_recorded_td_errors():
    rng = np.random.default_rng(3)
    reward, q_taken, q_max = (torch.from_numpy(rng.normal(size=(rows, 3))) for rows in (2, 3, 3))
    terminated = torch.tensor([[False, True, False], [False, False, False]])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    got = recorded_td_error(reward, terminated, valid, q_taken, q_max, 0.5)
    expected = [reward[0, 0] + 0.5 * reward[1, 0] + 0.25 * q_max[2, 0], reward[0, 1], reward[0, 2] + 0.5 * q_max[1, 2]]
    torch.testing.assert_close(got, torch.stack(expected) - q_taken[0])
