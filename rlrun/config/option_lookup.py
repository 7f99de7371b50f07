"""Where a name is an option: of which algorithms and groups, with which comment and default. For `rlrun explain`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from rlrun.config.option_names import KINDS
from rlrun.config.paths import base_options, bases, included_groups, options
from rlrun.config.texts import CHOICES, options_of, text_of

Key = tuple[str, str]  # how an option is typed, and its comment
LINES = 36  # at most so many are printed about an option, so that they fit on a screen
COMMENT_LINES = 3  # a longer comment is cut off; those of one algorithm are printed whole


class FoundOption(NamedTuple):
    """An option as one algorithm, or one choice of a group, has it."""

    key: str  # how it is typed, such as algo.optimizer.epsilon
    default: str  # as it is written in conf/; empty where it holds other options
    comment: str
    owner: str  # the algorithm or the choice, such as sac or model=lstm; empty for options of every run


@cache
def _file(file: str) -> dict[str, tuple[str, str]]:
    """The options of a file of conf/ with their defaults and comments."""
    return {name: (default, comment) for name, default, comment in options_of(text_of(file))}


def _merged(owner: str, places: list[tuple[str, str]]) -> Iterator[FoundOption]:
    """The options of several files, of which the first that has an option gives its default. places: files of conf/,
    each with what is typed in front of its options. A comment may stand in a later file than the default."""
    found: dict[str, tuple[str, str]] = {}
    for file, prefix in places:
        for name, (default, comment) in _file(file).items():
            known = found.get(prefix + name)
            if known is None or not known[1]:
                found[prefix + name] = (known[0] if known else default, comment)
    for key, (default, comment) in found.items():
        if key.rpartition(".")[2] != "name":  # algo.name and its like are set by algo=NAME
            yield FoundOption(key, default, comment, owner)


def every_option() -> Iterator[FoundOption]:
    """All options of all algorithms and of all choices of groups."""
    yield from _merged("", [("train", "")])
    for algo in options("algo"):
        own = [(file, "algo.") for file in (f"algo/{algo}", *base_options(algo))]
        yield from _merged(algo, own + [(file, f"algo.{part}.") for part, file in included_groups(algo).items()])
    for group in CHOICES:
        for choice in options(group):
            # Folders inside conf/model are groups of their own: model/memory/lstm is model.memory.<option>.
            inside, _, name = choice.rpartition("/")
            folder = f"{group}/{inside}" if inside else group
            prefix = "model.memory." if inside == "memory" else f"{group}."
            owner = KINDS.get(name, name) if group == "env" else f"{folder}={name}"
            yield from _merged(owner, [(file, prefix) for file in (f"{group}/{choice}", *bases(folder, name))])


def find_option(name: str) -> list[FoundOption]:
    """The options whose dotted name is this one or ends with it, such as lr, algo.lr or exploration.epsilon."""
    return [one for one in every_option() if f".{one.key}".endswith(f".{name}")]


def last_names() -> list[str]:
    """The last parts of the names of all options."""
    return sorted({one.key.rpartition(".")[2] for one in every_option()})


def grouped(found: list[FoundOption]) -> dict[Key, dict[str, list[str]]]:
    """Maps each way to type an option and its comment to its defaults, and each default to who has it. What most of
    them share comes first, and one way to type stands together."""
    together: dict[Key, dict[str, list[str]]] = {}
    for one in found:
        owners = together.setdefault((one.key, one.comment), {}).setdefault(one.default, [])
        if one.owner not in owners:
            owners.append(one.owner)
    counts: dict[str, int] = {}
    for (key, _), defaults in together.items():
        counts[key] = counts.get(key, 0) + sum(map(len, defaults.values()))

    def order(item: tuple[Key, dict[str, list[str]]]) -> tuple[int, str, int]:
        return -counts[item[0][0]], item[0][0], -sum(map(len, item[1].values()))

    return dict(sorted(together.items(), key=order))


def said_of(found: list[FoundOption]) -> str:
    """Where options of one name are, as at most about LINES lines of text and a sentence that names the rest."""
    lines: list[str] = []
    last = ""
    left: dict[str, list[str]] = {}
    for (key, comment), defaults in grouped(found).items():
        part = [] if key == last else [*([""] if lines else []), f"{key}=<value>"]
        words = textwrap.wrap(comment, 112, max_lines=COMMENT_LINES, placeholder=" ...", break_on_hyphens=False)
        part += [f"  {line}" for line in words]
        for default, owners in defaults.items():
            who = ", ".join(filter(None, owners))
            told = f"default {default}" if default else "holds other options"
            said = f"{told}: {who}" if who else told
            part += textwrap.wrap(said, 112, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
        if lines and (left or len(lines) + len(part) > LINES):
            left.setdefault(key, []).extend(owner for own in defaults.values() for owner in own)
            continue
        lines += part
        last = key
    if left:
        rest = "; ".join(f"{key} of {', '.join(filter(None, owners)) or 'every run'}" for key, owners in left.items())
        lines += ["", *textwrap.wrap(f"There are also {rest}", 116, break_on_hyphens=False)]
    return "\n".join(lines)
