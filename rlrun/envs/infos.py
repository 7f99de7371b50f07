"""The numbers in what environments tell beside their observations, which are logged. Nothing else of an info is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def is_number(value: Any) -> bool:
    """Whether a value is one real number or bool, in Python's or NumPy's form."""
    if isinstance(value, np.ndarray | np.generic):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, bool | int | float)


def numbers_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one environment's info by name. Raises TypeError for an info that is no dict."""
    if not isinstance(info, Mapping):
        raise TypeError(f"it returned {' '.join(repr(info).split())} as info, which must be a dict")
    return {name: float(value) for name, value in info.items() if is_number(value)}
