"""rlrun doctor finds what killed runs have left, and never touches a run that lives or another user's."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.cli import _dispatch
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.run_lock import held
from rlrun.runtime import leftovers
from rlrun.runtime.leftovers import clean, left_by, run_dirs, shared_memory
from rlrun.runtime.rundir import RunDir

ROOT = Path(__file__).parents[2]
# Holds the lock of a run directory and says so.
HOLDS = """
import sys, time
from pathlib import Path
from rlrun.core.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def no_real_shared_memory(tmp_path_factory, monkeypatch):
    """These tests clean, and must not touch what others have left in this machine's /dev/shm."""
    monkeypatch.setattr(leftovers.shared_memory, "__defaults__", (tmp_path_factory.mktemp("shm"),))


def made(path: Path, status: str = "RUNNING") -> Path:
    """A run directory with half-written saves, as a killed run leaves it."""
    (path / "checkpoints" / ".000000000200.tmp").mkdir(parents=True)
    (path / "checkpoints" / ".000000000200.tmp" / "policy.pt").write_text("half")
    (path / "checkpoints" / "000000000100").mkdir()
    (path / "config.yaml").write_text("seed: 1\n")
    (path / ".summary.json.abcd1234").write_text("{")
    (path / "summary.json").write_text(json.dumps({"status": status, "seed": 1}))
    return path


