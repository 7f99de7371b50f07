"""dm-control and Crafter: what their rows hold, their ends, their names, and what is said where something is missing."""

import json
import sys

import fake_suites
import numpy as np
import pytest
from conftest import compose

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core.env import map_rows
from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box
from rlrun.envs import dmc, drawing, names
from rlrun.envs.registry import Factory, make_spec


@pytest.fixture
def fake(monkeypatch):
    fake_suites.pretend(monkeypatch)
    monkeypatch.setattr(drawing, "lacks", lambda: None)


@pytest.fixture
def no_egl(monkeypatch):
    """A machine without libraries to draw with and without a screen."""
    for name in (drawing.VARIABLE, "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(drawing, "_library", lambda name: None)
    drawing.egl_lacks.cache_clear()
    yield
    drawing.egl_lacks.cache_clear()
    monkeypatch.delenv(drawing.VARIABLE, raising=False)  # what prepare() set


def config(*words):
    return type_config(compose("algo=ppo", *words)).env


def made(*words, seed=0, count=1):
    cfg = config(*words)
    return Factory(cfg=cfg, spec=make_spec(cfg), seeds=Seeds(seed), stream="env", learning=True)(0, count)


def played(env, actions):
    """The first observation, and every step, of an environment that takes these actions [steps, B, ...]."""
    first = map_rows(env.reset(0), np.copy)["observation"]
    steps = (env.step(action) for action in actions)
    return first, [step._replace(obs=map_rows(step.obs, np.copy)) for step in steps]  # environments reuse their arrays


AHEAD = np.full((1, 2), 0.5, dtype=np.float32)


@pytest.mark.parametrize(("repeat", "limit"), [(1, None), (2, None), (3, None), (3, 5)])
def test_a_time_limit_is_a_truncation_and_counts_decisions(fake, repeat, limit):
    """The fake pays the number of its frame, so that sums show which frames were taken; its limit is 1,000 frames."""
    env = made("env=walker_walk", f"env.action_repeat={repeat}", f"env.max_episode_steps={limit or 'null'}")
    decisions = limit or -(-1000 // repeat)
    assert env.spec.max_episode_steps == decisions
    _, steps = played(env, [AHEAD] * (decisions + 1))
    *going, last, reset = steps
    assert (
        last.truncated[0]
        and not last.terminated[0]
        and not any(step.truncated[0] or step.terminated[0] for step in going)
    )
    frames = min(decisions * repeat, 1000 if limit is None else decisions * repeat)
    assert sum(step.reward[0] for step in steps) == frames * (frames + 1) / 2
    assert last.obs["observation"]["step"].tolist() == [[frames]] and not last.is_first[0]
    assert reset.is_first[0] and not reset.valid[0] and reset.reward[0] == 0
    env.close()


def test_a_discount_of_0_is_a_termination_and_ends_the_repeats(fake):
    env = made("env=walker_walk", "env.action_repeat=4")
    _, (step, fatal) = played(env, [AHEAD, -AHEAD])
    assert not step.terminated[0] and step.reward[0] == 1 + 2 + 3 + 4
    assert fatal.terminated[0] and not fatal.truncated[0] and fatal.reward[0] == 5
    env.close()


@pytest.mark.parametrize("observation", ["entries", "vector", "pixels", "all"])
def test_the_observation_is_what_was_asked_for(fake, observation):
    env = made(
        "env=dmc/quadruped_walk",
        f"env.observation={observation}",
        "env.size=5" if observation in ("pixels", "all") else "env.stack=1",
    )
    first, (step,) = played(env, [AHEAD])
    entries = {"step": np.array([[1.0]]), "tag": first["tag"] if isinstance(first, dict) else None, "action": AHEAD}
    picture = np.full((1, 5, 5, 3), 10 * 2 + 1)  # quadruped's camera is 2
    seen = step.obs["observation"]
    if observation == "pixels":
        assert np.array_equal(seen, picture) and seen.dtype == np.uint8
        assert isinstance(env.spec.observation, Box) and env.spec.image
    elif observation == "vector":
        assert (
            seen.shape == (1, 5) and seen.dtype == np.float32 and seen[0, 0] == 1 and np.array_equal(seen[:, 3:], AHEAD)
        )
        assert np.array_equal(seen[:, 1:3], first[:, 1:3]), "the tag stays"
    else:
        wanted = entries | ({"pixels": picture} if observation == "all" else {})
        assert seen.keys() == wanted.keys() and all(np.array_equal(seen[name], wanted[name]) for name in wanted)
        assert seen["tag"].dtype == np.float32
    env.close()


def test_columns_and_seeds_differ_and_repeat(fake):
    def tags(seed):
        env = made("env=walker_walk", seed=seed, count=3)
        first, steps = played(env, [np.repeat(-AHEAD, 3, 0)] * 3)  # the second step resets
        env.close()
        return np.stack([first["tag"], *(step.obs["observation"]["tag"] for step in steps)])

    seen = tags(0)
    assert np.array_equal(seen, tags(0)) and not np.array_equal(seen, tags(1))
    assert len(np.unique(seen[0], axis=0)) == 3 and len(np.unique(seen[[0, 2]].reshape(6, 2), axis=0)) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env=walker_walk", "env.observation=pixels", "env.camera=3"], "env.camera=3: walker_walk has 3 cameras, which count from 0; -1 is a free one"),
        (["env=walker_walk", "env.observation=picture"], "env.observation must be one of entries, vector, pixels, all, not 'picture'"),
        (["env=walker_walk", "env.size=32"], "env.size=32 does nothing in this run: it is used only where env.observation=pixels or all"),
        (["env=walker_walk", "env.camera=1"], "env.camera=1 does nothing in this run"),
        (["env=walker_walk", "env.action_repeat=0"], "env.action_repeat must be at least 1"),
        (["env=crafter", "env.size=17"], "env.size must be at least 18"),
        (["env=walker_wlk"], "Did you mean walker_walk"),
        (["env=dmc/CartPole-v1"], "There is no env 'dmc/CartPole-v1'"),
        (["env=walker_walk", "env.family=gym"], "env.family=gym cannot make env=walker_walk, which is of the family dmc"),
        (["env=CartPole-v1", "env.family=crafter"], "env.family=crafter cannot make env=CartPole-v1, which is of the family gym"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_a_sentence(fake, words, said):
    with pytest.raises(UserError) as refused:
        _dispatch(["train", "--plan", "algo=ppo", *words])
    assert said in str(refused.value)


def test_without_egl_only_pixels_are_refused(no_egl, monkeypatch, capsys, tmp_path):
    fake_suites.pretend(monkeypatch)
    said = "libEGL.so.1 is not installed: apt install libegl1"
    for words in (["env=walker_walk", "env.observation=pixels"], ["env=walker_walk", "env.observation=all"]):
        with pytest.raises(UserError, match=f"^env=walker_walk cannot be drawn: {said}$"):
            _dispatch(["train", "--plan", "algo=ppo", *words])
    assert drawing.os.environ[drawing.VARIABLE] == "disabled", "without which dm-control could not be imported"
    assert _dispatch(["train", "--plan", "algo=ppo", "env=walker_walk"]) == 0
    _dispatch(["doctor", f"runs_root={tmp_path}"])
    assert f"draw, so that dm-control shows no pixels: {said}" in capsys.readouterr().out


def test_doctor_does_not_say_that_a_missing_mujoco_draws(monkeypatch):
    from rlrun.commands.doctor import drawn

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert drawn(None).startswith("MuJoCo is not installed") and drawn("no EGL").startswith("MuJoCo is not installed")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert drawn(None) == "MuJoCo can draw pixels" and drawn("no EGL").startswith("MuJoCo cannot draw")


@pytest.mark.parametrize("chosen", ["glfw", "osmesa"])
def test_the_users_own_way_to_draw_is_kept(no_egl, monkeypatch, chosen):
    monkeypatch.setenv(drawing.VARIABLE, chosen)
    assert drawing.lacks() is None and drawing.os.environ[drawing.VARIABLE] == chosen


def test_drawing_that_is_switched_off_is_named(monkeypatch):
    monkeypatch.setenv(drawing.VARIABLE, "off")
    monkeypatch.setattr(drawing, "egl_lacks", lambda: None)
    assert drawing.lacks() == "MUJOCO_GL=off says so: unset it, or set it to egl"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("walker_walk", "dm-control", "dmc"),
        ("dmc/cartpole_swingup", "dm-control", "dmc"),
        ("crafter", "Crafter", "crafter"),
        ("HalfCheetah-v5", "Gymnasium's MuJoCo", "mujoco"),
        ("gym/Hopper-v5", "Gymnasium's MuJoCo", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, capsys, name, package, extra):
    there = names.installed
    modules = {module for module, *_ in names.NEEDS.values()}
    monkeypatch.setattr(names, "installed", lambda module: module not in modules and there(module))
    short = name.rpartition("/")[2]
    said = rf"^env={short} is an environment of {package}, which is not installed: .* setup {extra}$"
    for refuse in (lambda: names.family_of(name), lambda: _dispatch(["train", "--plan", "algo=ppo", f"env={name}"])):
        with pytest.raises(UserError, match=said):
            refuse()
    assert names.family_of(name, needed=False)[1] == short
    if extra in ("dmc", "crafter"):
        assert _dispatch(["list", "envs"]) == 0
        assert f"{short:<32} {package}, not installed: {install_line(extra)}" in capsys.readouterr().out


@pytest.mark.parametrize("tuned", ["sac/halfcheetah", "cql/hopper_random"])
def test_a_missing_extra_is_named_where_a_tuned_file_names_the_environment(monkeypatch, tuned):
    """Words of the command line alone are looked at before the environment is made."""
    there = names.installed
    monkeypatch.setattr(names, "installed", lambda module: "mujoco" not in module and there(module))
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for module in [one for one in sys.modules if one.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(UserError, match=r"MuJoCo, which is not installed: .* setup mujoco$"):
        _dispatch(["train", "--plan", f"tuned={tuned}"])


def test_the_table_of_names_is_that_of_the_package():
    suite = pytest.importorskip("dm_control.suite")
    assert {*names.DMC.values()} == {*suite.ALL_TASKS}


def test_crafter_ends_and_its_achievements(fake):
    """Death terminates and time truncates. The last row of an episode alone tells what was unlocked."""
    env = made("env=crafter", "env.max_episode_steps=3", "env.size=18")
    wait, die = np.array([0]), np.array([1])
    first, steps = played(env, [wait, wait, wait, wait, die])
    assert env.spec.max_episode_steps == 3 and first.shape == (1, 18, 18, 3) and first.dtype == np.uint8
    ends = [(bool(step.terminated[0]), bool(step.truncated[0])) for step in steps]
    assert ends == [(False, False), (False, False), (False, True), (False, False), (True, False)]
    told = [{name: value[0] for name, value in step.info.items() if np.isfinite(value[0])} for step in steps]
    assert told[2] == {"achievement/collect_wood": 1.0, "achievement/eat_cow": 0.0, "achievements": 1.0}
    assert told[4] == {"achievement/collect_wood": 0.0, "achievement/eat_cow": 0.0, "achievements": 0.0}
    assert not told[0] and not told[1] and not told[3]
    assert made("env=crafter").spec.max_episode_steps == 10_000
    env.close()


def test_rewards_of_crafter_can_be_left_out(fake):
    for said, reward in (("true", 1.0), ("false", 0.0)):
        env = made("env=crafter", f"env.reward={said}")
        _, (step,) = played(env, [np.array([0])])
        assert step.reward[0] == reward
        env.close()


def test_unlocked_achievements_are_logged(fake, tmp_path):
    words = [
        "algo=pg",
        "env=crafter",
        "env.max_episode_steps=4",
        "env.size=18",
        "model=mlp",
        "model.hidden=[4]",
        "logger=[]",
        "resources=debug",
    ]
    assert _dispatch(["train", *words, "env_steps=60", f"run_dir={tmp_path / 'run'}"]) == 0
    row = json.loads((tmp_path / "run" / "progress.jsonl").read_text().splitlines()[-1])
    assert 0 < row["sample/info/achievement/collect_wood"] <= 1 and row["sample/info/achievement/eat_cow"] == 0


# -- with the packages themselves --------------------------------------------------------------------------------------


def random_play(*words, steps, seed=0, generation=0):
    """Every array of an environment that takes random actions, from its first observation on."""
    env, rng = made(*words, seed=seed), np.random.default_rng(1)
    seen = [map_rows(env.reset(generation), np.copy)]
    for _ in range(steps):
        step = env.step(env.spec.action.sample(rng, 1))
        seen.append(
            {**map_rows(step.obs, np.copy), "reward": step.reward, "ends": step.terminated + 2 * step.truncated}
        )
    env.close()
    return seen


def flat(rows):
    return np.concatenate([np.concatenate([np.ravel(part).astype(np.float64) for part in parts(row)]) for row in rows])


def parts(row):
    return [one for part in row.values() for one in (parts(part) if isinstance(part, dict) else [part])]


@pytest.mark.parametrize(
    ("package", "words", "steps"),
    [
        ("dm_control", ["env=cartpole_swingup", "env.action_repeat=20"], 60),
        ("dm_control", ["env=lqr_lqr_2_1"], 10),  # draws its bodies when it is made
        ("crafter", ["env=crafter", "env.size=18"], 300),  # which keeps its creatures in sets
    ],
)
def test_seeds_repeat_in_the_packages_too(package, words, steps):
    pytest.importorskip(package)
    seen = flat(random_play(*words, steps=steps))
    assert np.array_equal(seen, flat(random_play(*words, steps=steps)))
    assert not np.array_equal(seen, flat(random_play(*words, steps=steps, seed=1)))
    assert not np.array_equal(seen, flat(random_play(*words, steps=steps, generation=1)))


def test_a_task_of_dm_control_is_the_packages_own():
    """Observations, rewards and the last frame are those of a plain loop over dm-control; episodes have 1,000 frames."""
    pytest.importorskip("dm_control")
    env = made("env=walker_walk", "env.action_repeat=8")
    plain = dmc.load("walker_walk", random=0)
    obs, rng, ends = env.reset(0)["observation"], np.random.default_rng(0), []
    plain.task.random.seed(env.env_seeds[0] % 2**32)
    now = plain.reset()
    for _ in range(125):
        assert all(np.allclose(obs[name][0], np.ravel(now.observation[name])) for name in now.observation)
        action, paid = env.spec.action.sample(rng, 1), 0.0
        taken = env.spec.action.to_env(action)[0]
        for _ in range(8):
            now = plain.step(taken)
            paid += now.reward
        step = env.step(action)
        obs = step.obs["observation"]
        assert step.reward[0] == np.float32(paid)
        ends.append((bool(step.terminated[0]), bool(step.truncated[0])))
    assert now.last() and ends == [(False, False)] * 124 + [(False, True)]
    env.close()


def test_pictures_are_those_of_the_camera():
    """Environments in one process draw each its own state; a picture is the same as one from dm-control's buffer of 640 x 480."""
    pytest.importorskip("dm_control")
    if drawing.lacks():
        pytest.skip(drawing.lacks())
    env = made("env=cartpole_swingup", "env.observation=pixels", "env.size=32", count=2)
    seen = env.reset(0)["observation"].copy()
    assert seen.shape == (2, 32, 32, 3) and seen[0].std() > 10 and not np.array_equal(seen[0], seen[1])
    plain = dmc.load("cartpole_swingup", random=0)
    for column, seed in enumerate(env.env_seeds):
        plain.task.random.seed(seed % 2**32)
        plain.reset()
        assert np.array_equal(seen[column], plain.physics.render(32, 32, camera_id=0))
    env.close()
