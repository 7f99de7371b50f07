"""async_gradients: every process samples, computes a gradient and applies it to weights in shared memory.

No process waits for the others.

process i:  newest weights -> sample -> gradient --apply--> shared weights and optimiser statistics
                                            '--- headers, metrics ---> this process: counts, logs, saves, stops
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import ClassVar

from rlrun.core.algorithm import Update
from rlrun.core.errors import UserError
from rlrun.core.metrics import Means
from rlrun.core.moments import Moments, plain
from rlrun.core.run import Job
from rlrun.core.schedule import Clock
from rlrun.dataflow.reuse import gather
from rlrun.dataflow.shared import SharedLearner
from rlrun.dataflow.slots import Header
from rlrun.dataflow.workers import READY, Workers
from rlrun.machine import choices
from rlrun.machine.choices import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.runners import on_policy
from rlrun.runners.base import Factories, RunnerConfig
from rlrun.samplers.processes import Unsaved


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    synchronous: ClassVar[bool] = True  # within a process, rows and their gradient are made with the same weights
    lockstep: ClassVar[bool] = False


def layout(asked: Asked, machine: Machine) -> Resources:
    """Every process samples and learns on the CPU, with its own whole train batches."""
    if asked.cfg.device not in ("auto", "cpu"):
        raise UserError(
            f"resources.device={asked.cfg.device}: workers that share weights without waiting learn on the CPU"
        )
    choices.check_device(asked, machine)
    choices.check_own_samplers(asked, every_process_learns=True)
    asked = choices.every_process_learns(asked)
    learners = choices.learners_on_their_own(asked, machine)
    columns = asked.needs.columns
    over = f" over {learners.value} learners" if learners.value > 1 else ""
    spread = choices.Spread(
        columns, columns, True, f"{columns} columns of a train batch (algo.batch_size / algo.fragment_length){over}"
    )
    inference = choices.inference(asked, machine, learners.value, spread)
    if inference.value != "serial":
        raise UserError(
            f"resources.inference={inference.value}: workers that share weights without waiting have their environments"
            " in their own process (serial)"
        )
    where = choices.device("cpu", machine)
    samplers = choices.samplers_per_learner(asked, machine, learners.value, "serial", where.value, spread)
    envs = choices.envs_per_group(asked, learners.value, samplers.value, "serial", columns, spread)
    threads = choices.waited_for_threads(asked, machine, where.value, learners.value)
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
    if make.learners == 1:  # a single process shares nothing, so the synchronous runner does the same
        on_policy.run(
            make,
            on_policy.Config(name="on_policy", queue_timeout_sec=cfg.queue_timeout_sec, complete_episodes=False),
            job,
        )
        return
    algorithm = make.algorithm()
    clock = job.begin(algorithm)
    shared = SharedLearner(algorithm, clock)
    crew = _Crew(make.elsewhere, make.learners, shared, job.generation, cfg.queue_timeout_sec)
    means = Means()

    def absorb(reports: list[GradientReport]) -> None:
        """Counts gradients that have been applied."""
        nonlocal clock
        for _, metrics, _ in reports:
            means.add(metrics)
        headers = [header for report, _, _ in reports for header in report]
        algorithm.absorb_returns([header.returns for header in headers])
        algorithm.absorb_rows([moments for _, _, moments in reports])
        clock = clock.after(env_steps=job.collected(headers), updates=len(reports))
        shared.clock = clock

    def hold() -> Clock:
        absorb(crew.hold())
        return clock

    job.hold_learners = hold  # evaluations, checkpoints and counters must belong to the same weights
    try:
        job.sampler_ready(crew)
        update: Update | None = None
        while job.tick(clock, update):
            crew.go_on()
            with job.timers("wait"):
                absorb(crew.receive())
            update = Update(means.tensors())
            means = Means()
    finally:
        crew.close()


HELD = "held"  # sent by a process in place of a GradientReport while it waits
GradientReport = tuple[list[Header], dict[str, float], list[Moments] | None]


class _Crew(Unsaved):
    """The processes. To a Job they look like a sampler without state."""

    def __init__(
        self, make: Callable[[int], Factories], count: int, shared: SharedLearner, generation: int, timeout_sec: float
    ):
        self.timeout_sec, self.shared, self.holding = timeout_sec, shared, False
        self.waiting: list[GradientReport] = []
        self.workers = Workers()
        for worker in self.workers.start_all(
            worker_process, {f"worker-{i}": (make, i, shared, generation) for i in range(count)}
        ):
            self.workers.send(worker, READY)  # all begin at the same time

    def receive(self) -> list[GradientReport]:
        """Returns the reports that have arrived; waits for at least one."""
        if not self.waiting:
            self.waiting = [message for _, message in self.workers.receive(self.timeout_sec)]
        reports, self.waiting = self.waiting, []
        return reports

    def hold(self) -> list[GradientReport]:
        """Stops all processes before their next gradient. Returns the reports of all gradients applied until then."""
        if self.holding:
            return []
        self.shared.hold.fill_(1)
        held, reports, self.waiting = 0, self.waiting, []
        while held < len(self.workers.members):
            for _, message in self.workers.receive(self.timeout_sec):
                if message == HELD:
                    held += 1
                else:
                    reports.append(message)
        self.holding = True
        return reports

    def go_on(self) -> None:
        """Lets the processes continue after hold()."""
        if self.holding:
            self.shared.hold.zero_()
            self.holding = False
            for worker in self.workers.members:
                self.workers.send(worker, READY)

    def check(self) -> None:
        self.waiting += [message for _, message in self.workers.receive(0.0)]


def worker_process(
    pipe: Connection, make: Callable[[int], Factories], number: int, shared: SharedLearner, generation: int
) -> None:
    """Computes and applies gradients, and sends a GradientReport after each, until the pipe closes."""
    factories = make(number)
    algorithm, sampler = factories.algorithm(), factories.sampler(generation)
    shared.attach(algorithm)
    count = factories.columns // sampler.columns
    batch = None
    pipe.send(READY)
    pipe.recv()
    while True:
        if shared.hold.item():
            pipe.send(HELD)
            pipe.recv()
        shared.refresh(algorithm)
        clock = shared.clock
        sampler.publish(algorithm.policy, clock)
        fragments = sampler.take(count)
        batch = gather([fragment.batch for fragment in fragments], batch, algorithm.ctx.device)
        with factories.threads:
            update = algorithm.update(batch, clock)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        pipe.send(([fragment.header for fragment in fragments], metrics, plain(algorithm.policy.moments(batch))))
        sampler.free(fragments)
