"""WeightBus: publishes the learner's policy to samplers through double-buffered shared memory.

The writer fills the buffer that readers do not use and then increases the version. A reader copies a buffer and then
checks that the writer has not begun to overwrite it meanwhile. There is no lock, so a killed reader or writer cannot
block the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rlrun.core.schedule import Clock

BEGUN, DONE = 0, 1  # indices in the header: the newest version whose writing has begun, and the newest complete one
ALIGNED = 8  # bytes; every tensor begins at a multiple of these, which is the size of the largest number


def travelling(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which a parameter or buffer is handed over: its own, or float32 in place of a shorter one,
    because a copy of the policy that only acts may be in lower precision than the learner's."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype


def places(module: nn.Module) -> Iterator[tuple[Tensor, torch.dtype, slice]]:
    """Yields every parameter and buffer of a module with its dtype and its place in a vector of bytes."""
    start = 0
    for tensor in (*module.parameters(), *module.buffers()):
        dtype = travelling(tensor.dtype)
        end = start + tensor.numel() * dtype.itemsize
        yield tensor, dtype, slice(start, end)
        start = -(-end // ALIGNED) * ALIGNED


def weight_bytes(module: nn.Module) -> int:
    """Returns the size of that vector."""
    end = max((place.stop for _, _, place in places(module)), default=0)
    return -(-end // ALIGNED) * ALIGNED


@torch.no_grad()
def write_weights(module: nn.Module, data: Tensor) -> None:
    """Writes all parameters and buffers into bytes [N]."""
    for tensor, dtype, place in places(module):
        data[place].view(dtype).view(tensor.shape).copy_(tensor)


@torch.no_grad()
def read_weights(module: nn.Module, data: Tensor) -> None:
    """Copies bytes [N], which a module with the same tensors wrote, into all parameters and buffers."""
    for tensor, dtype, place in places(module):
        tensor.copy_(data[place].view(dtype).view(tensor.shape))


class WeightBus:
    """A WeightStore in shared memory, picklable for spawn."""

    def __init__(self, module: nn.Module):
        self.data = torch.zeros(2, weight_bytes(module), dtype=torch.uint8).share_memory_()
        self.header = torch.zeros(2, dtype=torch.int64).share_memory_()
        # For each buffer: env steps and updates of the clock, and the number of updates that made the weights.
        self.clocks = torch.zeros(2, 3, dtype=torch.int64).share_memory_()

    @property
    def version(self) -> int:
        return int(self.header[DONE])

    @torch.no_grad()
    def publish(self, module: nn.Module | None, clock: Clock) -> int:
        """Makes these weights the newest; None repeats the old ones with a new clock. Returns the version."""
        version = int(self.header[DONE]) + 1
        self.header[BEGUN] = version
        side = version % 2
        if module is None:
            self.data[side].copy_(self.data[1 - side])
            self.clocks[side, 2] = self.clocks[1 - side, 2]
        else:
            self.clocks[side, 2] = clock.updates
            write_weights(module, self.data[side])
        self.clocks[side, 0], self.clocks[side, 1] = clock.env_steps, clock.updates
        self.header[DONE] = version
        return version

    @torch.no_grad()
    def read(self, module: nn.Module, seen: int) -> tuple[int, Clock, int] | None:
        """Copies weights newer than version `seen` into the module and returns (version, clock, number of updates that
        made the weights), or None if there are none."""
        while True:
            version = int(self.header[DONE])
            if version == seen:
                return None
            side = version % 2
            read_weights(module, self.data[side])
            env_steps, updates, made = self.clocks[side].tolist()
            if int(self.header[BEGUN]) <= version + 1:  # the writer touched at most the other buffer
                return version, Clock(env_steps, updates), made
