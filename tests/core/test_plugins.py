"""A user's own package (tests/example) is used by config alone, as users do: from its folder, in new processes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import compose, small
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.config.signature import sign
from rlrun.config.types import load_yaml
from rlrun.core.errors import UserError
from rlrun.runtime.rundir import checkpoints_of

EXAMPLE = Path(__file__).parents[1] / "example"
BASE = ["env=my_rl:Corridor-v0", "logger=[]", "log_every_sec=0.1", "model.hidden=[32]"]


@pytest.fixture(autouse=True)
def in_the_example(monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))


def rlrun(*words, code=0):
    """Runs the command in the example's folder and returns its standard output."""
    command = [
        sys.executable,
        "-c",
        "import sys; sys.path.pop(0); from rlrun.cli import main; main()",
        *map(str, words),
    ]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def rows_of(path):
    return [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]


def test_env_wrapper_encoder_and_callback_in_sampler_processes(tmp_path, capsys):
    path = tmp_path / "run"
    said = rlrun("train", "algo=ppo", *BASE, "model.encoder=my_rl.models:Positions", "model.encoder_kwargs.size=8", "callbacks=[my_rl.callbacks:Best,my_rl.callbacks:Walked,my_rl.callbacks:Seen]",
                 "env.wrappers=[{name: my_rl.envs:Hurry, price: 0.1}]", "resources.inference=local", "resources.num_samplers=2", "algo.lr=3e-3",
                 "env_steps=20000", "stop.return_mean=0.5", f"run_dir={path}")  # fmt: skip
    last = rows_of(path)[-1]
    assert last["sample/return_mean"] >= 0.5, "4 steps to the right, 0.1 each: 0.6"
    assert (
        last["sample/success_rate"] > 0.9
        and 4 < last["sample/info/cell"] < 8
        and not any("note" in key for key in last)
    )
    assert last["sample/custom/first_cell"] == last["sample/custom/first_cell_min"] == 4
    assert 0.9 < last["sample/custom/right_share"] <= 1 == last["sample/custom/right_share_max"]
    told = [row for row in rows_of(path) if row.get("sample/custom/env_min") is not None]
    columns = [min(row["sample/custom/env_min"] for row in told), max(row["sample/custom/env_max"] for row in told)]
    assert columns[0] < load_yaml(path / "config.yaml")["resources"]["envs_per_sampler"] <= columns[1], (
        "of both samplers"
    )
    assert last["learn/custom/updates_before"] == last["updates"] - 1
    assert last["learn/custom/mean_reward"] == pytest.approx(1 / 4 - 0.1, abs=0.06), "1 in every fourth step at best"
    assert last["my/best_episode"] == pytest.approx(0.6, abs=1e-5)
    assert f"Best: STOPPED after {last['updates']} updates, best episode 0.60" in said
    assert _dispatch(["evaluate", str(path), "episodes=3"]) == 0
    assert "return 0.6" in capsys.readouterr().out
    assert _dispatch(["resume", str(path), f"env_steps={last['env_steps'] + 1600}", "stop.return_mean=null"]) == 0


def test_an_algorithm_of_ones_own_trains_resumes_and_evaluates(tmp_path, capsys):
    path = tmp_path / "run"
    rlrun(
        "train",
        "--trust",
        "--config-dir",
        "conf",
        "algo=clipped_pg",
        *BASE,
        "env_steps=20000",
        "stop.return_mean=0.95",
        "stop.wall_sec=60",
        f"run_dir={path}",
    )
    last = rows_of(path)[-1]
    assert last["sample/return_mean"] >= 0.95
    assert "return 1.00" in rlrun("evaluate", path, "episodes=3")
    rlrun("resume", path, f"env_steps={last['env_steps'] + 1000}", "stop.return_mean=null")
    assert rows_of(path)[-1]["env_steps"] >= last["env_steps"] + 1000
    later = tmp_path / "later"
    assert _dispatch(["train", "algo=ppo", *BASE, "env_steps=200", f"init={path}", f"run_dir={later}"]) == 0
    config = path / "config.yaml"
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "layer_norm" not in line))
    sign(config)
    capsys.readouterr()
    assert _dispatch(["evaluate", str(path), "episodes=3"]) == 0
    assert "return 1.00" in capsys.readouterr().out, "a run from before an option"