def holding(path: Path) -> subprocess.Popen:
    """A process that holds the directory's lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert process.stdout.readline() == "held\n"
    return process


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_a_dead_run_is_cleaned_and_a_live_one_is_left_alone(tmp_path, capsys):
    dead, live = made(tmp_path / "ppo" / "dead"), made(tmp_path / "ppo" / "live")
    killed, living = holding(dead), holding(live)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        before = files(live)
        assert (dead / "run.lock").exists() and not held(dead) and held(live)

        assert [line.split()[1] for line in _lines(capsys, tmp_path) if line.startswith("run ")] == [str(dead)]
        assert json.loads((dead / "summary.json").read_text())["status"] == "RUNNING", "only --clean changes anything"
        said = "\n".join(_lines(capsys, tmp_path, "--clean"))
        assert f"{dead} is marked RUNNING, but no process holds it and has half-written saves" in said
        assert "cleaned and marked FAILED" in said and str(live) not in said

        assert files(live) == before and held(live)
        told = json.loads((dead / "summary.json").read_text())
        assert told["status"] == "FAILED" and told["seed"] == 1 and "without saying why" in told["reason"]
        assert sorted(files(dead)) == ["config.yaml", "summary.json"]
        assert (dead / "checkpoints" / "000000000100").is_dir(), "whole checkpoints stay"
        assert any("nothing is left of killed runs" in line for line in _lines(capsys, tmp_path))
    finally:
        living.kill()
        living.wait()


def _lines(capsys, root: Path, *words: str) -> list[str]:
    from rlrun.commands.doctor import leftovers as lines

    capsys.readouterr()
    return lines(root, "--clean" in words)


def test_a_run_that_is_taken_between_finding_and_cleaning_is_left_alone(tmp_path):
    path = made(tmp_path / "run")
    left = left_by(path)
    assert left.running and left.saves
    process = holding(path)
    try:
        assert not clean(left) and json.loads((path / "summary.json").read_text())["status"] == "RUNNING"
        assert (path / ".summary.json.abcd1234").exists()
    finally:
        process.kill()
        process.wait()


def test_another_users_and_another_machines_runs_are_left_alone(tmp_path, monkeypatch, capsys):
    """Of the latter it is said what this machine cannot know."""
    path = made(tmp_path / "run")
    (path / "run.lock").write_text("process 1 on another-machine")
    assert not left_by(path)
    before = files(path)
    (said,) = _lines(capsys, tmp_path, "--clean")
    assert f"{path} is marked RUNNING; its lock names process 1 on another-machine, which this machine cannot see: if it" in said
    assert files(path) == before
    (path / "run.lock").write_text(f"process 999999 on {platform.node()}")
    assert left_by(path).running
    assert list(run_dirs(tmp_path)) == [path]
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert list(run_dirs(tmp_path)) == []


def test_a_finished_run_has_left_nothing(tmp_path):
    path = made(tmp_path / "run", "COMPLETED")
    assert clean(left_by(path)) and not left_by(path)
    assert json.loads((path / "summary.json").read_text())["status"] == "COMPLETED"


def test_shared_memory_of_dead_processes_is_removed(tmp_path, monkeypatch, capsys):
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    names = (f"rlrun-ranks-{gone.pid}-abc_1", f"rlrun-ranks-{os.getpid()}-abc_1", f"torch_{gone.pid}_1", "theirs")
    dead, alive, torch, other = (tmp_path / name for name in names)
    for path in (dead, alive, torch, other):
        path.mkdir()
    assert shared_memory(tmp_path) == [dead]
    monkeypatch.setattr(leftovers.shared_memory, "__defaults__", (tmp_path,))
    assert any("left by a process that is gone; removed" in line for line in _lines(capsys, tmp_path, "--clean"))
    assert not dead.exists() and all(path.exists() for path in (alive, torch, other))
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    dead.mkdir()
    assert shared_memory(tmp_path) == []
    shutil.rmtree(dead)


def test_unfinished_files_of_killed_recordings_are_named_and_removed(tmp_path, capsys):
    run, data = made(tmp_path / "runs" / "one", "COMPLETED"), tmp_path / "data"
    data.mkdir()
    (run / "config.yaml").write_text(f"seed: 1\nrecord: {data}\n")
    for name, old in (("left", True), ("new", False)):
        file = data / f".part-{name}-00000.parquet.unfinished"
        file.write_bytes(bytes(2_000_000))
        os.utime(file, (0, 0) if old else None)
    for words, end in (([], "killed"), (["--clean"], "killed; removed")):
        assert _dispatch(["doctor", f"runs_root={tmp_path / 'runs'}", *words]) == 0
        assert f"{data} has 1 unfinished file (2.0 MB) of recordings that were {end}\n" in capsys.readouterr().out
    assert [file.name for file in data.glob(".part-*")] == [".part-new-00000.parquet.unfinished"]


def test_a_checkpoint_that_was_moved_aside_gets_its_name_back(tmp_path):
    """A process was killed between moving the old checkpoint aside and giving the new one its name."""
    folder = tmp_path / "checkpoints"
    (folder / ".000000000300.old").mkdir(parents=True)
    (folder / ".000000000300.old" / "policy.pt").write_text("whole")
    (folder / ".000000000300.tmp").mkdir()
    checkpoints = Checkpoints(folder, 3)
    assert checkpoints.tidy() == [".000000000300.tmp"]
    assert checkpoints.names() == ["000000000300"] and (folder / "000000000300" / "policy.pt").read_text() == "whole"
    (folder / ".000000000300.old").mkdir()
    assert checkpoints.tidy() == [".000000000300.old"] and [p.name for p in folder.iterdir()] == ["000000000300"]


@pytest.mark.parametrize("text", ["[1, 2]", "nonsense", "", "3", '{"status": ["RUNNING"]}'])
def test_a_strange_summary_is_no_reason_to_fail(tmp_path, text):
    path = made(tmp_path / "run")
    (path / "summary.json").write_text(text)
    assert RunDir(path).known == {}, "nothing of it is what rlrun writes"
    assert clean(left_by(path)) and not left_by(path)


def test_resume_removes_half_written_saves(tmp_path, capsys):
    run = tmp_path / "run"
    words = ["algo=pg", "env=rlrun/Identity-v0", "resources=debug", "logger=[]", "model.hidden=[8]"]
    assert _dispatch(["train", *words, "env_steps=400", f"run_dir={run}"]) == 0
    (run / "checkpoints" / ".000000000999.tmp").mkdir()
    (run / ".summary.json.abcd1234").write_text("{")
    capsys.readouterr()
    assert _dispatch(["resume", str(run), "env_steps=800"]) == 0
    said = capsys.readouterr().out
    assert "removed what a killed process was still writing: .summary.json.abcd1234, .000000000999.tmp" in said
    assert not [path for path in run.rglob(".*") if path.name != ".config.yaml.signature"]
