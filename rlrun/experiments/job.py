"""python -m rlrun.experiments.job WORDS: `rlrun WORDS` in a process that ends with the one that started it, and saves first."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def end_with_parent() -> None:
    """SIGTERM, which a run answers with a checkpoint, when the process that started this one is gone."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it was quicker
            sys.exit(143)


if __name__ == "__main__":
    end_with_parent()
    from rlrun.cli import main

    main()
