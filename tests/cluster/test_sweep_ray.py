"""Sweeps on a Ray cluster: jobs of Ray's machines with Ray itself, and what they say when something is missing without it."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlrun.cluster.engine import HostLost
from rlrun.core.errors import UserError
from rlrun.experiments.outcomes import LOST, TrainingJob
from rlrun.experiments.places import Place
from rlrun.experiments.ray_job import RemoteJob
from rlrun.experiments.ray_queue import RayQueue
from rlrun.machine.own_cores import OwnCores
from rlrun.version import sources

QUICK = ["env=CartPole-v1", "logger=[]", "resources=debug", "env_steps=600", "log_every_sec=0.2"]


class Alone:
    """An engine with one machine, whose jobs are objects of this process. What `lost` names is gone."""

    def __init__(self, cfg, planned, option):
        self.there, self.lost, self.closed = [(node.name, node.cores, 0) for node in planned], set(), False

    def room(self):
        return self.there

    def submit(self, kind, name, brief, cores, gpus):
        assert kind == "rlrun.experiments.ray_job:RemoteJob" and gpus == 0
        engine, made = self, RemoteJob(brief)

        class Host:
            def call(self, method, *args):
                return HostLost("its machine has died") if name in engine.lost else getattr(made, method)(*args)

        return Host()

    def wait(self, answers, timeout):
        return answers

    def get(self, answer):
        if isinstance(answer, HostLost):
            raise answer
        return answer

    def stop(self, hosts, end_sec=5.0):
        for host in hosts:
            host.call("stop")

    def close(self):
        self.closed = True


@pytest.fixture
def own():
    """This process may use its cores again after a job has chosen among them."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def job(folder: Path, *words: str) -> TrainingJob:
    return TrainingJob(name="000", words=words, run_dir=folder / "000", log=folder / "000.log")


def test_a_job_runs_fails_and_is_lost_as_a_process_would(tmp_path, own):
    queue = RayQueue({"cpus_per_task": 1}, str(tmp_path), Alone)
    place = queue.slots(1)[0]
    assert queue(job(tmp_path, "algo=pg", *QUICK), place).wait() == 0
    assert json.loads((tmp_path / "000" / "summary.json").read_text())["status"] == "COMPLETED"
    other = tmp_path / "other"
    other.mkdir()
    running = queue(job(other, "algo=nothing"), place)
    queue.engine.wait = lambda answers, timeout: []
    assert running.poll() is None, "the answer is not there"
    queue.engine.wait = lambda answers, timeout: answers
    running.kill()
    assert running.wait() == -signal.SIGKILL
    queue.engine.lost.add("000")
    assert queue(job(other), place).wait() == LOST and (other / "000.log").read_text() == "rlrun: 000 was lost: its machine has died\n"


def test_what_is_wrong_is_a_sentence(tmp_path, monkeypatch, own):
    def refused(said, **words):
        with pytest.raises(UserError, match=said):
            RayQueue(words, str(tmp_path), Alone)

    refused(r"asks for 999 cores and 0 GPUs of one machine, and after 0.1 s the cluster has node-0 \(", cpus_per_task=999, join_sec=0.1)
    refused("--queue adress: there is no such option. Did you mean address", adress="x")
    refused("gpus_per_task needs address", gpus_per_task=1)
    refused("cpus_per_task must be at least 1", cpus_per_task=0)
    queue = RayQueue({"cpus_per_task": 1}, str(tmp_path / "elsewhere"), Alone)
    started = queue(job(tmp_path, "algo=pg"), Place((), None))
    assert started.wait() == 1
    assert (tmp_path / "000.log").read_text().startswith(f"rlrun: {platform.node()} has no folder {tmp_path / 'elsewhere'}: a sweep")
    monkeypatch.setattr("rlrun.experiments.ray_queue.sources", lambda: "0.0.9, sources abc")
    assert queue(job(tmp_path, "algo=pg"), Place((), None)).wait() == 1
    assert "and the sweep's machine has 0.0.9, sources abc" in (tmp_path / "000.log").read_text()


