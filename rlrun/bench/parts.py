"""The parts of a run, each alone: what benchmark throughput measures before and after training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch, RowSpec, allocate, layout_bytes
from rlrun.core.env import Rows, map_rows
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import random_actions
from rlrun.core.timing import Timers
from rlrun.dataflow.reuse import Gatherer
from rlrun.dataflow.slots import Fragment, Header
from rlrun.dataflow.weights import WeightBus
from rlrun.replay.buffer import Replay
from rlrun.replay.grouped import GroupedReplay
from rlrun.runners import actor_learner
from rlrun.runners.evolution import gathered
from rlrun.runtime.build import LearnerParts
from rlrun.samplers.acting import ActingCopy
from rlrun.samplers.collector import Collector, act_row
from rlrun.samplers.evaluator import to_torch
from rlrun.samplers.players import Order, Player

PART_SEC = 1.0
LONG = 5  # times PART_SEC
DIFFERENT = 8  # different fragments in a large train batch; more are repeats of these
REPLAYED = 2000  # rows in the replay with which the parts are measured, but at least 8 fragments
LATE = Clock(2**40)  # a time when exploration schedules have ended


class PartsOfRows:
    """The parts of a run that learns from rows."""

    def __init__(self, parts: LearnerParts):
        self.parts, made = parts, parts.resources
        self.env = parts.plan.make_env()(0, made.envs_per_group)
        self.columns = self.env.count
        self.algorithm = parts.algorithm()
        self.weights = WeightBus(self.algorithm.policy)
        self.weights.publish(self.algorithm.policy, Clock())
        self.agents = parts.spec.columns_per_env  # columns of one environment, which one env step moves on together
        self.policy = self._acting()
        self.rng = parts.seeds.generator("policy", 0, device=str(made.device) if made.inference == "batched" else "cpu")
        layout = parts.plan.fragment
        self.on_gpu = made.device.type == "cuda"
        self.out = allocate(layout, pin=self.on_gpu)  # pinned, as a run's fragments are
        self.products = parts.make_products()
        # Each environment's place, as if these were all of the run's. The columns of one have the same.
        self.place = torch.linspace(0.0, 1.0, self.columns // self.agents).repeat_interleave(self.agents)
        collector = Collector(
            self.env,
            parts.seeds.generator("policy", 0),
            parts.needs.record,
            parts.needs.core_every,
            worker=0,
            first_env=0,
            generation=0,
            place=self.place,
        )
        acting = self._acting()
        fragments = []
        self.wholes: list[tuple[Tensor, RowSpec]] = []  # Fragment.whole of each
        self.replay: Replay | GroupedReplay | None = None
        needed = parts.needs.columns // self.columns
        for number in range(
            max(8, REPLAYED // (parts.plan.fragment_rows * self.columns))
            if parts.needs.replay is not None
            else min(needed, DIFFERENT)
        ):
            memory = torch.zeros(layout_bytes(layout), dtype=torch.uint8, pin_memory=self.on_gpu)
            batch = allocate(layout, memory)
            header = collector.collect(batch, acting, 1, Clock(), 0)
            if parts.needs.replay is not None:
                self.replay = self.replay or parts.replay(0)
                for block in range(self.replay.blocks):  # every producer stores the same rows
                    self.replay.add(Fragment(header._replace(worker=block), batch, (memory, layout)))
            if number < 64:
                fragments.append(batch)
                self.wholes.append((memory, layout))
        self.obs = collector.columns.obs
        self.fragments = (
            fragments if parts.needs.replay is not None else [fragments[i % len(fragments)] for i in range(needed)]
        )
        asked = parts.needs.replay
        # env steps that one update stands for
        self.steps = (
            parts.plan.fragment_rows * parts.needs.columns / self.agents / updates_per_row(parts.config.runner)
            if asked is None
            else parts.needs.columns * asked.rows_learnt / asked.ratio
        )
        self.clock = LATE  # goes on with every update, because some updates do work that others do not
        self.batch: Batch | None = None
        self.out.copy_(fragments[0])

    def measure(self) -> dict[str, list[float]]:
        """Three measurements of each part, in env steps/s."""
        rows = self.parts.plan.fragment_rows
        rng = np.random.default_rng(0)
        spec = self.parts.spec
        masked = "action_mask" in spec.obs
        # Actions are drawn beforehand, because drawing them is not part of the environment's work.
        actions = [random_actions(spec, self.obs, self.columns, rng) for _ in range(64)]
        count = 0

        def env() -> float:
            nonlocal count
            count += 1
            self.obs = self.env.step(
                random_actions(spec, self.obs, self.columns, rng) if masked else actions[count % 64]
            ).obs
            return self.columns / self.agents

        inference = self._together(rows) if self.parts.resources.inference == "batched" else self._alone(rows)
        asked, replay = self.parts.needs.replay, self.replay
        if asked is not None and replay is not None:
            steps = self.steps
            drawn = replay.sample(self.parts.needs.columns, Clock()).to(self.parts.resources.device)
            headers = dict.fromkeys(range(replay.blocks), 0)

            def from_replay() -> float:
                with self.products:
                    writes = self.algorithm.update(drawn, self._later()).writes
                if self.on_gpu:
                    torch.cuda.synchronize()
                self.writes: dict[str, Any] = writes or {}
                return steps

            def storing() -> float:
                batch = replay.sample(self.parts.needs.columns, Clock())
                if self.writes:
                    replay.write(batch.key, **self.writes)
                self.owed += steps
                while self.owed >= rows * self.columns / self.agents:
                    self.owed -= rows * self.columns / self.agents
                    self.count += 1
                    block = self.count % replay.blocks
                    headers[block] += 1
                    which = headers[block] % len(self.fragments)
                    first = replay.next_row[block]
                    assert first is not None
                    header = Header(block, 0, first, 0, 0, 0, (), (0.0, 0.0))
                    replay.add(Fragment(header, self.fragments[which], self.wholes[which]))
                return steps

            self.writes = {}
            self.owed, self.count = 0.0, 0
            four = (("env", env), ("inference", inference), ("learning", from_replay), ("replay", storing))
            return {name: [_rate(call) for _ in range(3)] for name, call in four} | threaded(self.parts, from_replay)

        gathers = Gatherer(self.parts.resources.device, Timers())

        def learning() -> float:
            self.batch = gathers(self.fragments, self.batch)
            with self.products:
                self.algorithm.update(self.batch, self._later())
            self.algorithm.absorb_rows([self.algorithm.policy.moments(self.batch)])
            if self.on_gpu:
                torch.cuda.synchronize()
            return self.steps

        three = (("env", env), ("inference", inference), ("learning", learning))
        return {name: [_rate(call) for _ in range(3)] for name, call in three} | threaded(self.parts, learning)

    def _acting(self) -> Policy:
        """A copy of the policy that acts, with the learner's weights."""
        policy = self.parts.policy_factory(acting=True)()
        self.weights.read(policy, seen=0)
        return policy

    def _later(self) -> Clock:
        """The clock of the next update."""
        self.clock = self.clock.after(env_steps=round(self.steps), updates=1)
        return self.clock

    def _alone(self, rows: int) -> Callable[[], float]:
        """The call that acts on a sampler's own columns."""
        state = self.policy.initial_state(self.columns, self.place)

        def inference() -> float:
            with torch.inference_mode():
                for t in range(rows):
                    act_row(
                        self.policy,
                        self.out,
                        t,
                        state,
                        self.parts.needs.core_every,
                        LATE,
                        self.rng,
                        self.parts.needs.record,
                    )
            return rows * self.columns / self.agents

        return inference

    def _together(self, rows: int) -> Callable[[], float]:
        """The call that acts as the inference thread does, on one of each sampler's two groups."""
        made, samplers = self.parts.resources, self.parts.resources.samplers_per_learner
        copy = ActingCopy(
            self.policy,
            made.device,
            self.rng,
            self.parts.needs.record,
            self.columns,
            samplers,
            self.parts.make_recorder(),
        )
        state = copy.policy.initial_state(self.columns, self.place)
        groups = [[Batch(obs=self.out.obs[t], is_first=self.out.is_first[t])] * samplers for t in range(rows)]

        def inference() -> float:
            with torch.no_grad():
                for row in groups:
                    copy.act(row, [state] * samplers)
            return rows * self.columns * samplers / self.agents

        return inference


