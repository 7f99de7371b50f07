"""Whole sessions: the files of a run, exact resume, damaged checkpoints, signals and stops."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, compose, same
from wired import Wired, checked

from rlrun.cli import _dispatch
from rlrun.commands.train import start
from rlrun.config.run import type_config
from rlrun.config.types import load_yaml, save_yaml
from rlrun.core.callbacks import Callback
from rlrun.core.checkpoint import Checkpoints, verify
from rlrun.core.errors import UserError
from rlrun.core.outputs import go_on_unread
from rlrun.runtime import session
from rlrun.runtime.rundir import RunDir, checkpoints_of
from rlrun.runtime.trained import load


def train(path: Path, *words: str) -> int:
    algo = [] if any(word.startswith("algo=") for word in words) else ["algo=impala"]
    small = (
        [word for word in SMALL if not word.startswith("algo.")]
        if any(word in ("algo=es", "algo=ars") for word in words)
        else SMALL
    )
    values = compose(*algo, *small, f"run_dir={path}", *words)
    config = type_config(values)
    directory = RunDir.create(path)
    save_yaml(values, path / "config.yaml")
    return session.run(checked(config), values, directory, None)


def resume(path: Path, *words: str) -> int:
    from rlrun.commands.resume import main

    return main([str(path), *words])


def tensors(path: Path) -> dict:
    return checkpoints_of(path).load()[0]


REPLAYED = [
    "env=CartPole-v1",
    "algo.learning_starts=50",
    "replay.capacity=120",
    "algo.replay_ratio=2",
    "algo.target_update_interval=7",
]
ACTORS = ["algo.actor.hidden=[8]", "algo.critic.hidden=[8]", "algo.random_steps=20"]
EVOLVED = ["algo.noise_size=5000", "algo.actor.hidden=[4]", "algo.eval_share=0.5"]
ENVS = {
    "vector": ["env=CartPole-v1"],
    "attention": ["env=StatelessCartPole-v0", "model=gtrxl", "model.memory.size=4", "model.memory.length=6"],
    "memory": ["env=StatelessCartPole-v0", "model=lstm", "model.memory.size=4"],
    "box": ["env=Pendulum-v1", "model.share_value=false", "algo.value_lr=1e-3"],
    "sync": ["env=rlrun/Identity-v0", "algo.optimizer.kind=rmsprop", "algo.optimizer.momentum=0.5"],
    "reuse": [
        "env=CartPole-v1",
        "runner.num_sgd_iter=2",
        "runner.minibatch_buffer_size=3",
        "runner.replay_proportion=0.5",
        "runner.replay_slots=4",
    ],
    "evaluated": ["env=CartPole-v1", "eval.every=90", "eval.episodes=2", "eval.greedy=false"],
    "episodes": [
        "env=CartPole-v1",
        "env.max_episode_steps=12",
        "runner=on_policy",
        "runner.complete_episodes=true",
        "model=lstm",
        "model.memory.size=4",
    ],
    "replay": ["algo=dqn", *REPLAYED, "replay=prioritized", "algo.n_step=[1,3]", "algo.input_priorities=true"],
    "noise": ["algo=rainbow", *REPLAYED, "model.observation_filter=mean_std"],
    "disturbed": ["algo=dqn", *REPLAYED, "algo.exploration.kind=parameter_noise", "algo.num_envs=2"],
    "sequences": [
        "algo=r2d2",
        *REPLAYED,
        "algo.burn_in=5",
        "algo.sequence_length=5",
        "algo.sequence_stride=5",
        "model.memory.size=4",
        "model.memory.prev_action=true",
        "model.memory.prev_reward=true",
    ],
    "screens": [
        "algo=c51",
        "env=Breakout",
        "env.size=42",
        "env.noop_max=3",
        "env.max_frames=60",
        *REPLAYED[1:],
        "algo.num_envs=2",
        "replay.compress=true",
    ],
    "q lambda": ["algo=pqn", "env=CartPole-v1", "algo.minibatch_size=10", "model.layer_norm=true"],
    "actor and critics": [
        "algo=td3",
        "env=Pendulum-v1",
        *REPLAYED[1:],
        *ACTORS,
        "algo.exploration.kind=ou",
        "algo.policy_delay=3",
        "algo.num_envs=2",
    ],
    "disturbed actor": [
        "algo=ddpg",
        "env=Pendulum-v1",
        *REPLAYED[1:],
        *ACTORS,
        "algo.exploration.kind=parameter_noise",
        "replay=prioritized",
        "algo.input_priorities=true",
    ],
    "temperature": [
        "algo=sac",
        "env=Pendulum-v1",
        *REPLAYED[1:],
        *ACTORS,
        "algo.n_step=3",
        "model.observation_filter=mean_std",
    ],
    "evolution": ["algo=es", "env=CartPole-v1", *EVOLVED, "algo.episodes_per_batch=8", "algo.env_steps_per_batch=0"],
    "search": ["algo=ars", "env=CartPole-v1", *EVOLVED, "algo.num_rollouts=4", "algo.rollouts_used=2"],
}


@pytest.mark.parametrize("kind", ENVS)
def test_interrupted_and_resumed_equals_uninterrupted_to_the_bit(tmp_path, kind):
    half = 100 if "env=Breakout" in ENVS[kind] else 250 if kind in ("evolution", "search") else 150
    words = [*ENVS[kind], f"checkpoint.every={half}"]
    assert train(tmp_path / "whole", *words, f"env_steps={2 * half}") == 0
    assert train(tmp_path / "parts", *words, f"env_steps={half}") == 0
    assert resume(tmp_path / "parts", f"env_steps={2 * half}") == 0
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert same(whole, parts)
    last = [sorted((tmp_path / name / "checkpoints").glob("0*"))[-1] for name in ("whole", "parts")]
    rows = [{file.name: file.read_bytes() for file in path.glob("replay*")} for path in last]
    assert rows[0] == rows[1] and bool(rows[0]) == ("replay.capacity=120" in words), (
        "replayed rows, priorities, their random stream and the credit too"
    )
    runs = [checkpoints_of(tmp_path / name).load()[1] for name in ("whole", "parts")]
    for name in (
        "env_steps",
        "updates",
        "episodes",
        "generation",
        "best",
        "best_at",
        "saved_best",
        "eval_mean",
        "evaluations",
    ):
        assert runs[0][name] == runs[1][name]


def test_the_same_seed_repeats_and_another_does_not(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(tmp_path / name, "env=CartPole-v1", "env_steps=200", f"seed={seed}")
    a, b, c = (tensors(tmp_path / name)["policy"] for name in "abc")
    assert same(a, b) and not same(a, c)


@pytest.mark.parametrize("kind", ["replay", "evolution"])
def test_two_debug_runs_write_the_same_rows(tmp_path, kind):
    """Except for times. Rows follow env steps, because the clock is never the same twice."""
    made = []
    for name in ("a", "b"):
        assert train(tmp_path / name, *ENVS[kind], "env_steps=600") == 0
        rows = [json.loads(line) for line in (tmp_path / name / "progress.jsonl").read_text().splitlines()]
        assert all({"time_sec", "sample/env_steps_per_sec"} <= row.keys() for row in rows)
        timed = ("time_sec", "time/", "sample/env_steps_per_sec")
        made.append([{key: value for key, value in row.items() if not key.startswith(timed)} for row in rows])
        time.sleep(0.1 * len(made))
    assert made[0] == made[1] and len(made[0]) > (2 if kind == "evolution" else 15)


def test_a_run_that_would_never_log_is_refused():
    with pytest.raises(UserError, match="log_every_sec and log_every_steps are both null"):
        type_config(compose("algo=impala", "env=CartPole-v1", *SMALL, "log_every_steps=null"))


def test_a_run_leaves_its_files_and_refuses_a_second_one(tmp_path):
    path = tmp_path / "run"
    assert train(path, "env=CartPole-v1", "env_steps=400", "log_every_sec=0.01") == 0
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] >= 400 and [r["env_steps"] for r in rows] == sorted(r["env_steps"] for r in rows)
    for key in (
        "time_sec",
        "sample/return_mean",
        "sample/episode_length_mean",
        "sample/env_steps_per_sec",
        "sample/policy_lag",
        "learn/policy_loss",
    ):
        assert key in rows[-1]
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "COMPLETED" and summary["env_steps"] >= 400 and summary["seed"] == 0
    assert {"versions", "git_commit", "hardware", "command", "wall_sec", "return_mean", "eval_return_mean"} <= set(
        summary
    )
    assert not (path / "run.lock").exists()
    with pytest.raises(UserError, match="already holds a run"):
        RunDir.create(path)


def test_a_directory_in_use_is_refused(tmp_path):
    held = RunDir.create(tmp_path)
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        RunDir(tmp_path).acquire()
    held.release()
    RunDir(tmp_path).acquire()


def test_progress_has_no_zigzag_after_a_resume(tmp_path):
    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "env_steps=300", "log_every_sec=0.001")
    with (path / "progress.jsonl").open("a") as file:  # logged between the last checkpoint and a kill
        file.write(json.dumps({"env_steps": 100000, "time_sec": 1.0}) + "\n" + '{"env_steps": 1000')
    resume(path, "env_steps=600")
    steps = [json.loads(line)["env_steps"] for line in (path / "progress.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and 100000 not in steps and steps[-1] >= 600


def test_resume_keeps_schedules_and_refuses_other_changes(tmp_path):
    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "env_steps=200", "algo.lr={start: 0.001, end: 0.0, steps: ${env_steps}}")
    assert load_yaml(path / "config.yaml")["algo"]["lr"]["steps"] == 200
    resume(path, "env_steps=400")
    assert load_yaml(path / "config.yaml")["algo"]["lr"]["steps"] == 200
    for word, said in (
        ("algo.lr=1", "cannot change"),
        ("env_stepss=9", "Did you mean env_steps"),
        ("stop.return_meen=1", "Did you mean stop.return_mean"),
    ):
        with pytest.raises(UserError, match=said):
            resume(path, word)
    with pytest.raises(UserError, match="already at"):
        resume(path)


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory):
    path = tmp_path_factory.mktemp("undamaged") / "run"
    assert train(path, "env=CartPole-v1", "env_steps=200") == 0
    return path


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_checkpoint_is_named_and_never_a_fresh_start(undamaged, tmp_path, damage):
    path = shutil.copytree(undamaged, tmp_path / "run")
    checkpoint = path / "checkpoints" / checkpoints_of(path).names()[-1]
    victim = checkpoint / ("manifest.json" if damage == "manifest" else "algorithm.pt")
    data = bytearray(victim.read_bytes())
    if damage == "remove":
        victim.unlink()
    else:
        data[len(data) // 2] ^= 1
        victim.write_bytes(data[: len(data) // 2] if damage in ("truncate", "manifest") else data)
    with pytest.raises(UserError, match=victim.name):
        resume(path, "env_steps=400")
    with pytest.raises(UserError, match=victim.name):
        load(path)
    assert checkpoints_of(path).names() == [checkpoint.name]


def test_rows_stay_with_the_last_checkpoint_alone_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "run"
    train(path, "algo=dqn", *REPLAYED, "env_steps=400", "checkpoint.every=100")
    names = checkpoints_of(path).names()
    assert len(names) >= 3
    for name in names:
        verify(path / "checkpoints" / name)
        assert (path / "checkpoints" / name / "replay-0.bin").exists() is (name == names[-1])
    file = path / "checkpoints" / names[-1] / "replay-0.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"replay-0\.bin is truncated or altered"):
        resume(path, "env_steps=600")
    file = path / "checkpoints" / names[-1] / "policy.pt"
    file.write_bytes(file.read_bytes()[:100])
    whole = rf"policy\.pt is truncated.*/{names[-2]} is whole: checkpoint={names[-2].lstrip('0')} names it"
    with pytest.raises(UserError, match=whole):
        load(path)
    assert load(path, int(names[-2])).clock.env_steps == int(names[-2])


@pytest.mark.parametrize(
    "change, said", [("replay.capacity=400", "cannot change"), ("algo.batch_size=8", "cannot change")]
)
def test_a_replay_keeps_its_shape(tmp_path, change, said):
    path = tmp_path / "run"
    train(path, "algo=dqn", *REPLAYED, "env_steps=200")
    with pytest.raises(UserError, match=said):
        resume(path, change)


def test_rotation_keeps_the_last_and_the_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for steps, best in ((10, False), (20, True), (30, False), (40, False), (50, False)):
        run = {"metric": steps, "env_steps": steps, "updates": 1}
        checkpoints.save(steps, {"policy": {"x": torch.ones(1)}}, run, best)
    assert [int(name) for name in checkpoints.names()] == [20, 40, 50]
    assert int(checkpoints.best()) == 20
    tensors, run = checkpoints.load("best", parts=("policy",))
    assert run["metric"] == 20 and tensors["policy"]["x"].item() == 1
    assert checkpoints.load("40", parts=())[1]["metric"] == 40
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoints.load("33")


def test_rows_stay_until_others_are_saved(tmp_path):
    """A shard that is lost leaves no rows to be saved; those of the checkpoint before are all that is left then."""
    checkpoints = Checkpoints(tmp_path, keep=9)
    for steps, saved in ((10, True), (20, False), (30, False), (40, True)):
        rows = (lambda folder: (folder / "replay-0.bin").write_bytes(b"rows")) if saved else None
        checkpoints.save(steps, {"policy": {}}, {"env_steps": steps, "updates": 1}, False, rows)
        having = [int(path.parent.name) for path in tmp_path.glob("*/replay-0.bin")]
        assert having == ([40] if steps == 40 else [10])
        assert all(verify(tmp_path / name) is None for name in checkpoints.names())


def test_a_full_disk_costs_a_checkpoint_not_the_run(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.save(10, {"policy": {"x": torch.ones(1)}}, {}, False)
    real = torch.save

    def full(state, path):
        raise RuntimeError("[enforce fail] unexpected pos")

    monkeypatch.setattr(torch, "save", full)
    with pytest.warns(UserWarning, match="left out"):
        assert checkpoints.save(20, {"policy": {}}, {}, False) is None
    monkeypatch.setattr(torch, "save", real)
    assert [int(n) for n in checkpoints.names()] == [10] and not list(tmp_path.glob(".*"))
    verify(tmp_path / checkpoints.names()[0])


def test_a_run_whose_last_checkpoint_is_missing_has_failed(tmp_path, monkeypatch, capfd):
    real, calls = Checkpoints.save, []

    def full(self, env_steps, *args):
        calls.append(env_steps)
        return real(self, env_steps, *args) if len(calls) == 1 else None

    monkeypatch.setattr(Checkpoints, "save", full)
    assert train(tmp_path / "run", "env=CartPole-v1", "checkpoint.every=300", "env_steps=600") == 1
    said = capfd.readouterr()
    assert (
        "FAILED" in said.out
        and "last checkpoint could not be written: the newest one is from 3" in said.err
        and "free some space" in said.err
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "FAILED"


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_exits(tmp_path, number, code, capsys):
    threading.Timer(2.0, lambda: os.kill(os.getpid(), number)).start()
    path = tmp_path / "run"
    assert train(path, "env=CartPole-v1", "env_steps=100000000") == code
    summary = json.loads((path / "summary.json").read_text())
    assert (
        summary["status"] == "INTERRUPTED" and summary["env_steps"] == checkpoints_of(path).load()[1]["env_steps"] > 0
    )
    assert f"INTERRUPTED: {number.name} received; saved at {summary['env_steps']:,} env steps" in capsys.readouterr().out


def test_sigusr1_saves_and_goes_on(tmp_path):
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    assert train(tmp_path / "run", "env=CartPole-v1", "env_steps=100000000", "stop.wall_sec=2") == 0
    assert len(checkpoints_of(tmp_path / "run").names()) == 2


def test_stops(tmp_path):
    def reason(name, *words):
        assert train(tmp_path / name, "env=CartPole-v1", "env_steps=1000000", *words) == 0
        return json.loads((tmp_path / name / "summary.json").read_text())

    assert "mean return" in reason("a", "stop.return_mean=12")["reason"]
    assert "no better" in reason("b", "stop.no_improvement_steps=2000", "algo.lr=0.0")["reason"]
    assert reason("c", "stop.wall_sec=0.5")["status"] == "STOPPED"


def test_a_run_without_an_update_says_why(tmp_path):
    for steps, said in (
        (30, "nothing was learnt, because learning starts after 50 env steps (learning_starts)"),
        (51, "nothing was learnt, because no update was due before the end"),
    ):
        path = tmp_path / str(steps)
        assert train(path, "algo=dqn", *REPLAYED, f"env_steps={steps}") == 0
        assert said in json.loads((path / "summary.json").read_text())["reason"]


BROKEN = """
import rlrun
class Broken(rlrun.Evaluation):
    def evaluate(self, games):
        return {"return_mean": [float("nan"), float("inf"), -float("inf"), 3.0][games.number], "other": float("nan")}
