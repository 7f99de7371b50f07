"""The statistics agree with values worked out by hand, and with SciPy where it is installed (it comes with MLflow)."""

import itertools

import numpy as np
import pytest

from rlrun.bench.stats import (
    ConfidenceInterval,
    human_normalised,
    iqm,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
    stratified_bootstrap,
    student_interval,
    t95,
    welch_interval,
)

SCORES = np.array([[0.0, 1.0, 2.0], [4.0, 3.0, 8.0]])  # [2 runs, 3 games]


def test_aggregates_by_hand():
    # The games' means are 2, 2 and 5.
    assert mean(SCORES) == pytest.approx(3.0) and median(SCORES) == pytest.approx(2.0)
    assert iqm(SCORES) == pytest.approx((1 + 2 + 3 + 4) / 4)  # of six numbers, one is cut off at each end
    assert iqm(np.arange(8.0)) == pytest.approx(3.5) and iqm(np.array([[5.0]])) == 5.0
    assert optimality_gap(SCORES) == pytest.approx(1 - (0 + 1 + 1 + 1 + 1 + 1) / 6)


def test_iqm_is_scipys_trimmed_mean():
    trim_mean = pytest.importorskip("scipy.stats").trim_mean
    rng = np.random.default_rng(0)
    for runs, games in itertools.product((1, 2, 3, 5, 10), (1, 2, 4, 7)):
        scores = rng.normal(size=(runs, games))
        assert iqm(scores) == pytest.approx(trim_mean(scores, 0.25, axis=None))


def test_probability_of_improvement_counts_pairs():
    x, y = np.array([[1.0], [3.0]]), np.array([[2.0], [3.0], [0.0]])
    # 1 beats 0; 3 beats 2 and 0 and ties with 3.
    assert probability_of_improvement(x, y) == pytest.approx((1 + 2 + 0.5) / 6)
    assert probability_of_improvement(x, x) == 0.5 and probability_of_improvement(SCORES + 10, SCORES) == 1.0
    with pytest.raises(ValueError, match="same games"):
        probability_of_improvement(x, SCORES)


def test_probability_of_improvement_is_mann_whitney():
    mannwhitneyu = pytest.importorskip("scipy.stats").mannwhitneyu
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 5, (4, 3)).astype(float), rng.integers(0, 5, (6, 3)).astype(float)
    by_game = [mannwhitneyu(x[:, game], y[:, game]).statistic / 24 for game in range(3)]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(by_game))


def test_bootstrap_draws_within_games_and_covers():
    rng = np.random.default_rng(0)
    same = np.tile(np.array([[1.0, 100.0]]), (5, 1))  # no spread within a game; resampling across games would make one
    assert stratified_bootstrap(same, mean, rng, 200) == ConfidenceInterval(50.5, 50.5, 50.5)
    scores = rng.normal(3.0, 1.0, (20, 5))
    interval = stratified_bootstrap(scores, mean, rng, 2000)
    error = 1.96 * scores.std(axis=0, ddof=0).mean() / np.sqrt(20 * 5)
    assert interval.low < interval.value < interval.high and interval.value == pytest.approx(scores.mean())
    assert interval.high - interval.low == pytest.approx(2 * error, rel=0.15)
    hits = 0
    for seed in range(60):
        drawn = np.random.default_rng(seed).normal(0.0, 1.0, (10, 4))
        interval = stratified_bootstrap(drawn, mean, np.random.default_rng(seed + 1), 300)
        hits += interval.low <= 0 <= interval.high
    assert hits >= 50  # 57 are expected


def test_intervals_of_students_t_by_hand():
    """The values 1 to 5 have the variance 2.5; their mean has sqrt(2.5 / 5), and t with 4 degrees of freedom is 2.776."""
    interval = student_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval.value == 3.0 and interval.low == pytest.approx(3 - 2.776 * 0.5**0.5) and interval.high == pytest.approx(4.96293, abs=1e-4)
    assert student_interval([7.0] * 5) == (7.0, 7.0, 7.0)
    # The second has four times the first one's variance: (0.5 + 2)^2 / (0.5^2 / 4 + 2^2 / 4) = 5.882 degrees of freedom,
    # between t = 2.571 with 5 and 2.447 with 6.
    moved = welch_interval([1.0, 2.0, 3.0, 4.0, 5.0], [12.0, 14.0, 16.0, 18.0, 20.0])
    t = 2.571 + 0.882353 * (2.447 - 2.571)
    assert moved.value == -13.0 and (moved.low, moved.high) == pytest.approx((-13 - t * 2.5**0.5, -13 + t * 2.5**0.5), abs=1e-5)
    assert welch_interval([1.0] * 5, [3.0] * 6) == (-2.0, -2.0, -2.0)


def test_intervals_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    for count in (2, 5, 6.3, 21, 22, 40, 1000):
        assert t95(count) == pytest.approx(stats.t.ppf(0.975, count - 1), rel=0.004)
    rng = np.random.default_rng(2)
    x, y = rng.normal(0, 1, 5), rng.normal(1, 3, 8)
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval(0.95)
    assert welch_interval(x, y)[1:] == pytest.approx((theirs.low, theirs.high), rel=0.005)


def test_human_normalised_scores():
    assert human_normalised("Breakout", 1.7) == 0 and human_normalised("Breakout", 30.5) == pytest.approx(1.0)
    assert human_normalised("Pong", 20.0) == pytest.approx(40.7 / 35.3)
    with pytest.raises(KeyError):
        human_normalised("CartPole-v1", 1.0)
