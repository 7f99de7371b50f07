"""Says whether a value of an RLlib file is of a kind that its option takes, before anything is computed from it."""

from __future__ import annotations

from functools import cache
from typing import Any

from rlrun.rllib.yaml_files import RUN_NAMES, data, defaults, flattened, flow, machinery, options_of

SAID = {"number": "a number", "switch": "true or false", "text": "text", "list": "a list", "group": "a group of keys"}
SHOWN = 60  # characters of a value that a message shows


def wrong_kind(key: str, value: Any) -> str | None:
    """Returns the reason why an option cannot have this value; None if it can, or if rlrun does not know the option.

    Every value of a grid must fit. Options that do not affect algorithms may have any value."""
    several = options_of(value)
    if several is not None:
        said = [wrong_kind(key, one) for one in several] or ["an empty grid has no values"]
        return next((one for one in said if one is not None), None)
    wanted = _kinds().get(key)
    if wanted is None or key.rsplit(".", 1)[-1] in machinery() and kind(value) in ("number", "null"):
        return None
    words = data("kinds.yaml")["words"].get(key)
    if kind(value) not in wanted or (isinstance(value, str) and words is not None and value not in words):
        text = flow(value)
        text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        fits = [f"one of {', '.join(words)}" if one == "text" and words else SAID[one] for one in SAID if one in wanted]
        return f"in RLlib it is {' or '.join(fits) or 'null'}, not {text}"
    return None


def kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "switch"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list | tuple) else "group"


@cache
def _kinds() -> dict[str, frozenset[str]]:
    """Maps RLlib's options to the kinds of value that they take."""
    found: dict[str, set[str]] = {}
    for run in RUN_NAMES:
        for era in ("old", "middle", "new"):
            for key, value in flattened(defaults(run, era)).items():
                if value is not None:
                    found.setdefault(key, set()).add(kind(value))
    for name, keys in data("kinds.yaml").items():
        for key in keys if name != "words" else ():
            found.setdefault(key, set()).add(name)
    for net in ("q_model_config", "policy_model_config", "Q_model", "policy_model"):
        for key in ("fcnet_hiddens", "fcnet_activation"):
            found.setdefault(f"{net}.{key}", set()).update(found[f"model.{key}"])
    return {key: frozenset(kinds) for key, kinds in found.items()}
