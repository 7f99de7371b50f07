"""Local: N processes with environments and a copy of the policy on the CPU each, which write fragments to shared slots.

parent                              sampler-i
free slot number   --- pipe --->    refresh weights from the bus, fill the slot row by row
Fragment(header)   <-- pipe ----    header
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from rlrun.core.batch import RowSpec
from rlrun.core.policy import Policy
from rlrun.core.pulse import WAITING, Pulses, watch
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment, Header, Slots
from rlrun.dataflow.stores import FragmentStore, Key, WeightStore
from rlrun.dataflow.weights import WeightBus
from rlrun.dataflow.workers import READY, Worker, at_end
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
    pulse: tuple[Pulses, int]  # those of all samplers, and the number of this one's


def sampler_process(pipe: Connection, job: SamplerJob) -> None:
    """Receives slot keys and answers each with the Header of a filled slot, until the pipe closes."""
    plan, number = job.plan, job.number
    pulses, index = job.pulse
    pulse = pulses.of(index)
    policy = plan.make_policy()
    collector = make_collector(plan, number)
    at_end(collector.columns.env.close)
    views = {}
    version, clock, made = 0, Clock(), 0
    watch(pulse)
    pulse.beat(WAITING)
    pipe.send(READY)
    while True:
        slot = pipe.recv()
        if slot not in views:
            views[slot] = job.slots.view(slot)
        newer = job.bus.read(policy, version)
        if newer is not None:
            version, clock, made = newer
        header = collector.collect(views[slot], policy, version, clock, made, slot)
        pulse.handed()
        pipe.send(header)


class LocalSampler(ProcessSampler):
    """Every process is one producer of fragments."""

    def __init__(
        self,
        plan: SamplerPlan,
        make_store: Callable[[RowSpec, int], FragmentStore] = Slots,
        make_weights: Callable[[Policy], WeightStore] = WeightBus,
        restarts: Restarts | None = None,
        wait: bool = True,
    ):
        """wait: False leaves the waiting for new processes to workers.until_ready(), which comes before all else."""
        super().__init__(plan, plan.workers, make_store, restarts)
        self.bus = make_weights(plan.make_policy())
        self.waiting: deque[Header] = deque()  # filled fragments
        self.start(
            sampler_process,
            lambda i, again: SamplerJob(plan.first + i, again, self.slots, self.bus, (self.pulses, i)),
            plan.envs,
            wait,
        )
        # For each sampler, the keys of slots that it has to fill, in this order.
        self.asked: list[dict[Key, None]] = [{} for _ in range(plan.workers)]
        self.begun = False

    @property
    def queued(self) -> int:
        """Filled fragments that nobody has taken yet."""
        return len(self.waiting)

    def begin(self, held: Collection[Key] = ()) -> None:
        """Starts the workers. held: slots that are not to be filled before refill() says so."""
        if not self.begun:
            assert self.bus.version > 0, "publish() comes first"
            self.begun = True
            for slot in self.producer:
                if slot not in held:
                    self.refill(slot)

    def refill(self, slot: Key) -> None:
        """Lets the slot's sampler fill it, anew if its rows were taken."""
        number = self.producer[slot]
        self.asked[number][slot] = None
        self.supervised.send(self.supervised.members[number], slot)

    def _replaced(self, number: int, old: Worker, new: Worker) -> None:
        """Gives a new sampler the slots that the old one had not filled. What is in them is overwritten."""
        for slot in self.asked[number]:
            self.supervised.send(new, slot)

    def handles(self) -> list:
        return list(self.workers.by_handle)

    def take(self, count: int) -> Sequence[Fragment]:
        self.begin()
        self.check()  # a dead worker must be noticed even while enough fragments wait
        while len(self.waiting) < count:
            self._receive(self.plan.timeout_sec)
        return [self.fragment(self.waiting.popleft()) for _ in range(count)]

    def _receive(self, timeout: float) -> None:
        if timeout > 0:
            messages = self.supervised.next_messages(timeout, self._replaced, self._owing)
        else:
            messages = self.supervised.messages(0.0, self._replaced)
        for _, header in messages:
            del self.asked[self.producer[header.slot]][header.slot]
            self.waiting.append(header)

    def _owing(self) -> list[str]:
        """The names of the samplers that have a slot to fill."""
        return [self.supervised.names[number] for number, asked in enumerate(self.asked) if asked]

    def check(self) -> None:
        self._receive(0.0)

    def free(self, fragments: Sequence[Fragment]) -> None:
        for fragment in fragments:
            self.refill(fragment.header.slot)

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        self.bus.publish(policy, clock)
