"""offline: the learner draws from recorded data, and no environment is stepped.

data sets --rows--> memory --drawn fragments--> learner.update
                      ^                              |
                      '--------- priorities ---------'

Clock.env_steps counts the rows that are learnt from, so that schedules, stops and logs need no other unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rlrun.core.job import Job
from rlrun.dataflow.reuse import Gatherer
from rlrun.dataflow.slots import Fragment
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked, Choice
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.replay.late import Writes
from rlrun.runners.base import Factories, RunnerConfig
from rlrun.runners.replay import weighed


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    synchronous: ClassVar[bool] = False


def layout(asked: Asked, machine: Machine) -> Resources:
    """There are no samplers, and the learner may use all cores."""
    compute.check_device(asked, machine)
    choices.refuse_samplers(asked)
    learners = choices.learners_in_lockstep(asked, machine)
    inference = Choice("serial")
    where = compute.device(asked.cfg.device, machine)
    threads = compute.replay_threads(asked, machine, inference.value, where.value, learners.value)
    return choices.resources(
        asked,
        machine,
        learners=learners,
        inference=inference,
        where=where,
        samplers=Choice(1),
        envs=Choice(1),
        threads=threads,
    )


class NoSampler:
    """Stands where other runs have a sampler."""

    columns = total_columns = 0
    queued = None

    def check(self) -> None:
        """Does nothing, because there are no workers."""

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: dict[str, Any]) -> None:
        """Does nothing, because there are no columns."""

    def restart(self, generation: int) -> None:
        """Does nothing, because there are no columns."""

    def take(self, count: int) -> Sequence[Fragment]:
        raise NotImplementedError


def run(make: Factories, cfg: Config, job: Job) -> None:
    """Runs until job.tick() ends it. Raises RunFailed if data are damaged."""
    algorithm = make.algorithm()
    begun = job.begin(algorithm)
    needs = algorithm.needs(algorithm.cfg)
    assert needs.replay is not None
    learnt = needs.columns * needs.replay.rows_learnt  # rows of an update of all learners
    data = make.data(job.generation)
    try:
        # The observation filter of a resumed run stands in its checkpoint.
        moments = data.read(algorithm.policy.moments if begun.updates == 0 else None, job.stopping)
        algorithm.absorb_rows(moments)
        job.sampler_ready(NoSampler())
        job.keeps("data", data)
        gather, write = Gatherer(algorithm.ctx.device, job.timers), Writes(data.write, algorithm.ctx.device)
        data.finish_writes = write.flush
        clock, update = begun, None
        while job.tick(clock, update):
            with job.timers("draw"):
                batch = weighed(data.sample(make.columns, clock), data.largest_weight, algorithm.ctx.ranks)
            rows = gather.upload(batch)
            with job.timers("learn"), make.threads:
                update = algorithm.update(rows, clock)
            if update.writes:
                with job.timers("write"):
                    write(batch.key, **update.writes)
            clock = clock.after(env_steps=learnt, updates=1)
    finally:
        data.close()
