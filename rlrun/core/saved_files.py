"""Reads what a run has written about itself, when somebody else may have changed it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.core.errors import UserError

NUMBER = (int, float, type(None))
# Entries of summary.json that are computed with, and what they are.
SUMMARY: dict[str, Any] = {
    "status": str,
    "command": str,
    "started": str,
    "git_commit": (str, type(None)),
    "reason": (str, type(None)),
    "algo": str,
    "env": str,
    "versions": dict,
    "hardware": dict,
    "resources": list,
    "resumed_by": list,
    "sessions": list,
    "generation": int,
    **dict.fromkeys(("env_steps", "updates", "wall_sec", "return_mean", "episodes", "seed"), NUMBER),
    **dict.fromkeys(("eval_return_mean", "best_return_mean"), NUMBER),
}
OWN_COLUMNS = {"env_steps", "updates", "time_sec", "sample/return_mean", "eval/return_mean"}
# Options without which a config.yaml is none of a run.
GROUPS = ("algo", "env", "runner", "model", "resources")


def read_summary(path: Path) -> dict[str, Any]:
    """What a summary.json says. Entries of another type than rlrun writes are left out; it is empty where there is no
    file, or none that rlrun could have written."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    kept = {key: value for key, value in found.items() if isinstance(value, SUMMARY.get(key, object))}
    parts = [
        one.get(name) for one in kept.get("sessions", ()) if isinstance(one, dict) for name in ("versions", "hardware")
    ]
    if len(parts) != 2 * len(kept.get("sessions", ())) or not all(isinstance(part, dict) for part in parts):
        del kept["sessions"]
    return kept


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All complete rows of a progress.jsonl; the last line of a killed run may be incomplete and is left out.

    Raises UserError where rlrun cannot have written the file, and OSError where it cannot be read."""
    rows = []
    try:
        with path.open() as file:
            for number, line in enumerate(file, 1):
                if (row := _checked(line, f"{path}, line {number}")) is not None:
                    rows.append(row)
    except UnicodeDecodeError:
        raise UserError(f"{path} holds no text, and therefore no rows of a run") from None
    return rows


def _checked(line: str, place: str) -> dict[str, Any] | None:
    """A row without what a callback may have put there that is no number, or None for a line that holds no row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or "env_steps" not in row:
        return None
    for key in ("env_steps", "time_sec"):
        if isinstance(row.get(key), float) and not math.isfinite(row[key]):
            raise UserError(f"{place}: {key} is {row[key]}, and it must be a finite number")
    for key in OWN_COLUMNS & row.keys():
        if not isinstance(row[key], NUMBER):
            raise UserError(f"{place}: {key} is {str(row[key])[:60]!r}, and it must be a number")
    if row["env_steps"] is None:
        return None
    # What a callback has written may be anything, and nothing here computes with it.
    return {key: value for key, value in row.items() if not isinstance(value, dict | list)}


def check_run_config(values: Mapping[str, Any], path: Path) -> None:
    """Raises UserError where the contents of a config.yaml are not the options of a run."""
    for group in GROUPS:
        if not isinstance(values.get(group), Mapping):
            raise UserError(
                f"{path} is not the config of a run: {'it is empty' if not values else f'it has no {group}'}"
            )
    for group in ("algo", "env", "runner"):
        if not isinstance(values[group].get("name"), str):
            raise UserError(f"{path} is not the config of a run: {group} has no name")
    if not isinstance(values.get("seed"), int):
        raise UserError(f"{path} is not the config of a run: it has no seed")


def no_run(path: Path) -> str:
    """Says why a folder without a config.yaml is no run directory, and which one may be meant."""
    if not path.exists():
        return f"there is no folder {path}"
    run = path.absolute().parent.parent
    if path.absolute().parent.name == "checkpoints" and (run / "config.yaml").exists():
        steps = path.name.removeprefix("best-").lstrip("0") or "0"
        return f"{path} is a checkpoint: name its run, and the checkpoint beside it, as in {run} checkpoint={steps}"
    inside = itertools.chain(*(path.glob(f"{'*/' * depth}config.yaml") for depth in (1, 2, 3)))
    runs = (file for file in inside if (file.parent / "progress.jsonl").exists())
    below = max(runs, key=lambda file: file.stat().st_mtime, default=None)
    meant = f"; a run below it is {below.parent}" if below is not None else ""
    if (path / "sweep.json").is_file():
        named = f": name a run in it, such as {below.parent}" if below is not None else ""
        return f"{path} is a sweep, not a run directory{named} (rlrun sweep --resume goes on with a sweep)"
    return f"{path} is not a run directory: it has no config.yaml{meant}"
