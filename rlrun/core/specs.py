"""Descriptions of environments: their spaces and other facts, as data that is passed to samplers and models."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import SCALAR_REWARD, Batch, Field, RowSpec, torch_dtype

Array = np.ndarray | dict[str, Any]  # values of one space; nested spaces have dictionaries


@dataclass(frozen=True, kw_only=True)
class Discrete:
    """Actions or observations 0 .. n-1."""

    n: int
    start: int = 0  # the env's first number; numbers in rows always begin at 0
    dtype: str = field(default="int64", compare=False)  # of the env's actions; rows have int64

    kind = "discrete"

    @property
    def field(self) -> Field:
        return Field((), torch.int64)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """[B] actions of rows -> the env's. Raises ValueError for a number outside the space, with which ALE would
        hang."""
        if action.size and (action.min() < 0 or action.max() >= self.n):
            raise ValueError(
                f"action {action.min()}..{action.max()} outside Discrete({self.n}): has the policy's output become NaN?"
            )
        return (action + self.start if self.start else action).astype(self.dtype, copy=False)

    def from_env(self, value: np.ndarray) -> np.ndarray:
        """The inverse of to_env."""
        return (np.asarray(value) - self.start).astype(np.int64)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """[count] random actions in the form that rows have."""
        return rng.integers(self.n, size=count)

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True, kw_only=True)
class MultiDiscrete:
    """Several choices at once, each 0 .. n_i - 1. `sizes` and `starts` are flat, with one entry for each choice."""

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = field(default="int64", compare=False)  # of the env's actions; rows have int64

    kind = "multi_discrete"

    @property
    def field(self) -> Field:
        return Field(self.shape, torch.int64)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """[B, *shape] actions of rows -> the env's. Raises ValueError for a number outside the space."""
        if (action < 0).any() or (action >= np.reshape(self.sizes, self.shape)).any():
            raise ValueError(f"action {action.tolist()} outside {self}")
        return (action + np.reshape(self.starts, self.shape)).astype(self.dtype, copy=False)

    def from_env(self, value: np.ndarray) -> np.ndarray:
        """The inverse of to_env."""
        return (np.asarray(value) - np.reshape(self.starts, self.shape)).astype(np.int64)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.integers(np.reshape(self.sizes, self.shape), size=(count, *self.shape))

    def __str__(self) -> str:
        return f"MultiDiscrete({list(self.sizes)})"


@dataclass(frozen=True, kw_only=True)
class MultiBinary:
    """An array of switches, each 0 or 1."""

    shape: tuple[int, ...]

    kind = "multi_binary"

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def field(self) -> Field:
        return Field(self.shape, torch.int64)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        if ((action != 0) & (action != 1)).any():
            raise ValueError(f"action {action.tolist()} outside {self}")
        return action.astype(np.int8)

    def from_env(self, value: np.ndarray) -> np.ndarray:
        return np.asarray(value).astype(np.int64)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.integers(2, size=(count, *self.shape))

    def __str__(self) -> str:
        return f"MultiBinary({list(self.shape)})"


# float64 rounds the largest number of these up, to one that they cannot hold. These are the ones before it, for
# bounds that a file has.
LARGEST_WHOLE = {"int64": np.nextafter(2.0**63, 0.0), "uint64": np.nextafter(2.0**64, 0.0)}