@pytest.mark.slow
def test_fine_tuning_begins_with_another_runs_weights(tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    words = [*BASE, "env_steps=30000", "stop.return_mean=0.98", "algo.lr=3e-3"]
    rlrun("train", "algo=ppo", *words, f"run_dir={first}")
    rlrun("train", "algo=ppo", *words, "seed=7", f"init={first}", f"run_dir={second}")
    checkpoint = next((first / "checkpoints").glob("0*"))
    rlrun("train", "algo=impala", *words, "seed=7", f"init={checkpoint}", f"run_dir={third}")
    steps = {path: rows_of(path)[-1]["env_steps"] for path in (first, second, third)}
    assert steps[second] < steps[first] and steps[third] < steps[first], steps
    rlrun("resume", second, "env_steps=40000", "stop.return_mean=null")
    assert rows_of(second)[-1]["env_steps"] >= 40000


def test_fine_tuning_takes_weights_and_no_coefficients(tmp_path):
    """The penalty's weight is that of the new run, and a reward scale is taken over only if both runs have one."""
    small = ["algo=ppo", "env=rlrun/Identity-v0", "resources=debug", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20", "algo.minibatch_size=20",
             "model.hidden=[8]", "env_steps=40"]  # fmt: skip
    plain = tmp_path / "plain"
    assert _dispatch(["train", *small, f"run_dir={plain}"]) == 0
    saved = checkpoints_of(plain).load(parts=("policy",))[0]["policy"]
    made = Wired(
        type_config(compose(*small, f"init={plain}", "algo.kl_coef=0.5", "algo.normalize_reward=true", "seed=3"))
    ).algorithm()
    assert float(made.kl_coef) == 0.5 and float(made.reward_scale.count) == 0.0
    assert all(torch.equal(value, saved[name]) for name, value in made.policy.state_dict().items())


def test_the_same_run_again(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "three")]
    words = [
        "algo=ppo",
        *BASE,
        "resources=debug",
        "algo.fragment_length=16",
        "algo.batch_size=64",
        "algo.minibatch_size=32",
        "env_steps=600",
    ]
    assert _dispatch(["train", *words, f"run_dir={paths[0]}"]) == 0
    assert _dispatch(["train", "--from-run", str(paths[0]), f"run_dir={paths[1]}"]) == 0
    assert _dispatch(["train", f"--from-run={paths[0]}", "seed=5", "algo.lr=1e-3", f"run_dir={paths[2]}"]) == 0
    one, two, three = (checkpoints_of(path).load(parts=("policy",))[0]["policy"] for path in paths)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], three[name]) for name in one)
    assert rows_of(paths[2])[-1]["learn/lr"] == pytest.approx(1e-3)


@pytest.mark.parametrize("words, said", [
    (["model.encoder=my_rl.models:Position"], "my_rl.models has no Position. Did you mean Positions"),
    (["model.encoder=my_rl.model:Positions"], "cannot import my_rl.model"),
    (["model.encoder=my_rl.envs:Corridor"], "must make a torch.nn.Module"),
    (["model.encoder=my_rl.models:Positions", "env=CartPole-v1"], "does not fit CartPole-v1"),
    (["model.encoder=naturecnn"], "Did you mean nature_cnn"),
    (["model.encoder_kwargs.size=3"], "encoder_kwargs are for an encoder of your own"),
    (["env.wrappers=[my_rl.envs]"], "package.module:Name"),
    (["env.wrappers=[my_rl.models:Positions]"], "env.wrappers=my_rl.models:Positions"),
    (["env.wrappers=[{name: my_rl.envs:Hurry, cost: 1}]"], "unexpected keyword argument 'cost'"),
    (["env.wrappers=[3]"], "wrappers are package.module:Name"),
    (["callbacks=[my_rl.models:Positions]"], "no subclass of rlrun.Callback or rlrun.EnvCallback"),
    (["init=nowhere"], "init=nowhere is neither a run directory"),
    (["callbacks=[my_rl.broken:Unmade]"], "/my_rl/broken.py, line 13)"),
    (["callbacks=[my_rl.broken:Misspelt]"], "has a method on_epsiode, which nothing calls. Did you mean on_episode"),
    (["eval.function=my_rl.broken:Nothing", "eval.every=100"], "eval.function=my_rl.broken:Nothing has no method evaluate(games)"),
    (["env.kwargs={lenght:3}"], "unexpected keyword argument 'lenght'"),
    (["env.wrappers=[{my_rl.envs:Hurry: {price: 0.1}}]"], "cannot be read as key=value"),
])  # fmt: skip
def test_what_does_not_fit_gets_a_sentence(words, said, tmp_path):
    with pytest.raises(UserError) as caught:
        _dispatch(["train", "algo=ppo", *BASE, f"run_dir={tmp_path / 'run'}", *words])
    assert said in str(caught.value) and not (tmp_path / "run").exists()


