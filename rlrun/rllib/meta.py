"""Translates RLlib's options of MAML and MBMPO to rlrun's, as a part of translate.py."""

from __future__ import annotations

from rlrun.rllib.algorithms import META
from rlrun.rllib.translation import Translation

WORKERS = ("num_workers", "num_rollout_workers", "num_env_runners")
ENVS = ("num_envs_per_worker", "num_envs_per_env_runner")
LENGTHS = ("rollout_fragment_length", "sample_batch_size")
HORIZON = 200  # rows of imagined episodes of RLlib's experiments
DYNAMICS = {
    "ensemble_size": "members",
    "fcnet_hiddens": "hidden",
    "lr": "lr",
    "train_epochs": "max_epochs",
    "batch_size": "batch_size",
    "valid_split_ratio": "valid_share",
    "normalize_data": "normalize",
}


def meta(one: Translation) -> None:
    """Sets what MAML and MBMPO have."""
    if one.core not in META:
        return
    at = one.inner
    workers, members = max(1, int(one.get(*WORKERS))), 1
    if one.core == "mbmpo":
        members = int(one.get("dynamics_model.ensemble_size"))
    why = "workers, each with a task" if workers >= members else "a task for each member of the ensemble"
    one.set(f"{at}.num_tasks", max(workers, members), *WORKERS, why=why)
    one.set(f"{at}.envs_per_task", int(one.get(*ENVS)), *ENVS)
    one.set(f"{at}.fragment_length", int(one.get(*LENGTHS)), *LENGTHS)
    one.set(f"{at}.value_coef", 2.0 * float(one.get("vf_loss_coeff")), "vf_loss_coeff", why="of half the squared error")
    one.set(f"{at}.value_clip", float(one.get("vf_clip_param") or 0.0), "vf_clip_param")
    one.set(f"{at}.baseline", "value", why="RLlib's is a network")
    one.set(f"{at}.optimizer.epsilon", 1.0e-8, why="RLlib's optimiser")
    if "clip_actions" in one.given:
        one.say("clip_actions", "dropped", why="actions lie in their bounds")
    if one.core == "maml":
        one.say("batch_mode", "dropped", why="environments always play whole episodes, as RLlib's MAML demands")
    else:
        of_models(one)


def of_models(one: Translation) -> None:
    """Sets what MBMPO has besides."""
    at = one.inner
    one.set("runner.complete_episodes", True, "batch_mode")
    length = int(one.get("horizon", default=HORIZON) or HORIZON)
    one.set("env.max_episode_steps", length, why="real episodes are as long as imagined ones")
    one.set(f"{at}.imagined_length", length, "horizon")
    one.say("custom_vector_env", "dropped", why="the ensemble itself is the environment of imagined rows")
    steps = "exploration_config.random_timesteps"
    one.set(f"{at}.random_steps", int(one.get(steps)), steps, "exploration_config.type")
    for theirs, ours in DYNAMICS.items():
        key = f"dynamics_model.{theirs}"
        one.set(f"{at}.dynamics.{ours}", one.get(key), key)
    for name, value in (("weight_norm", True), ("capacity", 10000), ("patience", 0.95)):
        one.set(f"{at}.dynamics.{name}", value, why="in RLlib's code")


def rows_of_iteration(one: Translation) -> int:
    """Real env steps of an update where all episodes are as long as a fragment."""
    at, values = one.inner, one.made.values
    rows = values[f"{at}.num_tasks"] * values[f"{at}.fragment_length"]
    if one.core == "mbmpo":
        return rows
    rounds = int(values.get(f"{at}.inner_steps", one.get("inner_adaptation_steps"))) + 1
    return rounds * rows * values[f"{at}.envs_per_task"]
