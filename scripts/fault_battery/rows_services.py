"""Rows about MLflow: a server that is away, and four runs that begin on a fresh store."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from fault_battery.harness import FOR_EVER, PATIENCE, SERIAL, TINY_PPO, Broken, Run, Trial, row

SERVER_SEC = 300.0


class Server:
    """A real `mlflow server` on a free port."""

    def __init__(self, trial: Trial):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.trial, self.uri, self.process = trial, f"http://127.0.0.1:{self.port}", None

    def start(self) -> None:
        folder = self.trial.folder
        words = ["server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        words += ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts")]
        with (folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words], stdout=log, stderr=log, start_new_session=True, cwd=folder
            )
        end = time.monotonic() + SERVER_SEC * PATIENCE[0]
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=2)
                return
            if time.monotonic() > end or self.process.poll() is not None:
                raise Broken("the MLflow server did not start")
            time.sleep(0.3)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def histories(uri: str, experiment: str = "rlrun") -> list[tuple[str, dict[int, list[float]]]]:
    """The status of every run of a store, and the values of "updates" by env steps."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = []
    for run in client.search_runs([client.get_experiment_by_name(experiment).experiment_id]):
        points: dict[int, list[float]] = {}
        for point in client.get_metric_history(run.info.run_id, "updates"):
            points.setdefault(point.step, []).append(point.value)
        found.append((run.info.status, points))
    return found


@row("mlflow-server", "an MLflow server is down at the start, is killed in the middle, and comes back", full_only=True)
def mlflow_server(trial: Trial) -> None:
    """The run never waits for it, and in the end every row is there once."""
    server = Server(trial)
    words = [*TINY_PPO, *SERIAL, "logger=[console,mlflow]", f"logger.mlflow.uri={server.uri}", FOR_EVER]
    words.append("log_every_sec=1")  # a small server needs long for many rows

    def sent(run: Run) -> bool:
        from json import loads

        try:
            return loads((run.path / "mlflow.json").read_text())["offset"] > 0
        except (OSError, ValueError, KeyError):
            return False

    try:
        run = trial.train("down at the start", *words, "logger.mlflow.wait_sec=30")
        run.until_learning()
        run.until(lambda: "the run goes on" in run.said, "a sentence about the server")
        steps = run.steps
        server.start()
        run.until(lambda: sent(run), "rows in MLflow", 400)
        trial.expect(run.steps > steps, "the run waited for its server")
        server.kill()
        steps = run.steps
        run.until_learning(steps + 1000)
        server.start()
        run.signal(signal.SIGTERM)
        run.ends(143, status="INTERRUPTED", says="the run goes on", within=180)
        trial.tries += 3
        trial.survived += 3
        again = Run(trial, "sync", trial.folder / "none", ["sync", str(run.path)])
        again.ends(0, within=180)
        rows = {row["env_steps"]: [row["updates"]] for row in run.rows()}
        (found,) = histories(server.uri)
        trial.expect(found[1] == rows, f"MLflow has {len(found[1])} rows and the run {len(rows)}")
        server.kill()
        run = trial.train("down at the end", *[word for word in words if word != FOR_EVER], "env_steps=2000", "logger.mlflow.wait_sec=1")
        trial.tries += 1
        run.ends(0, status="COMPLETED", says="rlrun sync", within=240)
        trial.survived += 1
    finally:
        server.kill()


@row("four-at-once", "four runs begin at the same moment on a fresh MLflow store")
def four_at_once(trial: Trial) -> None:
    count, root = (2 if trial.quick else 4), trial.folder / "runs"
    runs = [
        trial.train(f"run {i}", *TINY_PPO, *SERIAL, "logger=[console,mlflow]", "logger.mlflow.wait_sec=120",
                    f"runs_root={root}", f"seed={i}", "env_steps=1500", path=root / f"run {i}")
        for i in range(count)
    ]  # fmt: skip
    for run in runs:
        run.ends(0, status="COMPLETED", within=400)
    trial.tries += count
    found = histories(f"sqlite:///{root / 'mlflow.db'}")
    statuses = [status for status, _ in found]
    if trial.expect(statuses == ["FINISHED"] * count, f"the store has {statuses}"):
        trial.survived += count
    trial.expect(
        sorted(len(points) for _, points in found) == sorted(len(run.rows()) for run in runs), "rows are missing in MLflow"
    )
