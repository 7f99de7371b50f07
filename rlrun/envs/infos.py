"""The numbers in what environments tell beside their observations, which are logged. Nothing else of an info is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

OF_NUMPY = (np.ndarray, np.generic)


def is_number(value: Any) -> bool:
    """Whether a value is one real number or bool, in Python's or NumPy's form."""
    if isinstance(value, OF_NUMPY):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, (int, float))  # a bool is an int


def numbers_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one environment's info by name. A key that is no text names no metric, and is left out. Raises
    TypeError for an info that is no dict."""
    if type(info) is not dict and not isinstance(info, Mapping):
        raise TypeError(f"it returned {' '.join(repr(info).split())} as info, which must be a dict")
    # Every step of every environment comes here, and most numbers are Python's floats.
    return {
        name: value if type(value) is float else _float(value)
        for name, value in info.items()
        if isinstance(name, str) and (type(value) is float or is_number(value))
    }


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of Python's may be larger than any float
        return math.inf if value > 0 else -math.inf
