"""A corridor to walk along, and a wrapper that charges for every step."""

from __future__ import annotations

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    """Cells 0 .. length-1; the walk begins in the middle and pays 1 at the right end. Left is 0, right is 1."""

    def __init__(self, length: int = 9):
        self.length = length
        self.observation_space = gymnasium.spaces.Discrete(length)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = self.length // 2
        return self.cell, {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        there = self.cell == self.length - 1
        info = {"cell": float(self.cell), "is_success": there, "note": "words are not logged"}
        return self.cell, float(there), there, False, info


class Hurry(gymnasium.Wrapper):
    """Every step costs `price`."""

    def __init__(self, env: gymnasium.Env, price: float = 0.01):
        super().__init__(env)
        self.price = np.float32(price)

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, reward - self.price, *rest
