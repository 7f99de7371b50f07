"""A copy of the policy on the learner's device, with which a thread acts while the learner keeps learning."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.policy import Act, Policy
from rlrun.core.schedule import Clock
from rlrun.machine.graphs import GraphRecorder, Recorded, map_tensors


class ActingCopy:
    """Acts on the rows of several groups of columns in one batch.

    On a GPU, rows are copied from page-locked memory into one batch, and acting is recorded as a CUDA graph once for
    every power of two of groups (machine/graphs.py). The learner writes new weights into a separate buffer, the letter
    box, from which the acting thread copies them once the GPU has finished the update that makes them. So neither
    thread waits for the other.
    """

    def __init__(
        self,
        policy: Policy,
        device: torch.device,
        rng: torch.Generator,
        record: tuple[str, ...],
        columns: int,
        groups: int,
        recorder: GraphRecorder | None,
        newest_only: bool = False,
    ):
        """columns: the columns of one group. groups: the largest number of groups in one call of act().
        newest_only: rows must be acted on with the weights that were published last, so acting waits for them."""
        self.policy, self.device, self.rng, self.record, self.columns, self.groups = (
            policy.to(device),
            device,
            rng,
            record,
            columns,
            groups,
        )
        # Those of the weights that act now; made is the number of updates that made the weights.
        self.version, self.clock, self.made = 0, Clock(), 0
        self.recorder = recorder if policy.recordable("acting") else None
        self._call = self._act if self.recorder is None else Recorded(self._act, self.recorder, lambda: [self.rng])
        self.on_gpu, self.newest_only = device.type == "cuda", newest_only
        self.lock = threading.Lock()  # guards the letter box; on a CPU also the weights
        self.published, self.newest, self.newest_made = 0, Clock(), 0
        self.letter = (
            [tensor.clone() for tensor in self._weights(self.policy)] if self.on_gpu else self._weights(self.policy)
        )
        self.written: torch.cuda.Event | None = None
        self.taken: torch.cuda.Event | None = None
        self.seats: Batch | None = None  # the rows of all groups on the device
        self.seat: list[list[Tensor]] = []  # for each group, the leaves of its part of the seats

    @staticmethod
    def _weights(policy: Policy) -> list[Tensor]:
        return [*(parameter.detach() for parameter in policy.parameters()), *policy.buffers()]

    @torch.no_grad()
    def publish(self, policy: Policy | None, clock: Clock) -> None:
        """Called by the learner: these weights (None: the same as before) act from the next row on.

        The call is skipped while the previous weights still wait in the letter box (unless newest_only), because a
        later call publishes newer ones.
        """
        with self.lock:
            if policy is not None and self.written is not None and not self.newest_only:
                return
            if policy is not None:
                if self.taken is not None:
                    self.taken.wait()  # blocks the learner's stream, not its thread
                for mine, theirs in zip(self.letter, self._weights(policy), strict=True):
                    mine.copy_(theirs)
                if self.on_gpu:
                    self.written = torch.cuda.current_stream(self.device).record_event()
                self.newest_made = clock.updates
            self.published, self.newest = self.published + 1, clock

    @torch.no_grad()
    def refresh(self) -> None:
        """Called by the acting thread: takes over the published weights and clock, if they have arrived."""
        with self.lock:
            if self.version == self.published:
                return
            if self.written is not None:
                if not self.newest_only and not self.written.query():
                    return
                self.written.wait()
                for mine, theirs in zip(self._weights(self.policy), self.letter, strict=True):
                    mine.copy_(theirs)
                self.written, self.taken = None, torch.cuda.current_stream(self.device).record_event()
            self.version, self.clock, self.made = self.published, self.newest, self.newest_made

    def act(self, rows: Sequence[Batch], states: Sequence[Batch]) -> tuple[Tensor | Batch, Batch, Batch]:
        """Takes obs and is_first (rows) and policy states of every group, with leaves [columns, ...].

        Returns actions and records [groups * columns, ...] on the CPU, and the new states on the device.
        """
        count = len(rows) * self.columns
        with contextlib.nullcontext() if self.on_gpu else self.lock:
            made: Act = self._call(self._together(rows, states), self.clock)
            action, record = map_tensors(lambda x: x[:count].to("cpu", non_blocking=True), (made.action, made.record))
            if self.on_gpu:
                torch.cuda.current_stream(self.device).synchronize()
        return action, record, made.state[:count]

    def _act(self, batch: Batch, clock: Clock) -> Act:
        return self.policy.act(batch["obs"], batch["is_first"], batch["state"], clock, "explore", self.rng, self.record)

    def _together(self, rows: Sequence[Batch], states: Sequence[Batch]) -> Batch:
        """Joins the rows of all groups. Where acting is recorded, the number of groups is padded to a power of two, and
        the results of the padding are ignored."""
        if not self.on_gpu and self.recorder is None:
            return _join(rows).replace(state=_join(states))
        padded = len(rows) if self.recorder is None else min(self.groups, 1 << (len(rows) - 1).bit_length())
        if self.seats is None:
            total = self.groups * self.columns
            self.seats = rows[0].map(lambda x: torch.zeros(total, *x.shape[1:], dtype=x.dtype, device=self.device))
            self.seat = [
                list(self.seats[first : first + self.columns].leaves()) for first in range(0, total, self.columns)
            ]
        for seat, row in zip(self.seat, rows, strict=False):
            for mine, theirs in zip(seat, row.leaves(), strict=True):
                mine.copy_(theirs, non_blocking=True)
        return self.seats[: padded * self.columns].replace(state=_join([*states, *[states[-1]] * (padded - len(rows))]))


def _join(batches: Sequence[Batch]) -> Batch:
    """Concatenates batches with leaves [B, ...] along the first dimension."""
    first = batches[0]
    return Batch(
        {
            k: _join([b[k] for b in batches]) if isinstance(v, Batch) else torch.cat([b[k] for b in batches])
            for k, v in first.items()
        }
    )  # type: ignore[misc, arg-type]
