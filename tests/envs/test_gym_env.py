"""Gymnasium environments as columns: what they tell, how vectorised ones begin anew, and what actions they are given."""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from conftest import compose
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from test_agents import made, walk

from rlrun.config.run import type_config
from rlrun.core.errors import EnvError, UserError
from rlrun.core.seeding import Seeds
from rlrun.envs import registry
from rlrun.envs.gym import make_one
from rlrun.envs.gym_env import numbers
from rlrun.envs.gym_spaces import to_space
from rlrun.machine.machine import Machine
from rlrun.runtime.plan import plan


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
    (((0, 1 << 70, 1 << 1100), (0, -(1 << 1100), 2)), [[2.0**70, -np.inf], [np.inf, 2]]),
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


def test_an_info_may_have_any_keys(monkeypatch):
    """Gymnasium itself takes "_x" for the mask of "x"."""
    monkeypatch.setattr(Telling, "_told", lambda self: (np.zeros(2, np.float32), {"x": 1.0, "_x": 5.0, 3: 2.0, None: 1.0}))
    _, env = made(f"{__name__}:Telling")
    env.reset(0)
    told = env.step(np.zeros(2, np.int64)).info
    assert {name: value.tolist() for name, value in told.items()} == {"x": [1.0, 1.0], "_x": [5.0, 5.0]}
    assert list(numbers({name: np.ones(2) for name in ("x", "_x", 3, "_3")})) == ["x"], "of a vectorised one"


def test_the_time_limit_is_no_argument_of_the_class():
    with pytest.raises(UserError, match=r"kwargs cannot hold max_episode_steps: the time limit is env\.max_episode_steps=N"):
        made("CartPole-v1", "++env.kwargs.max_episode_steps=12")
    assert made("CartPole-v1", "env.max_episode_steps=12")[0].max_episode_steps == 12


@pytest.mark.parametrize("asked", [[], ["++env.kwargs.render_mode=human"]])
def test_what_is_drawn_for_rlrun_is_drawn_as_a_picture_whatever_the_user_asks_for(asked):
    cfg = type_config(compose("algo=ppo", "env=CartPole-v1", *asked)).env
    env = make_one(cfg, render=True)
    assert env.render_mode == "rgb_array"
    env.close()


class Typed(gymnasium.Env):
    """Asserts that its actions are in its space, which looks at their dtype."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    SPACES: ClassVar[dict] = {
        "one choice": spaces.Discrete(4, start=3),
        "choices": spaces.MultiDiscrete([2, 3], start=[1, 2], dtype=np.int32),
        "a number": spaces.Box(-1, 1, (), np.float64),
        "nested": spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)])),
    }

    def __init__(self, kind):
        self.action_space = self.SPACES[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.mark.filterwarnings("ignore:.*Casting input x")
@pytest.mark.parametrize("kind", Typed.SPACES)
def test_actions_have_the_dtype_of_their_space(kind):
    assert sum(step.reward.sum() for _, _, step in walk(made(f"{__name__}:Typed", f"++env.kwargs.kind='{kind}'")[1], 9)) == 18


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        *((dtype, 0, np.iinfo(dtype).max) for dtype in (np.int64, np.uint64, np.int32, np.uint8)),
        (np.int64, 0, 2**62 - 1), (np.int64, 1 - 10**18, 10**18 - 1), (np.int64, 1 - 2**62, 2**62), (np.uint64, 0, 2**63 - 1),
    ],
)  # fmt: skip
def test_whole_numbers_at_large_bounds_stay_in_their_space(dtype, low, high):
    """float64, in which they are stretched, has no number for these bounds."""
    box = spaces.Box(np.array([low], dtype), np.array([high], dtype), (1,), dtype)
    space = to_space(box, "action", "an environment")
    taken = [space.to_env(np.full((1, 1), end, np.float32))[0] for end in (-3.0, -1.0, 0.0, 1.0, 3.0)]
    assert all(box.contains(one) for one in taken)
    first, lowest, middle, highest, last = (int(one[0]) for one in taken)
    assert low + 3000 > lowest == first and high - 3000 < highest == last and lowest < middle < highest


class Halved(gymnasium.Env):
    """Two choices, of 2 and 3 values. From the step `since` on, the mask leaves the second one none."""

    action_space = spaces.MultiDiscrete([2, 3])
    observation_space = spaces.Dict(x=spaces.Box(-1, 1, (2,), np.float32), action_mask=spaces.MultiBinary(5))

    def __init__(self, since=0, length=9):
        self.since, self.length = since, length

    def _seen(self):
        mask = np.array([1, 0, 0, 0, 0] if self.now >= self.since else [1, 0, 0, 1, 0], np.int8)
        return {"x": np.zeros(2, np.float32), "action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._seen(), {}

    def step(self, action):
        assert action.tolist() == [0, 1], "a masked action was played"
        self.now += 1
        return self._seen(), 1.0, self.now == self.length, False, {}


def test_a_mask_must_leave_a_legal_value_to_every_choice():
    """Except where the episode ends."""
    name = f"{__name__}:Halved"
    with pytest.raises(UserError, match="begins with an action_mask that leaves no legal action"):
        made(name)
    with pytest.raises(EnvError, match=r"Halved, env 0 .*an action_mask that leaves no legal action"):
        list(walk(made(name, "++env.kwargs.since=2")[1], 3))
    assert len(list(walk(made(name, "++env.kwargs.since=2", "++env.kwargs.length=2")[1], 9))) == 9


class Many(VectorEnv):
    """Pays 1 a step and ends after 3. The step after an end pays `late` and ends again if `twice`."""

    single_observation_space, single_action_space = Telling.observation_space, Telling.action_space
    late, twice = 0.0, False

    def __init__(self, num_envs=1, size=2):
        self.num_envs = num_envs
        self.observation_space = spaces.Box(-1, 1, (num_envs, size), np.float32)
        self.action_space = spaces.MultiDiscrete([3] * num_envs)

    def reset(self, *, seed=None, options=None):
        self.now = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        began = self.now == 3
        self.now = 0 if began else self.now + 1
        obs, over = np.zeros(self.observation_space.shape, np.float32), self.now == 3 or (began and self.twice)
        reward, no = np.full(self.num_envs, self.late if began else 1.0), np.zeros(self.num_envs, bool)
        return obs, reward, no | over, no, {}


@pytest.fixture
def registered():
    """Registers Many with these attributes as the vectorised implementation of an environment, and returns its id."""
    name = "tests/Many-v0"

    def register(metadata, entry_point=Telling, **attributes):
        vectors = type("Many", (Many,), {"metadata": metadata, **attributes})
        gymnasium.register(name, entry_point=entry_point, vector_entry_point=vectors)
        return name

    yield register
    gymnasium.registry.pop(name, None)


NEXT = {"autoreset_mode": AutoresetMode.NEXT_STEP}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metadata, late", [(NEXT, 0.0), ({"autoreset_mode": "NextStep"}, 0.0), (NEXT, 1.0)])
def test_a_vectorised_environment_begins_anew_in_a_step_of_its_own(registered, metadata, late):
    """Which pays nothing, whatever it says, as Gymnasium's phys2d does."""
    _, env = made(registered(metadata, late=late))
    assert env.native and env.reset(0)["observation"].shape == (2, 2)
    steps = [env.step(np.zeros(2, np.int64)) for _ in range(8)]
    assert [step.valid.tolist() for step in steps] == [[t % 4 != 3] * 2 for t in range(8)]
    assert [step.reward.tolist() for step in steps] == [[float(t % 4 != 3)] * 2 for t in range(8)]
    assert all(step.reward.dtype == np.float32 for step in steps)
    env.close()


