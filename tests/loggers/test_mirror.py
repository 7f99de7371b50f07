"""A run never vanishes from MLflow: what is missing there is sent when the store is back, or by `rlrun sync`."""

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
import zlib
from pathlib import Path

import pytest

import rlrun
from rlrun.cli import _dispatch
from rlrun.config.signature import beside
from rlrun.core.errors import UserError
from rlrun.experiments.record import logs_to_mlflow, write
from rlrun.loggers.mirror import Mirror, MlflowPlace
from rlrun.loggers.mlflow import add_artifact, available, make_root, open_experiment, stale_runs, store_root, store_uri

pytestmark = pytest.mark.skipif(not available(), reason="mlflow is not installed")
QUICK = {"resources": "debug", "model": {"hidden": (8,)}, "log_every_steps": 20}
ALGO = {"name": "pg", "fragment_length": 5, "batch_size": 20}


def client(uri):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def only_run(uri, experiment="rlrun"):
    one = client(uri)
    (run,) = one.search_runs([one.get_experiment_by_name(experiment).experiment_id])
    return run


def history(uri, run):
    """The values of "updates", which every row has, by env steps; a list for each, because a point may be there twice."""
    found = {}
    for point in client(uri).get_metric_history(run.info.run_id, "updates"):
        found.setdefault(point.step, []).append(point.value)
    return found


def rows_of(path):
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    return {row["env_steps"]: [row["updates"]] for row in rows}


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def hasty(monkeypatch):
    for name, value in (("FLUSH_SEC", 0.1), ("FIRST_RETRY_SEC", 0.1), ("LONGEST_RETRY_SEC", 0.4)):
        monkeypatch.setattr(f"rlrun.loggers.mirroring.{name}", value)


def test_sync_sends_what_is_missing_and_nothing_twice(tmp_path, capsys):
    path, uri = tmp_path / "run", f"sqlite:///{tmp_path / 'store.db'}"
    rlrun.train(ALGO, "CartPole-v1", env_steps=120, logger=[], run_dir=path, quiet=True, seed=5, **QUICK)
    with pytest.raises(UserError, match="neither a run nor a sweep"):
        _dispatch(["sync", str(tmp_path)])
    with pytest.raises(UserError, match=r"Did you mean logger\.mlflow\.uri"):
        _dispatch(["sync", str(path), "logger.mlflow.url=x"])
    assert _dispatch(["sync", str(path)]) == 1
    assert "does not log to MLflow; logger.mlflow.uri=ADDRESS sends it" in capsys.readouterr().err
    words = ["sync", str(path), f"logger.mlflow.uri={uri}"]
    assert _dispatch(words) == 0
    rows = rows_of(path)
    assert f"{path}: sent {len(rows)} rows, the options, 5 files, the status FINISHED" in capsys.readouterr().out
    run = only_run(uri)
    assert history(uri, run) == rows and len(rows) >= 3
    assert run.info.run_name == "pg CartPole-v1 seed 5 (run)" and run.info.status == "FINISHED"
    assert run.data.params["env.name"] == "CartPole-v1" and run.data.tags["rlrun.command"].startswith("rlrun train")
    assert run.data.tags["mlflow.source.name"] == run.data.tags["rlrun.command"] and run.data.tags["mlflow.user"]
    assert {one.path for one in client(uri).list_artifacts(run.info.run_id)} == {"config.yaml", "summary.json", "checkpoint"}
    last = json.loads((path / "progress.jsonl").read_text().splitlines()[-1])
    times = [point.timestamp for point in client(uri).get_metric_history(run.info.run_id, "time_sec")]
    assert (max(times) - run.info.start_time) / 1000 == pytest.approx(last["time_sec"], abs=0.01)
    assert _dispatch(words) == 0 and f"{path}: nothing was missing" in capsys.readouterr().out

    # Answers were lost: of the creation of the run, of its options and of its rows.
    memory = json.loads((path / "mlflow.json").read_text())
    (path / "mlflow.json").write_text(json.dumps({**memory, "run_id": None, "parameters": False, "offset": 0}))
    assert _dispatch(words) == 0
    assert history(uri, only_run(uri)) == rows, "the run is the same, and so are its points"


