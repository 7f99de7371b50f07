"""Stand-ins for dm-control and Crafter, with as much of their interfaces as rlrun uses, for tests without these packages."""

import math
import sys
import types
from importlib.machinery import ModuleSpec

import numpy as np

from rlrun.envs import names


class Now(types.SimpleNamespace):
    """A time step of dm-control's."""

    def last(self):
        return self.ends


class Task:
    """Observes the step of its episode, two random numbers of its seed and the last action; pays the step. An episode whose last action is negative ends there."""

    def __init__(self, random, time_limit=10.0):
        self._step_limit = math.inf if math.isinf(time_limit) else time_limit / 0.01
        self.task = types.SimpleNamespace(random=np.random.RandomState(random))
        size = types.SimpleNamespace(offwidth=640, offheight=480)
        self.physics = types.SimpleNamespace(
            model=types.SimpleNamespace(ncam=3, vis=types.SimpleNamespace(global_=size)), render=self.render
        )
        self.closed = 0

    def action_spec(self):
        return types.SimpleNamespace(minimum=-1.0, maximum=np.ones(2), shape=(2,))

    def observation_spec(self):
        shapes = {"step": (), "tag": (2,), "action": (1, 2)}
        return {name: types.SimpleNamespace(shape=shape) for name, shape in shapes.items()}

    def _now(self, reward, ends, discount):
        seen = {"step": np.float64(self.count), "tag": self.tag, "action": self.action[None]}
        return Now(observation=seen, reward=reward, ends=ends, discount=discount)

    def reset(self):
        self.count, self.tag, self.action = 0, self.task.random.uniform(size=2), np.zeros(2)
        return self._now(None, False, None)

    def step(self, action):
        self.count, self.action = self.count + 1, np.asarray(action, dtype=np.float64)
        over, cut = bool((self.action < 0).all()), self.count >= self._step_limit
        return self._now(float(self.count), over or cut, 0.0 if over else 1.0)

    def render(self, height, width, camera_id):
        return np.full((height, width, 3), 10 * camera_id + self.count, dtype=np.uint8)

    def close(self):
        self.closed += 1


class Game:
    """crafter.Env: it pays 1 for every step, unlocks collect_wood at its second one, and action 1 kills the player."""

    def __init__(self, size, reward, length, seed):
        self.size, self.pays, self.length, self.seed = size, reward, length, seed
        self.action_space = types.SimpleNamespace(n=17)

    def reset(self):
        self.count = 0
        return self.render()

    def step(self, action):
        self.count += 1
        dead, over = action == 1, self.count >= self.length
        told = {
            "discount": 1.0 - dead,
            "achievements": {"collect_wood": int(self.count >= 2) * 3, "eat_cow": 0},
            "inventory": {},
        }
        return self.render(), float(self.pays), bool(dead or over), told

    def render(self, size=None):
        return np.full((*(size or self.size), 3), (self.seed + self.count) % 256, dtype=np.uint8)


def pretend(monkeypatch) -> None:
    """Puts them in place of the packages."""
    suite = types.ModuleType("dm_control.suite")
    suite.load = lambda domain, task, task_kwargs: Task(**task_kwargs)
    package, mujoco, crafter = types.ModuleType("dm_control"), types.ModuleType("mujoco"), types.ModuleType("crafter")
    package.suite, mujoco.set_mju_user_warning, crafter.Env = suite, lambda hear: None, Game
    for module in (package, suite, mujoco, crafter):
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(names, "installed", lambda module: True)
