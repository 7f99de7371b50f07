"""Records a sweep in sweep.json, so that it can be resumed, and in an MLflow run, the parent of its jobs' runs."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.config.signature import read_signed, write_signed
from rlrun.core.errors import UserError, check_name
from rlrun.core.passwords import check_known, masked, masked_values, whole
from rlrun.core.plugins import TRUST
from rlrun.experiments.outcomes import DONE, Outcome, TrainingJob
from rlrun.loggers.mlflow import absolute_address, make_root

FORMAT = 1
STATUSES = ("COMPLETED", "STOPPED", "INTERRUPTED", "FAILED", "PRUNED", "WAITING")


class Record(NamedTuple):
    command: str
    words: list[str]
    jobs: list[TrainingJob]
    mlflow: dict[str, Any] | None  # {uri, experiment, root}; None where the jobs do not log to MLflow
    search: dict[str, Any] | None  # how jobs are drawn; None where `jobs` lists them all
    cwd: str  # directory to which relative paths in the jobs' words refer


def write(
    folder: Path,
    words: Sequence[str],
    jobs: Sequence[tuple[str, Sequence[str]]],
    config: dict[str, Any],
    search: dict[str, Any] | None = None,
) -> None:
    """Writes sweep.json. config is that of the first job. UserError where jobs need a password, which is not saved."""
    from rlrun.runtime.rundir import command_line, git_commit, hardware, started_at, versions

    check_known([masked_values(list(job)) for _, job in jobs], str(folder / "sweep.json"))
    mlflow = (config.get("logger") or {}).get("mlflow") or {"enabled": False}
    store = (
        {
            "uri": masked_values(absolute_address(mlflow["uri"]), "uri"),
            "experiment": mlflow["experiment"],
            "root": str(Path(config["runs_root"]).resolve()),
        }
        if mlflow["enabled"]
        else None
    )
    if store is not None:
        make_root(store["uri"], store["root"])
    said = {
        "format": FORMAT,
        "command": command_line(),
        "words": masked_values(list(words)),
        "jobs": [{"name": name, "words": masked_values(list(job))} for name, job in jobs],
        "search": search,
        "cwd": os.getcwd(),
        "mlflow": store,
        "started": started_at(),
        "versions": versions(),
        "git_commit": git_commit(),
        "hardware": hardware(),
    }
    _write(folder, said)


def _write(folder: Path, said: dict[str, Any]) -> None:
    write_signed(folder / "sweep.json", json.dumps(said, indent=1) + "\n")


def job_in(folder: Path, name: str, words: Sequence[str]) -> TrainingJob:
    """A job whose run directory and log are in the sweep's directory."""
    place = folder.resolve()
    check_name(name, "a job's name")
    return TrainingJob(name=name, words=tuple(words), run_dir=place / name, log=place / "logs" / f"{name}.log")


