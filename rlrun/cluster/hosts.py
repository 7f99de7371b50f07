"""Hosts: the parts of a run that are on other machines, their calls, and what happens when one is lost.

A part is a number of samplers or players that one host has. Parts keep their numbers, and so their environments and
seeds, wherever their hosts are.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlrun.cluster.engine import Engine, Host, HostLost, awaited, places, too_few, working
from rlrun.cluster.packing import PackedFragment, unpack
from rlrun.cluster.weights import SentWeights
from rlrun.core.awake import awake
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.restarts import PROCESS_REPEATS, Repeated, Restarts
from rlrun.machine.nodes import RayConfig

LOOK_SEC = 5.0  # seconds between two looks at which machines there are
DOUBT_SEC = 30.0  # in which an engine finds out that a machine is gone
IDLE_SEC = 0.05  # to wait where nobody was asked for anything


class HostsWanted(NamedTuple):
    """What a run wants of its hosts."""

    kind: str  # class of the hosts, as module:Name
    brief: Mapping[str, Any]  # what every host is told, which JSON can write
    shares: Sequence[tuple[str, int]]  # machines as they were called when the run was planned, and workers of each
    first: int  # number of the first worker
    start_sec: float  # that a process may take to start
    timeout_sec: float  # of silence, after which a host is lost


class HostPart:
    """A part of the run's workers, and the host that has them now."""

    def __init__(self, number: int, first: int, workers: int):
        self.number, self.first, self.workers = number, first, workers
        self.name = f"host-{number}"
        self.host: Host | None = None  # None: it was lost and nobody has taken its place
        self.restart = 0
        self.calls: deque[Any] = deque()  # answers that are waited for, oldest first
        self.here = False  # whether it has answered here(), so that its machine had room for it
        self.ready = False  # whether it has answered that all its processes are ready
        self.sent = 0  # version of the weights that it was given last
        self.heard = awake()
        self.env_steps = 0  # since its host's last start
        self.repeated = Repeated(PROCESS_REPEATS)

    @property
    def node(self) -> str | None:
        return None if self.host is None else self.host.node


class HostAnswer(NamedTuple):
    part: HostPart
    fragments: list[PackedFragment]
    facts: dict[str, Any]


