"""The MLflow logger: parameters, metrics in batches, config and checkpoint as artifacts, and the status at the end.

It runs on the loggers' thread, so that a server that does not answer costs warnings but never stops training. The
default store is one sqlite file in the runs' root. A lock guards its creation, because two processes that create it at
the same time would break it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlrun.core.errors import UserError
from rlrun.core.passwords import masked, whole

FLUSH_SEC = 10.0
LOCK_SEC = 300.0  # on a busy machine, another run may take a minute to create the store
STATUS = {"COMPLETED": "FINISHED", "STOPPED": "FINISHED", "INTERRUPTED": "KILLED", "FAILED": "FAILED"}


def available() -> bool:
    import importlib.util

    return importlib.util.find_spec("mlflow") is not None


def _client(uri: str):
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # With the default number of retries, a dead server blocks for over a minute.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    from mlflow import MlflowClient

    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):  # comes after the import, which sets the loggers up
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def store_uri(root: Path) -> str:
    return f"sqlite:///{(root / 'mlflow.db').resolve()}"


def nothing() -> None:
    pass


@contextmanager
def _creation_lock(root: Path, alive: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of the store. While another run holds it, that run is at work, which counts as progress."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".mlflow.lock").open("w") as file:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - began > LOCK_SEC:
                    raise TimeoutError(f"another run has held {root / '.mlflow.lock'} for {LOCK_SEC:.0f} s") from None
                alive()
                time.sleep(0.1)
        yield


def open_experiment(
    uri: str | None, root: Path, experiment: str, alive: Callable[[], None] = nothing
) -> tuple[Any, str]:
    """A client and the id of the experiment, which is created if it is new. uri None means the store in root."""
    with _creation_lock(root, alive):
        client = _client(uri or store_uri(root))
        found = client.get_experiment_by_name(experiment)
        artifacts = None if uri else (root / "mlartifacts").resolve().as_uri()
        return client, found.experiment_id if found else client.create_experiment(
            experiment, artifact_location=artifacts
        )


class Mlflow:
    """One MLflow run for each run directory.

    mlflow.json remembers its id, so that a resumed run continues it. parent: the id of the parent MLflow run. alive:
    called whenever some of the work is done.
    """

    def __init__(
        self,
        uri: str | None,
        root: Path,
        experiment: str,
        run_dir: Path,
        values: dict[str, Any],
        facts: dict[str, Any],
        parent: str | None = None,
        alive: Callable[[], None] = nothing,
    ):
        if not available():
            raise UserError("mlflow is not installed (pip install mlflow)")
        self.run_dir, self.alive = run_dir, alive
        self.rows: list[tuple[float, dict[str, Any]]] = []
        self.flushed = time.monotonic()
        self.uri = uri or store_uri(root)
        self.client, experiment_id = open_experiment(uri, root, experiment, alive)
        memory = run_dir / "mlflow.json"
        known = json.loads(memory.read_text()) if memory.exists() else {}
        if known.get("uri") == masked(self.uri):
            self.run_id = known["run_id"]
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            self.run_id = self.client.create_run(experiment_id, run_name=run_dir.name).info.run_id
            memory.write_text(json.dumps({"uri": masked(self.uri), "run_id": self.run_id}))
            self._parameters(values)
        owner = {"pid": os.getpid(), "host": platform.node(), "run_dir": str(run_dir.resolve())}
        tags = {
            **{f"rlrun.{k}": str(v) for k, v in owner.items()},
            "rlrun.command": facts["command"],
            "rlrun.git_commit": str(facts["git_commit"]),
        }
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        for name, value in tags.items():
            self.client.set_tag(self.run_id, name, value)
            self.alive()
        self.client.log_artifact(self.run_id, str(run_dir / "config.yaml"))

    def _parameters(self, values: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:6000]) for name, value in flatten(values)]
        for start in range(0, len(params), 100):
            self.client.log_batch(self.run_id, params=params[start : start + 100])
            self.alive()

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append((time.time(), row))
        if time.monotonic() - self.flushed >= FLUSH_SEC:
            self._flush()

    def show(self, steps: int, file: Path) -> None:
        """Adds a picture as an artifact, in a folder of the same name as its own."""
        self.client.log_artifact(self.run_id, str(file), file.parent.name)

    def _flush(self) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, float(value), int(now * 1000), int(row["env_steps"]))
            for now, row in self.rows
            for name, value in row.items()
            if name != "env_steps" and value is not None
        ]
        self.rows, self.flushed = [], time.monotonic()
        for start in range(0, len(metrics), 1000):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + 1000])
            self.alive()

    def close(self, status: str, summary: dict[str, Any]) -> None:
        try:
            self._flush()
            self.client.log_artifact(self.run_id, str(self.run_dir / "summary.json"))
            from rlrun.core.checkpoint import Checkpoints

            checkpoints = Checkpoints(self.run_dir / "checkpoints", 1)
            name = checkpoints.best() or next(iter(reversed(checkpoints.names())), None)
            if name:
                for file in ("policy.pt", "run.json", "manifest.json"):
                    self.client.log_artifact(
                        self.run_id, str(self.run_dir / "checkpoints" / name / file), f"checkpoint/{name}"
                    )
                    self.alive()
        finally:
            self.client.set_terminated(self.run_id, STATUS[status])


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The pairs of dotted key and value in a nested config, such as ("algo.lr", 0.0005). Lists stay values."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def add_artifact(run_dir: Path, file: Path, uri: str | None, root: Path) -> None:
    """Adds a file to the MLflow run of this run directory, if there is one.

    uri, root: those of the run's config, so that mlflow.json cannot send the file and its passwords elsewhere.
    """
    memory = run_dir / "mlflow.json"
    if memory.exists() and available():
        known = json.loads(memory.read_text())
        if known["uri"] != masked(uri or store_uri(root)):
            raise UserError(f"{memory} names another store than the run's config")
        _client(whole(known["uri"]) or "").log_artifact(known["run_id"], str(file))


def stale_runs(root: Path, fix: bool = False) -> list[str]:
    """Names of runs in <root>/mlflow.db that are marked RUNNING although their process on this host is gone.

    fix marks them KILLED.
    """
    import psutil

    if not (root / "mlflow.db").exists() or not available():
        return []
    client = _client(store_uri(root))
    stale = []
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id], "attributes.status = 'RUNNING'"):
            tags = run.data.tags
            if tags.get("rlrun.host") == platform.node() and not _runs(
                psutil, int(tags.get("rlrun.pid", 0)), run.info.start_time / 1000
            ):
                stale.append(run.info.run_name or run.info.run_id)
                if fix:
                    client.set_terminated(run.info.run_id, "KILLED")
    return stale


def _runs(psutil: Any, pid: int, since: float) -> bool:
    try:
        return psutil.Process(pid).create_time() <= since + 1
    except psutil.NoSuchProcess:
        return False
