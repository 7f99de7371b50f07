"""Files of recordings that are not finished: who writes them, and which of them nobody will finish.

A writer holds a lock (flock) on its open file, which ends with its process. What nobody holds was left by a process
that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

HIDDEN = ".unfinished"  # ends the names of such files, which begin with a dot
# Seconds for which nobody has written to a file that was left. A writer finishes its file every five minutes
# (FILE_SEC in parquet_writer.py), and where locks do not reach other machines, one of theirs may still write. Nor is a
# file removed that was just made and is not locked yet.
LEFT_SEC = 600.0


def begin(path: Path) -> int:
    """Makes an unfinished file, and returns the descriptor that holds it until it is closed."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def left(folder: Path) -> list[Path]:
    """The unfinished files of this user in a folder that no process writes any more."""
    return sorted(path for path in folder.glob(f".part-*{HIDDEN}") if _is_left(path))


def _is_left(path: Path) -> bool:
    try:
        found = path.lstat()
        if path.is_symlink() or found.st_uid != os.getuid() or time.time() - found.st_mtime < LEFT_SEC:
            return False
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a process holds it, or there are no locks here and nobody knows
        return False
    return True


def remove_left(folder: Path) -> None:
    """Removes these files. What cannot be removed stays."""
    for path in left(folder):
        with contextlib.suppress(OSError):
            path.unlink()
