"""What an update says of replayed rows, priorities first of all, on its way from the learner to the replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from rlrun.core.batch import Batch


class Writes:
    """write(*where, **Update.writes) of every update: at once on a CPU. From a GPU one update later, so that nobody waits for its numbers: the next batch
    is drawn while it still works on this one, with the numbers of before."""

    def __init__(self, write: Callable[..., None], device: torch.device):
        self.write, self.on_gpu = write, device.type == "cuda"
        self.waiting: deque[tuple[tuple, Batch, torch.cuda.Event]] = deque()

    def __call__(self, *where: object, **writes: Tensor | Batch) -> None:
        """where: what says which rows are meant, a key and with several shards the shard's batch."""
        if not self.on_gpu:
            self.write(*where, **writes)
            return
        home = Batch(writes).map(lambda x: x.detach().to("cpu", non_blocking=True))
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(next(Batch(writes).leaves()).device))
        self.waiting.append((where, home, event))
        self._finish(1)

    def flush(self) -> None:
        """Waits for all that are still on their way: a replay's finish_writes()."""
        self._finish(0)

    def _finish(self, left: int) -> None:
        while len(self.waiting) > left:
            where, home, event = self.waiting.popleft()
            event.synchronize()
            self.write(*where, **home)
