"""Translates RLlib's options of DDPG, TD3, SAC, ES and ARS to rlrun's, as a part of translate.py.

Noise is converted to units of an action's range; networks and learning rates get their new names.
"""

from __future__ import annotations

from typing import Any

from rlrun.rllib.q_learning import from_replay
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import rounded

ACTIVATIONS = {"swish": "silu"}
RANGE = 2.0  # width of an action's range here, -1 to 1; RLlib multiplies OU noise by high - low


def continuous(one: Translation) -> None:
    if one.run in ("ES", "ARS"):
        _evolution(one)
        return
    if one.run not in ("DDPG", "TD3", "APEX_DDPG", "SAC"):
        return
    from_replay(one, always="apex" in one.algo)
    at = one.inner
    if one.run == "SAC":
        _soft(one)
    else:
        _deterministic(one)
        one.set(f"{at}.actor_lr", float(one.get("actor_lr", "lr")), "actor_lr", "lr")
        one.set(f"{at}.critic_lr", float(one.get("critic_lr", "lr")), "critic_lr")
        one.set(
            f"{at}.huber_delta",
            float(one.get("huber_threshold")) if one.get("use_huber") else None,
            "use_huber",
            "huber_threshold",
        )
    bound = one.get("grad_clip", "grad_norm_clipping")
    one.set(f"{at}.max_grad_norm", float(bound or 0.0), "grad_clip", "grad_norm_clipping")
    if "Async" not in str(one.given.get("optimizer_class", "")):
        one.say("optimizer_class", "dropped", why="it corresponds to runner=replay")
    one.say("actor_loss_coeff", "dropped", why="Adam is independent of the loss's scale")
    one.say("critic_loss_coeff", "dropped", why="Adam is independent of the loss's scale")


def _net(one: Translation, net: str, said: Any, key: str) -> None:
    """Sets the widths and the activation from a dictionary of RLlib's."""
    said = said or {}
    widths = said.get("fcnet_hiddens", said.get("hidden_layer_sizes"))
    if widths is not None:
        one.set(f"algo.{net}.hidden", [int(width) for width in widths], key)
    activation = said.get("fcnet_activation", said.get("hidden_activation"))
    if activation is not None:
        one.set(f"algo.{net}.activation", ACTIVATIONS.get(activation, activation), key)


def _soft(one: Translation) -> None:
    _net(one, "critic", one.get("q_model_config", "Q_model"), "q_model_config")
    _net(one, "actor", one.get("policy_model_config", "policy_model"), "policy_model_config")
    for old, new in (("Q_model", "q_model_config"), ("policy_model", "policy_model_config")):
        if old in one.given:
            one.say(old, "mapped", f"algo.{'critic' if 'q' in new else 'actor'}.hidden")
    rates = one.get("optimization", "optimization_config") or {}
    for ours, theirs in (("actor_lr", "actor"), ("critic_lr", "critic"), ("alpha_lr", "entropy")):
        newer = one.get({"actor_lr": "actor_lr", "critic_lr": "critic_lr", "alpha_lr": "alpha_lr"}[ours])
        one.set(
            f"algo.{ours}",
            float(newer if newer is not None else rates.get(f"{theirs}_learning_rate", 3e-4)),
            "optimization",
            "optimization_config",
            ours,
        )
    one.set("algo.twin_q", bool(one.get("twin_q", default=True)), "twin_q")
    target = one.get("target_entropy", default="auto")
    one.set("algo.target_entropy", "auto" if target in ("auto", None) else float(target), "target_entropy")
    if one.get("_use_beta_distribution", default=False):
        one.set("model.action_distribution", "beta", "_use_beta_distribution")
    random = one.get("exploration_config.random_timesteps", default=0)
    one.set("algo.random_steps", int(random or 0), "exploration_config.random_timesteps")
    for key in ("exploration_config.type", "exploration_config"):
        one.say(key, "dropped", why="the policy explores by sampling from its distribution (StochasticSampling)")


