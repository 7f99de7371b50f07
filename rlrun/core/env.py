"""VectorEnv: what samplers drive. Adapters in rlrun/envs turn other people's environments into this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlrun.core.specs import EnvSpec

Rows = dict[str, Any]  # observation parts: arrays [B, ...], or dictionaries of them where a space is nested


def map_rows(rows: Any, function: Callable[[Any], Any]) -> Any:
    """The same tree of dictionaries with `function` applied to everything else."""
    return {name: map_rows(value, function) for name, value in rows.items()} if isinstance(rows, dict) else function(rows)


def write_rows(view: dict, rows: Rows, t: int) -> None:
    """Copies rows into row t of arrays [T, B, ...]."""
    for name, value in rows.items():
        if isinstance(value, dict):
            write_rows(view[name], value, t)
        else:
            view[name][t] = value


class Step(NamedTuple):
    """One row of every column, after its action."""

    obs: Rows  # the consequence, [B, ...]: at an end the last observation of the old episode, which a dead row follows
    reward: np.ndarray  # [B, *EnvSpec.reward_row.shape] float32, raw
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    valid: np.ndarray  # [B] bool: False where this row was no decision of the agent (a reset, a forced FIRE)
    is_first: np.ndarray  # [B] bool: `obs` begins an episode
    info: dict[str, np.ndarray]  # numbers worth logging, [B]

    @property
    def paid(self) -> np.ndarray:
        """What every column was paid in all [B]: the sum over the reward's own axes. Returns are sums of it."""
        return self.reward if self.reward.ndim == 1 else self.reward.reshape(len(self.reward), -1).sum(1)


class VectorEnv(Protocol):
    """`count` environments of one kind, each a column."""

    spec: EnvSpec
    count: int

    def reset(self, generation: int) -> Rows:
        """Begins every column anew. Seeds follow from (run seed, stream, worker, slot, generation)."""
        ...

    def step(self, action: Any) -> Step:
        """action: as rows hold it, [B, ...], a dictionary where the space is nested. Raises ValueError on one outside the space, and whatever the
        environment raises."""
        ...

    def close(self) -> None: ...


class EnvFactory(Protocol):
    """Picklable; called inside the process that will step the environments."""

    @property
    def spec(self) -> EnvSpec: ...

    def __call__(self, worker: int, count: int) -> VectorEnv: ...
