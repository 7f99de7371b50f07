"""An EnvSpec as JSON and back, so that data can be learnt from without their environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlrun.core.batch import Field, torch_dtype
from rlrun.core.specs import Agents, Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested, Space

MOST_NUMBERS = 100_000_000  # numbers in one row of a field; more than this is a damaged or hostile description

WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, such as float32."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: Any) -> torch.dtype:
    """The dtype of a name. Raises ValueError for anything that is not a number's dtype."""
    try:
        kind = np.dtype(str(name))
        if kind.kind not in "biuf":
            raise TypeError
        return torch_dtype(kind)
    except TypeError:
        raise ValueError(f"{name!r} is no kind of number that rows can hold") from None


def field_to_json(field: Field) -> dict[str, Any]:
    return {"shape": list(field.shape), "dtype": dtype_name(field.dtype)}


def field_from_json(value: Any) -> Field:
    """Raises ValueError if this is not what field_to_json() returned."""
    return Field(_shape(_group(value)["shape"]), dtype_of(value["dtype"]))


def space_to_json(space: Space) -> dict[str, Any]:
    kind: dict[str, Any] = {"kind": space.kind}
    if isinstance(space, Discrete):
        return {**kind, "n": space.n, "start": space.start, "dtype": space.dtype}
    if isinstance(space, MultiDiscrete):
        numbers = {"sizes": list(space.sizes), "starts": list(space.starts)}
        return {**kind, **numbers, "shape": list(space.shape), "dtype": space.dtype}
    if isinstance(space, MultiBinary):
        return {**kind, "shape": list(space.shape)}
    if isinstance(space, Box):
        bounds = {"low": [_bound(x) for x in space.low], "high": [_bound(x) for x in space.high]}
        return {**kind, "shape": list(space.shape), "dtype": space.dtype, **bounds, "stacked": space.stacked}
    return {
        **kind,
        "spaces": [[name, space_to_json(part)] for name, part in space.spaces],
        "ordered": space.ordered,
    }


def space_from_json(value: Any) -> Space:
    """Raises ValueError if this is not what space_to_json() returned."""
    value = _group(value)
    kind = value.get("kind")
    if kind == "discrete":
        return Discrete(n=_count(value["n"]), start=int(value["start"]), dtype=_whole(value))
    if kind == "multi_discrete":
        sizes, starts, shape = ([int(x) for x in value[name]] for name in ("sizes", "starts", "shape"))
        counts, dtype = tuple(map(_count, sizes)), _whole(value)
        return MultiDiscrete(sizes=counts, starts=tuple(starts), shape=_shape(shape), dtype=dtype)
    if kind == "multi_binary":
        return MultiBinary(shape=_shape(value["shape"]))
    if kind == "box":
        low, high = (tuple(float(x) for x in value[name]) for name in ("low", "high"))
        dtype = dtype_name(dtype_of(value["dtype"]))
        return Box(shape=_shape(value["shape"]), dtype=dtype, low=low, high=high, stacked=bool(value["stacked"]))
    if kind == "nested":
        spaces = tuple((str(name), space_from_json(part)) for name, part in value["spaces"])
        return Nested(spaces=spaces, ordered=bool(value["ordered"]))
    raise ValueError(f"there is no kind of space called {kind!r}")


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    agents = None
    if spec.agents is not None:
        agents = {
            "groups": [[name, list(members)] for name, members in spec.agents.groups],
            "counted": list(spec.agents.counted),
        }
    return {
        "name": spec.name,
        "obs": {name: space_to_json(space) for name, space in spec.obs.items()},
        "action": space_to_json(spec.action),
        "reward": field_to_json(spec.reward_row),
        "agents": agents,
        "joint": spec.joint,
        "max_episode_steps": spec.max_episode_steps,
        "action_repeat": spec.action_repeat,
        "stack": spec.stack,
    }


def spec_from_json(value: Any) -> EnvSpec:
    """Raises ValueError if this is not what spec_to_json() returned."""
    try:
        value = _group(value)
        agents = value["agents"]
        if agents is not None:
            agents = Agents(
                groups=tuple((str(name), tuple(map(str, members))) for name, members in agents["groups"]),
                counted=tuple(map(str, agents["counted"])),
            )
        obs = {str(name): space_from_json(space) for name, space in _group(value["obs"]).items()}
        if "observation" not in obs:
            raise ValueError("it has no observation")
        limit = value["max_episode_steps"]
        return EnvSpec(
            name=str(value["name"]),
            obs=obs,
            action=space_from_json(value["action"]),
            reward_row=field_from_json(value["reward"]),
            agents=agents,
            joint=bool(value["joint"]),
            max_episode_steps=None if limit is None else _count(limit),
            action_repeat=_count(value["action_repeat"]),
            stack=_count(value["stack"]),
        )
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the description of the environment is not complete: {error!r}") from None


def _bound(x: float) -> float | str:
    """JSON has no infinity; float() reads these words."""
    return float(x) if np.isfinite(x) else str(float(x))


def _group(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a group of names")
    return value


def _count(value: Any) -> int:
    if int(value) != value or value < 1:
        raise ValueError(f"{value!r} is not a positive whole number")
    return int(value)


def _whole(value: dict[str, Any]) -> str:
    """The dtype of a space's whole numbers. Older descriptions do not tell it."""
    name = value.get("dtype", "int64")
    if name not in WHOLE:
        raise ValueError(f"{name!r} is no kind of whole number")
    return str(name)


def _shape(value: Any) -> tuple[int, ...]:
    made = tuple(int(x) for x in value)
    if any(x < 0 for x in made) or len(made) > 8 or float(np.prod([float(x) for x in made])) > MOST_NUMBERS:
        raise ValueError(f"{value!r} is no shape of a row")
    return made
