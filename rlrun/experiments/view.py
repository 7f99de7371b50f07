"""Shows the progress of many jobs: a table that is updated in place on a terminal, or else a line for each change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import monotonic
from typing import Any

from rlrun.cli import printable
from rlrun.core.outputs import tell
from rlrun.experiments.jobs import View
from rlrun.experiments.outcomes import Outcome
from rlrun.loggers.console import duration

COLOURS = {
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "STOPPED": "green",
    "PRUNED": "yellow",
    "INTERRUPTED": "yellow",
    "FAILED": "red",
    "WAITING": "dim",
}
SHOWN_AT_ONCE = 30  # rows in the live table, so that it fits on a terminal
AGAIN_SEC = 300.0  # between two lines about a job that goes on, where there is no live table


def cells(outcome: Outcome) -> list[str]:
    """A job's cells in the table: name, status, env steps, return, time and reason."""
    mean = outcome.return_mean
    told = outcome.status in ("FAILED", "PRUNED")
    return [
        outcome.job.name,
        outcome.status,
        f"{outcome.env_steps:,}" if outcome.env_steps else "",
        "" if mean is None else f"{mean:,.2f}",
        duration(outcome.wall_sec) if outcome.wall_sec else "",
        outcome.reason[:100] if told else "",
    ]


HEADINGS = ("job", "status", "env steps", "return", "time", "")


def text_table(rows: Sequence[Sequence[str]], headings: Sequence[str] = HEADINGS) -> str:
    """A table with columns as wide as their contents. Columns of numbers are right-aligned, except the first column.
    Texts of runs from elsewhere cannot steer the terminal."""
    table = [[printable(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(headings))]
    right = [
        all(not row[index] or row[index][0] in "-0123456789" for row in table[1:]) and index > 0
        for index in range(len(headings))
    ]
    aligned = (
        [cell.rjust(width) if far else cell.ljust(width) for cell, width, far in zip(row, widths, right)]
        for row in table
    )
    return "\n".join("  ".join(row).rstrip() for row in aligned)


def counts(outcomes: Sequence[Outcome], total: int, left_out: int) -> str:
    """How many jobs have each status, such as "3 completed, 1 running, 2 waiting, 1 left out".

    total: jobs that there are or will be, with those of a search that were left out because they would not start."""
    waiting = total - left_out - len(outcomes)
    seen: dict[str, int] = {}
    for outcome in outcomes:
        seen[outcome.status.lower()] = seen.get(outcome.status.lower(), 0) + 1
    if waiting > 0:
        seen["waiting"] = seen.get("waiting", 0) + waiting
    if left_out > 0:
        seen["left out"] = left_out
    return ", ".join(f"{number} {status}" for status, number in seen.items())


class JobLines:
    """Prints a line when a job begins or ends and every AGAIN_SEC seconds while it runs, and a table at the end."""

    def __init__(self, total: int):
        self.total, self.left_out = total, 0
        self.said: dict[str, tuple[str, float]] = {}  # by job: the status that was printed last, and when

    def show(self, outcomes: Sequence[Outcome]) -> None:
        now = monotonic()
        for outcome in outcomes:
            status, when = self.said.get(outcome.job.name, ("", now))
            if status != outcome.status or (status == "RUNNING" and now - when >= AGAIN_SEC):
                self.said[outcome.job.name] = outcome.status, now
                _, status, steps, mean, time, reason = cells(outcome)
                facts = [f"{steps} env steps" if steps else "", f"return {mean}" if mean else "", time, reason]
                tell("  ".join([f"{status:<11} {outcome.job.name}", *(fact for fact in facts if fact)]))

    def say(self, text: str) -> None:
        tell(text)

    def close(self, outcomes: Sequence[Outcome]) -> None:
        self.show(outcomes)
        table = text_table([cells(outcome) for outcome in outcomes])
        tell(f"\n{table}\n{counts(outcomes, self.total, self.left_out)}")


class JobTable:
    """A live table, redrawn twice a second. Where not all jobs fit, running jobs are kept."""

    def __init__(self, total: int):
        from rlrun.loggers.live import RedrawnView

        self.total, self.left_out = total, 0
        self.outcomes: Sequence[Outcome] = ()
        self.said = ""
        self.live = RedrawnView(self._made, transient=True)
        self.live.start()

    def _made(self) -> Any:
        from rich.table import Table as RichTable
        from rich.text import Text

        outcomes = self.outcomes
        title = counts(outcomes, self.total, self.left_out)
        table = RichTable(title=f"{title}; {self.said}" if self.said else title, title_justify="left")
        for heading, justify in zip(HEADINGS, ("left", "left", "right", "right", "right", "left"), strict=True):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        # Running jobs come last, near the cursor.
        order = sorted(outcomes, key=lambda outcome: outcome.status == "RUNNING")
        for outcome in order[-SHOWN_AT_ONCE:]:
            name, status, *rest = cells(outcome)
            table.add_row(name, Text(status, style=COLOURS.get(status, "")), *rest)
        return table

    def show(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        self.live.refresh()

    def say(self, text: str) -> None:
        self.said = text
        self.live.refresh()

    def close(self, outcomes: Sequence[Outcome]) -> None:
        self.live.stop()
        table = text_table([cells(outcome) for outcome in outcomes])
        tell(f"{table}\n{counts(outcomes, self.total, self.left_out)}")


def view(total: int) -> View:
    """The view that suits standard output: a live table on a terminal, else lines. total: number of jobs, or 0."""
    if sys.stdout.isatty():
        from rich.console import Console

        if Console().is_terminal and not Console().is_dumb_terminal:
            return JobTable(total)
    return JobLines(total)
