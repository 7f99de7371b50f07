"""Says whether rlrun would accept a value for one of its options, before a file with the value is written."""

from __future__ import annotations

import importlib
import typing
from functools import cache
from typing import Any

import yaml

from rlrun.config.algorithms import algorithm_class
from rlrun.config.paths import root, runner_of
from rlrun.config.run import RunConfig
from rlrun.config.types import ConfigError, check_value, typed
from rlrun.envs.registry import FAMILIES
from rlrun.rllib.environments import Environment

WHOSE = {
    "atari": "Atari games",
    "gym": "Gymnasium environments",
    "agents": "environments with several agents",
    "dmc": "tasks of dm-control",
    "crafter": "Crafter",
}


def misfit(
    outer: str | None, core: str, env: Environment, option: str, value: Any, runner: str | None = None
) -> str | None:
    """Returns the reason why an option cannot have this value; None if it can.

    outer, core: the algorithm around another one, if there is one, and the algorithm that learns the policy. option:
    such as algo.inner.lr, or algo.options.NAME.lr of one of several policies. runner: None: the algorithm's own.
    """
    first, *rest = option.split(".")
    try:
        if first == "env":
            values = {**_env_options(env.family), "name": env.name}
            if rest[0] not in values:
                return f"{WHOSE[env.family]} have no option {option}"
            typed(FAMILIES[env.family], {**values, rest[0]: value}, "env")
        elif first == "algo":
            rest = ["inner", *rest[2:]] if outer == "multi" and rest[0] == "options" else rest
            inside = rest[0] == "inner"
            made = _config(core if inside or outer is None else outer)
            check_value(made, rest[1:] if inside else rest, value, option)
        elif first == "runner":
            check_value(runner_class(outer, core, runner), rest, value, option)
        else:
            check_value(RunConfig, [first, *rest], value, option)
    except ConfigError as error:
        return str(error)
    return None


@cache
def _env_options(family: str) -> dict[str, Any]:
    return yaml.safe_load((root() / "conf" / "env" / f"{family}.yaml").read_text())


@cache
def _config(algo: str) -> type:
    """The class of an algorithm's options."""
    return importlib.import_module(algorithm_class({"name": algo}).__module__).Config


@cache
def runner_class(outer: str | None, core: str, runner: str | None = None) -> type:
    """The class of the options of a runner; None: the one that the algorithm has."""
    name = runner or (runner_of(outer) if outer else None) or runner_of(core) or ""
    return typing.cast(type, importlib.import_module(f"rlrun.runners.{name}").Config)
