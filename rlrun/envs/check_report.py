"""What `rlrun check-env` finds in an environment, and the calls that it makes while it looks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlrun.core.errors import told
from rlrun.core.pulse import RESET, STARTING, STEP, WAITING, Pulse

Kind = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. An error makes training wrong or impossible. A warning is probably not what was meant.
    A note is true of many good environments."""

    kind: Kind
    check: str  # a short name, such as "reward"; each is reported once
    what: str  # a sentence without its full stop
    where: str  # such as "step 3 after reset(seed=0)"; empty for the environment as a whole
    mend: str  # a sentence without its full stop; empty for a note that asks for nothing


class Stop(Exception):
    """What was found makes the checks that would follow impossible."""


class Findings:
    """Hands each finding on as soon as it is there, because the environment may end the process at its next call."""

    def __init__(self, tell: Callable[[tuple[str, Any]], None], pulse: Pulse | None = None):
        """tell: called with ("finding", Finding), ("fact", (name, number)) and ("doing", text)."""
        self.tell, self.pulse = tell, pulse
        self.seen: dict[str, Kind] = {}

    def _found(self, kind: Kind, check: str, what: str, mend: str, where: str) -> None:
        if check not in self.seen:
            self.seen[check] = kind
            self.tell(("finding", Finding(kind, check, what, where, mend)))

    def error(self, check: str, what: str, mend: str, where: str = "") -> None:
        self._found("error", check, what, mend, where)

    def warning(self, check: str, what: str, mend: str, where: str = "") -> None:
        self._found("warning", check, what, mend, where)

    def note(self, check: str, what: str, mend: str = "", where: str = "") -> None:
        self._found("note", check, what, mend, where)

    def fact(self, name: str, number: float) -> None:
        self.tell(("fact", (name, number)))

    @property
    def errors(self) -> int:
        return sum(kind == "error" for kind in self.seen.values())

    @contextmanager
    def calling(self, activity: int, text: str = "") -> Iterator[None]:
        """Says that the environment's own code is called now, so that the parent notices when it hangs.

        text: what is done, which is sent with a message and therefore not for every step."""
        if text:
            self.tell(("doing", text))
        if self.pulse is None:
            yield
            return
        self.pulse.beat(activity)
        try:
            yield
        finally:
            if activity == STEP:
                self.pulse.stepped()
            self.pulse.beat(WAITING)

    def starting(self, text: str) -> Any:
        return self.calling(STARTING, text)

    def stepping(self) -> Any:
        return self.calling(STEP)

    def resetting(self) -> Any:
        return self.calling(RESET)


def raised(error: BaseException) -> str:
    """An exception of the user's code as part of a sentence, with the line that raised it."""
    return told(error, *OURS)


OURS: list[str] = [__file__]  # files of the checks, which only call the user's code


# -- values ------------------------------------------------------------------------------------------------------------


def copied(value: Any) -> Any:
    """A copy of an observation that the environment cannot change."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(copied(part) for part in value)
    try:
        return copy.deepcopy(value)
    except Exception:  # an object of the user's own
        return value


def same(one: Any, other: Any) -> bool:
    """Whether two observations, rewards or ends are equal to the bit. NaN equals NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    try:
        first, second = np.asarray(one), np.asarray(other)
        if first.shape != second.shape:
            return False
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind in "fc" and second.dtype.kind in "fc"))
    except Exception:  # objects of the user's own
        return bool(one is other or repr(one) == repr(other))


def shown(value: Any, limit: int = 60) -> str:
    """A value in a message: short, and on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
