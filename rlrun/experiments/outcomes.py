"""A job, what became of it, and what its run's directory says about that."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.core.errors import UserError
from rlrun.core.run_lock import held
from rlrun.core.saved_files import check_run_config, read_summary

DONE = ("COMPLETED", "STOPPED")  # the statuses of a run that has nothing left to do
TAIL_BYTES = 16384  # of progress.jsonl that are read first to find its last row
LOST = 255  # the exit code of a job that a queue has ended, or whose machine was lost; no job of rlrun's has it


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    name: str
    words: tuple[str, ...]  # the words for `rlrun train`, without run_dir
    run_dir: Path
    log: Path
    resume: tuple[str, ...] = ()  # the words for `rlrun resume`, where the run has a checkpoint
    trusted: bool = False  # whether its config may name modules that no installed package contains (--trust)


@dataclass(kw_only=True)
class Outcome:
    """A job and what became of it."""

    job: TrainingJob
    # WAITING, then RUNNING, then the status in its summary: COMPLETED, STOPPED, INTERRUPTED or FAILED. A job that the
    # supply ended is PRUNED.
    status: str = "WAITING"
    reason: str = ""
    row: dict[str, Any] = field(default_factory=dict)  # the last row of progress.jsonl
    evaluated: float | None = None  # the mean return of the last evaluation that a row told of
    summary: dict[str, Any] = field(default_factory=dict)
    lost: bool = False  # whether it failed through no fault of its own, as when its machine or its queue did

    @property
    def return_mean(self) -> float | None:
        """The mean return of training or, where nothing is played, as with runner=offline, of the last evaluation."""
        played = self.summary.get("return_mean", self.row.get("sample/return_mean"))
        return self.summary.get("eval_return_mean", self.evaluated) if played is None else played

    @property
    def env_steps(self) -> int:
        return self.summary.get("env_steps", self.row.get("env_steps", 0))

    @property
    def wall_sec(self) -> float:
        return self.summary.get("wall_sec", self.row.get("time_sec", 0.0))


def known(job: TrainingJob) -> Outcome:
    """The outcome that an earlier session left of a job. Its status is WAITING where the job is not done."""
    outcome = Outcome(job=job, row=last_row(job.run_dir) or {})
    if job.run_dir.exists():
        settle(outcome, None)
        outcome.status = outcome.status if outcome.status in DONE else "WAITING"
    return outcome


def holds_run(folder: Path) -> bool:
    """Whether a folder has the config.yaml or the summary.json of a run."""
    if {"status", "algo", "env", "seed"} <= summary_of(folder).keys():
        return True
    from rlrun.config.types import load_yaml

    path = folder / "config.yaml"
    try:
        check_run_config(load_yaml(path), path)
    except (OSError, UserError):
        return False
    return True


def checkpoints(run_dir: Path) -> list[str]:
    """The names of a run's checkpoints, oldest first."""
    return sorted(path.name for path in (run_dir / "checkpoints").glob("[0-9]*") if path.is_dir())


def summary_of(run_dir: Path) -> dict[str, Any]:
    """The contents of summary.json; empty where there is no readable one."""
    return read_summary(run_dir / "summary.json")


def version(run_dir: Path) -> tuple[int, int] | None:
    """The time and inode of summary.json, which each session writes anew; None where there is no summary."""
    try:
        found = (run_dir / "summary.json").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def settle(outcome: Outcome, code: int | None, before: tuple[int, int] | None = None) -> None:
    """Sets an outcome's status and reason from the run's summary and its process's exit code.

    code: None for a job of an earlier session. before: the version of the summary that was there when the job began; a
    summary of that version says nothing about this session and is ignored.
    """
    found = summary_of(outcome.job.run_dir) if before is None or version(outcome.job.run_dir) != before else {}
    outcome.status, outcome.reason = (
        found.get("status", "FAILED"),
        str(found.get("reason") or "").strip().split("\n")[-1],
    )
    if outcome.status == "RUNNING" and code == 0 and held(outcome.job.run_dir):
        outcome.status, outcome.reason = "COMPLETED", "another process has resumed the run since"
        return
    if outcome.status == "RUNNING":  # the process died before it could write how it ended
        outcome.status = "FAILED"
    elif found:
        outcome.summary = found
    if code is None:
        return
    if code < 0:
        outcome.status, outcome.reason = "FAILED", f"killed by {signal.Signals(-code).name}"
    elif code not in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP):
        outcome.status, outcome.reason = "FAILED", outcome.reason or last_line(outcome.job.log)
    elif outcome.status == "FAILED" and not outcome.reason:
        outcome.reason = last_line(outcome.job.log)


def last_row(run_dir: Path) -> dict[str, Any] | None:
    """The last whole row of progress.jsonl, read from the end of the file; None where there is none."""
    try:
        with (run_dir / "progress.jsonl").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            length = TAIL_BYTES
            while True:
                begin = file.seek(max(0, size - length))
                lines = file.read(size - begin).split(b"\n")
                # The first line may have lost its beginning.
                if (row := _last_of(lines if begin == 0 else lines[1:])) is not None or begin == 0:
                    return row
                length *= 4  # rows of very many numbers are longer
    except OSError:
        return None


def _last_of(lines: list[bytes]) -> dict[str, Any] | None:
    """The last line that is a row."""
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            return row
    return None


def last_line(path: Path) -> str:
    """The last line of a log; empty where there is none."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("rlrun: ") if lines else ""
