"""Fragments: what samplers hand over, and the shared memory in which they do it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.core.batch import Batch, RowSpec, allocate, layout_bytes
from rlrun.core.errors import Notice
from rlrun.core.moments import Moments
from rlrun.dataflow.stores import Key


class Episode(NamedTuple):
    """A finished episode: the full, unclipped return and its length in decisions."""

    column: int
    ret: float
    length: int
    info: Mapping[str, float] = {}  # of every numeric entry of the environment's info: its mean over the episode; of is_success, its last value


class Header(NamedTuple):
    """What is said about a fragment beside its rows. env_steps counts live rows; nobody recounts them from the rows."""

    worker: int
    slot: Key  # where its rows lie (stores.FragmentStore)
    first_row: int  # absolute number of the fragment's row 0 in its columns
    version: int  # of the weights it was made with
    updates: int  # the learner's updates at that version
    env_steps: int
    episodes: tuple[Episode, ...]
    seconds: tuple[float, float]  # spent in the environment, in the policy
    returns: Moments | None = None  # of the discounted return so far, over live rows


@dataclass(frozen=True)
class Fragment:
    header: Header
    batch: Batch  # [T(+1), B, ...]


class Slots:
    """`count` fragments of one layout in one block of shared memory, made by the parent: a FragmentStore whose keys are numbers. Picklable for spawn."""

    def __init__(self, layout: RowSpec, count: int):
        self.layout, self.count = layout, count
        self.stride = layout_bytes(layout)
        self.memory: Tensor = torch.full((count, self.stride), 0x7F, dtype=torch.uint8).share_memory_()  # sentinel: see unwritten()
        self.pinned = False

    @property
    def keys(self) -> range:
        return range(self.count)

    def pin(self) -> None:
        """Page-locks the memory, so that a GPU reads from it by itself while this process does something else. In the process that has the GPU."""
        error = int(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), self.memory.numel(), 0))
        if error:
            with contextlib.suppress(RuntimeError):  # the error waits to be said by whatever is done next
                torch.zeros(1, device="cuda")
            warnings.warn(f"the slots of {self.memory.numel() / 1e6:.0f} MB cannot be page-locked (CUDA error {error}): copies to the GPU are slower",
                          Notice, stacklevel=2)  # fmt: skip
        self.pinned = not error

    def unpin(self) -> None:
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr())
            self.pinned = False

    def view(self, key: Key) -> Batch:
        return allocate(self.layout, self.memory[key])  # type: ignore[index]


def unwritten(batch: Batch) -> list[str]:
    """Names of fields that still hold the sentinel in some element (reward and float records only): for debug runs and tests."""
    bad = []
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            if (value.view(torch.int32) == 0x7F7F7F7F).any() or value.isnan().any():
                bad.append(name)
    return bad
