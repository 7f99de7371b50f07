"""Cores of a machine that one process takes for itself among others that do the same, as jobs of a cluster do.

Each core has a lock file, which the system frees when the process that holds it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path


class OwnCores:
    """Holds cores of this machine until close(), or until its process ends."""

    def __init__(self, count: int, folder: Path | None = None, among: set[int] | None = None):
        """count: cores to take. folder: of the lock files; None: one of this user's. among: cores to choose from; None:
        those that this process may use. Where too few are free, it shares some with others."""
        there = sorted(os.sched_getaffinity(0) if among is None else among)
        folder = folder or Path(tempfile.gettempdir()) / f"rlrun-cores-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        self.files: list[int] = []
        taken: list[int] = []
        for core in there:
            if len(taken) == count:
                break
            file = os.open(folder / str(core), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                continue
            self.files.append(file)
            taken.append(core)
        others = [core for core in there if core not in taken]
        self.cores = {*taken, *others[: count - len(taken)]}

    def close(self) -> None:
        for file in self.files:
            os.close(file)
        self.files = []
