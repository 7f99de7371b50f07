"""Takes a cell's result from a longer run with the same options, as RLlib's figures after an hour are those of its runs
to 10M env steps.

A run does not know when it will end: neither its samples nor its updates depend on env_steps or stop. Its first hour is
therefore the same run as one that ends after an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlrun.bench.results import CurveRow, Key, first_reach, from_run, rows_of
from rlrun.bench.tables import Table, Wanted
from rlrun.core.errors import UserError
from rlrun.experiments.outcomes import summary_of
from rlrun.experiments.runs import SavedRun, science_of

ENDED = ("COMPLETED", "STOPPED", "INTERRUPTED")


def same_training(one: Wanted, other: Wanted) -> bool:
    """Whether the runs of two cells differ in their ends only."""
    return (one.cell.game, one.cell.tuned, one.cell.words) == (other.cell.game, other.cell.tuned, other.cell.words)


def may_contain_others(table: Table) -> bool:
    """Whether a run of this table is the one to begin with, since it may contain runs of other tables.

    How many env steps an hour takes depends on the machine: a run to a number of env steps that ends within the hour
    contains no run of an hour, which then has a run of its own."""
    return table.target_return is None and table.env_steps is not None


def cut(rows: Sequence[CurveRow], table: Table, window: int) -> Sequence[CurveRow] | None:
    """The rows up to a table's end: its env steps, its seconds or its return, which is a mean of `window` games. None
    where the rows end before that."""
    limit = table.env_steps if table.env_steps is not None else table.wall_sec
    places = [row.env_steps if table.env_steps is not None else row.wall_sec for row in rows]
    within = [row for row, place in zip(rows, places, strict=True) if limit is None or place <= limit]
    if table.target_return is not None:
        reached = first_reach(within, table.target_return, window)
        if reached is not None:
            return within[: reached + 1]
    if limit is None or not places or places[-1] < limit:
        return None
    return within or None


def from_longer(
    key: Key, wanted: Wanted, others: Sequence[Wanted], run_of: Callable[[Wanted], Path], options: dict[str, Any]
) -> tuple[dict[str, Any], Path] | None:
    """The result of a cell as the beginning of another cell's run, and that run. None where no run contains it.

    run_of: maps a cell to the directory of its run. options: the cell's own, dotted; a run with others is not taken.
    """
    for other in others:
        run_dir = run_of(other)
        if other.table.name == wanted.table.name or not same_training(wanted, other):
            continue
        if summary_of(run_dir).get("status") not in ENDED or not (run_dir / "config.yaml").is_file():
            continue
        try:
            before = SavedRun(run_dir).options
            if any(before.get(name) != options[name] for name in science_of(options) if name != "env_steps"):
                continue
            part = cut(rows_of(run_dir), wanted.table, before.get("episode_window", 100))
            if part:
                return from_run(key, wanted, run_dir, part), run_dir
        except UserError:  # it says why when the table of that run is asked for
            continue
    return None
