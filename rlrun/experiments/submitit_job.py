"""What a job of a sweep is in a queue that submitit fills: a function that SLURM may run more than once.

SLURM runs it again where it has ended the job before, for a job of more importance or because the job's time was over.
What is to be done, to train or to resume, is therefore decided when it runs, and not when it is handed to the queue.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from rlrun.experiments.job_parent import PARENT
from rlrun.experiments.jobs import clear, command_of
from rlrun.experiments.outcomes import TrainingJob

# submitit has SLURM send this signal to all processes of a job before it ends them, and answers it itself.
WARNING = signal.SIGUSR2
ENDING_SEC = 600.0  # seconds in which SLURM ends a job that it is to run again


class SubmittedJob:
    """Runs a job's process in the queue. Called, it returns the process's exit code."""

    def __init__(self, job: TrainingJob, cwd: str):
        """cwd: the folder in which the sweep was begun, and the job runs."""
        self.job, self.cwd = job, cwd
        self.process: subprocess.Popen | None = None

    def __call__(self) -> int:
        log = self.job.log.resolve()
        log.touch()  # the sweep sees from it that the job has begun
        with log.open("ab") as file:
            if not Path(self.cwd).is_dir():
                said = "a sweep on a cluster needs a file system that machines share"
                file.write(f"rlrun: {platform.node()} has no folder {self.cwd}: {said}\n".encode())
                return 1
            clear(self.job)
            self.process = subprocess.Popen(
                command_of(self.job),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, PARENT: str(os.getpid())},
                cwd=self.cwd,
                preexec_fn=deaf,
            )
        code = self.process.wait()
        if code == 128 + signal.SIGTERM and preempted():
            scontrol("requeue")  # fails where SLURM does it by itself
            time.sleep(ENDING_SEC)  # a result would tell the sweep that this job is over; SLURM ends this process soon
        return code

    def checkpoint(self) -> Any:
        """submitit calls this after WARNING: lets the process save and end. Returns what SLURM is to run again."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            # This may interrupt wait() of above, which holds a lock that a second wait() would wait for.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(SubmittedJob(self.job, self.cwd))


def preempted() -> bool:
    """Whether SLURM ends this job for one of more importance, of which most clusters warn with SIGTERM alone, and may
    run it again."""
    said = dict(word.split("=", 1) for word in (scontrol("--oneliner", "show", "job") or "").split() if "=" in word)
    return said.get("PreemptTime", "None") not in ("None", "Unknown", "(null)") and said.get("Requeue") != "0"


def scontrol(*words: str) -> str | None:
    """What SLURM answers to a command about this job; None where it cannot, or where this is no job of SLURM's."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        return subprocess.run(["scontrol", *words, job], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):  # its controller is busy, or the job may not run twice
        return None


def deaf() -> None:
    """Lets a new process ignore WARNING, which would end it without a checkpoint."""
    signal.signal(WARNING, signal.SIG_IGN)
