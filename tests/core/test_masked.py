"""Reductions over live rows against NumPy, with dead rows that hold anything."""

import numpy as np
import pytest
import torch

from rlrun.core.masked import explained_variance, masked_mean, masked_moments, masked_normalize


@pytest.fixture
def rows():
    """Targets and values [T, B], which rows are live, and the live numbers alone."""
    random = torch.Generator().manual_seed(0)
    target, value = 3 + 2 * torch.randn(2, 7, 4, generator=random)
    valid = torch.rand(7, 4, generator=random) < 0.6
    live = target[valid].double().numpy(), value[valid].double().numpy()
    return target.masked_fill(~valid, torch.nan), value.masked_fill(~valid, torch.nan), valid, live


def test_means_and_variances_are_those_of_the_live_rows(rows):
    target, value, valid, live = rows
    mean, variance = masked_moments(torch.stack([target, value]), valid)
    assert mean.tolist() == pytest.approx([x.mean() for x in live], rel=1e-5)
    assert variance.tolist() == pytest.approx([x.var() for x in live], rel=1e-5)
    assert float(masked_mean(target, valid)) == pytest.approx(live[0].mean(), rel=1e-5)
    halves = [masked_mean(target[:, part], valid[:, part], valid.sum()) for part in (slice(0, 1), slice(1, 4))]
    assert float(sum(halves)) == pytest.approx(live[0].mean(), rel=1e-5), "parts of a batch add up to its mean"


def test_normalized_live_rows_have_mean_0_and_deviation_1(rows):
    target, _, valid, (live, _) = rows
    got = masked_normalize(target, valid)
    np.testing.assert_allclose(got[valid], (live - live.mean()) / live.std(), rtol=1e-4, atol=1e-5)
    assert (got[~valid] == 0).all()


def test_the_explained_variance_is_the_share_of_the_targets(rows):
    target, value, valid, live = rows
    got = explained_variance(target, value, valid)
    assert float(got) == pytest.approx(1 - (live[0] - live[1]).var() / live[0].var(), rel=1e-4)
    assert float(explained_variance(target, target + 5, valid)) == pytest.approx(1, abs=1e-5)


def test_without_a_live_row_everything_is_0(rows):
    target, _, valid, _ = rows
    nobody = torch.zeros_like(valid)
    assert float(masked_mean(target, nobody)) == 0 and (masked_normalize(target, nobody) == 0).all()
    assert [float(x) for x in masked_moments(target[None], nobody)] == [0, 0]


def test_returns_of_tiny_rewards_do_not_look_as_if_they_were_predicted(rows):
    target, value, valid, _ = rows
    assert float(explained_variance(target * 1e-7, value * 1e-7, valid)) <= 1e-5
    assert float(explained_variance(target * 1e-7, torch.zeros_like(value), valid)) == pytest.approx(0, abs=1e-5)
    assert float(explained_variance(target * 1e-7, target * 1e-7 + 5e-8, valid)) == pytest.approx(1, abs=1e-5)
    alike = torch.ones_like(target)
    assert -1e12 < float(explained_variance(alike, value, valid)) < 0
