"""distributed_replay: samplers, shards of a replay and the learner each run at their own pace.

Source: Horgan et al. 2018, arXiv:1803.00933, figure 1.

samplers --slots of shared memory--> shards (first priorities from what was recorded) --drawn batches--> learner.update
    ^                                   ^                                                                     |
    |                                   '------------------------------ priorities ---------------------------|
    '------------------------------------ weights, every max_weight_sync_delay env steps ---------------------'
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, ClassVar

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.ranges import Count
from rlrun.core.run import Job
from rlrun.dataflow.reuse import Gatherer
from rlrun.dataflow.slots import Fragment
from rlrun.dataflow.stores import Key
from rlrun.machine import choices
from rlrun.machine.choices import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.replay.late import Writes
from rlrun.replay.limiter import Limiter
from rlrun.runners.base import Factories, RunnerConfig

POLL_SEC = 0.02  # seconds; the interval at which samplers without handles to wait for (batched inference) are polled


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    num_shards: Annotated[int, Count]
    max_weight_sync_delay: Annotated[int, Count]

    synchronous: ClassVar[bool] = False


def layout(asked: Asked, machine: Machine) -> Resources:
    """There is one learner. Samplers and shards of the replay are separate processes."""
    choices.check_device(asked, machine)
    choices.check_own_samplers(asked, asked.needs.every_process_learns)
    if asked.cfg.num_learners not in ("auto", 1):
        raise UserError(
            f"resources.num_learners={asked.cfg.num_learners}: runner=distributed_replay has one learner; runner=replay"
            " can have several"
        )
    learners = choices.Choice(1)
    columns = choices.replay_columns(asked, 1)
    spread = columns.value
    inference = choices.inference_of_separate_samplers(asked, machine, 1, spread)
    where = choices.learner_device(asked, machine, inference.value)
    samplers = choices.samplers_per_learner(asked, machine, 1, inference.value, where.value, spread)
    envs = choices.envs_per_group(asked, 1, samplers.value, inference.value, spread.per_learner, spread)
    threads = choices.replay_threads(asked, machine, inference.value, where.value, 1)
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
    """Runs until job.tick() ends it. Raises RunFailed when a process died or all were silent for queue_timeout_sec."""
    algorithm = make.algorithm()
    clock = job.begin(algorithm)
    needs = algorithm.needs(algorithm.cfg)
    assert needs.replay is not None
    limiter = Limiter(needs.replay.learning_starts, needs.replay.ratio, needs.columns * needs.replay.rows_learnt)
    sampler = make.sampler(job.generation)
    try:
        replay = make.sharded_replay(job.generation, sampler, cfg.num_shards)
        try:
            job.sampler_ready(sampler)
            job.keeps("replay", replay)
            job.keeps("limiter", limiter)
            sampler.publish(algorithm.policy, clock)
            sampler.begin()
            published = clock.env_steps
            copying: dict[Key, Fragment] = {}  # by slot; fragments that shards are still reading
            gather, write = Gatherer(algorithm.ctx.device, job.timers), Writes(replay.write, algorithm.ctx.device)
            replay.finish_writes = write.flush
            batch: Batch | None = None
            update: Update | None = None
            heard = time.monotonic()
            while job.tick(clock, update):
                sampler.check()
                if replay.poll() or update is not None:
                    heard = time.monotonic()
                update = None
                for slot in replay.added:
                    sampler.free([copying.pop(slot)])
                replay.added.clear()
                if limiter.may_insert() and sampler.queued:
                    heard = time.monotonic()
                    with job.timers("insert"):
                        (fragment,) = sampler.take(1)
                        copying[fragment.header.slot] = fragment
                        algorithm.absorb_rows([algorithm.policy.moments(fragment.batch)])
                        replay.add(fragment.header)
                        steps = job.collected([fragment.header])
                        limiter.inserted(steps)
                        clock = clock.after(env_steps=steps)
                if limiter.came >= limiter.starts:
                    replay.draw(clock)
                drawn = replay.take() if limiter.due else None
                if drawn is not None:
                    key = drawn.batch.key.clone()
                    batch = gather([drawn.batch], batch)
                    replay.free(drawn)
                    replay.draw(clock)
                    with job.timers("learn"), make.threads:
                        update = algorithm.update(batch, clock)
                    if update.writes:
                        write(drawn, key, **update.writes)
                    limiter.sampled()
                    clock = clock.after(updates=1)
                if clock.env_steps - published >= cfg.max_weight_sync_delay:
                    with job.timers("publish"):
                        sampler.publish(algorithm.policy, clock)
                    published = clock.env_steps
                if update is not None or (sampler.queued and limiter.may_insert()):
                    continue
                with job.timers("wait"):
                    if replay.poll(POLL_SEC, sampler.handles()):
                        heard = time.monotonic()
                if time.monotonic() - heard > cfg.queue_timeout_sec:
                    raise RunFailed(f"no fragment for {cfg.queue_timeout_sec:.0f} s: an environment may hang")
        finally:
            # The sampler is closed first, because its acting thread may be recording a CUDA graph, which would fail if
            # the pages of a shard were unlocked meanwhile.
            sampler.close()
            replay.close()
    finally:
        sampler.close()
