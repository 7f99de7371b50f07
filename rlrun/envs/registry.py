"""Env configs -> picklable factories, made inside the process that steps them."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.core.env import VectorEnv
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
