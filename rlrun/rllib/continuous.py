"""Translates RLlib's options of DDPG, TD3, SAC, CQL, CRR, ES and ARS to rlrun's, as a part of translate.py.

Noise is converted to units of an action's range; networks and learning rates get their new names.
"""

from __future__ import annotations

from typing import Any

from rlrun.rllib.algorithms import EVOLUTION, OFF_POLICY, SOFT
from rlrun.rllib.networks import activated, own_net
from rlrun.rllib.q_learning import ALONE, apart, from_replay, players
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import rounded

RANGE = 2.0  # width of an action's range here, -1 to 1; RLlib multiplies OU noise by high - low
TD3 = ("twin_q", "policy_delay", "smooth_target_policy", "target_noise", "target_noise_clip", "noise_clip")


def continuous(one: Translation) -> None:
    if one.core in EVOLUTION:
        _evolution(one)
        return
    if one.core not in OFF_POLICY:
        return
    if one.core != "crr":  # RLlib's CRR reads its batches from files and has no replay
        from_replay(one)
    at = one.inner
    if one.core in SOFT:
        _soft(one)
    elif one.core == "crr":
        _regularized(one)
    else:
        _deterministic(one)
        one.set(
            f"{at}.huber_delta",
            float(one.get("huber_threshold")) if one.get("use_huber") else None,
            "use_huber",
            *(("huber_threshold",) if one.get("use_huber") else ()),
        )
        one.say("huber_threshold", "dropped", why="use_huber is false")
    _rates(one)
    one.say("actor_loss_coeff", "dropped", why="Adam is independent of the loss's scale")
    one.say("critic_loss_coeff", "dropped", why="Adam is independent of the loss's scale")


def _rates(one: Translation) -> None:
    """Sets the learning rates of actor, critics and alpha: each one's own, else lr_schedule, else lr."""
    schedule = one.given.get("lr_schedule")
    own = {"actor_lr": "actor", "critic_lr": "critic"} | ({"alpha_lr": "entropy"} if one.core in SOFT else {})
    if one.core == "crr":
        for key in ("lr", "lr_schedule"):
            one.say(key, "dropped", why="RLlib's CRR takes actor_lr and critic_lr")
        schedule = None
    for name, theirs in own.items():
        keys = (name, *(f"{group}.{theirs}_learning_rate" for group in ("optimization", "optimization_config")))
        given = next((key for key in keys if key in one.given), None)
        if given is not None:
            one.convert(f"{one.inner}.{name}", given, lambda rate: rate, *(key for key in keys if key != given))
        elif schedule is not None and name != "alpha_lr":
            one.set(
                f"{one.inner}.{name}", schedule, "lr_schedule", why="of actor and critics, unless they have their own"
            )
            one.taken |= set(keys)
        elif "lr" in one.given and one.core not in (*SOFT, "crr"):
            one.set(f"{one.inner}.{name}", one.get("lr"), "lr", why="of actor and critics, unless they have their own")
            one.taken |= set(keys)
        else:
            one.set(f"{one.inner}.{name}", one.get(*keys), *keys)
    one.say("lr_schedule", "dropped", why="actor_lr and critic_lr win" if schedule is not None else "null: no schedule")
    soft = f"RLlib's {one.run} takes actor_lr, critic_lr and alpha_lr"
    one.say("lr", "dropped", why=soft if one.core in SOFT else "actor_lr, critic_lr or lr_schedule win")


def _soft(one: Translation) -> None:
    at = one.inner
    own_net(one, "critic", ("q_model_config", "Q_model"), [256, 256], "relu")
    own_net(one, "actor", ("policy_model_config", "policy_model"), [256, 256], "relu")
    one.set(f"{at}.twin_q", bool(one.get("twin_q", default=True)), "twin_q")
    squared = one.era == "old" or one.core == "cql"
    why = f"RLlib's {one.run} has {'the squared' if squared else 'Huber'} error"
    one.set(f"{at}.huber_delta", None if squared else 1.0, why=why)
    target = one.get("target_entropy", default="auto")
    auto = target in ("auto", None)
    why = "0.98 log A for A discrete actions, as in the paper; -A in RLlib's new API stack" if auto else ""
    why = "" if one.discrete is False else why
    one.set(f"{at}.target_entropy", "auto" if auto else float(target), "target_entropy", why=why)
    if one.get("_use_beta_distribution", default=False):
        one.set("model.action_distribution", "beta", "_use_beta_distribution")
    one.say("_use_beta_distribution", "dropped", why="false: model.action_distribution=squashed_gaussian")
    loss = "not mapped" if one.given.get("_deterministic_loss") else "dropped"
    one.say("_deterministic_loss", loss, why="it is a switch for RLlib's own tests")  # type: ignore[arg-type]
    if one.offline:
        return
    random = one.get("exploration_config.random_timesteps", default=0)
    why = "" if "exploration_config.random_timesteps" in one.given else "StochasticSampling begins with the policy"
    one.set(f"{at}.random_steps", int(random or 0), "exploration_config.random_timesteps", why=why)


