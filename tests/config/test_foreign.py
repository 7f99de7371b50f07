"""Nothing that rlrun reads may run code: each attack is made, answered with a sentence, and has left nothing behind."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from conftest import compose

import rlrun
from rlrun.bench import charts
from rlrun.cli import _dispatch
from rlrun.config import signature
from rlrun.config.foreign import check_defaults, check_package, check_values
from rlrun.config.paths import group_defaults
from rlrun.config.run import type_config
from rlrun.config.saved import saved_config
from rlrun.config.types import save_yaml
from rlrun.core import plugins
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import Notice, UserError
from rlrun.core.plugins import installed, modules_in
from rlrun.envs.games import Several
from rlrun.envs.registry import make_spec
from rlrun.experiments.runs import find
from rlrun.experiments.view import text_table
from rlrun.runtime.given_weights import _class_of
from rlrun.runtime.played_env import environment_of
from rlrun.runtime.trained import load

RUN = ["algo=pg", "env=CartPole-v1", "resources=debug", "logger=[]", "model.hidden=[8]", "env_steps=200"]
TUNED = "# @package _global_\ndefaults:\n  - override /env: CartPole-v1\n  - override /algo: ppo\n"
EVIL = (
    "import pathlib, gymnasium\npathlib.Path('pwned').touch()\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
)
EVIL += "gymnasium.register('E-v0', entry_point=CartPoleEnv, max_episode_steps=50)\n"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """The current folder has modules that leave a file when they are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(plugins._Door, "named", set())  # no test trusts modules for another
    monkeypatch.setattr(plugins._Door, "away", set())
    monkeypatch.setattr(plugins._Door, "objects", set())
    for name in ("evilmod", "evil-mod", "winreg"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    yield
    for name in ("evilmod", "evil-mod", "winreg"):
        sys.modules.pop(name, None)


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
        ("env: {name: 'evilmod:E-v0'}\n", "evilmod is not part of an installed package"),
        ("callbacks: ['evilmod:Spy']\n", "evilmod is not part of an installed package"),
        ("algo: {module: evilmod}\n", "evilmod is not part of an installed package"),
        # Installed functions can do anything, and so can what Python itself brings.
        ("model: {encoder: 'pydoc:pipepager', encoder_kwargs: {cmd: touch pwned}}\n", "pydoc"),
        ("env: {wrappers: [{name: 'timeit:timeit', setup: 'open(0)'}]}\n", "timeit"),
        ("model: {encoder: 'torch:load', encoder_kwargs: {f: evil.pt}}\n", "not a class that derives from Module"),
        ("env: {wrappers: ['numpy:os.system']}\n", "numpy"),
        # Importing them is enough: they act as programs, or were never meant for reinforcement learning.
        ("algo: {module: flask.__main__}\n", "flask.__main__ is part of a package that needs none of gymnasium"),
        ("algo: {module: gymnasium.__main__}\n", "importing gymnasium.__main__ may run a program"),
        ("env: {name: 'torch.__init__:E-v0'}\n", "may run a program"),
        ("callbacks: ['pytest:Spy']\n", "pytest is part of a package that needs none of"),
        # A class that writes where its arguments say.
        ("env: {wrappers: [{name: 'gymnasium.wrappers:RecordVideo', video_folder: stolen}]}\n", "RecordVideo writes files into any folder"),
        ("env: {wrappers: [{name: 'gymnasium.wrappers.rendering:RecordVideo', video_folder: stolen}]}\n", "writes files into any folder"),
        # Names that a simple pattern would not see.
        ("model: {encoder: 'evilmod:Name '}\n", "evilmod"),
        ("model: {encoder: 'evil-mod:Name'}\n", "not the name of a module"),
        ("env: {name: 'evilmod:Cart!'}\n", "evilmod"),
        ("env: {kwargs: {name: 'evilmod: CartPole-v1'}}\n", "evilmod is not part of an installed package"),
        ("env: {kwargs: {name: ' evilmod:CartPole-v1'}}\n", "evilmod is not part of an installed package"),
        ("env: {kwargs: {name: 'evilmod://CartPole-v1'}}\n", "evilmod is not part of an installed package"),
        ("env: {kwargs: {name: 'evilmod:'}}\n", "evilmod is not part of an installed package"),
        ("model: {encoder: 'evilmod://x'}\n", "evilmod"),
        ("algo: {module: evil-mod}\n", "evil-mod"),
        ("model: {encoder: '${measured.x}'}\nmeasured: {x: 'evilmod:Name'}\n", "evilmod"),
        ("model: {encoder: 'evil${expected.m}'}\nexpected: {m: 'mod:Name'}\n", "evilmod"),
        ("env: {wrappers: ['winreg:x']}\n", "winreg"),
        # Folders and addresses.
        ("run_dir: /tmp/anywhere\n", "lets this file choose where"),
        ("runs_root: /tmp/anywhere\n", "lets this file choose where"),
        ("logger: {mlflow: {uri: 'http://127.0.0.1:9'}}\n", "lets this file choose where"),
        ("resources: {ray: {address: 'evil.example:6379', allow_open: true}}\n", "ray.address=evil.example:6379 lets"),
    ],
)
def test_a_tuned_file_cannot_run_code(added, said):
    Path("conf/tuned/ppo").mkdir(parents=True)
    Path("conf/tuned/ppo/good.yaml").write_text(TUNED + added)
    before = files()
    words = ["tuned=ppo/good", "resources=debug", "env_steps=40", "logger=[mlflow]", "run_dir=out"]
    with pytest.raises(UserError, match=said):
        _dispatch(["train", "--config-dir", "conf", *(words[:3] if "lets this" in said else words)])
    assert files() == before


