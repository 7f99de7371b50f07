"""The arguments of users' own environments, of which many take one dictionary, as RLlib hands them env_config."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

CONFIGS = ("config", "env_config", "env_context", "cfg", "conf")
MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: '(\w+)'")


def config_parameter(name: str, kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Returns the parameter of my_package:Name that takes a dictionary of all options; None if it has none.

    It is one of CONFIGS. kwargs: RLlib's env_config, with which it may have any name if it is the only parameter and
    env_config does not have that name. The module must have been imported, as family_of() does."""
    module, _, part = name.rpartition(":")
    found = getattr(sys.modules.get(module), part, None)
    if not callable(found):
        return None
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    known = next((one for one in named if one in CONFIGS), None)
    alone = named[0] if kwargs is not None and len(named) == 1 and named[0] not in kwargs else None
    return known or alone


def mending(name: str, error: BaseException, kwargs: Mapping[str, Any] | None = None) -> str:
    """Returns what gives an environment the arguments that its constructor asks for; empty if it asks for none.

    kwargs: those that it was given."""
    said, kwargs = str(error) if isinstance(error, TypeError) else "", kwargs or {}
    missing = MISSING.search(said)
    config = config_parameter(name)
    if config is not None and config not in kwargs and (missing is not None or "unexpected keyword argument" in said):
        example = next((f"{key}={value}" for key, value in kwargs.items()), "NAME=...")
        return f"env.kwargs.{config}.{example} puts it into the dictionary {config}, which RLlib calls env_config"
    return f"env.kwargs.{missing[1]}=... gives it {missing[1]}" if missing is not None else ""
