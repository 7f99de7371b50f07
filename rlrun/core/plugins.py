"""Loads objects of the user's own packages, which configs name as `package.module:Name`."""

from __future__ import annotations

import importlib
from typing import Any

from rlrun.core.errors import UserError, closest


def is_path(name: str) -> bool:
    return ":" in name


def load_object(name: str, option: str) -> Any:
    """The object that `package.module:Name` names. If it does not exist or cannot be imported, raises UserError, which
    names the option."""
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
        raise UserError(
            f"{option}={name}: {module} has no {attribute}.{closest(attribute, vars(importlib.import_module(module)))}"
        ) from None
    return made
