"""An environment whose steps take a while."""

import time

import gymnasium
import numpy as np


class SlowSteps(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, dtype=np.float32), {}

    def step(self, action):
        time.sleep(0.1)
        return np.zeros(3, dtype=np.float32), 1.0, False, False, {}