class Hosts:
    """Starts a run's hosts, and finds others where they are lost."""

    def __init__(
        self,
        engine: Engine,
        cfg: RayConfig,
        wanted: HostsWanted,
        restarts: Restarts | None,
        lost: Callable[[HostPart], int],
        say: Callable[[str], None] = lambda text: print(f"  note: {text}", flush=True),
    ):
        """lost(part): called when a part's host is gone; returns the env steps that are lost with it, at most. say:
        tells the user of moves."""
        self.engine, self.cfg, self.wanted, self.lost, self.say = engine, cfg, wanted, lost, say
        self.restarts = restarts or Restarts(0, 1.0)
        self.weights = SentWeights()
        self.put: tuple[int, Any] = (0, None)  # the version of the weights that the engine has stored, and its name
        self.parts: list[HostPart] = []
        self.looked = self.received = awake()
        self.doubted: dict[str, float] = {}  # machines that may be gone, and until when no host starts there

    def begin(self) -> None:
        """Starts all hosts and waits until they are ready. Raises RunFailed where one does not start."""
        first = self.wanted.first
        found = places([name for name, _ in self.wanted.shares], self._machines(len(self.wanted.shares)))
        nowhere = []
        for place, (_, workers) in zip(found, self.wanted.shares, strict=True):
            if workers:
                self.parts.append(HostPart(len(self.parts), first, workers))
                if place is not None:
                    self._start(self.parts[-1], place)
                else:
                    nowhere.append(self.parts[-1])
            first += workers
        for part in nowhere:
            self._replace(part, None)
        while any(part.host is not None and not part.ready for part in self.parts):
            self.receive(1.0)

    def letter(self, part: HostPart) -> tuple:
        """Returns the newest weights for a call to this part: the fields of a Letter. The engine stores each version
        once, and a host gets it once."""
        version, weights = self.weights.version, None
        if part.sent < version:
            if self.put[0] < version:
                self.put = (version, self.engine.put(self.weights.weights))
            weights, part.sent = self.put[1], version
        return version, weights, self.weights.made, self.weights.clock

    def call(self, part: HostPart, method: str, *args: Any) -> None:
        assert part.host is not None
        if not part.calls:
            part.heard = awake()  # nobody has waited for it until now
        part.calls.append(part.host.call(method, *args))

    def receive(self, timeout: float) -> list[HostAnswer]:
        """Returns the answers that are there, or that come within `timeout` seconds, without those of hosts that still
        start. Raises UserError or RunFailed where a host says that it failed, and RunFailed where too much is lost."""
        away = awake() - self.received
        if away > DOUBT_SEC:  # a long save or update: nobody has listened, so nobody was silent
            for part in self.parts:
                part.heard += away
        # Before the answers are taken in: those that are returned must be of hosts that their parts still have.
        self._look_at_machines()
        first = {part.calls[0]: part for part in self.parts if part.calls}
        answers = []
        for answer in self.engine.wait(list(first), timeout) if first else ():
            part = first[answer]
            try:
                packed = self.engine.get(answer)
            except HostLost as error:
                if error.machine:
                    self.doubted[part.node or ""] = awake() + DOUBT_SEC
                self._lost(part, f"{part.name} on {part.node}: {error}")
                continue
            except RunFailed as error:
                raise RunFailed(f"{part.name} on {part.node}: {error}") from None
            part.calls.popleft()
            part.heard = awake()
            answers += self._heed(part, packed)
        if not first and timeout:
            time.sleep(min(timeout, IDLE_SEC))
        for part in self.parts:
            if part.calls and awake() - part.heard > self._patience(part):
                reason = self._silent(part)
                if not part.ready and not part.restart:
                    raise RunFailed(reason)
                self._lost(part, reason)
        self.received = awake()
        return answers

    def close(self) -> None:
        hosts, self.parts = [part.host for part in self.parts if part.host is not None], []
        try:
            self.engine.stop(hosts)
        finally:
            self.engine.close()

    # -- starting ------------------------------------------------------------------------------------------------------

    def _machines(self, count: int) -> list[str]:
        """Waits until as many machines are there as the run was planned for. Where some are lost by then, as when a run
        begins again without them, resources.ray.lost says what becomes of their workers."""
        names = [node.name for node in awaited(self.engine, count, self.cfg.join_sec)]
        if len(names) < count:
            said = too_few(count, names, self.cfg.join_sec)
            if self.cfg.lost == "end" or not names:
                raise RunFailed(f"{said}; resources.ray.join_sec waits longer")
            self.say(said)
        return names

    def _start(self, part: HostPart, node: str, spare: bool = False) -> None:
        told = dict(self.wanted.brief) | {"first": part.first, "workers": part.workers, "restart": part.restart}
        part.host = self.engine.start(self.wanted.kind, part.name, node, json.dumps(told).encode(), spare)
        part.calls.clear()
        part.here, part.ready, part.sent, part.env_steps = False, False, 0, 0
        self.call(part, "here")

    def _heed(self, part: HostPart, packed: Any) -> list[HostAnswer]:
        """Takes in an answer."""
        fragments, facts = unpack(packed)
        if facts["failed"] is not None:
            said = f"{part.name} on {part.node}: {facts['failed']}"
            raise UserError(said) if facts["wrong"] else RunFailed(said)
        for sentence, lost in facts["news"]:
            self.restarts.process_failed(sentence, lost)
        if not part.here:
            part.here = True
            self.call(part, "start")
            return []
        if not part.ready:
            part.ready = facts["starting"] == 0
            if not part.ready:
                self.call(part, "ready")
            return []
        part.env_steps += sum(one.header.env_steps for one in fragments)
        return [HostAnswer(part, fragments, facts)]

    # -- losing --------------------------------------------------------------------------------------------------------

    def _patience(self, part: HostPart) -> float:
        """Returns the seconds of silence after which a host is lost."""
        if part.ready:
            return self.wanted.timeout_sec
        if part.here:  # it plans, then answers every few seconds and says itself which of its processes is late
            return max(self.wanted.start_sec, DOUBT_SEC)
        return self.cfg.join_sec + self.wanted.start_sec

    def _silent(self, part: HostPart) -> str:
        if part.ready:
            return f"{part.name} on {part.node} was silent for {self.wanted.timeout_sec:g} s"
        if part.here:
            return (
                f"{part.name} on {part.node} was silent for {self._patience(part):g} s while it started: its"
                " environment may be slow to make or hang, or its machine may be busy; resources.start_timeout_sec"
                " allows more"
            )
        late = f"{part.name} on {part.node} did not start within {self._patience(part):g} s"
        there = ", ".join(f"{one.name} ({one.cores} cores)" for one in self.engine.nodes())
        return f"{late}: it waits for free cores there, and the cluster has {there}; other runs may use them"

    def _lost(self, part: HostPart, reason: str) -> None:
        """Puts a new host in the place of one that is gone, or leaves its workers out."""
        assert part.host is not None
        host, part.host = part.host, None
        self.engine.stop([host])
        lost = self.lost(part)
        part.calls.clear()
        if self.cfg.lost == "end":
            raise RunFailed(f"{reason}; resources.ray.lost=end ends the run")
        if part.repeated(reason, part.env_steps if part.restart else None):
            raise RunFailed(f"{reason}\nThis has happened {part.repeated.times} times in a row, soon after each start.")
        self.restarts.process_failed(reason, lost)
        part.restart += 1
        self._replace(part, host.node)

    def _replace(self, part: HostPart, node: str | None) -> None:
        """Starts a part's host anew: where it was (node), if that machine still answers, or on one that has none, or
        else beside another host."""
        there = [one.name for one in working(self.engine)]
        names = [name for name in there if self.doubted.get(name, 0.0) < awake()] or there
        used = {other.node for other in self.parts}
        free = [name for name in names if name not in used]
        if node in free:
            self._start(part, node)
        elif free:
            self.say(f"{part.name} goes on {free[0]}")
            self._start(part, free[0])
        elif self.cfg.lost == "take_over" and names:
            load = {name: sum(other.workers for other in self.parts if other.node == name) for name in names}
            least = min(names, key=lambda name: load[name])
            self.say(f"{least} takes over the samplers of {part.name}, until another machine joins")
            self._start(part, least, spare=True)
        elif not any(other.host is not None for other in self.parts):
            raise RunFailed("no machine is left that steps environments")
        else:
            self.say(f"the samplers of {part.name} are left out, until another machine joins")

    def _look_at_machines(self) -> None:
        """Gives machines that have joined to parts that have none of their own."""
        places = [part.node for part in self.parts]
        if awake() - self.looked < LOOK_SEC or len(set(places) - {None}) == len(places):
            return
        self.looked = awake()
        for node in working(self.engine):
            places = [part.node for part in self.parts]
            crowded = [part for part in self.parts if part.host is None or places.count(part.node) > 1]
            if node.name in places or not crowded or self.doubted.get(node.name, 0.0) > awake():
                continue
            part = next((one for one in crowded if one.host is None), crowded[-1])
            self.say(f"{node.name} has joined and takes the samplers of {part.name}")
            if part.host is not None:
                self.engine.stop([part.host])
                self.restarts.lost_env_steps += self.lost(part)
            part.restart += 1
            self._start(part, node.name)
