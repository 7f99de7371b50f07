"""Translates RLlib's options of MAML to rlrun's, as a part of translate.py."""

from __future__ import annotations

from rlrun.rllib.translation import META, Translation

WORKERS = ("num_workers", "num_rollout_workers", "num_env_runners")
ENVS = ("num_envs_per_worker", "num_envs_per_env_runner")


def meta(one: Translation) -> None:
    """Sets what MAML has."""
    if one.core not in META:
        return
    at = one.inner
    one.set(f"{at}.num_tasks", max(1, int(one.get(*WORKERS))), *WORKERS, why="workers, each with a task")
    one.set(f"{at}.envs_per_task", int(one.get(*ENVS)), *ENVS)
    lengths = ("rollout_fragment_length", "sample_batch_size")
    one.set(f"{at}.fragment_length", int(one.get(*lengths)), *lengths)
    one.say("batch_mode", "dropped", why="environments always play whole episodes, as RLlib's MAML demands")
    one.set(f"{at}.value_coef", 2.0 * float(one.get("vf_loss_coeff")), "vf_loss_coeff", why="of half the squared error")
    one.set(f"{at}.value_clip", float(one.get("vf_clip_param") or 0.0), "vf_clip_param")
    one.set(f"{at}.baseline", "value", why="RLlib's is a network")
    one.set(f"{at}.optimizer.epsilon", 1.0e-8, why="RLlib's optimiser")
    if "clip_actions" in one.given:
        one.say("clip_actions", "dropped", why="actions lie in their bounds")


def rows_of_iteration(one: Translation) -> int:
    """Env steps of an update where all episodes are as long as a fragment."""
    at, values = one.inner, one.made.values
    rounds = int(values.get(f"{at}.inner_steps", one.get("inner_adaptation_steps"))) + 1
    return rounds * values[f"{at}.num_tasks"] * values[f"{at}.envs_per_task"] * values[f"{at}.fragment_length"]
