"""Env configs -> picklable factories, and the names that `env=` takes."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium

from rlrun.core.env import VectorEnv
from rlrun.core.errors import UserError, closest
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.envs import atari, gym
from rlrun.envs.atari import AtariConfig
from rlrun.envs.gym import GymConfig

EnvConfig = AtariConfig | GymConfig
FAMILIES: dict[str, type] = {"atari": AtariConfig, "gym": GymConfig}


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Makes `count` environments for one worker. `stream` tells training ("env") from evaluation ("eval") seeds."""

    cfg: EnvConfig
    spec: EnvSpec
    seeds: Seeds
    stream: str
    learning: bool  # False: life losses are no ends

    def __call__(self, worker: int, count: int) -> VectorEnv:
        if isinstance(self.cfg, AtariConfig):
            return atari.AtariEnv(self.cfg, self.spec, self.seeds, self.stream, worker, count, self.learning)
        return gym.GymEnv(self.cfg, self.spec, self.seeds, self.stream, worker, count)


def make_spec(cfg: EnvConfig) -> EnvSpec:
    """The facts of an environment; raises UserError when it cannot be made or its spaces are not known."""
    return atari.make_spec(cfg) if isinstance(cfg, AtariConfig) else gym.make_spec(cfg)


def names() -> list[str]:
    """What `rlrun list envs` and completion offer: Atari by short name, then Gymnasium's ids."""
    import rlrun.envs.debug  # noqa: F401

    registered = [name for name in gymnasium.registry if not name.startswith(("ALE/", "GymV", "phys2d/", "tabular/"))]
    return [*sorted(atari.games()), *sorted(registered)]


def family_of(name: str) -> tuple[str, str]:
    """(family, canonical name) behind `env=<name>`. Raises UserError with the closest names."""
    short = atari.resolve(name)
    if short:
        return "atari", short
    known = names()
    if ":" in name or name in gymnasium.registry:
        return "gym", name
    if not atari.games() and "-" not in name:
        raise UserError(f"env={name} is no Gymnasium id; if it is an Atari game: pip install 'rlrun[atari]'")
    raise UserError(f"There is no env {name!r}.{closest(name, known)} (rlrun list envs shows all; your own: env=my_package:MyEnv-v0)")
