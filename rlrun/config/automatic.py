"""Replaces `auto` in the options of algorithms and models by values that follow from the observations, and in env.size
by the sides of images that the networks need.

A yaml file of conf/ may have a table `by_observation` with the values of the file's options that are `auto`. Its groups
are `vectors` and `images`, and others that hold only what differs there: `mixed` is for observations of several parts
with an image among them, `mlp` for models that read images as plain numbers, `own` for an encoder of the user's own.

Where a user gives one of the sizes of an on-policy batch, those that are `auto` follow, so that they divide each other.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Literal

from rlrun.config.algorithms import algorithm_class
from rlrun.config.types import ConfigError, typed
from rlrun.core.errors import UserError
from rlrun.core.plugins import is_path
from rlrun.core.specs import Box
from rlrun.envs import registry
from rlrun.envs.atari import SIDE, SIDE_OF_WORLD_MODELS

TABLE = "by_observation"
AUTO = "auto"
FILTER = "observation_filter"
VALUE_LR = "value_lr"
Kind = Literal["vectors", "images", "mixed"]


def settled(values: dict[str, Any], kind: Kind | None = None) -> tuple[dict[str, Any], str]:
    """Returns the config without tables and with their values in place of `auto`, and a sentence that lists the values.

    kind: vectors or images; None: the environment is made to find out, if any option is `auto`. The sentence is empty
    if none was. Raises UserError if the environment cannot be made."""
    made, told = copy.deepcopy(values), []
    env = made.get("env")
    if isinstance(env, dict) and env.get("size") == AUTO:
        made["env"] = env | {"size": _side(made["algo"])}
        if made["env"]["size"] != SIDE:
            told.append(f"env.size={made['env']['size']}")
    tables = [(path, node, node.pop(TABLE)) for path, node in _groups(made) if TABLE in node]
    for path, _, table in tables:  # a config from elsewhere may hold anything
        if not isinstance(table, dict) or not all(isinstance(one, dict) for one in table.values()):
            raise ConfigError(f"{path}.{TABLE} is no table of defaults: {str(table)[:60]}")
    each = ((path, node, table, name) for path, node, table in tables for name in _names(table))
    open_ = [(path, node, table, name) for path, node, table, name in each if node.get(name) == AUTO]
    if not open_ and not told:
        return made, ""
    kind = kind or observations(made["env"])
    open_.sort(key=lambda option: option[3] == VALUE_LR)  # which needs share_value
    for _, node, table, name in open_:
        node[name] = _value(table, name, kind, str(node.get("encoder", "")))
    for path, node, table in tables:
        free = {name for one, _, _, name in open_ if one == path}
        _fit(node, free, {name: _value(table, name, kind, "") for name in _SIZES if name in table["vectors"]})
    for path, node, _, name in open_:
        if name == VALUE_LR and (made["model"].get("share_value") or node.get("use_critic") is False):
            node[name] = None
        if name == FILTER and node[name] != "none" and not algorithm_class(made["algo"]).filters_pixels:
            node[name] = "none"
        if (name == FILTER and node[name] == "none") or node[name] is None:
            continue  # nothing is done, and nothing need be said
        if path != "replay" or (made.get("runner") or {}).get("name") != "offline":  # recorded data need none
            told.append(f"{path}.{name}={node[name]}")
    return made, f"defaults for {_SAID[kind]}: {', '.join(told)}" if told else ""


def _side(algo: dict[str, Any]) -> int:
    """The sides of an Atari game's images for an algorithm, in pixels."""
    return SIDE_OF_WORLD_MODELS if algorithm_class(algo).has_world_model else SIDE


_SAID = {"vectors": "vectors", "images": "images", "mixed": "images with other parts"}


def observations(env: dict[str, Any]) -> Kind:
    """Returns "images" if an environment's observation is one image, "mixed" if it has parts of which some are images,
    otherwise "vectors".

    Raises UserError if the environment cannot be made."""
    family = env.get("family")
    if family not in registry.FAMILIES:
        raise ConfigError(f"env.family must be one of {', '.join(registry.FAMILIES)}, not {family!r}")
    spec = registry.make_spec(typed(registry.FAMILIES[family], env, "env"), False, False)
    if not spec.image:
        return "vectors"
    return "images" if isinstance(spec.observation, Box) else "mixed"


def _value(table: dict[str, dict[str, Any]], name: str, kind: Kind, encoder: str) -> Any:
    """The value of an option. encoder: that of a model, empty for other options."""
    names = ["own" if is_path(encoder) else encoder, kind, "vectors" if kind == "vectors" else "images"]
    return next(table[group][name] for group in names if name in table.get(group, {}))


_SIZES = ("batch_size", "fragment_length", "minibatch_size")


def _fit(node: dict[str, Any], free: set[str], usual: dict[str, int]) -> None:
    """Lets those sizes of an on-policy batch that were not given follow from those that were.

    A batch is a whole number of fragments and of minibatches. free: options whose value is a default. usual: the
    defaults of those sizes that are `auto`."""
    given = {name: node[name] for name in _SIZES if name in node and name not in free}
    if not usual or not free & set(usual) or not all(type(size) is int and size > 0 for size in given.values()):
        return  # nothing follows, or what is given will be refused
    if "batch_size" in free:
        unit = math.lcm(*given.values())
        node["batch_size"] = unit * max(1, round(usual["batch_size"] / unit))
    batch = node["batch_size"]
    if "fragment_length" in free and batch % node["fragment_length"] != 0:
        envs = usual["batch_size"] // usual["fragment_length"]
        node["fragment_length"] = batch // next(count for count in range(envs, 0, -1) if batch % count == 0)
    if "minibatch_size" in free:
        most = usual["minibatch_size"]
        fitting = next(rows for rows in range(most, 0, -1) if batch % rows == 0)
        node["minibatch_size"] = fitting if 2 * fitting > most else most  # a much smaller one would learn otherwise


def _names(table: dict[str, dict[str, Any]]) -> list[str]:
    names = set(table.get("vectors", ()))
    if (
        not {"vectors", "images"} <= set(table) <= {"vectors", "images", "mixed", "mlp", "own"}
        or names != set(table["images"])
        or not all(set(group) <= names for group in table.values())
    ):
        raise UserError(f"{TABLE} must have the groups vectors and images, with the same options in both")
    return list(table["vectors"])


def _groups(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (path, group) of every group of options that may have a table."""
    for name in ("algo", "model", "replay", "inner", "optimizer"):
        node = values.get(name)
        if isinstance(node, dict):
            yield f"{path}{name}", node
            yield from _groups(node, f"{path}{name}.")
    several = values.get("options")  # algo=multi: {policy: options of its algorithm}
    for name, node in several.items() if isinstance(several, dict) else ():
        if isinstance(node, dict):
            yield f"{path}options.{name}", node
            yield from _groups(node, f"{path}options.{name}.")
