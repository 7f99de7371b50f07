"""RLlib's Dreamer and DreamerV3 files: what each option becomes, and that the result starts."""

import pytest
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
    for gamma in (0.0, 1.0):
        made = imported(gamma=gamma)
        assert "algo.horizon" not in made.values
        assert {line.key: line.how for line in made.lines}["gamma"] == "not mapped"


def test_the_papers_names_are_mapped_too():
    rows = {row["rllib"]: row["rlrun"] for row in option_map("dreamerv3")}
    assert sum(name.startswith("paper: ") for name in rows) >= 20
    assert rows["paper: replay ratio"] == "algo.train_ratio" and rows["model_size"] == "model.size"
    assert rows["fcnet_hiddens"] is None and rows["lstm_cell_size"] is None


# dreamer-deepmind-control.yaml of RLlib 1.0 to 2.7, on one of its tasks.
CONTROL = {
    "run": "DREAMER",
    "env": "ray.rllib.examples.env.dm_control_suite.walker_walk",
    "stop": {"timesteps_total": 1000000},
    "config": {
        "td_model_lr": 0.0006, "actor_lr": 8e-05, "critic_lr": 8e-05, "discount": 0.99, "lambda": 0.95, "dreamer_train_iters": 100,
        "horizon": 1000, "batch_size": 50, "batch_length": 50, "imagine_horizon": 15, "free_nats": 3.0, "batch_mode": "complete_episodes",
        "num_gpus": 1, "num_workers": 0, "clip_actions": False, "framework": "torch",
    },
}  # fmt: skip


def test_rllibs_file_of_dreamer_is_the_papers():
    (made,) = translate("one", CONTROL, "file.yaml")
    words = [f"{name}={value}" for name, value in made.values.items()]
    config, paper = (
        type_config(compose("algo=dreamer", f"env={made.env}", *more)).algo
        for more in (words, ["env.observation=pixels", "env.action_repeat=2", "algo.optimizer.epsilon=1e-8"])
    )
    assert made.env == "walker_walk" and made.values["env.observation"] == "pixels" and made.values["env_steps"] == 500000
    assert config == paper, "the defaults are those of the paper, and RLlib's too"
    assert {line.how for line in made.lines} <= {"mapped", "added", "dropped"}


def test_options_of_dreamer_keep_their_meaning():
    more = {
        "env_config": {"frame_skip": 4}, "dreamer_train_iters": 50, "batch_size": 10, "prefill_timesteps": 4000, "explore_noise": 0.2, "kl_coeff": 0.5,
        "clip_rewards": True, "grad_clip": 10.0, "dreamer_model": {"deter_size": 32, "stoch_size": 8, "depth_size": 4, "hidden_size": 16, "action_init_std": 2.0},
    }  # fmt: skip
    (made,) = translate("one", {**CONTROL, "config": {**CONTROL["config"], **more}}, "file.yaml")
    wanted = {
        "env.action_repeat": 4, "env.max_episode_steps": 250, "algo.fragment_length": 250, "algo.train_ratio": 100.0, "algo.random_steps": 1000,
        "algo.learning_starts": 1000, "algo.exploration.noise": 0.2, "algo.kl_coef": 0.5, "algo.reward_clip": "sign", "algo.max_grad_norm": 10,
        "model.deter": 32, "algo.optimizer.epsilon": 1e-8, "model.stoch": 8, "model.depth": 4, "model.units": 16, "model.init_std": 2.0, "env_steps": 250000,
    }  # fmt: skip
    assert {name: made.values.get(name) for name in wanted} == wanted
    rows = {row["rllib"] for row in option_map("dreamer")}
    assert {name for name in CONTROL["config"] if name not in ("num_gpus", "framework")} <= rows | {"clip_actions", "horizon"}


@pytest.mark.parametrize("name, task, shown, repeat", [
    ("DMC/cartpole/swingup", "cartpole_swingup", "pixels", 2),  # RLlib's dm_control_suite_vision_dreamerv3.py
    ("dm_control/ball_in_cup-catch-v0", "ball_in_cup_catch", "entries", 1),  # shimmy
    ("ray.rllib.examples.env.dm_control_suite.cheetah_run", "cheetah_run", "pixels", 2),
])  # fmt: skip
def test_names_of_dm_controls_tasks_become_ours(name, task, shown, repeat):
    (made,) = translate("one", {"run": "DreamerV3", "env": name, "config": {"training_ratio": 512}}, "file.yaml")
    assert made.env == task and made.values["env.observation"] == shown and made.values["env.action_repeat"] == repeat
    assert {line.how for line in made.lines} <= {"mapped", "added", "dropped"}
    words = [f"{option}={value}" for option, value in made.values.items()]
    assert type_config(compose("algo=dreamerv3", f"env={task}", *words)).run is not None


def test_a_task_that_dm_control_does_not_have_is_said():
    with pytest.raises(UserError, match="There is no env 'cartpole_fly'"):
        translate("one", {"run": "DreamerV3", "env": "DMC/cartpole/fly", "config": {}}, "file.yaml")
