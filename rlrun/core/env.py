"""VectorEnv: the interface through which samplers step environments. Adapters in rlrun/envs implement it for other
libraries' environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlrun.core.specs import EnvSpec

Rows = dict[str, Any]  # parts of observations by name: arrays [B, ...], or dictionaries of them if a space is nested


def map_rows(rows: Any, function: Callable[[Any], Any]) -> Any:
    """The same tree of dictionaries with `function` applied to every leaf."""
    return (
        {name: map_rows(value, function) for name, value in rows.items()} if isinstance(rows, dict) else function(rows)
    )


def write_rows(view: dict, rows: Rows, t: int) -> None:
    """Copies rows [B, ...] into row t of the arrays [T, B, ...] of `view`."""
    for name, value in rows.items():
        if isinstance(value, dict):
            write_rows(view[name], value, t)
        else:
            view[name][t] = value


class Failure(NamedTuple):
    """What happened to an environment that was made anew, or what is wrong with one that goes on."""

    sentence: str
    broken_off: bool  # whether it was in the middle of an episode, which does not count
    made_anew: bool = True


class Step(NamedTuple):
    """What one action led to in every column."""

    obs: Rows  # the consequence [B, ...]; at an end it is the old episode's last observation, and a dead row follows
    reward: np.ndarray  # [B, *EnvSpec.reward_row.shape] float32, raw
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    valid: np.ndarray  # [B] bool: False where the agent did not decide (a reset, a forced FIRE) or was not there
    is_first: np.ndarray  # [B] bool: `obs` begins an episode
    info: dict[str, np.ndarray]  # numbers to be logged, [B]
    # [B] bool, or [B, N] where a column holds N agents: False also where an agent waited for its turn. None: as valid.
    decided: np.ndarray | None = None
    # Environments, by their number among these, that failed and were made anew. A failed step is a dead row, and `obs`
    # begins an episode.
    failed: Mapping[int, Failure] = MappingProxyType({})
    # The actions that were executed, in the form of rows, where some are not those that were given. None: they are.
    executed: Any = None

    @property
    def paid(self) -> np.ndarray:
        """Every column's total reward [B]: the sum over the reward's own axes. Returns are sums of it."""
        return self.reward if self.reward.ndim == 1 else self.reward.reshape(len(self.reward), -1).sum(1)


def paid(spec: EnvSpec, step: Step) -> np.ndarray:
    """What every column was paid [B]. Where a column holds all agents, it is the sum over those that count."""
    if spec.joint and spec.agents is not None and spec.agents.counted:
        return step.reward[:, spec.agents.counts].sum(1)
    return step.paid


class VectorEnv(Protocol):
    """Environments of the same kind. Each fills spec.columns_per_env neighbouring columns: one, or one for each of its
    agents. An episode of an environment begins where is_first is true in all of its columns."""

    spec: EnvSpec
    count: int  # columns

    def reset(self, generation: int) -> Rows:
        """Resets every column. Seeds follow from (run seed, stream, worker, slot, generation)."""
        ...

    def step(self, action: Any) -> Step:
        """Takes actions [B, ...] in the form that rows have, which is a dictionary if the space is nested. Raises
        ValueError for an action outside the space, and whatever the environment raises."""
        ...

    def close(self) -> None: ...


class TaskEnv(VectorEnv, Protocol):
    """A VectorEnv that is many tasks (EnvSpec.tasks)."""

    def sample_tasks(self, count: int, seed: int) -> list[Any]:
        """Draws tasks, which depend on the seed alone. Every environment must be reset afterwards."""
        ...

    def set_tasks(self, tasks: Sequence[Any]) -> None:
        """Gives every column its task, from the next reset on."""
        ...


def task_env(env: Any) -> TaskEnv:
    """The part of an environment, which may be inside of others, that has tasks."""
    while not hasattr(env, "set_tasks"):
        env = env.env
    return env


class EnvFactory(Protocol):
    """Makes environments. It is picklable, and called in the process that will step the environments."""

    @property
    def spec(self) -> EnvSpec: ...

    def __call__(self, worker: int, count: int) -> VectorEnv:
        """Makes `count` environments."""
        ...
