"""The wheel contains conf/ and tuned/, and rlrun trains from it outside any checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
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


@cache
def tracked_files() -> frozenset[str]:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
    return frozenset(listed.stdout.splitlines())


def is_tracked(name: str) -> bool:
    return name in tracked_files()


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
    data = {
        f"rlrun/_data/{path.relative_to(ROOT).as_posix()}"
        for folder, kinds in (("conf", ["*.yaml"]), ("tuned", ["*.yaml", "*.json"]))
        for kind in kinds
        for path in (ROOT / folder).rglob(kind)
    }
    assert {name for name in data if is_tracked(name.removeprefix("rlrun/_data/"))} <= names
    assert {f"rlrun/data/{path.name}" for path in (ROOT / "rlrun" / "data").glob("*.*")} <= names
    assert not any(name.endswith((".png", ".html", ".md")) for name in names), "pictures are made of the JSON files"
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


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The source distribution of the last commit."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "source")], check=True)
    build = f"import setuptools.build_meta as build; build.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=folder / "source", check=True, capture_output=True)
    return next(folder.glob("rlrun-*.tar.gz"))


def test_the_source_distribution_has_what_the_wheel_is_made_of(source):
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        name
        for name in tracked_files()
        if name.startswith(("rlrun/", "conf/", "tuned/")) and not name.endswith((".png", ".html", ".md"))
    }
    assert needed <= names, sorted(needed - names)[:5]
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md"} <= names


def test_there_is_one_version(installed):
    import rlrun

    assert installed[0].name.split("-")[1] == rlrun.__version__
    written = [name for name in ("pyproject.toml", "setup.py", "CITATION.cff") if rlrun.__version__ in (ROOT / name).read_text()]
    assert not written, "the version stands in rlrun/__init__.py alone"
    assert f"## {rlrun.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_a_fresh_environment_trains_from_the_wheel_of_the_source_distribution(source, tmp_path):
    """Installs everything from the package index, which takes minutes and some gigabytes."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*words, **other):
        return subprocess.run(list(map(str, words)), check=True, env=environment, timeout=1800, **other)

    run(sys.executable, "-m", "venv", tmp_path / "fresh")
    run(tmp_path / "fresh/bin/pip", "install", "-q", source)
    (tmp_path / "empty").mkdir()
    words = ["train", "algo=ppo", "env=CartPole-v1", "env_steps=2000"]
    trained = run(tmp_path / "fresh/bin/rlrun", *words, cwd=tmp_path / "empty", capture_output=True, text=True)
    assert "COMPLETED: " in trained.stdout
    place = tmp_path / "empty" / trained.stdout.splitlines()[-1]
    assert (place / "summary.json").is_file()
