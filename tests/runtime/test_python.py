"""rlrun from Python does what the commands do: options, sentences, callbacks, interruptions, and every example of docs/python.md."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import hydra
import numpy as np
import pytest
import torch
from conftest import small
from gymnasium.envs.classic_control import CartPoleEnv
from hydra.core.global_hydra import GlobalHydra

import rlrun
from rlrun.config import saved
from rlrun.config.types import load_yaml
from rlrun.config.words import words_of
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, leaves
from rlrun.runtime import carried
from rlrun.runtime.carried import guarded, named, to_carry
from rlrun.runtime.quiet import printing
from rlrun.runtime.trained import fitting

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"resources": "debug", "logger": [], "model": {"hidden": (8,)}, "quiet": True}
ALGO = {"name": "pg", "fragment_length": 5, "batch_size": 20}


class Mine(CartPoleEnv):
    """An environment of a user's module."""


def train(path, env="CartPole-v1", **options):
    return rlrun.train(ALGO, env, run_dir=path, **{"env_steps": 200, **QUICK, **options})


# -- options -----------------------------------------------------------------------------------------------------------


def test_words_are_those_of_the_command_line():
    given = {
        "algo": {"name": "ppo", "lr": 3e-4, "discount": np.float64(0.9)},
        "env": {"name": "Pong", "size": 42, "kwargs": {"mode": None}},
        "model": {"hidden": (32, 32), "activation": "tanh"},
        "env_steps": "1M",
        "resources": "debug",
        "eval.greedy": False,
        "run_dir": Path("runs/a b"),
        "record": "10",
        "stop": {"return_mean": -5},
        "data": {"path": {"one": 0.5}},
    }
    assert words_of(given) == [
        "algo=ppo", "env=Pong", "resources=debug", "algo.lr=0.0003", "algo.discount=0.9", "env.size=42", "env.kwargs.mode=null",
        "model.hidden=[32,32]", "model.activation=tanh", "env_steps=1M", "eval.greedy=false", "run_dir='runs/a b'",
        "record=10", "stop.return_mean=-5", "data.path={one:0.5}",
    ]  # fmt: skip
    assert words_of({"algo": {"lr": {"start": 1, "end": 0, "steps": 10}}}) == ["algo.lr={start:1,end:0,steps:10}"]
    with pytest.raises(rlrun.UserError, match=r"algo\.lr cannot be <object"):
        words_of({"algo": {"lr": object()}})


def test_a_policy_comes_back_and_the_run_is_the_command_s(tmp_path):
    path = tmp_path / "run"
    before = torch.get_num_threads()
    policy = train(path, seed=3, overrides=["algo.lr=0.005"], env_steps="0.2k")
    assert torch.get_num_threads() == before
    assert isinstance(policy, rlrun.Trained) and policy.run_dir == path and policy.clock.env_steps >= 200
    config = policy.config
    assert (config.run.seed, config.algo.name, config.run.env_steps, config.run.model.hidden) == (3, "pg", 200, (8,))
    assert policy.summary["status"] == "COMPLETED" and policy.rows[-1]["env_steps"] == policy.clock.env_steps
    assert policy.summary["command"].startswith("rlrun train algo=pg env=CartPole-v1")
    assert policy.act(np.zeros(4, dtype=np.float32)) in (0, 1)


