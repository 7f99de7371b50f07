"""Runs jobs through a cluster's queue with submitit: SLURM's, or, to try it, processes on this machine. Those of a Ray
cluster are in ray_queue.py.

A job is the same command as on one machine, on a file system that all machines share. submitit passes its own function
to the job as a pickle that it has just written; rlrun itself loads nothing from a pickle.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from rlrun.core.errors import UserError, closest
from rlrun.core.installing import install_line
from rlrun.experiments.job_parent import PARENT
from rlrun.experiments.jobs import command_of
from rlrun.experiments.outcomes import LOST, TrainingJob
from rlrun.experiments.places import Place

CLUSTERS = ("slurm", "ray", "local")
# These are submitit's own parameters; all others are SLURM's.
PLAIN = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "nodes", "tasks_per_node", "name")


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


def run_logged(command: list[str], log: str) -> int:
    """Runs a command in the queue's process, appends its output to the log, and returns its exit code."""
    Path(log).touch()  # the sweep sees from it that the job has begun
    environment = {**os.environ, PARENT: str(os.getpid())}
    with Path(log).open("ab") as file:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=environment
        ).returncode


def check(cluster: str) -> None:
    """Raises UserError where there is no such --cluster."""
    if cluster not in CLUSTERS:
        raise UserError(
            f"There is no --cluster {cluster}.{closest(cluster, CLUSTERS)} There are {', '.join(CLUSTERS[:-1])} and"
            f" {CLUSTERS[-1]}."
        )


def changed(log: Path) -> int | None:
    """The time of the last change of a log, in nanoseconds; None where there is none yet."""
    try:
        return log.stat().st_mtime_ns
    except OSError:
        return None


class Queued:
    """A job in the queue, with the methods of a process."""

    def __init__(self, handle: Any, log: Path, before: int | None):
        """before: when the log was changed last, as changed() says it, before the job was handed to the queue."""
        self.handle, self.log, self.before = handle, log, before

    @property
    def begun(self) -> bool:
        """Whether it runs. The log says it, because submitit asks SLURM for a job's state only every few minutes."""
        return changed(self.log) != self.before

    def poll(self) -> int | None:
        return self.wait() if self.handle.done() else None

    def send_signal(self, number: int) -> None:
        self.handle.cancel(check=False)  # SIGTERM, which a run answers with a checkpoint

    def kill(self) -> None:
        self.handle.cancel(check=False)

    def wait(self) -> int:
        """The job's exit code, or LOST where the queue lost the job or ended it."""
        try:
            return int(self.handle.result())
        except Exception:  # submitit has its own exceptions: the job was cancelled, preempted or out of memory
            return LOST


class Queue:
    """Starts jobs through submitit."""

    def __init__(self, cluster: str, options: dict[str, Any], folder: Path):
        try:
            import submitit
        except ImportError:
            raise UserError(f"--cluster needs submitit: {install_line('slurm')}") from None
        try:
            self.executor = submitit.AutoExecutor(folder=folder / "queue", cluster=cluster)
            self.executor.update_parameters(**options)
        except Exception as error:  # RuntimeError where srun is missing, NameError for an unknown option
            raise UserError(f"--cluster {cluster}: {(str(error).splitlines() or [type(error).__name__])[0]}") from None

    def __call__(self, job: TrainingJob, place: Place) -> Queued:
        log = job.log.resolve()
        before = changed(log)
        return Queued(self.executor.submit(run_logged, command_of(job), str(log)), log, before)


def slots(count: int | None) -> list[Place]:
    """One place for each job that may be in the queue at a time, 100 by default. The queue decides where a job runs."""
    if count is not None and count < 1:
        raise UserError("--jobs must be at least 1")
    return [Place((), None)] * (count or 100)
