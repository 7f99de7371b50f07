"""Ratings against cases that can be worked out by hand."""

import numpy as np
import pytest

from rlrun.bench.ratings import bradley_terry, expected


def test_ratings_that_made_the_points_are_found_again():
    """Every pair has its own number of games, and one pair has none."""
    rng = np.random.default_rng(0)
    for spread in (50.0, 300.0, 900.0):
        elo = rng.normal(0.0, spread, 7)
        elo += 1200.0 - elo.mean()
        games = np.triu(rng.integers(1, 400, (7, 7)), 1)
        games[1, 4] = 0
        games = games + games.T
        made = bradley_terry(games * expected(elo), games, prior=0.0)
        np.testing.assert_allclose(made.elo, elo, atol=1e-6)


def test_predicted_points_sum_to_those_observed():
    """At the maximum of the likelihood, also where no ratings explain the points: here three beat one another in a circle."""
    points = np.array([[0.0, 9.0, 2.5, 7.0], [1.0, 0.0, 8.0, 5.0], [7.5, 2.0, 0.0, 9.5], [3.0, 5.0, 0.5, 0.0]])
    games = points + points.T
    elo, _ = bradley_terry(points, games, prior=0.0)
    np.testing.assert_allclose((games * expected(elo)).sum(1), points.sum(1), atol=1e-8)
    assert elo.mean() == pytest.approx(1200.0)
    # The draw that is added to every pair is one more game, with half a point for each.
    elo, _ = bradley_terry(points, games)
    more = 1.0 - np.eye(4)
    np.testing.assert_allclose(((games + more) * expected(elo)).sum(1), (points + more / 2).sum(1), atol=1e-8)


def test_two_players_by_hand():
    elo, error = bradley_terry(np.array([[0.0, 75.0], [25.0, 0.0]]), np.full((2, 2), 100.0), prior=0.0)
    assert elo[0] - elo[1] == pytest.approx(400 * np.log10(3))
    # Of n games with the share p, the variance of the log-odds is 1 / (n p (1 - p)); each rating has half of the gap.
    assert error == pytest.approx(2 * [400 / np.log(10) / np.sqrt(100 * 0.75 * 0.25) / 2])
    elo, _ = bradley_terry(np.array([[0.0, 10.0], [0.0, 0.0]]), np.full((2, 2), 10.0))
    assert elo[0] - elo[1] == pytest.approx(400 * np.log10(10.5 / 0.5)) and elo.mean() == pytest.approx(1200.0)
    assert bradley_terry(np.zeros((1, 1)), np.zeros((1, 1))).elo.tolist() == [1200.0]


def test_a_cycle_is_a_tie_and_long_chains_are_in_order():
    cycle = 100.0 * np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_allclose(bradley_terry(cycle, 100.0 * (1 - np.eye(3))).elo, 1200.0, atol=1e-6)
    chain = np.triu(np.full((12, 12), 1e4), 1)  # everyone lost all games against all before
    elo, error = bradley_terry(chain, chain + chain.T)
    assert (np.diff(elo) < 0).all() and np.isfinite(elo).all() and np.isfinite(error).all()


def test_points_that_cannot_be_rated_are_refused():
    chain = np.triu(np.ones((3, 3)), 1)
    with pytest.raises(ValueError, match="no finite ratings"):
        bradley_terry(chain, chain + chain.T, prior=0.0)
    with pytest.raises(ValueError, match="sum to the number"):
        bradley_terry(chain, chain, prior=0.0)
