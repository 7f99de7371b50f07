"""The cores and the GPUs of this machine, shared among jobs."""

from __future__ import annotations

import itertools
import os
from typing import NamedTuple

from rlrun.core.errors import UserError
from rlrun.machine.machine import cores, free_memory, pinned


class Place(NamedTuple):
    """The cores and the GPU on which one job runs at a time."""

    cores: tuple[int, ...]
    gpu: str | None  # the job's CUDA_VISIBLE_DEVICES; None leaves that variable as it is
    # How many of these cores the job may use, where other jobs run on the same ones. None: all.
    share: int | None = None
    beside: int = 1  # number of jobs on the same GPU, this one included
    memory: int | None = None  # bytes of main memory that are the job's part; None: all that are free


def gpus() -> list[str]:
    """The visible GPUs, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # A negative number hides itself and all that follow it (CUDA's programming guide).
        return list(itertools.takewhile(lambda name: not name.startswith("-"), filter(None, visible.split(","))))
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def places(jobs: int | None, own: list[int] | None = None, devices: list[str] | None = None) -> list[Place]:
    """Places for this number of jobs, which share the cores and the GPUs evenly.

    None makes one place for each GPU, or one for every two cores where there is no GPU. UserError for less than one.
    """
    total, fixed = (cores(), pinned()) if own is None else (len(own), True)
    own = sorted(os.sched_getaffinity(0)) if own is None else own
    devices = gpus() if devices is None else devices
    count = jobs if jobs is not None else len(devices) or max(1, total // 2)
    if count < 1:
        raise UserError("--jobs must be at least 1")
    made, memory = [], free_memory() // count
    for index in range(count):
        first, last = index * total // count, (index + 1) * total // count
        gpu = devices[index % len(devices)] if devices else None
        beside = len(range(index % len(devices), count, len(devices))) if devices else 1
        if fixed:  # with more jobs than cores, some share a core
            made.append(Place(tuple(own[first:last]) or (own[first],), gpu, beside=beside, memory=memory))
        else:
            made.append(Place(tuple(own), gpu, max(1, last - first), beside, memory))
    return made
