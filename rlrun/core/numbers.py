"""Reads whole numbers as people write them: 200k, 1M, 1.5M, 10_000."""

from __future__ import annotations

import re
from decimal import Decimal

SUFFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
HINT = "k, M and G stand for a thousand, a million and a billion, as in 200k"
_NUMBER = re.compile(r"([+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)([kKMGB]?)")
_SUFFIXED = re.compile(r"[+-]?\d[\d_.]*\s*[A-Za-z]+")


def number(text: str) -> int | float | None:
    """The number that a text stands for, as an int if it is whole; None if it is not a number."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    value = Decimal(found[1].replace("_", "")) * SUFFIXES.get(found[2], 1)
    return int(value) if value == value.to_integral_value() else float(value)


def whole_number(text: str) -> int | None:
    """The whole number that a text stands for; None if it is none."""
    value = number(text)
    return value if isinstance(value, int) else None


def hint(value: object) -> str:
    """A clause about suffixes, for the message on a number with a wrong one, such as "3Q"; else an empty string."""
    return f"; {HINT}" if isinstance(value, str) and _SUFFIXED.fullmatch(value.strip()) else ""