def threaded(parts: LearnerParts, learning: Callable[[], float]) -> dict[str, list[float]]:
    """Three measurements of learning for each number of threads above one that the run may use."""
    rates = {}
    for number in (n for n in parts.resources.learner_threads if n > 1):
        parts.threads.take(number)
        rates[f"learning, {number} threads"] = [_rate(learning) for _ in range(3)]
    parts.threads.take(1)
    return rates


class PartsOfData:
    """The parts of a run that learns from recorded data, whose env steps are rows of the data."""

    def __init__(self, parts: LearnerParts):
        self.parts, self.algorithm, self.data = parts, parts.algorithm(), parts.data(0)
        self.products = parts.make_products()
        self.algorithm.absorb_rows(self.data.read(self.algorithm.policy.moments))
        asked = parts.needs.replay
        assert asked is not None
        self.steps = float(parts.needs.columns * asked.rows_learnt)

    def measure(self) -> dict[str, list[float]]:
        """Three measurements of each part, in rows/s."""
        device, clock = self.parts.resources.device, LATE
        gathers, rows = Gatherer(device, Timers()), self.data.sample(self.parts.columns, Clock())

        def drawing() -> float:
            nonlocal rows
            rows = self.data.sample(self.parts.columns, Clock())
            return self.steps

        def learning() -> float:
            nonlocal clock
            clock = clock.after(env_steps=round(self.steps), updates=1)
            with self.products:
                self.algorithm.update(gathers.upload(rows), clock)
            if device.type == "cuda":
                torch.cuda.synchronize()
            return self.steps

        two = (("drawing", drawing), ("learning", learning))
        return {name: [_rate(call) for _ in range(3)] for name, call in two} | threaded(self.parts, learning)


