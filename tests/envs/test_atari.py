"""The Atari adapter: raw returns, lost lives, FIRE, and live and dead rows."""

import dataclasses

import numpy as np
import pytest
from conftest import compose

pytest.importorskip("ale_py")

from wired import Wired

from rlrun import cli
from rlrun.commands.train import sticky_by_name
from rlrun.config.run import type_config
from rlrun.config.types import plain
from rlrun.core.errors import UserError
from rlrun.core.seeding import Seeds
from rlrun.envs import registry
from rlrun.envs.atari import AtariEnv, ScreenStack
from rlrun.envs.names import family_of, games, names, resolve
from rlrun.envs.previous import Previous, with_previous
from rlrun.envs.single import make_single
from rlrun.samplers.columns import Columns


def make(game, count=4, learning=True, threads=1, **options):
    words = [f"env.{k}={v}" for k, v in options.items()]
    cfg = type_config(compose("algo=impala", f"env={game}", *words)).env
    spec = registry.make_spec(cfg)
    return registry.Factory(cfg=cfg, spec=spec, seeds=Seeds(0), stream="env", learning=learning, threads=threads)(
        0, count
    )


def play(env, steps, seed=0):
    """Plays at random and yields (obs, Step) for each row."""
    rng = np.random.default_rng(seed)
    env.reset(0)
    for _ in range(steps):
        yield env.step(rng.integers(env.spec.action.n, size=env.count))


def test_names():
    assert {"Pong", "MsPacman", "SpaceInvaders", "BeamRider", "Qbert"} <= set(games())
    assert resolve("ALE/Pong-v5") == resolve("PongNoFrameskip-v4") == "Pong" and resolve("CartPole-v1") is None
    assert family_of("Pong") == ("atari", "Pong") and family_of("CartPole-v1") == ("gym", "CartPole-v1")
    assert "CartPole-v1" in names() and "PongNoFrameskip-v4" not in names()


def test_the_defaults_are_the_seeds():
    env = make("Breakout")
    assert env.spec.obs["observation"].shape == (4, 84, 84) and env.spec.action.n == 4 and env.spec.action_repeat == 4
    assert make("Breakout", size=42, stack=2).reset(0)["observation"].shape == (4, 2, 42, 42)
    assert make("Breakout", full_action_space="true").spec.action.n == 18


def test_a_lost_life_ends_the_return_but_not_the_game():
    lost = finished = 0
    env = make("Breakout", fire="true")
    for step in play(env, 900):
        assert not (step.terminated & step.is_first).any()
        lost += int(step.terminated.sum())
        finished += int(step.is_first.sum())
    assert finished >= 8 and 4 * finished <= lost <= 5 * (finished + env.count), (lost, finished)


def test_evaluation_plays_full_games():
    ends = began = 0
    for step in play(make("Breakout", learning=False), 900):
        ends += int(step.terminated.sum())
        began += int(step.is_first.sum())
    assert began >= 8 and began <= ends <= began + 4


def test_fire_is_pressed_after_a_lost_life_on_a_dead_row():
    env = make("Breakout", count=1)
    told = Previous(env, with_previous(env.spec, action=True, reward=False))
    told.reset(0)
    pressed = 0
    for _ in range(400):
        before = env.press_fire.copy()
        frames = env.frame.copy()
        # this action is never FIRE: without the adapter's FIRE only one life could be lost
        step = told.step(np.zeros(1, dtype=np.int64))
        assert step.obs["prev_action"].tolist() == [int(before[0])], "1 is FIRE, which was executed"
        if before[0]:
            pressed += 1
            assert not step.valid[0] and not step.is_first[0] and env.frame[0] == frames[0] + 4
    assert pressed >= 4
    lazy = make("Breakout", count=1, fire="false")
    lazy.reset(0)
    assert not any(lazy.step(np.zeros(1, dtype=np.int64)).terminated[0] for _ in range(400)), (
        "without FIRE the ball never comes"
    )


