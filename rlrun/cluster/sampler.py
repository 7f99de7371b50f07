"""HostSampler: samplers on several machines, behind the same interface as those of one.

learner                                                     host on each machine
collect(newest weights, free slots)  -- calls ahead -->     publishes the weights to its samplers in shared memory
fragments                            <-- packed bytes --    hands over those that are filled

Each host has a few calls waiting. It gets no further one while its fragments are waiting here, so samplers that are
faster than the learner fill their slots and wait. Samplers have the numbers, seeds and environments that they would
have on one machine.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlrun.cluster.engine import Engine, Host, HostLost
from rlrun.cluster.packing import Form, PackedFragment, unpack
from rlrun.cluster.weights import SentWeights
from rlrun.core.batch import Batch, RowSpec, allocate
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.policy import Policy
from rlrun.core.restarts import PROCESS_REPEATS, Repeated, Restarts
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment, Slots
from rlrun.dataflow.stores import FragmentStore, Key
from rlrun.machine.nodes import Node, RayConfig
from rlrun.samplers.processes import SamplerPlan

ANSWER_BYTES = 4_000_000  # of unpacked fragments, which one answer holds at least, if there are so many
LOOK_SEC = 5.0  # seconds between two looks at which machines there are
DOUBT_SEC = 30.0  # in which an engine finds out that a machine is gone


class Arrivals(FragmentStore):
    """A FragmentStore for fragments that have come from other machines. It grows as far as its user needs, or has so
    many places of shared memory, for other processes of this machine that read them."""

    def __init__(self, layout: RowSpec, shared: int = 0):
        """shared: places of shared memory; 0: the store grows in this process's own."""
        self.layout = layout
        self.memory = Slots(layout, shared) if shared else None
        self.places: list[Batch] = [] if self.memory is None else [self.memory.view(key) for key in self.memory.keys]
        self.spare: list[int] = list(range(shared))

    def __getstate__(self) -> dict[str, Any]:
        assert self.memory is not None, "only shared memory can be read by other processes"
        return {"layout": self.layout, "memory": self.memory, "spare": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.places = [self.memory.view(key) for key in self.memory.keys]  # type: ignore[union-attr]

    @property
    def keys(self) -> range:
        return range(len(self.places))

    def view(self, key: Key) -> Batch:
        return self.places[key]  # type: ignore[call-overload]

    def new(self) -> int:
        """Returns the key of a place that nobody uses."""
        if self.spare:
            return self.spare.pop()
        assert self.memory is None, "take() hands over no more fragments than there are places"
        self.places.append(allocate(self.layout))
        return len(self.places) - 1

    @property
    def room(self) -> int:
        """Returns how many fragments fit now."""
        return len(self.spare) if self.memory is not None else 2**62

    def pin(self) -> None:
        """Page-locks shared memory. Memory that grows is copied to the GPU through pages that PyTorch locks itself."""
        if self.memory is not None:
            self.memory.pin()

    def unpin(self) -> None:
        if self.memory is not None:
            self.memory.unpin()


class _Part:
    """A part of the run's samplers: those that one host has."""

    def __init__(self, number: int, first: int, workers: int, slots: int):
        self.number, self.first, self.workers = number, first, workers
        self.slots = slots  # fragments that its samplers have room for
        self.host: Host | None = None  # None: it was lost and nobody has taken its place
        self.home = ""  # name of the machine that it was planned for
        self.restart = 0
        self.calls: deque[Any] = deque()  # answers that are waited for, oldest first
        self.ready = False  # whether it has answered start()
        self.here = 0  # its fragments that have arrived and were not taken
        # Where samplers wait for new weights: slots whose rows are here, and those that are free without its knowing.
        self.outside: set[Key] = set()
        self.freed: list[Key] = []
        self.begun = False  # whether it knows which slots its samplers must not fill yet
        self.sent = 0  # version of the weights that it was given last
        self.heard = time.monotonic()
        self.repeated = Repeated(PROCESS_REPEATS)
        self.collected = 0  # env steps since its last start

    @property
    def name(self) -> str:
        return f"host-{self.number}"


class HostSampler:
    """Collects fragments from hosts on several machines."""

    def __init__(
        self,
        plan: SamplerPlan,
        cfg: RayConfig,
        engine: Engine,
        kind: str,
        brief: Mapping[str, Any],
        shares: Sequence[int],
        form: Form,
        synchronous: bool,
        restarts: Restarts | None = None,
        shared: bool = False,
        say: Callable[[str], None] = lambda text: print(f"  note: {text}", flush=True),
    ):
        """plan: that of all samplers. kind: the class of a host. brief: what every host is told. shares: samplers of
        each of the engine's machines. synchronous: whether samplers wait for new weights before they fill a slot
        again. shared: whether other processes of this machine read what has arrived."""
        self.plan, self.cfg, self.engine, self.kind, self.brief = plan, cfg, engine, kind, dict(brief)
        self.form, self.synchronous, self.say = form, synchronous, say
        self.restarts = restarts or Restarts(0, 1.0)
        self.columns, self.total_columns = plan.columns, plan.columns * plan.workers
        self.slots = Arrivals(plan.layout, plan.workers * plan.in_flight if shared else 0)
        self.weights = SentWeights()
        self.put: tuple[int, Any] = (0, None)  # the version of the weights that the engine has stored, and its name
        self.arrived: deque[tuple[_Part, PackedFragment]] = deque()
        self.owner: dict[Key, tuple[_Part, Key]] = {}  # of the places in use: the host's slot of each
        self.parts: list[_Part] = []
        self.looked = time.monotonic()
        self.doubted: dict[str, float] = {}  # machines that may be gone, and until when no host starts there
        bytes_each = sum(leaf.nbytes for leaf in allocate(plan.layout).leaves())
        self.most = max(1, ANSWER_BYTES // bytes_each)
        first = plan.first
        try:
            for node, workers in zip(self._machines(len(shares)), shares, strict=True):
                if workers:
                    part = _Part(len(self.parts), first, workers, workers * plan.in_flight)
                    part.home = node.name
                    self.parts.append(part)
                    self._start(part, node.name)
                first += workers
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def _machines(self, count: int) -> Sequence[Node]:
        """Waits until as many machines are there as the run was planned for."""
        end = time.monotonic() + self.cfg.join_sec
        while len(nodes := self.engine.nodes()) < count:
            if time.monotonic() > end:
                raise RunFailed(
                    f"the run was planned for {count} machines, and after {self.cfg.join_sec:g} s the cluster has"
                    f" {len(nodes)} ({', '.join(node.name for node in nodes)}); resources.ray.join_sec waits longer"
                )
            time.sleep(0.2)
        return nodes[:count]

    def _start(self, part: _Part, node: str, spare: bool = False) -> None:
        told = self.brief | {
            "first": part.first,
            "workers": part.workers,
            "generation": self.plan.generation,
            "restart": part.restart,
            "synchronous": self.synchronous,
            "compress": self.form.compress,
        }
        part.host = self.engine.start(self.kind, part.name, node, json.dumps(told).encode(), spare)
        part.calls.clear()
        part.ready, part.begun, part.sent, part.collected = False, False, 0, 0
        part.heard = time.monotonic()
        part.calls.append(part.host.call("start"))

    def _wait_until_ready(self) -> None:
        while waiting := [part for part in self.parts if part.host is not None and not part.ready]:
            self._receive(1.0)
            for part in waiting:
                if not part.ready and time.monotonic() - part.heard > self._patience(part):
                    raise RunFailed(self._silent(part))

    def _patience(self, part: _Part) -> float:
        """Seconds of silence after which a host is lost."""
        limits = self.plan.limits
        return self.cfg.join_sec + limits.start_sec if not part.ready else self.plan.timeout_sec

    def _silent(self, part: _Part) -> str:
        node = part.host.node if part.host is not None else "?"
        if part.ready:
            return f"{part.name} on {node} was silent for {self.plan.timeout_sec:g} s"
        there = ", ".join(f"{one.name} ({one.cores} cores)" for one in self.engine.nodes())
        return (
            f"{part.name} did not start within {self._patience(part):g} s: it needs {part.workers} cores of {node}, and"
            f" the cluster has {there}; other runs may use them"
        )

    def _lost(self, part: _Part, reason: str) -> None:
        """Puts a new host in the place of one that is gone, or leaves its samplers out."""
        assert part.host is not None
        lost, node = part.host, part.host.node
        self.engine.stop([lost])
        part.host = None
        part.calls.clear()
        # What has arrived is whole and is learnt from. What it was filling is lost.
        at_most = (part.slots - len(part.outside)) * self.plan.envs * int(self.plan.layout["reward"].shape[0])  # type: ignore[union-attr]
        if self.cfg.lost == "end":
            raise RunFailed(f"{reason}; resources.ray.lost=end ends the run")
        if self.repeated(part, reason):
            raise RunFailed(f"{reason}\nThis has happened {part.repeated.times} times in a row, each time at once.")
        self.restarts.process_failed(reason, at_most)
        part.restart += 1
        self._replace(part, node)

    def repeated(self, part: _Part, reason: str) -> bool:
        return part.repeated(reason, part.collected if part.restart else None)

    def _replace(self, part: _Part, node: str) -> None:
        """Starts a part's host anew: where it was, if that machine still answers, or on one that has none, or else
        beside another host."""
        there = [one.name for one in self.engine.nodes()]
        names = [name for name in there if self.doubted.get(name, 0.0) < time.monotonic()] or there
        used = {other.host.node for other in self.parts if other.host is not None}
        free = [name for name in names if name not in used]
        if node in free:
            self._start(part, node)
        elif free:
            self.say(f"{part.name} goes on {free[0]}")
            self._start(part, free[0])
        elif self.cfg.lost == "take_over" and names:
            load = {name: sum(p.workers for p in self.parts if p.host and p.host.node == name) for name in names}
            other = min(names, key=lambda name: load[name])
            self.say(f"{other} takes over the samplers of {part.name}, until another machine joins")
            self._start(part, other, spare=True)
        elif not any(other.host is not None for other in self.parts):
            raise RunFailed("no machine is left that steps environments")
        else:
            self.say(f"the samplers of {part.name} are left out, until another machine joins")

    def _look_at_machines(self) -> None:
        """Gives machines that have joined to parts that have none of their own."""
        if time.monotonic() - self.looked < LOOK_SEC or len(self.parts) == len({self._node(p) for p in self.parts}):
            return
        self.looked = time.monotonic()
        used = {self._node(part) for part in self.parts}
        for node in self.engine.nodes():
            crowded = [
                p for p in self.parts if p.host is None or [self._node(o) for o in self.parts].count(self._node(p)) > 1
            ]
            if node.name in used or not crowded or self.doubted.get(node.name, 0.0) > time.monotonic():
                continue
            part = next((p for p in crowded if p.host is None), crowded[-1])
            if part.host is not None:
                self.engine.stop([part.host])
            self.say(f"{node.name} has joined and takes the samplers of {part.name}")
            part.restart += 1
            self._start(part, node.name)
            used.add(node.name)

    @staticmethod
    def _node(part: _Part) -> str | None:
        return None if part.host is None else part.host.node

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Gives hosts as many calls as they should have."""
        for part in self.parts:
            if part.host is None or not part.ready or self.weights.version == 0:
                continue
            if self.synchronous:
                if not part.calls and len(part.outside) < part.slots:
                    self._collect(part)
            else:
                while len(part.calls) < self.cfg.calls_ahead and part.here <= min(self.most, part.slots):
                    self._collect(part)

    def _collect(self, part: _Part) -> None:
        assert part.host is not None
        version, weights = self.weights.version, None
        if part.sent < version:
            if self.put[0] < version:
                self.put = (version, self.engine.put(self.weights.weights))
            weights, part.sent = self.put[1], version
        most = part.slots if self.synchronous else self.most
        letter = (version, weights, self.weights.made, self.weights.clock)
        # A new host has the slots that the lost one had, and must not fill those whose rows are here.
        held = [] if part.begun else [*part.outside, *part.freed]
        part.calls.append(part.host.call("collect", *letter, part.freed, held, most))
        part.begun, part.freed = True, []

    def _receive(self, timeout: float) -> None:
        """Takes the answers that are there, or that come within `timeout` seconds."""
        self._ask()
        first = {part.calls[0]: part for part in self.parts if part.calls}
        for answer in self.engine.wait(list(first), timeout) if first else ():
            part = first[answer]
            try:
                packed = self.engine.get(answer)
            except HostLost as error:
                if error.machine:
                    self.doubted[self._node(part) or ""] = time.monotonic() + DOUBT_SEC
                self._lost(part, f"{part.name} on {self._node(part)}: {error}")
                continue
            part.calls.popleft()
            part.heard = time.monotonic()
            self._heed(part, packed)
        if not first and timeout:
            time.sleep(min(timeout, 0.05))
        for part in self.parts:
            if part.calls and part.ready and time.monotonic() - part.heard > self._patience(part):
                self._lost(part, self._silent(part))
        self._look_at_machines()
        self._ask()

    def _heed(self, part: _Part, packed: Any) -> None:
        """Takes in an answer."""
        fragments, facts = unpack(packed)
        if facts["failed"] is not None:
            said = f"{part.name} on {self._node(part)}: {facts['failed']}"
            raise UserError(said) if facts["wrong"] else RunFailed(said)
        part.ready = True
        for sentence, lost in facts["news"]:
            self.restarts.process_failed(sentence, lost)
        for one in fragments:
            part.here += 1
            part.collected += one.header.env_steps
            if self.synchronous:
                part.outside.add(one.header.slot)
            self.arrived.append((part, one))

    # -- as runners see it ---------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Fragments that have arrived, that nobody has taken yet and for which there is room."""
        return min(len(self.arrived), self.slots.room)

    def begin(self) -> None:
        assert self.weights.version > 0, "publish() comes first"
        self._ask()

    def take(self, count: int) -> Sequence[Fragment]:
        self.begin()
        self.check()
        heard = time.monotonic()
        while self.queued < count:
            before = len(self.arrived)
            self._receive(0.5)
            if len(self.arrived) > before:
                heard = time.monotonic()
            elif time.monotonic() - heard > self.plan.timeout_sec and all(
                p.ready or p.host is None for p in self.parts
            ):
                names = ", ".join(part.name for part in self.parts if part.host is not None)
                raise RunFailed(f"no fragment from {names} for {self.plan.timeout_sec:g} s: an environment may hang")
        return [self._taken(*self.arrived.popleft()) for _ in range(count)]

    def _taken(self, part: _Part, packed: PackedFragment) -> Fragment:
        key = self.slots.new()
        batch = self.slots.view(key)
        packed.unpack(self.form, batch)
        part.here -= 1
        if self.synchronous:
            self.owner[key] = (part, packed.header.slot)
        return Fragment(packed.header._replace(slot=key), batch)

    def free(self, fragments: Sequence[Fragment]) -> None:
        for fragment in fragments:
            key: int = fragment.header.slot  # type: ignore[assignment]
            self.slots.spare.append(key)
            if key in self.owner:
                part, slot = self.owner.pop(key)
                part.outside.remove(slot)
                part.freed.append(slot)
        self._ask()

    def check(self) -> None:
        """Takes in what has arrived. Raises RunFailed when too much was lost."""
        self._receive(0.0)

    def handles(self) -> list:
        return []  # answers cannot be waited for together with pipes

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        self.weights.publish(policy, clock)

    def pin(self) -> None:
        self.slots.pin()

    def restart(self, generation: int) -> None:
        """Does nothing, because only bit-exact (serial) runs break their columns at a checkpoint."""

    def save(self) -> dict:
        return {}

    def load(self, saved: dict) -> None:
        """Does nothing: columns begin new episodes with seeds of the resumed run's generation."""

    def close(self) -> None:
        hosts = [part.host for part in self.parts if part.host is not None]
        self.parts = []
        try:
            self.engine.stop(hosts)
        finally:
            self.slots.unpin()
            self.engine.close()
