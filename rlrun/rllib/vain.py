"""Leaves out options that RLlib's files set although another option switches them off: rlrun would refuse them."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import yaml

from rlrun.config.algorithms import algorithm_class
from rlrun.config.paths import base_options, included_groups, root, runner_of
from rlrun.config.run import RunConfig
from rlrun.config.unused import conditional_in
from rlrun.core.conditions import EXPERIENCE, REPLAYS, OnlyFor, OnlyWith
from rlrun.core.evaluation_duty import EvalConfig
from rlrun.rllib.fits import runner_class
from rlrun.rllib.translation import first_of
from rlrun.rllib.yaml_files import SWEPT, Imported, Line


def leave_out(made: Imported, outer: str | None, core: str) -> None:
    """Takes options of the algorithm, of its runner and of evaluation out of a tuned file if they are used only with
    another option's value that the file does not have, and says so in the file's lines.

    A sweep over the other option is left out too if only some of its jobs would use the option, unless the option has
    its default, which these jobs have without the file."""
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
    uses = [use for place, cls in places for use in _uses(made, place, cls, core)]
    for use in uses:
        if not any(use.where(made)):
            _leave_out(made, use.option, use.why)
    for use in uses:
        if use.option in made.values and not use.is_default(made) and not all(use.where(made)):
            _leave_sweep_out(made, use.other, use.why)
    for use in uses:
        where = use.where(made)
        if not all(where):
            _leave_out(made, use.option, f"{use.why}, and has its default there" if any(where) else use.why)


class _Use(NamedTuple):
    """An option of the file that is used only with certain values of another one."""

    option: str
    other: str
    condition: OnlyWith
    default: Any  # the option's
    otherwise: Any  # the other one's default
    why: str

    def where(self, made: Imported) -> list[bool]:
        """Tells for each job of the file's sweep, or for its only value, whether the option is used."""
        values = made.grid.get(self.other, [made.values.get(self.other, self.otherwise)])
        return [self.condition.holds(value) for value in values]

    def is_default(self, made: Imported) -> bool:
        return self.option not in made.grid and made.values[self.option] == self.default


def _uses(made: Imported, place: str, cls: type, core: str) -> Iterator[_Use]:
    """Yields what switches options of the file off. place: the group of the class `cls` in a run's config."""
    file = {"runner": f"runner/{cls.__module__.rpartition('.')[2]}", "eval": "./train"}.get(place, core)
    for option, group, condition in conditional_in(cls, place):
        if option not in made.values or not isinstance(condition, OnlyWith):
            continue
        other = condition.path(group)
        around = condition.option.startswith("..")  # algo.explore, which only the file can switch off
        if (around and other not in made.values) or (not around and "." in condition.option):
            continue
        defaults = _default(file, place, option), _default(file, place, other)
        yield _Use(option, other, condition, *defaults, f"{option} is used only {condition.told(group)}")


def _leave_out(made: Imported, option: str, why: str) -> None:
    if option not in made.values:
        return
    del made.values[option]
    made.grid.pop(option, None)
    made.lines[:] = [_dropped(line, option, why) for line in made.lines if _stays(line, option)]


def _leave_sweep_out(made: Imported, option: str, why: str) -> None:
    """Leaves the first value of an option's grid. One file cannot serve jobs of which some need an option that rlrun
    refuses in the others."""
    several = made.grid.pop(option)
    swept, first = f"the first of {len(several)}; {SWEPT}", first_of(several, why)
    made.lines[:] = [
        line._replace(why=line.why.replace(swept, first)) if line.became.partition("=")[0] == option else line
        for line in made.lines
    ]


def _stays(line: Line, option: str) -> bool:
    return line.how != "added" or line.became.partition("=")[0] != option


def _dropped(line: Line, option: str, why: str) -> Line:
    if line.became.partition("=")[0] != option:
        return line
    return line._replace(how="dropped", became="", why=why)


@cache
def _default(file: str, place: str, option: str) -> Any:
    """The default of an option of an algorithm, or of a file of conf/; None if it has none.

    place: the algorithm's or the file's group in a run's config."""
    inside = option.removeprefix(f"{place}.").split(".")
    path = ("eval", *inside) if place == "eval" else tuple(inside)
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
