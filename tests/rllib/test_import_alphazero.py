"""RLlib's files of AlphaZero."""

import pytest
import yaml
from conftest import compose

from rlrun.config.run import type_config
from rlrun.rllib.translate import translate

# cartpole-sparse-rewards-alpha-zero.yaml of RLlib 1.13 to 2.7.
CARTPOLE = yaml.safe_load("""
env: ray.rllib.examples.env.cartpole_sparse_rewards.CartPoleSparseRewards
run: AlphaZero
stop: {episode_reward_mean: 30.0, timesteps_total: 100000}
config:
  framework: torch
  num_workers: 6
  rollout_fragment_length: 50
  train_batch_size: 500
  sgd_minibatch_size: 64
  lr: 0.0001
  num_sgd_iter: 1
  mcts_config: {puct_coefficient: 1.5, num_simulations: 100, temperature: 1.0, dirichlet_epsilon: 0.2, dirichlet_noise: 0.03, argmax_tree_policy: false,
    add_dirichlet_noise: true}
  ranked_rewards: {enable: true}
  model: {custom_model: ray.rllib.algorithms.alpha_zero.models.custom_torch_models.DenseModel}
""")


def imported(**changes):
    (one,) = translate("a", {**CARTPOLE, "config": {**CARTPOLE["config"], **changes}}, "a")
    return one


def test_rllibs_file_of_alphazero_keeps_its_meaning():
    one = imported()
    wanted = {
        "algo.fragment_length": 50, "algo.num_envs": 6, "algo.batch_size": 64, "algo.replay_ratio": pytest.approx(5 / 3), "algo.lr": 1e-4,
        "algo.search.simulations": 100, "algo.search.puct": 1.5, "algo.search.puct_base": 0.0, "algo.search.unvisited": "zero",
        "algo.search.dirichlet_alpha": 0.03, "algo.search.dirichlet_share": 0.2, "algo.search.discount": 1.0, "algo.temperature": 1.0,
        "algo.ranked.enabled": True, "algo.ranked.percentile": 0.75, "algo.ranked.games": 1000, "algo.ranked.initial_games": 100,
        "algo.ranked.ties": "won", "replay.capacity": 1000, "model.hidden": [256], "model.share_value": True,
        "stop.return_mean": 30.0, "env_steps": 100000,
    }  # fmt: skip
    assert one.env == "CartPoleSparse-v0" and {name: one.values[name] for name in wanted} == wanted
    assert not [line for line in one.lines if line.how == "not mapped"]
    words = [f"{name}={value}" for name, value in one.values.items() if name.startswith("algo.") and value is not None]
    cfg = type_config(compose("algo=alphazero", f"env={one.env}", *words)).algo
    assert cfg.search.puct == 1.5 and cfg.ranked.games == 1000


@pytest.mark.parametrize("config, rows", [({"replay_buffer_config": {"capacity": 3000}}, 3000), ({"buffer_size": 300}, 15_000)])
def test_a_replay_holds_as_many_rows_as_rllibs(config, rows):
    """RLlib 1.0 to 1.12 has buffer_size, which counts fragments."""
    assert imported(**config).values["replay.capacity"] == rows


def test_a_horizon_is_a_limit_that_the_search_sees():
    one = imported(horizon=200)
    assert one.values["env.kwargs"] == {"max_steps": 200} and "env.max_episode_steps" not in one.values


def test_switches_of_rllibs_search_become_numbers():
    search = {**CARTPOLE["config"]["mcts_config"], "temperature": 1.5}
    one = imported(mcts_config={**search, "add_dirichlet_noise": False}, ranked_rewards={"enable": False})
    assert one.values["algo.temperature"] == pytest.approx(1 / 1.5) and one.values["algo.search.dirichlet_share"] == 0.0
    assert one.values["algo.ranked.enabled"] is False and "algo.ranked.games" not in one.values
    one = imported(mcts_config={**search, "argmax_tree_policy": True}, ranked_rewards={"initialize_buffer": False})
    assert one.values["algo.temperature"] == 0.0 and one.values["algo.ranked.initial_games"] == 0
