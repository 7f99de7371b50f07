"""Plain lines, one per log row."""

from __future__ import annotations

import sys
from typing import Any


def duration(seconds: float) -> str:
    """1h02m, 3m05s, 12s."""
    seconds = int(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"


class Console:
    def __init__(self, total: int):
        self.total = total

    def log(self, row: dict[str, Any]) -> None:
        rate = row["sample/env_steps_per_sec"] or 0.0
        parts = [f"{row['env_steps']:>11,}/{self.total:,} steps", f"{rate:>7,.0f}/s"]
        if row["sample/return_mean"] is None:
            parts.append("no finished episode yet")
        else:
            parts.append(f"return {row['sample/return_mean']:.2f} ({row['sample/episodes']} episodes)")
        for name, label in (("eval/return_mean", "eval"), ("learn/entropy", "entropy"), ("sample/policy_lag", "lag")):
            if row.get(name) is not None:
                parts.append(f"{label} {row[name]:.2f}")
        parts.append(duration(row["time_sec"]))
        if rate > 0 and row["env_steps"] < self.total:
            parts.append(f"left {duration((self.total - row['env_steps']) / rate)}")
        print("  ".join(parts), flush=True)

    def close(self, status: str, summary: dict[str, Any]) -> None:
        sys.stdout.flush()
