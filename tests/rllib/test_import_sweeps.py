"""The printed `rlrun sweep` starts, and its jobs have the values of RLlib's file."""

import shlex

import pytest
import yaml

from rlrun.cli import _dispatch
from rlrun.rllib.translate import translate


def printed(tmp_path, capsys, run, config, env="CartPole-v1"):
    """The words of the printed sweep; None if there is none. The file is x.yaml."""
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"x": {"run": run, "env": env, "config": config}}))
    assert _dispatch(["import-rllib", str(tmp_path / "a.yaml"), "--dir", str(tmp_path / "out"), "--quiet"]) == 0
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
