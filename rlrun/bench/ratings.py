"""Elo ratings of players that are fitted to the results of their games."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

SCALE = 400.0 / math.log(10.0)  # points of Elo's scale in one unit of log-odds
PRIOR = 1.0  # drawn games that are added to every pair
MEAN = 1200.0


class Ratings(NamedTuple):
    """Ratings of P players and their standard errors, both [P] in points of Elo's scale."""

    elo: np.ndarray
    error: np.ndarray


def expected(elo: np.ndarray) -> np.ndarray:
    """The points [P, P] that each row's player is expected to take from each column's in a game, by ratings [P]."""
    gap = np.asarray(elo, dtype=float)[:, None] - np.asarray(elo, dtype=float)[None, :]
    return 1.0 / (1.0 + 10.0 ** (-gap / 400.0))


def bradley_terry(points: np.ndarray, games: np.ndarray, prior: float = PRIOR, mean: float = MEAN) -> Ratings:
    """The most likely ratings (Bradley and Terry 1952, Biometrika 39; draws as half wins; the scale is that of Elo
    1978), found by Newton's method.

    points [P, P]: what each row's player took from each column's in all of their games, 1 for a win and 0.5 for a draw.
    games [P, P]: how many games those were. The diagonals are not read. prior: how many drawn games are added to
    every pair, so that a player who won or lost all games has a finite rating; they are in the errors too. Ratings are
    shifted so that their mean is `mean`.

    Without a prior, the points that the ratings predict for a player's games sum to the points that it took. Raises
    ValueError if the points of two players are not those of their games, or, with prior=0, if no finite ratings are
    most likely: if some players took no point from all others (Ford 1957, American Mathematical Monthly 64)."""
    apart = ~np.eye(len(points), dtype=bool)
    won = np.where(apart, np.asarray(points, dtype=float), 0.0)
    played = np.where(apart, np.asarray(games, dtype=float), 0.0)
    if (won < 0).any() or not np.allclose(won + won.T, played):
        raise ValueError("points of two players must not be negative and must sum to the number of their games")
    won, played = won + apart * prior / 2.0, played + apart * prior
    if not _connected(won > 0):
        raise ValueError("some players took no point from all others, so that no finite ratings are most likely")
    strength = np.zeros(len(won))  # log-odds
    inverse = np.zeros_like(won)
    for _ in range(100):
        share = expected(strength * SCALE)
        weight = played * share * share.T
        # Adding a constant to all strengths changes nothing; the pseudo-inverse leaves their mean as it is.
        inverse = np.linalg.pinv(np.diag(weight.sum(1)) - weight, hermitian=True)
        slope = (won - played * share).sum(1)
        step = inverse @ slope
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
        before, size = _likelihood(won, strength), 1.0
        # Far from the maximum a whole step can overshoot.
        while _likelihood(won, strength + size * step) < before and size > 1e-6:
            size /= 2.0
        strength = strength + size * step
    error = np.sqrt(np.maximum(np.diag(inverse), 0.0))
    return Ratings(mean + SCALE * (strength - strength.mean()), SCALE * error)


def _likelihood(won: np.ndarray, strength: np.ndarray) -> float:
    """The logarithm of the likelihood of these points [P, P] with these strengths [P]."""
    return float(-(won * np.logaddexp(0.0, strength[None, :] - strength[:, None])).sum())


def _connected(beat: np.ndarray) -> bool:
    """Whether a chain of players leads from each to each, in which everyone took points from the next. beat [P, P]."""
    reach = beat | np.eye(len(beat), dtype=bool)
    for _ in range(max(len(beat) - 1, 1).bit_length()):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    return bool(reach.all())
