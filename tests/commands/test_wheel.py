"""The wheel contains conf/ and tuned/, and rlrun trains from it outside any checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)],
        check=True,
        capture_output=True,
    )
    wheel = next(folder.glob("rlrun-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return wheel, folder / "site"


def rlrun(site: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-m", "rlrun", *words], capture_output=True, text=True, timeout=120, env=environment, cwd=cwd
    )


def test_the_wheel_has_everything(installed):
    names = set(zipfile.ZipFile(installed[0]).namelist())
    assert {
        "rlrun/py.typed",
        "rlrun/_data/conf/train.yaml",
        "rlrun/_data/tuned/impala/pong.yaml",
        "rlrun/rllib/options/impala.yaml",
    } <= names
    packages = {str(p.relative_to(ROOT).as_posix()) for p in (ROOT / "rlrun").rglob("*.py")}
    tracked = set(
        subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "rlrun/*.py"], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert packages & tracked <= names
    assert not any(name.startswith(("tests/", "conf/")) for name in names)


def test_it_trains_and_evaluates(installed, tmp_path):
    site = installed[1]
    where = subprocess.run(
        [sys.executable, "-c", "import rlrun.config.paths as p; print(p.root())"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert where.stdout.strip() == str(site / "rlrun" / "_data")
    assert "impala/pong" in rlrun(site, tmp_path, "list", "tuned").stdout
    words = ["tuned=impala/cartpole", "env_steps=300", "resources=debug", "logger=[console]", "run_dir=run"]
    trained = rlrun(site, tmp_path, "train", *words)
    assert trained.returncode == 0, trained.stderr
    evaluated = rlrun(site, tmp_path, "evaluate", "run", "episodes=2")
    assert evaluated.returncode == 0 and "over 2 full games" in evaluated.stdout
