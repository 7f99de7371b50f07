"""Runs jobs through a cluster's queue with submitit: SLURM's, or, to try it, processes on this machine. Those of a Ray
cluster are in ray_queue.py.

A job is the same command as on one machine, on a file system that all machines share; submitit_job.py has the job's
side. submitit passes its own function to the job as a pickle, and the exit code back as another one, which this process
loads. Both lie in a folder that this session of the sweep has made, with a new name, and that no other user can enter:
a pickle that came with the sweep's folder is never loaded.
"""

from __future__ import annotations

import getpass
import importlib.util
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlrun.core.errors import UserError, closest
from rlrun.core.installing import install_line
from rlrun.core.outputs import tell
from rlrun.experiments.outcomes import LOST, TrainingJob
from rlrun.experiments.places import Place
from rlrun.experiments.submitit_job import SubmittedJob

CLUSTERS = ("slurm", "ray", "local")
# These are submitit's own parameters; all others are SLURM's.
PLAIN = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "nodes", "tasks_per_node", "name")
RESTARTS = "slurm_max_num_timeout"  # how often SLURM runs a job again whose time was over; 3 without it
LOCAL_MIN = 7 * 24 * 60  # minutes of a job of --cluster local, where submitit would say 2
LIST_SEC = 30.0  # seconds between two questions which jobs SLURM has
WAIT_SEC = 300.0  # seconds that a sweep that ends waits for a job that it has killed
GONE_SEC = 90.0  # a job that SLURM has not had for so long, and that has left no exit code, is lost


def parse(text: str) -> dict[str, Any]:
    """submitit's parameters from words such as partition=gpu,cpus_per_task=8. UserError where one is not key=value."""
    return {key if key in PLAIN else f"slurm_{key.removeprefix('slurm_')}": value for key, value in words(text).items()}


def words(text: str) -> dict[str, Any]:
    """The keys and values of --queue, with whole numbers as such. UserError where a word is not key=value."""
    made: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise UserError(
                f"--queue {part!r}: say key=value,... such as"
                " partition=gpu,cpus_per_task=8,gpus_per_node=1,timeout_min=600"
            )
        made[key] = int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)
    return made


def check(cluster: str, queue: str) -> None:
    """Raises UserError where there is no such --cluster, its package is missing, or --queue does not belong to it."""
    if cluster not in CLUSTERS:
        raise UserError(
            f"There is no --cluster {cluster}.{closest(cluster, CLUSTERS)} There are {', '.join(CLUSTERS[:-1])} and"
            f" {CLUSTERS[-1]}."
        )
    if cluster == "ray":
        from rlrun.experiments.ray_queue import options

        options(words(queue) if queue else {})
        return
    if importlib.util.find_spec("submitit") is None:
        raise UserError(f"--cluster needs submitit: {install_line('slurm')}")
    if cluster == "slurm" and not {"timeout_min", "slurm_time"} & (parse(queue) if queue else {}).keys():
        raise UserError(
            "--cluster slurm needs --queue timeout_min=MINUTES, after which SLURM ends a job: submitit would say 5"
        )


def changed(log: Path) -> int | None:
    """The time of the last change of a log, in nanoseconds; None where there is none yet."""
    try:
        return log.stat().st_mtime_ns
    except OSError:
        return None