class Once(rlrun.Callback):
    made = 0
    def __init__(self):
        Once.made += 1
        if Once.made > 1:
            raise ValueError("it was made before")
"""


def test_what_is_not_a_number_stays_out_of_the_files_of_a_run(tmp_path, monkeypatch):
    """JSON has no word for it, and it is never the best."""
    (tmp_path / "broken_nan.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    path, steps = tmp_path / "run", 0

    def read(text):
        return json.loads(text, parse_constant=lambda word: pytest.fail(word))

    words = ["env=CartPole-v1", "eval.every=100", "checkpoint.every=100", "checkpoint.keep=9"]
    assert train(path, *words, "eval.function=broken_nan:Broken", "env_steps=300") == 0
    for file in (path / "summary.json", *path.glob("checkpoints/0*/run.json")):
        steps += 1
        said = read(file.read_text())
        assert not any(said.get(name) for name in ("eval_return_mean", "eval_mean", "metric", "saved_best"))
    assert steps == 4 and checkpoints_of(path).best() is None
    assert resume(path, "--trust", "env_steps=400") == 0
    assert checkpoints_of(path).load("best")[1]["metric"] == read((path / "summary.json").read_text())["eval_return_mean"] == 3.0  # fmt: skip


def test_a_run_makes_each_callback_once(tmp_path, monkeypatch):
    """One that opens a file or a connection in __init__ must not do so twice."""
    (tmp_path / "broken_once.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("algo=impala", *SMALL, "env=CartPole-v1", "callbacks=[broken_once:Once]", "env_steps=100")
    assert start(compose(*words, f"run_dir={tmp_path / 'run'}"), {}) == 0
    with pytest.raises(UserError, match="broken_once:Once cannot be made: ValueError: it was made before"):
        start(compose(*words, f"run_dir={tmp_path / 'second'}"), {})
    assert not (tmp_path / "second").exists()


def test_a_session_that_cannot_be_made_has_failed(tmp_path, monkeypatch):
    def broken(*_):
        raise UserError("it cannot be made")

    monkeypatch.setattr("rlrun.runtime.session._imagining", broken)
    path = tmp_path / "run"
    with pytest.raises(UserError, match="it cannot be made"):
        train(path, "env=CartPole-v1", "env_steps=100")
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "FAILED" and "it cannot be made" in summary["reason"]
    assert summary["seed"] == 0 and not [one for one in threading.enumerate() if one.name == "loggers"]


def test_weights_that_compute_something_else_in_another_model_are_noted(tmp_path, capsys):
    train(tmp_path / "first", "env=CartPole-v1", "model.activation=relu", "env_steps=100")
    capsys.readouterr()
    note = f"note: model.activation is tanh, and relu in {tmp_path / 'first'},"
    for activation in ("relu", "tanh"):
        train(tmp_path / activation, "env=CartPole-v1", f"model.activation={activation}", f"init={tmp_path / 'first'}", "env_steps=100")  # fmt: skip
        said = capsys.readouterr().out
        assert f"begins with the weights of {tmp_path / 'first'}" in said and (note in said) == (activation == "tanh")


def test_evaluation_during_training_judges_best(tmp_path):
    path = tmp_path / "run"
    train(
        path,
        "env=CartPole-v1",
        "env_steps=900",
        "eval.every=300",
        "eval.episodes=3",
        "checkpoint.every=300",
        "checkpoint.keep=9",
    )
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    assert sum("eval/return_mean" in row for row in rows) == 3
    best = checkpoints_of(path).load("best")[1]
    assert best["eval_mean"] == max(row["eval/return_mean"] for row in rows if "eval/return_mean" in row)


def test_a_resumed_run_that_begins_to_evaluate_forgets_the_best_training_return(tmp_path):
    """The two cannot be compared, and a best that no evaluation exceeds would stay the best for ever."""
    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "env_steps=600", "checkpoint.every=200", "episode_window=3")
    run = checkpoints_of(path).load()[1]
    run_json = path / "checkpoints" / checkpoints_of(path).names()[-1] / "run.json"
    _rewrite(run_json, {**run, "best": 1e6, "saved_best": 1e6})
    assert resume(path, "env_steps=1200", "eval.every=200", "eval.episodes=2") == 0
    last = checkpoints_of(path).load()[1]
    assert last["judged_by"] == "evaluations" and 0 < last["saved_best"] <= last["best"] < 1e6
    assert resume(path, "env_steps=1400") == 0
    assert checkpoints_of(path).load()[1]["best"] >= last["best"], "nothing is forgotten where nothing has changed"


def test_what_a_checkpoint_does_not_say_is_a_sentence_and_rows_are_read_by_runs_alone(tmp_path):
    path = tmp_path / "run"
    train(path, "algo=dqn", "env=CartPole-v1", "env_steps=200", "algo.learning_starts=50", "algo.num_envs=1")
    place = path / "checkpoints" / checkpoints_of(path).names()[-1]
    rows = next(place.glob("replay-*.bin"))
    rows.write_bytes(rows.read_bytes()[:-1])
    checkpoints_of(path).load(parts=("policy",))  # as rlrun evaluate does, also beside a run that removes rows
    with pytest.raises(UserError, match="truncated"):
        checkpoints_of(path).load()
    run = json.loads((place / "run.json").read_text())
    del run["updates"]
    _rewrite(place / "run.json", run)
    with pytest.raises(UserError, match="cannot be read"):
        checkpoints_of(path).load(parts=("policy",))


def _rewrite(file, run):
    """Changes a checkpoint's run.json and its digest."""
    file.write_text(json.dumps(run))
    manifest = json.loads((file.parent / "manifest.json").read_text())
    manifest["sha256"]["run.json"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (file.parent / "manifest.json").write_text(json.dumps(manifest))


def test_a_killed_sampler_fails_the_run_everywhere(tmp_path):
    """Seen from outside: exit code 1 within seconds, FAILED in summary.json, and no process left."""
    path = tmp_path / "run"
    words = ["algo=impala", "env=rlrun/Counting-v0", "resources.inference=local", "resources.num_samplers=2", "resources.device=cpu",
             "logger=[console]", f"run_dir={path}", "env_steps=100000000", "resources.restarts=0"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "rlrun", "train", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    import psutil

    victims: list = []
    deadline = time.monotonic() + 60
    while not (path / "progress.jsonl").exists() or not (path / "progress.jsonl").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    server = next(child for child in children if "forkserver" in " ".join(child.cmdline()))
    victims = server.children()
    assert len(victims) == 2
    victims[1].kill()
    started = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - started < 10 and process.returncode == 1
    assert "sampler-" in errors and "SIGKILL" in errors
    assert json.loads((path / "summary.json").read_text())["status"] == "FAILED"
    (saved,) = checkpoints_of(path).names()
    verify(path / "checkpoints" / saved)  # what it had learnt is saved
    _, alive = psutil.wait_procs(children, timeout=5)  # the resource tracker ends a moment after its parent
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


CLOSES = """
import pathlib, gymnasium, numpy
class Env(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        return numpy.zeros(2, numpy.float32), 1.0, bool(self.np_random.random() < 0.1), False, {}
    def close(self):
        with open(pathlib.Path(__file__).parent / "closed", "a") as file:
            file.write("x")
"""


def test_signals_to_the_whole_group_reach_the_run_alone_and_environments_are_closed(tmp_path):
    """SIGUSR1 saves, and SIGHUP, which a closed terminal sends, saves and ends the run."""
    (tmp_path / "closes.py").write_text(CLOSES)
    path = tmp_path / "run"
    words = ["algo=ppo", "env=closes:Env", "resources.inference=local", "resources.num_samplers=2", "algo.batch_size=256", "algo.fragment_length=64",
             "logger=[console]", f"run_dir={path}", "env_steps=100000000", "checkpoint.every=null", "checkpoint.first_sec=null"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "rlrun", "train", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # it is ignored where the tests run under nohup
    )  # fmt: skip
    try:
        _wait(process, lambda: (path / "progress.jsonl").exists() and (path / "progress.jsonl").read_text())
        opened = (tmp_path / "closed").read_text() if (tmp_path / "closed").exists() else ""
        os.killpg(process.pid, signal.SIGUSR1)
        _wait(process, lambda: checkpoints_of(path).names())
        os.killpg(process.pid, signal.SIGHUP)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 129 and "INTERRUPTED: SIGHUP received" in out and "new process" not in out
    assert json.loads((path / "summary.json").read_text())["status"] == "INTERRUPTED"
    assert len((tmp_path / "closed").read_text()) - len(opened) == 4


def _wait(process, until):
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)


def test_an_env_that_fails_in_the_runs_own_process_is_one_sentence(tmp_path, capfd):
    path = tmp_path / "run"
    assert train(path, "env=rlrun/Counting-v0", "++env.kwargs.fail_at=30") == 1
    (said,) = capfd.readouterr().err.splitlines()
    assert re.match(r"rlrun: rlrun/Counting-v0, env \d+ \(seed \d+\) failed in step 30 on action \d: Runtime", said)
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "FAILED" and f"rlrun: {summary['reason']}" == said


def test_a_hang_in_the_runs_own_process_is_survived_or_ends_the_run(tmp_path, capfd):
    """Python code that hangs is interrupted. The environment is made anew, or the run fails and has saved its state."""
    faults = [f"++env.kwargs.{word}" for word in ("fail_at=30", "fault=hang", f"once={tmp_path / 'hung'}")]
    words = ["env=rlrun/Counting-v0", *faults, "env.step_timeout_sec=0.5", "resources.inference=serial", "env_steps=400"]
    words += ["resources.exact=false", "checkpoint.every=null", "model.observation_filter=mean_std"]  # nothing is tried
    assert train(tmp_path / "survives", *words, "resources.restarts=1") == 0
    assert re.search(r"failed in step 30 .*Hang: hangs: it has been in step\(\) for .*made anew", capfd.readouterr().out)
    (tmp_path / "hung").unlink()
    assert train(tmp_path / "fails", *words) == 1
    out, errors = capfd.readouterr()
    steps = int(re.search(r"what it had learnt after (\d+) env steps is saved", out)[1])
    assert "Traceback" not in errors and "failed in step 30" in errors
    assert checkpoints_of(tmp_path / "fails").load()[1]["env_steps"] == steps > 0
    assert resume(tmp_path / "fails") == 0


@pytest.mark.parametrize(
    ("command", "event"),
    [(True, "on_start"), (True, "on_end"), (False, "on_start")],
    ids=["a command", "a command's last words", "a Python program"],
)
def test_a_run_whose_output_nobody_reads_any_more(tmp_path, monkeypatch, capfd, command, event):
    """It trains to its end and closes its loggers. A Python program's outputs stay its own."""
    reads, writes = os.pipe()

    class Leaves(Callback):
        pass

    setattr(Leaves, event, lambda self, given: os.close(reads))

    words = ["env=CartPole-v1", "resources.inference=serial", "resources.exact=false", "checkpoint.every=null", "log_every_steps=100", "logger=[console]"]
    monkeypatch.setattr(session, "make_callbacks", lambda *given: [Leaves()])
    output = os.fdopen(writes, "w")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", output)
    if command:
        go_on_unread()
    assert train(tmp_path, *words, "env_steps=400") == 0
    with suppress(BrokenPipeError):
        output.close()
    summary = json.loads((tmp_path / "summary.json").read_text())
    last = json.loads((tmp_path / "progress.jsonl").read_text().splitlines()[-1])
    assert [int(name) for name in checkpoints_of(tmp_path).names()] == [summary["env_steps"]] == [last["env_steps"]]
    assert summary["status"] == "COMPLETED" and summary["env_steps"] >= 400
    assert capfd.readouterr().err.count(f"the run goes on (Ctrl-C saves and ends it); {tmp_path}") == (command and event == "on_start")


def test_a_short_run_whose_later_updates_changed_nothing_has_failed(tmp_path, capfd):
    words = ["algo=a2c", "env=CartPole-v1", "algo.lr=1e30", "resources.inference=serial", "logger=[]", f"run_dir={tmp_path / 'run'}"]
    assert _dispatch(["train", *words, "env_steps=800"]) == 1  # 5 updates
    assert "updates in a row had a non-finite gradient" in capfd.readouterr().err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "FAILED"
    assert checkpoints_of(tmp_path / "run").names() == []


def test_what_a_diverged_learner_has_learnt_is_not_saved(tmp_path, capfd):
    """Its last checkpoint is better, and would rotate out after a few tries to resume."""
    words = ["algo=ppo", "env=CartPole-v1", "algo.lr=1e30", "checkpoint.every=null", "resources.inference=serial", "logger=[]"]
    assert _dispatch(["train", *words, "env_steps=1000000", f"run_dir={tmp_path / 'run'}"]) == 1
    out, errors = capfd.readouterr()
    assert "non-finite gradient" in errors and "what it had learnt" not in out
    assert checkpoints_of(tmp_path / "run").names() == []


@pytest.mark.parametrize(
    "words",
    [
        ["algo=apex", "algo.inner.learning_starts=20", "algo.inner.num_envs=2", "algo.inner.fragment_length=5", "resources.num_samplers=1"],
        ["algo=dqn", "runner=async_gradients", "resources.num_learners=2", "algo.learning_starts=20", "algo.num_envs=2"],
    ],
    ids=["shards", "processes that learn"],
)
def test_a_failure_saves_what_was_learnt_where_a_replay_is_in_other_processes(tmp_path, capfd, words):
    path = tmp_path / "run"
    words = [*words, "env=rlrun/Counting-v0", "replay.capacity=1000", "model.hidden=[8]", "logger=[console]", "env_steps=100000000"]
    words += ["++env.kwargs.fail_at=300", f"++env.kwargs.once={tmp_path / 'failed'}", "resources.restarts=0", "resources.device=cpu", "checkpoint.every=null"]
    assert _dispatch(["train", *words, f"run_dir={path}"]) == 1
    out, errors = capfd.readouterr()
    assert "this env was told to fail" in errors and "Traceback" not in errors
    assert json.loads((path / "summary.json").read_text())["status"] == "FAILED"
    steps, how = re.search(r"what it had learnt after (\d+) env steps is saved(, without its replay)?: rlrun resume", out).groups()
    assert bool(how) == ("algo=dqn" in words), "the processes that fail hold a part of it"
    assert _dispatch(["resume", str(path), f"env_steps={int(steps) + 400}"]) == 0
    assert ("the replay begins anew" in capfd.readouterr().out) == bool(how)


def test_a_new_run_saves_early_without_its_replay(tmp_path):
    path = tmp_path / "run"
    assert train(path, "algo=dqn", *REPLAYED, "env_steps=600", "checkpoint.first_sec=0.001", "checkpoint.keep=9") == 0
    first, *_, last = checkpoints_of(path).names()
    assert 0 < int(first) < 600 <= int(last)
    assert not list((path / "checkpoints" / first).glob("*.bin")) and list((path / "checkpoints" / last).glob("*.bin"))
    assert checkpoints_of(path).load(first, parts=("policy", "algorithm"))[1]["env_steps"] == int(first)


def test_a_loaded_policy_acts_as_it_was_trained(tmp_path):
    import gymnasium

    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "env_steps=300")
    trained = load(path)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    action = trained.act(obs)
    assert env.action_space.contains(action)
    assert trained.act(obs[None].repeat(3, 0)).shape == (3,)
    with pytest.raises(ValueError, match="shape"):
        trained.act(obs[:2])
    env = trained.make_env(seed=1)
    obs, _ = env.reset()
    total = 0.0
    for _ in range(500):
        obs, reward, terminated, truncated, _ = env.step(trained.act(obs))
        total += reward
        if terminated or truncated:
            break
    assert 1 <= total <= 500 and (terminated or truncated)
    env.close()
    same_again = {k: torch.equal(v, tensors(path)["policy"][k]) for k, v in trained.policy.state_dict().items()}
    assert same_again and all(same_again.values())


