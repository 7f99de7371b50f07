"""Supervision: finds processes that have died or hang, and puts new ones in their place.

Whoever waits for its workers asks Supervised.messages() in place of Workers.receive(). What a lost worker was working
on is known to its owner alone, which gives it to the new one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlrun.core.awake import awake
from rlrun.core.errors import RunFailed
from rlrun.core.pulse import ACTIVITY, RESET, ROWS, SINCE, STARTING, STEP, Limits, Pulses
from rlrun.core.restarts import PROCESS_REPEATS, Repeated, Restarts, without_numbers
from rlrun.dataflow.workers import READY, Worker, Workers, no_word

LOOK_SEC = 0.5  # seconds between two looks at the pulses
FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 2.0, 60.0  # before a process that died at once is replaced again


class Supervised:
    """Workers of one kind, numbered from 0, each with a pulse."""

    def __init__(
        self,
        target: Callable,
        names: list[str],
        job: Callable[[int, int], tuple],
        pulses: Pulses,
        restarts: Restarts,
        limits: Limits,
        rows: int,
        wait: bool = True,
    ):
        """Starts target(pipe, *job(number, restart)) for every name and waits until all are ready.

        job: the arguments of worker `number` after this number of restarts. pulses: one for each worker. restarts: the
        budget of the run. rows: env steps of one step that a pulse counts. wait: False leaves the waiting to
        workers.until_ready(), which comes before messages()."""
        self.target, self.names, self.job, self.pulses = target, names, job, pulses
        self.restarts, self.limits, self.rows = restarts, limits, rows
        self.workers = Workers()
        self.gone: dict[Worker, str] = {}  # workers that are lost and not replaced yet, with the reason
        self.waiting: dict[int, float] = {}  # numbers of workers that are buried, and when new ones start
        self.times = [0] * len(names)
        self.repeated = [Repeated(PROCESS_REPEATS) for _ in names]
        self.looked = time.monotonic()
        for number in range(len(names)):
            self.pulses.begin(number)
        self.members: list[Worker] = self.workers.start_all(
            target, {name: job(number, 0) for number, name in enumerate(names)}, wait=wait
        )

    def number(self, worker: Worker) -> int:
        return self.members.index(worker)

    def messages(self, timeout: float, replaced: Callable[[int, Worker, Worker], None]) -> list[tuple[Worker, Any]]:
        """Returns the messages that have arrived, or that arrive within `timeout` seconds. Workers that have died or
        hang are replaced, if the run's budget allows it; RunFailed is raised otherwise.

        replaced(number, old, new): gives the new worker what the old one had not finished. It is called after the old
        one's last messages were returned."""
        end = awake() + timeout
        while True:
            lost, self.gone = self.gone, {}
            for worker, reason in lost.items():
                self._bury(worker, reason)
            for number in [number for number, due in self.waiting.items() if due <= time.monotonic()]:
                self._start(number, replaced)
            left = max(0.0, end - awake())
            messages, dead = self.workers.receive_from_survivors(min(left, LOOK_SEC))
            self.gone = dict(dead)
            self._look()
            messages = [(worker, message) for worker, message in messages if message != READY]
            if messages or (left == 0.0 and not self.gone):
                return messages

    def next_messages(
        self,
        timeout: float,
        replaced: Callable[[int, Worker, Worker], None],
        asked: Callable[[], list[str]] | None = None,
    ) -> list[tuple[Worker, Any]]:
        """Returns messages() as soon as there are some, however long a slow environment takes for one. Raises RunFailed
        after `timeout` seconds in which no process was at work.

        asked: the names of those that owe a message, for the error; None: all."""
        while True:
            before = self.beats()
            messages = self.messages(timeout, replaced)
            if messages:
                return messages
            if not self.at_work(before):
                raise RunFailed(no_word(self.names if asked is None else asked(), timeout))

    def beats(self) -> Tensor:
        """What every process has done so far [P, 2]: its steps, and when it began what it is doing."""
        return self.pulses.memory[:, [ROWS, SINCE]].clone()

    def at_work(self, before: Tensor) -> bool:
        """Whether a process has begun something since `before`, which beats() returned, or is in a step, a reset or its
        start. How long those may take, _look() knows."""
        doing = self.pulses.memory[:, ACTIVITY].tolist()
        return bool({STARTING, STEP, RESET} & {*doing}) or not torch.equal(self.beats(), before)

    def _look(self) -> None:
        """Finds workers that hang."""
        now = time.monotonic()
        if now - self.looked < LOOK_SEC:
            return
        self.looked = now
        for number, worker in enumerate(self.members):
            if worker in self.gone or number in self.waiting:
                continue
            hang = self.pulses.of(number).hang(self.limits)
            if hang is not None:
                self.gone[worker] = f"{worker.name} {hang}"

    def _bury(self, worker: Worker, reason: str) -> None:
        """Records a lost worker. Its place is taken at once, or after a pause if it was lost at once before."""
        number = self.number(worker)
        pulse = self.pulses.of(number)
        steps = pulse.rows * self.rows if self.times[number] else None
        last_words = reason.splitlines()[-1] if "\n" in reason else reason
        if self.repeated[number](without_numbers(last_words.partition(": ")[2] or last_words), steps):
            raise RunFailed(reason)
        self.restarts.process_failed(reason, pulse.unfinished * self.rows)
        self.workers.bury(worker)
        at_once = self.repeated[number].times - 1
        pause = min(LONGEST_PAUSE_SEC, FIRST_PAUSE_SEC * 2 ** (at_once - 1)) if at_once else 0.0
        self.waiting[number] = time.monotonic() + pause

    def _start(self, number: int, replaced: Callable[[int, Worker, Worker], None]) -> None:
        del self.waiting[number]
        worker = self.members[number]
        self.times[number] += 1
        self.pulses.begin(number)
        new = self.workers.start(self.names[number], self.target, self.job(number, self.times[number]))
        self.members[number] = new
        replaced(number, worker, new)

    def send(self, worker: Worker, message: Any) -> None:
        """Sends a message. One to a worker that has died is dropped: whoever replaces it sends it again."""
        try:
            worker.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError, OSError):
            return
