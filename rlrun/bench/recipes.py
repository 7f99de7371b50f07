"""Whether a result was made with the options that its tuned file has today."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.commands.sweep_check import checked
from rlrun.core.errors import UserError
from rlrun.experiments.runs import SavedRun, science_of
from rlrun.loggers.mlflow import flatten

ENDS = ("env_steps",)  # the table says where a run ends


def recipe(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, by dotted name, that decide what a run learns, as a result file holds them."""
    chosen = {name: value for name, value in science_of(dict(options)).items() if name not in ENDS}
    return json.loads(json.dumps(chosen, default=str))


def recipe_of(run_dir: Path) -> dict[str, Any]:
    """The recipe of a run."""
    return recipe(SavedRun(run_dir).options)


def changed(result: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """The names of options that have other values today than when a result was made.

    words: the words for `rlrun train` that would run its cell today. Nothing is said where the result holds no options,
    as those of the first versions, nor where the cell cannot be run here, for lack of MuJoCo for example, nor of
    options that did not exist then."""
    made = result.get("options")
    if not isinstance(made, dict):
        return []
    try:
        now = recipe(dict(flatten(checked(words, "today"))))
    except UserError:
        return []
    return [name for name in made if name in now and made[name] != now[name]]