@pytest.mark.parametrize(
    ("place", "text", "word", "said"),
    [
        ("algo/ppo", "lr: 0.5\n", "algo=ppo", r"algo/ppo\.yaml would not be read, because rlrun has a file of this name"),
        ("tuned/x", TUNED + "seed: 010\n", "tuned=x", r"YAML reads 010 in line \d+ as another number"),
        ("tuned/x", TUNED + "stop: {wall_sec: 1:30}\n", "tuned=x", "YAML reads 1:30 in line"),
        ("tuned/x", TUNED + "seed: 1\nseed: 2\n", "tuned=x", r"found duplicate key seed \(line \d+\)"),
        ("tuned/x", TUNED.partition("\n")[2], "tuned=x", "begins with the line `# @package _global_`"),
    ],
)
def test_a_file_that_would_be_misread_is_refused(place, text, word, said):
    path = Path("conf", f"{place}.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        _dispatch(["train", "--plan", "--config-dir", "conf", word])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("override /hydra/callbacks: spy", "Hydra's own groups"),
        ("optional hydra/job: evil", "Hydra's own groups"),
        ("optional override hydra/job: evil", "Hydra's own groups"),
        ("hydra/job@hydra.job: evil", "Hydra's own groups"),
        ("/env/evilmod:CartPole-v1", "evilmod"),
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
        check_defaults([{key: value}] if value else [key], "a.yaml", trusted=False)


@pytest.mark.parametrize("line", ["optional hydra/job: evil", "hydra/job@hydra.job: evil"])
def test_relative_groups_do_not_reach_hydra(line):
    folder = Path("conf/tuned/hydra/job")
    folder.mkdir(parents=True)
    (folder / "evil.yaml").write_text("env_set: {PATH: evil}\n")
    Path("conf/tuned/x.yaml").write_text("# @package _global_\ndefaults:\n  - " + line + "\n  - override /algo: pg\n")
    with pytest.raises(UserError, match="must not choose Hydra's own groups"):
        _dispatch(["train", "--config-dir", "conf", "tuned=x", *RUN[1:]])


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
    values = {"algo": {"lr": "${algo.other}"}, "env": {"name": "gymnasium.envs:CartPole-v1"}}
    check_values(values, "a.yaml", trusted=False)
    check_values({"expected": {"source": "arXiv:1802.01561"}}, "a.yaml", trusted=False)
    check_values({"env": {"kwargs": {"page": "https://example.org/a", "time": "12:30"}}}, "a.yaml", trusted=False)
    check_values({"callbacks": ["evilmod:Spy"]}, "a.yaml", trusted=True)
    assert installed("torch") and not installed("json") and not installed("evilmod")
    words = ["env=my_rl:Maze-v0", "env.wrappers=[{name: a.b:C, price: 0.1}]", "+algo.module=own.algo", "uri=http://x"]
    assert modules_in(words) == {"my_rl", "a.b", "own.algo"}


def test_nothing_in_the_current_folder_is_imported_by_chance(tmp_path):
    """Files there must neither shadow a module, nor be found in place of a missing one, nor pass as a package."""
    for path in ("hydra_plugins/evil.py", "tabulate.py", "hydra.py", "multiprocessing.py", "evilep.py"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("import pathlib\npathlib.Path('pwned').touch()\n")
    Path("evil.dist-info").mkdir()
    Path("evil.dist-info/METADATA").write_text("Name: evil\nVersion: 1\n")
    Path("evil.dist-info/entry_points.txt").write_text("[torch.backends]\nx = evilep:f\n")
    Path("evil.dist-info/top_level.txt").write_text("evilmod\n")
    Path("evil.dist-info/direct_url.json").write_text(
        json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    )
    root = Path(rlrun.__file__).parents[1]
    command = [
        sys.executable,
        "-P",
        "-c",
        f"import sys; sys.path.append({str(root)!r}); import rlrun.cli as c; c.main()",
    ]
    words = ["train", "algo=impala", "env=CartPole-v1", "resources.inference=local", "env_steps=600", "logger=[]"]
    for more in ([], ["model.encoder=evilmod:Name"]):
        done = subprocess.run([*command, *words, *more], capture_output=True, text=True, timeout=120)
        assert done.returncode == (2 if more else 0), done.stdout + done.stderr
        assert Path("pwned").exists() == bool(more), "only what the words name is imported"


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
            with pytest.raises(UserError, match=r"evilmod is not part of an installed package: add --trust"):
                _dispatch(words)
        with pytest.raises(UserError, match="evilmod"):
            load(change)
        assert files() == before
    assert _dispatch(["evaluate", "missing", "episodes=1", "--trust"]) == 0
    assert load("missing", trust=True).spec.name == "evilmod:E-v0"
    assert _dispatch(["resume", "missing", "env_steps=1500", "--trust"]) == 0
    assert signature.signed(Path("missing/config.yaml")), "it is the user's own from now on"


def test_a_copy_of_ones_own_run_imports_nothing_from_the_current_folder():
    """Somebody may have published the run with its signature, and put modules beside it."""
    assert _dispatch(["train", *RUN[:1], "env=evilmod:E-v0", *RUN[2:], "run_dir=run"]) == 0
    Path("run").rename("moved")
    shutil.copytree("moved", "copy")
    Path("pwned").unlink()
    said = r"evilmod lies in the current folder, .* is a copy of one of yours.* --trust"

    def refused(*words):
        plugins._Door.named.clear()
        sys.modules.pop("evilmod", None)
        sys.path[:] = [path for path in sys.path if path != str(Path.cwd())]
        with pytest.raises(UserError, match=said):
            _dispatch(list(words)) if words else rlrun.load("copy")
        assert not Path("pwned").exists()

    refused("evaluate", "copy", "episodes=1")
    refused("resume", "copy", "env_steps=900")
    refused("train", "--from-run", "copy", "run_dir=again")
    refused()
    shutil.copytree("copy", "trusted")
    for words in (["moved"], ["trusted", "--trust"]):
        assert _dispatch(["evaluate", "episodes=1", *words]) == 0, "moved is the run itself under another name"
    config = yaml.safe_load(Path("moved/config.yaml").read_text())
    config["algo"] |= {"name": "other", "module": "evilmod"}
    signature.write_signed(Path("moved/config.yaml"), yaml.safe_dump(config))
    for file in (Path("moved/config.yaml"), signature.beside(Path("moved/config.yaml"))):
        shutil.copy(file, "copy")
    Path("pwned").unlink()
    refused("train", *RUN, "init=copy", "run_dir=again")


def test_a_config_is_parsed_as_it_was_when_its_signature_was_checked(monkeypatch):
    """Somebody who may write to the folder could change the file between two looks at it."""
    assert _dispatch(["train", *RUN, "run_dir=run"]) == 0
    path, real = Path("run/config.yaml"), signature._holds
    good = path.read_text()
    for words in (["evaluate", "run"], ["resume", "run", "env_steps=900"], ["train", "--from-run", "run", "run_dir=new"]):
        path.write_text(good.replace("name: CartPole-v1", "name: evilmod:E-v0"))
        looks = []

        def swapped(file, line, looks=looks):
            text = path.read_text()
            looks.append(text)
            path.write_text(good)
            ours = real(file, line)
            path.write_text(text)
            return ours

        monkeypatch.setattr(signature, "_holds", swapped)
        with pytest.raises(UserError, match=r"evilmod is not part of an installed package"):
            _dispatch(words)
        with pytest.raises(UserError, match=r"evilmod is not part of an installed package"):
            rlrun.load("run")
        monkeypatch.setattr(signature, "_holds", real)
        assert looks and not Path("pwned").exists() and not Path("new").exists()


def test_a_run_of_installed_modules_needs_nothing():
    assert _dispatch(["train", *RUN, "run_dir=run"]) == 0
    signature.beside(Path("run/config.yaml")).unlink()
    assert _dispatch(["evaluate", "run", "episodes=1"]) == 0
    text = Path("run/config.yaml").read_text()
    for change, said in (
        ("hydra: {run: {dir: x}}", "`hydra` section"),
        ("extra: ${oc.env:HOME}", "interpolation"),
        ("replay: {directory: /tmp/anywhere}", "lets this file choose"),
        ("logger: {mlflow: {enabled: true, uri: 'http://127.0.0.1:9'}}", "lets this file choose"),
        ("a: &a [1, 1]\n" + "".join(f"a{n}: [*a, *a]\n" for n in range(30)), "too large"),
    ):
        Path("run/config.yaml").write_text(f"{change}\n{text}")
        with pytest.raises(UserError, match=said):
            _dispatch(["evaluate", "run"])
    Path("run/config.yaml").write_text(text.replace("record: null", "record: /tmp/anywhere"))
    with pytest.raises(UserError, match="lets this file choose"):
        _dispatch(["evaluate", "run"])
    Path("run/config.yaml").write_text(text.replace("runs_root: ", "runs_root: /elsewhere/"))
    assert _dispatch(["resume", "run", "env_steps=1500"]) == 0 and not Path("/elsewhere").exists()
    assert not signature.signed(Path("run/config.yaml")), "what it names has not been trusted"
    Path("victim").write_text("precious")
    Path("run/report.html").symlink_to(Path("victim").resolve())
    with pytest.raises(UserError, match="symbolic link"):
        _dispatch(["resume", "run", "env_steps=2000"])
    for command in ("report", "plot"):
        with pytest.raises(UserError, match="symbolic link"):
            _dispatch([command, "run"])
    assert Path("victim").read_text() == "precious"


def unsigned(**parts):
    """A run directory from elsewhere, without checkpoints, whose config has these parts."""
    Path("run").mkdir()
    save_yaml({**compose("algo=pg", "env=CartPole-v1"), **parts}, Path("run/config.yaml"))
    return Path("run")


def test_a_python_program_calls_no_function_that_a_run_from_elsewhere_names():
    """The door is open in a program, because its own words may name what they like."""
    env = {"name": "torch.utils.collect_env:run", "family": "agents", "kwargs": {"command": "touch pwned"}}
    run = unsigned(env=group_defaults("env", "agents") | env)
    with pytest.raises(UserError, match=r"torch\.utils\.collect_env:run is not a class"):
        rlrun.resume(run, env_steps=9000)
    Path("run/evil.py").write_text(EVIL)
    with pytest.raises(UserError, match=r"run\.evil is not part of an installed package"):
        _class_of({"name": "mine", "module": "run.evil"}, own=False)
    Path("conf/env").mkdir(parents=True)
    Path("conf/env/theirs.yaml").write_text(
        "defaults: [CartPole-v1, _self_]\nwrappers: [{name: 'torch:save', f: pwned}]\n"
    )
    with pytest.raises(UserError, match="torch:save is not a class"):
        rlrun.train("pg", "theirs", overrides=["--config-dir=conf"], run_dir="new")
    assert not Path("pwned").exists() and not plugins._Door.closed


def test_options_of_a_data_run_from_elsewhere_name_no_code():
    from rlrun.envs.recorded import RecordedConfig

    config = type_config(compose("algo=pg", "env=CartPole-v1"))
    options = {"wrappers": [{"name": "torch:save", "f": "pwned"}]}
    env = RecordedConfig(name="CartPole-v1", family="data", spec=None, options=options, reward_clip="none")
    spec = make_spec(config.env, *config.run.model.memory.previous)
    with pytest.warns(Notice, match="played with its defaults"):
        made, _ = environment_of(SimpleNamespace(config=SimpleNamespace(env=env, run=config.run), spec=spec))
    assert not made.wrappers and not Path("pwned").exists()


def test_a_run_from_elsewhere_joins_no_cluster_that_it_names():
    resources = compose("algo=pg", "env=CartPole-v1", "resources=ray")["resources"]
    resources["ray"] |= {"address": "203.0.113.5:6379", "allow_open": True}
    run = unsigned(resources=resources)
    with pytest.raises(UserError, match=r"resources.ray.address=203.0.113.5:6379 lets this file choose"):
        saved_config(run)
    with pytest.raises(UserError, match=r"resources.ray.address=203.0.113.5:6379 lets this file choose"):
        _dispatch(["resume", "run", "env_steps=9000"])
    said = saved_config(run, unused={"resources.ray.address"})
    assert said["resources"]["ray"]["address"] == "203.0.113.5:6379", "the user's own word replaces it"
    with pytest.raises(UserError, match="holds no checkpoint"):
        load(run)


def test_only_what_the_user_names_may_be_called():
    def called():
        return plugins.load_object("torch:save", "model.encoder", torch.nn.Module)

    with plugins.only_installed():
        plugins.allow(["model.encoder=torch.nn:Linear", "env=evilmod:E-v0"])
        with pytest.raises(UserError, match="not a class that derives from Module"):
            called()
        plugins.allow({"model": {"encoder": "torch:save"}})
        assert called() is torch.save
    with plugins.only_installed(False), plugins.only_installed():
        assert called() is torch.save, "--trust is for all that the command reads"


def test_packages_that_need_a_library_of_reinforcement_learning_may_be_named(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    monkeypatch.setattr(plugins, "_site_folders", lambda: [folder])
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    said = {"mazes": ["gymnasium>=1.0"], "more-mazes": ["Mazes (>=2)"], "server": ["numpy", 'mazes; extra == "all"']}
    said |= {"networks": ["numpy", 'torch ; extra == "torch"'], "gymnasium_like": []}
    for name, needed in said.items():
        info, package = folder / f"{name.replace('-', '_')}-1.dist-info", folder / name.replace("-", "_")
        info.mkdir(parents=True)
        package.mkdir()
        (package / "__init__.py").touch()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *(f"Requires-Dist: {one}" for one in needed)]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "RECORD").write_text(f"{package.name}/__init__.py,,\n")
    plugins._fitting.cache_clear()
    plugins._edited.cache_clear()
    try:
        for module, refused in (("mazes", False), ("more_mazes.a", False), ("networks", False), ("server", True),
                                ("gymnasium_like", True)):  # fmt: skip
            with pytest.raises(UserError, match="needs none of") if refused else contextlib.nullcontext():
                plugins.check_installed(module, "env")
    finally:
        plugins._fitting.cache_clear()
        plugins._edited.cache_clear()


@pytest.mark.parametrize("name", ["evilmod:E-v0", "evilmod: E-v0", "evilmod://E-v0", " evilmod:E-v0"])
def test_a_game_of_copies_imports_no_module_by_itself(name, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path.cwd())])  # as in a Python program
    with plugins.only_installed(), pytest.raises(UserError, match="evilmod"):
        Several(name)
    assert not Path("pwned").exists()
    if name == "evilmod:E-v0":
        assert len(Several(name, 3).copies) == 3, "the user's own words may name it"


