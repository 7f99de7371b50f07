"""Says whether a value of an RLlib file is of a kind that its option takes, before anything is computed from it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from rlrun.rllib.yaml_files import data, defaults, flattened, flow, options_of, runs_with_defaults

SAID = {"number": "a number", "switch": "true or false", "text": "text", "list": "a list", "group": "a group of keys"}
NETS = ("q_model_config", "policy_model_config", "Q_model", "policy_model")
SHOWN = 60  # characters of a value that a message shows
CLASSES = {  # of options whose value is the name of a class: an example
    "replay_buffer_config.type": "MultiAgentReplayBuffer",
    "exploration_config.type": "EpsilonGreedy",
}


def wrong_kind(key: str, value: Any) -> str | None:
    """Returns the reason why an option cannot have this value; None if it can, or if rlrun does not know the option.

    Every value of a grid must fit."""
    several = options_of(value)
    if several is not None:
        said = [wrong_kind(key, one) for one in several] or ["an empty grid has no values"]
        return next((one for one in said if one is not None), None)
    wanted = known_kinds().get(key)
    if wanted is None:
        return None
    fits = kind(value) in wanted
    if isinstance(value, str):
        words, pattern = data("kinds.yaml")["words"].get(key), data("kinds.yaml")["patterns"].get(key)
        fits = fits and (words is None or value in words) and (pattern is None or bool(re.fullmatch(pattern, value)))
    least = data("kinds.yaml")["least"].get(key, value)
    if kind(value) == "number" and value < least:
        return f"in RLlib it is at least {least}, not {flow(value)}"
    if isinstance(value, list):
        fits = fits and LISTS[data("kinds.yaml")["lists"].get(key.replace(*_net(key)), "any")](value)
    if fits:
        return None
    text = flow(value)
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    if key in CLASSES and isinstance(value, str):
        return f"in RLlib it is the name of a class, such as {CLASSES[key]}, not {text}"
    return f"in RLlib it is {' or '.join(_said(key, wanted)) or 'null'}, not {text}"


def _said(key: str, wanted: frozenset[str]) -> list[str]:
    """Returns what an option takes, in words."""
    words = data("kinds.yaml")["words"].get(key)
    what = {"widths": "a list of widths", "points": "points [env steps, value]"}
    what |= {"range": "two whole numbers", "bounds": "[the least, the largest]"}
    said = SAID | {"list": what.get(data("kinds.yaml")["lists"].get(key.replace(*_net(key)), ""), "a list")}
    said |= {"text": f"one of {', '.join(words)}"} if words else {}
    return [text for one, text in said.items() if one in wanted]


def _net(key: str) -> tuple[str, str]:
    """Returns the group of a network's options and `model`, whose options have the same kinds."""
    group = key.split(".")[0]
    return (group, "model") if group in NETS else ("", "")


def _numbers(values: list[Any]) -> bool:
    return all(kind(one) == "number" for one in values)


def _points(values: list[Any]) -> bool:
    pairs = all(isinstance(one, list) and len(one) == 2 and _numbers(one) for one in values)
    return bool(values) and pairs and all(a[0] < b[0] for a, b in itertools.pairwise(values))


LISTS: dict[str, Callable[[list[Any]], bool]] = {
    "any": lambda values: True,
    "widths": lambda values: _numbers(values) and all(one >= 1 and one == int(one) for one in values),
    "points": _points,
    "range": lambda values: len(values) == 2 and _numbers(values) and 1 <= values[0] <= values[1],
    "bounds": lambda values: len(values) == 2 and _numbers(values) and values[0] < values[1],
}


def takes(key: str) -> frozenset[str] | None:
    """Returns the kinds of value that an option takes; None if rlrun does not know it."""
    return known_kinds().get(key)


def kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "switch"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list | tuple) else "group"


@cache
def known_kinds() -> dict[str, frozenset[str]]:
    """Maps RLlib's options to the kinds of value that they take."""
    found: dict[str, set[str]] = {}
    for run in runs_with_defaults():
        for era in ("old", "middle", "new"):
            for key, value in flattened(defaults(run, era)).items():
                if value is not None:
                    found.setdefault(key, set()).add(kind(value))
    for name, keys in data("kinds.yaml").items():
        for key in keys if isinstance(keys, list) else ():
            found.setdefault(key, set()).add(name)
    for net in NETS:
        for key in ("fcnet_hiddens", "fcnet_activation"):
            found.setdefault(f"{net}.{key}", set()).update(found[f"model.{key}"])
    return {key: frozenset(kinds) for key, kinds in found.items()}
