"""Translates RLlib's options of the Q-learning family to rlrun's, as a part of translate.py.

It converts the units of the replay and the schedules of exploration and priorities.
"""

from __future__ import annotations

import math

from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import flow, rounded


def replayed(
    one: Translation, length: int, batch: int, envs: int, lengths: tuple[str, ...], batches: tuple[str, ...]
) -> None:
    at, sequence = one.inner, 1
    if one.algo == "r2d2":
        sequence = int(one.get("model.max_seq_len", default=20))
        one.set("algo.sequence_length", sequence, "model.max_seq_len")
        one.set("algo.sequence_stride", sequence)
        one.set(
            "algo.burn_in",
            int(one.get("replay_buffer_config.replay_burn_in", "replay_burn_in", default=0)),
            "replay_buffer_config.replay_burn_in",
            "replay_burn_in",
        )
        zero = bool(one.get("replay_buffer_config.zero_init_states", "zero_init_states", default=True))
        one.set("algo.zero_init_state", zero, "replay_buffer_config.zero_init_states", "zero_init_states")
        scale = float(one.get("h_function_epsilon")) if one.get("use_h_function") else None
        one.set("algo.value_rescaling", scale, "use_h_function", "h_function_epsilon")
        length = math.ceil(length / sequence) * sequence
    size = max(1, batch // sequence)
    one.set(f"{at}.fragment_length", length, *lengths)
    one.set(f"{at}.num_envs", envs)
    one.set(f"{at}.batch_size", size, *batches, why=f"sequences of {sequence} rows" if sequence > 1 else "")
    natural, apex = batch / (length * envs), "apex" in one.algo
    ratio = one.get("training_intensity") or natural
    if not apex or one.get("training_intensity"):
        one.set(f"{at}.replay_ratio", rounded(float(ratio)), "training_intensity")
    every = float(one.get("target_network_update_freq"))
    if apex:
        updates, why = every / batch, f"{every:g} rows learnt"
    else:
        updates, why = every * float(ratio) / batch, f"{every:g} env steps"
    one.set(f"{at}.target_update_interval", max(1, round(updates)), "target_network_update_freq", why=why)
    starts = one.get(
        "num_steps_sampled_before_learning_starts", "replay_buffer_config.learning_starts", "learning_starts"
    )
    one.set(
        f"{at}.learning_starts",
        int(starts),
        "num_steps_sampled_before_learning_starts",
        "replay_buffer_config.learning_starts",
        "learning_starts",
    )


def q_learning(one: Translation) -> None:
    if one.run not in ("DQN", "SimpleQ", "APEX", "R2D2"):
        return
    at = one.inner
    from_replay(one, always=one.algo == "apex")
    _exploration(one)
    one.set(f"{at}.head.gradient_scale", 1.0)  # RLlib does not scale the gradient of a dueling head
    if one.atari:
        one.set(f"{at}.head.encoder_layer", True)  # RLlib's networks keep the encoder's last layer
    one.set(f"{at}.head.hidden", [int(width) for width in one.get("hiddens")], "hiddens")
    if one.algo in ("c51", "rainbow", "dqn", "apex"):
        if one.algo in ("dqn", "apex"):
            one.say("num_atoms", "mapped", f"algo={one.algo}")
        else:
            one.set("algo.num_atoms", int(one.get("num_atoms")), "num_atoms")
    if one.algo == "rainbow":
        one.say("double_q", "mapped", "algo=rainbow", "always double")
    else:
        one.set(f"{at}.double", bool(one.get("double_q", default=False)), "double_q")


def from_replay(one: Translation, always: bool) -> None:
    """Sets the kind and size of the replay. always: it is prioritized even if the file does not say so."""
    at, buffer = one.inner, "replay_buffer_config"
    kind = str(one.get(f"{buffer}.type", default=""))
    prioritized = (
        bool(one.given["prioritized_replay"]) if "prioritized_replay" in one.given else "Prioritized" in kind or always
    )
    one.made.values["replay._choice"] = "prioritized" if prioritized else "uniform"
    for key in ("prioritized_replay", f"{buffer}.type"):
        one.say(key, "mapped", f"replay={'prioritized' if prioritized else 'uniform'}")
    capacity = int(one.get("buffer_size", f"{buffer}.capacity"))
    if one.algo == "r2d2":
        capacity *= one.made.values["algo.sequence_length"]
    one.set(
        "replay.capacity",
        capacity,
        f"{buffer}.capacity",
        "buffer_size",
        why="rows, where RLlib counts sequences" if one.algo == "r2d2" else "",
    )
    one.say(f"{buffer}.storage_unit", "dropped", why="r2d2 draws sequences, the other algorithms draw transitions")
    one.say(f"{buffer}.replay_batch_size", "dropped", why="the size of a batch is algo.batch_size")
    one.say(
        f"{buffer}.worker_side_prioritization",
        "mapped",
        f"{at}.input_priorities={flow(bool(one.get(f'{buffer}.worker_side_prioritization')))}",
    )
    if prioritized:
        _priorities(one)
    else:
        unused = ("alpha", "beta", "eps")
        for key in (
            *(f"prioritized_replay_{name}" for name in unused),
            *(f"{buffer}.prioritized_replay_{name}" for name in unused),
            "beta_annealing_fraction",
            "final_prioritized_replay_beta",
            "prioritized_replay_beta_annealing_timesteps",
        ):
            one.say(key, "dropped", why="the replay is not prioritized")


def _priorities(one: Translation) -> None:
    buffer = "replay_buffer_config"
    one.set(
        "replay.alpha",
        float(one.get("prioritized_replay_alpha", f"{buffer}.prioritized_replay_alpha", default=0.6)),
        "prioritized_replay_alpha",
        f"{buffer}.prioritized_replay_alpha",
    )
    one.set(
        "replay.priority_epsilon",
        float(one.get("prioritized_replay_eps", f"{buffer}.prioritized_replay_eps", default=1e-6)),
        "prioritized_replay_eps",
        f"{buffer}.prioritized_replay_eps",
    )
    beta = float(one.get("prioritized_replay_beta", f"{buffer}.prioritized_replay_beta", default=0.4))
    final = float(one.get("final_prioritized_replay_beta", default=beta))
    steps = float(one.get("beta_annealing_fraction", default=0.2)) * float(
        one.get("schedule_max_timesteps", default=100000)
    )
    steps = float(one.get("prioritized_replay_beta_annealing_timesteps", default=steps))
    value = beta if final == beta else {"start": beta, "end": final, "steps": steps}
    keys = (
        "prioritized_replay_beta",
        f"{buffer}.prioritized_replay_beta",
        "final_prioritized_replay_beta",
        "beta_annealing_fraction",
        "prioritized_replay_beta_annealing_timesteps",
    )
    one.set("replay.beta", value, *keys)


def _exploration(one: Translation) -> None:
    at, group = one.inner, "exploration_config"
    kind = str(one.get(f"{group}.type", default="EpsilonGreedy"))
    kinds = {
        "EpsilonGreedy": "epsilon_greedy",
        "PerWorkerEpsilonGreedy": "epsilon_greedy",
        "SoftQ": "soft_q",
        "ParameterNoise": "parameter_noise",
    }
    old = {"soft_q": "SoftQ", "parameter_noise": "ParameterNoise"}
    for key, name in old.items():
        if one.given.get(key):
            kind = name
            one.say(key, "mapped", f"{at}.exploration.kind={key}")
    if kind not in kinds:
        one.say(f"{group}.type", "not mapped", why=f"rlrun explores by {', '.join(sorted(set(kinds.values())))}")
        kind = "EpsilonGreedy"
    if one.algo == "apex" and kind == "PerWorkerEpsilonGreedy":
        one.say(
            f"{group}.type",
            "mapped",
            f"{at}.exploration.epsilon_min",
            "Ape-X's epsilons from 0.4 to 0.4^8, constant in time",
        )
        for key in ("initial_epsilon", "final_epsilon", "epsilon_timesteps", "warmup_timesteps"):
            one.say(f"{group}.{key}", "dropped", why="each environment has a constant epsilon, spaced as in Ape-X")
        for key in (
            "schedule_max_timesteps",
            "exploration_fraction",
            "exploration_final_eps",
            "per_worker_exploration",
        ):
            one.say(key, "dropped", why="each environment has a constant epsilon, spaced as in Ape-X")
        return
    one.set(f"{at}.exploration.kind", kinds[kind], f"{group}.type")
    horizon = float(one.get("schedule_max_timesteps", default=100000))
    # 0.1 is the default of the RLlib releases that had schedule_max_timesteps
    fraction = one.get("exploration_fraction", default=0.1 if "schedule_max_timesteps" in one.given else None)
    steps = (
        horizon * float(fraction)
        if fraction is not None
        else float(one.get(f"{group}.epsilon_timesteps", default=10000))
    )
    first = float(one.get(f"{group}.initial_epsilon", default=1.0))
    last = float(one.get("exploration_final_eps", f"{group}.final_epsilon", default=0.02))
    warm = float(one.get(f"{group}.warmup_timesteps", default=0.0))
    keys = (
        *(f"{group}.{name}" for name in ("initial_epsilon", "final_epsilon", "epsilon_timesteps", "warmup_timesteps")),
        "schedule_max_timesteps",
        "exploration_fraction",
        "exploration_final_eps",
    )
    random = float(one.get(f"{group}.random_timesteps", default=0.0))
    if kind == "SoftQ":
        one.set(f"{at}.exploration.epsilon", 0.0, *keys)
        temperature = float(one.get(f"{group}.temperature", "softmax_temp", default=1.0))
        one.set(f"{at}.exploration.temperature", temperature, f"{group}.temperature", "softmax_temp")
    elif kind == "ParameterNoise":
        one.set(
            f"{at}.exploration.epsilon",
            [[0, 1.0], [random, 1.0], [random + 1, 0.0]] if random else 0.0,
            f"{group}.random_timesteps",
            *keys,
        )
        one.set(
            f"{at}.exploration.noise_std",
            float(one.get(f"{group}.initial_stddev", default=1.0)),
            f"{group}.initial_stddev",
        )
    else:
        points = (
            [[0, first], [warm, first], [warm + steps, last]]
            if warm
            else {"start": first, "end": last, "steps": max(steps, 1.0)}
        )
        one.set(f"{at}.exploration.epsilon", points, *keys)
