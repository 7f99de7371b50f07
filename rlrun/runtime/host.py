"""Hosts: the samplers or players of one machine, which work in shared memory as they do without a cluster.

A host makes its own plan from the run's config, and so its environments and policies. It is told the newest weights
with every call and answers with whole fragments, packed, or with reports.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch

from rlrun.cluster.packing import Form, pack
from rlrun.cluster.population import report_to_json
from rlrun.cluster.weights import Letter, SentWeights
from rlrun.core.errors import EnvError, RunFailed, UserError
from rlrun.core.restarts import ToldRestarts
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment
from rlrun.dataflow.workers import Workers
from rlrun.machine.machine import free_shared
from rlrun.runtime.build import LearnerParts, build
from rlrun.runtime.cluster import plan_again, same
from rlrun.runtime.plan import Plan
from rlrun.runtime.room import check_host, elsewhere
from rlrun.samplers.local import LocalSampler
from rlrun.samplers.players import Order, Players

HOST_BITS = 40  # generations below these are those of the run and of processes that a host has replaced
LOOK_SEC = 0.2  # seconds between two looks at samplers that are silent
ANSWER_SEC = 2.0  # a call answers after this time, even without a fragment


class RunHost:
    """What hosts have in common. Every method answers with packed bytes; an error is one of the facts."""

    def __init__(self, brief: bytes):
        """brief: JSON of what runtime.cluster.brief() returned, with `first` and `workers` (this host's part of all
        samplers or players) and `restart`, the number of hosts that this part has lost."""
        torch.set_num_threads(1)
        self.told = json.loads(brief)
        self.form = Form({}, 1, False)
        self.restarts = ToldRestarts(0, 1.0)
        self.weights = SentWeights()
        self.processes = Workers()  # that make() has started

    def here(self) -> np.ndarray:
        """Answers at once, which says that this host's own process has begun."""
        return self._answer(dict)

    def start(self) -> np.ndarray:
        """Plans, and starts processes that make environments. Answers as ready() does."""
        return self._answer(self._start)

    def ready(self) -> np.ndarray:
        """Answers with `starting`, the number of processes that are not ready, once all are or after a while."""
        return self._answer(self._ready)

    def _start(self) -> dict[str, Any]:
        told = self.told
        made = plan_again(told)
        here = same(made)
        for name, value in told["same"].items():
            if here[name] != value:
                raise UserError(f"its {name} is {here[name]}, and the learner's is {value}")
        self.restarts = made.told_restarts()
        if elsewhere(made):  # parts of one machine were checked together before the run began
            check_host(made, self.workers(made), free_shared())
        self.make(build(made))
        return self._ready()

    def _ready(self) -> dict[str, Any]:
        return {"starting": self.processes.until_ready(ANSWER_SEC)}

    def workers(self, plan: Plan) -> int:
        """Returns how many processes of samplers or players this host starts."""
        return int(self.told["workers"])

    def make(self, parts: LearnerParts) -> None:
        """Makes what this host runs, for which there is room, and does not wait for its processes."""
        raise NotImplementedError

    def _answer(self, method: Callable[..., dict[str, Any]], *args: Any) -> np.ndarray:
        """Calls a method, which returns facts, and `fragments` among them if there are any."""
        facts: dict[str, Any] = {"failed": None}
        try:
            facts |= method(*args)
        except (RunFailed, EnvError, UserError) as error:
            facts |= {"failed": str(error), "wrong": isinstance(error, UserError)}
        fragments: list[Fragment] = facts.pop("fragments", [])
        news, self.restarts.news = self.restarts.news, []
        return pack(self.form, [(one.header, one.batch) for one in fragments], facts | {"news": news})

    def stop(self) -> np.ndarray:
        """Ends this host's processes."""
        self.close()
        return self._answer(dict)

    def close(self) -> None:
        raise NotImplementedError


class SamplerHost(RunHost):
    """Steps environments on one machine. It is also told `generation`, `synchronous` and `compress`."""

    sampler: LocalSampler | None = None

    def make(self, parts: LearnerParts) -> None:
        told, plan = self.told, parts.plan
        own = replace(
            parts.sampler_plan(told["generation"] + (told["restart"] << HOST_BITS)),
            first=told["first"],
            workers=told["workers"],
        )
        self.form = Form(plan.fragment, plan.spec.stack, told["compress"])
        self.policy, self.clock = own.make_policy(), (-1, -1)
        self.sampler = LocalSampler(own, restarts=self.restarts, wait=False)
        self.processes = self.sampler.workers

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
        taken: list[Fragment] = []
        packed = self._answer(self._collect, Letter(version, weights, made, clock), freed, held, most, taken)
        if self.sampler is not None and not self.told["synchronous"]:
            self.sampler.free(taken)  # the samplers go on while the rows travel
        return packed

    def _collect(
        self, letter: Letter, freed: list[int], held: list[int], most: int, taken: list[Fragment]
    ) -> dict[str, Any]:
        sampler = self.sampler
        assert sampler is not None, "start() and ready() come first"
        self._publish(sampler, letter)
        sampler.begin(held)
        for slot in freed:
            sampler.refill(slot)
        end = time.monotonic() + ANSWER_SEC
        sampler.check()
        while not sampler.queued and time.monotonic() < end:
            wait(sampler.handles(), LOOK_SEC)
            sampler.check()
        taken += sampler.take(min(most, sampler.queued))
        return {"fragments": taken}

    def _publish(self, sampler: LocalSampler, letter: Letter) -> None:
        seen = self.weights.version
        self.weights.receive(letter)
        if self.weights.read(self.policy, seen) is not None:
            sampler.publish(self.policy, Clock(*letter.made))
            self.clock = letter.made
        if letter.clock != self.clock:
            sampler.publish(None, Clock(*letter.clock))
            self.clock = letter.clock

    def close(self) -> None:
        if self.sampler is not None:
            self.sampler.close()


class PlayerHost(RunHost):
    """Plays episodes with perturbed policies on one machine, whose players share one noise table."""

    players: Players | None = None

    def make(self, parts: LearnerParts) -> None:
        crew = parts.crew(parts.noise())._replace(players=self.told["workers"])
        self.policy = crew.make_policy()
        self.players = Players(crew, self.restarts, self.told["first"], wait=False)
        self.processes = self.players.workers

    def play(
        self,
        version: int,
        weights: np.ndarray | None,
        made: tuple[int, int],
        clock: tuple[int, int],
        orders: list[tuple[int, tuple]],
    ) -> np.ndarray:
        """Publishes the weights to this machine's players if they are new, gives players their orders, and answers with
        the reports of those that have finished, in JSON's form. It waits for the first one for a while.

        version, weights, made, clock: a Letter. orders: for players, by their numbers, the fields of an Order."""
        return self._answer(self._play, Letter(version, weights, made, clock), orders)

    def _play(self, letter: Letter, orders: list[tuple[int, tuple]]) -> dict[str, Any]:
        assert self.players is not None, "start() and ready() come first"
        seen = self.weights.version
        self.weights.receive(letter)
        if self.weights.read(self.policy, seen) is not None:
            self.players.publish(self.policy, Clock(*letter.made))
        for number, order in orders:
            self.players.give(number, Order(*order))
        end, reports = time.monotonic() + ANSWER_SEC, self.players.receive(0.0)
        while not reports and time.monotonic() < end:
            reports = self.players.receive(LOOK_SEC)
        return {"reports": [report_to_json(report) for report in reports]}

    def close(self) -> None:
        if self.players is not None:
            self.players.close()