@pytest.mark.parametrize(
    ("logged", "answered"), [(True, True), (True, False), (False, True)], ids=["logged", "answer lost", "not logged"]
)
def test_rows_that_a_run_took_back_are_in_none_of_its_curves(logged, answered, tmp_path, capsys):
    """The run goes back to an older checkpoint and takes other steps from there. Its MLflow run is replaced, because
    MLflow deletes no points. answered: whether it is known what had arrived. logged: whether the session that took the
    rows back logged to MLflow; its file is longer than the old one in any case."""
    path, uri = tmp_path / "run", f"sqlite:///{tmp_path / 'store.db'}"
    words = [f"logger.mlflow.uri={uri}", "logger.mlflow.wait_sec=120", "checkpoint.every=40", "checkpoint.keep=9"]
    rlrun.train(ALGO, "CartPole-v1", env_steps=120, logger=["mlflow"], run_dir=path, quiet=True, overrides=words, **QUICK)
    old, before = only_run(uri), rows_of(path)
    if not answered:
        memory = json.loads((path / "mlflow.json").read_text())
        (path / "mlflow.json").write_text(json.dumps({**memory, "offset": 0}))
    capsys.readouterr()
    other = ["env_steps=300", "log_every_steps=30", *([] if logged else ["logger=[]"])]
    assert _dispatch(["resume", str(path), "checkpoint=40", *other]) == 0
    sync = ["sync", str(path), f"logger.mlflow.uri={uri}"]
    assert _dispatch(sync) == 0
    told = capsys.readouterr()
    assert ("nothing was missing" in told.out) == logged and "it is logged anew, with all rows" in told.err
    one = client(uri)
    runs = one.search_runs([old.info.experiment_id], order_by=["attributes.start_time"])
    (replaced,), (run,) = ([r for r in runs if (r.info.run_id == old.info.run_id) == first] for first in (True, False))
    assert history(uri, run) == rows_of(path) and not before.keys() <= rows_of(path).keys()
    assert history(uri, replaced) == before and replaced.info.status == "KILLED"
    assert replaced.info.run_name == f"{run.info.run_name} (replaced)"
    assert replaced.data.tags["rlrun.replaced_by"] == run.info.run_id
    assert run.data.tags["rlrun.replaces"] == old.info.run_id and run.info.status == "FINISHED"
    assert _dispatch(["resume", str(path), "env_steps=360"]) == 0 and _dispatch(sync) == 0
    assert history(uri, run) == rows_of(path), "a run that keeps its rows goes on in its MLflow run"


