"""Clock and schedules: every option that changes over a run is a function of env steps."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch

from rlrun.core.numbers import number

Curve = Literal["linear", "cosine", "exponential"]
FORMS = (
    'a schedule is a number, "A to B over N" (env steps), "A to B over N cosine" or exponential, {start, end, steps},'
    " {start, end, steps, curve} or [[env_steps, value], ...]"
)


class Clock(NamedTuple):
    """How far a run has come. It is sent to the samplers with the weights, so that all schedules agree about time.

    A run that learns from a dataset takes no decisions, so it counts the live rows it has learnt from as env steps.
    Schedules, stops, saves and logs then need no second unit."""

    env_steps: int = 0  # decisions taken in all envs, without dead rows
    updates: int = 0  # calls of Algorithm.update

    def after(self, env_steps: int = 0, updates: int = 0) -> Clock:
        return Clock(self.env_steps + env_steps, self.updates + updates)


@dataclass(frozen=True)
class Schedule:
    """A function of env steps between (env_steps, value) points, which is constant before the first point and after the
    last. With x from 0 to 1 between the points A and B, its curve is

    linear: A + x (B - A)
    cosine: B + (A - B) (1 + cos(pi x)) / 2, as PyTorch's CosineAnnealingLR until T_max
    exponential: A (B / A)^x, as PyTorch's ExponentialLR with gamma (B / A)^(1 / steps)"""

    points: tuple[tuple[float, float], ...]
    curve: Curve = "linear"

    def __call__(self, clock: Clock) -> float:
        if isinstance(clock, GraphClock):
            return clock.value_of(self)
        steps = [point[0] for point in self.points]
        right = bisect.bisect_right(steps, clock.env_steps)
        if right == 0:
            return self.points[0][1]
        if right == len(self.points):
            return self.points[-1][1]
        (x0, y0), (x1, y1) = self.points[right - 1], self.points[right]
        if self.curve == "cosine":
            return y1 + (y0 - y1) * (1 + math.cos(math.pi * (clock.env_steps - x0) / (x1 - x0))) / 2
        if self.curve == "exponential":
            return y0 * (y1 / y0) ** ((clock.env_steps - x0) / (x1 - x0))
        return y0 + (y1 - y0) * (clock.env_steps - x0) / (x1 - x0)

    @property
    def values(self) -> tuple[float, ...]:
        """The values at the points. All others are between them."""
        return tuple(value for _, value in self.points)

    def __post_init__(self):
        if not all(math.isfinite(number) for point in self.points for number in point):
            raise ValueError("a schedule's numbers must be finite")
        if self.curve == "exponential" and not all(value > 0 for value in self.values):
            raise ValueError("an exponential schedule multiplies by a constant factor, so its values must be positive")

    @staticmethod
    def parse(value: object) -> Schedule:
        """Parses a number, "A to B over N" with an optional curve behind it, {start, end, steps} with an optional
        curve, or [[env_steps, value], ...] with rising env_steps. Raises ValueError for anything else."""
        try:
            return Schedule._parsed(value)
        except OverflowError:  # of a whole number with hundreds of digits, such as 1e999
            raise ValueError("a schedule's numbers must be finite") from None

    @staticmethod
    def _parsed(value: object) -> Schedule:
        if isinstance(value, bool) or value is None:
            raise ValueError(FORMS)
        if isinstance(value, int | float):
            return Schedule(((0.0, float(value)),))
        if isinstance(value, str):
            words = re.fullmatch(r"\s*(\S+) to (\S+) over (\S+)(?: (\S+))?\s*", value)
            try:
                if words:
                    read = [float(text) if number(text) is None else number(text) for text in words.groups()[:3]]
                    value = dict(zip(("start", "end", "steps"), read, strict=True)) | {"curve": words[4] or "linear"}
            except ValueError:
                pass  # the error is raised below
        if isinstance(value, dict):
            numbers: dict[str, Any] = {name: _read(given) for name, given in value.items() if name != "curve"}
            curve = value.get("curve", "linear")
            if set(numbers) != {"start", "end", "steps"} or not all(_is_number(n) for n in numbers.values()):
                raise ValueError("a schedule between two values has the numbers start, end and steps (env steps)")
            if curve not in get_args(Curve):
                raise ValueError(f"a schedule's curve must be one of {', '.join(get_args(Curve))}, not {curve!r}")
            if numbers["steps"] <= 0:
                raise ValueError("a schedule's steps must be positive")
            start, end, steps = (float(numbers[name]) for name in ("start", "end", "steps"))
            return Schedule(((0.0, start), (steps, end)), curve)
        if (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(p, list | tuple) and len(p) == 2 for p in value)
        ):
            read_points = [(_read(x), _read(y)) for x, y in value]
            if not all(_is_number(part) for point in read_points for part in point):
                raise ValueError(FORMS)
            points = tuple((float(x), float(y)) for x, y in read_points)
            if any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
                raise ValueError("a schedule's points need rising env_steps")
            return Schedule(points)
        raise ValueError(FORMS)


def _read(value: Any) -> Any:
    """The number of a text such as 200k, or the value itself."""
    read = number(value) if isinstance(value, str) else None
    return value if read is None else read


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_type(device: torch.device) -> torch.dtype:
    """The dtype of a tensor [] that stands for one of Python's numbers in a recorded function. On a CPU it is that of
    Python's numbers themselves, so that arithmetic with it is rounded as theirs is. A GPU's optimisers take float32
    only."""
    return torch.float64 if device.type == "cpu" else torch.float32


class GraphClock:
    """A Clock for functions that are recorded and replayed (machine/graphs.py). With it, schedules that change give
    tensors [], which renew() fills."""

    def __init__(self, device: torch.device):
        self.device = device
        self.given: dict[Schedule, torch.Tensor] = {}
        self.filled: dict[Schedule, float] = {}
        self.now = Clock()

    def value_of(self, schedule: Schedule) -> Any:
        """The schedule's value: a number if it never changes, else a tensor []."""
        if min(schedule.values) == max(schedule.values):
            return schedule.values[0]
        if schedule not in self.given:  # this is at the first, unrecorded call, so the tensor exists before a recording
            kind = number_type(self.device)
            self.given[schedule] = torch.full((), schedule(self.now), dtype=kind, device=self.device)
            self.filled[schedule] = schedule(self.now)
        return self.given[schedule]

    def renew(self, clock: Clock) -> None:
        """Fills the tensors with the schedules' values at this clock."""
        self.now = clock
        for schedule, tensor in self.given.items():
            value = schedule(clock)
            if self.filled.get(schedule) != value:
                tensor.fill_(value)
                self.filled[schedule] = value

    @property
    def env_steps(self) -> int:
        raise RuntimeError("a function that reads the number of env steps cannot be recorded; use a schedule instead")

    @property
    def updates(self) -> int:
        raise RuntimeError(
            "something that is done at some updates only cannot be recorded: do it outside of the recorded function"
        )