def test_numbers_that_a_callback_puts_into_rows_are_logged_whatever_library_made_them(tmp_path):
    words = ["train", "algo=ppo", *BASE, "resources=debug", "env_steps=600", "log_every_steps=100"]
    assert _dispatch([*words, "callbacks=[my_rl.broken:Adding]", f"run_dir={tmp_path / 'run'}"]) == 0
    found = [[row[f"mine/{name}"] for name in ("numpy", "whole", "tensor")] for row in rows_of(tmp_path / "run")]
    assert found and all(one == [1.5, 2.0, 3.0] for one in found)
    assert _dispatch([*words, "callbacks=[my_rl.broken:Listing]", f"run_dir={tmp_path / 'other'}"]) == 1
    reason = json.loads((tmp_path / "other" / "summary.json").read_text())["reason"]
    assert "my_rl.broken:Listing put [1, 2] into a row as mine/list, and not a number" in reason


@pytest.mark.parametrize(
    "words",
    [
        ["algo=ppo", "env=my_program:Corridor"],
        ["algo=ppo", "env=my_program:Corridor-v0"],
        ["algo=ppo", "env=CartPole-v1", "model.encoder=my_program:Positions"],
        ["algo=ppo", "env=CartPole-v1", "callbacks=[my_program:Best]"],
    ],
)
def test_a_module_that_ends_the_process_gets_a_sentence(words, tmp_path, monkeypatch):
    (tmp_path / "my_program.py").write_text("import sys\n\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"importing my_program ends the process \(SystemExit: 0\).*__main__"):
        _dispatch(["train", *words, f"run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize("words, said", [
    ([], "--from-run takes a run directory"),
    (["nowhere"], "there is no folder nowhere"),
])  # fmt: skip
def test_from_run_needs_a_run(words, said):
    with pytest.raises(UserError, match=said):
        _dispatch(["train", "--from-run", *words])


def test_weights_that_do_not_fit_get_a_sentence(tmp_path):
    path = tmp_path / "run"
    small = ["resources=debug", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20", "env_steps=20"]
    assert (
        _dispatch(["train", "algo=impala", "env=rlrun/Identity-v0", *small, "model.hidden=[8]", f"run_dir={path}"]) == 0
    )
    with pytest.raises(UserError, match="do not fit this run's env, model and algo"):
        _dispatch(
            [
                "train",
                "algo=impala",
                "env=rlrun/Identity-v0",
                *small,
                "model.hidden=[9]",
                f"init={path}",
                f"run_dir={tmp_path / 'b'}",
            ]
        )
    filtered = ["algo=impala", "env=rlrun/Identity-v0", *small, "model.hidden=[8]", "model.observation_filter=mean_std"]
    with pytest.raises(UserError, match=r"that run has model\.observation_filter=none; set it here, too"):
        _dispatch(["train", *filtered, f"init={path}", f"run_dir={tmp_path / 'c'}"])
    with pytest.raises(UserError, match=r"There is no option algo\.lrr"):
        _dispatch(["train", "--from-run", str(path), "algo.lrr=3"])
    with pytest.raises(UserError, match="cannot be chosen anew with --from-run"):
        _dispatch(["train", "--from-run", str(path), "env=CartPole-v1"])


@pytest.mark.parametrize("words, said", [
    (["algo=icm", "algo@algo.inner=icm"], "There is no|cannot be inside icm"),
    (["algo=icm", "algo@algo.inner=a3c"], "a2c is its synchronous form"),
    (["algo=icm", "algo.inner=a2c"], r"chosen with algo@algo\.inner=a2c"),
    (["algo=icm", "algo.inner.lrr=1"], r"Did you mean algo\.inner\.lr"),
])  # fmt: skip
def test_what_cannot_be_inside_gets_a_sentence(words, said):
    with pytest.raises(UserError, match=said):
        _dispatch(["train", "env=CartPole-v1", "logger=[]", *words])


def test_a_callback_that_raises_is_named(tmp_path, capsys):
    assert (
        _dispatch(["train", "algo=ppo", *BASE, "callbacks=[my_rl.broken:Raising]", f"run_dir={tmp_path / 'run'}"]) == 1
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    said = r"callbacks=my_rl\.broken:Raising failed in on_update: KeyError: 'nothing' \(.*broken\.py, line \d+\)"
    assert summary["status"] == "FAILED" and re.fullmatch(said, summary["reason"])


STUMBLING = ("Stumbling", "callbacks=my_rl.broken:Stumbling failed in on_step: KeyError: 'nothing'")
WORDY = ("Wordy", "callbacks=my_rl.broken:Wordy returned {'said': 'many words'} from on_episode_end, and not numbers by name")
BLIND = ("Blind", "callbacks=my_rl.broken:Blind failed in before_learning: AttributeError: Batch has no field 'nothing'")


@pytest.mark.parametrize("inference, name, said", [
    *(("serial", *one) for one in (STUMBLING, WORDY, BLIND)), ("local", *STUMBLING), ("local", *WORDY),
])  # fmt: skip
def test_a_callback_that_watches_and_raises_is_named(tmp_path, name, said, inference):
    words = [
        "algo=ppo",
        *BASE,
        f"callbacks=[my_rl.broken:{name}]",
        f"resources.inference={inference}",
        "env_steps=20000",
    ]
    assert _dispatch(["train", *words, f"run_dir={tmp_path / 'run'}"]) == 1
    reason = json.loads((tmp_path / "run" / "summary.json").read_text())["reason"]
    sampler = r"sampler-\d failed: " if inference == "local" else ""
    assert re.match(sampler + re.escape(said), reason) and "\n" not in reason


@pytest.mark.parametrize("algo, words", [
    ("ppo", []),
    ("impala", ["resources.inference=local"]),
    ("dqn", ["resources=debug"]),
    ("apex", []),
    ("a3c", ["resources.num_learners=2"]),
    ("ddppo", ["resources.num_learners=2"]),
])  # fmt: skip
def test_every_runner_shows_the_batch_before_it_is_learnt_from(tmp_path, algo, words):
    path = tmp_path / "run"
    tiny = [word for word in small(algo, "tiny") if "resources" not in word and "sequence" not in word]
    run = [
        "env=CartPole-v1",
        "logger=[]",
        "model.hidden=[8]",
        "callbacks=[my_rl.callbacks:Seen]",
        "resources.device=cpu",
    ]
    steps = ["env_steps=400", "log_every_steps=50", f"run_dir={path}"]
    assert _dispatch(["train", *tiny, *run, *words, *steps]) == 0
    seen = [row for row in rows_of(path) if "learn/custom/mean_reward" in row]
    assert seen and all(row["learn/custom/mean_reward"] == 1.0 for row in seen), "CartPole pays 1"
    assert all(row["learn/custom/updates_before"] < row["updates"] for row in seen)


def test_what_nobody_would_call_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"callbacks=my_rl\.callbacks:Walked watches env steps, but samplers of"):
        _dispatch(
            ["train", "algo=es", "env=CartPole-v1", "callbacks=[my_rl.callbacks:Walked]", f"run_dir={tmp_path / 'run'}"]
        )


def test_a_run_keeps_the_layout_that_was_decided(tmp_path):
    """The choice is measured once: a resumed run must not choose differently because the machine is busier."""
    path = tmp_path / "run"
    assert (
        _dispatch(
            [
                "train",
                "algo=ppo",
                *BASE,
                "env_steps=300",
                "algo.fragment_length=64",
                "algo.batch_size=256",
                "algo.minibatch_size=64",
                f"run_dir={path}",
            ]
        )
        == 0
    )
    resources = load_yaml(path / "config.yaml")["resources"]
    assert resources["inference"] in ("serial", "local") and resources["num_learners"] == 1
    assert isinstance(resources["num_samplers"], int) and isinstance(resources["envs_per_sampler"], int)
    wiring = Wired(type_config(load_yaml(path / "config.yaml")))
    assert wiring.plan.settings() == {
        key: resources[key] for key in ("inference", "num_learners", "num_samplers", "envs_per_sampler")
    }


@pytest.mark.parametrize("option, name, said, line", [
    ("env", "my_env:NoTable", "env=my_env:NoTable cannot be made: FileNotFoundError: ", 6),
    ("env", "my_env:Sized", "env=my_env:Sized cannot be made: TypeError: Sized.__init__() missing 1 required", None),
    ("env", "my_env:Helped", "env=my_env:Helped cannot be made: TypeError: Sized.__init__() missing 1 required", None),
    ("env", "my_env:Told", "env=my_env:Told cannot be made: TypeError: Told.__init__() missing 1 required", None),
    ("env.wrappers", "[my_env:NoWrap]", "env.wrappers=my_env:NoWrap cannot be made: ZeroDivisionError: ", 10),
    ("env", "my_mistake:Env", "env=my_mistake:Env: importing my_mistake fails: NameError: name 'nothing' is not defined", 2),
    ("callbacks", "[my_mistake:Env]", "callbacks=my_mistake:Env: importing my_mistake fails: NameError: ", 2),
    ("env", "my_typo:Env", "env=my_typo:Env: importing my_typo fails: SyntaxError: ", 1),
])  # fmt: skip
def test_mistakes_in_a_module_of_the_users_own_are_told_with_their_line(tmp_path, monkeypatch, option, name, said, line):
    (tmp_path / "my_env.py").write_text(BROKEN)
    (tmp_path / "my_mistake.py").write_text("import math\nmath.pi + nothing\n")
    (tmp_path / "my_typo.py").write_text("def\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        _dispatch(["train", "algo=pg", "env=CartPole-v1", f"{option}={name}", f"run_dir={tmp_path / 'run'}"])
    words = str(caught.value)
    assert words.startswith(said) and words.count(", line ") == (line is not None)
    assert line is None or words.endswith(f".py, line {line})")
    for part, mend in (("Sized", "; env.kwargs.size=... sets this argument"), ("Told", "; env.kwargs.config.NAME=... puts it into")):
        assert (mend in words) == (part in name)
    assert ("env.kwargs" in words) == ("Sized" in name or "Told" in name), "a part of the environment asks for it"


def test_a_file_that_python_s_own_module_hides_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text("class Mine:\n    pass\n")
    for word in ("env=code:Mine", "model.encoder=code:Mine"):
        with pytest.raises(UserError, match=r"code.py was imported, and not code.py of the current folder: give that file"):
            _dispatch(["train", "algo=pg", "env=CartPole-v1", word, "resources=debug", "logger=[]"])


BROKEN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
class NoTable(CartPoleEnv):
    def __init__(self):
        open("table.csv")
        super().__init__()
class NoWrap(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env, 1 / 0)
class Sized(CartPoleEnv):
    def __init__(self, size):
        super().__init__()
class Helped(CartPoleEnv):
    def __init__(self):
        self.helper = Sized()
class Told(CartPoleEnv):
    def __init__(self, config):
        super().__init__()
"""


def test_a_typo_in_an_option_of_an_own_algorithm_is_answered_with_its_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    own = ["--trust", f"--config-dir={EXAMPLE / 'conf'}", "algo=clipped_pg", "env=CartPole-v1"]
    with pytest.raises(UserError, match=r"There is no option algo\.boundd\. Did you mean algo\.bound"):
        _dispatch(["train", *own, "algo.boundd=3"])
    (tmp_path / "algo").mkdir()
    text = (EXAMPLE / "conf" / "algo" / "clipped_pg.yaml").read_text()
    for name, changed, said in (
        ("more", f"{text}speed: 3\n", r"algo\.speed\..* Options of algo=more are the fields of my_rl\.clipped_pg:Config"),
        ("less", re.sub("(?m)^bound:.*$", "", text), r"algo\.bound has no value, which my_rl\.clipped_pg:Config needs: write it in"),
    ):
        (tmp_path / "algo" / f"{name}.yaml").write_text(changed.replace("name: clipped_pg", f"name: {name}"))
        with pytest.raises(UserError, match=said):
            _dispatch(["train", "--trust", f"--config-dir={tmp_path}", f"algo={name}", "env=CartPole-v1"])


def test_an_import_that_lacks_a_package_names_it(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_simulator\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="cannot import needs_more: it imports no_such_simulator, which is not installed"):
        _dispatch(["train", "algo=ppo", "env=needs_more:Env"])
