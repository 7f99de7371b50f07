"""Host: the samplers of one machine, which work in shared memory as they do without a cluster.

A host makes its own plan from the run's config, and so its environments and policies. It is told the newest weights
with every call and answers with whole fragments, packed.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch

from rlrun.cluster.packing import Form, pack
from rlrun.cluster.weights import Letter, SentWeights
from rlrun.core.errors import EnvError, RunFailed, UserError
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment
from rlrun.runtime.build import build
from rlrun.runtime.cluster import plan_again, same
from rlrun.samplers.local import LocalSampler

HOST_BITS = 40  # generations below these are those of the run and of processes that a host has replaced
LOOK_SEC = 0.2  # seconds between two looks at samplers that are silent
ANSWER_SEC = 2.0  # a call answers after this time, even without a fragment


class HostRestarts(Restarts):
    """The budget of one machine. What it counts is told to the run's own process, which has a budget for all."""

    def __init__(self, limit: int, window_sec: float):
        super().__init__(limit, window_sec, tell=lambda text: None)
        self.news: list[tuple[str, int]] = []

    def process_failed(self, sentence: str, lost_env_steps: int = 0) -> None:
        super().process_failed(sentence, lost_env_steps)
        self.news.append((sentence, lost_env_steps))


class SamplerHost:
    """Steps environments on one machine. Every method answers with packed bytes; an error is one of the facts."""

    def __init__(self, brief: bytes):
        """brief: JSON of what brief() returned, with `first` and `workers` (this host's samplers among all),
        `generation`, `synchronous` and `compress`."""
        torch.set_num_threads(1)
        self.told = json.loads(brief)
        self.sampler: LocalSampler | None = None
        self.weights, self.clock = SentWeights(), (-1, -1)

    def start(self) -> np.ndarray:
        """Makes environments and samplers, and answers when all are ready."""
        return self._answer(self._start)

    def _start(self) -> list[Fragment]:
        told = self.told
        made = plan_again(told)
        if len(differing := [name for name, value in same(made).items() if value != told["same"][name]]):
            name = differing[0]
            raise UserError(f"its {name} is {same(made)[name]}, and the learner's is {told['same'][name]}")
        parts = build(made)
        own = replace(parts.sampler_plan(told["generation"]), first=told["first"], workers=told["workers"])
        own = replace(own, generation=own.generation + (told["restart"] << HOST_BITS))
        self.form = Form(made.fragment, made.spec.stack, told["compress"])
        self.restarts = HostRestarts(made.restarts().limit, made.restarts().window_sec)
        self.policy = own.make_policy()
        self.sampler = LocalSampler(own, restarts=self.restarts)
        return []

    def collect(
        self,
        version: int,
        weights: np.ndarray | None,
        made: tuple[int, int],
        clock: tuple[int, int],
        freed: list[int],
        held: list[int],
        most: int,
    ) -> np.ndarray:
        """Publishes the weights to this machine's samplers if they are new, gives slots back, and answers with the
        fragments that are filled, at most so many. It waits for the first one for a while.

        version, weights, made, clock: a Letter; weights is None where the host has this version. held: in the first
        call, slots that must not be filled yet."""
        return self._answer(self._collect, Letter(version, weights, made, clock), freed, held, most)

    def _collect(self, letter: Letter, freed: list[int], held: list[int], most: int) -> list[Fragment]:
        sampler = self.sampler
        assert sampler is not None, "start() comes first"
        self._publish(letter)
        sampler.begin(held)
        for slot in freed:
            sampler.refill(slot)
        end = time.monotonic() + ANSWER_SEC
        sampler.check()
        while not sampler.queued and time.monotonic() < end:
            wait(sampler.handles(), LOOK_SEC)
            sampler.check()
        return list(sampler.take(min(most, sampler.queued)))

    def _publish(self, letter: Letter) -> None:
        assert self.sampler is not None
        seen = self.weights.version
        self.weights.receive(letter)
        if self.weights.read(self.policy, seen) is not None:
            self.sampler.publish(self.policy, Clock(*letter.made))
            self.clock = letter.made
        if letter.clock != self.clock:
            self.sampler.publish(None, Clock(*letter.clock))
            self.clock = letter.clock

    def stop(self) -> np.ndarray:
        """Ends this machine's samplers."""
        if self.sampler is not None:
            self.sampler.close()
        return pack(Form({}, 1, False), [], {})

    def _answer(self, method: Any, *args: Any) -> np.ndarray:
        facts: dict[str, Any] = {"failed": None}
        fragments: list[Fragment] = []
        try:
            fragments = method(*args)
        except (RunFailed, EnvError, UserError) as error:
            facts["failed"], facts["wrong"] = str(error), isinstance(error, UserError)
        news, form = [], Form({}, 1, False)
        if self.sampler is not None:
            news, self.restarts.news, form = self.restarts.news, [], self.form
        packed = pack(form, [(one.header, one.batch) for one in fragments], facts | {"news": news})
        if self.sampler is not None and not self.told["synchronous"]:
            self.sampler.free(fragments)  # the samplers go on while the rows travel
        return packed
