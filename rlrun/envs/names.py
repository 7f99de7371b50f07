"""The names that `env=` takes. Shell completion reads this file, so it must not import torch."""

from __future__ import annotations

import re
from functools import cache

import gymnasium

from rlrun.core.errors import UserError, closest

OWN = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[\w./-]+")  # my_package.envs:MyEnv-v0


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
    return [*sorted(games()), *sorted(registered)]


def family_of(name: str) -> tuple[str, str]:
    """Returns (family, canonical name) for `env=<name>`. Raises UserError with the closest names if there is none."""
    short = resolve(name)
    if short:
        return "atari", short
    known = names()
    if name in gymnasium.registry or OWN.fullmatch(name):
        return "gym", name
    if not games() and "-" not in name:
        raise UserError(f"env={name} is not a Gymnasium id; if it is an Atari game: pip install 'rlrun[atari]'")
    raise UserError(
        f"There is no env {name!r}.{closest(name, known)} (rlrun list envs shows all; your own:"
        " env=my_package:MyEnv-v0)"
    )


def numbered(name: str, stream: str, worker: int, count: int) -> tuple[str, range]:
    """Returns how messages call a worker's environments, and their numbers among all environments of the run."""
    of = {"env": "", "eval": " (evaluation)"}.get(stream, f" ({stream})")
    return f"{name}{of}", range(worker * count, (worker + 1) * count)
