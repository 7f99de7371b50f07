"""The console logger: a live view with rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import Any, NamedTuple

from rlrun.core.outputs import tell

LINE_SEC = 1.0  # at most one line is printed in this time, so that a fast run does not fill the terminal
REFRESHES = 2  # times per second that the live view is drawn
SHOWN = (
    ("sample/return_mean", "return, last {window}"),
    ("sample/return_max", "best return of these"),
    ("sample/episode_length_mean", "episode length"),
    ("learn/elo", "Elo rating"),
    ("learn/win_rate", "won against snapshots"),
    ("eval/return_mean", "evaluation"),
    ("learn/policy_loss", "policy loss"),
    ("learn/value_loss", "value loss"),
    ("learn/entropy", "entropy"),
    ("learn/grad_norm", "gradient norm"),
    ("learn/lr", "lr"),
    ("sample/policy_lag", "policy lag, updates"),
    ("sample/queued_fragments", "fragments waiting"),
    ("time/learn_share", "time learning"),
    ("time/wait_share", "time waiting for samples"),
    ("sample/success_rate", "successful episodes"),
)
SHARES = ("_share", "_rate")  # ends of the names of shares of 1, which are shown as percentages


def duration(seconds: float) -> str:
    """A duration as text, such as 1h02m, 3m05s or 12s."""
    seconds = int(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


def number(value: float | None) -> str:
    """A number with the digits that matter, such as 2,071, 18.4, 0.94 or 50; empty for None."""
    if value is None:
        return ""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def say(text: str) -> None:
    """Prints a line about a run below its name. On a terminal, lines that are too long for it end between words."""
    if sys.stdout.isatty():
        width = max(40, shutil.get_terminal_size().columns - 1)
        lines = textwrap.wrap(text, width - 4, break_long_words=False, break_on_hyphens=False)
        text = "\n    ".join(lines)
    tell(f"  {text}")


class End(NamedTuple):
    """Where a run ends, if nothing stops it sooner."""

    env_steps: int
    wall_sec: float | None = None  # seconds of running; None: no limit

    def share(self, row: dict[str, Any]) -> float:
        """The share of the run that is done, of 0 to 1."""
        steps = row["env_steps"] / self.env_steps
        return min(1.0, steps if self.wall_sec is None else max(steps, row["time_sec"] / self.wall_sec))

    def left(self, row: dict[str, Any]) -> str:
        """The time until the end as text, or an empty one if it is not known or is over."""
        rate = row["sample/env_steps_per_sec"] or 0.0
        seconds = [(self.env_steps - row["env_steps"]) / rate] if rate > 0 else []
        if self.wall_sec is not None:
            seconds.append(self.wall_sec - row["time_sec"])
        return duration(min(seconds)) if seconds and min(seconds) > 0 else ""


class Lines:
    """Prints one line for each row, but at most one in LINE_SEC. Evaluations and the last row are always printed."""

    def __init__(self, end: End):
        self.end = end
        self.printed = -LINE_SEC  # when the last line was printed
        self.waiting: dict[str, Any] | None = None  # the newest row, if it has not been printed

    def log(self, row: dict[str, Any]) -> None:
        self.waiting = row
        if time.monotonic() - self.printed >= LINE_SEC or row.get("eval/return_mean") is not None:
            self._print()

    def _print(self) -> None:
        row, self.waiting, self.printed = self.waiting, None, time.monotonic()
        assert row is not None
        ahead = f" (+{row['sample/ahead']:,.0f})" if row.get("sample/ahead") else ""
        parts = [
            f"{row['env_steps']:>11,}{ahead}/{self.end.env_steps:,} steps",
            f"{row['sample/env_steps_per_sec'] or 0:>7,.0f}/s",
        ]
        if "time/rows_learnt" in row:
            parts.append("learning from data")
        elif row["sample/return_mean"] is None:
            parts.append("no finished episode yet")
        elif row.get("learn/elo") is not None:  # of self-play, whose players' returns add up to 0
            won = row.get("learn/win_rate")
            against = "" if won is None else f"  won {won:.0%} against snapshots"
            parts.append(f"Elo {row['learn/elo']:.0f}{against} ({row['sample/episodes']} episodes)")
        else:
            parts.append(f"return {row['sample/return_mean']:.2f} ({row['sample/episodes']} episodes)")
        for name, label in (
            ("eval/return_mean", "eval"),
            ("learn/entropy", "entropy"),
            ("sample/policy_lag", "policy lag"),
        ):
            if row.get(name) is not None and (label != "policy lag" or row[name] > 0):
                parts.append(f"{label} {row[name]:.2f}{' updates' * (label == 'policy lag')}")
        parts.append(duration(row["time_sec"]))
        if left := self.end.left(row):
            parts.append(f"left {left}")
        tell("  ".join(parts))

    def close(self, status: str, summary: dict[str, Any]) -> None:
        if self.waiting is not None:
            self._print()


class Live:
    """A table that is updated in place, with a progress bar, the time left and the machine's load."""

    def __init__(self, end: End, title: str, window: int):
        """window: the number of episodes that sample/return_mean looks at."""
        import psutil

        from rlrun.loggers.live import RedrawnView

        self.end, self.title, self.window, self.psutil = end, title, window, psutil
        psutil.cpu_percent()
        self.row: dict[str, Any] = {}  # the newest row, with older values of what it lacks
        self.live = RedrawnView(self._view, REFRESHES)
        self.live.start()

    def log(self, row: dict[str, Any]) -> None:
        known = {name: value for name, value in row.items() if value is not None}
        self.row = {**row, **self.row, **known}  # a new dictionary, because the view is drawn by a thread of its own

    def _view(self):
        from rich.text import Text

        return self._table(self.row) if self.row else Text(self.title, style="bold")

    def _table(self, row: dict[str, Any]):
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # The head is two rows, each of which fits on 80 columns; a name that is longer is cut.
        head = [
            f"{row['env_steps']:,} of {self.end.env_steps:,} env steps ({self.end.share(row):.0%})",
            f"{row['sample/env_steps_per_sec'] or 0:,.0f}/s",
            duration(row["time_sec"]),
        ]
        if left := self.end.left(row):
            head.append(f"{left} left")
        title, counts = (
            Text(text, style=style, no_wrap=True, overflow="ellipsis")
            for text, style in ((self.title, "bold"), ("   ".join(head), ""))
        )
        # A bar does not end its line, and what follows it would be cropped. The row of a table does.
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=1.0, completed=self.end.share(row)))
        grid = Table.grid(padding=(0, 2))
        cells = [
            (label.format(window=self.window), f"{row[name]:.0%}" if name.endswith(SHARES) else f"{row[name]:,.4g}")
            for name, label in SHOWN
            if row.get(name) is not None
        ]
        memory = self.psutil.virtual_memory()
        cells += [
            ("processor load", f"{self.psutil.cpu_percent():.0f}%"),
            ("memory used", f"{memory.percent:.0f}%"),
            ("episodes", f"{row['sample/episodes']:,}"),
        ]
        half = -(-len(cells) // 2)
        for index in range(half):
            pair = [*cells[index], *(cells[half + index] if half + index < len(cells) else ("", ""))]
            grid.add_row(*pair)
        return Group(title, counts, bar, grid)

    def close(self, status: str, summary: dict[str, Any]) -> None:
        self.live.stop()


def console(end: End, title: str, window: int) -> Lines | Live:
    """The logger that suits standard output: a live view on a terminal, plain lines elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console as RichConsole

        if RichConsole().is_terminal and not RichConsole().is_dumb_terminal:
            return Live(end, title, window)
    return Lines(end)
