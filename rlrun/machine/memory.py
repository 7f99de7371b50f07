"""What glibc does with freed memory."""

from __future__ import annotations

import ctypes
import sys

LARGEST = 2**25  # bytes from which on a block has pages of its own; no more is allowed (mallopt(3))
KEPT = 2**29  # bytes of freed memory that a process keeps before any goes back
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1


def keep_freed() -> None:
    """Tensors of some megabytes are made and freed at every update. Given back to the system each time, their pages are zeroed and mapped anew each time:
    a quarter of an update of DQN with two learners, on two cores of a virtual machine. Does nothing without glibc."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST)
    mallopt(M_TRIM_THRESHOLD, KEPT)
