"""on_policy: fragments of one policy fill a train batch, an update learns from it, and samplers wait for new weights.

samplers --a whole train batch--> learner.update
    ^                                   |
    '------------- weights -------------'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlrun.core.algorithm import Update
from rlrun.core.job import Job
from rlrun.dataflow.reuse import Gatherer
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.runners.base import Factories, RunnerConfig


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    complete_episodes: bool

    synchronous: ClassVar[bool] = True  # samplers hold exactly one train batch, so no row has older weights


def layout(asked: Asked, machine: Machine) -> Resources:
    """Samplers and learners take turns, so each may use all cores, and the samplers together hold one train batch."""
    compute.check_device(asked, machine)
    choices.check_own_samplers(asked, asked.needs.every_process_learns)
    learners = choices.learners_in_lockstep(asked, machine)
    spread = choices.batch_columns(asked, learners.value, shared=True)
    inference = choices.inference(asked, machine, learners.value, spread)
    where = compute.learner_device(asked, machine, inference.value, learners.value)
    samplers = choices.samplers_per_learner(asked, machine, learners.value, inference.value, where.value, spread)
    most = choices.most_envs(learners.value, samplers.value, inference.value, where.value)
    if inference.value == "serial":
        most = spread.per_learner
    envs = choices.envs_per_group(asked, learners.value, samplers.value, inference.value, most, spread)
    threads = compute.waited_for_threads(asked, machine, where.value, learners.value)
    return choices.resources(
        asked,
        machine,
        learners=learners,
        inference=inference,
        where=where,
        samplers=samplers,
        envs=envs,
        threads=threads,
    )


def run(make: Factories, cfg: Config, job: Job) -> None:
    """Runs until job.tick() ends it. Raises RunFailed when a sampler died or was silent for queue_timeout_sec."""
    algorithm = make.algorithm()
    clock = job.begin(algorithm)
    sampler = make.sampler(job.generation)
    try:
        job.sampler_ready(sampler)
        sampler.publish(algorithm.policy, clock)
        count = make.columns // sampler.columns  # number of fragments in one train batch
        gather, batch = Gatherer(algorithm.ctx.device, job.timers), None
        update: Update | None = None
        while job.tick(clock, update):
            with job.timers("wait"):
                # Sorting by worker instead of by arrival makes batches repeatable with local inference: the same seed
                # gives the same batch, whichever worker was faster.
                fragments = sorted(
                    sampler.take(count), key=lambda fragment: (fragment.header.worker, fragment.header.first_row)
                )
            algorithm.absorb_returns([fragment.header.returns for fragment in fragments])
            batch = gather([fragment.batch for fragment in fragments], batch)
            clock = clock.after(env_steps=job.collected([fragment.header for fragment in fragments]))
            with job.timers("learn"), make.threads:
                update = algorithm.update(batch, clock)
            clock = clock.after(updates=1)
            with job.timers("publish"):
                algorithm.absorb_rows([algorithm.policy.moments(batch)])
                sampler.publish(algorithm.policy, clock)
                sampler.free(fragments)  # only now may samplers continue
    finally:
        sampler.close()
