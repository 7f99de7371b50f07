"""A run that loses a learner, a shard of its replay or a process that evaluates goes on by itself, and says so."""

import json
import multiprocessing
import os
import re
import signal
import threading
import time

import gymnasium
import pytest
from conftest import small

from rlrun.cli import _dispatch
from rlrun.core.duties import Progress
from rlrun.core.errors import ProcessLost, RunFailed
from rlrun.core.restarts import Restarts
from rlrun.core.signals import Signals
from rlrun.dataflow import ranks
from rlrun.envs.debug import _first
from rlrun.runtime.again import Again
from rlrun.runtime.rundir import checkpoints_of

LOG = ["logger=[]", "log_every_sec=0.05"]
APEX = [*small("apex", "tiny"), "env=CartPole-v1", "runner=distributed_replay", "resources.num_samplers=1", "algo.inner.num_envs=1", *LOG]
PPO = ["algo=ppo", "env=CartPole-v1", "model.hidden=[8]", "algo.fragment_length=20", "algo.batch_size=80", "algo.minibatch_size=40",
       "algo.num_epochs=1", *LOG]  # fmt: skip


def kill_once(name, path):
    """Kills the process of this name once, after the run has saved a checkpoint. Returns the thread that does it."""

    def work():
        end = time.monotonic() + 120
        while time.monotonic() < end:
            victims = [process for process in multiprocessing.active_children() if process.name == name]
            if victims and (path / "checkpoints").is_dir() and checkpoints_of(path).names():
                os.kill(victims[0].pid, signal.SIGKILL)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


class HangsThere(gymnasium.Wrapper):
    """Hangs once, in a process of this name, which makes a file of this path."""

    def __init__(self, env, process, step, path):
        super().__init__(env)
        self.process, self.step_number, self.path, self.steps = process, step, path, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.step_number and multiprocessing.current_process().name == self.process and _first(self.path):
            time.sleep(3600)
        return self.env.step(action)


def hangs(process, step, path):
    """The option of such an environment."""
    return f"env.wrappers=[{{name: {__name__}:HangsThere, process: {process}, step: {step}, path: {path / 'hung'}}}]"


def rows_of(path):
    return [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "name, words",
    [
        ("replay-0", [*APEX, "env_steps=2500", "checkpoint.every=400"]),
        ("learner-1", [*PPO, "resources.num_learners=2", "resources.inference=serial", "env_steps=6000", "checkpoint.every=800"]),
    ],
)
def test_a_run_begins_again_from_its_checkpoint(tmp_path, capfd, name, words):
    path = tmp_path / "run"
    thread = kill_once(name, path)
    assert _dispatch(["train", *words, f"run_dir={path}"]) == 0
    thread.join()
    said = capfd.readouterr().out
    assert re.search(rf"{name} was killed by SIGKILL.*; the run begins again at \d+ env steps.*\(1 of 20 failures", said)
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "COMPLETED" and "resumed_by" not in summary
    rows = rows_of(path)
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(steps) and steps[-1] >= int(words[-2].partition("=")[2])
    assert rows[-1]["restarts/processes"] == 1 and rows[-1]["restarts/lost_env_steps"] >= 0


@pytest.mark.parametrize("fault, said", [
    ("kill", "eval-0 was killed by SIGKILL.*"),
    ("hang", r"eval-0 hangs: it has been in step\(\) for [\d.]+ s, and env.step_timeout_sec allows 1.0"),
])  # fmt: skip
def test_a_process_that_evaluates_is_replaced(tmp_path, capfd, fault, said):
    """The new one plays the same games, because their seeds belong to the evaluation."""
    words = [*PPO, "resources.inference=serial", "eval.every=2000", "eval.workers=1", "eval.episodes=4", "eval.parallel=false", "env_steps=4000"]
    words += [hangs("eval-0", 5, tmp_path), "env.step_timeout_sec=1"] if fault == "hang" else []
    threads = [kill_once("eval-0", tmp_path / "a")] if fault == "kill" else []
    assert _dispatch(["train", *words, "checkpoint.every=800", f"run_dir={tmp_path / 'a'}"]) == 0
    for thread in threads:
        thread.join()
    assert re.search(rf"{said}; a new process takes its place \(1 of 20", capfd.readouterr().out)
    assert _dispatch(["train", *words, "checkpoint.every=800", f"run_dir={tmp_path / 'b'}"]) == 0
    one, other = ([row["eval/return_mean"] for row in rows_of(tmp_path / name) if "eval/return_mean" in row] for name in "ab")
    assert one == other and len(one) == 2


def hanging(path):
    return [*PPO, hangs("learner-1", 100, path), "resources.num_learners=2", "resources.inference=serial", f"run_dir={path / 'run'}"]


def test_an_environment_that_hangs_in_another_learner_is_interrupted_there(tmp_path, capfd):
    assert _dispatch(["train", *hanging(tmp_path), "env.step_timeout_sec=1", "env_steps=1500"]) == 0
    assert re.search(r"failed in step 100 .*Hang: hangs: it has been in step\(\) for .*made anew", capfd.readouterr().out)
    assert rows_of(tmp_path / "run")[-1]["restarts/envs"] == 1


