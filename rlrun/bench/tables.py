"""RLlib's published tables as data (conf/benchmark/): what was published, and which tuned file is to be compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlrun.config.paths import options, root
from rlrun.config.types import load_yaml, typed
from rlrun.core.errors import UserError, closest


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table."""

    game: str
    label: str
    tuned: str
    published: float | None  # None: RLlib names none
    paper: float | None
    words: tuple[str, ...] = ()  # options on top of the tuned file's


@dataclass(frozen=True, kw_only=True)
class Table:
    """Ends after env_steps, or after wall_sec. With target_return the score is the seconds it took to reach it, else the mean of the last 100 games."""

    name: str
    title: str
    env_steps: float | None
    wall_sec: float | None
    size: int | None  # pixels of the screens; None: no screens
    paper: str | None
    hardware: str  # of the published figures
    cells: tuple[Cell, ...]
    target_return: float | None = None

    def __post_init__(self):
        if (self.env_steps is None) == (self.wall_sec is None):
            raise ValueError("a table ends after env_steps or after wall_sec, one of them")

    @property
    def less_is_better(self) -> bool:
        return self.target_return is not None

    @property
    def games(self) -> list[str]:
        return list(dict.fromkeys(cell.game for cell in self.cells))

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(cell.label for cell in self.cells))


def load(name: str) -> Table:
    """UserError on a table that does not exist."""
    known = options("benchmark")
    if name not in known:
        raise UserError(f"There is no table {name!r}.{closest(name, known)} There are: {', '.join(known)}")
    values = load_yaml(root() / "conf" / "benchmark" / f"{name}.yaml")
    cells = [{"words": [], **cell} for cell in values["cells"]]
    return typed(Table, {"target_return": None, **values, "name": name, "cells": cells}, f"conf/benchmark/{name}.yaml")


class Wanted(NamedTuple):
    table: Table
    cell: Cell


def select(tables: Sequence[str], games: Sequence[str], algos: Sequence[str]) -> list[Wanted]:
    """Cells of these tables, games and algorithms; an empty list of any means all. UserError where one fits nothing."""
    found = [Wanted(table, cell) for table in map(load, tables or options("benchmark")) for cell in table.cells]
    have = {"game": {one.cell.game for one in found}, "algo": {one.cell.tuned.split("/")[0] for one in found}}
    for kind, asked in (("game", games), ("algo", algos)):
        for name in asked:
            if name not in have[kind]:
                raise UserError(f"No table here has {kind} {name!r}.{closest(name, have[kind])} There are: {', '.join(sorted(have[kind]))}")
    chosen = [one for one in found if (not games or one.cell.game in games) and (not algos or one.cell.tuned.split("/")[0] in algos)]
    if not chosen:
        raise UserError(f"these tables have no cell with game={','.join(games)} and algo={','.join(algos)} together")
    return chosen
