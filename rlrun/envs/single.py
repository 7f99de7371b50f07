"""One environment with Gymnasium's interface, preprocessed as in training, for users' own loops around a policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.env import VectorEnv
from rlrun.core.errors import UserError
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Discrete
from rlrun.envs import gym
from rlrun.envs.agent_games import AgentsConfig, make_game
from rlrun.envs.gym import SingleConfig
from rlrun.envs.recorded import NO_ENV, RecordedConfig
from rlrun.envs.registry import Factory


def make_single(factory: Factory) -> Any:
    """Makes the Gymnasium or PettingZoo environment itself, which rlrun does not preprocess, or a preprocessed Atari
    game."""
    if isinstance(factory.cfg, RecordedConfig):
        raise UserError(NO_ENV)
    if isinstance(factory.cfg, AgentsConfig):
        return seeded(make_game(factory.cfg).env, factory.seeds)
    if isinstance(factory.cfg, SingleConfig):
        return seeded(gym.make_one(factory.cfg), factory.seeds)
    return SingleGame(factory)


def seeded(env: Any, seeds: Seeds) -> Any:
    """Lets the first reset() of an environment have a seed of these, unless the caller gives one."""
    reset = env.reset

    def first(*args: Any, **kwargs: Any) -> Any:
        del env.reset  # the class has the others
        if not args and kwargs.get("seed") is None:
            kwargs["seed"] = seeds.integer("user", 0)
        return reset(*args, **kwargs)

    env.reset = first
    return env


class SingleGame(gymnasium.Env):
    """Full games of Atari with unclipped rewards.

    Rows that are not the agent's decision (a forced FIRE) are skipped.
    """

    def __init__(self, factory: Factory):
        self.factory = factory
        pixels, actions = factory.spec.observation, factory.spec.action
        assert isinstance(pixels, Box) and isinstance(actions, Discrete)
        self.observation_space = gymnasium.spaces.Box(0, 255, pixels.shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(actions.n)
        self.env: VectorEnv | None = None
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Starts an episode. The same seed starts the same sequence of episodes."""
        super().reset(seed=seed)
        if seed is not None:
            self.close()
            self.factory, self.episode = dataclasses.replace(self.factory, seeds=Seeds(seed)), 0
        if self.env is None:
            self.env = self.factory(0, 1)
        obs = self.env.reset(self.episode)
        self.episode += 1
        return obs["observation"][0].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Takes one decision. Raises RuntimeError before the first reset."""
        if self.env is None:
            raise RuntimeError("reset() comes first")
        row = np.asarray(action)[None]
        total, alive = 0.0, False
        while not alive:
            step = self.env.step(row)
            total += float(step.reward[0])
            alive = bool(step.valid[0] or step.terminated[0] or step.truncated[0])
        return step.obs["observation"][0].copy(), total, bool(step.terminated[0]), bool(step.truncated[0]), {}

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None
