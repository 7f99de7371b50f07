"""Gymnasium environments as columns: what they tell, how vectorised ones begin anew, and what actions they are given."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from test_agents import made


class Telling(gymnasium.Env):
    """Tells infos[number][t] t steps after its reset."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
    infos: ClassVar[tuple] = ()
    number = 0

    def _told(self):
        return np.zeros(2, np.float32), {"said": Telling.infos[self.number][self.now], "all": self.now}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._told()

    def step(self, action):
        self.now += 1
        obs, info = self._told()
        return obs, 1.0, False, False, info


@pytest.mark.parametrize("infos, logged", [
    (((0, 1, 2), (0, None, "dead")), [[1, np.nan], [2, np.nan]]),
    (((0, "dead", [1.0]), (0, 3, 4)), [[np.nan, 3], [np.nan, 4]]),
    (((0, 0, 1), (0, 0.5, 1.75)), [[0, 0.5], [1, 1.75]]),
    (((0, np.bool_(True), np.bool_(False)), (0, True, np.uint8(7))), [[1, 1], [0, 7]]),
    (((0, np.zeros(2), {"a": 1}), (0, np.array(2.5), np.float32(0.5))), [[np.nan, 2.5], [np.nan, 0.5]]),
])  # fmt: skip
def test_numbers_of_infos_are_logged_whatever_other_environments_tell(monkeypatch, infos, logged):
    """Each environment's own, not in the type of the first one's."""
    monkeypatch.setattr(Telling, "infos", infos)
    _, env = made(f"{__name__}:Telling")
    for number, one in enumerate(env.env.envs):
        one.unwrapped.number = number
    env.reset(0)
    for now, expected in enumerate(logged, 1):
        info = env.step(np.zeros(2, np.int64)).info
        assert info["all"].tolist() == [now, now]
        np.testing.assert_array_equal(info.get("said", np.full(2, np.nan)), expected)
    env.close()
