"""Leaves out options that RLlib's files set although another option switches them off: rlrun would refuse them."""

from __future__ import annotations

import importlib
import typing
from functools import cache
from typing import Any

import yaml

from rlrun.config.algorithms import algorithm_class
from rlrun.config.paths import base_options, included_groups, root, runner_of
from rlrun.config.run import RunConfig
from rlrun.config.unused import conditional_in
from rlrun.core.conditions import EXPERIENCE, REPLAYS, OnlyFor, OnlyWith
from rlrun.core.duties import EvalConfig
from rlrun.rllib.fits import runner_class
from rlrun.rllib.yaml_files import Imported, Line


def leave_out(made: Imported, outer: str | None, core: str) -> None:
    """Takes options of the algorithm, of its runner and of evaluation out of a tuned file if they are used only with
    another option's value that the file does not have, and says so in the file's lines."""
    at = "algo.inner" if outer is not None else "algo"
    if made.values.get("runner._choice", runner_of(outer or core)) == "offline":
        algorithm = importlib.import_module(algorithm_class({"name": core}).__module__).Config
        replay = typing.get_args(typing.get_type_hints(RunConfig)["replay"])[0]
        for place, cls in ((at, algorithm), ("replay", replay)):
            for option, _, condition in conditional_in(cls, place):
                if isinstance(condition, OnlyFor) and condition.kind in (EXPERIENCE, REPLAYS):
                    _leave_out(made, option, f"{option} is for {condition.kind}")
    places = [
        (at, importlib.import_module(algorithm_class({"name": core}).__module__).Config),
        ("runner", runner_class(outer, core, made.values.get("runner._choice"))),
        ("eval", EvalConfig),
    ]
    for place, cls in places:
        for option, group, condition in conditional_in(cls, place):
            if option not in made.values or not isinstance(condition, OnlyWith):
                continue
            other = condition.path(group)
            around = condition.option.startswith("..")  # algo.explore, which only the file can switch off
            if (around and other not in made.values) or (not around and "." in condition.option):
                continue
            inside = other.removeprefix(f"{place}.").split(".")
            files = {"runner": f"runner/{cls.__module__.rpartition('.')[2]}", "eval": "./train"}
            path = ("eval", *inside) if place == "eval" else tuple(inside)
            value = made.values.get(other, _default(files.get(place, core), path))
            if not condition.holds(value):
                _leave_out(made, option, f"{option} is used only {condition.told(group)}")


def _leave_out(made: Imported, option: str, why: str) -> None:
    if option not in made.values:
        return
    del made.values[option]
    made.grid.pop(option, None)
    made.lines[:] = [_dropped(line, option, why) for line in made.lines if _stays(line, option)]


def _stays(line: Line, option: str) -> bool:
    return line.how != "added" or line.became.partition("=")[0] != option


def _dropped(line: Line, option: str, why: str) -> Line:
    if line.became.partition("=")[0] != option:
        return line
    return line._replace(how="dropped", became="", why=why)


@cache
def _default(file: str, path: tuple[str, ...]) -> Any:
    """The default of an option of an algorithm, or of a file of conf/; None if it has none."""
    files = [file] if "/" in file else [f"algo/{file}", *base_options(file)]
    for one in files:
        found = _at(yaml.safe_load((root() / "conf" / f"{one}.yaml").read_text()), path)
        if found is not _MISSING:
            return found
    if "/" not in file and path[0] in included_groups(file):
        text = (root() / "conf" / f"{included_groups(file)[path[0]]}.yaml").read_text()
        found = _at(yaml.safe_load(text), path[1:])
        return None if found is _MISSING else found
    return None


_MISSING = object()


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return _MISSING
        values = values[name]
    return values
