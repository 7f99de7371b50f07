"""Messages about missing packages give a line that works for the way in which rlrun is installed."""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlrun.cli import _dispatch
from rlrun.core import installing
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.installing import CHECKOUT, install_line, is_installed, pip_line


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A virtual environment .venv in an empty folder, from which rlrun seems to run."""
    folder = tmp_path / "project"
    bin = folder / ".venv" / "bin"
    bin.mkdir(parents=True)
    for name in ("python", "pip"):
        (bin / name).write_text("#!/bin/sh\n")
        (bin / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bin / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(folder)
    return folder


def test_every_message_names_one_short_line(environment, monkeypatch):
    """It begins with rlrun as it is typed here."""
    assert install_line("box2d", "mujoco") == f"{sys.executable} -m rlrun setup box2d mujoco"
    command = environment / ".venv" / "bin" / "rlrun"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert install_line("box2d") == ".venv/bin/rlrun setup box2d"
    monkeypatch.setenv("PATH", str(command.parent))
    assert install_line("box2d") == "rlrun setup box2d"


def test_a_clone_names_its_own_folder(environment, monkeypatch):
    assert pip_line("box2d") == f".venv/bin/pip install -c {CHECKOUT}/scripts/constraints.txt -e '{CHECKOUT}[box2d]'"
    monkeypatch.chdir(CHECKOUT)
    assert pip_line("box2d", "mujoco") == f"{environment}/.venv/bin/pip install -c scripts/constraints.txt -e '.[box2d,mujoco]'"


def test_a_wheel_names_the_package(environment, monkeypatch, tmp_path):
    monkeypatch.setattr(installing, "CHECKOUT", tmp_path)
    assert pip_line("box2d") == ".venv/bin/pip install 'rlrun[box2d]'"
    monkeypatch.setenv("PATH", str(environment / ".venv" / "bin"))
    assert pip_line("box2d") == "pip install 'rlrun[box2d]'"  # an activated environment
    (environment / ".venv" / "bin" / "pip").unlink()
    assert pip_line("box2d") == f"{sys.executable} -m pip install 'rlrun[box2d]'"


def test_setup_installs_extras_into_the_running_environment(monkeypatch, capsys):
    ran = []

    def run(words, **other):
        ran.append(words)
        return subprocess.CompletedProcess(words, code)

    monkeypatch.setattr(subprocess, "run", run)
    code = 0
    assert _dispatch(["setup", "box2d", "search", "--plan"]) == 0 and ran == []
    planned = shlex.split(capsys.readouterr().out)
    assert _dispatch(["setup", "box2d", "search"]) == 0
    assert [word for word in ran[0] if word not in ("--disable-pip-version-check", "-q")][-5:] == planned[-5:], "what --plan has printed"
    assert ran[0][:4] == [sys.executable, "-m", "pip", "install"] and ran[0][-1].endswith("[box2d,search]")
    assert Path(ran[0][ran[0].index("-c") + 1]).resolve() == CHECKOUT / "scripts" / "constraints.txt"
    assert "box2d, search: installed into" in capsys.readouterr().out
    code = 1
    with pytest.raises(RunFailed, match="pip could not install box2d"):
        _dispatch(["setup", "box2d"])


def test_setup_lists_extras_and_knows_no_others(capsys):
    from rlrun.core.installing import WHAT, extras

    assert set(extras()) == set(WHAT)
    assert _dispatch(["setup"]) == 0
    said = capsys.readouterr().out
    there = importlib.util.find_spec("Box2D") is not None
    assert f"{'yes' if there else 'no ':<4}box2d        LunarLander" in said, "its packages are those of gymnasium[box2d]"
    assert ("no  slurm " in said) == (importlib.util.find_spec("submitit") is None)
    with pytest.raises(UserError, match="Did you mean mujoco"):
        _dispatch(["setup", "mujco"])


def test_all_is_every_extra_that_a_user_may_want():
    import tomllib

    declared = tomllib.loads((Path(CHECKOUT) / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set().union(*(Requirement(text).extras for text in declared["all"]))
    assert named == set(declared) - {"all", "docs", "dev"}


def test_a_package_that_this_python_does_not_get_is_not_missed(monkeypatch):
    needed = ["packaging", "no-such-package; python_version < '3'"]
    monkeypatch.setattr(installing, "declared", lambda: {"all": needed, "more": [*needed, "no-such-package"]})
    assert is_installed("all") and not is_installed("more")


@pytest.mark.parametrize(("version", "told"), [((3, 12), False), ((3, 13), True)])
def test_setup_says_for_which_pythons_dm_control_has_packages(monkeypatch, version, told):
    monkeypatch.setattr(subprocess, "run", lambda words, **other: subprocess.CompletedProcess(words, 1))
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(RunFailed) as failed:
        _dispatch(["setup", "dmc"])
    assert ("labmaze" in str(failed.value)) == told
