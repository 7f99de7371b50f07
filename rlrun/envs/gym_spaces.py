"""Gymnasium's spaces and observations in the form that rows have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.env import Rows
from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested, Space, mask_size

MASK = "action_mask"
UNTOLD = f"it tells an {MASK} in some of its infos, and not in this one: tell one in every info"


def to_space(space: gymnasium.Space, what: str, name: str) -> Space:
    """Translates a Gymnasium space. Raises UserError for a space that rlrun does not support."""
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Discrete):
        return Discrete(n=int(space.n), start=int(space.start), dtype=str(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (tuple(int(x) for x in numbers.ravel()) for numbers in (space.nvec, space.start))
        return MultiDiscrete(sizes=sizes, starts=starts, shape=tuple(space.shape), dtype=str(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(shape=tuple(space.shape))
    if isinstance(space, spaces.Box):
        if not space.low.size:
            raise UserError(f"{name} has the {what} space {space}, which holds no numbers")
        bounds = (space.low.ravel(), space.high.ravel())
        floating = np.issubdtype(space.dtype, np.floating)
        dtype = "float32" if floating and what == "observation" else str(space.dtype)
        if what == "observation":
            bounds = (bounds[0].min(keepdims=True), bounds[1].max(keepdims=True))
        low, high = (tuple(float(x) for x in bound) for bound in bounds)
        if what == "action" and not floating:
            low = tuple(_within(x, bound, np.inf) for x, bound in zip(low, bounds[0], strict=True))
            high = tuple(_within(x, bound, -np.inf) for x, bound in zip(high, bounds[1], strict=True))
        return Box(shape=tuple(space.shape), dtype=dtype, low=low, high=high)
    if isinstance(space, spaces.Dict | spaces.Tuple) and len(space.spaces):
        parts: dict[str, gymnasium.Space]
        parts = (
            {str(i): part for i, part in enumerate(space.spaces)}
            if isinstance(space, spaces.Tuple)
            else dict(space.spaces)
        )
        unnamed = next((key for key in parts if not isinstance(key, str)), None)
        if unnamed is not None:
            raise UserError(
                f"{name} has the {what} space {space}, with {unnamed!r} as the name of a part: rlrun takes texts as"
                f" names, such as {str(unnamed)!r}"
            )
        inside = tuple((key, to_space(part, what, name)) for key, part in parts.items())
        return Nested(spaces=inside, ordered=isinstance(space, spaces.Tuple))
    raise UserError(
        f"{name} has the {what} space {space}; rlrun takes Box, Discrete, MultiDiscrete, MultiBinary, and Dict and"
        " Tuple of these"
    )


def _within(rounded: float, bound: Any, inwards: float) -> float:
    """A whole bound as the nearest float64 that is not beyond it. Large ones are rounded outwards or inwards."""
    beyond = int(rounded) < int(bound) if inwards > 0 else int(rounded) > int(bound)
    return float(np.nextafter(rounded, inwards)) if beyond else rounded


def masks_of_agents(info: Any, agents: int) -> list[Any]:
    """The masks of legal actions that the info of an environment over tuples tells, one for each agent; [] without
    any. Raises TypeError for anything else."""
    masks = info.get(MASK) if isinstance(info, Mapping) else None
    if masks is None:
        return []
    if (
        not isinstance(masks, list | tuple | np.ndarray)
        or len(masks) != agents
        or not all(isinstance(mask, list | tuple | np.ndarray) for mask in masks)
    ):
        raise TypeError(
            f"it told {' '.join(repr(masks).split())} as {MASK} in its info, and an environment over tuples has a mask"
            f" for each agent: tell a tuple of {agents}"
        )
    return list(masks)


def observation_spaces(space: gymnasium.Space, action: Space, name: str) -> dict[str, Any]:
    """Returns {"observation": ..., "action_mask": ...}.

    An `action_mask` entry of a Dict says which actions are legal and is not part of the observation. Raises UserError
    if it does not fit the actions.
    """
    if not (isinstance(space, gymnasium.spaces.Dict) and MASK in space.spaces):
        return {"observation": to_space(space, "observation", name)}
    wanted, found = mask_size(action), int(np.prod(space[MASK].shape or (0,)))
    if wanted is None:
        raise UserError(f"{name} masks its actions, but {action} cannot be masked; Discrete and MultiDiscrete can")
    if found != wanted:
        raise UserError(f"{name} has an action_mask of {found} numbers for {wanted} actions of {action}")
    rest = gymnasium.spaces.Dict({key: part for key, part in space.spaces.items() if key != MASK})
    return {"observation": to_space(rest, "observation", name), MASK: MultiBinary(shape=(wanted,))}


def to_rows(spec: EnvSpec, obs: Any) -> Rows:
    """Translates a batch of the environment's observations to those that rows hold, in the dtype that rows have."""
    rows = {"observation": _part(spec.observation, obs)}
    if MASK in spec.obs:
        mask = np.asarray(obs[MASK])
        rows[MASK] = mask.reshape(len(mask), -1).astype(np.int64)
    return rows


def _part(space: Space, obs: Any) -> Any:
    if isinstance(space, Nested):
        return {name: _part(part, obs[int(name)] if space.ordered else obs[name]) for name, part in space.spaces}
    if not isinstance(space, Box):
        return space.from_env(obs)
    array = np.asarray(obs)
    if array.dtype == space.dtype:
        return array
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and whoever steps the environment refuses it
        return array.astype(space.dtype)


def typed_actions(space: gymnasium.Space, actions: Any) -> Any:
    """Actions in the environment's form, one or a batch, with the dtypes of its space. Python's own numbers, which fit
    every space, are left as they are."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: typed_actions(part, actions[name]) for name, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(typed_actions(part, one) for part, one in zip(space.spaces, actions, strict=True))
    return actions.astype(space.dtype, copy=False) if isinstance(actions, np.ndarray | np.generic) else actions
