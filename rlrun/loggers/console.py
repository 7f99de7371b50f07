"""The console logger: a live view with rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

SHOWN = (
    ("sample/return_mean", "return, last 100"),
    ("sample/return_max", "best return of these"),
    ("sample/episode_length_mean", "episode length"),
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
)


def duration(seconds: float) -> str:
    """A duration as text, such as 1h02m, 3m05s or 12s."""
    seconds = int(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


def left(row: dict[str, Any], total: int) -> str:
    rate = row["sample/env_steps_per_sec"] or 0.0
    return duration((total - row["env_steps"]) / rate) if rate > 0 and row["env_steps"] < total else ""


class Lines:
    """Prints one line for each row."""

    def __init__(self, total: int):
        self.total = total

    def log(self, row: dict[str, Any]) -> None:
        ahead = f" (+{row['sample/ahead']:,.0f})" if row.get("sample/ahead") else ""
        parts = [
            f"{row['env_steps']:>11,}{ahead}/{self.total:,} steps",
            f"{row['sample/env_steps_per_sec'] or 0:>7,.0f}/s",
        ]
        if row["sample/return_mean"] is None:
            parts.append("no finished episode yet")
        else:
            parts.append(f"return {row['sample/return_mean']:.2f} ({row['sample/episodes']} episodes)")
        for name, label in (("eval/return_mean", "eval"), ("learn/entropy", "entropy"), ("sample/policy_lag", "lag")):
            if row.get(name) is not None:
                parts.append(f"{label} {row[name]:.2f}")
        parts.append(duration(row["time_sec"]))
        if left(row, self.total):
            parts.append(f"left {left(row, self.total)}")
        print("  ".join(parts), flush=True)

    def close(self, status: str, summary: dict[str, Any]) -> None:
        sys.stdout.flush()


class Live:
    """A table that is updated in place, with a progress bar, the time left and the machine's load."""

    def __init__(self, total: int, title: str):
        import psutil
        from rich.console import Console as RichConsole
        from rich.live import Live as RichLive

        self.total, self.title, self.psutil = total, title, psutil
        psutil.cpu_percent()
        self.last: dict[str, Any] = {}
        self.live = RichLive(console=RichConsole(), refresh_per_second=2, transient=False)
        self.live.start()

    def log(self, row: dict[str, Any]) -> None:
        self.last.update({name: value for name, value in row.items() if value is not None})
        self.live.update(self._table({**row, **self.last}))

    def _table(self, row: dict[str, Any]):
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = (
            f"{self.title}   {row['env_steps']:,} of {self.total:,} env steps  "
            f" {row['sample/env_steps_per_sec'] or 0:,.0f}/s   {duration(row['time_sec'])}"
        )
        if left(row, self.total):
            head += f"   {left(row, self.total)} left"
        grid = Table.grid(padding=(0, 2))
        cells = [(label, f"{row[name]:,.4g}") for name, label in SHOWN if row.get(name) is not None]
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
        return Group(
            Text(head, style="bold"), ProgressBar(total=self.total, completed=min(row["env_steps"], self.total)), grid
        )

    def close(self, status: str, summary: dict[str, Any]) -> None:
        self.live.stop()


def console(total: int, title: str) -> Lines | Live:
    """The logger that suits standard output: a live view on a terminal, plain lines elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console as RichConsole

        if RichConsole().is_terminal and not RichConsole().is_dumb_terminal:
            return Live(total, title)
    return Lines(total)
