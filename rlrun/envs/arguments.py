"""The arguments of users' own environments, of which many take one dictionary, as RLlib hands them env_config."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

CONFIGS = ("config", "env_config", "env_context", "cfg", "conf")
MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: '(\w+)'")


def _parameters(name: str) -> list[inspect.Parameter] | None:
    """Returns the parameters of my_package:Name that have names; None if they are unknown. The module must have been
    imported, as family_of() does."""
    module, _, part = name.rpartition(":")
    found = getattr(sys.modules.get(module), part, None)
    if not callable(found):
        return None
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return None
    return [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def config_parameter(name: str, kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Returns the parameter of my_package:Name that takes a dictionary of all options; None if it has none.

    It is the first one, with a name of CONFIGS. kwargs: RLlib's env_config, with which it may have any name if it is
    the only one, and if it must be given or there is something to give. A class that has parameters of the names in
    env_config takes them one by one."""
    named = _parameters(name)
    if not named:
        return None
    names = [one.name for one in named]
    if kwargs and set(kwargs) <= set(names):
        return None
    if names[0] in CONFIGS:
        return names[0]
    alone = kwargs is not None and len(names) == 1 and (bool(kwargs) or named[0].default is named[0].empty)
    return names[0] if alone else None


def mending(name: str, error: BaseException, kwargs: Mapping[str, Any] | None = None) -> str:
    """Returns what gives an environment the arguments that its constructor asks for; empty if it asks for none.

    kwargs: those that it was given."""
    said, kwargs = str(error) if isinstance(error, TypeError) else "", kwargs or {}
    found, config, named = MISSING.search(said), config_parameter(name), _parameters(name)
    missing = None if found is None else found[1]
    unexpected = "unexpected keyword argument" in said
    if config is not None and config not in kwargs and (missing == config or unexpected):
        example = next((f"{key}={value}" for key, value in kwargs.items()), "NAME=...")
        return f"env.kwargs.{config}.{example} puts it into the dictionary {config}, which RLlib calls env_config"
    # Another function that the constructor calls may lack an argument too.
    own = missing is not None and (named is None or missing in [one.name for one in named])
    return f"env.kwargs.{missing}=... sets this argument" if own else ""
