"""The last action and reward as inputs of a memory."""

import gymnasium
import numpy as np
import pytest
import torch
from conftest import SMALL
from test_samplers import KINDS
from wired import Wired

import rlrun
from rlrun.cli import _dispatch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, Nested, executed
from rlrun.envs import registry
from rlrun.envs.agent_spaces import common

TOLD = ["model=lstm", "model.memory.size=4", "model.memory.prev_action=true", "model.memory.prev_reward=true"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_the_last_action_and_reward(typed, kind):
    wiring = Wired(typed("algo=impala", "env=rlrun/Counting-v0", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20", "resources.device=cpu",
                          "resources.envs_per_sampler=2", *KINDS[kind], *TOLD))  # fmt: skip
    algorithm, sampler = wiring.algorithm(), wiring.sampler(0)
    try:
        sampler.publish(algorithm.policy, Clock())
        firsts = 0
        for _ in range(10):
            (fragment,) = sampler.take(1)
            batch = fragment.batch
            told, first = batch.obs, batch.is_first
            assert not told.prev_action[first].any() and not told.prev_reward[first].any()
            after = ~first[1:] & batch.valid
            assert torch.equal(told.prev_action[1:][after], batch.action[after])
            assert torch.equal(told.prev_reward[1:, :, 0][after], batch.reward[after])
            firsts += int(first.sum())
            sampler.free([fragment])
        assert firsts > 4
    finally:
        sampler.close()


class Counted(gymnasium.Env):
    """It takes whole numbers."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Box(np.array([0, 3]), np.array([5, 9]), dtype=np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.zeros(3, np.float32), 0.0, False, False, {}


class HalfBounded(Counted):
    """It takes numbers without a lower or without an upper bound."""

    action_space = gymnasium.spaces.Box(np.array([0, -np.inf], np.float32), np.array([np.inf, 0.5], np.float32))


gymnasium.register("tests/Counted-v0", Counted)
gymnasium.register("tests/HalfBoundedPair-v0", HalfBounded)


@pytest.mark.parametrize("env", ["Pendulum-v1", "tests/Counted-v0", "tests/HalfBoundedPair-v0"])
def test_the_last_action_is_the_one_that_was_executed(env, typed):
    """A Gaussian draws numbers beyond the bounds and between whole numbers, and the environment clips and rounds
    them."""
    wiring = Wired(typed("algo=ppo", f"env={env}", *SMALL, "algo.minibatch_size=10", "algo.sequence_length=5",
                         "model.log_std=1.0", *TOLD))  # fmt: skip
    algorithm, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(algorithm.policy, Clock())
    batch = sampler.take(1)[0].batch
    told, drawn, after = batch.obs.prev_action[1:], batch.action, ~batch.is_first[1:] & batch.valid
    space = wiring.spec.action
    taken = torch.from_numpy(space.from_env(space.to_env(drawn.numpy())))
    assert (drawn - taken)[after].abs().max() > 0.1 and told.dtype == torch.float32
    torch.testing.assert_close(told[after], taken[after], rtol=0.0, atol=1e-6)
    spec = Nested(spaces=(("x", space), ("y", Discrete(n=9))), ordered=False)
    parts = executed(spec, {"x": drawn.numpy(), "y": np.arange(9)})
    np.testing.assert_allclose(parts["x"], taken, rtol=0.0, atol=1e-6)
    assert parts["y"].tolist() == list(range(9))


def test_actions_of_agents_with_unlike_bounds_are_not_cut_to_those_of_another_one():
    """Rows do not tell which agent they are of."""
    drawn = np.array([[-1.0, -0.4], [0.3, 0.9]], np.float32)
    for dtype, low, high in (("float32", -np.inf, 0.0), ("int32", 0, 1)):
        one = Box(shape=(2,), dtype=dtype, low=(low, low), high=(high, high))
        other = Box(shape=(1,), dtype=dtype, low=(-5,), high=(np.inf if low < 0 else 5,))
        space, said = common({"a": one, "b": other}, "action", "Game")
        assert "each agent's" in said or "padded" in said
        assert np.array_equal(executed(space, drawn), drawn)


def test_the_memory_hears_them(typed):
    made = (
        Wired(typed("algo=ppo", "env=CartPole-v1", *SMALL, "algo.minibatch_size=10", "algo.sequence_length=5", *TOLD))
        .algorithm()
        .policy
    )
    from rlrun.core.batch import Batch

    obs = Batch(
        observation=torch.ones(1, 4), prev_action=torch.zeros(1, dtype=torch.int64), prev_reward=torch.zeros(1, 1)
    )
    first = torch.ones(1, dtype=torch.bool)

    def value(**changes):
        with torch.no_grad():
            return made.act(
                obs.replace(**changes), first, made.initial_state(1), Clock(), "greedy", torch.Generator(), ("value",)
            ).record.value.item()

    assert len({value(), value(prev_action=torch.ones(1, dtype=torch.int64)), value(prev_reward=torch.ones(1, 1))}) == 3


def test_a_loaded_policy_tells_its_memory(tmp_path):
    path = tmp_path / "run"
    words = ["algo=r2d2", "env=CartPole-v1", "logger=[]", "resources=debug", "env_steps=60", *TOLD, f"run_dir={path}"]
    assert _dispatch(["train", *words]) == 0
    trained, other = rlrun.load(path), rlrun.load(path)
    env = registry.Factory(
        cfg=trained.config.env, spec=trained.spec, seeds=trained_seeds(), stream="user", learning=False
    )(0, 2)
    rows, reward = env.reset(0), None
    for _ in range(30):
        action = trained.policy_action(rows)
        alone = {"observation": rows["observation"]}
        assert (other.policy_action(alone, reward=reward) == action).all()
        step = env.step(action)
        rows, reward = step.obs, step.reward
        trained.reset(step.is_first)
        other.reset(step.is_first)
    with pytest.raises(ValueError, match="told the last reward"):
        other._first = None
        other.policy_action({"observation": rows["observation"]})
    third, two = rlrun.load(path), rows["observation"]
    third.act(two)
    before = third._state
    with pytest.raises(ValueError, match="told the last reward"):
        third.act(two)
    third.reset(np.array([True]))
    with pytest.raises(ValueError, match=r"was told of 1 episodes, and act\(\) is given 2"):
        third.act(two, reward=[1.0, 1.0])
    assert third._state is before
    games = [[trained.make_env(seed=seed).reset(**given)[0].tolist() for seed in (1, 1, 2)] for given in ({}, {"seed": 5})]
    assert games[0][0] == games[0][1] != games[0][2] and games[1][0] == games[1][2] != games[0][0]


def trained_seeds():
    from rlrun.core.seeding import Seeds

    return Seeds(3)


def test_only_a_memory_can_be_told():
    with pytest.raises(UserError, match="prev_reward is an option of model"):
        _dispatch(["train", "algo=ppo", "env=CartPole-v1", "model.memory.prev_reward=true"])