def test_reported_returns_are_raw_and_whole_games(typed):
    """SpaceInvaders pays 5 to 30 per shot, so that a clipped return or one of a single life could not be this large."""
    env = make("SpaceInvaders", count=4)
    columns = Columns(env, 10, 0)
    rng = np.random.default_rng(0)
    space = env.spec.action
    rows = 64
    view = {
        "obs": {"observation": np.zeros((rows + 1, 4, 4, 84, 84), dtype=np.uint8)}, "is_first": np.zeros((rows + 1, 4), dtype=bool),
        "action": np.zeros((rows, 4), dtype=np.int64), "reward": np.zeros((rows, 4), dtype=np.float32),
        **{name: np.zeros((rows, 4), dtype=bool) for name in ("valid", "terminated", "truncated")},
    }  # fmt: skip
    episodes, rewards, lives = [], 0.0, 0
    for _ in range(12):
        columns.begin(view)
        for t in range(rows):
            view["action"][t] = rng.integers(space.n, size=4)
            columns.step(view, t)
        episodes += columns.episodes
        rewards = max(rewards, float(view["reward"].max()))
        lives += int(view["terminated"].sum())
    assert len(episodes) >= 3 and {e.env for e in episodes} <= {10, 11, 12, 13}
    assert rewards >= 5 and lives > len(episodes)
    assert all(e.ret % 5 == 0 for e in episodes) and max(e.ret for e in episodes) >= 50


def test_games_no_longer_than_the_noops_of_the_next_are_games_of_their_own():
    """No frame number shows where such a game began: the next one's first frame may have a higher number."""
    env, began, ends, higher = make("Breakout", count=4, max_frames=20, noop_max=30), 0, 0, 0
    over, frame = np.zeros(4, dtype=bool), None
    for step in play(env, 200):
        assert np.array_equal(step.is_first, over), "the row behind every end only resets, and no other"
        assert not step.valid[over].any() and not (step.truncated | step.terminated)[over].any()
        higher += 0 if frame is None else int((env.frame >= frame)[over].sum())
        over, frame = step.truncated | (step.terminated & (env.lives == 0)), env.frame.copy()
        began, ends = began + int(step.is_first.sum()), ends + int(step.truncated.sum())
    assert began > 100 and began <= ends <= began + 4 and higher >= 3, (began, ends, higher)


def test_seeds_repeat_and_generations_differ():
    def first(generation):
        env = make("Breakout", count=2)
        return env.reset(generation)["observation"]

    assert (first(0) == first(0)).all()
    env = make("Breakout", count=2)
    env.reset(0)
    one = [env.seed_of(slot) for slot in range(2)]
    env.reset(1)
    assert len({*one, *(env.seed_of(slot) for slot in range(2))}) == 4


def test_threads_change_no_game():
    """Rows are in the order of games, whichever thread was done first, also across lost lives and new games."""
    one, three, ends = make("Breakout", fire="true"), make("Breakout", fire="true", threads=3), 0
    assert np.array_equal(one.reset(0)["observation"], three.reset(0)["observation"])
    for here, there in zip(play(one, 400), play(three, 400), strict=True):
        assert np.array_equal(here.obs["observation"], there.obs["observation"])
        for name in ("reward", "terminated", "truncated", "valid", "is_first"):
            assert np.array_equal(getattr(here, name), getattr(there, name)), name
        ends += int(here.is_first.sum())
    assert ends >= 4
    one.close()
    three.close()


@pytest.mark.parametrize(
    "words, threads",
    [(["resources.learner_threads=3"], 3), (["resources.learner_threads=1"], 1), (["resources.exact=true"], 1)],
)
def test_a_serial_sampler_steps_games_with_the_threads_that_learn(typed, monkeypatch, words, threads):
    made = []
    monkeypatch.setattr("rlrun.envs.atari.AtariEnv", lambda *facts: made.append(facts[-1]) or AtariEnv(*facts))
    wiring = Wired(
        typed(
            "algo=dqn",
            "env=Pong",
            "resources.inference=serial",
            "replay.capacity=2000",
            "algo.learning_starts=100",
            "logger=[]",
            *words,
        )
    )
    wiring.sampler(0).close()
    assert made == [threads] and wiring.resources.envs_per_group == 4


def test_a_wrong_action_is_refused_instead_of_hanging():
    env = make("Pong", count=2)
    env.reset(0)
    with pytest.raises(ValueError, match="outside Discrete"):
        env.step(np.array([0, 6]))


@pytest.mark.parametrize(
    "words, sticky, said",
    [
        (["env=ALE/Pong-v5"], 0.25, "note: env.sticky_actions=0.25, as in ALE/Pong-v5; env=Pong has none"),
        (["env=Pong-v0"], 0.25, "note: env.sticky_actions=0.25, as in Pong-v0; env=Pong has none"),
        (["env=ALE/Pong-v5", "env.sticky_actions=0"], 0.0, None),
        (["env=PongNoFrameskip-v4"], 0.0, None),
        (["env=Pong", "env.sticky_actions=0.25"], 0.25, None),
    ],
)
def test_an_id_brings_the_sticky_actions_of_its_version_along(words, sticky, said):
    def job(cfg, choices):
        values = plain(cfg)
        assert (values["env"]["name"], values["env"]["sticky_actions"]) == ("Pong", sticky)
        assert sticky_by_name(choices, values) == ([] if said is None else [said])
        return 0

    assert cli.compose(["algo=ppo", *words], job) == 0


