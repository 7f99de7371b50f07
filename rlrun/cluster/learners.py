"""Learners on several machines: the first is the run's own process, and hosts have the others.

first learner                                     host of each other learner
start()                          -->              makes the run's plan again
learn(port of the store)         -->              joins the store and learns until the first one says that it is over
sums, counts and decisions       <-- gloo -->     directly between the learners (dataflow/ranks.py)

A learner that is lost ends the session at once, and the run begins again from its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist

from rlrun.cluster.engine import Engine, Host, HostLost, awaited, places, too_few
from rlrun.cluster.packing import unpack
from rlrun.core.errors import ProcessLost, RunFailed, UserError
from rlrun.core.pulse import Limits
from rlrun.dataflow.meeting import Disconnected, arrived, serve, through
from rlrun.dataflow.ranks import ProcessRanks, patience, until_told_to_stop
from rlrun.machine.nodes import Node, RayConfig

BLAME_SEC = 15.0  # in which an engine finds out which learner is gone


class LearnersWanted(NamedTuple):
    """What a run wants of its other learners."""

    kind: str  # class of their hosts, as module:Name
    brief: Mapping[str, Any]  # what every host is told, which JSON can write
    # Machines as they were called when the run was planned, and learners of each; the first one's first learner is the
    # run's own process.
    learners: Sequence[tuple[str, int]]
    processes: int  # of one learner, itself included
    start_sec: float  # that a host may take to start
    timeout_sec: float  # of silence between learners
    end_sec: float = Limits().end_sec  # that a host may take to end

    @property
    def world(self) -> int:
        return sum(count for _, count in self.learners)


class LearnerHosts:
    """The hosts of all learners but the first."""

    def __init__(self, engine: Engine, cfg: RayConfig, wanted: LearnersWanted, say: Callable[[str], None]):
        self.engine, self.cfg, self.wanted, self.say = engine, cfg, wanted, say
        self.hosts: list[Host] = []
        self.calls: dict[Any, Host] = {}  # the answer that is waited for, of each host

    def begin(self) -> None:
        """Starts all hosts and waits until they are ready. Raises RunFailed where one does not start."""
        rank = 0
        for node, learners in self._places():
            cores = max(1, min(self.wanted.processes, node.cores // learners))
            for _ in range(learners):
                if rank:
                    self._start(rank, node.name, cores, spare=learners > node.cores)
                rank += 1
        for host in self.hosts:
            self._call(host, "start")
        end = time.monotonic() + self.cfg.join_sec + self.wanted.start_sec
        while self.calls:
            before = len(self.calls)
            self.look(1.0)
            if len(self.calls) < before:  # many processes on few cores start one after another
                end = time.monotonic() + self.cfg.join_sec + self.wanted.start_sec
            elif time.monotonic() > end:
                raise RunFailed(self._late())

    def learn(self, store: dist.TCPStore) -> None:
        """Lets all hosts join the store and learn. It returns when they are about to connect to this process, which
        would not notice before that one of them fails."""
        for host in self.hosts:
            self._call(host, "learn", store.port)
        end = time.monotonic() + self.wanted.start_sec
        while arrived(store) < len(self.hosts):
            self.look(0.1)
            if time.monotonic() > end:
                raise ProcessLost(f"not all learners have joined within {self.wanted.start_sec:g} s")

    def look(self, timeout: float = 0.0) -> None:
        """Takes in the answers that are there, or that come within `timeout` seconds. Raises ProcessLost where a host
        is gone, and UserError or RunFailed where one says that it failed."""
        for answer in self.engine.wait(list(self.calls), timeout) if self.calls else ():
            host = self.calls.pop(answer)
            who = f"{host.name} on {host.node}"
            try:
                _, facts = unpack(self.engine.get(answer))
            except HostLost as error:
                if self.cfg.lost == "end":
                    raise RunFailed(f"{who}: {error}; resources.ray.lost=end ends the run") from None
                raise ProcessLost(f"{who}: {error}") from None
            except RunFailed as error:
                raise RunFailed(f"{who}: {error}") from None
            if facts["failed"] is not None:
                raise (UserError if facts["wrong"] else RunFailed)(f"{who}: {facts['failed']}")

    def blamed(self, error: Disconnected) -> RunFailed:
        """Returns what a broken connection was due to, which the engine may know a moment later."""
        end = time.monotonic() + BLAME_SEC
        try:
            while self.calls and time.monotonic() < end:
                self.look(0.5)
        except RunFailed as found:
            return found
        return ProcessLost(f"a learner does not answer: {error}")

    def close(self) -> None:
        hosts, self.hosts, self.calls = self.hosts, [], {}
        try:
            self.engine.stop(hosts, self.wanted.end_sec)
        finally:
            self.engine.close()

    def _call(self, host: Host, method: str, *args: Any) -> None:
        self.calls[host.call(method, *args)] = host

    def _places(self) -> list[tuple[Node, int]]:
        """Returns the machines and the learners of each. It waits until as many are there as the run was planned for;
        with lost=take_over, others take over the learners of those that are missing."""
        wanted, seconds = self.wanted.learners, self.cfg.join_sec
        nodes = {node.name: node for node in awaited(self.engine, len(wanted), seconds)}
        found = places([name for name, _ in wanted], list(nodes))
        there = {name: count for name, (_, count) in zip(found, wanted, strict=True) if name is not None}
        missing = [count for name, (_, count) in zip(found, wanted, strict=True) if name is None]
        if missing and (self.cfg.lost != "take_over" or not there):
            raise RunFailed(f"{too_few(len(wanted), list(nodes), seconds)}; resources.ray.join_sec waits longer")
        for count in missing:
            least = min(there, key=lambda name: there[name] / max(1, nodes[name].cores))
            there[least] += count
            self.say(f"{least} takes over the learners of a machine that is missing")
        return [(nodes[name], count) for name, count in there.items()]

    def _start(self, rank: int, node: str, cores: int, spare: bool) -> None:
        told = dict(self.wanted.brief) | {
            "rank": rank,
            "world": self.wanted.world,
            "address": self.engine.address(),
            "timeout_sec": self.wanted.timeout_sec,
            "workers": cores,
        }
        kind, name = self.wanted.kind, f"learner-{rank}"
        self.hosts.append(self.engine.start(kind, name, node, json.dumps(told).encode(), spare))

    def _late(self) -> str:
        late = sorted(f"{host.name} on {host.node}" for host in self.calls.values())
        there = ", ".join(f"{one.name} ({one.cores} cores)" for one in self.engine.nodes())
        return (
            f"{', '.join(late)} did not start within {self.cfg.join_sec + self.wanted.start_sec:g} s: the cluster has"
            f" {there}; other runs may use their cores"
        )


@contextlib.contextmanager
def company_on_nodes(
    engine: Engine,
    cfg: RayConfig,
    wanted: LearnersWanted,
    say: Callable[[str], None] = lambda text: print(f"  note: {text}", flush=True),
    stopping_sec: Callable[[], float | None] = lambda: None,
) -> Iterator[ProcessRanks]:
    """Yields the ranks of this process, the first learner, while hosts have the others. At the end all hosts are
    stopped, and the engine is closed. stopping_sec: as Stops has it.

    Raises ProcessLost when a learner is lost, and RunFailed or UserError with the reason when one fails."""
    hosts, ranks = LearnerHosts(engine, cfg, wanted, say), None
    try:
        hosts.begin()
        address, timeout = engine.address(), patience(wanted.timeout_sec)
        store = serve(address, wanted.world, timeout)
        try:
            hosts.learn(store)
            with through(address):
                look = until_told_to_stop(hosts.look, stopping_sec)
                ranks = ProcessRanks(0, wanted.world, store, timeout, apart=True, look=look)
            yield ranks
        except Disconnected as error:
            raise hosts.blamed(error) from error
    finally:
        if ranks is not None:
            ranks.close()
        hosts.close()
