"""Blackboard: how the learners of one machine exchange a few numbers, in memory that all of them share.

Each learner writes its numbers and counts up its round, and all wait until everyone has counted as far. There is no
lock, so a killed learner cannot block the others. Two learners sum a number in 0.1 ms while each has a core. On a busy
machine, gloo, which uses sockets and a thread, took two to fifteen times as long as this, and a minibatch of PPO makes
five exchanges.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

from torch import Tensor

from rlrun.core.awake import awake
from rlrun.dataflow.meeting import Disconnected

# Elsewhere, other processors may see the count before they see the numbers that were written before it.
ORDERED = platform.machine().lower() in ("x86_64", "amd64")
ROOM = 2**18  # bytes that a learner can write in one round, a multiple of every dtype's size
FLAGS = 16  # int64 of each learner, which fill two cache lines, so that no learner's writing slows another's
ROUND, CLOSED, SIZES = 0, 1, 8  # places in them: rounds, whether this learner is gone, and what it wrote on each side
SPIN_SEC = 1e-4  # seconds of waiting without a pause
FIRST_NAP_SEC, LAST_NAP_SEC, GROWTH = 2e-5, 1e-3, 1.2
LOOK_SEC = 0.5  # seconds between two looks at whether the others are still there


class Blackboard:
    """One learner's view of the memory. All learners must call its methods in the same order."""

    def __init__(
        self, flags: Tensor, slots: Tensor, rank: int, timeout_sec: float | None, look: Callable[[float], object] | None
    ):
        """flags [world, FLAGS] int64, slots [2, world, ROOM] bytes: zeros that all learners share. timeout_sec: how
        long the others are waited for; None: as long as they run. look: called now and then meanwhile, with the
        seconds that this wait has lasted; raises if one of them is gone."""
        numbers = flags.numpy()
        self.rounds, self.closed, self.sizes = numbers[:, ROUND], numbers[:, CLOSED], numbers[:, SIZES : SIZES + 2]
        self.slots, self.rank, self.timeout_sec, self.look = slots, rank, timeout_sec, look
        self.round = 0

    def everyones(self, x: Tensor) -> list[Tensor] | None:
        """x [n], on the CPU -> every learner's x, by rank, in the board's own memory, which holds them until the next
        call. The learners' n may differ; None if some learner's numbers have no room."""
        side, size = self.round % 2, x.element_size()
        self.sizes[self.rank, side] = len(x)
        if len(x) * size <= ROOM:
            self.slots[side, self.rank, : len(x) * size].view(x.dtype).copy_(x)
        self.meet()
        sizes = self.sizes[:, side].tolist()
        if max(sizes) * size > ROOM:
            return None
        return [self.slots[side, rank, : n * size].view(x.dtype) for rank, n in enumerate(sizes)]

    def meet(self) -> None:
        """Returns when all learners have called this as often as this one. Raises Disconnected if one is gone."""
        self.round += 1
        self.rounds[self.rank] = self.round
        if self.rounds.min() >= self.round:
            return
        begun, nap = time.perf_counter(), FIRST_NAP_SEC
        looked = waited_since = None
        while True:
            gone = self.closed.copy()  # before the rounds are read, because a learner may leave behind this meeting
            missing = self.rounds < self.round
            if not missing.any():
                return
            if gone[missing].any():
                raise Disconnected("another learner has ended")
            if time.perf_counter() - begun < SPIN_SEC:
                time.sleep(0)
                continue
            time.sleep(nap)
            nap = min(nap * GROWTH, LAST_NAP_SEC)
            now = awake()
            if looked is None or waited_since is None:
                looked = waited_since = now
            if now - looked >= LOOK_SEC:
                looked = now
                if self.look is not None:
                    self.look(now - waited_since)
                if self.timeout_sec is not None and now - waited_since > self.timeout_sec:
                    raise Disconnected(f"no answer for {self.timeout_sec:.0f} s")

    def close(self) -> None:
        """Tells the others that this learner is gone."""
        self.closed[self.rank] = 1
