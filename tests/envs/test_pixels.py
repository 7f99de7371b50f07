"""Action repeat and pictures as observations, of any Gymnasium environment; and what names with keyword arguments make."""

import gymnasium
import numpy as np
import pytest
from conftest import compose

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core.errors import UserError
from rlrun.core.seeding import Seeds
from rlrun.envs.registry import Factory, make_spec
from rlrun.envs.wrapped import Repeat, covered, resized


class Painter(gymnasium.Env):
    """Draws the number of its step, twice as wide as high, in colours of its left and its right half."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, fault: str = "", mask: bool = False):
        self.render_mode, self.fault = render_mode, fault
        box = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        masks = gymnasium.spaces.MultiBinary(2)
        self.observation_space = gymnasium.spaces.Dict({"step": box, "action_mask": masks}) if mask else box
        self.action_space, self.mask = gymnasium.spaces.Discrete(2), mask

    def _obs(self):
        step = np.array([self.count], dtype=np.float32)
        return {"step": step, "action_mask": np.ones(2, dtype=np.int8)} if self.mask else step

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        return self._obs(), float(self.count), self.count == 7, False, {}

    def render(self):
        if self.fault:
            raise RuntimeError(self.fault)
        image = np.zeros((10, 20, 3), dtype=np.uint8)
        image[:, :10, 0], image[:, 10:, 2] = 10 * self.count, 100 + self.count
        return image


class Blind(Painter):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


def made(*words, count=1):
    cfg = type_config(compose("algo=ppo", *words)).env
    return Factory(cfg=cfg, spec=make_spec(cfg), seeds=Seeds(0), stream="env", learning=True)(0, count)


@pytest.mark.parametrize("shape", [(6, 9), (4, 4), (3, 2), (7, 5)])
@pytest.mark.parametrize("size", [4, 5])
def test_a_new_pixel_is_the_mean_over_the_area_that_it_covers(shape, size):
    """By hand: every old pixel becomes a block, so that new ones are whole numbers of small squares."""
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    fine = image.repeat(size, 0).repeat(size, 1).astype(np.float64)
    height, width = shape
    expected = fine.reshape(size, height, size, width, 3).mean((1, 3))
    found = resized(image, size)
    assert found.dtype == np.uint8 and np.abs(found - expected).max() <= 0.5001
    assert np.allclose(covered(height, size).sum(1), 1)


def test_pictures_are_what_the_environment_draws():
    env = made("env=test_pixels:Painter", "env.observation=pixels", "env.size=4")
    assert env.spec.image and env.spec.observation.shape == (4, 4, 3) and env.spec.observation.dtype == "uint8"
    env.reset(0)
    for count in (1, 2, 3):
        seen = env.step(np.array([0])).obs["observation"][0]
        assert (seen[:, :2] == [10 * count, 0, 0]).all() and (seen[:, 2:] == [0, 0, 100 + count]).all()
    env.close()


def test_a_repeated_action_is_one_decision():
    """An episode has 7 steps of the environment, which pay their numbers: 3 decisions of 3, 3 and 1."""
    env = made("env=test_pixels:Painter", "env.action_repeat=3")
    env.reset(0)
    steps = [env.step(np.array([0])) for _ in range(4)]
    assert [step.reward[0] for step in steps] == [1 + 2 + 3, 4 + 5 + 6, 7, 0]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, True, False] and steps[3].is_first[0]
    env.close()


def test_an_action_is_not_repeated_behind_a_time_limit():
    """What is cut after 5 steps pays nothing more, although its own step() could still be called."""
    env = Repeat(gymnasium.wrappers.TimeLimit(Painter(render_mode="rgb_array"), 5), 3)
    env.reset(seed=0)
    assert [env.step(0)[1:4] for _ in range(2)] == [(1 + 2 + 3, False, False), (4 + 5, False, True)]


@pytest.mark.parametrize(
    ("words", "limit"),
    [([], 200), (["env.action_repeat=3"], 67), (["env.action_repeat=3", "env.max_episode_steps=5"], 5)],
)
def test_limits_count_decisions(words, limit):
    """Pendulum is truncated after 200 steps of its own."""
    env = made("env=Pendulum-v1", *words)
    assert env.spec.max_episode_steps == limit
    env.reset(0)
    ends = [bool(env.step(np.zeros((1, 1))).truncated[0]) for _ in range(limit)]
    assert ends == [False] * (limit - 1) + [True]
    env.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=rlrun/Counting-v0"], "env.observation=pixels: rlrun/Counting-v0 draws no pictures (rgb_array is not one of its render_modes)"),
        (["env=test_pixels:Blind"], "env.observation=pixels: test_pixels:Blind draws no pictures"),
        (["env=test_pixels:Painter", "env.kwargs={fault: no paint}"], "env=test_pixels:Painter cannot be drawn: RuntimeError: no paint"),
        (["env=test_pixels:Painter", "env.kwargs={mask: true}"], "env.observation=pixels: pictures would leave out the action_mask of test_pixels:Painter"),
        (["env=test_pixels:Painter", "env.size=0"], "env.size must be at least 1"),
    ],
)  # fmt: skip
def test_pictures_that_cannot_be_are_a_sentence(words, said):
    with pytest.raises(UserError) as refused:
        _dispatch(["train", "--plan", "algo=ppo", "env.observation=pixels", *words])
    assert said in str(refused.value)


def test_pictures_without_pygame_name_the_extra(monkeypatch):
    def render(self):
        raise gymnasium.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[toy-text]"`')

    import test_pixels  # as env= imports it

    monkeypatch.setattr(test_pixels.Painter, "render", render)
    with pytest.raises(UserError, match=r"cannot be drawn: pygame is not installed: .* setup video$"):
        made("env=test_pixels:Painter", "env.observation=pixels")


def test_pictures_are_learnt_from_resumed_and_loaded(tmp_path):
    import rlrun

    path = tmp_path / "run"
    words = [
        "algo=pg",
        "env=test_pixels:Painter",
        "env.observation=pixels",
        "env.size=36",
        "env.action_repeat=2",
        "env.stack=2",
        "logger=[]",
    ]
    sizes = ["resources=debug", "algo.fragment_length=5", "algo.batch_size=20"]
    assert _dispatch(["train", *words, *sizes, "env_steps=40", f"run_dir={path}"]) == 0
    assert _dispatch(["resume", str(path), "env_steps=80"]) == 0
    trained = rlrun.load(path)
    env = trained.make_env()
    obs, _ = env.reset(seed=0)
    assert obs.shape == (36, 36, 3) and env.action_space.contains(trained.act(obs))
    assert env.step(0)[1] == 1 + 2
    env.close()


def test_a_frozen_lake_that_is_not_slippery_is_walked_as_told():
    """The shortest way over the 4x4 map: down, down, right, down, right, right."""
    env = made("env=FrozenLake-v1", "++env.kwargs.is_slippery=false", count=2)
    env.reset(0)
    steps = [env.step(np.full(2, action)) for action in (1, 1, 2, 1, 2, 2)]
    assert [step.reward.tolist() for step in steps] == [[0.0, 0.0]] * 5 + [[1.0, 1.0]]
    assert steps[-1].terminated.all() and not any(step.terminated.any() for step in steps[:-1])
    env.close()