def test_a_run_that_loses_few_rows_by_kills_goes_on_in_its_mlflow_run(tmp_path):
    """Each kill repeats the rows that it took back, and not the whole run."""
    path, uri, values = tmp_path / "run", f"sqlite:///{tmp_path / 'store.db'}", {"algo": {"name": "pg"}, "env": {"name": "E"}, "seed": 0}
    path.mkdir()
    (path / "config.yaml").write_text("{}")

    def session(begin, end):
        """Keeps the rows up to `begin`, as a resume does, and writes and sends others."""
        file = path / "progress.jsonl"
        kept = file.read_text().splitlines(keepends=True)[:begin] if begin else []
        file.write_text("".join(kept))
        mirror = Mirror(path, MlflowPlace(uri, tmp_path, "rlrun"))
        mirror.begin_session()
        sent = 0
        for at in range(begin, end, 5):
            with file.open("a") as rows:
                rows.writelines(json.dumps({"env_steps": i, "time_sec": i / 10, "updates": i + begin / 1000}) + "\n" for i in range(at, at + 5))
            sent += mirror.send(values, {}).rows
        assert len(mirror.memory["marks"]) <= 60
        return sent

    assert session(0, 400) == 400
    assert session(383, 403) == 23, "up to the last place that was sent before, rows are sent once more"
    places = [383]
    for kill in range(4):
        begin = 400 + 10 * kill
        sent = session(begin - 2, begin + 28)
        assert 30 <= sent <= 60
        places.append(begin - 2)
    run = only_run(uri)
    points = history(uri, run)
    assert all(len(points[step]) == 1 for step in range(383)), "equal points are one"
    assert len(points[390]) == 2 and points.keys() == rows_of(path).keys()
    told = [int(step) for step in run.data.tags["rlrun.repeated_behind"].split(", ")]
    assert len(told) == len(places) and all(place - 40 <= step < place for step, place in zip(told, places))
    session(200, 210)
    runs = client(uri).search_runs([run.info.experiment_id])
    assert {len(history(uri, one)) for one in runs} == {210, len(points)}, "a run that takes back much is logged anew"


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_that_was_moved_with_its_store_goes_on_there(lost, tmp_path, capsys):
    """The old folder does not come back. A store that has lost the run is given all of it again. The names of the
    folders mean something else in an address."""
    old, new = tmp_path / "old 50%20", tmp_path / "new 100%25?"
    words = ["algo=pg", "env=CartPole-v1", "resources=debug", "model.hidden=[8]", "log_every_steps=20", "algo.fragment_length=5"]  # fmt: skip
    where = ["logger=[mlflow]", "logger.mlflow.wait_sec=120", f"runs_root={old}", f"run_dir={old}/one"]
    assert _dispatch(["train", *words, "algo.batch_size=20", "env_steps=100", *where]) == 0
    old.rename(new)
    if lost:
        (new / "mlflow.db").unlink()
    assert _dispatch(["resume", str(new / "one"), "env_steps=200"]) == 0
    uri = store_uri(new)
    assert history(uri, only_run(uri)) == rows_of(new / "one") and only_run(uri).info.status == "FINISHED"
    assert not old.exists()
    said = capsys.readouterr().err
    assert ("does not know this run any more" in said) == lost
    assert ("which is gone, so that no files are sent" in said) != lost
    assert _dispatch(["sync", str(new / "one")]) == 0
    assert "nothing was missing" in capsys.readouterr().out and not old.exists()
    shutil.copytree(new / "one", new / "two")
    assert _dispatch(["sync", str(new / "two")]) == 0 and _dispatch(["sync", str(new / "two")]) == 0
    assert capsys.readouterr().err.count(f"was copied from {new / 'one'}, so it is logged as a run of its own") == 1
    experiment = client(uri).get_experiment_by_name("rlrun").experiment_id
    both = {run.data.tags["rlrun.run_dir"]: run for run in client(uri).search_runs([experiment])}
    assert set(both) == {str(new / "one"), str(new / "two")}
    assert all(history(uri, run) == rows_of(new / "one") for run in both.values())


def test_a_new_run_makes_the_folder_of_its_store(tmp_path):
    """Otherwise the store would be beside the run, as if its own folder had been moved away."""
    make_root(None, tmp_path / "runs")
    assert store_root(tmp_path / "runs", tmp_path / "elsewhere" / "one") == tmp_path / "runs"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"runs_root=.*file/runs: Not a directory"):
        make_root(None, tmp_path / "file" / "runs")