def test_what_act_is_given_is_checked_part_by_part(tmp_path):
    """A wrong observation would give an action all the same, and a mistyped mode one that explores."""
    policy = train(tmp_path / "run", "rlrun/EverySpace-v0", env_steps=40)
    obs, _ = policy.make_env().reset()
    policy.act(obs), policy.act(obs, "explore")
    paths = [path for path, _ in leaves(policy.spec.observation)]
    assert len(paths) == 4

    def changed(tree, path, change):
        if not path:
            return change(tree)
        if isinstance(tree, tuple):
            return tuple(changed(part, path[1:], change) if i == int(path[0]) else part for i, part in enumerate(tree))
        return {name: changed(part, path[1:], change) if name == path[0] else part for name, part in tree.items()}

    for path, space in leaves(policy.spec.observation):
        for wrong, said in ((lambda part: np.zeros((7, 7, 7, 7)), "shape"), (lambda part: "text", "holds numbers, not")):
            with pytest.raises(ValueError, match=f"{re.escape('.'.join(path))} of an observation.*{said}"):
                policy.act(changed(obs, path, wrong))
        if not space.field.dtype.is_floating_point:
            with pytest.raises(ValueError, match="holds whole numbers"):
                policy.act(changed(obs, path, lambda part: np.asarray(part) + 0.5))
            for far in (-100, 100):  # these would count from the other end, or be another number
                with pytest.raises(ValueError, match=f"{re.escape('.'.join(path))} of an observation.* cannot hold"):
                    policy.act(changed(obs, path, lambda part, far=far: np.asarray(part).astype(np.int64) + far))
        if isinstance(obs, dict):
            with pytest.raises(ValueError, match="is missing"):
                policy.act({name: part for name, part in obs.items() if name != path[0]})
    if isinstance(obs, dict):
        for wrong in (np.zeros(3), None, "x"):
            with pytest.raises(ValueError, match=f"an observation of .*Dict.*, and not {type(wrong).__name__}"):
                policy.act(wrong)
    for mode in ("gredy", True, None):
        with pytest.raises(ValueError, match="'explore' or 'greedy', not"):
            policy.act(obs, mode)
    steps = policy.clock.env_steps
    assert rlrun.load(tmp_path / "run", steps).clock.env_steps == steps
    assert rlrun.load(tmp_path / "run", f"{steps:_}").clock.env_steps == steps
    for wrong in (2.5, True, steps + 1, ""):
        with pytest.raises(rlrun.UserError, match="checkpoint"):
            rlrun.load(tmp_path / "run", wrong)
    with pytest.raises(rlrun.UserError, match="a run is given by its directory, not by None"):
        rlrun.load(None)


@pytest.mark.parametrize("space, good, wrong", [
    (Box(shape=(2, 2, 1), dtype="uint8", low=(0,), high=(255,)), (0, 255), (-1, 300)),
    (Box(shape=(2,), dtype="int16", low=(-9,), high=(9,)), (-32768, 32767), (-32769, 32768)),
    (Box(shape=(2,), dtype="bool", low=(0,), high=(1,)), (0, 1), (-1, 2)),
    (Discrete(n=3, start=5), (5, 7), (4, 8)),
    (MultiDiscrete(sizes=(3, 9), starts=(-1, -1), shape=(2,)), (-1, 1), (-2, 2)),
    (MultiBinary(shape=(2,)), (0, 1), (-1, 2)),
])  # fmt: skip
def test_whole_numbers_that_an_observation_cannot_hold_are_refused(space, good, wrong):
    """They would wrap around, as 300 does to 44 in a uint8."""
    spec = EnvSpec(name="x", obs={"observation": space}, action=Discrete(n=2))
    for value in good:
        assert fitting(spec, np.full(space.field.shape, value)) is None
    for value in wrong:
        with pytest.raises(ValueError, match=f"cannot hold {value} to {value}: it is "):
            fitting(spec, np.full(space.field.shape, value))


@pytest.mark.parametrize("options, said", [
    ({"env_stepss": 4}, "env_steps"),
    ({"algo": {"name": "pppo"}}, "ppo"),
    ({"env_steps": "1Q"}, "k, M and G stand for"),
    ({"overrides": "env_steps=4"}, "overrides is a list of words"),
    ({"overrides": ["env_steps"]}, "not of the form key=value"),
    ({"callback": 3}, "callback is a function"),
    ({"env": "CartPol-v1"}, "CartPole"),
    ({"run_dir": ""}, "run_dir must be .*a text that is not empty.* or null, not ''"),
])  # fmt: skip
def test_what_is_wrong_gets_the_command_s_sentence_and_no_run(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"algo": ALGO, "env": "CartPole-v1", **QUICK, **options}
    with pytest.raises(rlrun.UserError, match=said):
        rlrun.train(**given)
    assert not (tmp_path / "runs").exists()


