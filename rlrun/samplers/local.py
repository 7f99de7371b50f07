"""Local: N processes, each with environments and a copy of the policy on the CPU, that write fragments into shared slots.

parent                              sampler-i
free slot number   --- pipe --->    refresh weights from the bus, fill the slot row by row
Fragment(header)   <-- pipe ----    header
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from rlrun.core.batch import RowSpec
from rlrun.core.env import EnvFactory
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.slots import Fragment, Header, Slots
from rlrun.dataflow.weights import WeightBus
from rlrun.dataflow.workers import START_SEC, Worker, Workers
from rlrun.samplers.collector import Collector


class SamplerJob(NamedTuple):
    """What a sampler process is given (pickled)."""

    number: int
    columns: int
    make_env: EnvFactory
    make_policy: Callable[[], Policy]  # ready to act: lower precision applied
    record: tuple[str, ...]
    core_every: int
    seeds: Seeds
    generation: int
    slots: Slots
    bus: WeightBus


READY = "ready"


def sampler_process(pipe: Connection, job: SamplerJob) -> None:
    """Until the pipe closes: a slot number comes in, a Header goes out."""
    policy = job.make_policy()
    collector = Collector(
        job.make_env(job.number, job.columns), job.seeds.generator("policy", job.number, job.generation), job.record, job.core_every,
        job.number, job.number * job.columns, job.generation,
    )  # fmt: skip
    views = {}
    version, clock = 0, Clock()
    pipe.send(READY)
    while True:
        slot = pipe.recv()
        if slot not in views:
            views[slot] = job.slots.view(slot)
        newer = job.bus.read(policy, version)
        if newer is not None:
            version, clock = newer
        pipe.send(collector.collect(views[slot], policy, version, clock, slot))


class LocalSampler:
    """`workers` processes of `columns` environments, with `in_flight` slots each."""

    def __init__(
        self, make_env: EnvFactory, make_policy: Callable[[], Policy], layout: RowSpec, record: tuple[str, ...], core_every: int, columns: int,
        workers: int, in_flight: int, seeds: Seeds, generation: int, timeout_sec: float,
    ):  # fmt: skip
        self.columns, self.total_columns = columns, columns * workers
        self.timeout_sec = timeout_sec
        self.slots = Slots(layout, workers * in_flight)
        self.views = [self.slots.view(slot) for slot in range(self.slots.count)]
        self.bus = WeightBus(make_policy())
        self.workers = Workers()
        self.owner: list[Worker] = []
        self.waiting: deque[Header] = deque()  # filled fragments
        try:
            started = []
            for index in range(workers):
                job = SamplerJob(index, columns, make_env, make_policy, record, core_every, seeds, generation, self.slots, self.bus)
                started.append(self.workers.start(f"sampler-{index}", sampler_process, (job,)))
            self.owner = [started[slot // in_flight] for slot in range(self.slots.count)]
            ready = 0
            while ready < workers:
                ready += sum(message == READY for _, message in self.workers.receive(START_SEC))
        except BaseException:
            self.close()
            raise
        self.begun = False

    @property
    def queued(self) -> int:
        """Filled fragments that nobody has taken yet."""
        return len(self.waiting)

    def take(self, count: int) -> Sequence[Fragment]:
        if not self.begun:
            assert self.bus.version > 0, "publish() comes first"
            self.begun = True
            for slot, worker in enumerate(self.owner):
                self.workers.send(worker, slot)
        self._receive(0.0)  # a dead worker is noticed also while fragments are plenty
        while len(self.waiting) < count:
            self._receive(self.timeout_sec)
        return [Fragment(header, self.views[header.slot]) for header in (self.waiting.popleft() for _ in range(count))]

    def _receive(self, timeout: float) -> None:
        self.waiting.extend(message for _, message in self.workers.receive(timeout))

    def free(self, fragments: Sequence[Fragment]) -> None:
        for fragment in fragments:
            self.workers.send(self.owner[fragment.header.slot], fragment.header.slot)

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        self.bus.publish(policy, clock)

    def restart(self, generation: int) -> None:
        """Not needed: only bit-exact (serial) runs break their columns at a checkpoint."""

    def save(self) -> dict:
        return {}

    def load(self, saved: dict) -> None:
        """Columns begin anew with seeds of the resumed run's generation."""

    def close(self) -> None:
        self.workers.stop()
