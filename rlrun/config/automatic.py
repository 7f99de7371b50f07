"""Replaces `auto` in the options of algorithms and models by values that follow from the observations.

A yaml file of conf/ may have a table `by_observation` with two groups, `vectors` and `images`. It holds the values of
the file's options that are `auto`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from rlrun.config.types import ConfigError, typed
from rlrun.core.errors import UserError
from rlrun.envs import registry

TABLE = "by_observation"
AUTO = "auto"


def settled(values: dict[str, Any], kind: str | None = None) -> tuple[dict[str, Any], str]:
    """Returns the config without tables and with their values in place of `auto`, and a sentence that lists the values.

    kind: vectors or images; None: the environment is made to find out, if any option is `auto`. The sentence is empty
    if none was. Raises UserError if the environment cannot be made."""
    made = copy.deepcopy(values)
    tables = [(path, node, node.pop(TABLE)) for path, node in _groups(made) if TABLE in node]
    open_ = [(path, node, table, name) for path, node, table in tables for name in _names(table) if node[name] == AUTO]
    if not open_:
        return made, ""
    kind = kind or observations(made["env"])
    told = []
    for path, node, table, name in open_:
        node[name] = table[kind][name]
        told.append(f"{path}.{name}={node[name]}")
    return made, f"defaults for {kind}: {', '.join(told)}"


def observations(env: dict[str, Any]) -> str:
    """Returns "images" if an environment's observations contain an image, otherwise "vectors". Raises UserError."""
    family = env.get("family")
    if family not in registry.FAMILIES:
        raise ConfigError(f"env.family must be one of {', '.join(registry.FAMILIES)}, not {family!r}")
    spec = registry.make_spec(typed(registry.FAMILIES[family], env, "env"), False, False)
    return "images" if spec.image else "vectors"


def _names(table: dict[str, dict[str, Any]]) -> list[str]:
    if set(table) != {"vectors", "images"} or set(table["vectors"]) != set(table["images"]):
        raise UserError(f"{TABLE} must have the groups vectors and images, with the same options in both")
    return list(table["vectors"])


def _groups(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (path, group) of every group of options that may have a table."""
    for name in ("algo", "model", "replay", "inner"):
        node = values.get(name)
        if isinstance(node, dict):
            yield f"{path}{name}", node
            yield from _groups(node, f"{path}{name}.")
