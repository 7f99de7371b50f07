"""Fragments, which samplers hand to the learner, and the shared memory that holds them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.core.batch import Batch, RowSpec, allocate, layout_bytes
from rlrun.core.env import Failure
from rlrun.core.errors import Notice
from rlrun.core.moments import Moments
from rlrun.dataflow.stores import Key


class Episode(NamedTuple):
    """A finished episode of an environment, with its full, unclipped return and its length in env steps."""

    env: int  # number of the environment among all of the run
    ret: float  # with several agents, the sum over them
    length: int
    # For every numeric entry of the environment's info, its mean over the episode; for is_success, its last value.
    info: Mapping[str, float] = {}


class Header(NamedTuple):
    """Facts about a fragment that accompany its rows. env_steps is the number of steps that environments took, which
    are counted only here. With one agent these are the live rows; with several, a step of the environment is one env
    step however many of them decide."""

    worker: int
    slot: Key  # the place of its rows (stores.FragmentStore)
    first_row: int  # absolute number of the fragment's row 0 in its columns
    version: int  # version of the weights that the fragment was made with
    updates: int  # number of the learner's updates that made these weights
    env_steps: int
    episodes: tuple[Episode, ...]
    seconds: tuple[float, float]  # time spent in the environment and in the policy
    returns: Moments | None = None  # moments of the running discounted return, over live rows
    agent_steps: int = 0  # decisions of all agents; 0 where an environment has one
    failures: tuple[Failure, ...] = ()  # of environments


@dataclass(frozen=True)
class Fragment:
    header: Header
    batch: Batch  # [T(+1), B, ...]
    # The memory of all rows in one piece, and the layout by which core.batch.allocate() makes `batch` of it; None where
    # there is no such piece. One copy takes it to a GPU.
    whole: tuple[Tensor, RowSpec] | None = None


class Slots:
    """A FragmentStore for `count` fragments of one layout in one block of shared memory, which the parent allocates.

    Its keys are numbers. Picklable for spawn.
    """

    def __init__(self, layout: RowSpec, count: int):
        self.layout, self.count = layout, count
        self.stride = layout_bytes(layout)
        # 0x7F is the sentinel for which unwritten() looks.
        self.memory: Tensor = torch.full((count, self.stride), 0x7F, dtype=torch.uint8).share_memory_()
        self.pinned = False

    @property
    def keys(self) -> range:
        return range(self.count)

    def pin(self) -> None:
        """Page-locks the memory, so that a GPU can read it while this process continues. Must be called in the process
        that uses the GPU. Warns where the memory cannot be page-locked."""
        error = int(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), self.memory.numel(), 0))
        if error:
            with contextlib.suppress(RuntimeError):  # clears the error, which the next CUDA call would raise
                torch.zeros(1, device="cuda")
            warnings.warn(
                f"the slots of {self.memory.numel() / 1e6:.0f} MB cannot be page-locked (CUDA error {error}): copies to"
                " the GPU are slower",
                Notice,
                stacklevel=2,
            )
        self.pinned = not error

    def unpin(self) -> None:
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())
            self.pinned = False

    def view(self, key: Key) -> Batch:
        return allocate(self.layout, self.memory[key])  # type: ignore[index]

    def whole(self, key: Key) -> tuple[Tensor, RowSpec]:
        """See Fragment.whole."""
        return self.memory[key], self.layout  # type: ignore[index]


def unwritten(batch: Batch) -> list[str]:
    """Returns the names of float32 fields that still hold the sentinel (or NaN) in some element, for debugging and
    tests."""
    bad = []
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            if (value.view(torch.int32) == 0x7F7F7F7F).any() or value.isnan().any():
                bad.append(name)
    return bad
