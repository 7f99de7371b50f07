"""Named ranges of options for use in types: `discount: Annotated[float, Share]`, `every: Annotated[int, Count] | None`.

config/types.py checks ranges wherever they occur in a type, and its message names the option. A Schedule is within a
range if all of its values are; `Text` is for texts that must not be empty. Checks that involve several options are in
`__post_init__` instead. A config that is made in Python, and not by `typed()`, is not checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlrun.core.schedule import Schedule


@dataclass(frozen=True)
class Range:
    """Numbers from `lowest` to `highest`, both included unless `above_lowest` or `below_highest` is set."""

    lowest: float = -math.inf
    highest: float = math.inf
    above_lowest: bool = False
    below_highest: bool = False

    def __contains__(self, value: float | Schedule) -> bool:
        numbers = value.values if isinstance(value, Schedule) else (value,)
        return all(self._contains_number(number) for number in numbers)

    def _contains_number(self, number: float) -> bool:
        if number < self.lowest or (self.above_lowest and number == self.lowest):
            return False
        return number < self.highest or (number == self.highest and not self.below_highest)

    def __str__(self) -> str:
        """What a value must be, such as "at least 1"."""
        if self == Positive:
            return "positive"
        if self == Finite:
            return "positive and finite"
        if self == Real:
            return "finite"
        if not (self.above_lowest or self.below_highest) and math.isfinite(self.lowest) and math.isfinite(self.highest):
            return f"between {self.lowest:g} and {self.highest:g}"
        said = []
        if math.isfinite(self.lowest):
            said.append(f"{'above' if self.above_lowest else 'at least'} {self.lowest:g}")
        if math.isfinite(self.highest):
            said.append(f"{'below' if self.below_highest else 'at most'} {self.highest:g}")
        return " and ".join(said)


@dataclass(frozen=True)
class SeedRange:
    """Whole numbers that every random generator takes as a seed: PyTorch's take 64 bits."""

    def __contains__(self, value: int) -> bool:
        return 0 <= value < 2**63

    def __str__(self) -> str:
        return "at least 0 and below 2^63"


Seed = SeedRange()


@dataclass(frozen=True)
class NotEmpty:
    """Texts of at least one character. A shell variable that is not set would leave an empty one."""

    def __contains__(self, value: str) -> bool:
        return value != ""

    def __str__(self) -> str:
        return "a text that is not empty"


Text = NotEmpty()
Count = Range(1)  # a number of things of which there must be at least one
NotNegative = Range(0)
Positive = Range(0, above_lowest=True)
Finite = Range(0, above_lowest=True, below_highest=True)  # positive, for what is divided by
Real = Range(above_lowest=True, below_highest=True)  # any number but an infinite one
Share = Range(0, 1)  # a part of a whole, or a probability
PositiveShare = Range(0, 1, above_lowest=True)
ShareBelowOne = Range(0, 1, below_highest=True)
PositiveShareBelowOne = Range(0, 1, above_lowest=True, below_highest=True)
