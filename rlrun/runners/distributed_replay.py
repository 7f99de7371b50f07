"""distributed_replay: samplers, shards of a replay and the learner each go at their own pace (Horgan et al. 2018, arXiv:1803.00933, figure 1).

samplers --slots of shared memory--> shards (first priorities from what was recorded) --drawn batches--> learner.update
    ^                                   ^                                                                     |
    |                                   '------------------------------ priorities ---------------------------|
    '------------------------------------ weights, every max_weight_sync_delay env steps ---------------------'
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed
from rlrun.core.run import Job
from rlrun.dataflow.reuse import Gatherer
from rlrun.dataflow.slots import Fragment
from rlrun.replay.late import Writes
from rlrun.replay.limiter import Limiter
from rlrun.runners.base import Factories

POLL_SEC = 0.02  # samplers whose words cannot be waited for (batched inference) are looked at so often


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    num_shards: int
    max_weight_sync_delay: int
    queue_timeout_sec: float

    synchronous: ClassVar[bool] = False
    apart: ClassVar[bool] = True  # samplers are processes of their own
    lockstep: ClassVar[bool] = True

    def __post_init__(self):
        if min(self.num_shards, self.max_weight_sync_delay) < 1:
            raise ValueError("num_shards and max_weight_sync_delay must be at least 1")
        if self.queue_timeout_sec <= 0:
            raise ValueError("queue_timeout_sec must be positive")


def run(make: Factories, cfg: Config, job: Job) -> None:
    """Until job.tick says so. RunFailed when a process died or all were silent for queue_timeout_sec."""
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
            copying: dict[int, Fragment] = {}  # by slot: shards still read them
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
                        write(drawn, key, priority=update.writes["priority"])
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
            sampler.close()  # first: an acting thread may be recording on the GPU, which unlocking a shard's pages would end
            replay.close()
    finally:
        sampler.close()
