"""What runs leave behind when their process is killed: a status RUNNING, a lock, half-written saves, shared memory.

Only what belongs to this user and to no living process counts. A run's directory is looked at without its lock, and
changed only under it, so that a run that begins or goes on meanwhile is left alone."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.types import load_yaml
from rlrun.core.checkpoint import Checkpoints, write_temporaries
from rlrun.core.errors import UserError
from rlrun.core.run_lock import NAME, Held, RunLock, held, holder
from rlrun.core.saved_files import read_summary
from rlrun.datasets import unfinished
from rlrun.runtime.rundir import RunDir

SHARED = Path("/dev/shm")
RANKS = re.compile(r"rlrun-ranks-(\d+)-\w+")  # of runs before 2026-11-26, which left them when they were killed
# Folders of runs in which there are no runs.
INSIDE = {"checkpoints", "videos", "left_behind", "mlartifacts", "data", "imagined"}
KILLED = "its process ended without saying why, as when it is killed; rlrun doctor --clean has found it"


@dataclass(frozen=True)
class LeftOver:
    """What a run without a process has left in its directory."""

    run_dir: Path
    running: bool  # whether summary.json says that it runs
    locked: bool  # whether run.lock is still there
    saves: tuple[Path, ...]  # half-written files and checkpoints

    def __bool__(self) -> bool:
        return self.running or self.locked or bool(self.saves)


def run_dirs(root: Path) -> Iterator[Path]:
    """The directories below root that hold a run of this user. Links to folders are not followed."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if "config.yaml" in files and ("summary.json" in files or NAME in files):
            names[:] = [name for name in names if name not in INSIDE]
            if own(Path(folder)):
                yield Path(folder)


def own(path: Path) -> bool:
    """Whether a file or folder belongs to this user."""
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:
        return False


def left_by(run_dir: Path) -> LeftOver:
    """What is left in one directory; nothing where a process holds it, here or on the machine that its lock names."""
    nothing = LeftOver(run_dir, False, False, ())
    if held(run_dir):
        return nothing
    if _elsewhere(run_dir):
        return nothing
    locked, running = (run_dir / NAME).exists(), _says_running(run_dir)
    found = LeftOver(run_dir, running, locked, tuple(temporaries(run_dir)))
    return nothing if held(run_dir) else found


def unseen(run_dir: Path) -> str | None:
    """Names the process of a run that is marked RUNNING, where it is on a machine whose locks this one may not see."""
    return holder(run_dir) if _says_running(run_dir) and _elsewhere(run_dir) and not held(run_dir) else None


def _elsewhere(run_dir: Path) -> bool:
    """Whether a run's lock names another machine."""
    return (run_dir / NAME).exists() and not holder(run_dir).endswith(("another process", f" on {platform.node()}"))


def _says_running(run_dir: Path) -> bool:
    return read_summary(run_dir / "summary.json").get("status") == "RUNNING"


def temporaries(run_dir: Path) -> list[Path]:
    """Half-written files of a run, and half-written checkpoints."""
    return [*write_temporaries(run_dir), *Checkpoints(run_dir / "checkpoints", keep=1).unfinished()]


def clean(left: LeftOver) -> bool:
    """Removes what is left of a run and says FAILED in its summary. Returns whether it did: False where a process has
    taken the run since. What a killed save had moved aside is put back."""
    lock = RunLock(left.run_dir)
    try:
        lock.acquire(patience_sec=0.0)
    except (Held, OSError):
        return False
    try:
        tidy(left.run_dir)
        known = read_summary(left.run_dir / "summary.json")
        if known.get("status") == "RUNNING":
            RunDir(left.run_dir).summary(**{**known, "status": "FAILED", "reason": KILLED})
    finally:
        lock.release()
    return True


def tidy(run_dir: Path) -> list[str]:
    """Removes half-written files and checkpoints of a run whose lock the caller holds. Returns their names."""
    gone = []
    for path in write_temporaries(run_dir):
        path.unlink(missing_ok=True)
        gone.append(path.name)
    return gone + Checkpoints(run_dir / "checkpoints", keep=1).tidy()


def move_aside(run_dir: Path) -> Path | None:
    """Renames the directory of a run that ended before its first checkpoint, so that the run can begin anew there.

    Returns its new name, or None where it is left as it is: it holds no run or a checkpoint, or a process holds it."""
    made = any((run_dir / name).is_file() for name in ("config.yaml", "progress.jsonl"))
    if not made or any((run_dir / "checkpoints").glob("[0-9]*")) or held(run_dir):
        return None
    names = (run_dir.with_name(f"{run_dir.name}.ended-{number}") for number in itertools.count(1))
    return run_dir.rename(next(name for name in names if not name.exists()))


def begin_anew(run_dir: str) -> None:
    """Does this for scripts/slurm/train.sbatch, and says it."""
    aside = move_aside(Path(run_dir))
    if aside is not None:
        print(f"{run_dir} held a run that ended before its first checkpoint; it is now {aside}", flush=True)


def recordings(root: Path) -> dict[Path, list[Path]]:
    """Folders into which runs below root have recorded, and files there that were not finished and that no process
    writes any more."""
    folders = {Path(str(record)) for run_dir in run_dirs(root) if (record := _record(run_dir)) is not None}
    return {folder: files for folder in sorted(folders) if (files := unfinished.left(folder))}


def _record(run_dir: Path) -> str | None:
    try:
        return load_yaml(run_dir / "config.yaml").get("record")
    except (OSError, UserError, AttributeError):
        return None


def remove_recordings(folder: Path) -> bool:
    """Removes such files from a folder of data. Returns whether all of them are gone."""
    unfinished.remove_left(folder)
    return not unfinished.left(folder)


def shared_memory(folder: Path = SHARED) -> list[Path]:
    """Folders of rlrun in /dev/shm that belong to this user and whose process is gone."""
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        made = RANKS.fullmatch(path.name)
        if made and own(path) and not path.is_symlink() and not alive(int(made[1])):
            found.append(path)
    return found


def alive(pid: int) -> bool:
    """Whether there is a process with this number, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def remove(path: Path) -> None:
    """Removes a folder of shared memory."""
    shutil.rmtree(path, ignore_errors=True)