def updates_per_row(runner: Any) -> float:
    """How many updates each row takes part in (runners/actor_learner.py).

    It is above 1 where train batches are learnt from several times or contain earlier fragments. Epochs that an
    algorithm makes inside one update are not counted.
    """
    return runner.num_sgd_iter * (1.0 + runner.replay_proportion) if isinstance(runner, actor_learner.Config) else 1.0


class PartsOfEvolution:
    """The parts of an evolution run.

    Inference acts with different parameters in each column. Learning is counted by the env steps of the episodes that
    an update is made from.
    """

    def __init__(self, parts: LearnerParts):
        self.parts, self.envs = parts, parts.resources.envs_per_group
        self.columns = self.envs * parts.spec.columns_per_env
        noise, asked = parts.noise(), parts.needs.population
        assert asked is not None
        self.algorithm = parts.algorithm()
        self.algorithm.attach_noise(noise)
        self.player = Player(parts.crew(noise), 0, parts.policy_factory(acting=True)())
        few = max(1, min(asked.pairs, self.columns // 2))
        report = self.player.play(Order(0, 0, few, 0), Clock())
        times = -(-asked.pairs // few)
        self.batch = gathered([report] * times)  # an update's number of pairs, although some are repeats
        self.steps = max(report.env_steps * times, asked.min_env_steps)

    def measure(self) -> dict[str, list[float]]:
        """Three measurements of each part, in env steps/s."""
        policy, rng, spec = self.player.policy, np.random.default_rng(0), self.parts.spec
        rows: Rows = map_rows(self.player.env.reset(0), np.array)
        actions = [random_actions(spec, rows, self.columns, rng) for _ in range(64)]
        parameters, first, seen = (
            policy.vector().detach().repeat(self.columns, 1),
            torch.zeros(self.columns, dtype=torch.bool),
            to_torch(rows),
        )
        count = 0

        def env() -> int:
            nonlocal count
            count += 1
            self.player.env.step(actions[count % 64])
            return self.envs

        def inference() -> int:
            with torch.inference_mode():
                policy.act_with(parameters, seen, first)
            return self.envs

        def learning() -> int:
            self.algorithm.update(self.batch, LATE)
            return self.steps

        return {
            name: [_rate(call) for _ in range(3)]
            for name, call in (("env", env), ("inference", inference), ("learning", learning))
        }


def _rate(call: Callable[[], float]) -> float:
    """Calls per second, times what a call returns. The first call warms up, unless it takes so long that it is the
    measurement."""
    started = time.perf_counter()
    done = call()
    if (spent := time.perf_counter() - started) > LONG * PART_SEC:
        return done / spent
    started, done = time.perf_counter(), 0.0
    while time.perf_counter() - started < PART_SEC:
        done += call()
    return done / (time.perf_counter() - started)
