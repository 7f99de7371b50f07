"""RLlib's DreamerV3 files: what each option becomes, and that the result starts."""

import pytest
import yaml
from conftest import compose

from rlrun.config.run import type_config
from rlrun.core.errors import UserError
from rlrun.rllib.option_map import option_map
from rlrun.rllib.translate import translate

FILE = {
    "run": "DreamerV3",
    "env": "Pendulum-v1",
    "stop": {"num_env_steps_sampled": 100000, "episode_reward_mean": -200},
    "config": {
        "model_size": "S", "training_ratio": 512, "batch_size_B": 8, "batch_length_T": 32, "horizon_H": 10, "gamma": 0.99,
        "entropy_scale": 0.001, "gae_lambda": 0.9, "return_normalization_decay": 0.98, "actor_lr": 3e-5, "train_actor": True,
        "symlog_obs": "auto", "use_float16": False, "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 5000},
        "model": {"fcnet_hiddens": [64]},
    },
}  # fmt: skip


def imported(**config):
    (made,) = translate("one", {**FILE, "config": {**FILE["config"], **config}}, "file.yaml")
    return made


def test_options_become_those_of_the_algorithm_of_2024():
    made = imported(num_envs_per_env_runner=4)
    assert made.algo == "dreamerv3" and made.env == "Pendulum-v1"
    wanted = {
        "model.size": "size25m", "algo.train_ratio": 512, "algo.batch_size": 8, "algo.batch_length": 32, "algo.imag_length": 10,
        "algo.horizon": 100.0, "algo.entropy_coef": 0.001, "algo.lambda_": 0.9, "algo.return_norm.rate": 0.02,
        "replay.capacity": 5000, "algo.num_envs": 4, "env_steps": 100000, "stop.return_mean": -200.0,
    }  # fmt: skip
    assert {name: made.values[name] for name in wanted} == wanted
    words = [f"{name}={value}" for name, value in made.values.items() if name != "expected"]
    config = type_config(compose("algo=dreamerv3", "env=Pendulum-v1", *words))
    assert config.run.model.size == "size25m" and config.algo.discount == pytest.approx(0.99)
    became = {line.key: line.how for line in made.lines}
    assert became["actor_lr"] == "not mapped" and became["train_actor"] == became["use_float16"] == "dropped"
    assert became["model.fcnet_hiddens"] == "dropped"


def test_what_has_no_counterpart_is_said():
    lines = {line.key: line for line in imported(train_critic=False, intrinsic_rewards=True, model_size="nano").lines}
    assert lines["train_critic"].how == lines["intrinsic_rewards"].how == "not mapped"
    assert lines["model_size"].became == "model.size=size1m" and "other networks" in lines["model_size"].why
    lines = {line.key: line for line in imported(model_size="huge").lines}
    assert lines["model_size"].how == "not mapped" and "nano" in lines["model_size"].why


def test_the_papers_names_are_mapped_too():
    rows = {row["rllib"]: row["rlrun"] for row in option_map("dreamerv3")}
    assert sum(name.startswith("paper: ") for name in rows) >= 20
    assert rows["paper: replay ratio"] == "algo.train_ratio" and rows["model_size"] == "model.size"
    assert rows["fcnet_hiddens"] is None and rows["lstm_cell_size"] is None


def test_dreamer_of_2020_comes_later():
    with pytest.raises(UserError, match="later release"):
        translate("one", yaml.safe_load("{run: Dreamer, env: Pendulum-v1, config: {}}"), "file.yaml")
