"""Trajectory: one recorded episode, which is what data sets are made of, and the facts about a data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from rlrun.core.batch import Field, RowSpec
from rlrun.core.env import Rows
from rlrun.core.games import STATE as GAME_STATE
from rlrun.core.specs import EnvSpec

FLAGS = ("terminated", "truncated", "valid")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The rows of one episode of one column, in time order: N rows in which the last one is dead.

    The rows are those that a sampler writes (CONTRIBUTING.md, rule 2): row t holds what was seen, done and paid there,
    and a dead row (valid False) holds the observation at which the rows before it end. Dead rows in the middle end a
    trajectory too, for example where a life was lost. The first row begins the episode, and no other row has is_first.
    A very long episode is recorded as several trajectories. Those behind the first begin with dead rows, which hold
    what was seen and done before."""

    # Parts of observations by name, arrays [N, ...]. Where EnvSpec.stack is above 1, every part of `observation` holds
    # the newest frame alone, so that each frame is stored once.
    obs: Rows
    action: Any  # [N, ...] in the form that rows have: bounded numbers in [-1, 1], choices from 0; a dict if nested
    reward: np.ndarray  # [N, *EnvSpec.reward_row.shape] float32, raw
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    valid: np.ndarray  # [N] bool; the last one is False
    record: Mapping[str, np.ndarray]  # what was recorded with the rows; log_prob [N] of the action under who chose it
    agent: int = 0  # the number of the agent, where each agent is a column of its own
    policy: int = 0  # which of the policies that DataFacts.policies lists chose the actions
    whole: bool = True  # False: recording ended, or lost rows, before the episode was over, or this is a part of it

    def __len__(self) -> int:
        """The number of rows N, including dead ones."""
        return len(self.reward)

    @property
    def steps(self) -> int:
        """The number of decisions."""
        return int(self.valid.sum())

    @property
    def ret(self) -> float:
        """The undiscounted return, summed over the reward's own axes."""
        return float(self.reward[self.valid].sum())

    @property
    def has_log_prob(self) -> bool:
        """Whether the probability of every action is known."""
        return "log_prob" in self.record and bool(np.isfinite(self.record["log_prob"][self.valid]).all())


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What is known about a data set besides its rows."""

    spec: EnvSpec
    record: RowSpec = field(default_factory=dict)  # fields of Trajectory.record
    policies: tuple[str, ...] = ()  # who chose the actions, in words
    # Mean returns of a random and of an expert policy in the same environment, for normalised scores; None: unknown.
    random_return: float | None = None
    expert_return: float | None = None
    made_by: str = ""  # the command that made it
    env: dict[str, Any] | None = None  # the options of the environment; None: unknown, or not the same in all files
    notes: tuple[str, ...] = ()  # sentences that a reader should see, such as what was left out


class Source(Protocol):
    """A data set that can be read from its beginning any number of times, in pieces that fit into memory."""

    facts: DataFacts
    name: str  # how messages call it: its path

    @property
    def identity(self) -> Sequence[str]:
        """Texts that tell it from another set, and from itself when its files have changed, such as the names and sizes
        of its files. Those of a set that was moved are the same."""
        ...

    @property
    def most_rows(self) -> int | None:
        """It has no more rows than this. None: that is unknown before all are read."""
        ...

    def pieces(self) -> int:
        """The number of pieces, each with whole trajectories, that can be read by themselves."""
        ...

    def read(self, piece: int) -> Iterator[Trajectory]:
        """Yields the trajectories of a piece in the order in which they were recorded. Raises UserError that names the
        file, the place in it and the reason if it is damaged or foreign."""
        ...


def row_fields(facts: DataFacts) -> RowSpec:
    """The fields of one row of a data set, in which stacked frames are single ones."""
    spec = facts.spec
    obs = spec.obs_rows
    if spec.stack > 1:
        obs = {**obs, "observation": newest(obs["observation"])}
    flags: RowSpec = {name: Field((), torch.bool) for name in FLAGS}
    return {"obs": obs, "action": spec.action_row, "reward": spec.reward_row, **flags, **facts.record}


def newest(part: Field | RowSpec) -> Field | RowSpec:
    """The fields of the newest frame of fields that hold stacks of frames."""
    if isinstance(part, Field):
        return Field(part.shape[1:], part.dtype)
    return {name: newest(inner) for name, inner in part.items()}


# Parts of observations that follow from the rows before, and those that name a copy of an environment for a search.
PREVIOUS = ("prev_action", "prev_reward", GAME_STATE)


def without_previous(spec: EnvSpec) -> EnvSpec:
    """The spec without the last action and reward and without states of searches, which data sets need not hold."""
    return replace(spec, obs={name: space for name, space in spec.obs.items() if name not in PREVIOUS}, notes=())
