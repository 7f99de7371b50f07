"""rlrun setup [EXTRA ...] [--plan]

Installs rlrun's extras into the environment that is running it: rlrun setup mujoco box2d. Without a name it lists all
extras. --plan prints the command and runs nothing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib import metadata

from rlrun.cli import take_flags
from rlrun.core.errors import RunFailed, UserError, closest
from rlrun.core.installing import CHECKOUT, from_checkout, install_line, requirement

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
    "minari": "Minari's data sets",
    "export": "policies as .safetensors",
    "onnx": "policies as .onnx",
    "docs": "the site of the pages (mkdocs-material)",
    "dev": "tests, ruff and mypy",
    "all": "all of these but docs and dev",
}


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    flags, names = take_flags(words, {"--plan": bool})
    known = extras()
    for name in names:
        if name not in known:
            raise UserError(f"There is no extra {name!r}.{closest(name, known)} rlrun setup lists all.")
    if not names:
        for name in known:
            print(f"{name:<12} {WHAT.get(name, '')}".rstrip())
        print("\nrlrun setup NAME ... installs them.")
        return 0
    print(install_line(*names), flush=True)
    if flags["--plan"]:
        return 0
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{sys.executable} has no pip, so that another tool has to install this:"
            f" {' '.join(requirement(*names))} (with uv: uv pip install ...)"
        )
    pins = CHECKOUT / "scripts" / "constraints.txt"
    pinned = ["-c", str(pins)] if from_checkout() and pins.is_file() else []
    quiet = ["--disable-pip-version-check", "-q"]
    made = subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *pinned, *requirement(*names)])
    if made.returncode:
        raise RunFailed(f"pip could not install {', '.join(names)}; what it said is above")
    print(f"{', '.join(names)}: installed into {sys.prefix}")
    return 0


def extras() -> list[str]:
    """The names of rlrun's extras, in the order in which they are declared."""
    if from_checkout():
        import tomllib

        declared = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
        return list(declared["project"]["optional-dependencies"])
    found = metadata.metadata("rlrun").get_all("Provides-Extra") or []
    ours = {re.sub(r"[-_.]+", "-", name): name for name in WHAT}
    return [ours.get(re.sub(r"[-_.]+", "-", name), name) for name in found]
