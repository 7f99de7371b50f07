"""Nothing that rlrun reads may run code: each attack is made, answered with a sentence, and has left nothing behind."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from rlrun.cli import _dispatch
from rlrun.config import signature
from rlrun.config.foreign import check_defaults, check_package, check_values, installed
from rlrun.core.errors import UserError
from rlrun.runtime.trained import load

RUN = ["algo=pg", "env=CartPole-v1", "resources=debug", "logger=[]", "model.hidden=[8]", "env_steps=200"]
TUNED = "# @package _global_\ndefaults:\n  - override /env: CartPole-v1\n  - override /algo: ppo\n"
EVIL = (
    "import pathlib, gymnasium\npathlib.Path('pwned').touch()\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
)
EVIL += "gymnasium.register('E-v0', entry_point=CartPoleEnv, max_episode_steps=50)\n"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """A folder with a module that leaves a file when it is imported. The current folder is on the path, as in a shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evilmod.py").write_text(EVIL)
    yield
    sys.modules.pop("evilmod", None)


def files():
    return {path for path in Path().rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("hydra: {callbacks: {x: {_target_: pandas.read_pickle, filepath_or_buffer: evil.pkl}}}\n", "`hydra` section"),
        ("hydra: {job_logging: {handlers: {f: {class: logging.FileHandler, filename: pwned}}}}\n", "`hydra` section"),
        ("algo: {lr: {_target_: builtins.eval}}\n", "algo.lr._target_"),
        ("run_dir: runs/${oc.env:HOME}\n", "interpolation"),
        ("run_dir: ${hydra.runtime.cwd}\n", "interpolation"),
        ("env: {name: 'evilmod:E-v0'}\n", "evilmod, which no installed package contains"),
        ("callbacks: ['evilmod:Spy']\n", "evilmod, which no installed package contains"),
        ("algo: {module: evilmod}\n", "evilmod, which no installed package contains"),
    ],
)
def test_a_tuned_file_cannot_run_code(added, said):
    Path("conf/tuned/ppo").mkdir(parents=True)
    Path("conf/tuned/ppo/good.yaml").write_text(TUNED + added)
    before = files()
    with pytest.raises(UserError, match=said):
        _dispatch(["train", "--config-dir", "conf", "tuned=ppo/good", "resources=debug", "env_steps=40"])
    assert files() == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("override /hydra/callbacks: spy", "Hydra's own groups"),
        ("/spy@hydra.callbacks: spy", "Hydra's own groups"),
        ("/spy@_global_.hydra: spy", "Hydra's own groups"),
        ("override /env: evilmod:E-v0", "evilmod"),
        ("/algo@algo: ../../elsewhere", "same folder"),
        ("override /algo: ${oc.env:ALGO}", "same folder"),
    ],
)
def test_a_defaults_list_cannot_choose_code(line, said):
    key, _, value = line.partition(": ")
    with pytest.raises(UserError, match=said):
        check_defaults([{key: value}], "a.yaml", trusted=False)


def test_other_ways_into_hydra_are_closed(tmp_path):
    for package in ("hydra", "hydra.callbacks", "_global_.hydra", "_name_"):
        with pytest.raises(UserError, match="@package"):
            check_package(package, "a.yaml")
    Path("conf/hydra/callbacks").mkdir(parents=True)
    Path("conf/hydra/callbacks/spy.yaml").write_text("x: {_target_: evilmod.Spy}\n")
    Path("elsewhere").mkdir()
    Path("elsewhere/evil.yaml").write_text("# @package _global_\nhydra: {callbacks: {x: {_target_: evilmod.Spy}}}\n")
    for words, said in (
        (["--config-dir", "conf", "hydra/callbacks=spy"], "Hydra's own options"),
        (["+hydra.callbacks.x._target_=evilmod.Spy"], "Hydra's own options"),
        ([f"+replay=../../{tmp_path}/elsewhere/evil"], "without its folder"),
        ([f"tuned=../../../{tmp_path}/elsewhere/evil"], "without its folder"),
        (["-cp", "elsewhere"], "not a flag"),
        (["--config-dir", "nowhere"], "no such folder"),
    ):
        with pytest.raises(UserError, match=said):
            _dispatch(["train", *RUN, *words])
    assert not Path("pwned").exists()


def test_references_to_other_options_and_installed_modules_are_allowed():
    values = {"algo": {"lr": "${algo.other}"}, "env": {"name": "gymnasium.envs:CartPole-v1"}, "uri": "sqlite:///a.db"}
    check_values(values, "a.yaml", trusted=False)
    check_values({"expected": {"source": "arXiv:1802.01561"}}, "a.yaml", trusted=False)
    check_values({"callbacks": ["evilmod:Spy"]}, "a.yaml", trusted=True)
    assert installed("torch") and installed("json") and not installed("evilmod")


@pytest.mark.parametrize(
    ("env", "said"),
    [("x\nhydra: {callbacks: {y: {_target_: evilmod.Spy}}}", "rlrun does not have"), ("evilmod:E-v0", "evilmod")],
)
def test_importing_an_rllib_file_runs_nothing(env, said):
    Path("theirs.yaml").write_text(json.dumps({"good": {"run": "PPO", "env": env, "stop": {"timesteps_total": 100}}}))
    before = files()
    with pytest.raises(UserError, match=said):
        _dispatch(["import-rllib", "theirs.yaml"])
    assert {path for path in files() - before if path.is_file()} == set()