def _deterministic(one: Translation) -> None:
    at, group = one.inner, "exploration_config"
    for net in ("actor", "critic"):
        one.set(f"{at}.{net}.hidden", [int(width) for width in one.get(f"{net}_hiddens")], f"{net}_hiddens")
        one.set(
            f"{at}.{net}.activation",
            str(one.get(f"{net}_hidden_activation", default="relu")),
            f"{net}_hidden_activation",
        )
    one.set(f"{at}.l2", float(one.get("l2_reg", default=0.0)), "l2_reg")
    td3 = one.algo == "td3"
    if td3:
        one.set("algo.twin_q", bool(one.get("twin_q")), "twin_q")
        one.set("algo.policy_delay", int(one.get("policy_delay")), "policy_delay")
        smooth = bool(one.get("smooth_target_policy"))
        one.set(
            "algo.target_noise",
            float(one.get("target_noise")) if smooth else 0.0,
            "smooth_target_policy",
            "target_noise",
        )
        one.set(
            "algo.target_noise_clip",
            float(one.get("target_noise_clip", "noise_clip", default=0.5)),
            "target_noise_clip",
            "noise_clip",
        )
    else:
        for key in (
            "twin_q",
            "policy_delay",
            "smooth_target_policy",
            "target_noise",
            "target_noise_clip",
            "noise_clip",
        ):
            wanted = one.given.get(key)
            how = (
                "dropped"
                if wanted in (None, False, 1) or not one.given.get("smooth_target_policy", True)
                else "not mapped"
            )
            one.say(key, how, why="algo=td3 has it")  # type: ignore[arg-type]
    kind = str(one.get(f"{group}.type"))
    if one.given.get("parameter_noise"):
        kind = "ParameterNoise"
    gaussian = "Gaussian" in kind or bool(one.given.get("smooth_target_policy"))
    ours = "parameter_noise" if kind == "ParameterNoise" else "gaussian" if gaussian else "ou"
    one.set(f"{at}.exploration.kind", ours, f"{group}.type", "parameter_noise")
    random = one.get(f"{group}.random_timesteps", "pure_exploration_steps", default=0)
    one.set(f"{at}.random_steps", int(random or 0), f"{group}.random_timesteps", "pure_exploration_steps")
    sigma_keys = (f"{group}.ou_sigma", "exploration_ou_sigma", "exploration_sigma")
    base_keys = (f"{group}.ou_base_scale", "exploration_ou_noise_scale", "noise_scale")
    theta_keys = (f"{group}.ou_theta", "exploration_ou_theta", "exploration_theta")
    if ours == "ou":
        std = float(one.get(*base_keys, default=0.1)) * float(one.get(*sigma_keys, default=0.2)) * RANGE
        one.set(
            f"{at}.exploration.std",
            rounded(float(f"{std:.6g}")),
            *base_keys,
            *sigma_keys,
            why=f"base scale x sigma x {RANGE:g}, an action's range",
        )
        one.set(f"{at}.exploration.theta", float(one.get(*theta_keys, default=0.15)), *theta_keys)
    elif ours == "gaussian":
        one.set(
            f"{at}.exploration.std",
            float(one.get(f"{group}.stddev", "act_noise", default=0.1)),
            f"{group}.stddev",
            "act_noise",
        )
    else:
        one.set(
            f"{at}.exploration.std",
            float(one.get(*sigma_keys, default=0.2)),
            *sigma_keys,
            why="the distance to which weight noise adapts",
        )
        one.say(
            f"{group}.initial_stddev",
            "not mapped",
            why="the noise in weights starts from exploration.std and adapts to it",
        )
    for key in (*base_keys, *sigma_keys, *theta_keys, "act_noise", f"{group}.stddev"):
        one.say(key, "dropped", why=f"exploration.kind={ours} does not have it")
    _scale(one, at, group)


def _scale(one: Translation, at: str, group: str) -> None:
    """Sets the factor on the noise, which changes over time or from environment to environment."""
    keys = (
        f"{group}.initial_scale",
        f"{group}.final_scale",
        f"{group}.scale_timesteps",
        "schedule_max_timesteps",
        "exploration_fraction",
        "exploration_final_scale",
        "exploration_final_eps",
        "exploration_should_anneal",
    )
    if one.algo == "apex_ddpg":
        one.set(
            f"{at}.exploration.scale",
            0.4,
            *keys,
            "per_worker_exploration",
            why="each environment has a constant scale, spaced as in Ape-X",
        )
        one.set(f"{at}.exploration.scale_min", 0.4**8)
        return
    first = float(one.get(f"{group}.initial_scale", default=1.0))
    last = float(one.get("exploration_final_scale", "exploration_final_eps", f"{group}.final_scale", default=0.02))
    steps = float(one.get(f"{group}.scale_timesteps", default=10000))
    if "schedule_max_timesteps" in one.given or "exploration_fraction" in one.given:
        steps = float(one.get("schedule_max_timesteps", default=100000)) * float(
            one.get("exploration_fraction", default=0.1)
        )
    anneals = first != last and one.get("exploration_should_anneal", default=True)
    one.set(
        f"{at}.exploration.scale",
        {"start": first, "end": last, "steps": rounded(max(steps, 1.0))} if anneals else first,
        *keys,
    )
    if not one.given.get("per_worker_exploration"):
        one.say("per_worker_exploration", "dropped", why="all environments explore alike")


def _evolution(one: Translation) -> None:
    """Sets the options that differ in more than their name."""
    one.set("algo.actor.hidden", [int(width) for width in one.get("model.fcnet_hiddens")], "model.fcnet_hiddens")
    activation = str(one.get("model.fcnet_activation"))
    one.set("algo.actor.activation", ACTIVATIONS.get(activation, activation), "model.fcnet_activation")
    one.set("algo.noise_size", int(one.get("noise_size")), "noise_size")
    chance = float(one.get("eval_prob"))
    share = min(1.0, chance / (1 - chance)) if chance < 1 else 1.0
    one.set(
        "algo.eval_share",
        float(f"{share:.4g}"),
        "eval_prob",
        why="episodes per pair of perturbations; RLlib's is a probability",
    )
    filtered = one.get("observation_filter") in ("MeanStdFilter", "ConcurrentMeanStdFilter")
    one.set("model.observation_filter", "mean_std" if filtered else "none", "observation_filter")
    if one.run == "ES":
        one.set("algo.env_steps_per_batch", int(one.get("train_batch_size", default=10000)), "train_batch_size")
        episodes = int(one.get("episodes_per_batch"))
        one.set("algo.episodes_per_batch", episodes + episodes % 2, "episodes_per_batch")
    else:
        one.say("train_batch_size", "dropped", why="an update has num_rollouts perturbations")
        one.set(
            "algo.reward_offset",
            abs(float(one.get("offset", default=0.0))),
            "offset",
            why="RLlib subtracts its absolute value",
        )
    for key in ("batch_mode", "rollout_fragment_length", "sample_batch_size", "num_envs_per_worker"):
        one.say(key, "dropped", why="whole episodes are played")
