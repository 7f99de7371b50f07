"""Local: N processes with environments and a copy of the policy on the CPU each, which write fragments to shared slots.

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
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment, Header, Slots
from rlrun.dataflow.stores import FragmentStore, WeightStore
from rlrun.dataflow.weights import WeightBus
from rlrun.dataflow.workers import READY
from rlrun.samplers.collector import Collector
from rlrun.samplers.processes import ProcessSampler, SamplerPlan


def make_collector(plan: SamplerPlan, number: int, device: str = "cpu") -> Collector:
    """Makes the collector of sampler `number`. device: where its policy acts."""
    env = plan.make_env(number, plan.envs)
    return Collector(
        env,
        plan.seeds.generator("policy", number, plan.generation, device=device),
        plan.record,
        plan.core_every,
        number,
        number * plan.envs,
        plan.generation,
        plan.return_discount,
        plan.whole_after,
        plan.place(number),
        plan.env_callbacks(),
        plan.giver(env, number),
    )


class SamplerJob(NamedTuple):
    """The arguments of a sampler process (pickled)."""

    number: int
    plan: SamplerPlan
    slots: FragmentStore
    bus: WeightStore


def sampler_process(pipe: Connection, job: SamplerJob) -> None:
    """Receives slot keys and answers each with the Header of a filled slot, until the pipe closes."""
    plan, number = job.plan, job.number
    policy = plan.make_policy()
    collector = make_collector(plan, number)
    views = {}
    version, clock, made = 0, Clock(), 0
    pipe.send(READY)
    while True:
        slot = pipe.recv()
        if slot not in views:
            views[slot] = job.slots.view(slot)
        newer = job.bus.read(policy, version)
        if newer is not None:
            version, clock, made = newer
        pipe.send(collector.collect(views[slot], policy, version, clock, made, slot))


class LocalSampler(ProcessSampler):
    """Every process is one producer of fragments."""

    def __init__(
        self,
        plan: SamplerPlan,
        make_store: Callable[[RowSpec, int], FragmentStore] = Slots,
        make_weights: Callable[[Policy], WeightStore] = WeightBus,
    ):
        super().__init__(plan, plan.workers, make_store)
        self.bus = make_weights(plan.make_policy())
        self.waiting: deque[Header] = deque()  # filled fragments
        started = self.start(sampler_process, lambda i: SamplerJob(plan.first + i, plan, self.slots, self.bus))
        self.owner = {key: started[producer] for key, producer in self.producer.items()}
        self.begun = False

    @property
    def queued(self) -> int:
        """Filled fragments that nobody has taken yet."""
        return len(self.waiting)

    def begin(self) -> None:
        if not self.begun:
            assert self.bus.version > 0, "publish() comes first"
            self.begun = True
            for slot, worker in self.owner.items():
                self.workers.send(worker, slot)

    def handles(self) -> list:
        return list(self.workers.by_handle)

    def take(self, count: int) -> Sequence[Fragment]:
        self.begin()
        self.check()  # a dead worker must be noticed even while enough fragments wait
        while len(self.waiting) < count:
            self._receive(self.plan.timeout_sec)
        return [Fragment(header, self.views[header.slot]) for header in (self.waiting.popleft() for _ in range(count))]

    def _receive(self, timeout: float) -> None:
        self.waiting.extend(message for _, message in self.workers.receive(timeout))

    def check(self) -> None:
        self._receive(0.0)

    def free(self, fragments: Sequence[Fragment]) -> None:
        for fragment in fragments:
            self.workers.send(self.owner[fragment.header.slot], fragment.header.slot)

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        self.bus.publish(policy, clock)