def test_what_a_vectorised_environment_shows_outside_its_space_is_noted(registered):
    def step(self, action):
        obs, *others = Many.step(self, action)
        return obs + 99, *others

    _, env = made(registered(NEXT, step=step))
    env.reset(0)
    notes = [note for _ in range(5) for note in env.step(np.zeros(2, np.int64)).failed.values()]
    assert len(notes) == 1 and "holds 99.0 at [0]" in notes[0].sentence and not notes[0].made_anew
    env.close()


@pytest.mark.parametrize("metadata, words, said", [
    ({}, (), "does not say how it resets.*metadata.'autoreset_mode'. = AutoresetMode.NEXT_STEP"),
    ({"autoreset_mode": AutoresetMode.SAME_STEP}, (), "resets by AutoresetMode.SAME_STEP"),
    ({"autoreset_mode": "sometimes"}, (), "resets by sometimes"),
    (NEXT, ("env.max_episode_steps=3",), "cannot be made by its vector_entry_point.*'max_episode_steps'"),
])  # fmt: skip
def test_a_vectorised_environment_that_does_not_fit_is_refused_before_the_run(registered, metadata, words, said):
    config = type_config(compose("algo=ppo", f"env={registered(metadata)}", *words))
    with pytest.raises(UserError, match=said):
        plan(config, Machine(cores=2))


class Searched(Telling):
    """Ends after 3 steps, and can be put back to any of them."""

    def _told(self):
        return np.full(2, self.now / 3, np.float32), {}

    def get_state(self):
        return np.array([self.now], np.float32)

    def set_state(self, state):
        self.now = int(state[0])
        return self._told()[0]

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.now == 3, truncated, info


def test_a_search_needs_no_vectorised_implementation_that_fits(registered):
    """It steps single environments."""
    config = type_config(compose("algo=alphazero", f"env={registered({}, entry_point=Searched)}"))
    spec = plan(config, Machine(cores=2)).spec
    env = registry.Factory(cfg=config.env, spec=spec, seeds=Seeds(3), stream="env", learning=True)(0, 2)
    assert not env.env.native and env.reset(0)["observation"].shape == (2, 2)
    env.close()


def test_a_vectorised_environment_that_ends_in_the_step_after_an_end_is_named(registered):
    """It would lose a decision of every episode."""
    _, env = made(registered(NEXT, twice=True))
    env.reset(0)
    with pytest.raises(EnvError, match=r"tests/Many-v0, env 0 .*returned an end in the step after an end"):
        for _ in range(4):
            env.step(np.zeros(2, np.int64))
    env.close()
