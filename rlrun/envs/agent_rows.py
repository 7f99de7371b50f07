"""The rows of agents with unlike spaces, which are filled up with zeros, and the actions that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.core.env import Rows, map_rows
from rlrun.core.specs import Box, Discrete, EnvSpec, Nested, Space, any_legal, first_values, mask_size
from rlrun.envs.gym_spaces import MASK


@dataclass(frozen=True)
class AgentSpaces:
    """The spaces of one agent, as the environment has them."""

    obs: dict[str, Space]  # "observation", and "action_mask" if observations hold one
    action: Space


def agent_rows(spec: EnvSpec, count: int) -> Rows:
    """Rows of zeros for `count` columns, in which no agent is there."""
    rows = {name: _zeros(spec.obs[name], count) for name in ("observation", MASK) if name in spec.obs}
    blank(spec.action, rows, slice(None))
    return rows


def blank(action: Space, rows: Rows, columns: Any) -> None:
    """Makes the rows of agents that are not there 0, with one legal action."""
    for part in rows.values():
        map_rows(part, lambda leaf: leaf.__setitem__(columns, 0))
    for first in first_values(action) if MASK in rows else ():
        rows[MASK][columns, first] = 1


def write_agent(
    rows: Rows,
    column: int,
    own: AgentSpaces,
    seen: Any,
    decides: bool = True,
    mask: Any = None,
    there: bool = True,
) -> None:
    """Writes what an agent sees, in the environment's form, into its row.

    decides: whether it chooses the next action, or has come to its end; one that waits has one legal action. mask: the
    legal actions, where the environment tells them in its info. there: whether the agent goes on."""
    if isinstance(seen, Mapping) and (MASK in own.obs or MASK in seen):
        mask = seen.get(MASK) if mask is None else mask
        seen = {key: part for key, part in seen.items() if key != MASK}
        within = seen.get("observation")
        if list(seen) == ["observation"] and (
            MASK in own.obs or isinstance(within, Mapping) or not has_entry(own.obs["observation"])
        ):
            seen = within
    _put(rows["observation"], column, own.obs["observation"], seen)
    if MASK not in rows:
        return
    legal = rows[MASK][column]
    legal[:] = 0
    if not decides:
        legal[first_values(own.action)] = 1
        return
    legal[: mask_size(own.action)] = 1
    if mask is None:
        return
    given = np.ravel(mask)
    size = mask_size(own.action)
    if size is not None and given.size not in (0, size):
        raise ValueError(f"the length of its {MASK} is {given.size}, and its actions need {size}")
    if given.size and (
        there or any_legal(own.action, given)
    ):  # what ends an episode may show a mask without a legal action
        legal[: given.size] = given != 0


def shows_mask(seen: Any) -> bool:
    """Whether an observation says which actions are legal."""
    return isinstance(seen, Mapping) and MASK in seen


def has_entry(space: Space) -> bool:
    """Whether these are dictionaries with the one entry "observation", which classic games show beside a mask."""
    return isinstance(space, Nested) and [name for name, _ in space.spaces] == ["observation"]


def write_id(rows: Rows, column: int, number: int, agents: int) -> None:
    """Writes the agent's number behind its observation."""
    rows["observation"][column, number - agents] = 1.0


def action_of(own: AgentSpaces, action: Any) -> Any:
    """An agent's action [1, ...] in the form of rows, which may be padded -> the environment's form of one action."""
    space = own.action
    if isinstance(space, Box):
        action = action[:, : space.shape[0]] if len(space.shape) == 1 else action
    elif isinstance(space, Discrete):
        action = np.minimum(action, space.n - 1)  # only agents that wait or are gone choose padded actions
    return one_of(space.to_env(action), 0)


def _zeros(space: Space, count: int) -> Any:
    if isinstance(space, Nested):
        return {name: _zeros(part, count) for name, part in space.spaces}
    kind = space.dtype if isinstance(space, Box) else np.int64
    return np.zeros((count, *space.field.shape), dtype=kind)


def _put(rows: Any, column: int, space: Space, value: Any) -> None:
    """Writes an agent's own observation into its row, whose other numbers stay 0."""
    if isinstance(space, Nested):
        for name, part in space.spaces:
            _put(rows[name], column, part, value[int(name)] if space.ordered else value[name])
        return
    given = np.asarray(value) if isinstance(space, Box) else space.from_env(np.asarray(value))
    if given.shape != space.field.shape:
        raise ValueError(f"an observation of the shape {given.shape}, and its space is {space}")
    if given.shape == rows.shape[1:]:
        rows[column] = given
    else:
        rows[column, : given.shape[0]] = given


def one_of(actions: Any, index: int) -> Any:
    """One row of the environment's form of actions, as Gymnasium's spaces sample it."""
    if isinstance(actions, Mapping):
        return {name: one_of(part, index) for name, part in actions.items()}
    if isinstance(actions, tuple):
        return tuple(one_of(part, index) for part in actions)
    one = actions[index]
    return int(one) if isinstance(one, np.integer) else one