@pytest.mark.parametrize("name", ["../../../x", "/tmp/x", "a/b", "a\nhydra: 1", ".hidden", ""])
def test_names_that_become_paths_are_checked(name):
    Path("theirs.yaml").write_text(json.dumps({name: {"run": "PPO", "env": "CartPole-v1"}}))
    before = files()
    with pytest.raises(UserError, match="files are named after it"):
        _dispatch(["import-rllib", "theirs.yaml", "--dir", "out"])
    assert files() == before


def test_text_of_an_rllib_file_stays_text():
    config = {"env_config": {"text": "a\nhydra: {x: 1}"}, "lambda": {"grid_search": [0.9, 1.0]}}
    Path("a\nhydra: {}.yaml").write_text(json.dumps({"good": {"run": "PPO", "env": "CartPole-v1", "config": config}}))
    assert _dispatch(["import-rllib", "a\nhydra: {}.yaml", "--dir", "out"]) == 0
    text = Path("out/tuned/ppo/good.yaml").read_text()
    assert not any(line.startswith("hydra") for line in text.splitlines())


def test_text_of_an_rllib_file_cannot_steer_a_terminal_or_a_page(capsys):
    config = {"a\x1b[2J\nrun": 1, "b|<img src=x>`": "`<script>`|\n# b", "exploration_config": {"type": "\x1b[31mX"}}
    Path("theirs.yaml").write_text(json.dumps({"good": {"run": "PPO", "env": "CartPole-v1", "config": config}}))
    assert _dispatch(["import-rllib", "theirs.yaml", "--dir", "out"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "a?[2J?run=1" in said
    before = files()
    assert _dispatch(["import-rllib", "theirs.yaml", "--table"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "<" not in said and files() == before
    (row,) = [line for line in said.splitlines() if "script" in line]
    assert row.count("|") == 4 and row.count("`") == 2


def test_a_run_from_elsewhere_needs_trust_for_its_modules(capsys):
    assert _dispatch(["train", *RUN[:1], "env=evilmod:E-v0", *RUN[2:], "run_dir=run"]) == 0
    Path("pwned").unlink()
    assert _dispatch(["evaluate", "run", "episodes=1"]) == 0, "it was made here, and carries a signature"
    for change in ("forged", "missing"):
        shutil.copytree("run", change)
        mark = signature.beside(Path(change) / "config.yaml")
        mark.write_text("0" * 64) if change == "forged" else mark.unlink()
        sys.modules.pop("evilmod", None)
        before = files()
        for words in (
            ["evaluate", change],
            ["export", change],
            ["resume", change, "env_steps=400"],
            ["watch", change],
            ["train", "--from-run", change, "run_dir=again"],
        ):
            with pytest.raises(UserError, match=r"evilmod, .*--trust"):
                _dispatch(words)
        with pytest.raises(UserError, match="evilmod"):
            load(change)
        assert files() == before
    assert _dispatch(["evaluate", "missing", "episodes=1", "--trust"]) == 0
    assert load("missing", trust=True).spec.name == "evilmod:E-v0"
    assert _dispatch(["resume", "missing", "env_steps=1500", "--trust"]) == 0
    assert signature.signed(Path("missing/config.yaml")), "it is the user's own from now on"


def test_a_run_of_installed_modules_needs_nothing():
    assert _dispatch(["train", *RUN, "run_dir=run"]) == 0
    signature.beside(Path("run/config.yaml")).unlink()
    assert _dispatch(["evaluate", "run", "episodes=1"]) == 0
    text = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(text.replace("runs_root:", "hydra: {run: {dir: x}}\nruns_root:"))
    with pytest.raises(UserError, match="`hydra` section"):
        _dispatch(["evaluate", "run"])


def test_the_key_is_the_users_own():
    Path("a.txt").write_text("a")
    signature.sign(Path("a.txt"))
    assert signature.signed(Path("a.txt")) and signature.key_path().stat().st_mode & 0o777 == 0o600
    signature.key_path().chmod(0o644)
    assert not signature.signed(Path("a.txt")), "others could have read the key"
    signature.key_path().chmod(0o600)
    Path("a.txt").write_text("b")
    assert not signature.signed(Path("a.txt"))


def test_a_sweep_from_elsewhere_needs_trust():
    Path("sweep/logs").mkdir(parents=True)
    said = {"format": 1, "command": "", "words": [], "search": None, "cwd": ".", "mlflow": None}
    job = {"name": "../../x", "words": ["env=evilmod:E-v0"]}
    Path("sweep/sweep.json").write_text(json.dumps({**said, "jobs": [job]}))
    with pytest.raises(UserError, match="was not written by you"):
        _dispatch(["sweep", "--resume", "sweep"])
    with pytest.raises(UserError, match="files are named after it"):
        _dispatch(["sweep", "--resume", "sweep", "--trust"])
    assert not Path("pwned").exists()
