"""Environments with the mistakes that `rlrun check-env` finds, for the tests. envs.py has a good one."""

from __future__ import annotations

import random
import time
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env):
    """A random walk that pays for large steps and has no mistake. The others derive from it."""

    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.taken = np.zeros(2, np.float32), 0
        return self.state.copy(), {}

    def step(self, action):
        self.taken += 1
        self.state = self.state + self.np_random.normal(action - 1, 1.0, 2).astype(np.float32)
        over = bool(np.abs(self.state).max() > 10)
        return self.state.copy(), float(self.state[0]), over, False, {}


class Old(Walk):
    """The interface of Gym before 0.26."""

    def reset(self):
        return super().reset()[0]

    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class Careless(Walk):
    """Observations of another dtype and outside their space, and ends that are None."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(-3, 3, (2,), np.float32)

    def step(self, action):
        obs, reward, *_, info = super().step(action)
        return obs.astype(np.float64), reward, None, False, info


class Unseeded(Walk):
    """Draws from Python's global generator."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + random.random(), *rest


class Opposed(Walk):
    """Its opponent draws from the action space, which nothing seeds."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + float(self.action_space.sample()), *rest


class Entangled(Walk):
    """Keeps its state in the class, and hands out the array that it goes on to change."""

    place = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place[:] = 0
        return self.place, {}

    def step(self, action):
        self.place += self.np_random.normal(action - 1, 1.0, 2).astype(np.float32)
        return self.place, 0.0, bool(np.abs(self.place).max() > 10), False, {}


class Limited(Walk):
    """Says that its time limit is a termination, pays NaN now and then, and has actions without bounds."""

    max_steps = 12

    def __init__(self, nan: bool = False):
        super().__init__()
        self.nan = nan
        self.action_space = Box(-np.inf, np.inf, (1,), np.float32)

    def step(self, action):
        obs, reward, *_, info = super().step(float(np.clip(action[0], -1, 1)) * 0.1)
        return obs, float("nan") if self.nan and self.taken == 7 else reward, self.taken == self.max_steps, False, info


class Timid(Walk):
    """Takes no action at the bounds of its space."""

    def __init__(self):
        super().__init__()
        self.action_space = Box(-1, 1, (1,), np.float32)

    def step(self, action):
        assert abs(action[0]) < 1, f"{action[0]} is too much"
        return super().step(float(action[0]))


class Leftover(Walk):
    """Reset does not put everything back."""

    wind = 0.0

    def step(self, action):
        self.wind += 0.5
        obs, reward, *rest = super().step(action)
        return obs, reward + self.wind, *rest


class Growing(Walk):
    """Remembers everything."""

    def __init__(self):
        super().__init__()
        self.all = []

    def step(self, action):
        self.all.append(np.ones(4000))
        return super().step(action)


class Stuck(Walk):
    """Waits for something that does not come."""

    def step(self, action):
        while True:
            time.sleep(0.05)


class Leaving(Walk):
    """Ends its process."""

    def step(self, action):
        import os

        os._exit(7)


class Masked(Walk):
    """Its mask leaves nothing to do."""

    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Dict(
            {"place": self.observation_space, "action_mask": gymnasium.spaces.MultiBinary(3)}
        )

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return {"place": obs, "action_mask": np.ones(3, np.int8)}, info

    def step(self, action):
        obs, *rest = super().step(action)
        return {"place": obs, "action_mask": np.zeros(3, np.int8)}, *rest


class Nothing:
    """No environment at all."""


class Pair:
    """Two agents with PettingZoo's parallel interface. The first one dies early; with stays=True it stays in agents."""

    metadata: ClassVar[dict] = {"name": "pair"}
    render_mode = None

    def __init__(self, stays: bool = False):
        self.stays = stays
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self.spaces = {agent: (Box(-1, 1, (1,), np.float32), Discrete(2)) for agent in self.possible_agents}

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def _seen(self):
        return {agent: self.rng.uniform(-1, 1, 1).astype(np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.taken = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.taken += 1
        there = list(self.agents)
        obs = self._seen()
        over = {agent: self.taken >= (4 if agent == "first" else 9) for agent in there}
        if not self.stays:
            self.agents = [agent for agent in there if not over[agent]]
        each = dict.fromkeys(there, 1.0)
        return obs, each, over, dict.fromkeys(there, False), {agent: {} for agent in there}

    def render(self): ...

    def close(self): ...
