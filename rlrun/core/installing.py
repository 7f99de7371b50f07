"""How more of rlrun's packages are installed into the environment that is running it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


# What each extra brings.
WHAT = {
    "atari": "Atari games (ale-py, which is GPL-2.0)",
    "video": "videos of a policy, and windows",
    "mujoco": "Gymnasium's MuJoCo tasks",
    "dmc": "tasks of dm-control",
    "crafter": "Crafter",
    "box2d": "LunarLander, BipedalWalker and CarRacing",
    "minigrid": "MiniGrid and BabyAI",
    "lz4": "replays that are compressed in memory",
    "multi-agent": "PettingZoo, mpe2, level-based foraging and the warehouse",
    "gpu-metrics": "the load of a GPU in the logs",
    "search": "TPE searches (Optuna)",
    "slurm": "sweeps on a cluster (submitit)",
    "ray": "runs on several machines (Ray)",
    "minari": "Minari's data sets",
    "export": "policies as .safetensors",
    "onnx": "policies as .onnx",
    "docs": "the site of the pages (mkdocs-material)",
    "dev": "tests, ruff and mypy",
    "all": "all of these but docs and dev (and without dmc on Python 3.13 or newer)",
}


def from_checkout() -> bool:
    """Whether rlrun runs from a clone of its repository and not from an installed package."""
    return (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "conf" / "train.yaml").is_file()


def requirement(*extras: str) -> list[str]:
    """The words behind `pip install` that add these extras: the clone's pins, -e and its folder, or the installed
    package."""
    if from_checkout():
        folder = Path() if Path.cwd() == CHECKOUT else CHECKOUT
        pins = folder / "scripts" / "constraints.txt"
        return [*(("-c", str(pins)) if pins.is_file() else ()), "-e", f"{folder}[{','.join(extras)}]"]
    return [f"rlrun[{','.join(extras)}]"]


def install_line(*extras: str) -> str:
    """The line that a user can type here to install these extras into the environment that is running. All messages
    about missing packages end with it."""
    return f"{typed_as()} setup {' '.join(extras)}"


def pip_line(*extras: str) -> str:
    """What `rlrun setup` does with these extras, as a line for a shell."""
    return f"{_pip()} install {' '.join(_quoted(word) for word in requirement(*extras))}"


def _quoted(word: str) -> str:
    return f"'{word}'" if "[" in word and "'" not in word else shlex.quote(word)


def _pip() -> str:
    """The shortest way to type the pip of the running environment."""
    own = Path(sys.executable).with_name("pip")
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m pip"
    found = shutil.which("pip")
    if found and Path(found).resolve() == own.resolve():
        return "pip"
    here = Path.cwd()
    return shlex.quote(os.path.relpath(own, here) if own.is_relative_to(here) else str(own))


def typed_as() -> str:
    """How a user types the rlrun that is running: rlrun where it is on the path, scripts/rlrun in a clone, or else the
    whole path."""
    own = Path(sys.executable).with_name("rlrun")
    found = shutil.which("rlrun")
    if found and Path(found).resolve() == own.resolve():
        return "rlrun"
    here = Path.cwd()
    if here == CHECKOUT and own.is_relative_to(here) and (here / "scripts" / "rlrun").is_file():
        return "scripts/rlrun"
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m rlrun"
    return shlex.quote(os.path.relpath(own, here) if own.is_relative_to(here) else str(own))


def declared() -> dict[str, list[str]]:
    """The requirements of each extra as the clone's pyproject.toml has them."""
    import tomllib

    read = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    made: dict[str, list[str]] = read["project"]["optional-dependencies"]
    return made


def is_installed(extra: str) -> bool:
    """Whether all packages of an extra are in the environment that is running, of whatever version."""
    return all(_is_there(one) for one in _requirements("rlrun", extra))


def _requirements(package: str, extra: str) -> list[Any]:
    """What an extra of a package needs here."""
    from importlib import metadata

    from packaging.requirements import Requirement

    if package == "rlrun" and from_checkout():
        needed = [Requirement(text) for text in declared()[extra]]
        return [one for one in needed if one.marker is None or one.marker.evaluate()]
    every = [Requirement(text) for text in metadata.requires(package) or []]
    return [
        one
        for one in every
        if one.marker and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    ]


def _is_there(needed: Any) -> bool:
    """Whether a requirement and its own extras are installed."""
    from importlib import metadata

    try:
        if needed.name != "rlrun":
            metadata.version(needed.name)
        return all(_is_there(one) for extra in needed.extras for one in _requirements(needed.name, extra))
    except metadata.PackageNotFoundError:
        return False


def extras() -> list[str]:
    """The names of rlrun's extras, in the order in which they are declared."""
    if from_checkout():
        return list(declared())
    from importlib import metadata

    found = metadata.metadata("rlrun").get_all("Provides-Extra") or []
    ours = {re.sub(r"[-_.]+", "-", name): name for name in WHAT}
    return [ours.get(re.sub(r"[-_.]+", "-", name), name) for name in found]