# -- callbacks, interruptions ------------------------------------------------------------------------------------------


def test_numbers_of_numpy_and_tuples_are_values_everywhere(tmp_path):
    train(tmp_path / "run")
    rlrun.resume(tmp_path / "run", env_steps=np.int64(300), logger=("console",), quiet=True)
    told = rlrun.evaluate(tmp_path / "run", episodes=np.int64(2), seed=torch.tensor(1))
    assert told["episodes"] == 2 and told["seed"] == 1 and told["checkpoint_env_steps"] >= 300


@pytest.mark.parametrize(
    "flags, said",
    (
        ({"jobs": "2"}, "jobs must be a whole number, not '2'"),
        ({"timeout": "1h"}, "timeout must be a number, not '1h'"),
        ({"trials": 2.5}, r"trials must be a whole number, not 2\.5"),
        ({"prune": 1}, "prune must be True or False, not 1"),
        ({"search": ""}, "search must not be an empty text"),
        ({"jobs": np.int64(0)}, "--jobs must be at least 1"),
    ),
)
def test_flags_of_a_sweep_are_checked(flags, said, tmp_path):
    with pytest.raises(rlrun.UserError, match=said):
        rlrun.sweep("pg", "CartPole-v1", dir=tmp_path / "sweep", **flags)
    assert not (tmp_path / "sweep").exists()


