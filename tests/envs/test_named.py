"""What becomes of an environment with one agent that fails, or does not keep the promises of Gymnasium's interface."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from test_agent_promises import made
from zoo import CountingAgents

from rlrun.core.errors import EnvError
from rlrun.core.restarts import ENV_REPEATS


class Refused(gymnasium.Env):
    """Its simulator answers so many times in all, and each refusal has words of its own."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    left: ClassVar[list] = [0, 0]  # answers, and environments that were made

    def __init__(self):
        Refused.left[1] += 1

    def reset(self, *, seed=None, options=None):
        Refused.left[0] -= 1
        if Refused.left[0] < 0:
            raise ConnectionError(f"the connection {-Refused.left[0]} was refused")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, True, {}


class RefusedAgents(CountingAgents):
    def __init__(self):
        super().__init__()
        Refused.left[1] += 1

    def reset(self, seed=None, options=None):
        Refused.reset(self)
        return super().reset(seed, options)


@pytest.mark.parametrize("name", ["Refused", "RefusedAgents"])
def test_resets_that_go_on_failing_end_the_run_whatever_they_say(monkeypatch, name):
    monkeypatch.setattr(Refused, "left", [1000, 0])
    env = made(f"{__name__}:{name}", restarts=True, count=1)
    env.reset(0)
    Refused.left[:] = [0, 0]
    with pytest.raises(EnvError, match="failed in reset: ConnectionError: the connection 6 was refused"):
        for _ in range(10):
            env.step(np.zeros(env.count, np.int64))
    assert Refused.left == [-1 - ENV_REPEATS, ENV_REPEATS]
