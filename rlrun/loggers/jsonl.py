"""progress.jsonl, the primary record of a run: one JSON object per line, written at once by the run's own thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlrun.core.saved_files import read_rows


class Jsonl:
    def __init__(self, path: Path, resume_at: int | None):
        """resume_at: env steps of the restored checkpoint. Later rows are dropped: the run repeats those steps."""
        if resume_at is not None and path.exists():
            rows = [(_steps(line), line) for line in path.read_text(errors="replace").splitlines()]
            path.write_text("".join(line + "\n" for steps, line in rows if steps is not None and steps <= resume_at))
        self.file = path.open("a", buffering=1)

    def log(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(row) + "\n")

    def close(self, status: str, summary: dict[str, Any]) -> None:
        self.file.close()


def _steps(line: str) -> float | None:
    try:
        steps = json.loads(line)["env_steps"]
        return steps if isinstance(steps, int | float) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # the incomplete last line of a killed run


def read(path: Path) -> list[dict[str, Any]]:
    """All complete rows of a progress.jsonl. Raises UserError where rlrun cannot have written it."""
    return read_rows(path)