def test_load_works_as_often_as_it_is_called(tmp_path):
    import rlrun

    train(tmp_path / "run", "env=CartPole-v1", "env_steps=200")
    assert rlrun.load(tmp_path / "run").clock == rlrun.load(tmp_path / "run").clock
    from rlrun import load as function

    assert callable(function)


def test_a_run_without_a_checkpoint_says_what_can_be_done(tmp_path):
    train(tmp_path / "run 1", "env=CartPole-v1", "env_steps=200")
    with pytest.raises(UserError, match=r"rlrun resume '.*run 1', or choose"):
        RunDir.create(tmp_path / "run 1")
    shutil.rmtree(tmp_path / "run 1" / "checkpoints")
    with pytest.raises(UserError, match="ended before its first checkpoint"):
        RunDir.create(tmp_path / "run 1")
    with pytest.raises(UserError, match="ended before its first save"):
        resume(tmp_path / "run 1", "env_steps=400")
    with (tmp_path / "run 1" / "run.lock").open("w") as lock:  # as another process holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"process {os.getpid()} on another-container")
        lock.flush()
        with pytest.raises(UserError, match="still going on and has saved nothing yet; wait for its first checkpoint"):
            load(tmp_path / "run 1")
    (tmp_path / "run 1" / "run.lock").unlink()
    for words, said in (
        ("logger=[consol]", "There is no logger 'consol'. Did you mean console"),
        ("logger.mlflow.experiment=x", "logger.mlflow.experiment is an option of the logger mlflow"),
        ("resources=debug", "cannot be chosen anew"),
        ("env_stepss=4", "Did you mean env_steps"),
    ):
        with pytest.raises(UserError, match=said):
            resume(tmp_path / "run 1", words)


