"""Whether values are in their spaces, and why not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.envs.check_report import shown

LARGEST = float(np.finfo(np.float32).max)  # rows hold observations in float32
LOOKS = 100  # the first observations of an environment that are looked at while it trains


class Misfit(NamedTuple):
    """Why a value is not in its space."""

    serious: bool  # whether it makes training wrong or impossible
    what: str
    mend: str
    finite: bool = True  # False: a value is NaN or infinite


class Looker:
    """Looks at the first observations of an environment that trains. Later ones are trusted, because looking takes
    as long as a fast environment's step."""

    def __init__(self, space: gymnasium.Space):
        self.space, self.left = space, LOOKS

    def __call__(self, observation: Any) -> str | None:
        """Returns why an observation is not in its space, for the first that is not.

        A list of floats, or float64 in place of float32, is let through; integers in place of floats are not."""
        if not self.left:
            return None
        self.left -= 1
        found = misfit(self.space, observation, "the observation")
        if found is None or not found.finite:  # what is not finite ends the episode anyway
            return None
        if not found.serious and not self._whole(observation):
            return None
        self.left = 0
        return found.what

    def _whole(self, observation: Any) -> bool:
        """Tells whether an observation holds integers where floats were promised."""
        promised = self.space.dtype if isinstance(self.space, spaces.Box) else None
        return promised is not None and promised.kind == "f" and getattr(observation, "dtype", promised).kind in "iu"


def paid(reward: Any) -> tuple[float, str | None]:
    """A reward as a float, and what is wrong with it as part of a sentence, or None if rows can hold it."""
    try:
        number = float("none" if isinstance(reward, str | bytes) else reward)
    except (TypeError, ValueError):
        return 0.0, f"the reward {' '.join(repr(reward).split())}, which is no number"
    if abs(number) <= LARGEST:
        return number, None
    return number, f"the reward {number}{', which float32 cannot hold' if math.isfinite(number) else ''}"


def amiss(outcome: Any, count: int, wanted: str) -> str | None:
    """What is wrong with what an environment's method returned, as part of a sentence, or None if it has `count` parts.
    wanted: the names of the parts."""
    if isinstance(outcome, tuple | list) and len(outcome) == count:
        return None
    what = (
        f"{len(outcome)} values"
        if isinstance(outcome, tuple | list)
        else f"a value of the type {type(outcome).__name__}"
    )
    return f"{what}, and must return {wanted}"


