"""RLlib's published tables as data (conf/benchmark/): published figures, and the tuned files to compare with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlrun.config.paths import options, root
from rlrun.config.types import load_yaml, typed
from rlrun.core.errors import UserError, closest


class Best(NamedTuple):
    """The highest score of a game in any published table, and whose it is."""

    score: float
    who: str


# After 10M env steps, without sticky actions, by algorithms that learn no model of the game. RL Zoo is
# Stable-Baselines3's (its scores are of evaluation games); Tianshou's scores are those of the best of its evaluations.
# Scores that can only be read off a curve are not here, such as Rainbow's 20,000 or so on Qbert (Hessel et al. 2018).
BEST_ATARI_10M = {
    "BeamRider": Best(17123, "QR-DQN, RL Zoo"),
    "Breakout": Best(684.6, "Rainbow, Tianshou"),
    "Qbert": Best(17395, "PPO, Tianshou"),
    "SpaceInvaders": Best(2482, "FQF, Tianshou"),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table."""

    game: str
    label: str
    tuned: str
    published: float | None  # None where RLlib published no figure
    paper: float | None
    words: tuple[str, ...] = ()  # options in addition to the tuned file's


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table whose runs end after env_steps or after wall_sec seconds; ValueError unless exactly one of them is given.

    With target_return the score is the seconds until that return was reached; else it is the mean return of the last
    100 games.
    """

    name: str
    title: str
    env_steps: float | None
    wall_sec: float | None
    size: int | None  # height and width of the screens in pixels; None where there are no screens
    paper: str | None
    hardware: str  # hardware on which the published figures were measured
    cells: tuple[Cell, ...]
    target_return: float | None = None
    note: str | None = None  # what else a reader of the table should know

    def __post_init__(self):
        if (self.env_steps is None) == (self.wall_sec is None):
            raise ValueError("a table ends either after env_steps or after wall_sec")

    @property
    def less_is_better(self) -> bool:
        return self.target_return is not None

    @property
    def best(self) -> dict[str, Best]:
        """The best score of every game in a published table, of any algorithm, after as many env steps as here."""
        return BEST_ATARI_10M if (self.env_steps, self.size) == (1e7, 84) else {}

    @property
    def games(self) -> list[str]:
        return list(dict.fromkeys(cell.game for cell in self.cells))

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(cell.label for cell in self.cells))


def load(name: str) -> Table:
    """The table with this name. UserError where there is none."""
    known = options("benchmark")
    if name not in known:
        raise UserError(f"There is no table {name!r}.{closest(name, known)} There are: {', '.join(known)}")
    values = load_yaml(root() / "conf" / "benchmark" / f"{name}.yaml")
    cells = [{"words": [], **cell} for cell in values["cells"]]
    return typed(
        Table,
        {"target_return": None, "note": None, **values, "name": name, "cells": cells},
        f"conf/benchmark/{name}.yaml",
    )


class Wanted(NamedTuple):
    table: Table
    cell: Cell


def select(tables: Sequence[str], games: Sequence[str], algos: Sequence[str]) -> list[Wanted]:
    """The cells of these tables, games and algorithms. An empty list means all; UserError where a name fits no cell."""
    found = [Wanted(table, cell) for table in map(load, tables or options("benchmark")) for cell in table.cells]
    have = {"game": {one.cell.game for one in found}, "algo": {one.cell.tuned.split("/")[0] for one in found}}
    for kind, asked in (("game", games), ("algo", algos)):
        for name in asked:
            if name not in have[kind]:
                raise UserError(
                    f"No table here has {kind} {name!r}.{closest(name, have[kind])} There are:"
                    f" {', '.join(sorted(have[kind]))}"
                )
    chosen = [
        one
        for one in found
        if (not games or one.cell.game in games) and (not algos or one.cell.tuned.split("/")[0] in algos)
    ]
    if not chosen:
        raise UserError(f"these tables have no cell with both game={','.join(games)} and algo={','.join(algos)}")
    return chosen
