"""HostSampler: samplers on several machines, behind the same interface as those of one.

learner                                                     host on each machine
collect(newest weights, free slots)  -- calls ahead -->     publishes the weights to its samplers in shared memory
fragments                            <-- packed bytes --    hands over those that are filled

Each host has a call waiting, or a few. It gets no further one while its part of a train batch is waiting here, so
samplers that are faster than the learner fill their slots and wait, and rows are not much older than on one machine.
Samplers have the numbers, seeds and environments that they would have on one machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.cluster.engine import Engine
from rlrun.cluster.hosts import HostPart, Hosts, HostsWanted
from rlrun.cluster.packing import Form, PackedFragment
from rlrun.core.awake import awake
from rlrun.core.batch import Batch, RowSpec, allocate, layout_bytes
from rlrun.core.errors import RunFailed
from rlrun.core.policy import Policy
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment, Slots
from rlrun.dataflow.stores import FragmentStore, Key
from rlrun.machine.nodes import RayConfig
from rlrun.samplers.processes import SamplerPlan

ANSWER_BYTES = 4_000_000  # of unpacked fragments, which one answer holds at least, if there are so many


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


class _Rows:
    """The rows of one part on their way."""

    def __init__(self, slots: int, most: int):
        self.slots = slots  # fragments that its samplers have room for
        self.most = most  # fragments that one answer may hold
        self.here = 0  # fragments that have arrived and were not taken
        # Where samplers wait for new weights: slots whose rows are here, and those that are free without its knowing.
        self.outside: set[Key] = set()
        self.freed: list[Key] = []
        self.begun = False  # whether the host knows which slots its samplers must not fill yet


class HostSampler:
    """Collects fragments from hosts on several machines."""

    def __init__(
        self,
        plan: SamplerPlan,
        cfg: RayConfig,
        engine: Engine,
        kind: str,
        brief: Mapping[str, Any],
        shares: Sequence[tuple[str, int]],
        form: Form,
        synchronous: bool,
        batch: int = 0,
        restarts: Restarts | None = None,
        shared: bool = False,
    ):
        """plan: that of all samplers. kind: the class of a host. brief: what every host is told. shares: the machines
        and the samplers of each. synchronous: whether samplers wait for new weights before they fill a slot
        again. batch: the fragments of a train batch that is made of the newest rows; 0: rows are learnt from later, so
        that their age here does not matter. shared: whether other processes of this machine read what has arrived."""
        self.plan, self.cfg, self.form, self.synchronous = plan, cfg, form, synchronous
        self.columns, self.total_columns = plan.columns, plan.columns * plan.workers
        self.slots = Arrivals(plan.layout, plan.workers * plan.in_flight if shared else 0)
        self.arrived: deque[tuple[_Rows, PackedFragment]] = deque()
        self.owner: dict[Key, tuple[_Rows, Key]] = {}  # of the places in use: the host's slot of each
        self.batch, self.most = batch, max(1, ANSWER_BYTES // layout_bytes(plan.layout))
        self.wanted = 0  # fragments that take() waits for
        told = {"generation": plan.generation, "synchronous": synchronous, "compress": form.compress}
        wanted = HostsWanted(kind, {**brief, **told}, shares, plan.first, plan.limits.start_sec, plan.timeout_sec)
        self.hosts = Hosts(engine, cfg, wanted, restarts, self._lost)
        self.rows: dict[int, _Rows] = {}
        try:
            self.hosts.begin()
        except BaseException:
            self.close()
            raise

    def _of(self, part: HostPart) -> _Rows:
        if part.number not in self.rows:
            slots = part.workers * self.plan.in_flight
            most = min(self.most, slots)
            if self.batch:
                most = min(most, -(-self.batch * part.workers // self.plan.workers))
            self.rows[part.number] = _Rows(slots, slots if self.synchronous else most)
        return self.rows[part.number]

    def _lost(self, part: HostPart) -> int:
        """What has arrived is whole and is learnt from. What a host was filling is lost with it, and what was on its
        way."""
        rows = self._of(part)
        rows.begun = False
        filling = rows.slots - len(rows.outside)
        if not self.synchronous:  # slots are filled again while the rows of earlier calls travel
            filling += len(part.calls) * rows.most
        return filling * self.plan.envs * int(self.plan.layout["reward"].shape[0])  # type: ignore[union-attr]

    def _ask(self) -> None:
        """Gives hosts as many calls as they should have."""
        for part in self.hosts.parts:
            if part.host is None or not part.ready or self.hosts.weights.version == 0:
                continue
            rows = self._of(part)
            if self.synchronous:
                if not part.calls and len(rows.outside) < rows.slots:
                    self._collect(part, rows)
            else:
                # A call whose answer waits here counts until the learner has taken it.
                while len(part.calls) + rows.here // rows.most < self.cfg.calls_ahead or (
                    not part.calls and len(self.arrived) < self.wanted
                ):
                    self._collect(part, rows)

    def _collect(self, part: HostPart, rows: _Rows) -> None:
        # A new host has the slots that the lost one had, and must not fill those whose rows are here.
        held = [] if rows.begun else [*rows.outside, *rows.freed]
        self.hosts.call(part, "collect", *self.hosts.letter(part), rows.freed, held, rows.most)
        rows.begun, rows.freed = True, []

    def _receive(self, timeout: float) -> None:
        """Takes in the answers that are there, or that come within `timeout` seconds."""
        self._ask()
        for part, fragments, _ in self.hosts.receive(timeout):
            rows = self._of(part)
            for one in fragments:
                rows.here += 1
                if self.synchronous:
                    rows.outside.add(one.header.slot)
                self.arrived.append((rows, one))
        self._ask()

    # -- as runners see it ---------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Fragments that have arrived, that nobody has taken yet and for which there is room."""
        return min(len(self.arrived), self.slots.room)

    def begin(self) -> None:
        assert self.hosts.weights.version > 0, "publish() comes first"
        self._ask()

    def take(self, count: int) -> Sequence[Fragment]:
        self.wanted = count
        self.begin()
        self.check()
        heard = awake()
        while self.queued < count:
            before = len(self.arrived)
            self._receive(0.5)
            if len(self.arrived) > before or any(part.host is not None and not part.ready for part in self.hosts.parts):
                heard = awake()
            elif awake() - heard > self.plan.timeout_sec:
                names = ", ".join(part.name for part in self.hosts.parts if part.host is not None)
                said = f"no fragment from {names} for {self.plan.timeout_sec:g} s (runner.queue_timeout_sec)"
                raise RunFailed(f"{said}: an environment may hang")
        self.wanted = 0
        return [self._taken(*self.arrived.popleft()) for _ in range(count)]

    def _taken(self, rows: _Rows, packed: PackedFragment) -> Fragment:
        key = self.slots.new()
        batch = self.slots.view(key)
        packed.unpack(self.form, batch)
        rows.here -= 1
        if self.synchronous:
            self.owner[key] = (rows, packed.header.slot)
        return Fragment(packed.header._replace(slot=key), batch)

    def free(self, fragments: Sequence[Fragment]) -> None:
        for fragment in fragments:
            key: int = fragment.header.slot  # type: ignore[assignment]
            self.slots.spare.append(key)
            if key in self.owner:
                rows, slot = self.owner.pop(key)
                rows.outside.remove(slot)
                rows.freed.append(slot)
        self._ask()

    def check(self) -> None:
        """Takes in what has arrived. Raises RunFailed when too much was lost."""
        self._receive(0.0)

    def at_work(self) -> bool:
        return False

    def handles(self) -> list:
        return []  # answers cannot be waited for together with pipes

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        self.hosts.weights.publish(policy, clock)

    def pin(self) -> None:
        self.slots.pin()

    def restart(self, generation: int) -> None:
        """Does nothing, because only bit-exact (serial) runs break their columns at a checkpoint."""

    def save(self) -> dict:
        return {}

    def load(self, saved: dict) -> None:
        """Does nothing: columns begin new episodes with seeds of the resumed run's generation."""

    def close(self) -> None:
        self.hosts.close()
        self.slots.unpin()
