"""Translates RLlib's options of Dreamer and DreamerV3 to rlrun's, as a part of translate.py.

RLlib has DreamerV3 of 2023, rlrun that of 2024: networks, optimiser and two losses are others. Dreamer is the same one.
"""

from __future__ import annotations

from typing import Any

from rlrun.rllib.translation import Translation

FRAME_SKIP = 2  # RLlib's default of env_config.frame_skip, which counts frames instead of env steps
HORIZON = 1000  # frames of an episode of dm-control, and RLlib's default of the longest one
# rlrun's options of Dreamer and RLlib's
PLAIN = {
    "model_lr": "td_model_lr",
    "actor_lr": "actor_lr",
    "value_lr": "critic_lr",
    "batch_size": "batch_size",
    "batch_length": "batch_length",
    "imag_length": "imagine_horizon",
    "free_nats": "free_nats",
    "kl_coef": "kl_coeff",
    "exploration.noise": "explore_noise",
}
SIZES_OF_2020 = {"deter_size": "deter", "stoch_size": "stoch", "depth_size": "depth", "hidden_size": "units"}

# RLlib's sizes and those of 2024 that stand in their places; the smallest ones have no counterpart.
SIZES = {"XS": "size12m", "S": "size25m", "M": "size50m", "L": "size100m", "XL": "size200m"}
SMALLEST = "size1m"
REPORTS = ("report_images_and_videos", "report_dream_data")
OPTIMIZERS = ("world_model_lr", "actor_lr", "critic_lr", "lr", "lr_schedule")


def task_options(one: Translation, env: str, kwargs: dict[str, Any]) -> None:
    """Sets how a task of dm-control is shown, as RLlib's examples do: by images of 64 x 64, with actions taken twice.
    shimmy's ids (dm_control/...) show the task's own entries, and take actions once."""
    own = env.startswith("dm_control/") or kwargs.get("from_pixels") is False
    key, default = "env_config.frame_skip", 1 if env.startswith("dm_control/") else FRAME_SKIP
    repeat = int(kwargs.get("frame_skip", default))
    why = "the task's own numbers" if own else "RLlib's examples show images of 64 x 64"
    shown = ["env_config.from_pixels"] if "from_pixels" in kwargs else []
    one.set("env.observation", "entries" if own else "pixels", *shown, why=why)
    why = "shimmy's tasks have 1" if default == 1 else "RLlib's default is 2"
    one.set("env.action_repeat", repeat, *([key] if "frame_skip" in kwargs else []), why=why)
    one.repeat = repeat if one.core == "dreamer" else 1
    for other in kwargs.keys() - {"frame_skip", "from_pixels"}:
        one.say(f"env_config.{other}", "not mapped", why="tasks of dm-control have no such option here")


def dreamer(one: Translation) -> None:
    """Sets what Dreamer or DreamerV3 have."""
    if one.core == "dreamer":
        of_2020(one)
    elif one.core == "dreamerv3":
        of_2024(one)


def of_2020(one: Translation) -> None:
    """Sets what Dreamer has."""
    at, repeat = one.inner, one.repeat
    for ours, theirs in PLAIN.items():
        one.set(f"{at}.{ours}", one.get(theirs), theirs)
    one.set(f"{at}.lambda_", one.get("lambda_", "lambda"), "lambda", "lambda_")
    one.set(f"{at}.discount", one.get("discount", "gamma"), "gamma", "discount")
    prefill = round(int(one.get("prefill_timesteps")) / repeat)
    why = "" if repeat == 1 else f"frames, of which an env step has {repeat}"
    one.set(f"{at}.random_steps", prefill, "prefill_timesteps", why=why)
    least = int(one.get("batch_length"))
    starts = max(prefill, round(int(one.get("num_steps_sampled_before_learning_starts", default=0))), least)
    one.set(f"{at}.learning_starts", starts, "num_steps_sampled_before_learning_starts", why="with prefill_timesteps")
    length = max(1, round(int(one.get("horizon", default=HORIZON)) / repeat))
    if "horizon" in one.given:
        one.set("env.max_episode_steps", length, "horizon", why=why)
    lengths = ("rollout_fragment_length", "batch_mode")
    one.set(f"{at}.fragment_length", length, *lengths, why="env steps of an episode, as long as it may be")
    updates = int(one.get("dreamer_train_iters"))
    rows = updates * int(one.get("batch_size")) * int(one.get("batch_length"))
    why = f"{updates} updates for an episode of {length} env steps"
    one.set(f"{at}.train_ratio", round(rows / length, 3), "dreamer_train_iters", why=why)
    envs = ("num_envs_per_env_runner", "num_envs_per_worker")
    one.set(f"{at}.num_envs", int(one.get(*envs, default=1)), *envs)
    for theirs, ours in SIZES_OF_2020.items():
        one.set(f"model.{ours}", int(one.get(f"dreamer_model.{theirs}")), f"dreamer_model.{theirs}")
    one.set(f"{at}.optimizer.epsilon", 1.0e-8, why="PyTorch's; the author's is TensorFlow's")
    one.set("model.init_std", float(one.get("dreamer_model.action_init_std")), "dreamer_model.action_init_std")
    one.say("dreamer_model.custom_model", "dropped", why="the networks are those of the paper")
    for key in [*one.given, *one.defaults]:
        if key.startswith("model."):
            one.say(key, "dropped", why="the networks are those of dreamer_model, in RLlib too")
        elif key.startswith("exploration_config"):
            one.say(key, "dropped", why="RLlib's explores by explore_noise alone")


def of_2024(one: Translation) -> None:
    """Sets what DreamerV3 has."""
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
    if 0 < gamma < 1:
        one.set(f"{at}.horizon", round(1.0 / (1.0 - gamma), 3), "gamma", why=f"1 / (1 - {gamma:g})")
    else:
        one.say("gamma", "not mapped", why="dreams need a discount between 0 and 1")
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
