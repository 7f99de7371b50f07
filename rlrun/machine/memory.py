"""Makes glibc keep freed memory."""

from __future__ import annotations

import ctypes
import sys

LARGEST = 2**25  # bytes from which a block gets its own pages; the largest value that mallopt(3) allows
KEPT = 2**29  # bytes of freed memory that a process keeps before it returns any
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


def keep_freed() -> None:
    """Makes glibc keep freed memory instead of returning it to the system. Does nothing without glibc.

    Every update makes and frees tensors of several megabytes. If they are returned, the system zeroes and maps their
    pages again each time, which took a quarter of a DQN update with two learners on two cores of a virtual machine.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST)
    mallopt(M_TRIM_THRESHOLD, KEPT)