def test_a_folder_of_ones_own_options(tmp_path, monkeypatch):
    """As --config-dir and --trust name it, in train() and in sweep()."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "mine" / "tuned" / "pg"
    own.mkdir(parents=True)
    (tmp_path / "poles_of_mine.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\nclass Pole(CartPoleEnv):\n    pass\n"
    )
    text = "# @package _global_\ndefaults: [{override /env: 'poles_of_mine:Pole'}, {override /algo: pg}]\nalgo: {lr: 0.0123}\n"
    (own / "pole.yaml").write_text(text)
    mine, few = tmp_path / "mine", {"tuned": "pg/pole", "env_steps": 300, "resources": {"name": "debug"}, "quiet": True}
    with pytest.raises(rlrun.UserError, match="poles_of_mine is not part of an installed package"):
        rlrun.train(config_dir=mine, run_dir=tmp_path / "run", **few)
    policy = rlrun.train(config_dir=mine, trust=True, run_dir=tmp_path / "run", **few)
    assert policy.config.env.name == "poles_of_mine:Pole" and policy.config.algo.lr(policy.clock) == 0.0123
    (one,) = rlrun.sweep(config_dir=str(mine), trust=True, dir=tmp_path / "sweep", **few)
    assert one["status"] == "COMPLETED" and load_yaml(one["run_dir"] / "config.yaml")["algo"]["lr"] == 0.0123
    for given, said in (({"trust": True}, "there are none"), ({"config_dir": 3}, "not 3"), ({"config_dir": "no"}, "no such")):
        for function in (rlrun.train, rlrun.sweep):
            with pytest.raises(rlrun.UserError, match=said):
                function("pg", "CartPole-v1", **given)


def test_a_callback_sees_every_row_and_can_end_the_run(tmp_path, capsys):
    rows = []

    def look(row):
        rows.append(row)
        print("a row")
        return np.float64(len(rows)) < 3

    policy = train(tmp_path / "run", env_steps="1M", log_every_steps=20, callback=look)
    assert policy.summary["status"] == "STOPPED" and policy.summary["reason"] == "the callback returned False"
    assert rows == policy.rows[: len(rows)] and policy.clock.env_steps < 1000
    assert policy.clock.env_steps == rows[-1]["env_steps"], "the checkpoint is that of the end"
    assert set(capsys.readouterr().out.splitlines()) == {"a row"}, "the run was quiet, and the callback was not"
    again = rlrun.resume(tmp_path / "run", env_steps=policy.clock.env_steps + 100, quiet=True)
    assert again.clock.env_steps >= policy.clock.env_steps + 100
    with pytest.raises(rlrun.UserError, match="is already at"):
        rlrun.resume(tmp_path / "run", quiet=True)
    with pytest.raises(rlrun.UserError, match="total_timesteps is env_steps here"):
        rlrun.resume(tmp_path / "run", total_timesteps=100, quiet=True)
    with pytest.raises(rlrun.UserError, match="cannot change on resume"):
        rlrun.resume(tmp_path / "run", algo={"lr": 0.1}, quiet=True)


def test_a_program_that_trains_many_times_keeps_no_thread_of_its_runs(tmp_path):
    """SAC computes two things beside each other, with a thread of its own."""
    seen = []

    def look(row):
        seen.append(sum(thread.name == "beside" for thread in threading.enumerate()))

    for name in "ab":
        rlrun.train("sac", "Pendulum-v1", env_steps=150, logger=[], run_dir=tmp_path / name, quiet=True, callback=look, overrides=[
            *small("sac", "tiny")[1:], "resources.inference=serial", "resources.learner_threads=2", "log_every_steps=50",
        ])  # fmt: skip
        assert not any(thread.name == "beside" for thread in threading.enumerate())
    assert max(seen) == 1


def test_what_a_callback_raises_is_raised(tmp_path):
    def broken(row):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(tmp_path / "run", callback=broken)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "FAILED" and "the callback of the Python program failed" in summary["reason"]


def test_an_interruption_saves_and_leaves_no_process(tmp_path):
    """As Ctrl-C or a notebook's stop button; conftest.py looks for processes that are left."""
    path, before = tmp_path / "run", signal.getsignal(signal.SIGINT)

    def stop(row):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"rlrun\.resume\("):
        train(path, env_steps="1M", log_every_steps=20, callback=stop)
    assert json.loads((path / "summary.json").read_text())["status"] == "INTERRUPTED"
    steps = rlrun.load(path).clock.env_steps
    assert 0 < steps < 1000
    assert signal.getsignal(signal.SIGINT) is before, "Ctrl-C is the program's own again"

    def stop_at_once(row):
        stop(row)
        stop(row)

    with pytest.raises(KeyboardInterrupt, match="it ended before its first save"):
        train(tmp_path / "twice", env_steps="1M", log_every_steps=20, callback=stop_at_once)


def test_quiet_runs_in_threads_of_a_program_that_uses_hydra(tmp_path, monkeypatch, capsys):
    """As under @hydra.main, whose state is there again afterwards. The second run goes on when the first is over. What
    the program itself prints is not lost, and what a run prints is not kept."""
    kept, went, real = set(), [], sys.stdout
    two, one_is_over = threading.Barrier(2), threading.Event()
    step = CartPoleEnv.step

    def talks(self, action):
        print("a word of the environment", file=sys.stdout)
        kept.add(hasattr(sys.stdout, "getvalue"))
        return step(self, action)

    def run(name):
        def meet(row):
            if name not in went:
                went.append(name)
                two.wait(60)
                print(name, "meets")
                assert name == "one" or one_is_over.wait(60)

        assert train(tmp_path / name, env="OnlyHere-v0", callback=meet).summary["status"] == "COMPLETED"

    monkeypatch.setattr(Mine, "step", talks)
    gymnasium.register(id="OnlyHere-v0", entry_point=Mine, max_episode_steps=50)
    saved._composed.cache_clear()
    (tmp_path / "conf").mkdir()
    try:
        with hydra.initialize_config_dir(version_base="1.2", config_dir=str(tmp_path / "conf")):
            of_program = GlobalHydra.instance().hydra
            threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
            for thread in threads:
                thread.start()
            while sys.stdout is real and any(thread.is_alive() for thread in threads):
                time.sleep(0.01)
            print("the program")
            threads[0].join(60)
            one_is_over.set()
            threads[1].join(60)
            assert GlobalHydra.instance().hydra is of_program is not None and str(hydra.version.getbase()) == "1.2"
    finally:
        del gymnasium.registry["OnlyHere-v0"]
    assert sorted(went) == ["one", "two"] and kept == {False} and sys.stdout is real
    for name in went:
        assert json.loads((tmp_path / name / "summary.json").read_text())["status"] == "COMPLETED"
    assert sorted(capsys.readouterr().out.splitlines()) == ["one meets", "the program", "two meets"]