def test_a_store_whose_address_was_written_differently_is_the_same(tmp_path, capsys):
    """Earlier versions wrote a "%" of a folder's name as it is."""
    folder = tmp_path / "100%_done"
    words = ["algo=pg", "env=CartPole-v1", "resources=debug", "model.hidden=[8]", "algo.fragment_length=5", "algo.batch_size=20"]  # fmt: skip
    where = ["logger=[mlflow]", "logger.mlflow.wait_sec=120", f"runs_root={folder}", f"run_dir={folder}/one"]
    assert _dispatch(["train", *words, "env_steps=100", *where]) == 0
    uri, memory = store_uri(folder), folder / "one" / "mlflow.json"
    run, known = only_run(uri), json.loads(memory.read_text())
    memory.write_text(json.dumps({**known, "uri": f"sqlite:///{folder}/mlflow.db"}))
    assert known["uri"] == uri != f"sqlite:///{folder}/mlflow.db"
    assert _dispatch(["sync", str(folder / "one")]) == 0
    assert "nothing was missing" in capsys.readouterr().out
    assert only_run(uri).info.run_id == run.info.run_id and json.loads(memory.read_text()) == known
    # A run that was resumed has a process that is younger than its start. It holds the lock of its directory.
    client(uri).update_run(run.info.run_id, "RUNNING")
    client(uri).set_tag(run.info.run_id, "rlrun.pid", "999999999")
    with (folder / "one" / "run.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert stale_runs(folder, fix=True) == []
    assert stale_runs(folder, fix=True) == [run.info.run_name] and only_run(uri).info.status == "KILLED"


def test_a_sweep_is_sent_to_another_store_too_with_how_its_jobs_ended(tmp_path):
    folder, first, second = tmp_path / "s", *(f"sqlite:///{tmp_path / name}" for name in ("one.db", "two.db"))
    job = folder / "000-failed"
    config = {"logger": {"mlflow": {"enabled": True, "uri": first, "experiment": "rlrun"}}, "runs_root": str(tmp_path)}
    folder.mkdir()
    write(folder, [], [(job.name, [])], config)
    (folder / "outcomes.json").write_text(json.dumps([{"name": "000-failed", "status": "FAILED"}]))
    for uri in (first, second, second):
        assert _dispatch(["sync", str(folder), f"logger.mlflow.uri={uri}"]) == 0
        run = only_run(uri)
        assert run.info.status == "FAILED" and not job.exists()
        counts = {name.removeprefix("jobs/"): value for name, value in run.data.metrics.items()}
        assert counts.pop("failed") == 1 and set(counts.values()) == {0} and "waiting" in counts
    known = json.loads((folder / "mlflow.json").read_text())
    assert known["ended"] and known["uri"] == second, "it is not sent again"
    assert logs_to_mlflow(["logger=[console]", "seed=1"]) is False and logs_to_mlflow(["seed=1"]) is True


def test_a_run_that_goes_on_sends_by_itself(tmp_path):
    path = tmp_path / "run"

    def look(row):
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            raise sync_of(path)
        return False

    def sync_of(path):
        from rlrun.commands.sync import sync

        ((_, said),) = sync(path, {"logger.mlflow.uri": f"sqlite:///{tmp_path / 'store.db'}"}, False)
        return said

    rlrun.train(ALGO, "CartPole-v1", env_steps=120, logger=[], run_dir=path, quiet=True, callback=look, **QUICK)
    assert json.loads((path / "summary.json").read_text())["reason"] == "the callback returned False"


def test_a_store_that_was_away_is_used_again_and_a_resumed_run_goes_on_there(tmp_path, hasty, capsys):
    """A file stands in the place of the store's folder at first."""
    path, folder = tmp_path / "run", tmp_path / "later"
    uri = f"sqlite:///{folder / 'store.db'}"
    folder.write_text("")
    seen = []

    def look(row):
        seen.append(row["env_steps"])
        if len(seen) == 3:
            until(lambda: "sent when MLflow answers" in capsys.readouterr().err)
            folder.unlink()
            until(lambda: json.loads((path / "mlflow.json").read_text())["offset"] > 0)
        return len(seen) < 6

    mlflow = {"mlflow": {"uri": uri, "wait_sec": 120, "experiment": "mine"}}
    train = {"logger": ["mlflow"], "overrides": [f"logger.mlflow.{k}={v}" for k, v in mlflow["mlflow"].items()]}
    rlrun.train(ALGO, "CartPole-v1", env_steps="1M", run_dir=path, quiet=True, callback=look, **train, **QUICK)
    assert "it answers again, and has all rows" in capsys.readouterr().err
    run = only_run(uri, "mine")
    assert history(uri, run) == rows_of(path) and run.info.status == "FINISHED"
    rlrun.resume(path, quiet=True, callback=lambda row: row["env_steps"] < seen[-1] + 60)
    assert history(uri, only_run(uri, "mine")) == rows_of(path)
    kept = Path(client(uri).download_artifacts(run.info.run_id, "checkpoint", str(tmp_path)))
    assert {one.name for one in kept.iterdir()} == {"policy.pt", "run.json", "manifest.json"}, "those of one checkpoint, in one folder"
    newest = sorted((path / "checkpoints").glob("0*"))[-1]
    assert all((kept / name).read_bytes() == (newest / name).read_bytes() for name in ("policy.pt", "run.json", "manifest.json"))
    assert max(rows_of(path)) >= seen[-1] + 60


@pytest.mark.parametrize(("in_file", "left"), [(True, False), (False, True)])
def test_the_end_of_a_run_waits_longer_for_a_file_than_for_a_server(in_file, left, tmp_path, capsys):
    """To create the store takes a busy machine longer than a run should wait for a server that may never answer."""
    from types import SimpleNamespace

    from rlrun.loggers.mirroring import Mirroring

    mirror = SimpleNamespace(run_dir=tmp_path, in_file=in_file, left=False, client=None, begin_session=lambda: None)
    mirror.send, mirror.missing = lambda *sent: time.sleep(1.0), lambda ended: "3 rows"
    sending = Mirroring(mirror, {}, {}, wait_sec=0.2)
    sending.close("COMPLETED")
    sending.wait()
    assert mirror.left == left == ("3 rows did not arrive" in capsys.readouterr().err)


def test_an_end_without_mlflow_is_one_sentence_after_a_short_wait(tmp_path, hasty, capsys):
    path, uri = tmp_path / "run", f"sqlite:///{tmp_path / 'nowhere' / 'store.db'}"
    (tmp_path / "nowhere").write_text("")
    began = time.monotonic()
    words = ["logger.mlflow.wait_sec=0.2", f"logger.mlflow.uri={uri}"]
    rlrun.train(ALGO, "CartPole-v1", env_steps=60, logger=["mlflow"], run_dir=path, quiet=True, overrides=words, **QUICK)
    assert time.monotonic() - began < 60
    said = capsys.readouterr().err
    rows = len(rows_of(path))
    assert f"{rows} rows, the options and how the run ended did not arrive in MLflow yet: rlrun sync {path} sends" in said
    assert _dispatch(["sync", str(path)]) == 1
    assert f"{path}: MLflow does not take what is missing: " in capsys.readouterr().err
    (tmp_path / "nowhere").unlink()
    assert _dispatch(["sync", str(path)]) == 0
    assert history(uri, only_run(uri)) == rows_of(path)


ENDS_EARLY = """
import os, sys
from pathlib import Path
from sqlalchemy import Engine, event
from rlrun.loggers.mlflow import open_experiment

@event.listens_for(Engine, "after_cursor_execute")
def end(connection, cursor, statement, *_):
    if "ADD COLUMN routing_strategy" in statement:
        os._exit(7)

open_experiment(None, Path(sys.argv[1]), "rlrun")
"""


def test_a_process_that_ends_while_it_creates_the_store_leaves_none_and_a_store_stays_as_it_is(tmp_path, monkeypatch, create_store):
    """The next run creates the store anew, although the first one has left half of a store and its journal behind."""
    monkeypatch.setattr("rlrun.loggers.mlflow._create", create_store)
    assert subprocess.run([sys.executable, "-c", ENDS_EARLY, str(tmp_path)], timeout=240).returncode == 7
    store = tmp_path / "mlflow.db"
    assert not store.exists()
    (tmp_path / "mlflow.db-journal").write_bytes(b"the rest of a store that was deleted")
    _, number = open_experiment(None, tmp_path, "rlrun")
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", ".mlflow.lock"}
    before = store.read_bytes(), store.stat().st_ino
    assert open_experiment(None, tmp_path, "rlrun")[1] == open_experiment(f"sqlite:///{store}", tmp_path, "rlrun")[1] == number
    assert (store.read_bytes(), store.stat().st_ino) == before


def test_names_that_mlflow_refuses_are_changed_and_stay_apart(tmp_path, capsys):
    """Whatever an environment calls its numbers, all rows, the options and the status arrive. A second process goes on
    under the same names."""
    odd = ["speed (m/s)", "speed _m_s_", "speed [m_s]", "", "/a", "a//b", "..", "../b", "./.", "a/", "\n", "é", "x" * 251, "x" * 252]
    values = {"algo": {"name": "pg"}, "env": {"name": "Odd", "kwargs": dict.fromkeys(odd, 1)}, "seed": 1}
    (tmp_path / "config.yaml").write_text("")
    place = MlflowPlace(f"sqlite:///{tmp_path / 'store.db'}", tmp_path, "rlrun")
    found = []
    for step, ended in ((1, None), (2, "COMPLETED")):
        with (tmp_path / "progress.jsonl").open("a") as file:
            row = [(name, 100 * step + number) for number, name in enumerate(odd)]
            file.write(json.dumps({"env_steps": step, **dict(row if step == 1 else reversed(row))}) + "\n")
        Mirror(tmp_path, place).send(values, {}, ended)
        run = only_run(place.uri)
        found.append(run.data.metrics)
    assert run.info.status == "FINISHED" and len(run.data.params) == 3 + len(odd)
    assert sorted(found[0].values()) == [100 + number for number in range(len(odd))]
    assert found[1] == {name: value + 100 for name, value in found[0].items()}
    assert found[0]["speed _m/s_"] == 100 and found[0]["speed _m_s_"] == 101 and found[0]["é"] == 111
    assert {name for name in found[0] if name.startswith("speed")} == {"speed _m/s_", "speed _m_s_", "speed _m_s__2"}
    assert capsys.readouterr().err.count("MLflow cannot take the name") == 2, "once in each process"


def test_rows_are_read_in_pieces_and_half_a_row_is_left_for_later(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.loggers.jsonl.PART_BYTES", 7)
    mirror = Mirror(tmp_path, MlflowPlace(None, tmp_path, "rlrun"))
    lines = [json.dumps({"env_steps": number, "time_sec": 1.0}) for number in range(4)]
    (tmp_path / "progress.jsonl").write_text("\n".join(lines) + '\n{"env_steps": 9, "ti')
    found = list(mirror._rows(0))
    assert [row["env_steps"] for _, row in found] == [0, 1, 2, 3]
    assert [row["env_steps"] for _, row in mirror._rows(found[1][0])] == [2, 3]
    mirror.memory["offset"] = found[1][0]
    assert mirror.missing("COMPLETED") == "2 rows, the options and how the run ended"
    mirror.begin_session()
    written = (tmp_path / "progress.jsonl").read_bytes()
    assert mirror.memory["sessions"][-1][0] == len(written)
    for known in (0, 11, 50):  # a sum goes on where an earlier one ended
        assert mirror._crc(50, known, zlib.crc32(written[:known])) == zlib.crc32(written[:50])


def test_the_link_lists_runs_of_training(tmp_path):
    mirror = Mirror(tmp_path, MlflowPlace("http://me:secret@host:5000/", tmp_path, "rlrun"))
    assert mirror.link is None, "it has not answered yet"
    mirror.memory["experiment_id"] = "3"
    assert mirror.link == "http://***@host:5000/#/experiments/3/runs?workflowType=machine_learning"


class Server:
    """A real MLflow server on a free port."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri, self.folder, self.process = f"http://127.0.0.1:{self.port}", folder, None

    def start(self):
        store = ["--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}", "--workers", "1"]
        store += ["--artifacts-destination", str(self.folder / "artifacts"), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", *store],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        until(self.answers, 240)

    def answers(self):
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.mark.slow
def test_a_real_server_that_comes_late_is_killed_and_comes_back(tmp_path, hasty, capfd):
    server, path, seen = Server(tmp_path), tmp_path / "run", []

    def sent():
        try:
            offset = json.loads((path / "mlflow.json").read_text())["offset"]
        except ValueError:
            return False
        return offset == (path / "progress.jsonl").stat().st_size

    def look(row):
        seen.append(row["env_steps"])
        if len(seen) == 4:
            server.start()
            until(sent)
        elif len(seen) == 7:
            server.kill()
        elif len(seen) == 10:
            server.start()
            until(sent)
        elif len(seen) == 12:
            server.kill()
        return len(seen) < 14

    words = [f"logger.mlflow.uri={server.uri}", "logger.mlflow.wait_sec=1"]
    try:
        rlrun.train(
            ALGO, "CartPole-v1", env_steps="1M", logger=["mlflow"], run_dir=path, overrides=words, callback=look, **QUICK
        )
        said = capfd.readouterr()
        assert f"  MLflow: {server.uri}/#/experiments/1/runs?workflowType=machine_learning" in said.out
        assert "the run goes on; its rows are sent when MLflow answers" in said.err and "Retrying" not in said.err
        assert f"did not arrive in MLflow yet: rlrun sync {path} sends what is missing" in said.err
        assert _dispatch(["sync", str(path)]) == 1
        server.start()
        assert _dispatch(["sync", str(path)]) == 0
        said = capfd.readouterr()
        assert "rows" in said.out and "the status FINISHED" in said.out
        run = only_run(server.uri)
        assert history(server.uri, run) == rows_of(path) and run.info.status == "FINISHED"
        files = {one.path for one in client(server.uri).list_artifacts(run.info.run_id)}
        assert files == {"config.yaml", "summary.json", "checkpoint"}
        assert _dispatch(["sync", str(path)]) == 0 and "nothing was missing" in capfd.readouterr().out
    finally:
        server.kill()


def made_at(folder, name="one"):
    words = ["algo=pg", "env=CartPole-v1", "resources=debug", "model.hidden=[8]", "algo.fragment_length=5", "algo.batch_size=20"]  # fmt: skip
    where = ["logger=[mlflow]", "logger.mlflow.wait_sec=120", f"runs_root={folder}", f"run_dir={folder}/{name}"]
    assert _dispatch(["train", *words, "env_steps=100", *where]) == 0
    return folder / name


def test_the_store_beside_a_run_from_elsewhere_is_not_used(tmp_path, capsys):
    run, mine = made_at(tmp_path / "theirs"), f"sqlite:///{tmp_path / 'mine.db'}"
    beside(run / "config.yaml").unlink()
    before = (run.parent / "mlflow.db").read_bytes()
    assert _dispatch(["sync", str(run)]) == 1
    assert "was made elsewhere and the store beside it may have been, too: logger.mlflow.uri=" in capsys.readouterr().err
    assert _dispatch(["train", "--from-run", str(run), "env_steps=100", f"run_dir={tmp_path / 'again'}"]) == 0
    assert _dispatch(["resume", str(run), "env_steps=200"]) == 0
    assert capsys.readouterr().out.count("not logged to MLflow, because") == 2
    assert (run.parent / "mlflow.db").read_bytes() == before
    known = json.loads((run / "mlflow.json").read_text())
    # Its mlflow.json may name any run of the user's store.
    other = made_at(tmp_path / "own")
    assert _dispatch(["sync", str(other), f"logger.mlflow.uri={mine}"]) == 0
    victim = json.loads((other / "mlflow.json").read_text())["run_id"]
    (run / "mlflow.json").write_text(json.dumps({**known, "uri": mine, "run_id": victim}))
    assert _dispatch(["sync", str(run), f"logger.mlflow.uri={mine}"]) == 0
    assert json.loads((run / "mlflow.json").read_text())["run_id"] != victim
    assert client(mine).get_run(victim).data.tags["rlrun.run_dir"] == str(other)


def test_a_store_that_keeps_files_elsewhere_is_given_none(tmp_path, capsys):
    """Somebody who copied a signed run may have put a store beside it."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "config.yaml").write_text("precious")
    for name, place in (("experiment", victim), ("run", None), ("link", None)):
        run = made_at(tmp_path / name)
        (run / "mlflow.json").unlink()
        with sqlite3.connect(run.parent / "mlflow.db") as store:
            if place is not None:
                store.execute("UPDATE experiments SET artifact_location = ?", (place.as_uri(),))
                store.execute("DELETE FROM runs")
            elif name == "run":
                store.execute("UPDATE runs SET artifact_uri = ?", (victim.as_uri(),))
            (number,) = store.execute("SELECT experiment_id FROM experiments WHERE name = 'rlrun'").fetchone()
            found = store.execute("SELECT run_uuid, artifact_uri FROM runs").fetchone()
        if found is not None:
            (tag,) = [value for key, value in client(store_uri(run.parent)).get_run(found[0]).data.tags.items() if key == "rlrun.id"]
            memory = {"uri": store_uri(run.parent), "id": tag, "run_id": found[0], "experiment_id": number}
            (run / "mlflow.json").write_text(json.dumps({**memory, "offset": 0}))
        if name == "link":
            sent = Path(found[1].removeprefix("file://"), "config.yaml")
            sent.unlink()
            sent.symlink_to(victim / "config.yaml")
        capsys.readouterr()
        assert _dispatch(["sync", str(run)]) == 0
        said = capsys.readouterr().err
        assert (name == "link") != ("so that no files are sent: the store may have been made by somebody else" in said)
        assert (victim / "config.yaml").read_text() == "precious" and len(list(victim.iterdir())) == 1
        if found is not None:
            film = tmp_path / "config.yaml"
            film.write_text("a film")
            with pytest.raises(UserError, match=r"is not in .*mlartifacts"):
                add_artifact(run, film, None, run.parent)
        assert (victim / "config.yaml").read_text() == "precious"


@pytest.mark.parametrize("name", [".mlflow.lock", "mlflow.db", "mlflow.db-journal", "mlartifacts"])
def test_links_in_place_of_a_store_are_refused(name, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=f"{name} is a symbolic link"):
        open_experiment(None, tmp_path / "root", "rlrun")
    if name == ".mlflow.lock":  # it is made for a store of the user's own, too
        with pytest.raises(UserError, match=f"{name} is a symbolic link"):
            open_experiment("http://127.0.0.1:9", tmp_path / "root", "rlrun")
    assert (tmp_path / "victim").read_text() == "precious"