@dataclass(frozen=True, kw_only=True)
class Box:
    """An array of numbers within bounds. low and high are flat tuples: for actions they have one bound for each number,
    for observations a single common bound."""

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    stacked: bool = False  # whether the first axis holds the last frames of an environment, the newest one last

    kind = "box"

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @property
    def whole(self) -> bool:
        """Whether the numbers are whole."""
        return np.dtype(self.dtype).kind in "iub"

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def image(self) -> bool:
        """Whether this is an image with channels, or a stack of frames that are images. Frames without channels are
        images if they are uint8, as grey pictures are; others are tables of numbers."""
        if self.stacked and len(self.shape) == 3:
            return self.dtype == "uint8"
        return len(self.shape) == (4 if self.stacked else 3)

    @property
    def field(self) -> Field:
        """The field of an observation. Actions are float32 in rows whatever the env's own dtype is."""
        return Field(self.shape, torch_dtype(self.dtype))

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """[B, ...] actions of rows -> the env's. If the box is bounded, actions are clipped to [-1, 1], which is
        stretched over the box; where numbers are whole, each of them gets an equal part of [-1, 1]. If any bound is
        missing, actions are in the env's own units, rounded where numbers are whole, and clipped to the bounds that
        exist. Raises ValueError for numbers that are not finite."""
        if not np.isfinite(action).all():
            raise ValueError("a non-finite action: has the policy's output become NaN?")
        low = np.asarray(self.low, dtype=np.float64).reshape(self.shape)
        high = np.asarray(self.high, dtype=np.float64).reshape(self.shape)
        if not self.bounded:
            clipped = np.clip(action, low, high)
            return (np.rint(clipped) if self.whole else clipped).astype(self.dtype)
        if self.whole:
            share = (np.clip(action.astype(np.float64), -1.0, 1.0) + 1.0) * 0.5
            largest = np.minimum(high, LARGEST_WHOLE.get(self.dtype, np.inf))
            return np.minimum(low + np.floor(share * (high - low + 1.0)), largest).astype(self.dtype)
        share = (np.clip(action, -1.0, 1.0) + 1.0) * 0.5
        with np.errstate(over="ignore", invalid="ignore"):  # a difference may be too large for a number
            span = high - low
            wide = low * (1.0 - share) + high * share
            # In float64, low + (high - low) may be a little more than high.
            return np.clip(np.where(np.isfinite(span), low + share * span, wide), low, high).astype(self.dtype)

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """The inverse of to_env for actions inside the box. A whole number becomes the middle of its part of
        [-1, 1]."""
        if not self.bounded:
            return action.astype(np.float32)
        low = np.asarray(self.low, dtype=np.float64).reshape(self.shape)
        high = np.asarray(self.high, dtype=np.float64).reshape(self.shape)
        if self.whole:
            return (2.0 * (action - low + 0.5) / (high - low + 1.0) - 1.0).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            span = high - low
            wide = (action * 0.5 - low * 0.5) / (high * 0.5 - low * 0.5) * 2.0 - 1.0
            return np.where(np.isfinite(span), 2.0 * (action - low) / span - 1.0, wide).astype(np.float32)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Random actions [count, *shape] of rows: within [-1, 1] or, where the box lacks a bound, within both bounds of
        a number, or up to 2 from its only one, or within 1 of 0."""
        drawn = rng.uniform(-1, 1, (count, *self.shape))
        if not self.bounded:
            low, high = (np.asarray(bound, np.float64).reshape(self.shape) for bound in (self.low, self.high))
            alone = np.where(np.isfinite(low), low + 1.0, np.where(np.isfinite(high), high - 1.0, 0.0)) + drawn
            with np.errstate(invalid="ignore"):
                inside = low + (drawn + 1.0) * 0.5 * (high - low)
            drawn = np.where(np.isfinite(low) & np.isfinite(high), inside, alone)
        return drawn.astype(np.float32)

    def __str__(self) -> str:
        return f"Box({list(self.shape)}, {self.dtype})"


@dataclass(frozen=True, kw_only=True)
class Nested:
    """Several spaces by name. The parts of a tuple are called "0", "1", ..."""

    spaces: tuple[tuple[str, Any], ...]  # (name, Space)
    ordered: bool  # the env's own form is a tuple instead of a dictionary

    kind = "nested"

    @property
    def parts(self) -> dict[str, Any]:
        return dict(self.spaces)

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def to_env(self, action: Mapping[str, Any]) -> Any:
        """Actions of rows, by name -> the env's dictionary or tuple of arrays [B, ...]."""
        made = {name: space.to_env(action[name]) for name, space in self.spaces}
        return tuple(made.values()) if self.ordered else made

    def from_env(self, value: Any) -> dict[str, Any]:
        """The inverse of to_env."""
        return {name: space.from_env(value[int(name)] if self.ordered else value[name]) for name, space in self.spaces}

    def sample(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        return {name: space.sample(rng, count) for name, space in self.spaces}

    def __str__(self) -> str:
        inside = ", ".join(str(space) if self.ordered else f"{name}: {space}" for name, space in self.spaces)
        return f"Tuple({inside})" if self.ordered else f"Dict({inside})"


Space = Discrete | MultiDiscrete | MultiBinary | Box | Nested


def leaves(space: Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (path, space) of every space that contains no other spaces."""
    if isinstance(space, Nested):
        for name, part in space.spaces:
            yield from leaves(part, (*path, name))
    else:
        yield path, space


def alike(one: Space, other: Space) -> bool:
    """Whether observations of two spaces mean the same. Bounds of numbers may differ, because rows hold the numbers as
    they are."""
    if isinstance(one, Box) and isinstance(other, Box):
        return one.shape == other.shape and one.dtype == other.dtype
    if isinstance(one, Nested) and isinstance(other, Nested):
        return one.parts.keys() == other.parts.keys() and all(alike(part, other[name]) for name, part in one.spaces)
    return one == other


def described(space: Space) -> str:
    """The space with what its own name leaves out: bounds, and the first number of a choice."""
    if isinstance(space, Box):
        low, high = (values[0] if len(set(values)) == 1 else list(values) for values in (space.low, space.high))
        text = (f"{x:g}" if isinstance(x, float | int) else f"[{', '.join(f'{y:g}' for y in x)}]" for x in (low, high))
        return f"{space} from {' to '.join(text)}"
    return f"{space} from {space.start} on" if isinstance(space, Discrete) and space.start else str(space)


def observation_rows(space: Space) -> Field | RowSpec:
    """The fields that rows hold for an observation."""
    return {name: observation_rows(part) for name, part in space.spaces} if isinstance(space, Nested) else space.field


def action_rows(space: Space) -> Field | RowSpec:
    """The fields that rows hold for an action."""
    if isinstance(space, Nested):
        return {name: action_rows(part) for name, part in space.spaces}
    return Field(space.shape, torch.float32) if isinstance(space, Box) else space.field


def executed(space: Space, action: Any) -> Any:
    """Returns actions [..., A] in the form that rows have, tensors or arrays, as the environment executes them. Bounded
    numbers lie within [-1, 1], and a whole one is the middle of its part of it, as from_env() has them. Others lie
    within the bounds that exist, rounded where numbers are whole.

    Rows hold what a policy drew, and a Gaussian, as that of ppo, draws numbers beyond the bounds. A model of the
    environment that learnt from these would learn about actions that were never executed, and whoever plays with a
    policy knows only what the environment was given."""
    if isinstance(space, Nested):
        made = {name: executed(part, action[name]) for name, part in space.spaces}
        return Batch(made) if isinstance(action, Batch) else made
    if not isinstance(space, Box):
        return action
    if isinstance(action, np.ndarray):
        return executed(space, torch.from_numpy(np.array(action))).numpy()
    if not space.bounded:
        low, high = _bounds(space, action.device)
        inside = action.double().clamp(low, high).to(action.dtype)
        return inside.round() if space.whole else inside
    inside = action.clamp(-1.0, 1.0)
    if not space.whole:
        return inside
    low, high = _bounds(space, action.device)
    parts = high - low + 1.0
    number = torch.minimum(((inside.double() + 1.0) * 0.5 * parts).floor(), parts - 1.0)
    return (2.0 * (number + 0.5) / parts - 1.0).to(action.dtype)


@functools.cache  # a recorded update must not copy them from the CPU
def _bounds(space: Box, device: torch.device) -> tuple[Tensor, Tensor]:
    """The bounds of actions, each of the box's shape."""
    low, high = (torch.tensor(x, dtype=torch.float64, device=device) for x in (space.low, space.high))
    return low.reshape(space.shape), high.reshape(space.shape)


def fits_name(name: str, pattern: str) -> bool:
    """Whether a pattern such as adversary_* is for the agent of this name. An agent's own name always is, although it
    may have signs that mean something in patterns, as in robot[1]."""
    return name == pattern or fnmatchcase(name, pattern)


@dataclass(frozen=True, kw_only=True)
class Agents:
    """The agents of a multi-agent environment, by group. Agents of the same group have equal spaces."""

    groups: tuple[tuple[str, tuple[str, ...]], ...]  # (name of the group, names of its agents)
    counted: tuple[str, ...] = ()  # those whose rewards the return of an episode sums; empty: all
    teams: tuple[tuple[str, tuple[str, ...]], ...] = ()  # sets of agents, by name, whose returns are logged too

    @property
    def counts(self) -> np.ndarray:
        """Which agents' rewards the return of an episode sums [N]."""
        return np.array([not self.counted or name in self.counted for name in self.names])

    @property
    def names(self) -> tuple[str, ...]:
        """All agents, group by group, in the order of the axis N of joint observations, actions and rewards."""
        return tuple(name for _, members in self.groups for name in members)

    def __post_init__(self):
        groups = [name for name, _ in self.groups]
        if not self.names or len(set(self.names)) < len(self.names) or len(set(groups)) < len(groups):
            raise ValueError("an environment's agents and groups need names of their own, and there must be an agent")


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The facts of an environment that models, policies and samplers need."""

    name: str
    # "observation", and "action_mask" (MultiBinary) if the env says which actions are legal; also "state" and
    # "game_state" where an algorithm asks for them.
    obs: dict[str, Any]
    action: Space
    # The field that a row holds for a reward. It has an axis if a column has several rewards, as one for each agent.
    reward_row: Field = SCALAR_REWARD
    agents: Agents | None = None  # None: one agent, without a name
    # With several agents: whether a column is a whole environment, whose rows have an axis over agents. Otherwise each
    # agent is a column of its own, and the columns of an environment are neighbours, in the order of agents.names.
    joint: bool = False
    max_episode_steps: int | None = None  # decisions after which an episode is truncated; None: unknown
    limit_option: str = "env.max_episode_steps"  # the option that sets this limit
    action_repeat: int = 1  # emulator frames per decision, used only in tables
    # The first axis of every part of `observation` holds this many last frames, so that replay can store each frame
    # only once. Frames from before an episode's first are 0. With 1, only Atari games have this axis.
    stack: int = 1
    game: Any = None  # how a process makes its own simulator (core.games.GameSpec); None: it was not asked for
    # package.module:Name of a class whose method reward(obs, action, next_obs) says what a step pays; None: not known
    reward_class: str | None = None
    reward_kwargs: dict[str, Any] = field(default_factory=dict)  # the arguments with which that class is made
    tasks: bool = False  # whether columns can be given tasks (core/env.py: TaskEnv)
    notes: tuple[str, ...] = ()  # sentences about the environment for the first lines of a run

    @property
    def columns_per_env(self) -> int:
        """The number of columns that one environment fills."""
        return 1 if self.agents is None or self.joint else len(self.agents.names)

    @property
    def counts(self) -> np.ndarray:
        """Which of an environment's columns the return of an episode sums [columns_per_env]."""
        return np.ones(1, dtype=bool) if self.agents is None or self.joint else self.agents.counts

    @property
    def observation(self) -> Space:
        return self.obs["observation"]

    @property
    def image(self) -> bool:
        """Whether some part of the observation is an image."""
        return any(isinstance(space, Box) and space.image for _, space in leaves(self.observation))

    @property
    def obs_rows(self) -> RowSpec:
        # The last action is in the form that rows have for actions.
        return {
            name: action_rows(space) if name == "prev_action" else observation_rows(space)
            for name, space in self.obs.items()
        }

    @property
    def action_row(self) -> Field | RowSpec:
        return action_rows(self.action)


def random_actions(spec: EnvSpec, rows: Mapping[str, Any], count: int, rng: np.random.Generator) -> Any:
    """[count] random actions in the form that rows have. If the observations in `rows` have masks, the actions are
    legal; if a mask allows no action, as at an end, any action may be drawn."""
    if "action_mask" not in rows:
        return spec.action.sample(rng, count)
    sizes = choice_sizes(spec.action)
    # Every legal action is equally likely to have the largest of these random weights.
    weights = rng.random(rows["action_mask"].shape) * (rows["action_mask"] != 0)
    picks = [part.argmax(1) for part in np.split(weights, np.cumsum(sizes)[:-1], axis=1)]
    return picks[0] if isinstance(spec.action, Discrete) else np.stack(picks, 1).reshape(count, *spec.action.shape)  # type: ignore[union-attr]


def choice_sizes(action: Space) -> tuple[int, ...]:
    """How many values each choice of an action has; empty if it is not made of choices."""
    if isinstance(action, Discrete):
        return (action.n,)
    return action.sizes if isinstance(action, MultiDiscrete) else ()


def mask_size(action: Space) -> int | None:
    """The number of switches in an action mask of this space, concatenated over its choices; None if nothing can be
    masked."""
    return sum(choice_sizes(action)) or None


def first_values(action: Space) -> np.ndarray:
    """Where the switches of each choice begin in an action mask of this space [choices]."""
    return _first_values(choice_sizes(action))


@functools.cache  # every step with masks asks
def _first_values(sizes: tuple[int, ...]) -> np.ndarray:
    return np.cumsum((0, *sizes))[:-1]


def any_legal(action: Space, mask: np.ndarray) -> np.ndarray:
    """Whether masks [..., mask_size(action)] leave a legal action [...], which needs a legal value of every choice."""
    if isinstance(action, Discrete):
        return np.any(mask, axis=-1)
    return np.all(np.logical_or.reduceat(mask != 0, first_values(action), axis=-1), axis=-1)
