"""Serial: environments and policy in the learner's process. For debugging, tests, cheap environments and bit-exact runs."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.core.batch import Batch, RowSpec, allocate
from rlrun.core.env import EnvFactory
from rlrun.core.errors import RunFailed
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.slots import Fragment
from rlrun.samplers.collector import Collector


class SerialSampler:
    """`groups` collectors that take turns, all acting with the learner's own policy, so there is no lag."""

    def __init__(
        self,
        make_env: EnvFactory,
        layout: RowSpec,
        record: tuple[str, ...],
        core_every: int,
        columns: int,
        groups: int,
        seeds: Seeds,
        generation: int,
        return_discount: float | None = None,
    ):
        self.columns, self.groups = columns, groups
        self.total_columns = columns * groups
        self.layout = layout
        self.collectors = [
            Collector(make_env(g, columns), seeds.generator("policy", g, generation), record, core_every, g, g * columns, generation, return_discount)
            for g in range(groups)
        ]
        self.policy: Policy | None = None
        self.version, self.clock = 0, Clock()
        self.next = 0
        self.spare: list[Batch] = []

    def take(self, count: int) -> Sequence[Fragment]:
        assert self.policy is not None, "publish() comes first"
        fragments = []
        for _ in range(count):
            batch = self.spare.pop() if self.spare else allocate(self.layout)
            header = self.collectors[self.next].collect(batch, self.policy, self.version, self.clock)
            self.next = (self.next + 1) % self.groups
            fragments.append(Fragment(header, batch))
        return fragments

    def free(self, fragments: Sequence[Fragment]) -> None:
        self.spare += [fragment.batch for fragment in fragments]

    def check(self) -> None:
        """There is no worker."""

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        if policy is not None:
            self.policy = policy
        self.version, self.clock = self.version + 1, clock

    def restart(self, generation: int) -> None:
        for collector in self.collectors:
            collector.columns.restart(generation)

    def save(self) -> dict:
        return {"collectors": [collector.save() for collector in self.collectors], "next": self.next, "clock": list(self.clock)}

    def load(self, saved: dict) -> None:
        if [len(one["columns"]["is_first"]) for one in saved.get("collectors", [])] != [self.columns] * self.groups:
            raise RunFailed("exact resume needs the inference, num_samplers and envs_per_sampler that the checkpoint was made with")
        for collector, state in zip(self.collectors, saved["collectors"], strict=True):
            collector.load(state)
        self.next, self.clock = saved["next"], Clock(*saved["clock"])

    def close(self) -> None:
        for collector in self.collectors:
            collector.columns.env.close()
