"""Env configs -> picklable factories, made inside the process that steps them."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.core.env import VectorEnv
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.envs import atari, gym
from rlrun.envs.atari import AtariConfig
from rlrun.envs.gym import GymConfig
from rlrun.envs.previous import Previous, with_previous

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
    threads: int = 1  # that games may be stepped with, where nothing else runs at that time

    def __call__(self, worker: int, count: int) -> VectorEnv:
        env: VectorEnv
        if isinstance(self.cfg, AtariConfig):
            env = atari.AtariEnv(self.cfg, self.spec, self.seeds, self.stream, worker, count, self.learning, self.threads)
        else:
            env = gym.GymEnv(self.cfg, self.spec, self.seeds, self.stream, worker, count)
        return Previous(env, self.spec) if {"prev_action", "prev_reward"} & self.spec.obs.keys() else env


def make_spec(cfg: EnvConfig, prev_action: bool = False, prev_reward: bool = False) -> EnvSpec:
    """The facts of an environment, and what its rows hold of the last action and reward; raises UserError when it cannot be made or its spaces are not
    known."""
    spec = atari.make_spec(cfg) if isinstance(cfg, AtariConfig) else gym.make_spec(cfg)
    return with_previous(spec, prev_action, prev_reward)
