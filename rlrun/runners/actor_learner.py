"""actor_learner: samplers run ahead with weights that are a few updates old, and the learner consumes their fragments.

samplers --fragments--> [replay mixes old ones in] --> [ring of train batches, K passes] --> learner.update
    ^                                                                                           |
    '------------------------------- weights, every broadcast_interval updates -----------------'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.conditions import SAMPLERS, OnlyFor, OnlyWith
from rlrun.core.job import Job
from rlrun.core.ranges import Count, NotNegative, Range
from rlrun.core.timing import Timers
from rlrun.dataflow.reuse import FragmentReplay, Gatherer, PassRing
from rlrun.dataflow.slots import Fragment, Header
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.runners.base import Factories, RunnerConfig
from rlrun.samplers.base import Sampler


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    requests_in_flight: Annotated[int, Count, OnlyFor(SAMPLERS)]
    broadcast_interval: Annotated[int, Count, OnlyFor(SAMPLERS)]
    num_sgd_iter: Annotated[int, Count]
    minibatch_buffer_size: Annotated[int, Count, OnlyWith("num_sgd_iter", Range(2))]
    replay_proportion: Annotated[float, NotNegative]
    replay_slots: Annotated[int, NotNegative, OnlyWith("replay_proportion")]
    fake_sampler: bool

    synchronous: ClassVar[bool] = False  # samplers run ahead

    def __post_init__(self):
        if self.replay_proportion > 0 and self.replay_slots == 0:
            raise ValueError("replay_proportion needs replay_slots, the number of fragments to keep")


def layout(asked: Asked, machine: Machine) -> Resources:
    """Samplers run ahead of the learner, so the learner has one thread. Each sampler fills parts of a train batch."""
    compute.check_device(asked, machine)
    choices.check_own_samplers(asked, asked.needs.every_process_learns)
    learners = choices.learners_in_lockstep(asked, machine)
    spread = choices.batch_columns(asked, learners.value, shared=False)
    inference = choices.inference(asked, machine, learners.value, spread)
    where = compute.learner_device(asked, machine, inference.value, learners.value)
    samplers = choices.samplers_per_learner(asked, machine, learners.value, inference.value, where.value, spread)
    most = min(choices.MAX_COLUMNS, choices.most_envs(learners.value, samplers.value, inference.value, where.value))
    if inference.value == "serial":
        most = spread.per_learner
    envs = choices.envs_per_group(asked, learners.value, samplers.value, inference.value, most, spread)
    threads = compute.one_thread(asked)
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
        seen: list[Any] = []  # the moments of new rows, for the policy's filter

        def note(rows: Batch) -> None:
            seen.append(algorithm.policy.moments(rows))

        replay = FragmentReplay(cfg.replay_proportion, cfg.replay_slots, make.rng(job.generation))
        stream = _Stream(
            sampler,
            replay,
            make.columns,
            cfg.fake_sampler,
            job.timers,
            note,
            Gatherer(algorithm.ctx.device, job.timers),
        )
        ring = PassRing(cfg.minibatch_buffer_size, cfg.num_sgd_iter, stream.train_batch)
        job.breaks += [lambda generation: stream.clear(make.rng(generation)), lambda generation: ring.clear()]
        update: Update | None = None
        while job.tick(clock, update):
            batch = ring.emit()
            headers = stream.new_headers()
            algorithm.absorb_returns([header.returns for header in headers])
            clock = clock.after(env_steps=job.collected(headers))
            with job.timers("learn"), make.threads:
                update = algorithm.update(batch, clock)
            clock = clock.after(updates=1)
            with job.timers("filter"):
                algorithm.absorb_rows(seen)
                seen.clear()
            with job.timers("publish"):
                sampler.publish(algorithm.policy if clock.updates % cfg.broadcast_interval == 0 else None, clock)
    finally:
        sampler.close()


class _Stream:
    """Combines new and replayed fragments into train batches, in order of arrival."""

    def __init__(
        self,
        sampler: Sampler,
        replay: FragmentReplay,
        columns: int,
        fake: bool,
        timers: Timers,
        note: Callable[[Batch], None],
        gather: Gatherer,
    ):
        self.sampler, self.replay, self.fake, self.timers, self.gather = sampler, replay, fake, timers, gather
        self.note = note  # called with all new rows, of a fragment on a CPU or of a train batch on a GPU
        self.count = columns // sampler.columns  # number of fragments in one train batch
        self.ready: list[tuple[Batch, Fragment | None]] = []
        self.headers: list[Header] = []  # headers of new fragments
        self.kept: Batch | None = None  # the only batch of a fake sampler
        self.again: list[Header] = []  # headers of the kept batch

    def train_batch(self, old: Batch | None) -> Batch:
        if self.fake and self.kept is not None:
            self.headers += self.again
            return self.kept
        while len(self.ready) < self.count:
            missing = self.count - len(self.ready) if self.replay.slots == 0 else 1
            with self.timers("wait"):
                fragments = self.sampler.take(missing)
            for fragment in fragments:
                self.ready.append((fragment.batch, fragment))
                with self.timers("copy"):
                    self.ready += [(batch, None) for batch in self.replay.accompany(fragment)]
                self.headers.append(fragment.header)
                if not self.gather.on_gpu:
                    with self.timers("filter"):
                        self.note(fragment.batch)
        chosen, self.ready = self.ready[: self.count], self.ready[self.count :]
        batch = self.gather([part for part, _ in chosen], old)
        if self.gather.on_gpu:  # where the moments of many images cost little
            with self.timers("filter"):
                self.note(_only_new(batch, [fragment is not None for _, fragment in chosen]))
        used: Sequence[Fragment] = [fragment for _, fragment in chosen if fragment is not None]
        self.sampler.free(used)
        self.replay.release(part for part, fragment in chosen if fragment is None)
        if self.fake:
            self.kept, self.again = batch, [fragment.header._replace(episodes=(), returns=None) for fragment in used]
        return batch

    def clear(self, rng: torch.Generator) -> None:
        """Drops the waiting fragments and those that are kept for replay."""
        self.sampler.free([fragment for _, fragment in self.ready if fragment is not None])
        self.ready = []
        self.replay.clear(rng)

    def new_headers(self) -> list[Header]:
        """Returns the headers of the fragments that arrived since the last call."""
        headers, self.headers = self.headers, []
        return headers


def _only_new(batch: Batch, new: Sequence[bool]) -> Batch:
    """The batch with dead rows in place of those of replayed fragments. The fragments lie side by side."""
    if all(new):
        return batch
    valid, each = batch.valid.clone(), batch.reward.shape[1] // len(new)
    for number, fresh in enumerate(new):
        if not fresh:
            valid[:, number * each : (number + 1) * each] = False
    return batch.replace(valid=valid)
