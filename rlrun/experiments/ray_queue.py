"""Runs a sweep's jobs on the machines of a Ray cluster, or of one that starts here and ends with the sweep.

Ray decides where a job runs, by the cores and GPUs that it asks for. The sweep's own process asks each job once a
second whether it has ended. A job ends with a checkpoint when the sweep's process or the job's machine's Ray is gone.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rlrun.cluster.engine import HostLost
from rlrun.cluster.ray_engine import RayEngine, check_installed
from rlrun.config.paths import group_defaults
from rlrun.config.types import typed
from rlrun.config.unused import conditions_of
from rlrun.core.conditions import OnlyWith, shown
from rlrun.core.errors import RunFailed, UserError, closest
from rlrun.core.ranges import Count, NotNegative
from rlrun.experiments.jobs import command_of
from rlrun.experiments.outcomes import LOST, TrainingJob
from rlrun.experiments.places import Place
from rlrun.machine.machine import cores
from rlrun.machine.nodes import RayConfig, simulated
from rlrun.version import sources

KIND = "rlrun.experiments.ray_job:RemoteJob"
ASK_SEC = 1.0  # seconds between two questions whether a job has ended


@dataclass(frozen=True, kw_only=True)
class JobRoom:
    """What each job of a sweep gets."""

    cpus_per_task: Annotated[int, Count]
    gpus_per_task: Annotated[int, NotNegative]


OWN = {"cpus_per_task": 2, "gpus_per_task": 0}  # as a sweep on one machine without GPUs gives its jobs
CLUSTER = ("address", "simulate", "store_mb", "join_sec", "allow_open")  # of conf/resources/ray.yaml


def cluster_config(given: Mapping[str, Any], option: str = "") -> RayConfig:
    """The options of a cluster, with the defaults of conf/resources/ray.yaml for those that are not given.

    option: what stands before the names of options where they were given. Raises UserError for an option of runs alone,
    and for one that does nothing beside the others."""
    for key in given:
        if key not in CLUSTER:
            raise UserError(f"There is no option {option}{key}.{closest(key, CLUSTER)} There are {', '.join(CLUSTER)}.")
    defaults = group_defaults("resources", "ray")["ray"]
    cfg = typed(RayConfig, defaults | dict(given))
    for key, value in given.items():
        for one in conditions_of(RayConfig, key):
            if value == defaults[key] or not isinstance(one, OnlyWith) or one.holds(other := getattr(cfg, one.option)):
                continue
            raise UserError(
                f"{option}{key}={shown(value)} does nothing here: it is used only {one.told('')}, and {one.option} is"
                f" {shown(other)}"
            )
    return cfg


def options(given: Mapping[str, Any]) -> tuple[JobRoom, RayConfig]:
    """--queue's words as types. Raises UserError."""
    known = (*OWN, *CLUSTER)
    for key in given:
        if key not in known:
            said = f"--queue {key}: there is no such option."
            raise UserError(f"{said}{closest(key, known)} There are {', '.join(known)}.")
    room = typed(JobRoom, OWN | {k: v for k, v in given.items() if k in OWN})
    cfg = cluster_config({key: value for key, value in given.items() if key in CLUSTER}, "--queue ")
    if room.gpus_per_task and cfg.address is None:
        raise UserError(
            "--queue gpus_per_task needs address=..., a cluster that runs already; without --cluster, a sweep gives"
            " each of this machine's GPUs one job"
        )
    return room, cfg


class RayJob:
    """A job in the cluster, with the methods of a process."""

    def __init__(self, engine: Any, host: Any, log: Path):
        self.engine, self.host, self.log = engine, host, log
        self.begun = False
        self.code: int | None = None
        self.answer = host.call("begin")

    def poll(self) -> int | None:
        if self.code is not None or not self.engine.wait([self.answer], 0.0):
            return self.code
        try:
            said = self.engine.get(self.answer)
        except (HostLost, RunFailed) as error:
            return self._failed(f"{self.log.stem} was lost: {error}", LOST)
        if self.begun and said is not None:
            return self._ended(int(said))
        if not self.begun and said is not None:
            return self._failed(said)
        self.begun = True
        self.answer = self.host.call("poll", ASK_SEC)
        return None

    def send_signal(self, number: int) -> None:
        if self.begun and self.code is None:
            self.host.call("signal", int(number))
        elif self.code is None:  # it still waits for a machine
            self._ended(-number)

    def kill(self) -> None:
        if self.code is None:
            self._ended(-signal.SIGKILL)

    def wait(self) -> int:
        """Waits for the job's end and returns its exit code."""
        while (code := self.poll()) is None:
            time.sleep(0.1)
        return code

    def _failed(self, sentence: str, code: int = 1) -> int:
        with self.log.open("a") as log:
            log.write(f"rlrun: {sentence}\n")
        return self._ended(code)

    def _ended(self, code: int) -> int:
        self.code = code
        self.engine.stop([self.host])
        return code


class RayQueue:
    """Starts jobs on the machines of a Ray cluster."""

    def __init__(self, given: Mapping[str, Any], cwd: str, start: Callable[..., Any] = RayEngine):
        """given: --queue's words. cwd: folder in which the sweep was begun, and its jobs run."""
        self.room, cfg = options(given)
        self.cwd = cwd
        if start is RayEngine:
            check_installed("--cluster ray")
        self.engine = start(cfg, () if cfg.address is not None else simulated(cfg, cores()), "--queue ")
        try:
            self.places = self._places(cfg.join_sec)
        except BaseException:
            self.engine.close()
            raise

    def _places(self, seconds: float) -> int:
        """The number of jobs for which the cluster has room now. UserError where no machine has room for one."""
        end, asked = time.monotonic() + seconds, self.room
        while True:
            room = self.engine.room()
            count = sum(
                min(have // each for have, each in ((cpus, asked.cpus_per_task), (gpus, asked.gpus_per_task)) if each)
                for _, cpus, gpus in room
            )
            if count:
                return count
            if time.monotonic() > end:
                there = ", ".join(f"{name} ({count} cores, {gpus} GPUs)" for name, count, gpus in room)
                raise UserError(
                    f"--queue: a job asks for {asked.cpus_per_task} cores and {asked.gpus_per_task} GPUs of one"
                    f" machine, and after {seconds:g} s the cluster has {there or 'none'}"
                )
            time.sleep(0.5)

    def slots(self, count: int | None) -> list[Place]:
        """One place for each job at a time. None: as many as the cluster has room for."""
        return [Place((), None)] * (count or self.places)

    def __call__(self, job: TrainingJob, place: Place) -> RayJob:
        log = job.log.resolve()
        brief = {
            "command": command_of(job)[1:],
            "log": str(log),
            "cwd": self.cwd,
            "cores": self.room.cpus_per_task,
            "gpus": self.room.gpus_per_task,
            "path": [folder for folder in sys.path if folder],
            "code": sources(),
        }
        host = self.engine.submit(
            KIND, job.name, json.dumps(brief).encode(), self.room.cpus_per_task, self.room.gpus_per_task
        )
        return RayJob(self.engine, host, log)

    def close(self) -> None:
        """Ends the cluster, if it has started here, and leaves it otherwise."""
        self.engine.close()
