"""HostPopulation: players on several machines, each with a noise table of its own.

learner                                        host on each machine
play(newest weights, orders)  -- one call -->  hands the orders to its players
reports                       <-- text ------  of those that have finished
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlrun.cluster.engine import Engine
from rlrun.cluster.hosts import HostPart, Hosts, HostsWanted
from rlrun.core.env import Failure
from rlrun.core.evolution import Played, Report, Rollout
from rlrun.core.moments import Moments
from rlrun.core.policy import Policy
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.machine.nodes import RayConfig
from rlrun.samplers.players import Crew, Order
from rlrun.samplers.population import WAIT_SEC, Orders, PopulationBase


def report_to_json(report: Report) -> dict[str, Any]:
    made = report._asdict()
    if report.moments is not None:
        made["moments"] = [[m.samples, np.asarray(m.mean).tolist(), np.asarray(m.m2).tolist()] for m in report.moments]
    return made


def report_from_json(made: Mapping[str, Any]) -> Report:
    rollouts = tuple(Rollout(offset, Played(*plus), Played(*minus)) for offset, plus, minus in made["rollouts"])
    moments = made["moments"]
    if moments is not None:
        moments = [Moments(samples, np.asarray(mean), np.asarray(m2)) for samples, mean, m2 in moments]  # type: ignore[arg-type]
    return Report(
        worker=made["worker"],
        order=made["order"],
        rollouts=rollouts,
        evaluations=tuple(Played(*one) for one in made["evaluations"]),
        env_steps=made["env_steps"],
        seconds=tuple(made["seconds"]),  # type: ignore[arg-type]
        moments=moments,
        failures=tuple(Failure(*one) for one in made["failures"]),
    )


class HostPopulation(PopulationBase):
    """A population whose players are on several machines. What a lost machine was playing is played again elsewhere,
    with the same result, because a report depends on its order alone."""

    def __init__(
        self,
        crew: Crew,
        cfg: RayConfig,
        engine: Engine,
        kind: str,
        brief: Mapping[str, Any],
        shares: Sequence[tuple[str, int]],
        start_sec: float,
        restarts: Restarts | None = None,
    ):
        """crew: that of all players. kind: the class of a host. brief: what every host is told. shares: the machines
        and the players of each."""
        self.crew, self.orders = crew, Orders(crew)
        self.total_columns = crew.envs * crew.players
        self.playing: dict[int, Order] = {}  # by the player's number
        self.again: deque[Order] = deque()  # what lost machines were playing
        self.told: dict[int, list[tuple[int, Order]]] = {}  # by part: orders that its host does not know yet
        wanted = HostsWanted(kind, brief, shares, 0, start_sec, crew.timeout_sec)
        self.hosts = Hosts(engine, cfg, wanted, restarts, self._lost)
        try:
            self.hosts.begin()
        except BaseException:
            self.close()
            raise

    def _lost(self, part: HostPart) -> int:
        """Nothing is lost: what the host was playing is played again, and counted then."""
        numbers = [number for number in self.playing if part.first <= number < part.first + part.workers]
        self.again += [self.playing.pop(number) for number in numbers]
        self.told.pop(part.number, None)
        return 0

    def begin(self, policy: Policy, clock: Clock) -> None:
        """Begins an update: publishes these weights and hands out the first orders."""
        self.hosts.weights.publish(policy, clock)
        self.orders.begin(clock)
        self._hand()

    @property
    def done(self) -> bool:
        """Whether everything that was asked for has been played."""
        return self.orders.over and not self.playing and not self.again

    def _hand(self) -> None:
        """Gives idle players orders, and every host that plays a call to answer."""
        parts = [part for part in self.hosts.parts if part.host is not None and part.ready]
        for part in parts:
            for number in range(part.first, part.first + part.workers):
                if number in self.playing:
                    continue
                order = self.again.popleft() if self.again else self.orders.next(self.crew.players)
                if order is not None:
                    self.playing[number] = order
                    self.told.setdefault(part.number, []).append((number, order))
            plays = any(part.first <= number < part.first + part.workers for number in self.playing)
            if plays and not part.calls:
                self.hosts.call(part, "play", *self.hosts.letter(part), self.told.pop(part.number, []))

    def take(self) -> list[Report]:
        """Returns the reports that arrive within a moment, perhaps none. Raises RunFailed when too much was lost."""
        reports = []
        for part, _, facts in self.hosts.receive(WAIT_SEC):
            for made in facts["reports"]:
                report = report_from_json(made)
                del self.playing[report.worker]
                part.env_steps += report.env_steps
                self.orders.steps += report.env_steps
                reports.append(report)
        self._hand()
        return reports

    def close(self) -> None:
        self.hosts.close()