def _regularized(one: Translation) -> None:
    """CRR, which has the layers of DDPG's networks, and weights of its own."""
    at = one.inner
    deterministic_nets(one)
    one.set(f"{at}.twin_q", bool(one.get("twin_q")), "twin_q")
    exponential = one.get("weight_type") == "exp"
    one.set(f"{at}.weight", "exp" if exponential else "binary", "weight_type")
    for key, ours in (("temperature", "temperature"), ("max_weight", "weight_clip")):
        if exponential:
            one.set(f"{at}.{ours}", float(one.get(key)), key)
        one.say(key, "dropped", why="weight_type=bin has no such number")
    kind = str(one.get("advantage_type"))
    if kind == "expectation" and one.discrete is False:
        one.say("advantage_type", "not mapped", why="an expectation is for discrete actions; algo.advantage is mean")
        kind = "mean"
    one.set(f"{at}.advantage", kind, "advantage_type")
    if kind != "expectation":
        one.set(f"{at}.num_actions", int(one.get("n_action_sample")), "n_action_sample")
    one.say("n_action_sample", "dropped", why="an expectation draws no actions")
    huber = one.get("td_error_loss_fn") == "huber"
    one.set(f"{at}.huber_delta", 1.0 if huber else None, "td_error_loss_fn")
    key = "categorical_distribution_temperature"
    value = float(one.get(key))
    if one.discrete and value != 1.0:
        one.set("model.temperature", value, key)
    elif one.discrete is None and value != 1.0:
        one.say(key, "not mapped", why=f"if actions are discrete, add model.temperature={value:g}")
    one.say(key, "dropped", why="1 changes nothing" if value == 1.0 else "it is for discrete actions")


def _deterministic(one: Translation) -> None:
    at, group = one.inner, "exploration_config"
    deterministic_nets(one)
    one.set(f"{at}.l2", float(one.get("l2_reg", default=0.0)), "l2_reg")
    smooth = bool(one.get("smooth_target_policy"))
    if one.core == "td3":
        one.set(f"{at}.twin_q", bool(one.get("twin_q")), "twin_q")
        one.set(f"{at}.policy_delay", int(one.get("policy_delay")), "policy_delay")
        noise = float(one.get("target_noise")) if smooth else 0.0
        why = "" if smooth else "smooth_target_policy is false"
        one.set(f"{at}.target_noise", noise, "smooth_target_policy", "target_noise", why=why)
        bound = float(one.get("target_noise_clip", "noise_clip", default=0.5))
        one.set(f"{at}.target_noise_clip", bound, "target_noise_clip", "noise_clip")
    for key in TD3:
        one.say(key, "dropped", why="it belongs to TD3, of which nothing is switched on")
    _noise(one, at, group, smooth)
    _scale(one, at, group)


def deterministic_nets(one: Translation) -> None:
    """Sets the layers of actors and critics."""
    at = one.inner
    for net in ("actor", "critic"):
        one.set(f"{at}.{net}.hidden", [int(width) for width in one.get(f"{net}_hiddens")], f"{net}_hiddens")
        function = activated(one.get(f"{net}_hidden_activation", default="relu"))
        one.set(f"{at}.{net}.activation", function, f"{net}_hidden_activation")


