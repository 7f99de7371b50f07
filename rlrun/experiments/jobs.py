"""Jobs are runs in processes of their own that share this machine's cores and GPUs.

A job that fails, hangs or is killed never stops the others.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlrun.core.errors import RunFailed, UserError
from rlrun.core.run_lock import held, holder
from rlrun.core.saved_files import check_run_config, read_summary
from rlrun.experiments.job_parent import PARENT
from rlrun.machine.machine import SHARE, cores, pinned

POLL_SEC = 0.2
LOOK_SEC = 2.0  # seconds between two looks at a job's progress
GRACE_SEC = 180.0  # seconds that a job gets to save and end before it is killed
DONE = ("COMPLETED", "STOPPED")  # the statuses of a run that has nothing left to do
LOST = 255  # the exit code of a job that a queue has ended, or whose machine was lost; no job of rlrun's has it


class Place(NamedTuple):
    """The cores and the GPU on which one job runs at a time."""

    cores: tuple[int, ...]
    gpu: str | None  # the job's CUDA_VISIBLE_DEVICES; None leaves that variable as it is
    # How many of these cores the job may use, where other jobs run on the same ones. None: all.
    share: int | None = None


def gpus() -> list[str]:
    """The visible GPUs, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # A negative number hides itself and all that follow it (CUDA's programming guide).
        return list(itertools.takewhile(lambda name: not name.startswith("-"), filter(None, visible.split(","))))
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def places(jobs: int | None, own: list[int] | None = None, devices: list[str] | None = None) -> list[Place]:
    """Places for this number of jobs, which share the cores and the GPUs evenly.

    None makes one place for each GPU, or one for every two cores where there is no GPU. UserError for less than one.
    """
    total, fixed = (cores(), pinned()) if own is None else (len(own), True)
    own = sorted(os.sched_getaffinity(0)) if own is None else own
    devices = gpus() if devices is None else devices
    count = jobs if jobs is not None else len(devices) or max(1, total // 2)
    if count < 1:
        raise UserError("--jobs must be at least 1")
    made = []
    for index in range(count):
        first, last = index * total // count, (index + 1) * total // count
        gpu = devices[index % len(devices)] if devices else None
        if fixed:  # with more jobs than cores, some share a core
            made.append(Place(tuple(own[first:last]) or (own[index % total],), gpu))
        else:
            made.append(Place(tuple(own), gpu, max(1, last - first)))
    return made


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    name: str
    words: tuple[str, ...]  # the words for `rlrun train`, without run_dir
    run_dir: Path
    log: Path
    resume: tuple[str, ...] = ()  # the words for `rlrun resume`, where the run has a checkpoint
    trusted: bool = False  # whether its config may name modules that no installed package contains (--trust)


@dataclass(kw_only=True)
class Outcome:
    """A job and what became of it."""

    job: TrainingJob
    # WAITING, then RUNNING, then the status in its summary: COMPLETED, STOPPED, INTERRUPTED or FAILED. A job that the
    # supply ended is PRUNED.
    status: str = "WAITING"
    reason: str = ""
    row: dict[str, Any] = field(default_factory=dict)  # the last row of progress.jsonl
    summary: dict[str, Any] = field(default_factory=dict)
    lost: bool = False  # whether it failed because its machine or its queue did

    @property
    def return_mean(self) -> float | None:
        """The mean return of training or, where nothing is played, as with runner=offline, of the last evaluation."""
        played = self.summary.get("return_mean", self.row.get("sample/return_mean"))
        return self.summary.get("eval_return_mean") if played is None else played

    @property
    def env_steps(self) -> int:
        return self.summary.get("env_steps", self.row.get("env_steps", 0))

    @property
    def wall_sec(self) -> float:
        return self.summary.get("wall_sec", self.row.get("time_sec", 0.0))


class Supply(Protocol):
    """Gives out jobs one at a time and is told how they go."""

    def next(self) -> TrainingJob | None:
        """The next job, or None where there is none at present. It is asked again as long as any job runs."""
        ...

    def look(self, outcome: Outcome) -> bool:
        """Called when a running job has logged a new row. True ends the job as PRUNED."""
        ...

    def done(self, outcome: Outcome) -> None: ...


class View(Protocol):
    def show(self, outcomes: Sequence[Outcome]) -> None: ...
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


class Pool:
    """Runs the jobs that a supply gives out.

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
        self.signal: int | None = None
        self.again = False

    @property
    def interrupted(self) -> bool:
        return self.signal is not None

    def run(self, supply: Supply) -> list[Outcome]:
        before = self._listen()
        try:
            while True:
                for one in list(self.running):
                    self._watch(one, supply)
                while self.free and not self.interrupted and (job := supply.next()) is not None:
                    self._start(job)
                if not self.running:
                    break
                self.view.show(self.outcomes)
                time.sleep(POLL_SEC)
        except BrokenPipeError:  # as in `rlrun sweep ... | head`
            self._end()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise RunFailed("nobody reads this output any more, so the jobs were asked to save and to end") from None
        except BaseException:  # a full disk, for example, is no reason to lose what the jobs have learnt
            self._end()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.view.close(self.outcomes)
        return self.outcomes

    def _listen(self) -> dict[int, Any]:
        """Answers Ctrl-C and SIGTERM from now on, and returns what has answered them before. In other threads than the
        main one Python allows no answers, and the program's own stay."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}

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
        self.again = self.interrupted
        self.signal = self.signal or number

    def _start(self, job: TrainingJob) -> None:
        place = self.free.pop(0)
        outcome = next((known for known in self.outcomes if known.job.run_dir == job.run_dir), None)
        if outcome is None:
            outcome = Outcome(job=job)
            self.outcomes.append(outcome)
        outcome.status, outcome.reason, outcome.summary, outcome.lost = "RUNNING", "", {}, False
        outcome.row = last_row(job.run_dir) or {}  # the rows of a run that begins anew are gone
        job.log.parent.mkdir(parents=True, exist_ok=True)
        before = version(job.run_dir)
        self.running.append(_Running(outcome, self.starter(job, place), place, before))

    def _watch(self, one: _Running, supply: Supply) -> None:
        now, outcome, code = time.monotonic(), one.outcome, one.process.poll()
        if code is not None:
            self.running.remove(one)
            self.free.append(one.place)
            outcome.row = last_row(outcome.job.run_dir) or outcome.row
            settle(outcome, code, one.before)
            saved = outcome.summary.get("status") == "INTERRUPTED"  # whatever the queue says of a job that it cancelled
            outcome.lost = code == LOST and not saved
            # It was asked to end, and it saved, was not handling signals yet, or took too long.
            if one.asked is not None and (saved or outcome.lost or code < 0):
                outcome.status = "INTERRUPTED"
            if one.pruned and outcome.status == "INTERRUPTED":
                outcome.status, outcome.reason = "PRUNED", "other runs did better after as many env steps"
            if one.too_long and outcome.status not in DONE:
                outcome.status, outcome.reason = "FAILED", f"took longer than --timeout {self.timeout_sec:g} s"
            supply.done(outcome)
            return
        if now - one.looked >= LOOK_SEC:
            one.looked = now
            row = last_row(outcome.job.run_dir)
            if row is not None and row != outcome.row:
                outcome.row = row
                one.pruned = one.pruned or supply.look(outcome)
        if self.timeout_sec is not None:
            one.begun = now if one.begun is None and one.process.begun else one.begun
            one.too_long = one.too_long or (one.begun is not None and now - one.begun > self.timeout_sec)
        if one.asked is None and (one.pruned or one.too_long or self.interrupted):
            one.asked = now
            one.process.send_signal(signal.SIGTERM)
        if one.asked is not None and (self.again or now - one.asked > GRACE_SEC):
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


def known(job: TrainingJob) -> Outcome:
    """The outcome that an earlier session left of a job. Its status is WAITING where the job is not done."""
    outcome = Outcome(job=job, row=last_row(job.run_dir) or {})
    if job.run_dir.exists():
        settle(outcome, None)
        outcome.status = outcome.status if outcome.status in DONE else "WAITING"
    return outcome


def clear(job: TrainingJob) -> None:
    """Removes the directory of a run that has no checkpoint, since it cannot be resumed. A directory in which rlrun has
    made no run is left as it is.

    First waits for a process of an earlier session that is still saving. UserError where it does not end in GRACE_SEC.
    """
    if not job.run_dir.exists():
        return
    end, told = time.monotonic() + GRACE_SEC, False
    while held(job.run_dir):
        if time.monotonic() > end:
            raise UserError(f"{job.run_dir} is still in use by {holder(job.run_dir)}")
        if not told:
            print(f"  waiting for {job.name}, which is still saving", flush=True)
            told = True
        time.sleep(POLL_SEC)
    if not checkpoints(job.run_dir) and holds_run(job.run_dir):
        shutil.rmtree(job.run_dir)


def holds_run(folder: Path) -> bool:
    """Whether a folder has the config.yaml or the summary.json of a run."""
    if {"status", "algo", "env", "seed"} <= summary_of(folder).keys():
        return True
    from rlrun.config.types import load_yaml

    path = folder / "config.yaml"
    try:
        check_run_config(load_yaml(path), path)
    except (OSError, UserError):
        return False
    return True


def check_timeout(seconds: float | None) -> None:
    """UserError where --timeout is no time that a run could take."""
    if seconds is not None and not seconds > 0:
        raise UserError("--timeout must be positive")


def checkpoints(run_dir: Path) -> list[str]:
    """The names of a run's checkpoints, oldest first."""
    return sorted(path.name for path in (run_dir / "checkpoints").glob("[0-9]*") if path.is_dir())


def quoted(text: str) -> str:
    """The text in quotes for the right side of a Hydra override, where only a backslash before a quote is special."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", text)) + "'"


def summary_of(run_dir: Path) -> dict[str, Any]:
    """The contents of summary.json; empty where there is no readable one."""
    return read_summary(run_dir / "summary.json")


def version(run_dir: Path) -> tuple[int, int] | None:
    """The time and inode of summary.json, which each session writes anew; None where there is no summary."""
    try:
        found = (run_dir / "summary.json").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def settle(outcome: Outcome, code: int | None, before: tuple[int, int] | None = None) -> None:
    """Sets an outcome's status and reason from the run's summary and its process's exit code.

    code: None for a job of an earlier session. before: the version of the summary that was there when the job began; a
    summary of that version says nothing about this session and is ignored.
    """
    found = summary_of(outcome.job.run_dir) if before is None or version(outcome.job.run_dir) != before else {}
    outcome.status, outcome.reason = (
        found.get("status", "FAILED"),
        str(found.get("reason") or "").strip().split("\n")[-1],
    )
    if outcome.status == "RUNNING" and code == 0 and held(outcome.job.run_dir):
        outcome.status, outcome.reason = "COMPLETED", "another process has resumed the run since"
        return
    if outcome.status == "RUNNING":  # the process died before it could write how it ended
        outcome.status = "FAILED"
    elif found:
        outcome.summary = found
    if code is None:
        return
    if code < 0:
        outcome.status, outcome.reason = "FAILED", f"killed by {signal.Signals(-code).name}"
    elif code not in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP):
        outcome.status, outcome.reason = "FAILED", outcome.reason or last_line(outcome.job.log)
    elif outcome.status == "FAILED" and not outcome.reason:
        outcome.reason = last_line(outcome.job.log)


def last_row(run_dir: Path, having: str | None = None) -> dict[str, Any] | None:
    """The last whole row of progress.jsonl, read from the end of the file; None where there is none. having: a value
    that the row must have."""
    try:
        with (run_dir / "progress.jsonl").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (16384 if having is None else 2**20)))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and (having is None or row.get(having) is not None):
            return row
    return None


def last_line(path: Path) -> str:
    """The last line of a log; empty where there is none."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("rlrun: ") if lines else ""