def test_a_foreign_module_sees_no_words_of_the_command_line(monkeypatch):
    monkeypatch.setattr(plugins, "check_installed", lambda module, where: None)
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path.cwd())])
    monkeypatch.setattr(sys, "argv", ["rlrun", "resume", "theirs"])
    Path("evilmod.py").write_text("import sys\nseen = list(sys.argv)\n")
    with plugins.only_installed():
        assert plugins.import_named("evilmod", "env").seen == ["rlrun"]
    assert sys.argv == ["rlrun", "resume", "theirs"]


def test_texts_of_a_run_from_elsewhere_cannot_steer_the_terminal():
    shown = text_table([["env.name", "Cart\x1b]0;x\x07\x1b[2J"]], ("option", "first"))
    assert "\x1b" not in shown and "Cart?]0;x??[2J" in shown


def test_a_config_from_elsewhere_holds_nothing_that_steers_the_terminal(capsys):
    assert _dispatch(["train", *RUN, "run_dir=run"]) == 0
    signature.beside(Path("run/config.yaml")).unlink()
    text = Path("run/config.yaml").read_text()
    for other in (text.replace("name: CartPole-v1", r'name: "Cart\e]0;x\aPole-v1"'),
                  text.replace("kwargs: {}", r'kwargs: {"a\e[2J": 1}')):  # fmt: skip
        assert other != text
        Path("run/config.yaml").write_text(other)
        for words in (["evaluate", "run"], ["resume", "run", "env_steps=900"], ["train", "--from-run", "run", "--plan"]):
            with pytest.raises(UserError, match="has characters that steer a terminal"):
                _dispatch(words)
    assert "\x1b" not in "".join(capsys.readouterr())


