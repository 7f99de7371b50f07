"""The names that `env=` takes. Shell completion reads this file, so it must not import torch."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import gymnasium

from rlrun.core.errors import UserError, closest
from rlrun.core.plugins import import_named

OWN = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[\w./-]+")  # my_package.envs:MyEnv-v0


# rlrun's own games with several agents (envs/games.py).
AGENT_GAMES = (
    "TwoStepGame-v0",
    "MatrixGame-v0",
    "RockPaperScissors-v0",
    "MultiAgentCartPole-v0",
    "MultiAgentPendulum-v0",
)
ZOO = re.compile(r"[a-z][a-z0-9_]*_v\d+")  # simple_spread_v3
# Packages that register Gymnasium ids of environments with several agents, by how the ids begin.
TUPLES = {"Foraging-": "lbforaging", "rware-": "rware"}
EXTRA = "pip install 'rlrun[multi-agent]'"


@cache
def zoo_modules() -> dict[str, str]:
    """Maps the names of PettingZoo's and mpe2's environments to their modules, which are not imported. Empty without
    these packages."""
    found: dict[str, str] = {}
    for package, folders in (("pettingzoo", ("butterfly", "classic", "sisl", "atari")), ("mpe2", ("",))):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for folder in folders:
                for path in sorted(Path(place, folder).glob("*_v*")):
                    name = path.stem if path.suffix == ".py" else path.name
                    if ZOO.fullmatch(name) and (path.suffix == ".py" or (path / "__init__.py").is_file()):
                        found[name] = ".".join(part for part in (package, folder, name) if part)
    return found


def petting_zoo(name: str) -> str:
    """The module of one of PettingZoo's or mpe2's environments. Raises UserError if there is none."""
    short = name.removeprefix("pettingzoo/").removeprefix("mpe2/")
    if short in zoo_modules():
        return zoo_modules()[short]
    if not zoo_modules():
        raise UserError(f"env={name} is an environment of PettingZoo, which is not installed: {EXTRA}")
    older = [known for known in zoo_modules() if known.rpartition("_v")[0] == short.rpartition("_v")[0]]
    there = f" PettingZoo has {older[0]} now." if older else closest(short, zoo_modules())
    raise UserError(f"There is no env {name!r}.{there} (rlrun list envs shows all)")


@cache
def games() -> dict[str, str]:
    """Maps each game's short name to its ROM id: {"MsPacman": "ms_pacman", ...}. Empty without ale-py."""
    try:
        from ale_py import roms
    except ImportError:
        return {}
    return {"".join(part.capitalize() for part in rom.split("_")): rom for rom in roms.get_all_rom_ids()}


def resolve(name: str) -> str | None:
    """Returns the game's short name for `Pong`, `ALE/Pong-v5`, `PongNoFrameskip-v4` and so on; None if it is no game.

    The defaults that belong to a version, such as sticky actions, are ignored.
    """
    short = name.removeprefix("ALE/")
    for ending in ("NoFrameskip-v4", "NoFrameskip-v0", "Deterministic-v4", "Deterministic-v0", "-v5", "-v4", "-v0"):
        short = short.removesuffix(ending)
    return short if short in games() else None


def names() -> list[str]:
    """Names that `rlrun list envs` and completion offer: short names of Atari games, then Gymnasium ids."""
    import rlrun.envs.debug  # noqa: F401

    registered = [
        name
        for name, spec in gymnasium.registry.items()
        if not any(part in str(spec.entry_point) for part in ("ale_py", "_raise_"))
        and not name.startswith(("GymV", "phys2d/", "tabular/"))
    ]
    return [*sorted(games()), *sorted(registered), *AGENT_GAMES, *sorted(zoo_modules())]


def family_of(name: str) -> tuple[str, str]:
    """Returns (family, canonical name) for `env=<name>`. Raises UserError with the closest names if there is none."""
    short = resolve(name)
    if short:
        return "atari", short
    if name in AGENT_GAMES:
        return "agents", name
    if name.startswith(("pettingzoo/", "mpe2/")) or ZOO.fullmatch(name):
        petting_zoo(name)
        return "agents", name
    package = next((package for begin, package in TUPLES.items() if name.startswith(begin)), None)
    if package is not None:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"env={name} is an environment of {package}, which is not installed: {EXTRA}")
        return "agents", f"{package}:{name}"
    if OWN.fullmatch(name) and _has_agents(name):
        return "agents", name
    known = names()
    if name in gymnasium.registry or OWN.fullmatch(name):
        return "gym", name
    if not games() and "-" not in name:
        raise UserError(f"env={name} is not a Gymnasium id; if it is an Atari game: pip install 'rlrun[atari]'")
    raise UserError(
        f"There is no env {name!r}.{closest(name, known)} (rlrun list envs shows all; your own:"
        " env=my_package:MyEnv-v0)"
    )


def _has_agents(name: str) -> bool:
    """Whether my_package:Name is an environment with several agents. A registered id of Gymnasium is not, unless its
    package is known for these; anything else in the module is one."""
    module, _, part = name.rpartition(":")
    if module in TUPLES.values():
        return True
    if re.search(r"-v\d+$", part):
        return False
    try:
        imported = import_named(module, f"env={name}")
    except ImportError:
        return False
    return part not in gymnasium.registry and hasattr(imported, part)


def numbered(name: str, stream: str, worker: int, count: int) -> tuple[str, range]:
    """Returns how messages call a worker's environments, and their numbers among all environments of the run."""
    of = {"env": "", "eval": " (evaluation)"}.get(stream, f" ({stream})")
    return f"{name}{of}", range(worker * count, (worker + 1) * count)
