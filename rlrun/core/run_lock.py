"""The lock of a run directory: one process at a time holds it, and it ends with the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import time
from pathlib import Path
from typing import IO

NAME = "run.lock"
# Whoever asks whether a run is in use holds its lock for a moment, which must not turn a process away that starts it.
PATIENCE_SEC = 0.5
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)  # of a file system


class Held(Exception):
    """Another process holds the lock. The message names it."""


class RunLock:
    """run.lock in a directory, locked by flock.

    The file is removed when the lock is released, so a process may lock a file that is no longer in the directory while
    another one locks its successor. A lock therefore counts only if the locked file is the one that the directory
    names."""

    def __init__(self, directory: Path):
        self.path = directory / NAME
        self.file: IO[str] | None = None

    def acquire(self, patience_sec: float = PATIENCE_SEC) -> None:
        """Takes the lock. Raises Held if another process keeps it for patience_sec, and OSError if the file cannot be
        made or its file system has no locks."""
        end = time.monotonic() + patience_sec
        while True:
            file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+")
            try:
                if self._taken(file):
                    self.file = file
                    with contextlib.suppress(OSError):  # a full disk; the lock holds without the name of its holder
                        os.ftruncate(file.fileno(), 0)
                        os.write(file.fileno(), this_process().encode())
                    return
                file.seek(0)
                holder = file.read(200).strip()
            finally:
                if self.file is not file:
                    file.close()
            if time.monotonic() > end:
                raise Held(holder or "another process")
            time.sleep(0.01)

    def _taken(self, file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # another process has it; over NFS, the latter says so
            return False
        except OSError as error:
            raise OSError(error.errno, f"its file system has no locks (flock: {error.strerror})") from None
        return self._named(file)

    def _named(self, file: IO[str]) -> bool:
        """Whether the directory's run.lock is this open file."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(file.fileno()))

    def release(self) -> None:
        """Removes the file and lets go of the lock, if this holds it."""
        if self.file is None:
            return
        if self._named(self.file):
            self.path.unlink(missing_ok=True)
        self.file.close()
        self.file = None


def this_process() -> str:
    """What the locks of this process say about it. In containers, many processes have the same number."""
    return f"process {os.getpid()} on {platform.node()}"


def holder(directory: Path) -> str:
    """What a lock says about the process that holds it."""
    try:
        return (directory / NAME).read_text()[:200].strip() or "another process"
    except (OSError, ValueError):
        return "another process"


def held(directory: Path) -> bool:
    """Whether a process holds the lock of a directory."""
    try:
        with (directory / NAME).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno not in NO_LOCKS
    return False
