"""async_gradients: every process samples, computes a gradient and applies it to weights in shared memory.

No process waits for the others. With an algorithm that learns from a replay (RLlib's AsyncGradientsOptimizer with DQN
and DDPG), every process has its part of the environments and of the replay, and learns replay_ratio rows for each row
of its own. Target networks move when the updates of all processes together say so, in the process that counts them.

Source: Mnih et al. 2016, arXiv:1602.01783, whose asynchronous Q-learning (section 4.2) has no replay.

process i:  newest weights -> sample [-> replay] -> gradient --apply--> shared weights and optimiser statistics
                                            '--- headers, metrics ---> this process: counts, moves targets, logs, saves
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rlrun.core.algorithm import Update
from rlrun.core.awake import awake
from rlrun.core.errors import ProcessLost, RunFailed, UserError
from rlrun.core.job import Job
from rlrun.core.metrics import Means
from rlrun.core.pulse import Pulses
from rlrun.core.schedule import Clock
from rlrun.dataflow.ranks import SAVE_SEC
from rlrun.dataflow.shared import SharedLearner
from rlrun.dataflow.slots import Header
from rlrun.dataflow.supervision import LOOK_SEC, Supervised
from rlrun.dataflow.workers import READY, Worker, no_word
from rlrun.machine import choices, compute
from rlrun.machine.asked import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.runners import on_policy, replay
from rlrun.runners.base import Factories, RunnerConfig
from rlrun.runners.gradient_process import HELD, LOAD, SAVE, STATE, GradientReport, worker_process
from rlrun.samplers.processes import RESTART_BITS, Unsaved


@dataclass(frozen=True, kw_only=True)
class Config(RunnerConfig):
    synchronous: ClassVar[bool] = True  # within a process, rows and their gradient are made with the same weights
    lockstep: ClassVar[bool] = False


def layout(asked: Asked, machine: Machine) -> Resources:
    """Every process samples and learns on the CPU, with its own whole train batches, or its part of the replay."""
    if asked.cfg.device not in ("auto", "cpu"):
        raise UserError(
            f"resources.device={asked.cfg.device}: workers that share weights without waiting learn on the CPU"
        )
    compute.check_device(asked, machine)
    choices.check_own_samplers(asked, every_process_learns=True)
    asked = choices.every_process_learns(asked)
    learners = choices.learners_on_their_own(asked, machine)
    replayed = asked.needs.replay is not None
    columns = asked.needs.columns
    over = f" over {learners.value} learners" if learners.value > 1 else ""
    spread = choices.Spread(
        columns, columns, True, f"{columns} columns of a train batch (algo.batch_size / algo.fragment_length){over}"
    )
    columns_of_replay = choices.replay_columns(asked, learners.value) if replayed else choices.Choice(spread)
    spread = columns_of_replay.value
    inference = choices.inference(asked, machine, learners.value, spread)
    if inference.value != "serial":
        raise UserError(
            f"resources.inference={inference.value}: workers that share weights without waiting have their environments"
            " in their own process (serial)"
        )
    where = compute.on_cpu_despite("workers that share weights without waiting learn on the CPU", asked, machine)
    samplers = choices.samplers_per_learner(asked, machine, learners.value, "serial", where.value, spread)
    envs = choices.envs_per_group(asked, learners.value, samplers.value, "serial", spread.per_learner, spread)
    if replayed:
        threads = compute.replay_threads(asked, machine, "serial", where.value, learners.value)
    else:
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
        before=(columns_of_replay,),
    )


def run(make: Factories, cfg: Config, job: Job) -> None:
    """Runs until job.tick() ends it. Raises RunFailed when a process died or all were silent for queue_timeout_sec."""
    if make.learners == 1:  # a single process shares nothing, so the synchronous runners do the same
        alone(make, cfg, job)
        return
    algorithm = make.algorithm()
    clock = job.begin(algorithm)
    shared = SharedLearner(algorithm, clock, make.learners)
    crew = _Crew(make, shared, job, cfg.queue_timeout_sec)
    means = Means()

    def absorb(reports: list[GradientReport]) -> None:
        """Counts rows, and gradients that have been applied."""
        nonlocal clock
        headers = _aged(reports, clock)
        algorithm.absorb_returns([header.returns for header in headers])
        algorithm.absorb_rows([moments for report in reports for moments in report.moments])
        before, made = clock.updates, [report.metrics for report in reports if report.metrics is not None]
        for metrics in made:
            means.add(metrics)
        clock = clock.after(env_steps=job.collected(headers), updates=len(made))
        algorithm.move_targets(before, clock.updates)
        shared.clock = clock

    def hold() -> Clock:
        absorb(crew.hold())
        return clock

    job.hold_learners = hold  # evaluations, checkpoints and counters must belong to the same weights
    try:
        job.sampler_ready(crew)
        if algorithm.needs(algorithm.cfg).replay is not None:
            job.keeps("replay", _Replays(crew))
        update: Update | None = None
        while job.tick(clock, update):
            crew.go_on()
            with job.timers("wait"):
                absorb(crew.receive())
            update = Update(means.tensors()) if means.counts else None
            means = Means()
    finally:
        crew.close()


def alone(make: Factories, cfg: Config, job: Job) -> None:
    """Runs the synchronous runner of the same algorithm."""
    if make.learns_from_replay:
        replay.run(make, replay.Config(name="replay", queue_timeout_sec=cfg.queue_timeout_sec), job)
        return
    on_policy.run(
        make,
        on_policy.Config(name="on_policy", queue_timeout_sec=cfg.queue_timeout_sec, complete_episodes=False),
        job,
    )


def _aged(reports: Sequence[GradientReport], clock: Clock) -> list[Header]:
    """Returns the headers of new rows with weights that are as many updates old as gradients of others came in between.
    The clock of a process also lacks gradients that are applied and not counted yet, its own among them."""
    return [
        header._replace(updates=clock.updates - lag)
        for report in reports
        for header, lag in zip(report.headers, report.lags, strict=True)
    ]


class _Crew(Unsaved):
    """The processes, which wait until go_on(). To a Job they look like a sampler without state."""

    def __init__(self, make: Factories, shared: SharedLearner, job: Job, timeout_sec: float):
        self.timeout_sec, self.shared, self.holding = timeout_sec, shared, True
        self.restarts, self.replays = job.restarts, make.learns_from_replay
        self.waiting: list[GradientReport] = []
        self.held: set[Worker] = set()
        pulses, generation = Pulses(make.learners), job.generation
        self.supervised = Supervised(
            worker_process,
            [f"worker-{i}" for i in range(make.learners)],
            lambda i, restart: (make.elsewhere, i, shared, generation + (restart << RESTART_BITS), pulses),
            pulses,
            job.restarts,
            make.limits,
            make.envs,
        )
        self.workers, self.limits = self.supervised.workers, make.limits

    def close(self) -> None:
        self.workers.stop_recorders(self.limits)

    @property
    def members(self) -> list[Worker]:
        return self.supervised.members

    def _messages(self, timeout_sec: float) -> list[tuple[Worker, Any]]:
        return self.supervised.messages(timeout_sec, self._replaced)

    def _replaced(self, number: int, old: Worker, new: Worker) -> None:
        """Lets a new process go on at once, unless all are to wait. It waits by itself until then."""
        if self.replays:
            self.restarts.tell(f"{new.name} begins with an empty part of the replay")
        self.held.discard(old)
        if self.holding or self.shared.hold.item():
            self.held.add(new)
        else:
            self.supervised.send(new, READY)

    def receive(self) -> list[GradientReport]:
        """Returns the reports that have arrived; waits for at least one."""
        if not self.waiting:
            self.waiting = [message for _, message in self.supervised.next_messages(self.timeout_sec, self._replaced)]
        reports, self.waiting = self.waiting, []
        return reports

    def hold(self) -> list[GradientReport]:
        """Stops all processes before their next gradient. Returns the reports of all gradients applied until then."""
        if self.holding:
            return []
        self.shared.hold.fill_(1)
        self.held, reports, self.waiting = set(), self.waiting, []
        end, before = awake() + self.timeout_sec, self.supervised.beats()
        while len(self.held) < len(self.members):
            # Not for long: a process that takes the place of the last one to wait says nothing.
            messages = self._messages(LOOK_SEC)
            for worker, message in messages:
                if message == HELD:
                    self.held.add(worker)
                else:
                    reports.append(message)
            if messages:
                end = awake() + self.timeout_sec
            elif awake() > end:
                if not self.supervised.at_work(before):
                    raise RunFailed(no_word(self.supervised.names, self.timeout_sec))
                end, before = awake() + self.timeout_sec, self.supervised.beats()
        self.holding = True
        return reports

    def go_on(self) -> None:
        """Lets the processes continue after hold()."""
        if self.holding:
            self.shared.hold.zero_()
            self.holding = False
            for worker in self.members:
                self.supervised.send(worker, READY)

    def check(self) -> None:
        self.waiting += [message for _, message in self._messages(0.0)]

    def ask(self, members: Sequence[Worker], *what: Any) -> list[Any]:
        """Returns the answers of these processes about their replay, in their order. All must be held. ProcessLost is
        raised where one of them is gone."""
        if not self.holding or any(worker not in self.workers.members for worker in members):
            raise ProcessLost("a process that holds a part of the replay is gone")
        for worker in members:
            self.workers.send(worker, what)
        answers: dict[str, Any] = {}
        while len(answers) < len(members):
            said = self.workers.receive(max(self.timeout_sec, SAVE_SEC))
            answers |= {worker.name: message for worker, message in said if message != READY}  # READY: it is a new one
        return [answers[worker.name] for worker in members]


class _Replays:
    """The processes' parts of the replay, as a Job sees them (core.learners.Kept). Checkpoints have the form of those
    of several learners in lockstep."""

    def __init__(self, crew: _Crew):
        self.crew = crew

    @property
    def saved(self) -> bool:
        """Whether checkpoints hold the rows."""
        return self.crew.ask(self.crew.members[:1], STATE)[0][1]

    def state(self) -> dict:
        """Returns the state of the first process's part. The others save theirs with their rows."""
        return self.crew.ask(self.crew.members[:1], STATE)[0][0]

    def save_rows(self, folder: Path) -> None:
        for problem in self.crew.ask(self.crew.members, SAVE, folder):
            if problem is not None:
                raise problem

    def load(self, state: dict, folder: Path | None) -> str | None:
        return self.crew.ask(self.crew.members, LOAD, state, folder)[0]
