"""One environment as Gymnasium knows it, preprocessed as in training: for loops that users write around a trained policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.env import VectorEnv
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Discrete, Space
from rlrun.envs.registry import Factory


def to_gymnasium(space: Space) -> gymnasium.Space:
    """The space of actions or observations as the environment itself declares it."""
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.n, start=space.start)
    low, high = (np.broadcast_to(np.asarray(b).reshape(space.shape if len(b) == space.size else ()), space.shape) for b in (space.low, space.high))
    return gymnasium.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=np.dtype(space.dtype))


class SingleEnv(gymnasium.Env):
    """Full games with unclipped rewards. Rows that are no decision of the agent (a forced FIRE) are stepped through."""

    def __init__(self, factory: Factory):
        self.factory = factory
        self.observation_space, self.action_space = to_gymnasium(factory.spec.obs["observation"]), to_gymnasium(factory.spec.action)
        self.env: VectorEnv | None = None
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The same seed begins the same sequence of episodes."""
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
        """RuntimeError before the first reset."""
        if self.env is None:
            raise RuntimeError("reset() comes first")
        row = self.factory.spec.action.from_env(np.asarray(action)[None])
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
