"""The printed `rlrun sweep` starts, and its jobs have the values of RLlib's file."""

import shlex

import pytest
import yaml
from omegaconf import OmegaConf

from rlrun.cli import _dispatch, compose
from rlrun.config.types import plain
from rlrun.experiments.grid import grid, parse
from rlrun.rllib.translate import translate


def printed(tmp_path, capsys, run, config, env="CartPole-v1"):
    """The words of the printed sweep; None if there is none. The file is x.yaml."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"x": {"run": run, "env": env, "config": config}}))
    words = ["import-rllib", str(tmp_path / "a.yaml"), "--dir", str(tmp_path / "out"), "--quiet", "--trust"]
    assert _dispatch(words) == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    return words[1:] if words[1] == "sweep" else None


SWITCHES = [  # (run, options, rlrun's switch and an option that it switches, its value in the file, whether a sweep is left)
    ("DQN", {"dueling": [True, False]}, "algo.head.dueling", "algo.head.gradient_scale", 1.0, False),
    ("DQN", {"dueling": [False, True]}, "algo.head.dueling", "algo.head.gradient_scale", None, False),
    ("DQN", {"noisy": [False, True], "sigma0": 0.2}, "algo.head.noisy", "algo.head.sigma0", None, False),
    ("PPO", {"kl_coeff": [0.2, 0.1, 0.0], "kl_target": 0.02}, "algo.kl_coef", "algo.kl_target", 0.02, False),
    ("PPO", {"kl_coeff": [0.0, 0.2], "kl_target": 0.02}, "algo.kl_coef", "algo.kl_target", None, False),
    ("PPO", {"kl_coeff": [0.2, 0.0], "kl_target": [0.01, 0.02]}, "algo.kl_coef", "algo.kl_target", 0.01, False),
    ("PPO", {"kl_coeff": [0.1, 0.2], "kl_target": 0.02}, "algo.kl_coef", "algo.kl_target", 0.02, True),
    ("PPO", {"kl_coeff": [0.2, 0.0], "kl_target": 0.01}, "algo.kl_coef", "algo.kl_target", None, True),  # conf's value
    ("IMPALA", {"num_sgd_iter": [1, 2], "minibatch_buffer_size": 4}, "runner.num_sgd_iter", "runner.minibatch_buffer_size", None, False),
]  # fmt: skip


@pytest.mark.parametrize("run, config, switch, option, value, swept", SWITCHES)
def test_a_switch_is_swept_if_every_job_has_the_files_values(
    run, config, switch, option, value, swept, tmp_path, capsys
):
    config = {key: {"grid_search": one} if isinstance(one, list) else one for key, one in config.items()}
    (one,) = translate("x", {"run": run, "env": "CartPole-v1", "config": config}, "x")
    assert one.values.get(option) == value and (switch in one.grid) == swept
    (line,) = [line for line in one.lines if line.became.startswith(f"{switch}=")]
    several = line.value["grid_search"]
    said = "the file's head has the sweep" if swept else "a sweep over the others is yours to make"
    assert line.why.startswith(f"the first of {len(several)}") and said in line.why and (option in line.why) != swept
    sweep = printed(tmp_path, capsys, run, config)
    assert sweep is None or _dispatch([*sweep, "--dry-run"]) == 0
    assert (sweep is not None) == bool(one.grid)


TEXTS = [
    "5e-4",
    "1e3",
    "x,y",
    "a b",
    "on",
    "tRue",
    "it's",
    "",
    "-5",
    "1_0",
    "1._5e5",
    "nan",
    "{a:1}",
    "[a]",
    "k: v",
    "C:\\",
    "4x4",
    "a:b",
]
ENVIRONMENT = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Worded(CartPoleEnv):
    def __init__(self, render_mode=None, **kwargs):
        super().__init__()

gymnasium.register("Worded-v0", Worded, max_episode_steps=9)
"""


def test_the_environments_own_text_is_the_same_in_the_file_and_in_every_job(tmp_path, capsys, monkeypatch):
    (tmp_path / "worded.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)
    kwargs = {f"text{i}": text for i, text in enumerate(TEXTS)} | {
        "maze": ["0011", "01e10"],
        "inside": {"1e6": "1e6"},
        "size": 3,
    }
    several = [*TEXTS, 5, 5e-4, True, ["1e3", 2], [["a,b"]]]
    config = {"env_config": {**kwargs, "swept": {"grid_search": several}}}
    sweep = printed(tmp_path, capsys, "PPO", config, "worded:Worded-v0")
    written = OmegaConf.to_container(OmegaConf.load(tmp_path / "out" / "tuned" / "ppo" / "x.yaml"))
    assert written["env"]["kwargs"] == {**kwargs, "swept": TEXTS[0]}
    assert _dispatch([*sweep, "--trust", "--dry-run"]) == 0 and f"{len(several)} jobs" in capsys.readouterr().out
    space, seen = parse([word for word in sweep[1:] if "=" in word]), []
    for (variation,) in grid(space.choices):
        words = [*sweep[1:3], *space.fixed, variation.word, "--trust"]
        compose(words, lambda cfg, _: seen.append(plain(cfg)["env"]["kwargs"]) or 0)
    wanted = [{**kwargs, "swept": one} for one in several]
    assert seen == wanted and [type(one["swept"]) for one in seen] == [type(one) for one in several]
