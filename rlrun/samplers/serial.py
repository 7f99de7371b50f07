"""Serial: environments and policy run in the learner's process.

This is for debugging, tests, cheap environments and bit-exact runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlrun.core.batch import Batch, allocate
from rlrun.core.errors import RunFailed
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.dataflow.cut import LearnersCut
from rlrun.dataflow.slots import Fragment
from rlrun.samplers.local import make_collector
from rlrun.samplers.processes import SamplerPlan


class SerialSampler:
    """`groups` collectors that take turns. All act with the learner's own policy, so there is no policy lag."""

    def __init__(self, plan: SamplerPlan, device: torch.device, cut: LearnersCut | None = None):
        """plan.workers is the number of collectors. device: that of the learner's policy."""
        self.columns, self.groups = plan.columns, plan.workers
        self.total_columns = self.columns * self.groups
        self.layout = plan.layout
        self.collectors = [
            make_collector(plan, number, str(device)) for number in range(plan.first, plan.first + plan.workers)
        ]
        self.cut = cut
        self.policy: Policy | None = None
        self.version, self.clock = 0, Clock()
        self.next = 0
        self.spare: list[Batch] = []

    @property
    def queued(self) -> int:
        return 0

    def begin(self) -> None:
        """Does nothing, because take() collects fragments when it is called."""

    def at_work(self) -> bool:
        return False

    def handles(self) -> list:
        return []

    def take(self, count: int) -> Sequence[Fragment]:
        assert self.policy is not None, "publish() comes first"
        fragments = []
        for _ in range(count):
            batch = self.spare.pop() if self.spare else allocate(self.layout)
            made = self.clock.updates  # the policy is the learner's own, which is always the newest
            collector = self.collectors[self.next]
            header = collector.collect(batch, self.policy, self.version, self.clock, made, cut=self.cut)
            self.next = (self.next + 1) % self.groups
            fragments.append(Fragment(header, batch))
        if self.cut is not None:
            self.cut.done()
        return fragments

    def free(self, fragments: Sequence[Fragment]) -> None:
        self.spare += [fragment.batch for fragment in fragments]

    def check(self) -> None:
        """Does nothing, because there are no workers."""

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        if policy is not None:
            self.policy = policy
        self.version, self.clock = self.version + 1, clock

    def restart(self, generation: int) -> None:
        for collector in self.collectors:
            collector.columns.restart(generation)

    def save(self) -> dict:
        return {
            "collectors": [collector.save() for collector in self.collectors],
            "next": self.next,
            "clock": list(self.clock),
        }

    def load(self, saved: dict) -> None:
        if [len(one["columns"]["is_first"]) for one in saved.get("collectors", [])] != [self.columns] * self.groups:
            raise RunFailed(
                "exact resume needs the inference, num_samplers and envs_per_sampler that the checkpoint was made with"
            )
        for collector, state in zip(self.collectors, saved["collectors"], strict=True):
            collector.load(state)
        self.next, self.clock = saved["next"], Clock(*saved["clock"])

    def close(self) -> None:
        for collector in self.collectors:
            collector.columns.env.close()