def test_a_picture_replaces_a_link():
    from matplotlib.figure import Figure

    Path("victim").write_text("precious")
    Path("curves.png").symlink_to("victim")
    charts.save(Figure(figsize=(1, 1)), Path("curves.png"))
    assert Path("victim").read_text() == "precious" and Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_checkpoint_is_one_of_the_run():
    Path("checkpoints").mkdir()
    for name in ("../../elsewhere", "best-", 3.5, None, "best-000000000120", "000000000120"):
        Path("checkpoints/best.json").write_text(json.dumps({"name": name}))
        if str(name).endswith("120"):
            assert Checkpoints(Path("checkpoints"), 1).best() == name
            continue
        with pytest.raises(UserError, match=r"best\.json is damaged"):
            Checkpoints(Path("checkpoints"), 1).best()


def test_defaults_of_old_runs_come_from_rlruns_own_files(tmp_path):
    assert _dispatch(["train", *RUN, "run_dir=run"]) == 0
    signature.beside(Path("run/config.yaml")).unlink()
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    del config["callbacks"], config["init"]
    outside = f"../../../../../../../..{tmp_path}/evil"
    Path("evil.yaml").write_text("callbacks: ['evilmod:Name']\nexpected: {leak: '${oc.env:HOME}'}\n")
    for group in ("runner", "replay"):
        changed = {**config, group: {**(config.get(group) or {}), "name": outside}}
        Path("run/config.yaml").write_text(yaml.safe_dump(changed))
        with pytest.raises(UserError):
            _dispatch(["train", "--from-run", "run", "run_dir=again"])
    assert not Path("again").exists()


