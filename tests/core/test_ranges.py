"""Ranges that stand in types are checked wherever the type allows a number, and the message names the option."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from rlrun.config.types import ConfigError, typed
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, Range, Share
from rlrun.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Options:
    count: Annotated[int, Count] = 1
    lr: Annotated[Schedule, NotNegative] = Schedule(((0.0, 1.0),))  # noqa: RUF009
    tau: Annotated[float, PositiveShare] = 1.0
    widths: tuple[Annotated[int, Count], ...] = ()
    clip: Literal["none"] | Annotated[float, Positive] = "none"
    every: Annotated[int, Count] | None = None
    theta: Annotated[float, Range(0, 2, below_highest=True)] = 0.0


FINE = {"count": 1, "lr": 0, "tau": 1, "widths": [3, 1], "clip": "none", "every": None, "theta": 1.99}


@pytest.mark.parametrize(
    "change", [{}, {"lr": [[0, 1e-3], [10, 0]]}, {"clip": 0.5}, {"every": 7}, {"tau": 1e-9}, {"widths": []}]
)
def test_what_lies_in_its_range_is_taken(change):
    made = typed(Options, FINE | change, "algo")
    assert made.count == 1 and made.theta == 1.99


@pytest.mark.parametrize("change, said", [
    ({"count": 0}, "algo.count must be at least 1, not 0"),
    ({"lr": [[0, 1e-3], [10, -1e-9]]}, "algo.lr must be at least 0"),
    ({"tau": 0}, "algo.tau"),
    ({"tau": 1.01}, "algo.tau"),
    ({"widths": [3, 0]}, r"algo.widths\[1\] must be at least 1, not 0"),
    ({"clip": 0}, "algo.clip"),
    ({"every": 0}, "algo.every"),
    ({"theta": 2}, "algo.theta"),
])  # fmt: skip
def test_what_lies_outside_is_refused_with_the_options_name(change, said):
    with pytest.raises(ConfigError, match=said):
        typed(Options, FINE | change, "algo")


def test_both_ends_and_a_schedules_values():
    assert 0 in Share and 1 in Share and 1.0001 not in Share and 0 not in Positive
    assert Schedule(((0.0, 0.5), (9.0, 1.0))) in Share and Schedule(((0.0, 0.5), (9.0, 1.1))) not in Share
