"""Makes and locks the directory of a run, and collects the facts that describe a run."""

from __future__ import annotations

import errno
import json
import platform
import shlex
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rlrun.core.checkpoint import Checkpoints, write_atomically
from rlrun.core.errors import UserError
from rlrun.core.passwords import masked
from rlrun.core.run_lock import Held, RunLock, held
from rlrun.core.saved_files import read_summary
from rlrun.machine.processor import processor

FULL = (errno.ENOSPC, errno.EDQUOT)
SILENT = "its process ended without a word: it was killed, or something that it called crashed or ended it"


class RunDir:
    """A directory with config.yaml, progress.jsonl, summary.json, checkpoints/ and TensorBoard events.

    One process at a time holds it (flock).
    """

    def __init__(self, path: Path):
        self.path = path
        self.lock = RunLock(path)

    @staticmethod
    def create(path: Path) -> RunDir:
        """Makes a directory, or takes one without a run, and locks it. Raises UserError when it holds a run, is in use
        or cannot be written."""
        made = RunDir(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the run directory {path} cannot be made: {error.strerror}") from None
        made.acquire()
        if (path / "config.yaml").exists() or (path / "progress.jsonl").exists():
            made.release()
            saved = any((path / "checkpoints").glob("[0-9]*"))
            way = (
                f"rlrun resume {shlex.quote(str(path))}"
                if saved
                else "it ended before its first checkpoint, so remove it"
            )
            raise UserError(f"{path} already holds a run: {way}, or choose another run_dir")
        return made

    @staticmethod
    def new(root: str, algo: str, env: str, seed: int) -> RunDir:
        """Makes and locks a directory below `root` for a run that names none, called after the date and time. Raises
        UserError when it cannot be made."""
        path = Path(root) / slug(algo) / slug(env) / f"{datetime.now():%Y%m%d-%H%M%S}-seed{seed}"
        try:
            return RunDir.create(new_folder(path))
        except OSError as error:
            raise UserError(f"the run directory {path} cannot be made: {error.strerror}") from None

    def acquire(self) -> None:
        """Takes the lock. Raises UserError if another process holds it or the directory cannot be used."""
        try:
            self.lock.acquire()
        except Held as error:
            raise UserError(
                f"{self.path} is in use by {error}; wait until that ends, or let it save and end with Ctrl-C in its"
                " terminal, or with kill and its number"
            ) from None
        except OSError as error:
            raise UserError(f"the run directory {self.path} cannot be used: {error.strerror}") from None

    def release(self) -> None:
        self.lock.release()

    @property
    def known(self) -> dict[str, Any]:
        """The contents of summary.json; empty if it is missing, cannot be read or holds something else. A run that is
        called RUNNING although no process holds its directory has FAILED."""
        found = read_summary(self.path / "summary.json")
        if found.get("status") == "RUNNING" and (self.lock.file is not None or not held(self.path)):
            found |= {"status": "FAILED", "reason": SILENT}
        return found

    def summary(self, **values: Any) -> dict[str, Any]:
        """Writes summary.json and returns it. On a disk that is full, it is written over the old one."""
        text = json.dumps(values, indent=1) + "\n"
        try:
            write_atomically(self.path / "summary.json", text)
        except OSError as error:
            if error.errno not in FULL or not _overwrite(self.path / "summary.json", text):
                raise
        return values


def _overwrite(path: Path, text: str) -> bool:
    """Writes a text into the space that a file already has. Returns whether it fitted."""
    data = text.encode()
    try:
        with path.open("r+b", buffering=0) as file:
            # A file's last block is its own to the end, so that a little more than its size fits as well.
            if file.write(data) == len(data):
                file.truncate()
                return True
    except OSError:
        pass
    return False


def slug(name: str) -> str:
    """Makes one folder's name of the name of an algorithm or environment."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "_"


def new_folder(path: Path) -> Path:
    """Makes a folder that nobody has, and returns it: this one or, if it is there already, one with a number added.
    What begins at the same time gets another one, because the first to make a folder has it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made, number = path, 1
    while True:
        try:
            made.mkdir()
            return made
        except FileExistsError:
            number += 1
            made = path.with_name(f"{path.name}-{number}")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("rlrun", "torch", "gymnasium", "ale-py", "numpy", "hydra-core"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    from rlrun.machine.machine import cores

    cpu = processor().get("model name") or platform.processor() or platform.machine()
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return {"cpu": cpu, "cores": cores(), "gpus": gpus}


def git_commit() -> str | None:
    """Returns the commit of the checkout that rlrun runs from; None without a checkout.

    It ends with `+` if a tracked file has changes, or if rlrun's own sources (rlrun/, conf/, tuned/*.yaml) have a file
    that git does not track. Pictures and notes that lie about change nothing that is run."""
    here = Path(__file__).resolve().parents[2]
    if not (here / "conf" / "train.yaml").is_file():  # installed, perhaps inside of somebody else's repository
        return None
    try:
        commit = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(here), "status", "--porcelain", "--untracked-files=all"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.splitlines()
        return commit + ("+" if any(_counts(line) for line in changed) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _counts(line: str) -> bool:
    """Whether a line of `git status --porcelain` changes what is run."""
    state, file = line[:2], line[3:].strip('"')
    sources = file.startswith(("rlrun/", "conf/", "tuned/")) and file.endswith((".py", ".yaml"))
    return state != "??" or sources


def command_line() -> str:
    """Returns the command that the user typed, beginning with rlrun and without passwords.

    (sys.argv is rewritten for Hydra.)"""
    words = sys.orig_argv[1:]
    while words and not words[0].isalpha():  # the path of the script, or -m
        words = words[1:]
    return masked(shlex.join(["rlrun", *(words[1:] if words[:1] == ["rlrun"] else words)]))


def started_at() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def checkpoints_of(run_dir: Path, keep: int = 3) -> Checkpoints:
    return Checkpoints(run_dir / "checkpoints", keep)
