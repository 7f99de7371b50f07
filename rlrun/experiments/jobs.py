"""Jobs are runs in processes of their own that share this machine's cores and GPUs.

A job that fails, hangs or is killed never stops the others.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlrun.config.words import quoted
from rlrun.core.errors import UserError, explained
from rlrun.core.outputs import announce, tell, to_nowhere
from rlrun.core.run_lock import held, holder
from rlrun.core.signals import SAME_SEC
from rlrun.experiments.job_parent import PARENT
from rlrun.experiments.outcomes import (
    DONE,
    LOST,
    Outcome,
    TrainingJob,
    checkpoints,
    holds_run,
    last_row,
    settle,
    version,
)
from rlrun.experiments.places import Place
from rlrun.machine.machine import GPU_JOBS, MEMORY, SHARE

POLL_SEC = 0.2
LOOK_SEC = 2.0  # seconds between two looks at a job's progress
GRACE_SEC = 180.0  # seconds that a job gets to save and end before it is killed
RETRY_SEC, MOST_REFUSED = 10.0, 30  # a start that failed is tried again after so long, so often in a row


class Supply(Protocol):
    """Gives out jobs one at a time and is told how they go."""

    def next(self) -> TrainingJob | None:
        """The next job, or None where there is none at present. It is asked again as long as any job runs or waits."""
        ...

    def look(self, outcome: Outcome) -> bool:
        """Called when a running job has logged a new row. True ends the job as PRUNED."""
        ...

    def done(self, outcome: Outcome) -> None: ...


class View(Protocol):
    left_out: int  # draws of a search that became no job, because it would not have started

    def show(self, outcomes: Sequence[Outcome]) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self, outcomes: Sequence[Outcome]) -> None: ...


class Fixed:
    """A supply that gives out a list of jobs in order."""

    def __init__(self, jobs: Sequence[TrainingJob]):
        self.jobs = list(jobs)

    def next(self) -> TrainingJob | None:
        return self.jobs.pop(0) if self.jobs else None

    def look(self, outcome: Outcome) -> bool:
        return False

    def done(self, outcome: Outcome) -> None: ...


class Process(Protocol):
    """A job that was started: a process of this machine, or a job in a cluster's queue with the same methods."""

    @property
    def begun(self) -> bool:
        """Whether it runs, or has run, and does not wait in a queue any more."""
        ...

    def poll(self) -> int | None: ...
    def send_signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


class Starter(Protocol):
    def __call__(self, job: TrainingJob, place: Place) -> Process: ...


class _ProcessHere(subprocess.Popen):
    begun = True


class Here:
    """Starts jobs as processes on this machine. Each runs on its own cores and writes its output to its log."""

    def __init__(self, command: Callable[[TrainingJob], list[str]] | None = None, cwd: str | None = None):
        self.command, self.cwd = command or command_of, cwd

    def __call__(self, job: TrainingJob, place: Place) -> Process:
        environment = {**os.environ, PARENT: str(os.getpid())}
        if place.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = place.gpu
            environment[GPU_JOBS] = str(place.beside)
        if place.memory is not None:
            environment[MEMORY] = str(place.memory)
        if place.share is not None:
            environment[SHARE] = str(place.share)
        mine = os.sched_getaffinity(0)
        # The new process inherits these cores, and resources=auto counts only cores that a process may use.
        os.sched_setaffinity(0, place.cores)
        try:
            with job.log.open("ab") as log:
                # With a session of its own, the job does not receive Ctrl-C from the terminal. Only the pool does, and
                # asks the jobs to end one by one.
                return _ProcessHere(
                    self.command(job),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    cwd=self.cwd,
                )
        finally:
            os.sched_setaffinity(0, mine)


@dataclass
class _Running:
    outcome: Outcome
    process: Process
    place: Place
    before: tuple[int, int] | None = None  # version of the summary that an earlier session left
    begun: float | None = None  # time from which on it has run
    looked: float = 0.0
    asked: float | None = None  # time at which it was asked to end
    pruned: bool = False
    too_long: bool = False
    killed: bool = False


@dataclass
class _Waiting:
    """A job whose directory another process uses, or that could not be started."""

    job: TrainingJob
    end: float  # time at which it is given up


