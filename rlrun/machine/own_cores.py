"""Cores of a machine that one process takes for itself among others that do the same, as jobs of a cluster do.

Each core has a lock file, which the system frees when the process that holds it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from rlrun.core.errors import UserError


class OwnCores:
    """Holds cores of this machine until close(), or until its process ends."""

    def __init__(self, count: int, folder: Path | None = None, among: set[int] | None = None):
        """count: cores to take. folder: of the lock files; None: one of this user's. among: cores to choose from; None:
        those that this process may use. Where too few are free, it shares some with others. Raises UserError if
        somebody else could put files into the folder."""
        there = sorted(os.sched_getaffinity(0) if among is None else among)
        folder = folder or Path(tempfile.gettempdir()) / f"rlrun-cores-{os.getuid()}"
        at = _private(folder)
        self.files: list[int] = []
        taken: list[int] = []
        for core in there:
            if len(taken) == count:
                break
            file = os.open(str(core), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=at)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                continue
            self.files.append(file)
            taken.append(core)
        os.close(at)
        others = [core for core in there if core not in taken]
        self.cores = {*taken, *others[: count - len(taken)]}

    def close(self) -> None:
        for file in self.files:
            os.close(file)
        self.files = []


def _private(folder: Path) -> int:
    """Opens a folder that this user alone may use, and makes it if it is not there. Its name is known to all users of
    the machine, and any of them could have made it, or a link of this name."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise UserError(f"{folder} is no folder, and locks of cores would be there: remove it") from None
    found = os.fstat(at)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        os.close(at)
        raise UserError(f"{folder} can be used by others, and locks of cores would be there: remove it")
    return at
