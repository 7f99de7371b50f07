"""Objects of the user's own packages, named in a config as `package.module:Name`."""

from __future__ import annotations

import importlib
from typing import Any

from rlrun.core.errors import UserError, closest


def is_path(name: str) -> bool:
    return ":" in name


def load_object(name: str, option: str) -> Any:
    """What `package.module:Name` names. Raises UserError, naming the option, where it is not there or cannot be imported."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UserError(f"{option}={name}: name it as package.module:Name")
    try:
        made: Any = importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{option}={name}: cannot import {module}: {error}") from None
    except Exception as error:  # the user's own module may raise anything
        raise UserError(f"{option}={name}: importing {module} fails: {type(error).__name__}: {error}") from None
    try:
        for part in attribute.split("."):
            made = getattr(made, part)
    except AttributeError:
        raise UserError(f"{option}={name}: {module} has no {attribute}.{closest(attribute, vars(importlib.import_module(module)))}") from None
    return made
