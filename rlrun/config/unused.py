"""Walks through the options of a run that have conditions (core/conditions.py), and finds those that a user changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from rlrun.config.run import Typed
from rlrun.core.algorithm import Inner
from rlrun.core.conditions import OnlyFor, OnlyWith

Condition = OnlyWith | OnlyFor


@cache
def conditions_of(cls: Any, name: str) -> tuple[Condition, ...]:
    """The conditions that a class of options gives for one of them."""
    kind: Any = get_type_hints(cls, include_extras=True)[name]
    found: tuple[Condition, ...] = ()
    while get_origin(kind) is Annotated:
        found += tuple(one for one in get_args(kind)[1:] if isinstance(one, OnlyWith | OnlyFor))
        kind = get_args(kind)[0]
    return found


def conditional(config: Typed) -> Iterator[tuple[str, str, Condition]]:
    """Yields (path, group, condition) of every option of a run that has a condition, such as
    ("algo.exploration.theta", "algo.exploration", OnlyWith("kind", "ou"))."""
    for name, node in _roots(config).items():
        yield from _inside(node, name)


def conditional_in(cls: type, path: str) -> Iterator[tuple[str, str, Condition]]:
    """Yields the same for every option of a class, including those of classes that its options have."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield from ((f"{path}.{field.name}", path, one) for one in conditions_of(cls, field.name))
        if isinstance(hints[field.name], type) and dataclasses.is_dataclass(hints[field.name]):
            yield from conditional_in(hints[field.name], f"{path}.{field.name}")


def only_for(config: Typed) -> Iterator[tuple[str, str]]:
    """Yields the path of every option that is for certain kinds of runs, and the kind."""
    return ((path, one.kind) for path, _, one in conditional(config) if isinstance(one, OnlyFor))


def _roots(config: Typed) -> dict[str, Any]:
    run = {field.name: getattr(config.run, field.name) for field in dataclasses.fields(config.run)}
    made = {"algo": config.algo, "env": config.env, "runner": config.runner}
    return {name: node for name, node in {**run, **made}.items() if dataclasses.is_dataclass(node)}


def _inside(node: Any, path: str) -> Iterator[tuple[str, str, Condition]]:
    for field in dataclasses.fields(node):
        yield from ((f"{path}.{field.name}", path, one) for one in conditions_of(type(node), field.name))  # type: ignore[arg-type]
        value = getattr(node, field.name)
        value = value.cfg if isinstance(value, Inner) else value
        if dataclasses.is_dataclass(value):
            yield from _inside(value, f"{path}.{field.name}")
        elif isinstance(value, dict):
            for name, one in value.items():
                if isinstance(one, Inner):  # the options of one of several policies (algo=multi)
                    yield from (found for found in _inside(one.cfg, f"{path}.{field.name}.{name}") if _is_own(found[2]))


def _is_own(condition: Condition) -> bool:
    """Whether a condition is on other options of the same policy. Kinds of runs are those of algo.inner."""
    return isinstance(condition, OnlyWith) and not condition.option.startswith("algo.")


def value_at(config: Typed, path: str) -> Any:
    """The typed value of an option; None if the run has no such option."""
    first, *rest = path.split(".")
    node = _roots(config).get(first)
    for name in rest:
        node = node.cfg if isinstance(node, Inner) else node
        node = node.get(name) if isinstance(node, dict) else getattr(node, name, None)
    return node


def changed(values: Mapping[str, Any], defaults: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns the options, by path, whose values are not the defaults. Options without a default are left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in defaults:
            continue
        default, place = defaults[name], f"{path}.{name}".lstrip(".")
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            found |= changed(value, default, place)
        elif value != default:
            found[place] = value
    return found


def flattened(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns {"eval.every": 5} of {"eval": {"every": 5}} or of {"eval.every": 5}."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        place = f"{path}.{name}".lstrip(".")
        found |= flattened(value, place) if isinstance(value, Mapping) else {place: value}
    return found