def squeue() -> dict[str, str]:
    """The ids of this user's jobs that wait in SLURM's queue or run, with their states, such as PD (pending) and R
    (runs). Raises OSError or SubprocessError."""
    command = ["squeue", "--noheader", "--format=%A %t", f"--user={getpass.getuser()}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    return dict(zip(said[::2], said[1::2], strict=False))


class Listing:
    """Says which jobs SLURM has, and asks it every LIST_SEC. submitit asks sacct, which needs a database of jobs that
    not every cluster has."""

    def __init__(self, ask: Callable[[], dict[str, str]] = squeue):
        self.ask, self.ids, self.asked = ask, dict[str, str](), -LIST_SEC
        self.answered = False

    def state(self, one: str) -> str | None:
        """The state of a job; None where SLURM does not have it, and "" where it does not answer."""
        if time.monotonic() - self.asked >= LIST_SEC:
            self.asked, self.answered = time.monotonic(), False
            try:
                self.ids, self.answered = self.ask(), True
            except (OSError, subprocess.SubprocessError):  # its controller is restarted, or busy
                pass
        return self.ids.get(one) if self.answered else ""

    def has(self, one: str) -> bool:
        """Whether SLURM has a job, or does not answer."""
        return self.state(one) is not None


class Queued:
    """A job in the queue, with the methods of a process."""

    def __init__(self, handle: Any, log: Path, before: int | None, listing: Listing | None = None):
        """before: when the log was changed last, as changed() says it, before the job was handed to the queue.

        listing: which jobs SLURM has; None where submitit itself knows whether the job goes on."""
        self.handle, self.log, self.before, self.listing = handle, log, before, listing
        self.gone: float | None = None  # since when SLURM does not have it
        self.cancelled = False

    @property
    def begun(self) -> bool:
        """Whether it runs. The log says it, because submitit asks SLURM for a job's state only every few minutes."""
        return changed(self.log) != self.before

    def poll(self) -> int | None:
        if self.listing is None:
            return self._code() if self.handle.done() else None
        if self.handle.paths.result_pickle.exists():
            return self._ended(self._code())
        if self.listing.has(self.handle.job_id):
            self.gone = None
            return None
        self.gone = self.gone or time.monotonic()
        return LOST if time.monotonic() - self.gone > GONE_SEC else None

    def _ended(self, code: int) -> int | None:
        """The exit code of a job, or None where SLURM has ended it in order to run it again, as it may without a
        warning."""
        if code != 128 + signal.SIGTERM or self.cancelled:
            return code
        state = self.listing.state(self.handle.job_id) if self.listing is not None else None
        if state == "PD":
            self.handle.paths.result_pickle.unlink(missing_ok=True)
        return code if state is None else None

    def send_signal(self, number: int) -> None:
        self.cancelled = True
        self.handle.cancel(check=False)  # SIGTERM, which a run answers with a checkpoint

    def kill(self) -> None:
        self.cancelled = True
        self.handle.cancel(check=False)

    def wait(self) -> int:
        """The job's exit code, or LOST where the queue lost the job or ended it, or says nothing of it for WAIT_SEC."""
        end = time.monotonic() + WAIT_SEC
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                return LOST
            time.sleep(1.0)
        return code

    def _code(self) -> int:
        try:
            return int(self.handle.result())
        except Exception:  # submitit has its own exceptions: the job was cancelled, preempted or out of memory
            return LOST


class Queue:
    """Starts jobs through submitit."""

    def __init__(self, cluster: str, options: dict[str, Any], folder: Path, cwd: str):
        """folder: the sweep's. cwd: the one in which the sweep was begun, and its jobs run.

        Jobs of an earlier session of this sweep, which was killed, are cancelled."""
        import submitit

        if cluster == "local":
            options = {"timeout_min": LOCAL_MIN} | options
        self.cwd = cwd
        fixed = {key: options[key] for key in (RESTARTS,) if key in options}
        self.listing = Listing() if cluster == "slurm" else None
        try:
            self.executor = submitit.AutoExecutor(folder=fresh(folder / "queue"), cluster=cluster, **fixed)
            self.executor.update_parameters(**{key: value for key, value in options.items() if key not in fixed})
        except Exception as error:  # RuntimeError where srun is missing, NameError for an unknown option
            raise UserError(f"--cluster {cluster}: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
        if self.listing is not None:
            cancel(still_queued(folder / "queue", self.listing))

    def __call__(self, job: TrainingJob, place: Place) -> Queued:
        log = job.log.resolve()
        before = changed(log)
        return Queued(self.executor.submit(SubmittedJob(job, self.cwd)), log, before, self.listing)


def fresh(folder: Path) -> Path:
    """Makes a folder with a new name inside of this one, which no other user can enter."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=folder))  # mode 0700


def still_queued(folder: Path, listing: Listing) -> list[str]:
    """The ids of the jobs that an earlier session of a sweep has submitted and that SLURM still has."""
    submitted = {path.name.removesuffix("_submitted.pkl") for path in folder.rglob("*_submitted.pkl")}
    return sorted(one for one in submitted if listing.has(one) and listing.answered)


def cancel(ids: list[str]) -> None:
    """Cancels jobs. Those that run save a checkpoint first."""
    if ids:
        tell(f"jobs of an earlier session are cancelled, and go on from their checkpoints: {', '.join(ids)}")
        subprocess.run(["scancel", *ids], check=False, capture_output=True)


def slots(count: int | None) -> list[Place]:
    """One place for each job that may be in the queue at a time, 100 by default. The queue decides where a job runs."""
    if count is not None and count < 1:
        raise UserError("--jobs must be at least 1")
    return [Place((), None)] * (count or 100)
