"""RLlib's MAML and MBMPO files: what each option becomes."""

import pytest
from conftest import compose

from rlrun.config.run import type_config
from rlrun.rllib.option_map import option_map
from rlrun.rllib.translate import translate

# pendulum-mass-maml.yaml and cartpole-mbmpo.yaml of RLlib 1.13 and 2.7
MAML = {
    "run": "MAML",
    "env": "ray.rllib.examples.env.pendulum_mass.PendulumMassEnv",
    "stop": {"training_iteration": 500},
    "config": {
        "horizon": 200, "rollout_fragment_length": 200, "num_envs_per_worker": 10, "inner_adaptation_steps": 1, "maml_optimizer_steps": 5,
        "gamma": 0.99, "lambda": 1.0, "lr": 0.001, "vf_loss_coeff": 0.5, "clip_param": 0.3, "kl_target": 0.01, "kl_coeff": 0.001, "num_workers": 20,
        "num_gpus": 1, "inner_lr": 0.03, "explore": True, "clip_actions": False, "model": {"fcnet_hiddens": [64, 64], "free_log_std": True},
    },
}  # fmt: skip
MBMPO = {
    "run": "MBMPO",
    "env": "ray.rllib.examples.env.mbmpo_env.CartPoleWrapper",
    "stop": {"episode_reward_mean": 190, "training_iteration": 20},
    "config": {
        "num_envs_per_worker": 20, "inner_adaptation_steps": 1, "maml_optimizer_steps": 8, "gamma": 0.99, "lambda": 1.0, "lr": 0.001, "clip_param": 0.5,
        "kl_target": 0.003, "kl_coeff": 1e-10, "num_workers": 10, "num_gpus": 0, "inner_lr": 0.001, "clip_actions": False, "num_maml_steps": 15,
        "dynamics_model": {"ensemble_size": 3, "train_epochs": 7}, "model": {"fcnet_hiddens": [32, 32], "free_log_std": True},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "file, wanted",
    [
        (MAML, {"algo.num_tasks": 20, "algo.envs_per_task": 10, "algo.fragment_length": 200, "algo.inner_steps": 1, "algo.outer_steps": 5,
                "algo.inner_lr": 0.03, "algo.value_coef": 1.0, "algo.value_clip": 10.0, "algo.clip": 0.3, "algo.kl_coef": 0.001, "algo.baseline": "value",
                "algo.sample_tasks": True, "model.hidden": [64, 64], "env_steps": 40_000_000, "env.max_episode_steps": 200}),
        (MBMPO, {"algo.num_tasks": 10, "algo.envs_per_task": 20, "algo.maml_updates": 15, "algo.dynamics.members": 3, "algo.dynamics.max_epochs": 7,
                 "algo.dynamics.hidden": [512, 512, 512], "algo.dynamics.batch_size": 500, "algo.random_steps": 8000, "algo.imagined_length": 200,
                 "runner.complete_episodes": True, "stop.return_mean": 190.0, "env_steps": 40_000, "env.max_episode_steps": 200}),
    ],
)  # fmt: skip
def test_rllibs_files_keep_their_meaning(file, wanted):
    (made,) = translate("one", file, "file.yaml")
    assert {name: made.values[name] for name in wanted} == wanted
    assert not [line for line in made.lines if line.how == "not mapped"]
    words = [f"{name}={value}" for name, value in made.values.items() if name != "expected"]
    config = type_config(compose(f"algo={made.algo}", f"env={made.env}", *words))
    assert config.algo.optimizer.kind == "adam" and config.run.model.share_value is False


def test_each_model_of_an_ensemble_has_a_task():
    config = {key: value for key, value in MBMPO["config"].items() if key != "num_workers"}
    (made,) = translate("one", {**MBMPO, "config": {**config, "num_workers": 2}}, "file.yaml")
    assert made.values["algo.num_tasks"] == made.values["algo.dynamics.members"] == 3


@pytest.mark.parametrize("name, env", [
    ("pendulum_mass.PendulumMassEnv", "PendulumMass-v0"), ("cartpole_mass.CartPoleMassEnv", "CartPoleMass-v0"),
    ("halfcheetah_rand_direc.HalfCheetahRandDirecEnv", "HalfCheetahRandDirec-v0"), ("ant_rand_goal.AntRandGoalEnv", "AntRandGoal-v0"),
])  # fmt: skip
def test_rllibs_environments_with_tasks_are_known(name, env):
    (made,) = translate("one", {**MAML, "env": f"ray.rllib.examples.env.{name}"}, "file.yaml")
    assert made.env == env


def test_without_tasks_the_environment_is_taken_as_it_is():
    file = {**MAML, "env": "CartPole-v1", "config": {**MAML["config"], "use_meta_env": False}}
    (made,) = translate("one", file, "file.yaml")
    assert made.values["algo.sample_tasks"] is False


@pytest.mark.parametrize("algo", ["maml", "mbmpo"])
def test_every_option_of_rllibs_classes_has_a_row(algo):
    """Those of MAMLConfig and MBMPOConfig of RLlib 1.13 and 2.7."""
    rows = {row["rllib"] for row in option_map(algo)}
    own = {"use_gae", "lambda_", "kl_coeff", "vf_loss_coeff", "entropy_coeff", "clip_param", "vf_clip_param", "grad_clip", "kl_target", "inner_adaptation_steps"}
    own |= {"maml_optimizer_steps", "inner_lr", "lr", "num_rollout_workers", "rollout_fragment_length", "create_env_on_local_worker", "batch_mode", "vf_share_layers"}
    models = {f"dynamics_model.{name}" for name in ("custom_model", "ensemble_size", "fcnet_hiddens", "lr", "train_epochs", "batch_size", "valid_split_ratio", "normalize_data")}
    own |= {"use_meta_env"} if algo == "maml" else {"num_maml_steps", "custom_vector_env", "exploration_config", *models}
    assert own <= rows
