"""Ends what is left of a Ray that a process has started, when that process was killed.

Ray's helpers notice the death of their parents late, some of them after minutes, and its folder stays for ever. The
reaper is a small process that waits for the end of the one that has started it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_SEC = 3.0  # in which most of Ray ends by itself
DONE = b"done\n"


class Reaper:
    """Looks after the Ray whose logs lie in a folder."""

    def __init__(self, folder: Path):
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )

    def close(self) -> None:
        """Ends the reaper, because Ray was shut down."""
        with contextlib.suppress(OSError):
            self.process.communicate(DONE, timeout=10.0)


def users(folder: str) -> list[int]:
    """The processes of this user that have files open below the folder, as all of Ray's have: their logs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.getuid() and any(
                os.readlink(file).startswith(f"{folder}/") for file in (process / "fd").iterdir()
            ):
                found.append(int(process.name))
    return found


def main() -> None:
    folder = sys.argv[1]
    if sys.stdin.buffer.read() == DONE:
        return
    time.sleep(GRACE_SEC)
    for _ in range(10):  # what is killed may have begun another one
        left = users(folder)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
