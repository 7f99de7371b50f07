"""WeightBus: publishes the learner's policy to samplers through double-buffered shared memory.

The writer fills the buffer that readers do not use and then increases the version. A reader copies a buffer and then
checks that the writer has not begun to overwrite it meanwhile. There is no lock, so a killed reader or writer cannot
block the others.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlrun.core.schedule import Clock

BEGUN, DONE = 0, 1  # indices in the header: the newest version whose writing has begun, and the newest complete one


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


class WeightBus:
    """A WeightStore in shared memory, picklable for spawn. It holds every parameter and buffer as float32."""

    def __init__(self, module: nn.Module):
        count = sum(t.numel() for t in _tensors(module))
        self.data = torch.zeros(2, count).share_memory_()
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
            offset = 0
            for tensor in _tensors(module):
                self.data[side, offset : offset + tensor.numel()].view(tensor.shape).copy_(tensor)
                offset += tensor.numel()
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
            offset = 0
            for tensor in _tensors(module):
                tensor.copy_(self.data[side, offset : offset + tensor.numel()].view(tensor.shape))
                offset += tensor.numel()
            env_steps, updates, made = self.clocks[side].tolist()
            if int(self.header[BEGUN]) <= version + 1:  # the writer touched at most the other buffer
                return version, Clock(env_steps, updates), made