def test_a_run_that_is_told_to_stop_does_not_wait_long_for_another_learner(tmp_path, capfd, monkeypatch):
    """It ends as one that is interrupted, and what it has learnt is saved."""
    monkeypatch.setattr(ranks, "STOP_SEC", 1.0)
    told = []

    def stop():
        end = time.monotonic() + 120
        while not (tmp_path / "hung").exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(2.0)  # the first learner waits by now
        told.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert _dispatch(["train", *hanging(tmp_path), f"env_steps={10**7}", "checkpoint.every=null"]) == 128 + signal.SIGTERM
    assert time.monotonic() - told[0] < 40
    thread.join()
    saved = int(re.search(r"what it had learnt after (\d+) env steps is saved", capfd.readouterr().out)[1])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "INTERRUPTED" and re.match(r"SIGTERM received; .*no answer for \d+ s", summary["reason"])
    assert checkpoints_of(tmp_path / "run").names() == [f"{saved:012d}"] and summary["env_steps"] == saved > 0


def test_a_learner_that_is_lost_before_the_run_begins_again_takes_no_count_back(tmp_path, capfd, monkeypatch):
    path, counts = tmp_path / "run", ("env_steps", "updates", "episodes", "return_mean")
    assert _dispatch(["train", *PPO, "resources.inference=serial", "env_steps=800", f"run_dir={path}"]) == 0
    before = json.loads((path / "summary.json").read_text())

    def lost(*_):
        (path / "checkpoints" / ".000000000900.tmp").mkdir()  # as another learner leaves it that still wrote its rows
        raise ProcessLost("learner-1 was killed by SIGKILL")

    monkeypatch.setattr("rlrun.runtime.session.train", lost)
    monkeypatch.setattr("rlrun.runtime.again.FIRST_PAUSE_SEC", 0.0)
    capfd.readouterr()
    assert _dispatch(["resume", str(path), "env_steps=1600"]) == 1
    said = capfd.readouterr().out
    assert said.count(f"the run begins again at {before['env_steps']} env steps (") == 2
    assert not checkpoints_of(path).unfinished()
    after = json.loads((path / "summary.json").read_text())
    assert after["status"] == "FAILED" and "3 times in a row" in after["reason"]
    assert [after[name] for name in counts] == [before[name] for name in counts]


class Saved:
    """Checkpoints that are there, at 100 env steps."""

    def tidy(self):
        return []

    def names(self):
        return ["000000000100"]

    def load(self):
        return {}, {"env_steps": 100, "updates": self.updates, "wall_sec": 2.0}

    updates = 5


def test_when_a_run_does_not_begin_again():
    told: list[str] = []
    again = Again(Restarts(3, 60.0, told.append), Signals())
    lost = ProcessLost("replay-0 was killed by SIGKILL")
    assert again.checkpoint(RunFailed("learner-1 failed: ZeroDivisionError"), Saved(), 500, 5.0) is None, "it would fail again"
    assert Again(Restarts(0, 60.0, told.append), Signals()).checkpoint(lost, Saved(), 500, 5.0) is None
    assert not told
    stopped = Again(Restarts(3, 60.0, told.append), Signals())
    stopped.signals.stop = signal.SIGTERM
    assert stopped.checkpoint(lost, Saved(), 500, 5.0) is None and not told, "it was told to stop"
    restored = again.checkpoint(lost, Saved(), 500, 5.0)
    assert restored is not None and restored[1]["env_steps"] == 100
    time.sleep(0.1)
    again.count_lost_time(restored)
    progress = Progress()
    progress.load(restored[1] | progress.state() | {"wall_sec": 2.0})
    assert 5.1 <= progress.wall_sec < 6.0, "the time since the checkpoint and the pause count, for stop.wall_sec"
    assert "the run begins again at 100 env steps, so 400 env steps are taken once more (1 of 3" in told[0]
    assert again.restarts.state() == [0, 1, 400]
    # The process is lost again, each time after fewer than 100 env steps.
    assert again.checkpoint(lost, Saved(), 150, 5.0) is not None
    with pytest.raises(RunFailed, match="3 times in a row"):
        again.checkpoint(lost, Saved(), 150, 5.0)
    # Others are lost, after more steps, until the budget is spent.
    assert again.checkpoint(ProcessLost("replay-1 was killed by SIGKILL"), Saved(), 900, 5.0) is not None
    with pytest.raises(RunFailed, match=r"failure number 4 within 60 s, and resources\.restarts is 3"):
        again.checkpoint(ProcessLost("replay-1 was killed by SIGKILL"), Saved(), 5000, 5.0)


@pytest.mark.parametrize("limit, most", [(3, 5), (20, 5), (1000, 250)])
def test_a_run_that_never_reaches_its_next_checkpoint_ends(limit, most):
    """Its failures are too far apart for the budget, and too far behind the checkpoint to come back at once."""
    now = [0.0]
    again, saved = Again(Restarts(limit, 600.0, lambda text: None, clock=lambda: now[0]), Signals()), Saved()

    def fails():
        now[0] += 700.0
        assert again.checkpoint(ProcessLost("replay-0 was killed by SIGKILL"), saved, 5100, 5.0) is not None

    for _ in range(3):  # one that saves in between goes on
        saved.updates += 1
        for _ in range(most):
            fails()
    with pytest.raises(RunFailed, match=f"begun again {most} times from its checkpoint at 100 env steps.*checkpoint.every_sec"):
        fails()
