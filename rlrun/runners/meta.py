"""meta: tasks are played in rounds, each with policies that were adapted to the rounds before, and an update learns
from all rounds together.

samplers --a round of whole episodes--> learner.adapt   (for every round but the last)
    ^  ^                                    |
    |  '---- a policy for every task -------'
    '------- new tasks, the new policy ------ learner.update, after the last round
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch, stack_columns
from rlrun.core.errors import UserError
from rlrun.core.job import Job
from rlrun.dataflow.reuse import Gatherer
from rlrun.dataflow.slots import Fragment, Header
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked, Choice
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.runners.base import Factories, RunnerConfig
from rlrun.samplers.base import Sampler


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    synchronous: ClassVar[bool] = True  # samplers wait for the policies of every round


def layout(asked: Asked, machine: Machine) -> Resources:
    """Samplers and learners take turns. Every environment of a round exists, because each plays one task."""
    tasks = asked.needs.tasks
    assert tasks is not None
    if asked.cfg.inference == "batched":
        raise UserError(
            "resources.inference=batched: every task has weights of its own, which samplers act with themselves (local"
            " or serial)"
        )
    if asked.cfg.inference == "auto" and asked.image:  # which would be batched on a GPU
        asked = replace(asked, cfg=replace(asked.cfg, inference="local" if machine.cores > 1 else "serial"))
    asked = replace(asked, needs=replace(asked.needs, columns=asked.needs.columns // tasks.rounds))
    compute.check_device(asked, machine)
    choices.check_own_samplers(asked, asked.needs.every_process_learns)
    learners = choices.learners_in_lockstep(asked, machine)
    if tasks.count % learners.value:
        raise UserError(
            f"resources.num_learners={learners.value} must divide the {tasks.count} tasks of an update (algo.num_tasks)"
        )
    spread = choices.batch_columns(asked, learners.value, shared=True)
    spread = spread._replace(name=f"{spread.total} environments (algo.num_tasks * algo.envs_per_task)")
    inference = choices.inference(asked, machine, learners.value, spread)
    where = compute.learner_device(asked, machine, inference.value)
    samplers = choices.samplers_per_learner(asked, machine, learners.value, inference.value, where.value, spread)
    each = spread.per_learner // samplers.value
    if asked.cfg.envs_per_sampler not in ("auto", each):
        raise UserError(
            f"resources.envs_per_sampler={asked.cfg.envs_per_sampler}: each of {samplers.value * learners.value}"
            f" samplers has {each} of the {spread.total} environments (algo.num_tasks * algo.envs_per_task)"
        )
    envs = Choice(each, f"envs_per_sampler={each}: {spread.total} environments, of which each plays one task")
    threads = compute.waited_for_threads(asked, machine, where.value, learners.value, large=True)
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
        rounds = make.rounds
        count = make.columns // (rounds * sampler.columns)  # number of fragments in a round
        gather = Gatherer(algorithm.ctx.device, job.timers)
        algorithm.adapt(None)
        sampler.publish(algorithm.policy, clock)
        update: Update | None = None
        while job.tick(clock, update):
            played: list[Batch] = []
            for number in range(rounds):
                last = number == rounds - 1
                with job.timers("wait"):
                    fragments = taken(sampler, count)
                played.append(gather([fragment.batch for fragment in fragments]))
                # The clock of an update is that of its first round until all are played, as its tasks are.
                steps = job.collected([told(fragment.header, last) for fragment in fragments])
                job.ahead += steps
                if not last:
                    with job.timers("adapt"), make.threads:
                        algorithm.adapt(played[-1].lived())
                    with job.timers("publish"):
                        sampler.publish(algorithm.policy, clock)
                        sampler.free(fragments)
            clock, job.ahead = clock.after(env_steps=job.ahead), 0
            batch = stack_columns(played).lived()
            with job.timers("learn"), make.threads:
                update = algorithm.update(batch, clock)
            clock = clock.after(updates=1)
            with job.timers("publish"):
                algorithm.absorb_rows([algorithm.policy.moments(batch)])
                algorithm.adapt(None)
                sampler.publish(algorithm.policy, clock)
                sampler.free(fragments)
    finally:
        sampler.close()


def taken(sampler: Sampler, count: int) -> list[Fragment]:
    """Returns a round's fragments in the order of their environments."""
    return sorted(sampler.take(count), key=lambda fragment: fragment.header.worker)


def told(header: Header, last: bool) -> Header:
    """Returns what a run is told of a fragment. Only episodes after the last adaptation count in statistics."""
    return header if last else header._replace(episodes=())
