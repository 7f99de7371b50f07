"""Statistics over seeds and games that Agarwal et al. (2021, arXiv:2108.13264) recommend, tested against values worked
out by hand.

Scores have shape [N, M]: N runs (seeds) of each of M games.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Scores = np.ndarray
INTERVAL_RUNS = 5  # fewer runs have no interval: it would reach returns that no run has seen

# The 97.5% quantile of Student's t distribution with 1, 2, ... 20 degrees of freedom.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
       2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip


class ConfidenceInterval(NamedTuple):
    value: float
    low: float
    high: float


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of the middle half of all scores, taken together.

    As in scipy's trim_mean, the number of scores that is cut off at each end is rounded down.
    """
    flat = np.sort(np.asarray(scores, dtype=float).reshape(-1))
    cut = int(0.25 * flat.size)
    return float(flat[cut : flat.size - cut].mean())


def mean(scores: Scores) -> float:
    """The mean of the games' mean scores."""
    return float(np.asarray(scores, dtype=float).mean(axis=0).mean())


def median(scores: Scores) -> float:
    """The median of the games' mean scores."""
    return float(np.median(np.asarray(scores, dtype=float).mean(axis=0)))


def optimality_gap(scores: Scores, target: float = 1.0) -> float:
    """How far runs stay below the target on average. Scores above the target count as the target."""
    return float(target - np.minimum(np.asarray(scores, dtype=float), target).mean())


def stratified_bootstrap(
    scores: Scores,
    statistic: Callable[[Scores], float],
    rng: np.random.Generator,
    repetitions: int = 2000,
    confidence: float = 0.95,
) -> ConfidenceInterval:
    """The statistic and its percentile interval. Runs are resampled with replacement within each game (section 4)."""
    scores = np.asarray(scores, dtype=float)
    runs, games = scores.shape
    made = [
        statistic(np.take_along_axis(scores, rng.integers(0, runs, (runs, games)), axis=0)) for _ in range(repetitions)
    ]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(made, [tail, 100 - tail])
    return ConfidenceInterval(statistic(scores), float(low), float(high))


def t95(count: float) -> float:
    """The 97.5% quantile of Student's t distribution for the mean of `count` values, which has count - 1 degrees of
    freedom. A count that is not whole lies between its neighbours."""
    freedom = count - 1
    return float(np.interp(freedom, range(1, len(T95) + 1), T95)) if freedom <= len(T95) else 1.96 + 2.5 / freedom


def student_interval(values: Scores | Sequence[float]) -> ConfidenceInterval:
    """The mean of values [N] and its 95% interval by Student's t. N is at least 2."""
    values = np.asarray(values, dtype=float)
    error = t95(values.size) * float(values.std(ddof=1)) / np.sqrt(values.size)
    middle = float(values.mean())
    return ConfidenceInterval(middle, float(middle - error), float(middle + error))


def welch_interval(x: Scores | Sequence[float], y: Scores | Sequence[float]) -> ConfidenceInterval:
    """The mean of x [Nx] minus that of y [Ny], and its 95% interval by Welch's t, which lets x and y have different
    variances. Nx and Ny are at least 2."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    parts = np.array([x.var(ddof=1) / x.size, y.var(ddof=1) / y.size])  # the variances of both means
    difference = float(x.mean() - y.mean())
    if not parts.any():
        return ConfidenceInterval(difference, difference, difference)
    # The degrees of freedom by Welch and Satterthwaite.
    freedom = float(parts.sum() ** 2 / (parts**2 / np.array([x.size - 1, y.size - 1])).sum())
    error = float(t95(freedom + 1) * np.sqrt(parts.sum()))
    return ConfidenceInterval(difference, difference - error, difference + error)


def probability_of_improvement(x: Scores, y: Scores) -> float:
    """The probability that a run of x beats a run of y on the same game, averaged over games.

    A tie counts half, which makes this the Mann-Whitney U statistic divided by the number of pairs. x [Nx, M] and
    y [Ny, M] may have different numbers of runs. ValueError where they have different numbers of games.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x.shape[1] != y.shape[1]:
        raise ValueError("both need the same games")
    higher = (x[:, None, :] > y[None, :, :]) + 0.5 * (x[:, None, :] == y[None, :, :])  # [Nx, Ny, M]
    return float(higher.mean(axis=(0, 1)).mean())


def human_normalised(game: str, score: float) -> float:
    """The score on a scale where a random policy has 0 and a person 1. KeyError for a game without figures."""
    random, human = RANDOM_AND_HUMAN[game]
    return (score - random) / (human - random)


# Scores of a random policy and of a person with no-op starts, from Mnih et al. 2015 and Wang et al. 2016
# (arXiv:1511.06581, table 2). The keys are the names that env= takes.
RANDOM_AND_HUMAN = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7),
    "Atlantis": (12850.0, 29028.1),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "BeamRider": (363.9, 16926.5),
    "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0),
    "DoubleDunk": (-18.6, -16.4),
    "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4),
    "Hero": (1027.0, 30826.4),
    "IceHockey": (-11.2, 0.9),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3),
    "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0),
    "RoadRunner": (11.5, 7845.0),
    "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7),
    "Skiing": (-17098.1, -4336.9),
    "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7),
    "StarGunner": (664.0, 10250.0),
    "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3),
    "TimePilot": (3568.0, 5229.2),
    "Tutankham": (11.4, 167.6),
    "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5),
    "VideoPinball": (16256.9, 17667.9),
    "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}
