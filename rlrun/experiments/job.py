"""python -m rlrun.experiments.job WORDS runs `rlrun WORDS` in a process that saves and ends when its parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from rlrun.experiments.job_parent import PARENT


def end_with_parent() -> None:
    """Asks Linux to send SIGTERM to this process when its parent ends. A run answers SIGTERM with a checkpoint."""
    # Who starts a job says which process that is, because it may have ended before this line.
    parent = int(os.environ.pop(PARENT, os.getppid()))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent ended before the call above
            sys.exit(143)


if __name__ == "__main__":
    end_with_parent()
    from rlrun.cli import main

    main()
