"""Translates RLlib's options of AlphaZero to rlrun's, as a part of translate.py."""

from __future__ import annotations

from rlrun.rllib.algorithms import SEARCHING
from rlrun.rllib.q_learning import rows_of_fragments
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import rounded

SPARSE = "CartPoleSparse-v0"
MCTS, RANKED, BUFFER = "mcts_config", "ranked_rewards", "replay_buffer_config"
DENSE = "RLlib's DenseModel: a layer of 256 with ReLU for both heads"
LENGTHS = ("rollout_fragment_length", "sample_batch_size")
STARTS = ("num_steps_sampled_before_learning_starts", "learning_starts")


def alphazero(one: Translation) -> None:
    """Sets what AlphaZero has."""
    if one.core not in SEARCHING:
        return
    _rows(one)
    _search(one)
    if one.made.env == SPARSE and one.given.get("horizon"):
        one.set("env.kwargs", {"max_steps": int(one.given["horizon"])}, "horizon", why="the search sees this limit")
    _ranked(one)
    if _dense(one):
        one.say("model.custom_model", "mapped", "model.hidden=[256]", DENSE)


def _dense(one: Translation) -> bool:
    return one.core in SEARCHING and str(one.given.get("model.custom_model", "")).endswith("DenseModel")


def dense_model(one: Translation) -> None:
    """Sets the network of RLlib's examples in place of its default one."""
    if _dense(one):
        one.set("model.hidden", [256], why=DENSE)
        one.set("model.activation", "relu", why=DENSE)
        one.set("model.share_value", True, why=DENSE)


def _rows(one: Translation) -> None:
    at = one.inner
    workers = int(one.get("num_workers", "num_env_runners", default=0))
    envs = max(workers, 1) * int(one.get("num_envs_per_worker", "num_envs_per_env_runner", default=1))
    length, batch = int(one.get(*LENGTHS)), int(one.get("train_batch_size"))
    passes, minibatch = int(one.get("num_sgd_iter")), int(one.get("sgd_minibatch_size"))
    one.set(f"{at}.fragment_length", length, *LENGTHS)
    one.set(f"{at}.num_envs", envs, why="the environments of all of RLlib's workers")
    one.set(f"{at}.batch_size", minibatch, "sgd_minibatch_size", "minibatch_size")
    why = f"{passes} passes over {batch} rows for {envs} fragments of {length}, which are whole episodes in RLlib"
    one.set(
        f"{at}.replay_ratio", rounded(passes * batch / (envs * length)), "train_batch_size", "num_sgd_iter", why=why
    )
    starts = max(1, int(one.get(*STARTS)))
    one.set(f"{at}.learning_starts", starts, *STARTS)
    capacities = (f"{BUFFER}.capacity", "buffer_size")
    held, why = rows_of_fragments(one, int(one.get(*capacities)), length)
    one.choose("replay", "uniform", f"{BUFFER}.type", why="rows are drawn uniformly, in RLlib whole fragments")
    one.set("replay.capacity", max(held, starts, minibatch), *capacities, why=why)
    one.say("batch_mode", "dropped", why="a row is drawn once its episode is over")


def _search(one: Translation) -> None:
    at, search = one.inner, f"{one.inner}.search"
    one.set(f"{search}.simulations", int(one.get(f"{MCTS}.num_simulations")), f"{MCTS}.num_simulations")
    one.set(f"{search}.puct", float(one.get(f"{MCTS}.puct_coefficient")), f"{MCTS}.puct_coefficient")
    one.set(f"{search}.puct_base", 0.0, why="RLlib's coefficient does not grow")
    one.set(f"{search}.unvisited", "zero", why="RLlib's Q is W / (1 + N)")
    one.set(f"{search}.normalize", "none", why="RLlib's Q is as it is")
    one.set(f"{search}.dirichlet_alpha", float(one.get(f"{MCTS}.dirichlet_noise")), f"{MCTS}.dirichlet_noise")
    share, keys = (
        float(one.get(f"{MCTS}.dirichlet_epsilon")),
        (f"{MCTS}.dirichlet_epsilon", f"{MCTS}.add_dirichlet_noise"),
    )
    noisy = bool(one.get(f"{MCTS}.add_dirichlet_noise"))
    one.set(f"{search}.dirichlet_share", share if noisy else 0.0, *keys, why="RLlib's is at every new node")
    one.set(f"{search}.discount", 1.0, "gamma", why="RLlib's AlphaZero does not discount")
    greedy = bool(one.get(f"{MCTS}.argmax_tree_policy"))
    power = float(one.get(f"{MCTS}.temperature"))
    value = 0.0 if greedy else rounded(1.0 / power) if power > 0 else 1e3
    why = "true: the best move" if greedy else "RLlib takes visits to the power of its temperature"
    one.set(f"{at}.temperature", value, f"{MCTS}.temperature", f"{MCTS}.argmax_tree_policy", why=why)
    one.set(f"{at}.value_coef", 1.0, why="RLlib halves the sum of both losses")
    one.set(f"{at}.optimizer.weight_decay", 0.0, why="RLlib's has none")
    one.say(f"{MCTS}.argmax_child_value", "dropped", why="the largest Q + U is always taken")
    one.say(f"{MCTS}.turn_based_flip", "dropped", why="two players always see the game from the side to move")
    one.say(f"{MCTS}.epsilon", "not mapped", why="random moves beside the search's; algo.exploration.kind is your own")


def _ranked(one: Translation) -> None:
    ranked = f"{one.inner}.ranked"
    enabled = bool(one.get(f"{RANKED}.enable"))
    one.set(f"{ranked}.enabled", enabled, f"{RANKED}.enable")
    keys = (f"{RANKED}.initialize_buffer", f"{RANKED}.num_init_rewards")
    if not enabled:
        for key in (f"{RANKED}.percentile", f"{RANKED}.buffer_max_length", *keys):
            one.say(key, "dropped", why="ranked_rewards.enable is false")
        return
    one.set(f"{ranked}.percentile", float(one.get(f"{RANKED}.percentile")) / 100, f"{RANKED}.percentile")
    one.set(f"{ranked}.games", int(one.get(f"{RANKED}.buffer_max_length")), f"{RANKED}.buffer_max_length")
    games = int(one.get(keys[1])) if one.get(keys[0]) else 0
    one.set(f"{ranked}.initial_games", games, *keys)
    one.set(f"{ranked}.ties", "won", why="RLlib's, with which a run that wins all games calls every game won")
