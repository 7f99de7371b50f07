"""distributed_replay: samplers, shards of a replay and the learner are processes that work at the same time.

runner.pace says whether they wait for each other to keep the ratio of rows learnt to rows sampled.

Source: Horgan et al. 2018, arXiv:1803.00933, figure 1.

samplers --slots of shared memory--> shards (first priorities from what was recorded) --drawn batches--> learner.update
    ^                                   ^                                                                     |
    |                                   '------------------------------ priorities ---------------------------|
    '------------------------------------ weights, every max_weight_sync_delay env steps ---------------------'
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from rlrun.core.algorithm import Algorithm, Update
from rlrun.core.awake import awake
from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.job import Job
from rlrun.core.ranges import Count
from rlrun.core.schedule import Clock
from rlrun.dataflow.reuse import Gatherer
from rlrun.dataflow.slots import Fragment, Header
from rlrun.dataflow.stores import Key
from rlrun.dataflow.workers import CONTEXT
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.replay.late import Writes
from rlrun.replay.limiter import Limiter
from rlrun.replay.service import ShardedReplay
from rlrun.runners.base import Factories, RunnerConfig
from rlrun.samplers.base import Sampler

POLL_SEC = 0.02  # seconds; the interval at which samplers without handles to wait for (batched inference) are polled


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    num_shards: Annotated[int, Count]
    max_weight_sync_delay: Annotated[int, Count]
    pace: Literal["ratio", "free"]

    synchronous: ClassVar[bool] = False


def layout(asked: Asked, machine: Machine) -> Resources:
    """There is one learner. Samplers and shards of the replay are separate processes."""
    compute.check_device(asked, machine)
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
    where = compute.learner_device(asked, machine, inference.value)
    samplers = choices.samplers_per_learner(asked, machine, 1, inference.value, where.value, spread)
    envs = choices.envs_per_group(asked, 1, samplers.value, inference.value, spread.per_learner, spread)
    threads = compute.replay_threads(asked, machine, inference.value, where.value, 1)
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
    ratio = needs.replay.ratio if cfg.pace == "ratio" else None
    limiter = Limiter(needs.replay.learning_starts, ratio, needs.columns * needs.replay.rows_learnt)
    sampler = make.sampler(job.generation)
    with contextlib.ExitStack() as ends:
        ends.callback(sampler.close)
        replay = make.sharded_replay(job.generation, sampler, cfg.num_shards)
        # The sampler is closed first, because its acting thread may be recording a CUDA graph, which would fail if the
        # pages of a shard were unlocked meanwhile. Closing it again does nothing.
        ends.callback(replay.close)
        ends.callback(sampler.close)
        ends.enter_context(job.rescuing())  # the shards hold what a checkpoint needs
        job.sampler_ready(sampler)
        job.keeps("replay", replay)
        job.keeps("limiter", limiter)
        sampler.publish(algorithm.policy, clock)
        sampler.begin()
        published = clock.env_steps
        feed = _Feed(sampler, replay, algorithm)
        gather, write = Gatherer(algorithm.ctx.device, job.timers), Writes(replay.write, algorithm.ctx.device)
        replay.finish_writes = write.flush
        batch: Batch | None = None
        update: Update | None = None
        heard = awake()

        def counted(clock: Clock) -> Clock:
            """Counts the fragments that were handed over and are not counted yet. This must happen before the next
            tick, which may save the shards' rows."""
            with job.timers("insert"):
                steps = job.collected(feed.absorbed())
            limiter.inserted(steps, replay.starts > 0)
            return clock.after(env_steps=steps)

        while job.tick(clock, update):
            sampler.check()
            if replay.poll() or update is not None:
                heard = awake()
            update = None
            feed.give_back()
            if limiter.may_insert() and sampler.queued:
                feed.hand_over()
            if feed.headers:
                heard, clock = awake(), counted(clock)
            if limiter.came >= limiter.starts:
                replay.draw(clock)
            drawn = replay.take() if limiter.due else None
            if drawn is not None:
                key = drawn.batch.key.clone()
                batch = gather([drawn.batch], batch)
                replay.free(drawn)
                replay.draw(clock)
                with feed.beside(cfg.pace == "free"), job.timers("learn"), make.threads:
                    update = algorithm.update(batch, clock)
                if update.writes:
                    write(drawn, key, **update.writes)
                limiter.sampled()
                clock = clock.after(updates=1)
                if feed.headers:  # came beside the update
                    heard, clock = awake(), counted(clock)
            if clock.env_steps - published >= cfg.max_weight_sync_delay:
                with job.timers("publish"):
                    sampler.publish(algorithm.policy, clock)
                published = clock.env_steps
            if update is not None or (sampler.queued and limiter.may_insert()):
                continue
            with job.timers("wait"):
                if replay.poll(POLL_SEC, sampler.handles()):
                    heard = awake()
            if awake() - heard > cfg.queue_timeout_sec:
                if not sampler.at_work():  # a fragment of slow steps may take longer
                    raise RunFailed(
                        f"no fragment for {cfg.queue_timeout_sec:.0f} s (runner.queue_timeout_sec): an environment may"
                        " hang"
                    )
                heard = awake()


class _Feed:
    """Hands fragments from the samplers to the shards, and their slots back to the samplers."""

    def __init__(self, sampler: Sampler, replay: ShardedReplay, algorithm: Algorithm):
        self.sampler, self.replay, self.algorithm = sampler, replay, algorithm
        self.copying: dict[Key, Fragment] = {}  # by slot; fragments that shards are still reading
        self.headers: list[Header] = []  # of fragments that were handed over and are not counted yet
        self.moments: list[Any] = []  # of their rows, for the policy's filter
        self.wakes, self.waker = CONTEXT.Pipe(duplex=False)

    def hand_over(self) -> None:
        """Gives the oldest waiting fragment to its shard."""
        (fragment,) = self.sampler.take(1)
        self.copying[fragment.header.slot] = fragment
        self.moments.append(self.algorithm.policy.moments(fragment.batch))
        self.replay.add(fragment.header)
        self.headers.append(fragment.header)

    def give_back(self) -> None:
        """Returns the slots that shards have copied to the samplers."""
        for slot in self.replay.added:
            self.sampler.free([self.copying.pop(slot)])
        self.replay.added.clear()

    def absorbed(self) -> list[Header]:
        """Merges the moments of new rows into the policy's filter. Returns the headers of these rows, once."""
        self.algorithm.absorb_rows(self.moments)
        headers, self.headers, self.moments = self.headers, [], []
        return headers

    @contextmanager
    def beside(self, wanted: bool) -> Iterator[None]:
        """Hands over fragments in a thread of its own while the block runs, if wanted. The block must use neither
        sampler nor replay. Raises what went wrong in the thread."""
        if not wanted:
            yield
            return
        problems: list[BaseException] = []
        thread = threading.Thread(target=self._go_on, args=(problems,), name="feed", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.waker.send_bytes(b"over")
            thread.join()
        if problems:
            raise problems[0]

    def _go_on(self, problems: list[BaseException]) -> None:
        try:
            while not self.wakes.poll():
                self.sampler.check()
                self.replay.poll()
                self.give_back()
                while self.sampler.queued:
                    self.hand_over()
                self.replay.poll(POLL_SEC, [self.wakes, *self.sampler.handles()])
        except BaseException as error:  # raised again where the block ends
            problems.append(error)
        self.wakes.recv_bytes()  # waits for the end of the block