class Pool:
    """Runs the jobs that a supply gives out. A job begins anew where an earlier session has left no checkpoint of it.

    A job whose directory is in use, as by a process of an earlier session that still saves, waits while others run. It
    has FAILED if the directory is still in use after GRACE_SEC.

    `interrupted` is True where a signal ended the pool. Its jobs have saved then and can be resumed.
    """

    def __init__(
        self,
        where: Sequence[Place],
        view: View,
        timeout_sec: float | None = None,
        known: Sequence[Outcome] = (),
        starter: Starter | None = None,
    ):
        """timeout_sec: the longest time that a job may run. known: outcomes of an earlier session, to be shown too.

        starter: what starts a job; None starts it on this machine.
        """
        self.free, self.view, self.timeout_sec, self.starter = list(where), view, timeout_sec, starter or Here()
        self.outcomes: list[Outcome] = list(known)
        self.running: list[_Running] = []
        self.waiting: list[_Waiting] = []
        self.signal: int | None = None
        self.signalled_at = 0.0
        self.refused, self.not_before = 0, 0.0  # starts that failed in a row, and the time of the next one
        self.terminals: list[int] = []  # outputs that a person reads
        self.again = self.told = False  # a second signal came; the view has said what the first one does

    @property
    def interrupted(self) -> bool:
        return self.signal is not None

    def run(self, supply: Supply) -> list[Outcome]:
        before = self._listen()
        announce("nobody reads this output any more, and the jobs go on; Ctrl-C lets them save and ends them")
        try:
            while True:
                if self.running and self.interrupted and not self.told:
                    self.told = True
                    self.view.say("the running jobs save what they have learnt; Ctrl-C again ends them at once")
                for one in list(self.running):
                    self._watch(one, supply)
                while self._may_start() and (job := self._next(supply)) is not None:
                    self._start(job)
                if not self.running and (self.interrupted or not self.waiting):
                    break
                self.view.show(self.outcomes)
                time.sleep(POLL_SEC)
        except BaseException:  # a full disk, for example, is no reason to lose what the jobs have learnt
            self._end()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            announce("")  # no job goes on
            self.view.close(self.outcomes)
        return self.outcomes

    def _may_start(self) -> bool:
        return bool(self.free) and not self.interrupted and time.monotonic() >= self.not_before

    def _listen(self) -> dict[int, Any]:
        """Answers Ctrl-C, SIGTERM and SIGHUP from now on, and returns what has answered them before. In other threads
        than the main one Python allows no answers, and the program's own stay."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        before: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored, as under nohup, it stays so
            self.terminals = [output for output in (1, 2) if os.isatty(output)]
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
        return before

    def _end(self) -> None:
        """Asks the running jobs to save and to end, and kills those that take longer than GRACE_SEC. The supply is not
        told, because it may be what failed; a resumed sweep reads from the runs how they ended."""
        for one in self.running:
            if one.asked is None:
                one.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + GRACE_SEC
        for one in self.running:
            while (code := one.process.poll()) is None:
                if self.again or time.monotonic() > end:
                    one.process.kill()
                    code = one.process.wait()
                    break
                time.sleep(POLL_SEC)
            settle(one.outcome, code, one.before)
            if code < 0 or code == LOST:
                one.outcome.status = "INTERRUPTED"
        self.running.clear()

    def _on_signal(self, number: int, frame: Any) -> None:
        # A session that ends sends SIGTERM and SIGHUP at once, which is not a person who asks again.
        self.again = self.again or (
            self.interrupted and (number == signal.SIGINT or time.monotonic() - self.signalled_at > SAME_SEC)
        )
        self.signal, self.signalled_at = self.signal or number, self.signalled_at or time.monotonic()

    def _on_hangup(self, number: int, frame: Any) -> None:
        """The terminal was closed, and writing to it would raise an error."""
        for output in self.terminals:
            to_nowhere(output)
        self._on_signal(number, frame)

    def _next(self, supply: Supply) -> TrainingJob | None:
        """A job that waited and whose directory is free now, or else the supply's next one with a free directory."""
        for one in list(self.waiting):
            if not held(one.job.run_dir):
                self.waiting.remove(one)
                return one.job
            if time.monotonic() > one.end:
                self.waiting.remove(one)
                self._give_up(one.job, supply)
        while (job := supply.next()) is not None and held(job.run_dir):
            tell(f"  {job.name} waits: {job.run_dir} is in use by {holder(job.run_dir)}")
            self.waiting.append(_Waiting(job, time.monotonic() + GRACE_SEC))
        return job

    def _give_up(self, job: TrainingJob, supply: Supply) -> None:
        """Ends a job, which a later session can try again, because its directory is in use."""
        outcome = self._outcome(job)
        outcome.status, outcome.lost = "FAILED", True
        outcome.reason = f"{job.run_dir} is still in use by {holder(job.run_dir)}"
        supply.done(outcome)

    def _outcome(self, job: TrainingJob) -> Outcome:
        outcome = next((known for known in self.outcomes if known.job.run_dir == job.run_dir), None)
        if outcome is None:
            outcome = Outcome(job=job)
            self.outcomes.append(outcome)
        outcome.job = job  # a member of a population may have other options than before
        return outcome

    def _start(self, job: TrainingJob) -> None:
        clear(job)
        place, outcome = self.free.pop(0), self._outcome(job)
        outcome.status, outcome.reason, outcome.summary, outcome.lost = "RUNNING", "", {}, False
        outcome.row = last_row(job.run_dir) or {}  # the rows of a run that begins anew are gone
        job.log.parent.mkdir(parents=True, exist_ok=True)
        before = version(job.run_dir)
        try:
            process = self.starter(job, place)
        except Exception as error:  # a scheduler that takes no job now, or a machine without memory for a process
            self.free.append(place)
            self.refused += 1
            if self.refused > MOST_REFUSED:
                raise
            tell(f"  {job.name} could not be started and is tried again: {explained(error)}")
            self.not_before = time.monotonic() + RETRY_SEC
            outcome.status = "INTERRUPTED"
            self.waiting.append(_Waiting(job, math.inf))
            return
        self.refused = 0
        self.running.append(_Running(outcome, process, place, before))

    def _watch(self, one: _Running, supply: Supply) -> None:
        now, outcome, code = time.monotonic(), one.outcome, one.process.poll()
        if code is not None:
            self.running.remove(one)
            self.free.append(one.place)
            outcome.row = last_row(outcome.job.run_dir) or outcome.row
            settle(outcome, code, one.before)
            saved = outcome.summary.get("status") == "INTERRUPTED"  # whatever the queue says of a job that it cancelled
            outcome.lost = code == LOST and not saved
            # It was asked to end, and it saved, was not handling signals yet, or took too long. Or its queue asked it.
            if (one.asked is not None and (saved or outcome.lost or code < 0)) or (code == LOST and saved):
                outcome.status = "INTERRUPTED"
            if one.pruned and outcome.status == "INTERRUPTED":
                outcome.status, outcome.reason = (
                    "PRUNED",
                    "most finished runs had done better after as many env steps",
                )
            if one.too_long and outcome.status not in DONE:
                outcome.status, outcome.reason = "FAILED", f"took longer than --timeout {self.timeout_sec:g} s"
            supply.done(outcome)
            return
        if now - one.looked >= LOOK_SEC:
            one.looked = now
            row = last_row(outcome.job.run_dir)
            if row is not None and row != outcome.row:
                outcome.row, outcome.evaluated = row, row.get("eval/return_mean", outcome.evaluated)
                one.pruned = one.pruned or supply.look(outcome)
        if self.timeout_sec is not None:
            one.begun = now if one.begun is None and one.process.begun else one.begun
            one.too_long = one.too_long or (one.begun is not None and now - one.begun > self.timeout_sec)
        if one.asked is None and (one.pruned or one.too_long or self.interrupted):
            one.asked = now
            one.process.send_signal(signal.SIGTERM)
        if one.asked is not None and not one.killed and (self.again or now - one.asked > GRACE_SEC):
            one.killed = True
            one.process.kill()


def command_of(job: TrainingJob) -> list[str]:
    """The command that runs a job: rlrun train, or rlrun resume where the run has a checkpoint. A run that has nothing
    left to do is no error, and its summary then says so."""
    words = (
        ["resume", str(job.run_dir), *job.resume, "--if-needed"]
        if checkpoints(job.run_dir)
        else ["train", *job.words, f"run_dir={quoted(str(job.run_dir))}"]
    )
    trust = ["--trust"] if job.trusted and "--trust" not in words else []
    return [sys.executable, "-m", "rlrun.experiments.job", *words, *trust]


def clear(job: TrainingJob) -> None:
    """Removes the directory of a run that has no checkpoint, since it cannot be resumed. A directory in which rlrun has
    made no run is left as it is."""
    if job.run_dir.exists() and not checkpoints(job.run_dir) and holds_run(job.run_dir):
        shutil.rmtree(job.run_dir)


def check_timeout(seconds: float | None) -> None:
    """UserError where --timeout is no time that a run could take."""
    if seconds is not None and not seconds > 0:
        raise UserError("--timeout must be positive")