def _noise(one: Translation, at: str, group: str, smooth: bool) -> None:
    usual = str(one.defaults[f"{group}.type"])  # RLlib's default
    kind = str(one.get(f"{group}.type") or usual).rsplit(".", 1)[-1]
    older = {"ou": "OrnsteinUhlenbeckNoise", "gaussian": "GaussianNoise"}
    kind = older.get(str(one.given.get("exploration_noise_type")), kind)
    if one.given.get("parameter_noise"):
        kind = "ParameterNoise"
    gaussian = "Gaussian" in kind or (one.era == "old" and smooth and kind != "ParameterNoise")
    if not gaussian and kind not in ("ParameterNoise", "Random") and "OrnsteinUhlenbeck" not in kind:
        why = f"rlrun has no {kind} here, and explores as RLlib's default does, which is {usual}"
        one.say(f"{group}.type", "not mapped", why=why)
        gaussian = "Gaussian" in usual
    gaussian_or_ou = "gaussian" if gaussian else "ou"
    ours = {"ParameterNoise": "parameter_noise", "Random": "random"}.get(kind, gaussian_or_ou)
    keys = (f"{group}.type", "exploration_noise_type") if not (gaussian and smooth and one.era == "old") else ()
    why = "smooth_target_policy took Gaussian noise up to RLlib 0.8" if not keys else ""
    one.set(f"{at}.exploration.kind", ours, *keys, why=why)
    if f"{group}.type" not in one.given:
        one.taken.add(f"{group}.type")
    if one.given.get("parameter_noise"):
        one.say("parameter_noise", "mapped", f"{at}.exploration.kind={ours}")
    one.say("parameter_noise", "dropped", why=f"false: {at}.exploration.kind={ours}")
    randoms = (f"{group}.random_timesteps", "pure_exploration_steps")
    why = "all actions are random" if ours == "random" else ""
    one.set(f"{at}.random_steps", int(one.get(*randoms, default=0) or 0), *randoms, why=why)
    sigma_keys = (f"{group}.ou_sigma", "exploration_ou_sigma", "exploration_sigma")
    base_keys = (f"{group}.ou_base_scale", "exploration_ou_noise_scale", "noise_scale")
    theta_keys = (f"{group}.ou_theta", "exploration_ou_theta", "exploration_theta")
    std_keys = (f"{group}.stddev", "act_noise", "exploration_gaussian_sigma")
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
        why = "actions range from -1 to 1 here; RLlib 0.7 adds it to actions in the environment's units"
        std = float(one.get(*std_keys, default=0.1))
        one.set(f"{at}.exploration.std", std, *std_keys, why=why if one.era == "old" else "")
    elif ours == "parameter_noise":
        std, why = float(one.get(*sigma_keys, default=0.2)), "the distance to which weight noise adapts"
        one.set(f"{at}.exploration.std", std, *sigma_keys, why=why)
        why = "the noise in weights starts from exploration.std and adapts to it"
        one.say(f"{group}.initial_stddev", "not mapped", why=why)
    for key in (*base_keys, *sigma_keys, *theta_keys, *std_keys, "exploration_noise_type"):
        one.say(key, "dropped", why=f"exploration.kind={ours} does not have it")


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
    everywhere = one.given.get("per_worker_exploration", "PerWorker" in str(one.get(f"{group}.type")))
    if everywhere and players(one):
        first, last, why = apart(one, "scale")
        one.set(f"{at}.exploration.scale", first, *keys, "per_worker_exploration", why=why)
        one.set(f"{at}.exploration.scale_min", last, why=why)
        return
    if everywhere:
        one.say("per_worker_exploration", "dropped", why=ALONE)
    one.set(f"{at}.exploration.scale_min", None, why="all environments explore alike")
    first = float(one.get(f"{group}.initial_scale", default=1.0))
    last = float(one.get("exploration_final_scale", "exploration_final_eps", f"{group}.final_scale", default=0.02))
    steps = float(one.get(f"{group}.scale_timesteps", default=10000))
    if "schedule_max_timesteps" in one.given or "exploration_fraction" in one.given:
        steps = float(one.get("schedule_max_timesteps", default=100000)) * float(
            one.get("exploration_fraction", default=0.1)
        )
    anneals = first != last and one.get("exploration_should_anneal", default=True)
    # RLlib anneals behind the random steps; its releases without exploration_config did so from the first step on.
    old = one.era == "old" or any(key in one.given for key in keys if not key.startswith(group))
    random = 0.0 if old else float(one.get(f"{group}.random_timesteps", default=0.0) or 0.0)
    scale: Any = {"start": first, "end": last, "steps": rounded(max(steps, 1.0))}
    if random:
        scale = [[0, first], [rounded(random), first], [rounded(random + max(steps, 1.0)), last]]
    why = "it is annealed behind the random steps" if anneals and random else ""
    one.set(f"{at}.exploration.scale", scale if anneals else first, *keys, why=why)
    one.say("per_worker_exploration", "dropped", why=f"false: {at}.exploration.scale_min=null")


def _evolution(one: Translation) -> None:
    """Sets the options that differ in more than their name."""
    one.set("algo.actor.hidden", [int(width) for width in one.get("model.fcnet_hiddens")], "model.fcnet_hiddens")
    one.set("algo.actor.activation", activated(one.get("model.fcnet_activation")), "model.fcnet_activation")
    one.set("algo.noise_size", int(one.get("noise_size")), "noise_size")
    chance = float(one.get("eval_prob"))
    share = min(1.0, chance / (1 - chance)) if chance < 1 else 1.0
    one.set(
        "algo.eval_share",
        float(f"{share:.4g}"),
        "eval_prob",
        why="episodes per pair of perturbations; RLlib's is a probability",
    )
    if one.core == "es":
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