def read(folder: Path, trusted: bool = False) -> Record:
    """Reads sweep.json. UserError if it is damaged, has another format, or comes from elsewhere untrusted."""
    try:
        data, ours, _ = read_signed(folder / "sweep.json")
    except OSError as error:
        raise UserError(f"{folder / 'sweep.json'} is damaged: {error}") from None
    if not trusted and not ours:
        raise UserError(
            f"{folder / 'sweep.json'} was not written by you on this machine, and its commands would be run; read them,"
            f" and then {TRUST} runs them"
        )
    try:
        said = json.loads(data)
        if said["format"] != FORMAT:
            raise UserError(f"{folder / 'sweep.json'} has format {said['format']}; this rlrun reads {FORMAT}")
        jobs = [job_in(folder, job["name"], job["words"]) for job in said["jobs"]]
        return Record(said["command"], said["words"], jobs, said["mlflow"], said["search"], said["cwd"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / 'sweep.json'} is damaged: {error}") from None


def add(folder: Path, job: TrainingJob) -> None:
    """Adds a job that a search has drawn to sweep.json. A member of a population that is there may have new words."""
    said = json.loads((folder / "sweep.json").read_text())
    made = {"name": job.name, "words": masked_values(list(job.words))}
    known = next((one for one in said["jobs"] if one["name"] == job.name), None)
    if known is None:
        said["jobs"].append(made)
    elif known["words"] != made["words"]:
        known.update(made)
    else:
        return
    _write(folder, said)


def logs_to_mlflow(words: Sequence[str]) -> bool:
    """Whether a job that names its loggers names MLflow; the others are as the first job, which does."""
    chosen = [word.partition("=")[2] for word in words if word.startswith("logger=")]
    return not chosen or "mlflow" in chosen[-1]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks a sweep's directory for one process at a time. UserError where another process has it."""
    descriptor = os.open(folder / "sweep.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise UserError(f"{folder} is in use by process {lock.read().strip() or '?'}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


class Parent:
    """The sweep's MLflow run, the parent of its jobs' runs. A store that does not answer costs only a warning."""

    def __init__(self, record: Record, folder: Path, later: bool = False):
        """later: whether the sweep is over, and only what is missing is sent. Errors of MLflow are raised then."""
        self.client: Any = None
        self.run_id: str | None = None
        self.folder = folder
        self.ended = False  # whether MLflow knows how the sweep ended
        if record.mlflow is None:
            return
        from rlrun.loggers.mlflow import lies_beside, open_experiment, store_root

        memory = folder / "mlflow.json"
        try:
            address, root = whole(record.mlflow["uri"]), store_root(record.mlflow["root"], folder)
            self.client, experiment = open_experiment(address, root, record.mlflow["experiment"])
            known = json.loads(memory.read_text()) if memory.exists() else {}
            self.uri = masked_values(record.mlflow["uri"], "uri")
            if known.get("uri", self.uri) != self.uri:
                known = {}  # rlrun sync sends it to another store, which does not have it
            self.ended = bool(known.get("ended"))
            if "run_id" in known:
                self.run_id = str(known["run_id"])
                if not later:
                    self.client.update_run(self.run_id, status="RUNNING")
            else:
                self.run_id = self.client.create_run(experiment, run_name=f"sweep {folder.name}").info.run_id
                self._remember(False)
                self.client.set_tag(self.run_id, "rlrun.command", record.command)
            kept_in = self.client.get_run(self.run_id).info.artifact_uri
            if address is not None or lies_beside(kept_in, root, Path("sweep.json")):
                self.client.log_artifact(self.run_id, str(folder / "sweep.json"))
        except Exception as error:  # each server has its own exceptions
            if later:
                raise
            why = (str(error).splitlines() or [""])[0]
            print(
                f"  mlflow: {type(error).__name__}: {masked(why)}; the jobs log there without a parent run until"
                f" rlrun sync {shlex.quote(str(folder))} sends it",
                flush=True,
            )
            self.client = None

    def adopt(self, job: TrainingJob) -> TrainingJob:
        """The job with a word that puts its MLflow run under this one."""
        if self.client is None:
            return job
        if not logs_to_mlflow(job.words):
            return job
        return replace(job, words=(*job.words, f"logger.mlflow.parent={self.run_id}"))

    def _remember(self, ended: bool) -> None:
        known = {"run_id": self.run_id, "uri": self.uri, "ended": ended}
        (self.folder / "mlflow.json").write_text(json.dumps(known))

    def close(self, outcomes: Sequence[Outcome], interrupted: bool) -> None:
        if self.client is None:
            return
        failed = any(outcome.status == "FAILED" for outcome in outcomes)
        try:
            for status in STATUSES:  # also those that no job has any more
                self.client.log_metric(
                    self.run_id, f"jobs/{status.lower()}", sum(outcome.status == status for outcome in outcomes)
                )
            best = [
                outcome.return_mean
                for outcome in outcomes
                if outcome.status in DONE and outcome.return_mean is not None
            ]
            if best:
                self.client.log_metric(self.run_id, "jobs/best_return_mean", max(best))
            self.client.set_terminated(self.run_id, "KILLED" if interrupted else "FAILED" if failed else "FINISHED")
            self._remember(not interrupted)
        except Exception as error:
            print(f"  mlflow: {type(error).__name__}: the sweep's run could not be marked as ended", flush=True)