def test_a_quiet_run_silences_its_own_threads(capsys):
    """And those of the program print on, as they do while no run is quiet."""

    def prints(module):
        names = {"__name__": module}
        exec(f"def say(): print('of {module}')", names)
        thread = threading.Thread(target=names["say"])
        thread.start()
        thread.join()

    with printing(quiet=True):
        print("of the run")
        prints("rlrun.samplers.batched")
        prints("program")
    prints("rlrun.again")
    assert capsys.readouterr().out.splitlines() == ["of program", "of rlrun.again"]


# -- environments of one's own, and processes --------------------------------------------------------------------------


def test_an_id_that_only_this_program_knows_is_known_in_its_processes(tmp_path):
    gymnasium.register(id="OnlyHere-v0", entry_point=Mine, max_episode_steps=50)
    try:
        inside = {"inference": "local", "num_samplers": 1, "envs_per_sampler": 1}
        policy = rlrun.train(
            {**ALGO, "batch_size": 10, "fragment_length": 10}, "OnlyHere-v0", env_steps=20, run_dir=tmp_path / "run",
            **{**QUICK, "resources": inside},
        )  # fmt: skip
        assert policy.summary["env"] == "OnlyHere-v0"
        with pytest.raises(rlrun.UserError, match="env=my_module:OnlyHere-v0"):
            rlrun.sweep("pg", "OnlyHere-v0", seed=[1, 2])
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_classes_that_other_processes_cannot_import_are_refused(monkeypatch):
    class Local(CartPoleEnv):
        pass

    with pytest.raises(rlrun.UserError, match=r'made already.*"name": "CartPole-v1"'):
        rlrun.train("ppo", gymnasium.make("CartPole-v1"))
    assert named(Mine) == f"{__name__}:Mine" and to_carry("CartPole-v1") == []
    with pytest.raises(rlrun.UserError, match="write it to a file"):
        named(Local)
    monkeypatch.setattr(Mine, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    gymnasium.register(id="OfNotebook-v0", entry_point=Mine)
    try:
        with pytest.raises(rlrun.UserError, match="which is defined in this notebook"):
            to_carry("OfNotebook-v0")
    finally:
        del gymnasium.registry["OfNotebook-v0"]


SCRIPTS = {
    "plain": ("import rlrun\nrlrun.train('ppo', 'CartPole-v1')\n", 2),
    "in_a_function": ("import rlrun\ndef main():\n    rlrun.train('ppo', 'CartPole-v1')\nmain()\n", 4),
    "guarded": ("import rlrun\nif __name__ == '__main__':\n    rlrun.train('ppo', 'CartPole-v1')\n", 3),
    "guarded_with_more": ("import rlrun\nimport sys\nif len(sys.argv) < 9 and '__main__' == __name__:\n    rlrun.x()\n", 4),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_which_statements_are_guarded(name, tmp_path):
    text, line = SCRIPTS[name]
    (tmp_path / "script.py").write_text(text)
    assert guarded(str(tmp_path / "script.py"), line) == name.startswith("guarded")


def test_code_of_eval_is_no_statement_of_the_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPTS["plain"][0])
    main = {"reaches": carried._reaches, "file": str(tmp_path / "script.py")}
    exec(compile("called = reaches(globals(), file)", main["file"], "exec"), main)
    assert main["called"], "a statement of the script itself"
    assert not eval("reaches(globals(), file)", main)


def test_a_script_without_a_guard_is_told_so_at_once_and_starts_nothing(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPTS["in_a_function"][0])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and time.monotonic() - began < 30
    last = done.stderr.strip().splitlines()[-1]
    assert 'import script.py again: put the call of rlrun.train() under `if __name__ == "__main__":`' in last
    assert "freeze_support" not in done.stderr and sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


def test_import_rlrun_is_light():
    code = "import sys, rlrun; rlrun.train, rlrun.sweep, rlrun.UserError, dir(rlrun); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    heavy = {"torch", "numpy", "hydra", "gymnasium", "omegaconf", "multiprocessing.spawn"}
    assert done.returncode == 0 and not heavy & set(done.stdout.split())
    assert set(rlrun.__all__) <= set(dir(rlrun)) and all(getattr(rlrun, name) is not None for name in rlrun.__all__)


# -- evaluate ----------------------------------------------------------------------------------------------------------


def test_evaluate_plays_what_the_command_plays(tmp_path, capsys):
    from rlrun.cli import _dispatch

    path = tmp_path / "run"
    policy = train(path)
    capsys.readouterr()
    assert _dispatch(["evaluate", str(path), "episodes=3", "seed=4", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)
    assert rlrun.evaluate(path, 3, seed=4) == command == rlrun.evaluate(policy, 3, seed=4)
    assert capsys.readouterr().out == ""
    rlrun.evaluate(path, 1, quiet=False)
    assert "over 1 full game" in capsys.readouterr().out
    for arguments, said in (
        ((tmp_path,), "is not a run directory"),
        ((path, 0), "episodes must be at least 1"),
        ((path, 2.5), "episodes must be a whole number"),
        (([path],), "at least two players"),
        (([path, "nobody"],), "nobody is no player"),
        ((7,), "a run is given by its directory"),
    ):
        with pytest.raises(rlrun.UserError, match=said):
            rlrun.evaluate(*arguments)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_every_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    """In one process each, and with small networks and batches, so that it takes seconds."""
    small = {"resources": "debug", "logger": []}
    train_, sweep_ = rlrun.train, rlrun.sweep
    sizes = ["algo.fragment_length=10", "algo.batch_size=40", "algo.minibatch_size=20", "algo.num_epochs=1"]

    def tiny(*names, overrides=(), **options):
        return train_(*names, overrides=[*sizes, *overrides], **{**small, **options})

    monkeypatch.setattr(rlrun, "train", tiny, raising=False)
    monkeypatch.setattr(rlrun, "sweep", lambda *names, **options: sweep_(*names, **{**small, **options}), raising=False)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 6
    assert 'if __name__ == "__main__":' in blocks[0], "it is copied into scripts"
    names = {"__name__": "__main__"}
    for block in blocks:
        exec(block, names)
    assert "Did you mean env_steps" in capsys.readouterr().out
    assert [one["status"] for one in names["results"]] == ["COMPLETED", "COMPLETED"]
    for name in ("train", "resume", "evaluate", "sweep", "load"):
        assert f"## rlrun.{name}\n" in text and f"    rlrun.{name}(" in text


@pytest.mark.parametrize(
    "given, said",
    [
        ({"env": "CartPole-v1", "lr": 1e-3}, r'is algo.lr here\. In Python: algo={"name": "ppo", "lr": 0\.001} or overrides=\["algo\.lr=0\.001"\]'),
        ({"env": "CartPole-v1", "lrx": 1e-3}, r"There is no option lrx\.$"),
        ({"env": "my_pkg.envs.Drone"}, r"There is no env 'my_pkg.envs.Drone'\. Did you mean my_pkg\.envs:Drone\?"),
    ],
)  # fmt: skip
def test_what_is_named_otherwise_in_python_is_named_by_the_message(given, said):
    with pytest.raises(rlrun.UserError, match=said):
        rlrun.train("ppo", **given)
