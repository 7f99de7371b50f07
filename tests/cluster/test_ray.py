"""Runs through Ray itself, on nodes that it simulates on this machine."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

WORDS = ["env=CartPole-v1", "logger=[]", "resources=ray", "resources.ray.simulate=2", "resources.device=cpu", "resources.ray.store_mb=100",
         "log_every_sec=0.5", "resources.envs_per_sampler=4"]  # fmt: skip


def begin(folder: Path, *words: str) -> subprocess.Popen:
    home = folder / "home"
    home.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "rlrun", "train", *WORDS, *words, f"run_dir={folder / 'run'}"],
        env=os.environ | {"HOME": str(home)}, stdout=(folder / "said").open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip


def rows(folder: Path) -> list[dict]:
    path = folder / "run" / "progress.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def wait(what, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_run_survives_the_death_of_a_node_and_leaves_nothing(tmp_path):
    run = begin(tmp_path, "algo=impala", "env_steps=1e6", "stop.wall_sec=180", "resources.restarts=9")
    try:
        wait(lambda: run.poll() is not None or (rows(tmp_path) or [{"env_steps": 0}])[-1]["env_steps"] > 500, 120)
        assert run.poll() is None, (tmp_path / "said").read_text()
        family = psutil.Process(run.pid).children(recursive=True)
        raylets = sorted((one for one in family if one.name() == "raylet"), key=lambda one: one.create_time())
        assert len(raylets) == 2
        raylets[1].kill()
        wait(lambda: rows(tmp_path)[-1].get("restarts/processes", 0) > 0, 60)
        steps = rows(tmp_path)[-1]["env_steps"]
        wait(lambda: rows(tmp_path)[-1]["env_steps"] > steps + 1000, 60)
        family += psutil.Process(run.pid).children(recursive=True)
    finally:
        run.terminate()
    said = ended(run, family, tmp_path)
    assert "takes over the samplers of host-1" in said, said


@pytest.mark.slow  # test_learners.py tries it without Ray
def test_a_run_whose_learners_are_on_two_nodes_begins_again_when_one_is_killed(tmp_path):
    words = ["algo=ppo", "algo.fragment_length=16", "algo.batch_size=128", "algo.minibatch_size=64", "resources.num_learners=2",
             "resources.inference=local", "env_steps=1e6", "checkpoint.every=128", "resources.restarts=9"]  # fmt: skip
    run = begin(tmp_path, *words)
    try:
        wait(lambda: run.poll() is not None or (rows(tmp_path) or [{"env_steps": 0}])[-1]["env_steps"] > 300, 180)
        assert run.poll() is None, (tmp_path / "said").read_text()
        family = psutil.Process(run.pid).children(recursive=True)
        (learner,) = (one for one in family if one.name().startswith("ray::_Actor"))
        learner.kill()
        wait(lambda: rows(tmp_path)[-1].get("restarts/processes", 0) > 0, 180)
        family += psutil.Process(run.pid).children(recursive=True)
    finally:
        run.terminate()
    said = ended(run, family, tmp_path)
    assert said.count("its process has died; the run begins again at") == 1, said


def ended(run: subprocess.Popen, family: list[psutil.Process], folder: Path) -> str:
    """Waits for a run that was told to end, and returns what it said. Nothing of it may be left."""
    said = (folder / "said").read_text()
    assert run.wait(60) == 143, said
    said = (folder / "said").read_text()
    assert "Traceback" not in said, said
    assert json.loads((folder / "run" / "summary.json").read_text())["status"] == "INTERRUPTED"
    token = folder / "home" / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text()) == 64
    assert not list(Path(tempfile.gettempdir()).glob(f"rlrun-ray-{run.pid}-*")), "Ray's folder is gone"
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive, [(one.pid, one.name()) for one in alive]
    return said