def test_cores_are_taken_once_while_there_are_enough(tmp_path):
    first = OwnCores(2, tmp_path, {0, 1, 2})
    second = OwnCores(2, tmp_path, {0, 1, 2})
    assert first.cores == {0, 1} and second.cores >= {2} and len(second.cores) == 2
    first.close()
    assert OwnCores(2, tmp_path, {0, 1, 2}).cores == {0, 1}


@pytest.mark.parametrize("quota", [False, True])
def test_a_job_has_cores_of_its_own_unless_a_quota_bounds_them(tmp_path, monkeypatch, own, quota):
    before = len(os.sched_getaffinity(0))
    monkeypatch.setattr("rlrun.experiments.ray_job.pinned", lambda: not quota)
    seen = json.loads(seen_by_a_job(tmp_path, "len(os.sched_getaffinity(0)), os.environ.get('RLRUN_CORES')"))
    assert seen == ([before, "1"] if quota else [1, None])


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_job_sees_no_gpu_that_it_did_not_ask_for(tmp_path, monkeypatch, own, gpus):
    """Ray says which one it has, and says nothing where it has none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert json.loads(seen_by_a_job(tmp_path, "os.environ['CUDA_VISIBLE_DEVICES']", gpus=gpus)) == ["3" if gpus else ""]


def seen_by_a_job(folder, expression, **told):
    """What a process of a job on a cluster's machine prints of an expression, as JSON."""
    code = ["-c", f"import json, os; print(json.dumps([{expression}]))"]
    brief = {"command": code, "log": str(folder / "log"), "cwd": str(folder), "cores": 1, "gpus": 0, "path": [], "code": sources()}
    made = RemoteJob(json.dumps(brief | told).encode())
    assert made.begin() is None and made.poll(30.0) == 0
    return (folder / "log").read_text()


@pytest.mark.slow
def test_a_killed_sweep_leaves_nothing_and_goes_on(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "sweep"
    queue = ["--cluster", "ray", "--queue", "simulate=2,cpus_per_task=1,store_mb=80"]
    words = ["algo=pg", "env=CartPole-v1", "logger=[]", "seed=1,2", "env_steps=1e9", "log_every_sec=0.2", "resources=debug"]
    sweep = subprocess.Popen([sys.executable, "-m", "rlrun", "sweep", *words, "--dir", folder, *queue], stdout=subprocess.DEVNULL)

    def waits(what):
        end = time.monotonic() + 240
        while not what():
            assert time.monotonic() < end and sweep.poll() in (None, -9)
            time.sleep(0.1)

    try:
        waits(lambda: len(list(folder.glob("*/progress.jsonl"))) == 2)
        family = psutil.Process(sweep.pid).children(recursive=True)
        cores = [p.cpu_affinity() for p in family if p.cmdline()[1:3] == ["-m", "rlrun.experiments.job"]]
        assert len(cores) == 2 and all(len(one) == 1 for one in cores), "each job has a core of its own"
        assert any(p.name() == "raylet" for p in family)
    finally:
        sweep.kill()
    _, alive = psutil.wait_procs(family, timeout=60)  # Ray's own helpers would stay for minutes
    assert not alive, [(p.pid, p.name(), p.cmdline()[:4]) for p in alive]
    assert len(list(folder.glob("*/checkpoints/0*"))) == 2, "the jobs have saved"
    sweep = subprocess.Popen([sys.executable, "-m", "rlrun", "sweep", "--resume", folder, *queue], stdout=subprocess.DEVNULL)
    summaries = list(folder.glob("*/summary.json"))
    waits(lambda: all(json.loads(path.read_text())["status"] == "RUNNING" for path in summaries))
    family = psutil.Process(sweep.pid).children(recursive=True)
    sweep.terminate()
    assert sweep.wait(60) == 143
    assert [one["status"] for one in json.loads((folder / "outcomes.json").read_text())] == ["INTERRUPTED"] * 2
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive, [(p.pid, p.name(), p.cmdline()[:4]) for p in alive]
