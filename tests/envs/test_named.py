"""What becomes of an environment with one agent that fails, or does not keep the promises of Gymnasium's interface."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_agent_promises import made
from zoo import CountingAgents

from rlrun.core.errors import EnvError
from rlrun.core.restarts import ENV_REPEATS
from rlrun.envs.misfits import useless


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


class Returns(gymnasium.Env):
    """The second step of the first environment returns the reward and the end that `once` holds."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
    once: ClassVar[list] = []

    def reset(self, *, seed=None, options=None):
        self.now = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.now += 1
        reward, terminated = Returns.once.pop() if self.now == 2 and Returns.once else (1.0, False)
        if isinstance(reward, str) and reward == "leave":
            raise SystemExit(3)
        return np.zeros(2, np.float32), reward, terminated, False, {}


def second_step(monkeypatch, reward, terminated):
    monkeypatch.setattr(Returns, "once", [(reward, terminated)])
    env = made(f"{__name__}:Returns", restarts=True)
    env.reset(0)
    env.step(np.zeros(2, np.int64))
    return env.step(np.zeros(2, np.int64))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("reward, terminated, said", [
    (np.float32(np.inf), False, "the reward inf"),
    (np.array(np.nan), False, "the reward nan"),
    (torch.tensor(torch.nan), False, "the reward nan"),
    (1e39, False, "the reward 1e+39, which float32 cannot hold"),
    (np.ones(2), False, "the reward array([1., 1.]), which is no number"),
    (None, False, "the reward None, which is no number"),
    ("1", False, "the reward '1', which is no number"),
    (1.0, np.array([True, False]), "The truth value of an array"),
    ("leave", False, "SystemExit: 3"),
])  # fmt: skip
def test_what_no_row_can_hold_is_an_environment_that_failed(monkeypatch, reward, terminated, said):
    step = second_step(monkeypatch, reward, terminated)
    assert list(step.failed) == [0] and "failed in step 2 on action 0" in step.failed[0].sentence
    assert said in step.failed[0].sentence and step.failed[0].broken_off
    assert step.valid.tolist() == [False, True] and step.is_first.tolist() == [True, False]
    assert step.reward.tolist() == [0.0, 1.0] and not step.terminated.any()


@pytest.mark.parametrize("reward", [np.array(1.5), torch.tensor(1.5), np.float16(1.5)])
def test_numbers_of_any_kind_are_rewards_and_ends(monkeypatch, reward):
    step = second_step(monkeypatch, reward, np.array(True))
    assert step.reward.tolist() == [1.5, 1.0] and step.terminated.tolist() == [True, False] and not step.failed


class OldStyle(Returns):
    """It returns what Gym's environments did before there was Gymnasium."""

    def __init__(self, what):
        self.what = what

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset()
        return obs if self.what == "alone" else (None, info) if self.what == "missing" else (obs, info)

    def step(self, action):
        return super().step(action)[:-1]


@pytest.mark.parametrize("what, said", [
    ("alone", r"failed in reset: ValueError: it returned a value of the type ndarray, and must return \(observation, info\)"),
    ("missing", "failed in reset: ValueError: it returned the observation None"),
    ("step", "failed in step 1 on action 0: "),
])  # fmt: skip
def test_what_old_environments_return_is_named_with_the_command_that_explains_it(what, said):
    env = made(f"{__name__}:OldStyle", f"+env.kwargs={{what: {what}}}")
    with pytest.raises(EnvError, match=f"{said}.*rlrun check-env .*OldStyle looks for such mistakes"):
        env.reset(0)
        env.step(np.zeros(2, np.int64))


def test_an_observation_without_one_of_its_parts_is_named():
    look = useless(spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(2)))
    assert look({"a": np.zeros(2, np.float32), "b": 1}) is None
    assert look({"a": np.zeros(2, np.float32)}) == "an observation that is not in its space: it lacks ['b']"
    assert look(np.zeros(2)) == "an observation that is not in its space: it is a ndarray, and the space is a Dict"
