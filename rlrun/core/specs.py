"""What an environment looks like from outside: its spaces, as data that travels to samplers and models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rlrun.core.batch import Field, RowSpec, torch_dtype


@dataclass(frozen=True, kw_only=True)
class Discrete:
    """Actions 0 .. n-1."""

    n: int
    start: int = 0  # the env's own numbering begins here; rows always count from 0

    @property
    def kind(self) -> str:
        return "discrete"

    @property
    def field(self) -> Field:
        return Field((), torch.int64)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """[B] rows' actions -> the env's. Raises ValueError on a number outside the space (ALE would hang on it)."""
        if action.size and (action.min() < 0 or action.max() >= self.n):
            raise ValueError(f"action {action.min()}..{action.max()} outside Discrete({self.n}): has the policy's output become NaN?")
        return action + self.start if self.start else action

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """The inverse of to_env."""
        return (action - self.start).astype(np.int64)

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of numbers. low and high are flat tuples of the shape's size (actions) or the common bound repeated once (observations)."""

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def kind(self) -> str:
        return "box"

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def image(self) -> bool:
        return len(self.shape) == 3

    @property
    def field(self) -> Field:
        return Field(self.shape, torch_dtype(self.dtype))

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """[B, ...] rows' actions -> the env's: [-1, 1] is stretched over a bounded box and clipped to it; an unbounded one is unchanged."""
        if not np.isfinite(action).all():
            raise ValueError("a non-finite action: has the policy's output become NaN?")
        if not self.bounded:
            return action.astype(self.dtype)
        low = np.asarray(self.low, dtype=np.float64).reshape(self.shape)
        high = np.asarray(self.high, dtype=np.float64).reshape(self.shape)
        return (low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)).astype(self.dtype)

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """The inverse of to_env for actions inside the box."""
        if not self.bounded:
            return action.astype(np.float32)
        low = np.asarray(self.low, dtype=np.float64).reshape(self.shape)
        high = np.asarray(self.high, dtype=np.float64).reshape(self.shape)
        return (2.0 * (action - low) / (high - low) - 1.0).astype(np.float32)

    def __str__(self) -> str:
        return f"Box({list(self.shape)}, {self.dtype})"


Space = Discrete | Box


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The facts of an environment that models, policies and samplers need."""

    name: str
    obs: dict[str, Box]  # "observation", later also "action_mask", "state"
    action: Space
    action_repeat: int = 1  # emulator frames per decision, for tables only

    @property
    def obs_rows(self) -> RowSpec:
        return {name: space.field for name, space in self.obs.items()}

    @property
    def action_row(self) -> Field:
        # continuous actions are float32 in rows whatever the env's own dtype is
        return self.action.field if isinstance(self.action, Discrete) else Field(self.action.shape, torch.float32)
