"""Machine: what this machine has, measured once, so that what is decided from it is a function of values."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from rlrun.core.env import EnvFactory
from rlrun.core.pulse import STEP, doing
from rlrun.core.specs import random_actions
from rlrun.machine.cgroups import cores_allowed, memory_left
from rlrun.machine.nodes import Node
from rlrun.machine.processor import cpu_flags

# The environment variable in which a job of a sweep is told its number of cores, where it has none of its own.
SHARE = "RLRUN_CORES"
GPU_JOBS = "RLRUN_GPU_JOBS"  # and in which it is told how many jobs share its GPU
MEMORY = "RLRUN_MEMORY"  # and which bytes of main memory are its part
FAST_BF16 = {"avx512_bf16", "amx_bf16"}  # CPU flags


def env_step_sec(make_env: EnvFactory, count: int, budget_sec: float = 0.2) -> float:
    """Measured seconds per env and step with random actions. Raises EnvError when the environment does."""
    env = make_env(0, count)
    try:
        obs = env.reset(0)
        rng = np.random.default_rng(0)

        def step() -> None:
            nonlocal obs
            obs = env.step(random_actions(env.spec, obs, env.count, rng)).obs

        with doing(STEP):
            step()
        best, begun = float("inf"), time.perf_counter()
        while (
            time.perf_counter() - begun < budget_sec
        ):  # the best of several stretches counts: a busy machine must not decide
            started = time.perf_counter()
            steps = 0
            with doing(STEP):
                while steps < 20 and time.perf_counter() - begun < budget_sec:
                    step()
                    steps += 1
            best = min(best, (time.perf_counter() - started) / (max(steps, 1) * count))
        return best
    finally:
        env.close()


def gpu_free(index: int) -> int:
    """Bytes of a GPU's memory that this process may take: its part of the free ones, where jobs of a sweep share the
    GPU. 0 where the GPU does not answer, as when it is full.

    The question begins CUDA's context on that GPU, which takes some hundreds of MB until the process ends."""
    jobs = os.environ.get(GPU_JOBS, "")
    try:
        free = torch.cuda.mem_get_info(index)[0]
    except RuntimeError:
        return 0
    return free // max(1, int(jobs) if jobs.isdecimal() else 1)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The facts that a layout is decided from."""

    cores: int  # that this process may use
    cpu_flags: frozenset[str] = frozenset()
    gpus: tuple[str, ...] = ()  # names of the visible CUDA devices
    free_memory: int = 2**62  # bytes
    memory_share: int = 2**62  # bytes of it that `auto` may count on
    free_shared: int = 2**62  # bytes of shared memory
    nodes: tuple[Node, ...] = ()  # machines that step environments, where they are those of a cluster
    gpu_free: Callable[[int], int] = gpu_free  # asks a GPU, so it is called only for the one that learns
    env_step_sec: Callable[[EnvFactory, int], float] = (
        env_step_sec  # takes a moment, so it is measured when a layout asks for it
    )

    @property
    def sampling_cores(self) -> int:
        """Cores for samplers: those of all nodes, or this machine's."""
        return sum(node.cores for node in self.nodes) or self.cores

    @property
    def fast_bf16(self) -> frozenset[str]:
        """The CPU's flags that make bf16 fast; none where it is slow."""
        return self.cpu_flags & FAST_BF16


def measured() -> Machine:
    """This machine, as it is now."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine(
        cores=cores(),
        cpu_flags=frozenset(cpu_flags()),
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(count)),
        free_memory=free_memory(),
        memory_share=memory_share(),
        free_shared=free_shared(),
    )


def cores() -> int:
    """Cores that this process may use. The cgroups' quota, the affinity and a sweep's share are included."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed, share = cores_allowed(), os.environ.get(SHARE, "")
    count = count if allowed is None else min(count, max(1, round(allowed)))
    return min(count, max(1, int(share))) if share.isdecimal() else count


def pinned() -> bool:
    """Whether this process may use all cores of its affinity, so that jobs can have cores of their own. Under a quota,
    the system spreads the time of processes over more cores, and others use the same ones."""
    return cores() == len(os.sched_getaffinity(0))


def free_memory() -> int:
    """Bytes that this process may still take. The cgroups' limits are included."""
    free, left = psutil.virtual_memory().available, memory_left()
    return free if left is None else min(free, left)


def memory_share() -> int:
    """Bytes that this process takes at most unless it is asked for more: its part, where jobs of a sweep run side by
    side. Those that start together would all take the same free memory."""
    share = os.environ.get(MEMORY, "")
    return min(free_memory(), int(share)) if share.isdecimal() else free_memory()


def free_shared() -> int:
    """Bytes of shared memory that are free (containers often have 64 MB of it). Linux has none without a /dev/shm that
    this process may write; other systems need no such folder."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0 if sys.platform == "linux" else free_memory()
    if not os.access("/dev/shm", os.W_OK | os.X_OK):
        return 0
    return stat.f_bavail * stat.f_frsize