def useless(space: gymnasium.Space) -> Callable[[Any], str | None]:
    """Returns a function that says why nothing can be learnt from an observation, or None if it can: its shape is not
    that of the space, or it holds NaN, infinity, or a number that becomes infinite in float32. It takes a microsecond
    or two, as every step of every environment needs it."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        looks = [(key, useless(part)) for key, part in parts]

        def look_inside(value: Any) -> str | None:
            try:
                return next((said for key, look in looks if (said := look(value[key])) is not None), None)
            except (KeyError, IndexError, TypeError):  # a part is missing, or this is no dictionary
                found = misfit(space, value, "it")
                return f"an observation that is not in its space: {found.what if found else shown(value)}"

        return look_inside
    if not isinstance(space, spaces.Box):
        return lambda value: None
    shape, floats = space.shape, space.dtype is not None and np.dtype(space.dtype).kind == "f"

    def look(value: Any) -> str | None:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.shape != shape:
            if value is None:
                return "the observation None"
            return f"an observation of the shape {array.shape}, and its space is Box({list(shape)}, {space.dtype})"
        if floats:
            flat = array.reshape(-1)
            with np.errstate(all="ignore"):  # the sum may overflow where all is well
                squares = float(flat.dot(flat))
            if not squares < LARGEST**2:  # otherwise no number is larger than LARGEST
                return _too_large(array)
        return None

    return look


def _too_large(array: np.ndarray) -> str | None:
    """Says what is wrong with numbers that are not finite in float32; None if they are."""
    if not np.isfinite(array).all():
        return "an observation that is not finite"
    if (abs(array) > LARGEST).any():
        return f"an observation with the number {array.flat[abs(array).argmax()]:g}, which float32 cannot hold"
    return None


def first_of(bad: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(bad)[0])


def index_text(at: tuple[int, ...]) -> str:
    return f" at [{', '.join(map(str, at))}]" if at else ""


def misfit(space: gymnasium.Space, value: Any, path: str = "") -> Misfit | None:
    """Returns why a value is not in its space; None if it is. A part that is serious comes before one that is not."""
    inner: list[Misfit | None]
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict):
            return Misfit(True, f"{path} is a {type(value).__name__}, and the space is a Dict", "return a dict")
        lacking, more = space.spaces.keys() - value.keys(), value.keys() - space.spaces.keys()
        if lacking or more:
            said = [f"lacks {sorted(map(str, lacking))}"] * bool(lacking)
            said += [f"has {sorted(map(str, more))} in addition"] * bool(more)
            return Misfit(True, f"{path} {' and '.join(said)}", "return the keys that the space has, and no others")
        inner = [misfit(part, value[key], f"{path}[{key!r}]") for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list):
            return Misfit(True, f"{path} is a {type(value).__name__}, and the space is a Tuple", "return a tuple")
        if len(value) != len(space.spaces):
            what = f"{path} has {len(value)} parts, and the space has {len(space.spaces)}"
            return Misfit(True, what, "return one part for each part of the space")
        inner = [misfit(part, value[i], f"{path}[{i}]") for i, part in enumerate(space.spaces)]
    else:
        return _leaf(space, value, path)
    found = [one for one in inner if one is not None]
    return next((one for one in found if one.serious), found[0] if found else None)


def _leaf(space: gymnasium.Space, value: Any, path: str) -> Misfit | None:
    if value is None:
        return Misfit(
            True, f"{path} is None", "return an observation from reset() and from every step(), also the last"
        )
    if isinstance(space, spaces.Box):
        return _in_box(space, value, path)
    if isinstance(space, spaces.Discrete):
        return _in_discrete(space, value, path)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _in_choices(space, value, path)
    if not space.contains(value):
        return Misfit(True, f"{path} is {shown(value)}, which is not in {space}", "return a value of the space")
    return None


def _in_box(space: spaces.Box, value: Any, path: str) -> Misfit | None:
    listed = not isinstance(value, np.ndarray | np.generic)
    try:
        array = np.asarray(value)
    except Exception:  # such as lists of unlike lengths
        array = np.asarray(None)
    if array.dtype.kind not in "bifu":
        what = f"{path} is {shown(value)} ({type(value).__name__}), and the space is {space}"
        return Misfit(True, what, f"return np.asarray(observation, dtype=np.{space.dtype})")
    if array.shape != space.shape:
        what = f"{path} has the shape {array.shape}, and the space says {space.shape}"
        return Misfit(True, what, "make both the same: reshape the observation, or change the space's shape")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        at = first_of(~np.isfinite(array))
        what = f"{path} holds {array[at]}{index_text(at)}"
        return Misfit(
            True, what, "find where it comes from, such as a division by 0, and end the episode before it", finite=False
        )
    if array.dtype.kind == "f" and space.dtype is not None and space.dtype.kind == "f":
        large = abs(array) > LARGEST
        if large.any():
            at = first_of(large)
            what = f"{path} holds {array[at]}{index_text(at)}, and rlrun keeps observations in float32"
            return Misfit(True, what, f"scale the observation, as float32 ends at {LARGEST:.3g}", finite=False)
    astype = f"return observation.astype(np.{space.dtype}), or change the space's dtype"
    if not listed and array.dtype != space.dtype and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return Misfit(True, f"{path} has the dtype {array.dtype}, and the space promises {space.dtype}", astype)
    numbers = array.astype(np.float64)
    slack = 1e-5 * np.maximum(1.0, np.abs(numbers)) if space.dtype is not None and space.dtype.kind == "f" else 0.0
    outside = (numbers < space.low.astype(np.float64) - slack) | (numbers > space.high.astype(np.float64) + slack)
    if outside.any():
        at = first_of(outside)
        what = f"{path} holds {array[at]}{index_text(at)}, and the space allows {space.low[at]} to {space.high[at]}"
        return Misfit(True, what, "widen the space's bounds, or clip the observation")
    if listed:
        what = f"{path} is a {type(value).__name__} and no NumPy array"
        return Misfit(False, what, f"return np.asarray(observation, dtype=np.{space.dtype})")
    if array.dtype != space.dtype:
        return Misfit(False, f"{path} has the dtype {array.dtype}, and the space promises {space.dtype}", astype)
    return None


def _in_discrete(space: spaces.Discrete, value: Any, path: str) -> Misfit | None:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iu":
        kind = f"{type(value).__name__} of the shape {array.shape}" if array.shape else type(value).__name__
        return Misfit(True, f"{path} is {shown(value)} ({kind}), and {space} holds whole numbers", "return an int")
    if not space.start <= int(array) < space.start + space.n:
        last = int(space.start + space.n - 1)
        what = f"{path} is {int(array)}, and {space} holds {int(space.start)} to {last}"
        return Misfit(True, what, "count as the space does, or make the space larger")
    return None


def _in_choices(space: spaces.MultiDiscrete | spaces.MultiBinary, value: Any, path: str) -> Misfit | None:
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        return Misfit(True, f"{path} has the dtype {array.dtype}, and {space} holds whole numbers", "return integers")
    if array.shape != tuple(space.shape or ()):
        return Misfit(
            True, f"{path} has the shape {array.shape}, and the space says {space.shape}", "make both the same"
        )
    if isinstance(space, spaces.MultiBinary):
        bad = (array != 0) & (array != 1)
    else:
        bad = (array < space.start) | (array >= space.start + space.nvec)
    if bad.any():
        at = first_of(bad)
        what = f"{path} holds {array[at]}{index_text(at)}, which {space} does not allow"
        return Misfit(True, what, "count as the space does, or make the space larger")
    return None
