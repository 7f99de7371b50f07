"""Translates RLlib's options of DreamerV3 to rlrun's, as a part of translate.py.

RLlib has the algorithm of 2023, rlrun that of 2024: networks, optimiser and two losses are others.
"""

from __future__ import annotations

from rlrun.rllib.translation import Translation

# RLlib's sizes and those of 2024 that stand in their places; the smallest ones have no counterpart.
SIZES = {"XS": "size12m", "S": "size25m", "M": "size50m", "L": "size100m", "XL": "size200m"}
SMALLEST = "size1m"
REPORTS = ("report_images_and_videos", "report_dream_data")
OPTIMIZERS = ("world_model_lr", "actor_lr", "critic_lr", "lr", "lr_schedule")


def dreamer(one: Translation) -> None:
    """Sets what DreamerV3 has."""
    if one.core != "dreamerv3":
        return
    at = one.inner
    size = str(one.get("model_size"))
    why = f"{size} of RLlib's, which is of 2023, has other networks"
    one.set("model.size", SIZES.get(size, SMALLEST), "model_size", why=why)
    workers = int(one.get("num_env_runners", "num_workers", default=0))
    each = int(one.get("num_envs_per_env_runner", "num_envs_per_worker", default=1))
    envs = ("num_env_runners", "num_workers", "num_envs_per_env_runner", "num_envs_per_worker")
    one.set(f"{at}.num_envs", max(workers, 1) * each, *envs, why="environments of all workers together")
    one.set(f"{at}.fragment_length", 1, "rollout_fragment_length", "batch_mode", why="rows are learnt as they come")
    for ours, theirs in (
        ("batch_size", "batch_size_B"),
        ("batch_length", "batch_length_T"),
        ("train_ratio", "training_ratio"),
        ("imag_length", "horizon_H"),
        ("lambda_", "gae_lambda"),
        ("entropy_coef", "entropy_scale"),
    ):
        one.set(f"{at}.{ours}", one.get(theirs), theirs)
    gamma = float(one.get("gamma"))
    if gamma < 1:
        one.set(f"{at}.horizon", round(1.0 / (1.0 - gamma), 3), "gamma", why=f"1 / (1 - {gamma:g})")
    else:
        one.say("gamma", "not mapped", why="dreams need a discount below 1")
    decay = float(one.get("return_normalization_decay"))
    one.set(f"{at}.return_norm.rate", round(1.0 - decay, 9), "return_normalization_decay", why=f"1 - {decay:g}")
    one.set("replay.capacity", int(one.get("replay_buffer_config.capacity")), "replay_buffer_config.capacity")
    symlog = one.given.get("symlog_obs")
    if isinstance(symlog, bool):
        one.set("model.symlog", symlog, "symlog_obs")
    one.say("symlog_obs", "dropped", why="auto: vectors are read as symlog, and images are not")
    reports = {key: one.given[key] for key in REPORTS if isinstance(one.given.get(key), bool)}
    if reports:
        one.set("imagine.every", "auto" if any(reports.values()) else None, *reports, why="true is auto")
    for key in OPTIMIZERS:
        one.say(key, "not mapped", why=f"there is one optimiser with steps of its own kind; {at}.lr keeps its default")
    for key in [*one.given, *one.defaults]:
        if key.startswith("model."):
            one.say(key, "dropped", why="the networks are those of model.size, in RLlib too")
        elif key.startswith("replay_buffer_config."):
            one.say(key, "dropped", why="sequences are drawn uniformly, in RLlib too")
