"""The class of the algorithm that a config names."""

from __future__ import annotations

import importlib
from typing import Any

from rlrun.config.paths import options
from rlrun.core.algorithm import Algorithm
from rlrun.core.errors import UserError, closest
from rlrun.core.plugins import import_named


def algorithm_class(values: dict[str, Any]) -> type[Algorithm]:
    """Returns the Algorithm of rlrun/algos/<name>.py, or of the user's own module.

    Raises UserError if there is none.
    """
    name = values.get("name")
    if "module" in values:
        return own_algorithm(values["module"])
    if name not in options("algo"):
        raise UserError(f"There is no algorithm {name!r}.{closest(str(name), options('algo'))}")
    module = importlib.import_module(f"rlrun.algos.{name}")
    found = [
        v
        for v in vars(module).values()
        if isinstance(v, type) and issubclass(v, Algorithm) and v.__module__ == module.__name__
    ]
    assert len(found) == 1, f"{module.__name__} must define one Algorithm"
    return found[0]


def own_algorithm(module: str) -> type[Algorithm]:
    """Returns the only Algorithm of the user's own module, which must also define Config.

    Raises UserError if it does not.
    """
    try:
        made = import_named(module, f"algo.module={module}")
    except ImportError as error:
        raise UserError(f"algo.module={module} cannot be imported: {error}") from None
    found = [
        v
        for v in vars(made).values()
        if isinstance(v, type) and issubclass(v, Algorithm) and v.__module__ == made.__name__
    ]
    if len(found) != 1 or not hasattr(made, "Config"):
        what = f"{len(found)} and {'a' if hasattr(made, 'Config') else 'no'} Config"
        raise UserError(f"algo.module={module} must define one Algorithm and its Config; it defines {what}")
    return found[0]