def test_loggers_are_chosen_anew(tmp_path, capsys):
    """On resume and with --from-run, as rlrun train takes it; a logger that is kept keeps its options."""
    from rlrun.commands.train import main as train_again

    path, again = tmp_path / "run", tmp_path / "again"
    train(path, "env=CartPole-v1", "env_steps=100", "logger=[console,tensorboard]")
    for words, expected in (
        (["logger=[]"], {}),
        (["logger.tensorboard.enabled=false", "logger=[console,tensorboard]"], {"console": True, "tensorboard": False}),
        (["logger=tensorboard"], {"tensorboard": False}),
        (["logger=[console]"], {"console": True}),
    ):
        steps = load_yaml(path / "config.yaml")["env_steps"] + 100
        capsys.readouterr()
        assert resume(path, f"env_steps={steps}", *words) == 0
        logger = load_yaml(path / "config.yaml")["logger"]
        assert {name: node["enabled"] for name, node in logger.items()} == expected
        assert ("steps  " in capsys.readouterr().out) == bool(expected.get("console"))
    assert len(list(path.glob("events.*"))) == 1, "of the first session alone"
    for words in (["--plan"], []):  # a plan starts nothing
        assert not again.exists()
        assert train_again([*words, "--from-run", str(path), "logger=[]", f"run_dir={again}", "env_steps=100"]) == 0
    assert load_yaml(again / "config.yaml")["logger"] == {}


