"""Symlog, two-hot and percentiles against their formulas, written slowly."""

import math

import numpy as np
import pytest
import torch

from rlrun.ops.percentiles import ReturnRange
from rlrun.ops.returns import bootstrapped_returns
from rlrun.ops.symlog import expected, symexp, symexp_bins, symlog, two_hot, two_hot_loss

BINS = symexp_bins(255)


def test_symlog_and_symexp_are_inverse():
    x = torch.cat([sign * torch.logspace(-6, 6, 200, dtype=torch.float64) for sign in (-1, 1)])
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=1e-9, atol=0)
    assert symexp(torch.tensor(20.0, dtype=torch.float64)).item() == pytest.approx(485165194.41, abs=0.01)
    assert symlog(torch.zeros(1)).item() == 0.0


def test_bins_are_antisymmetric_and_spaced_by_symexp():
    assert BINS[127] == 0 and torch.equal(BINS, -BINS.flip(0))
    assert BINS[128].item() == pytest.approx(0.170558, abs=1e-6) and BINS[129].item() == pytest.approx(0.370205, abs=1e-6)
    assert (BINS.diff() > 0).all()
    even = symexp_bins(4)
    assert len(even) == 4 and torch.equal(even, -even.flip(0))


def test_a_two_hot_target_has_the_mean_that_it_encodes():
    inside = torch.tensor([-1e5, -3.7, -0.1, 0.0, 0.1, 1.0, 123.4, BINS[200].item()])
    lower, upper, share = two_hot(inside, BINS)
    torch.testing.assert_close(BINS[lower] * (1 - share) + BINS[upper] * share, inside, rtol=1e-5, atol=1e-6)
    for beyond, edge in ((-1e9, 0), (1e9, 254)):
        lower, upper, share = two_hot(torch.tensor([beyond]), BINS)
        assert {0: lower, 1: upper}[int(share)].item() == edge and share.item() in (0.0, 1.0)


def test_the_two_hot_loss_is_a_cross_entropy():
    logits = torch.randn(3, 5, 255, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[0.3, -2.0, 1e10, 50.0, 0.0]] * 3)
    others = targets.flip(1)
    encoded = np.zeros((2, 3, 5, 255))
    bins = BINS.numpy()
    for k, t, b in np.ndindex(2, 3, 5):
        x = float((targets, others)[k][t, b])
        above = next((i for i in range(255) if bins[i] > x), 255)
        if above in (0, 255):
            encoded[k, t, b, min(above, 254)] = 1.0
        else:
            share = (x - bins[above - 1]) / (bins[above] - bins[above - 1])
            encoded[k, t, b, above - 1], encoded[k, t, b, above] = 1 - share, share
    log_p = logits.log_softmax(-1).numpy()
    wanted = -(encoded[0] * log_p).sum(-1) - 0.5 * (encoded[1] * log_p).sum(-1)
    made = two_hot_loss(logits, BINS, (targets, 1.0), (others, 0.5))
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-5)


def test_equal_logits_mean_exactly_zero():
    assert expected(torch.full((7, 255), 3.3), BINS).abs().max().item() == 0.0
    logits = torch.randn(4, 255, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = (logits.softmax(-1) * BINS.double()).sum(-1)
    torch.testing.assert_close(expected(logits, BINS.double()), wanted, rtol=1e-9, atol=1e-3)


def test_bootstrapped_returns_are_those_of_the_slow_formula():
    rng = np.random.default_rng(0)
    reward, discount, value = (rng.random((6, 3)) for _ in range(3))
    lambda_ = np.where(rng.random((6, 3)) < 0.3, 0.0, 0.95)
    wanted = np.zeros((7, 3))
    wanted[6] = value[5]
    for t in range(5, -1, -1):
        mixed = (1 - lambda_[t]) * value[t] + lambda_[t] * wanted[t + 1]
        wanted[t] = reward[t] + discount[t] * mixed
    tensors = [torch.from_numpy(x) for x in (reward, discount, value)]
    made = bootstrapped_returns(*tensors, torch.from_numpy(lambda_))
    np.testing.assert_allclose(made.numpy(), wanted[:6], rtol=1e-12)
    ones = [torch.tensor([[1.0], [2.0], [4.0]]), torch.full((3, 1), 0.5), torch.tensor([[10.0], [20.0], [30.0]])]
    assert bootstrapped_returns(*ones, 0.0).flatten().tolist() == [6.0, 12.0, 19.0]
    assert bootstrapped_returns(*ones, 1.0).flatten().tolist() == [1 + 0.5 * (2 + 0.5 * 19.0), 2 + 0.5 * 19.0, 19.0]


def test_the_scale_follows_the_percentiles_and_has_a_limit():
    spread = ReturnRange(5.0, 95.0, 0.1, 1.0)
    returns = torch.from_numpy(np.random.default_rng(1).normal(0.0, 20.0, 997)).float()
    low, high = np.percentile(returns.numpy(), [5, 95])
    assert spread.follow(returns).item() == pytest.approx(0.1 * (high - low), rel=1e-5)
    assert spread.follow(returns).item() == pytest.approx(0.19 * (high - low), rel=1e-5)
    torch.testing.assert_close(spread.ends, torch.tensor([0.19 * low, 0.19 * high], dtype=torch.float32))
    few = torch.cat((torch.full((40,), math.inf), returns, torch.full((3,), math.inf)))  # which do not count
    for count in (1, 2, 3, 997):
        one, other = ReturnRange(5.0, 95.0, 0.1, 1.0), ReturnRange(5.0, 95.0, 0.1, 1.0)
        assert torch.equal(one.follow(returns[:count]), other.follow(few[: 40 + count]))
        low, high = np.percentile(returns[:count].numpy(), [5, 95])
        torch.testing.assert_close(one.ends, torch.tensor([0.1 * low, 0.1 * high], dtype=torch.float32))
        assert torch.equal(one.ends, other.ends)
    ends = other.ends.clone()
    assert torch.equal(other.follow(few[:40]), (ends[1] - ends[0]).clamp(min=1.0)) and torch.equal(other.ends, ends)
    narrow = ReturnRange(5.0, 95.0, 0.1, 1.0)
    for _ in range(50):
        assert narrow.follow(torch.linspace(0.0, 1.0, 11)).item() == 1.0
