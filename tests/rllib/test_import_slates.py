"""RLlib's SlateQ and bandit files (1.12 to 2.7): what each option becomes, and that the result starts."""

import pytest
from conftest import compose

from rlrun.config.run import type_config
from rlrun.core.errors import UserError
from rlrun.machine.machine import Machine
from rlrun.rllib.option_map import option_map
from rlrun.rllib.translate import translate
from rlrun.rllib.yaml_files import flow
from rlrun.runtime.plan import plan

RECSIM = "ray.rllib.examples.env.recommender_system_envs_with_recsim"


def recsim(candidates, **more):
    return {"config": {"resample_documents": True, "num_candidates": candidates, "slate_size": 2, "seed": 0, **more}}


# The files of rllib/tuned_examples/slateq and bandits, and the environments of its examples.
FILES = {
    "interest-evolution-10-candidates": {
        "run": "SlateQ", "env": f"{RECSIM}.InterestEvolutionRecSimEnv", "stop": {"episode_reward_mean": 160.0, "timesteps_total": 120000},
        "config": {"framework": "tf2", "env_config": recsim(10, convert_to_discrete_action_space=False), "exploration_config": {"warmup_timesteps": 20000, "epsilon_timesteps": 50000},
                   "replay_buffer_config": {"capacity": 100000}, "lr": 0.00025, "target_network_update_freq": 3200, "metrics_num_episodes_for_smoothing": 500}},
    "long-term-satisfaction": {
        "run": "SlateQ", "env": f"{RECSIM}.LongTermSatisfactionRecSimEnv", "stop": {"evaluation/episode_reward_mean": 1000.0, "timesteps_total": 200000},
        "config": {"env_config": recsim(50, convert_to_discrete_action_space=False), "exploration_config": {"warmup_timesteps": 10000, "epsilon_timesteps": 60000}, "target_network_update_freq": 3200}},
    "interest-exploration": {
        "run": "SlateQ", "env": f"{RECSIM}.InterestExplorationRecSimEnv", "stop": {"timesteps_total": 1000},
        "config": {"env_config": recsim(10), "exploration_config": {"type": "SlateSoftQ", "temperature": 0.7}, "use_huber": True, "grad_clip": 10.0, "hiddens": [512, 512], "lr_q_model": 0.01}},
    "linucb": {
        "run": "BanditLinUCB", "env": f"{RECSIM}.InterestEvolutionRecSimEnv", "stop": {"sampler_results/episode_reward_mean": 180.0, "timesteps_total": 50000},
        "config": {"framework": "torch", "env_config": recsim(100, convert_to_discrete_action_space=True, wrap_for_bandits=True), "metrics_num_episodes_for_smoothing": 500}},
    "lints-wheel": {"run": "BanditLinTS", "env": "ray.rllib.examples.env.bandit_envs_discrete.WheelBanditEnv", "stop": {"training_iteration": 10}, "config": {"env_config": {"delta": 0.7, "std": 0.05}}},
    "items": {"run": "BanditLinUCB", "env": "ray.rllib.examples.env.bandit_envs_recommender_system.ParametricItemRecoEnv", "stop": {}, "config": {"env_config": {"num_items": 200, "feature_dim": 8}, "model": {"alpha": 4.0, "lambda_": 0.5}}},
}  # fmt: skip
WANTED = {
    "interest-evolution-10-candidates": {
        "algo.target_update_interval": 800, "algo.replay_ratio": 8, "algo.learning_starts": 20000, "algo.exploration.epsilon": [[0, 1.0], [20000.0, 1.0], [70000.0, 0.01]],
        "algo.null_value": False, "algo.choice": "affinity", "replay.capacity": 100000, "algo.q.hidden": [256, 32], "env.kwargs": {"num_candidates": 10, "slate_size": 2}, "stop.return_mean": 160.0},
    "long-term-satisfaction": {"algo.choice": "network", "env.kwargs": {"num_candidates": 50, "slate_size": 2}, "env_steps": 200000},
    "interest-exploration": {"algo.exploration.kind": "soft_q", "algo.exploration.temperature": 0.7, "algo.huber_delta": 1.0, "algo.max_grad_norm": 10.0, "algo.q.hidden": [512, 512], "algo.lr": 0.01},
    "linucb": {"algo.items": "candidates", "algo.alpha": 0.3, "algo.ridge": 0.1, "algo.intercept": False},
    "lints-wheel": {"env.kwargs": {"delta": 0.7, "noise": 0.05}, "algo.ridge": 1.0, "algo.fragment_length": 1, "algo.batch_size": 1},
    "items": {"algo.items": "items", "algo.alpha": 0.6, "algo.ridge": 0.5, "env.kwargs": {"num_items": 200, "feature_dim": 8}},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_rllibs_files_of_slates_and_bandits_mean_the_same_and_start(name):
    (made,) = translate(name, FILES[name], name)
    assert {key: made.values.get(key) for key in WANTED[name]} == WANTED[name]
    lost = [line.key for line in made.lines if line.how == "not mapped"]
    assert lost == (["stop.evaluation/episode_reward_mean"] if name == "long-term-satisfaction" else []), lost
    chosen = [
        f"{key.removesuffix('._choice')}={value}" for key, value in made.values.items() if key.endswith("_choice")
    ]
    words = [f"++{key}={flow(value)}" for key, value in made.values.items() if not key.endswith("_choice")]
    config = type_config(compose(f"algo={made.algo}", f"env={made.env}", *chosen, *words))
    assert plan(config, Machine(cores=2, env_step_sec=lambda make_env, count: 1e-4)).needs.columns >= 1


def test_what_is_lost_of_an_environments_options_is_said():
    wheel = FILES["lints-wheel"] | {"config": {"env_config": {"delta": 0.7, "mu_3": 5.0}}}
    (made,) = translate("wheel", wheel, "wheel")
    assert [(line.key, line.value) for line in made.lines if line.how == "not mapped"] == [("env_config.mu_3", 5.0)]
    items = {"run": "SlateQ", "env": FILES["items"]["env"], "config": {"env_config": {"num_items": 200, "slate_size": 2}}}
    with pytest.raises(UserError, match="and not a slate"):
        translate("items", items, "items")


def test_every_option_of_rllibs_last_releases_has_a_line():
    """SlateQConfig.training() of 2.7, and what 1.0 had besides."""
    known = {row["rllib"] for row in option_map("slateq")}
    assert {
        "replay_buffer_config", "fcnet_hiddens_per_candidate", "target_network_update_freq", "tau", "use_huber", "huber_threshold", "training_intensity",
        "lr_schedule", "lr_choice_model", "rmsprop_epsilon", "grad_clip", "n_step", "slateq_strategy", "lr_q_model", "hiddens", "double_q", "exploration_config",
    } <= known  # fmt: skip
    for algo in ("lin_ucb", "lin_ts", "neural_linear"):
        assert {"lambda_", "exploration_config", "rollout_fragment_length", "train_batch_size"} <= {
            row["rllib"] for row in option_map(algo)
        }
