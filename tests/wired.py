"""Wired: a run's parts as a test wants them, of a typed config on this machine, each of which a test may exchange."""

from rlrun.core.ranks import ALONE
from rlrun.machine.machine import Machine, measured
from rlrun.runtime.build import LearnerParts, train
from rlrun.runtime.plan import Plan, plan
from rlrun.runtime.preflight import preflight


class Wired(LearnerParts):
    def __init__(self, config, machine: Machine | None = None, recorder=None):
        super().__init__(plan(config, machine or measured()), ALONE, None, recorder)

    def train(self, job) -> None:
        """As rlrun does it, with this object as the parts of the first learner."""

        def joined(plan, ranks, cut):
            self.ranks, self.cut = ranks, cut
            return self

        train(self.plan, job, build=joined)


def checked(config) -> Plan:
    """The plan that rlrun train makes of a config before it starts anything."""
    machine = measured()
    made = plan(config, machine)
    preflight(made, machine)
    return made
