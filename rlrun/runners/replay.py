"""replay: rows are stored in a replay, and the learner draws `ratio` rows for each new one.

With data.share, a part of every batch is drawn from recorded data (datasets/rows.py).

Several learners each have a replay and samplers, and count their rows together.

samplers --fragments--> replay --drawn fragments--> learner.update
    ^                     ^                              |
    |                     '--------- priorities ---------|
    '-------------------- weights -----------------------'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.job import Job
from rlrun.core.ranks import Ranks
from rlrun.dataflow.reuse import Gatherer
from rlrun.datasets.rows import WithData
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.replay.late import Writes
from rlrun.replay.limiter import Limiter
from rlrun.runners.base import Factories, RunnerConfig


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    synchronous: ClassVar[bool] = False


def layout(asked: Asked, machine: Machine) -> Resources:
    """All samplers of a learner feed one replay. The learner gets all cores where learning is most of the work."""
    compute.check_device(asked, machine)
    choices.check_own_samplers(asked, asked.needs.every_process_learns)
    learners = choices.learners_in_lockstep(asked, machine)
    columns = choices.replay_columns(asked, learners.value)
    spread = columns.value
    inference = choices.inference(asked, machine, learners.value, spread)
    where = compute.learner_device(asked, machine, inference.value)
    samplers = choices.samplers_per_learner(asked, machine, learners.value, inference.value, where.value, spread)
    envs = choices.envs_per_group(asked, learners.value, samplers.value, inference.value, spread.per_learner, spread)
    threads = compute.replay_threads(asked, machine, inference.value, where.value, learners.value)
    return choices.resources(
        asked,
        machine,
        learners=learners,
        inference=inference,
        where=where,
        samplers=samplers,
        envs=envs,
        threads=threads,
        before=(columns,),
    )


def run(make: Factories, cfg: Config, job: Job) -> None:
    """Runs until job.tick() ends it. Raises RunFailed when a sampler died or was silent for queue_timeout_sec."""
    algorithm = make.algorithm()
    clock = job.begin(algorithm)
    needs = algorithm.needs(algorithm.cfg)
    assert needs.replay is not None
    replay = make.replay(job.generation)
    limiter = Limiter(needs.replay.learning_starts, needs.replay.ratio, needs.columns * needs.replay.rows_learnt)
    data = make.data(job.generation) if make.data_columns else None
    drawn_from = replay if data is None else WithData(replay, data, make.data_columns)
    sampler = make.sampler(job.generation)
    try:
        if data is not None:
            data.read()
        job.sampler_ready(sampler)
        job.keeps("replay", replay)
        if data is not None:
            job.keeps("data", data)
        job.keeps("limiter", limiter)
        sampler.publish(algorithm.policy, clock)
        gather, write = Gatherer(algorithm.ctx.device, job.timers), Writes(drawn_from.write, algorithm.ctx.device)
        replay.finish_writes = write.flush
        changed = False  # whether the policy has changed since weights were published
        update: Update | None = None
        while job.tick(clock, update):
            if limiter.due and algorithm.ctx.ranks.all(replay.starts > 0):
                with job.timers("draw"):
                    batch = weighed(
                        drawn_from.sample(make.columns, clock), drawn_from.largest_weight, algorithm.ctx.ranks
                    )
                rows = gather.upload(batch)
                with job.timers("learn"), make.threads:
                    update = algorithm.update(rows, clock)
                if update.writes:
                    with job.timers("write"):
                        write(batch.key, **update.writes)
                limiter.sampled()
                clock, changed = clock.after(updates=1), True
                continue
            update = None
            with job.timers("publish"):
                sampler.publish(algorithm.policy if changed else None, clock)
                changed = False
            with job.timers("wait"):
                fragments = sampler.take(1)
            with job.timers("insert"):
                for fragment in fragments:
                    replay.add(fragment)
            steps = job.collected([fragment.header for fragment in fragments])
            # Learners count alike, because they learn together.
            limiter.inserted(
                steps, limiter.came + steps <= limiter.starts or algorithm.ctx.ranks.all(replay.starts > 0)
            )
            clock = clock.after(env_steps=steps)
            moments = [algorithm.policy.moments(fragment.batch) for fragment in fragments]
            algorithm.absorb_rows(moments)
            changed = changed or any(one is not None for one in moments)
            sampler.free(fragments)
    finally:
        try:
            sampler.close()
        finally:
            if data is not None:
                data.close()


def weighed(batch: Batch, largest: float, ranks: Ranks) -> Batch:
    """Makes weights relative to the largest of the whole batch, not of this learner's part (Schaul et al. 2016, section
    3.4). largest: the number by which this learner's weights were divided."""
    return batch if ranks.world == 1 else batch.replace(weight=batch.weight * (largest / ranks.largest(largest)))