def test_sticky_actions_are_off_unless_asked_for():
    def frames(sticky):
        env = make("Breakout", count=1, sticky_actions=sticky, noop_max=0)
        obs = [step.obs["observation"].copy() for step in play(env, 60)]
        return np.stack(obs)

    assert (frames(0.0) == frames(0.0)).all() and (frames(0.0) != frames(0.5)).any()


@pytest.mark.parametrize(
    "words, shape",
    [([], (4, 84, 84)), (["env.size=96", "env.grayscale=false", "env.stack=2"], (2, 96, 96, 3))],
)
def test_raw_screens_become_what_the_vector_env_shows(words, shape):
    cfg = type_config(compose("algo=impala", "env=Breakout", *words)).env
    spec, seeds = registry.make_spec(cfg), Seeds(0)
    assert spec.observation.shape == shape and spec.stack == shape[0] and spec.image
    env = AtariEnv(cfg, spec, seeds, "eval", 0, 1, learning=False)
    screen = AtariEnv(
        dataclasses.replace(cfg, stack=1),
        spec,
        seeds,
        "eval",
        0,
        1,
        learning=False,
        height=210,
        width=160,
        grayscale=False,
    )
    stack = ScreenStack(cfg)
    rng, games_seen, unequal = np.random.default_rng(0), 0, 0.0
    seen, raw = env.reset(0), screen.reset(0)
    for _ in range(400 if len(shape) == 3 else 150):
        mine = stack.push(raw["observation"][0, 0])
        far = np.abs(mine.astype(int) - seen["observation"][0].astype(int))
        assert far.max() <= 1
        unequal += float((far > 0).mean()) / 400
        action = rng.integers(4, size=1)
        step = env.step(action)
        seen, raw = step.obs, screen.step(action).obs
        if step.is_first[0]:
            stack.reset()
            games_seen += 1
    assert (games_seen >= 1 or len(shape) == 4) and unequal < 1e-3
    two = np.stack([raw["observation"][0, 0], np.zeros((210, 160, 3), np.uint8)])
    assert np.array_equal(ScreenStack(cfg).push(two), ScreenStack(cfg).push(two[0])), (
        "two frames are merged by their maximum"
    )


def test_a_single_game_is_full_and_presses_fire_by_itself():
    cfg = type_config(compose("algo=impala", "env=Breakout")).env
    spec = registry.make_spec(cfg)
    env = make_single(registry.Factory(cfg=cfg, spec=spec, seeds=Seeds(3), stream="user", learning=False))
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    first, lengths = {}, []
    for seed in (5, None, 5):
        obs, _ = env.reset(seed=seed)
        assert env.observation_space.contains(obs) and env.action_space.n == 4
        if seed is not None and first:
            assert np.array_equal(obs, first["obs"])
        first.setdefault("obs", obs)
        steps, over = 0, False
        while not over:
            # without FIRE every ball is lost soon, and the game must end nevertheless
            obs, reward, terminated, truncated, _ = env.step(2)
            steps, over = steps + 1, terminated or truncated
            assert steps < 1000 and reward >= 0
        assert terminated and not truncated
        lengths.append(steps)
    assert lengths[0] == lengths[2] and lengths[0] > 5 * 10, "five lives were played"
    env.close()


@pytest.mark.parametrize(
    "word, said",
    [
        ("env.max_episode_steps=9", r"dm-control's tasks or Crafter, and .*family atari: env.max_frames=FRAMES is the option"),
        ("env.action_repeat=2", "env.frame_skip=N is the option here"),
        ("env.wrappers=[a:b]", "env=gym/ALE/Pong-v5 is the game as Gymnasium makes it, and has the option"),
        ("env.max_frame=9", r"There is no option env.max_frame. Did you mean env.max_frames"),
    ],
)
def test_options_of_other_environments_are_named_with_what_is_here(word, said):
    with pytest.raises(UserError, match=said):
        cli.compose(["algo=ppo", "env=Pong", word], lambda cfg, choices: 0)
