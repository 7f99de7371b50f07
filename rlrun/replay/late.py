"""Brings what an update computed for replayed rows, above all priorities, from the learner to the replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from rlrun.core.batch import Batch


class Writes:
    """Calls write(*where, **Update.writes) for every update, on a CPU immediately.

    On a GPU it is called one update later, so that the CPU does not wait for the results: while the GPU works on one
    batch, the next one is drawn with the old priorities.
    """

    def __init__(self, write: Callable[..., None], device: torch.device):
        self.write, self.on_gpu = write, device.type == "cuda"
        self.waiting: deque[tuple[tuple, Batch, torch.cuda.Event]] = deque()

    def __call__(self, *where: object, **writes: Tensor | Batch) -> None:
        """where: the leading arguments of write(), which identify the rows (the key; with shards also the batch)."""
        if not self.on_gpu:
            self.write(*where, **writes)
            return
        home = Batch(writes).map(lambda x: x.detach().to("cpu", non_blocking=True))
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(next(Batch(writes).leaves()).device))
        self.waiting.append((where, home, event))
        self._finish(1)

    def flush(self) -> None:
        """Completes all delayed writes. This is the finish_writes() of a replay."""
        self._finish(0)

    def _finish(self, left: int) -> None:
        while len(self.waiting) > left:
            where, home, event = self.waiting.popleft()
            event.synchronize()
            self.write(*where, **home)
