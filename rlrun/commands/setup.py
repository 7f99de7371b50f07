"""rlrun setup [EXTRA ...] [--plan]

Installs rlrun's extras into the environment that is running it: rlrun setup mujoco box2d. Without a name it lists all
extras, and says which are installed. --plan prints the command and runs nothing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from rlrun.cli import take_flags
from rlrun.core.errors import RunFailed, UserError, closest
from rlrun.core.installing import WHAT, extras, is_installed, pip_line, requirement, typed_as


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
        if flags["--plan"]:
            raise UserError(
                "--plan prints the command that installs extras: name them, as in rlrun setup mujoco --plan"
            )
        for name in known:
            print(f"{'yes' if is_installed(name) else 'no':<4}{name:<12} {WHAT.get(name, '')}".rstrip())
        print(f"\nyes: installed. {typed_as()} setup NAME ... installs others.")
        return 0
    print(pip_line(*names), flush=True)
    if flags["--plan"]:
        return 0
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{sys.executable} has no pip, so that another tool has to install this:"
            f" {' '.join(requirement(*names))} (with uv: uv pip install ...)"
        )
    quiet = ["--disable-pip-version-check", "-q"]
    made = subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *requirement(*names)])
    if made.returncode:
        old = sys.version_info < (3, 13) or "dmc" not in names
        why = "" if old else "; dm-control needs labmaze, which has packages for Python up to 3.12 alone"
        raise RunFailed(f"pip could not install {', '.join(names)}; what it said is above{why}")
    print(f"{', '.join(names)}: installed into {sys.prefix}")
    return 0
