"""What a job of a sweep is on a machine of a Ray cluster: a process that an actor starts and looks after.

The process is the same command as on one machine. When the actor ends, or its machine's Ray, the process saves a
checkpoint and ends too.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlrun.experiments.job_parent import PARENT
from rlrun.machine.machine import SHARE, pinned
from rlrun.machine.own_cores import OwnCores
from rlrun.version import sources

BETWEEN = Path(__file__).with_name("job_parent.py")


class RemoteJob:
    """The job's side of experiments/ray_queue.py."""

    def __init__(self, brief: bytes):
        """brief: JSON of {command, log, cwd, cores, gpus, path, code}."""
        self.told: dict[str, Any] = json.loads(brief)
        self.process: subprocess.Popen | None = None
        self.own: OwnCores | None = None

    def begin(self) -> str | None:
        """Starts the process. Returns what is wrong on this machine, or None."""
        told, here = self.told, platform.node()
        log = Path(told["log"])
        if told["code"] != sources():
            return f"{here} has rlrun {sources()}, and the sweep's machine has {told['code']}"
        for folder in (log.parent, Path(told["cwd"])):
            if not folder.is_dir():
                return f"{here} has no folder {folder}: a sweep on a cluster needs a file system that machines share"
        path = [folder for folder in told["path"] if Path(folder).is_dir()]
        # What Ray has set is meant for its own workers: with it the process would think that it is one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") or k.startswith("RAY_AUTH")}
        environment[PARENT] = str(os.getpid())
        environment["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [environment.get("PYTHONPATH")])])
        if environment.get("OMP_NUM_THREADS") == str(told["cores"]):  # Ray sets it where nobody has
            del environment["OMP_NUM_THREADS"]
        if not told["gpus"]:  # a Ray that rlrun has started leaves the variable as it is where a job asks for none
            environment["CUDA_VISIBLE_DEVICES"] = ""
        if pinned():
            self.own = OwnCores(told["cores"])
            os.sched_setaffinity(0, self.own.cores)  # the process inherits these cores
        else:
            environment[SHARE] = str(told["cores"])
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", str(BETWEEN), sys.executable, *told["command"]],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=told["cwd"],
                start_new_session=True,
            )
        return None

    def poll(self, seconds: float) -> int | None:
        """Waits so long for the process to end. Returns its exit code, or None where it runs on."""
        assert self.process is not None, "begin() comes first"
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Kills the process, if it runs."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
