"""A discrete-event simulation of an actor_learner run on many machines, in plain Python.

What is simulated is what cluster/sampler.py and runtime/host.py do. A sampler fills a fragment with the weights that it
finds when it begins. A host answers calls one after the other: it fetches new weights, waits for a fragment, packs it,
and gives its place back. The learner keeps a few calls waiting at each host, unpacks what arrives, learns from so many
fragments, and publishes. A machine that wants weights fetches them from the machine that has them and whose network is
free first, as Ray does, so that a broadcast forms a chain. Cores are shared evenly by all who want them, and a network
serves one transfer at a time in each direction.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from rlrun.core.ranges import Count, NotNegative, Positive

Then = Callable[[], None]
WARM = 1 / 3  # share of the simulated time that is not counted
SAME = 0.02  # difference of two such shares that means nothing
NEAR = 0.8  # share of the time from which a part that works is called the narrowest


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What a run on a cluster is simulated from. Sizes are bytes, times are seconds, bandwidths are bytes/s."""

    nodes: Annotated[int, Count]
    cores: Annotated[int, Count]  # of each node
    samplers: Annotated[int, Count]  # processes of each node
    rows: Annotated[int, Count]  # of a fragment
    columns: Annotated[int, Count]  # of a fragment
    fragments: Annotated[int, Count]  # from which an update learns
    slots: Annotated[int, Count]  # fragments that a sampler has room for
    calls_ahead: Annotated[int, Count]  # calls that wait at each node
    answer: Annotated[int, Count]  # fragments in one answer, at most
    step_sec: Annotated[float, Positive]  # of one core, for an env step with its inference
    pack_sec: Annotated[float, NotNegative]  # of one core of a node, for an env step
    unpack_sec: Annotated[float, NotNegative]  # of the learner, for an env step
    update_sec: Annotated[float, NotNegative]  # of the learner, for an update
    put_sec: Annotated[float, NotNegative]  # of the learner, to publish weights
    call_sec: Annotated[float, NotNegative]  # of the learner, for a call and its answer
    load_sec: Annotated[float, NotNegative]  # of a node, to take in new weights
    step_bytes: Annotated[float, NotNegative]  # packed, for an env step
    weights_bytes: Annotated[float, NotNegative]
    bandwidth: Annotated[float, Positive]  # of a node's network, each way
    head_bandwidth: Annotated[float, Positive]  # of the network of the learner's machine, each way
    broadcast: Annotated[int, Count]  # updates after which weights are published
    latency_sec: Annotated[float, NotNegative]  # one way
    gpu: bool  # whether updates are made beside the cores of the learner's machine
    shared: bool  # whether the nodes are parts of one machine with `cores` cores in all, as simulated ones are

    @property
    def fragment_steps(self) -> int:
        return self.rows * self.columns

    @property
    def most(self) -> int:
        """Fragments in one answer: at most a node's part of a train batch, as in cluster/sampler.py."""
        return min(self.answer, self.samplers * self.slots, -(-self.fragments // self.nodes))


class Loop:
    """Simulated time."""

    def __init__(self) -> None:
        self.now, self.events, self.numbers = 0.0, [], itertools.count()  # type: ignore[var-annotated]

    def at(self, time: float, then: Then) -> None:
        heapq.heappush(self.events, (time, next(self.numbers), then))

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, then = heapq.heappop(self.events)
            then()
        self.now = until


class SharedCores:
    """Cores that are shared evenly: with n tasks, each advances at the speed of min(1, cores / n) cores."""

    def __init__(self, loop: Loop, count: int):
        self.loop, self.count = loop, count
        self.tasks: list[tuple[float, int, Then]] = []  # by the work at which each ends
        self.done, self.since, self.planned = 0.0, 0.0, 0  # work of each task since the beginning
        self.used = 0.0  # seconds of cores

    def work(self, seconds: float, then: Then) -> None:
        """seconds: of one whole core."""
        self._advance()
        heapq.heappush(self.tasks, (self.done + seconds, next(self.loop.numbers), then))
        self._plan()

    def _advance(self) -> None:
        if self.tasks:
            each = (self.loop.now - self.since) * min(1.0, self.count / len(self.tasks))
            self.done, self.used = self.done + each, self.used + each * len(self.tasks)
        self.since = self.loop.now

    def _plan(self) -> None:
        """Plans the next end of a task. An earlier plan that is still in the loop is void."""
        self.planned += 1
        if self.tasks:
            left = max(0.0, self.tasks[0][0] - self.done) / min(1.0, self.count / len(self.tasks))
            self.loop.at(self.loop.now + left, lambda number=self.planned: self._end(number))  # type: ignore[misc]

    def _end(self, number: int) -> None:
        if number != self.planned:
            return
        self._advance()
        self.done = max(self.done, self.tasks[0][0])
        _, _, then = heapq.heappop(self.tasks)
        self._plan()
        then()


class Direction:
    """One direction of a machine's network, which serves one transfer at a time."""

    def __init__(self, bandwidth: float):
        self.bandwidth, self.free, self.busy = bandwidth, 0.0, 0.0

    def take(self, size: float, start: float) -> None:
        self.free = start + size / self.bandwidth
        self.busy += size / self.bandwidth


class _Machine:
    """A machine's cores and network."""

    def __init__(self, loop: Loop, cores: int, bandwidth: float):
        self.cores, self.inward, self.outward = SharedCores(loop, cores), Direction(bandwidth), Direction(bandwidth)


def send(loop: Loop, source: Any, target: Any, size: float, latency: float, then: Then) -> None:
    """Sends so many bytes from one machine to another. A message without them waits for nothing else on its way."""
    if source is target or not size:
        loop.at(loop.now + (latency if source is not target else 0.0), then)
        return
    start = max(loop.now, source.outward.free, target.inward.free)
    source.outward.take(size, start)
    target.inward.take(size, start)
    loop.at(max(source.outward.free, target.inward.free) + latency, then)


class _Call(NamedTuple):
    version: int | None  # of the weights that it brings
    ready: list[bool]  # whether they are there


class _Node:
    """A host with its samplers."""

    def __init__(self, run: Simulation, machine: _Machine):
        facts = run.facts
        self.run, self.machine, self.facts = run, machine, facts
        self.version, self.sent = 0, 0
        self.free = [facts.slots] * facts.samplers  # slots of each sampler that it may fill
        self.working = [False] * facts.samplers
        self.filled: deque[tuple[int, int]] = deque()  # (sampler, version that acted)
        self.calls: deque[_Call] = deque()
        self.serving = False
        self.outstanding = 0  # calls, as the learner sees them
        self.here = 0  # fragments that have arrived and were not taken
        self.packing = 0.0

    def ask(self, version: int) -> None:
        """The learner calls."""
        run, new = self.run, version if self.sent < version else None
        self.outstanding += 1
        call = _Call(new, [new is None])
        self.sent = version
        self.calls.append(call)

        def there() -> None:
            if new is not None:
                run.holders.setdefault(new, []).append(self.machine)
            call.ready[0] = True
            self.serve()

        if new is None:
            send(run.loop, run.head, self.machine, 0.0, self.facts.latency_sec, there)
        else:
            source = min(run.holders[new], key=lambda one: one.outward.free)
            send(run.loop, source, self.machine, self.facts.weights_bytes, self.facts.latency_sec, there)

    def serve(self) -> None:
        """The host begins its next call, if it has one whose weights are there."""
        if self.serving or not self.calls or not self.calls[0].ready[0]:
            return
        self.serving = True
        version = self.calls[0].version
        if version is None:
            self.answer()
        else:
            self.machine.cores.work(self.facts.load_sec, lambda: self.take_in(version))

    def take_in(self, version: int) -> None:
        self.version = version
        for number in range(self.facts.samplers):
            self.sample(number)
        self.answer()

    def answer(self) -> None:
        """Packs what is filled, or waits for it."""
        if not self.serving or self.packing or not self.filled:
            return
        count = min(len(self.filled), self.facts.most)
        taken = [self.filled.popleft() for _ in range(count)]
        began = self.run.loop.now
        self.packing = 1.0

        def packed() -> None:
            self.packing = 0.0
            self.run.packing += self.run.loop.now - began
            self.calls.popleft()
            self.serving = False
            for number, _ in taken:
                self.free[number] += 1
                self.sample(number)
            size = count * self.facts.fragment_steps * self.facts.step_bytes
            send(
                self.run.loop,
                self.machine,
                self.run.head,
                size,
                self.facts.latency_sec,
                lambda: self.run.arrive(self, [version for _, version in taken]),
            )
            self.serve()

        self.machine.cores.work(count * self.facts.fragment_steps * self.facts.pack_sec, packed)

    def sample(self, number: int) -> None:
        """A sampler begins its next fragment, if it has room."""
        if self.working[number] or not self.free[number] or not self.version:
            return
        self.working[number] = True
        self.free[number] -= 1
        began, version = self.run.loop.now, self.version

        def full() -> None:
            self.run.sampling += self.run.loop.now - began
            self.working[number] = False
            self.filled.append((number, version))
            self.sample(number)
            self.answer()

        self.machine.cores.work(self.facts.fragment_steps * self.facts.step_sec, full)


class Result(NamedTuple):
    """What a simulated run would do."""

    steps_per_sec: float  # env steps
    steps_per_core_sec: float  # env steps for each second of a core that was used
    updates_per_sec: float
    lag: float  # updates between the weights that acted and those that learn, on average
    busy: dict[str, float]  # share of the time in which each part works
    narrowest: str


class Simulation:
    """One run."""

    def __init__(self, facts: ClusterFacts):
        self.facts, self.loop = facts, Loop()
        self.head = _Machine(self.loop, facts.cores, facts.head_bandwidth)
        # The learner's machine is the first node, as it is in a cluster whose head steps environments too.
        others = (_Machine(self.loop, facts.cores, facts.bandwidth) for _ in range(facts.nodes - 1))
        machines = [self.head] * facts.nodes if facts.shared else [self.head, *others]
        self.nodes = [_Node(self, machine) for machine in machines]
        self.machines = list(dict.fromkeys(machines))
        self.version = 1
        self.holders: dict[int, list[_Machine]] = {1: [self.head]}
        self.made = {1: 0}  # updates that made each version
        self.answers: deque[tuple[_Node, list[int]]] = deque()
        self.arrived: deque[tuple[_Node, int]] = deque()
        self.waits, self.lags, self.steps, self.updates = False, 0, 0, 0
        self.learning = self.packing = self.sampling = 0.0
        self.learner = self.learn()
        self.learner_began = 0.0

    # -- the learner ---------------------------------------------------------------------------------------------------

    def arrive(self, node: _Node, versions: list[int]) -> None:
        self.answers.append((node, versions))
        if self.waits:
            self.waits = False
            self.go_on()

    def go_on(self) -> None:
        """Lets the learner do its next piece of work."""
        self.learner_began = self.loop.now
        seconds, on_gpu = next(self.learner)

        def end() -> None:
            self.learning += self.loop.now - self.learner_began
            self.go_on()

        if seconds is None:
            self.waits = True
        elif on_gpu:
            self.loop.at(self.loop.now + seconds, end)
        else:
            self.head.cores.work(seconds, end)

    def learn(self) -> Generator[tuple[float | None, bool], None, None]:
        """Yields pieces of work, (seconds, whether a GPU does them), or (None, False) to wait for an answer."""
        facts = self.facts
        self.ask()
        while True:
            while len(self.arrived) < facts.fragments:
                if not self.answers:
                    yield None, False
                while self.answers:
                    node, versions = self.answers.popleft()
                    yield facts.call_sec, False
                    node.outstanding -= 1
                    node.here += len(versions)
                    self.arrived.extend((node, version) for version in versions)
                    self.ask()
            for _ in range(facts.fragments):
                node, version = self.arrived.popleft()
                node.here -= 1
                self.lags += self.updates - self.made[version]
                yield facts.fragment_steps * facts.unpack_sec, False
            self.ask()
            yield facts.update_sec, facts.gpu
            self.steps += facts.fragments * facts.fragment_steps
            self.updates += 1
            if self.updates % facts.broadcast == 0:
                yield facts.put_sec, False
                self.version += 1
                self.made[self.version] = self.updates
                self.holders[self.version] = [self.head]
                self.holders.pop(self.version - 50, None)
            self.ask()

    def ask(self) -> None:
        """Gives hosts as many calls as they should have."""
        most = self.facts.most
        short = len(self.arrived) < self.facts.fragments
        for node in self.nodes:
            while node.outstanding + node.here // most < self.facts.calls_ahead or (short and not node.outstanding):
                node.ask(self.version)

    # -- result --------------------------------------------------------------------------------------------------------

    def _totals(self) -> dict[str, float]:
        far = [machine for machine in self.machines if machine is not self.head]
        return {
            "learner": self.learning,
            "samplers": self.sampling / (self.facts.nodes * self.facts.samplers),
            "packing on the nodes": self.packing / self.facts.nodes,
            "network of the nodes": max((max(m.inward.busy, m.outward.busy) for m in far), default=0.0),
            "network into the learner's machine": self.head.inward.busy,
            "network out of the learner's machine": self.head.outward.busy,
        }

    def run(self, seconds: float) -> Result:
        """Simulates so many seconds, of which the first third does not count."""
        self.go_on()
        self.loop.run(seconds * WARM)
        before, steps, updates, lags = self._totals(), self.steps, self.updates, self.lags
        used = sum(machine.cores.used for machine in self.machines)
        self.loop.run(seconds)
        span = seconds * (1 - WARM)
        busy = {name: min(1.0, (value - before[name]) / span) for name, value in self._totals().items()}
        fragments = (self.updates - updates) * self.facts.fragments
        # A network is busy with weights whenever it can be: of parts that work as much, the first one decides.
        best = next(name for name, share in busy.items() if share >= max(busy.values()) - SAME)
        used = sum(machine.cores.used for machine in self.machines) - used
        return Result(
            (self.steps - steps) / span,
            (self.steps - steps) / max(1e-9, used),
            (self.updates - updates) / span,
            (self.lags - lags) / max(1, fragments),
            busy,
            best if busy[best] >= NEAR else "round trips",
        )


def simulate(facts: ClusterFacts, updates: int = 150) -> Result:
    """Simulates a run for about so many updates."""
    steps = facts.fragments * facts.fragment_steps
    cores = facts.cores if facts.shared else facts.cores * facts.nodes
    samplers = min(cores, facts.samplers * facts.nodes)
    slowest = max(
        steps * facts.step_sec / samplers,
        steps * facts.unpack_sec + facts.update_sec + facts.put_sec,
        steps * facts.step_bytes / facts.head_bandwidth,
    )
    first = facts.fragment_steps * facts.step_sec * max(1.0, facts.samplers * facts.nodes / samplers)
    return Simulation(facts).run(updates * slowest + 6 * first)