def test_the_key_is_the_users_own():
    Path("a.txt").write_text("a")
    signature.sign(Path("a.txt"))
    assert signature.signed(Path("a.txt")) and signature.key_path().stat().st_mode & 0o777 == 0o600
    signature.key_path().chmod(0o644)
    assert not signature.signed(Path("a.txt")), "others could have read the key"
    signature.key_path().chmod(0o600)
    Path("a.txt").write_text("b")
    assert not signature.signed(Path("a.txt"))


@pytest.mark.parametrize("after", range(4))
def test_a_kill_at_any_write_leaves_a_signed_file_and_signs_nothing_from_elsewhere(after, monkeypatch):
    place, real, made = Path("a.txt"), signature.write_atomically, []

    def write(path, text, folder=None):
        if len(made) == after:
            raise KeyboardInterrupt
        made.append(path)
        real(path, text, folder)

    for foreign in (False, True):
        place.write_text("old")
        signature.beside(place).unlink(missing_ok=True)
        if not foreign:
            signature.sign(place)
        made.clear()
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(signature, "write_atomically", write)
            signature.write_signed(place, "new")
        assert place.read_text() == ("new" if after >= 2 else "old")
        assert signature.signed(place) == (after >= 2 or not foreign)


def test_links_in_a_copy_of_a_run_are_refused_and_those_in_the_run_itself_are_not():
    assert _dispatch(["train", *RUN, "run_dir=run"]) == 0
    Path("elsewhere.jsonl").write_text("")
    shutil.copytree("run", "copy")
    Path("run").rename("moved")
    for run, rows in (("moved", Path("moved/rows")), ("copy", Path("copy/rows"))):
        rows.symlink_to(Path("elsewhere.jsonl").absolute())
        assert signature.signed(Path(run) / "config.yaml")
    saved_config(Path("moved"))
    assert [run.path for run in find(["moved"])] == [Path("moved")]
    for refused in (lambda: saved_config(Path("copy")), lambda: find(["copy"])):
        with pytest.raises(UserError, match=r"copy/rows is a symbolic link, and copy .* is a copy"):
            refused()
    saved_config(Path("copy"), trusted=True)
    Path("copy/rows").unlink()
    saved_config(Path("copy"))


def test_a_sweep_from_elsewhere_needs_trust():
    Path("sweep/logs").mkdir(parents=True)
    said = {"format": 1, "command": "", "words": [], "search": None, "cwd": ".", "mlflow": None}
    job = {"name": "../../x", "words": ["env=evilmod:E-v0"]}
    Path("sweep/sweep.json").write_text(json.dumps({**said, "jobs": [job]}))
    Path("victim").write_text("precious")
    Path("sweep/sweep.lock").symlink_to(Path("victim").resolve())
    with pytest.raises(UserError, match="symbolic link"):
        _dispatch(["sweep", "--resume", "sweep"])
    assert Path("victim").read_text() == "precious"
    Path("sweep/sweep.lock").unlink()
    with pytest.raises(UserError, match="was not written by you"):
        _dispatch(["sweep", "--resume", "sweep"])
    with pytest.raises(UserError, match="files are named after it"):
        _dispatch(["sweep", "--resume", "sweep", "--trust"])
    assert not Path("pwned").exists()
