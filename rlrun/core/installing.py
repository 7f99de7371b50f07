"""How more of rlrun's packages are installed into the environment that is running it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def from_checkout() -> bool:
    """Whether rlrun runs from a clone of its repository and not from an installed package."""
    return (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "conf" / "train.yaml").is_file()


def requirement(*extras: str) -> list[str]:
    """The words behind `pip install` that add these extras: -e and the clone's folder, or the installed package."""
    if from_checkout():
        return ["-e", f"{'.' if Path.cwd() == CHECKOUT else CHECKOUT}[{','.join(extras)}]"]
    return [f"rlrun[{','.join(extras)}]"]


def install_line(*extras: str) -> str:
    """The line that a user can type here to install these extras into the environment that is running."""
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