def test_exact_resume_with_other_columns_is_refused(tmp_path):
    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "env_steps=200")
    assert resume(path, "env_steps=400", "resources.envs_per_sampler=2") == 1
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "FAILED" and summary["reason"].startswith("exact resume needs")


def test_a_stream_of_another_device_begins_anew(tmp_path):
    made = Wired(type_config(compose("algo=impala", "env=CartPole-v1", *SMALL))).algorithm()
    state = made.state()
    before = made.ctx.rng.get_state()
    with pytest.warns(UserWarning, match="another kind of device"):
        made.load_state({**state, "rng": torch.zeros(16, dtype=torch.uint8)})
    assert torch.equal(made.ctx.rng.get_state(), before)


def test_a_worker_that_is_being_born_does_not_die_of_ctrl_c():
    """At every moment it blocks or ignores SIGINT and SIGTERM, and so does the process that it is forked from. The first
    worker also starts multiprocessing's resource tracker, which unblocks SIGINT."""
    code = """
from multiprocessing.connection import Connection
import psutil
from rlrun.dataflow.workers import Worker
def held(pid):
    lines = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    return int(lines["SigBlk"], 16) | int(lines["SigIgn"], 16)
if __name__ == "__main__":
    worker = Worker("w", Connection.recv, ())
    looks = [held(pid) for _ in range(300) for pid in (worker.process.pid, psutil.Process(worker.process.pid).ppid())]
    worker.process.kill()
    print(all(look & 2 and look & 1 << 14 for look in looks))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "True\n", ran.stderr


def test_an_env_whose_observations_do_not_fit_is_named(tmp_path):
    import gymnasium

    class Wrong(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(5, dtype=np.float32), {}

    gymnasium.register("Wrong-v0", entry_point=Wrong, disable_env_checker=True)
    with pytest.raises(UserError, match=r"Wrong-v0, env \d+ .* failed in reset: .* \(5,\), .*Box\(\[3\].*check-env"):
        type_and_wire("env=Wrong-v0")
    from rlrun.commands.watch import main as watch

    path = tmp_path / "run"
    gymnasium.register("Blind-v0", entry_point="rlrun.envs.debug:Identity", disable_env_checker=True)
    train(path, "env=Blind-v0", "env_steps=100")
    with pytest.raises(UserError, match="cannot draw itself"):
        watch([str(path)])


def type_and_wire(*words: str):
    return checked(type_config(compose("algo=impala", "logger=[]", *words)))


def test_a_loaded_policy_remembers_one_batch_at_a_time(tmp_path):
    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "model=lstm", "model.memory.size=4", "env_steps=200")
    trained, obs = load(path), np.zeros((2, 4), dtype=np.float32)
    assert trained.act(obs).shape == trained.act(obs).shape == (2,)
    with pytest.raises(ValueError, match="remembers 2 episodes and is given 1"):
        trained.act(obs[0])
    trained.reset()
    assert trained.act(obs[0]).shape == ()


def test_a_loaded_atari_policy_takes_raw_screens(tmp_path):
    pytest.importorskip("ale_py")
    path = tmp_path / "run"
    train(path, "env=Pong", "env_steps=100")
    trained = load(path)
    env = trained.make_env()
    obs, _ = env.reset()
    assert env.action_space.contains(int(trained.act(obs)))
    obs, _, terminated, _, _ = env.step(trained.act(obs))
    assert obs.shape == (4, 84, 84) and not terminated
    env.close()
    rng = np.random.default_rng(0)
    screens = rng.integers(256, size=(5, 210, 160, 3), dtype=np.uint8)
    for screen in screens:
        action = trained.act(screen)
    stacked = trained.screens.frames.copy()
    trained.reset()
    assert action == trained.act(stacked) and stacked.std(axis=(1, 2)).min() > 0
    trained.reset()
    for begins, held in ((True, 1), (False, 2), (True, 1), (False, 2), (False, 3)):
        trained.reset(np.array([begins]))
        trained.act(screens[held])
        assert trained.screens.frames.any(axis=(1, 2)).tolist() == [False] * (4 - held) + [True] * held
    for begins in (True, False):  # the second call must not take the first one back
        trained.reset(np.array([begins]))
    trained.act(screens[0])
    assert trained.screens.frames.any(axis=(1, 2)).tolist() == [False] * 3 + [True]
    trained.reset(np.array([True, False]))
    with pytest.raises(ValueError, match="a raw screen is of one game, and reset\\(\\) was told of 2"):
        trained.act(screens[0])
    assert trained.act(np.stack([stacked, stacked])).shape == (2,), "two games whose frames were stacked elsewhere"
    with pytest.raises(ValueError, match="not float32"):
        trained.act(stacked.astype(np.float32) / 255)


def test_a_run_past_its_best_does_not_save_all_the_time(tmp_path, monkeypatch):
    """Regression test: after an unsaved peak, a falling metric caused a save at every update."""
    from rlrun.core.duties import Saves

    metrics = {0: 10.0, 1: 50.0}  # by updates; it falls from the third on
    monkeypatch.setattr(
        Saves, "metric", property(lambda self: metrics.get(n := self.progress.clock.updates, 5.0 - 0.001 * n))
    )
    saved = []
    original = Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, steps, *rest: saved.append(steps) or original(self, steps, *rest)
    )
    train(tmp_path / "run", "env=CartPole-v1", "env_steps=3000", "checkpoint.best_every_sec=0.05")
    assert 1 <= len(saved) <= 3


def test_best_is_what_best_json_names(tmp_path):
    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "env_steps=4000", "checkpoint.best_every_sec=0.01", "checkpoint.keep=2")
    best = json.loads((path / "checkpoints" / "best.json").read_text())
    run = checkpoints_of(path).load("best")[1]
    assert int(best["name"]) == run["env_steps"] and best["metric"] == run["metric"] == run["saved_best"]
    assert checkpoints_of(path).load("last")[1]["saved_best"] == best["metric"]


def test_the_best_weights_stay_though_later_updates_of_the_same_env_steps_are_saved(tmp_path, monkeypatch):
    """A run that goes back to them leaves the later ones behind."""
    from rlrun.core.duties import Saves

    path, real, seen = tmp_path / "run", Checkpoints.save, {}
    monkeypatch.setattr(
        Saves, "metric", property(lambda self: None if (n := self.progress.clock.updates) < 5 else float(-n))
    )

    def save(self, env_steps, tensors, run, best, *rest):
        if best:
            seen[run["updates"]] = {name: value.clone() for name, value in tensors["policy"].items()}
        return real(self, env_steps, tensors, run, best, *rest)

    monkeypatch.setattr(Checkpoints, "save", save)
    words = [*REPLAYED, "checkpoint.every_sec=0", "checkpoint.keep=99"]
    assert train(path, "algo=dqn", *words, "env_steps=120") == 0
    best, checkpoints = load(path, "best"), checkpoints_of(path)
    assert best.clock.updates == 5 and list(seen) == [5] and same(seen[5], dict(best.policy.state_dict()))
    name = f"{best.clock.env_steps:012d}"
    later = checkpoints.load(name, parts=("policy",))
    assert later[1]["updates"] > 5 and not same(seen[5], later[0]["policy"])
    assert resume(path, "checkpoint=best", "checkpoint.every_sec=null") == 0
    behind = Checkpoints(path / "left_behind" / "1", keep=1).load(name, parts=("policy",))
    assert same(behind, later) and not (path / "checkpoints" / f"best-{name}").exists()
    assert checkpoints.best() == name and same(seen[5], checkpoints.load(name)[0]["policy"])


@pytest.mark.parametrize("before, after", [("serial", "serial"), ("local", "serial"), ("serial", "local")])
def test_a_resume_may_change_resources_and_columns_begin_anew(tmp_path, before, after):
    path = tmp_path / "run"
    common = ["resources.exact=false", "resources.num_samplers=2", "resources.envs_per_sampler=2"]
    train(
        path,
        "env=StatelessCartPole-v0",
        "model=lstm",
        "model.memory.size=4",
        f"resources.inference={before}",
        *common,
        "env_steps=200",
    )
    assert resume(path, "env_steps=500", f"resources.inference={after}") == 0
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] >= 500


def test_few_slots_never_leave_the_learner_waiting(tmp_path):
    """There is one sampler with one request in flight, and a batch needs four fragments."""
    words = [
        "resources.exact=false",
        "resources.inference=local",
        "resources.num_samplers=1",
        "resources.envs_per_sampler=1",
    ]
    replay = ["runner.requests_in_flight=1", "runner.replay_proportion=0.5", "runner.replay_slots=3"]
    assert (
        train(tmp_path / "run", "env=CartPole-v1", *words, *replay, "runner.queue_timeout_sec=20", "env_steps=300") == 0
    )


def test_a_wrong_option_does_not_stay_in_a_run(tmp_path):
    path = tmp_path / "run"
    train(path, "env=CartPole-v1", "env_steps=200")
    with pytest.raises(UserError, match="CUDA devices"):
        resume(path, "env_steps=400", "resources.exact=false", "resources.inference=local", "resources.device=cuda:9")
    assert resume(path, "env_steps=400") == 0
