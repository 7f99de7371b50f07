"""Translates RLlib's options of the Q-learning family to rlrun's, as a part of translate.py.

It converts the units of the replay and the schedules of exploration and priorities.
"""

from __future__ import annotations

import math
from typing import Any

from rlrun.rllib.algorithms import JOINT, Q_LEARNING, SOFT
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import rounded

CAPACITIES = ("replay_buffer_config.capacity", "buffer_size")
ALONE = "RLlib has no workers here but the learner's own, which follows the schedule"
EPSILONS = (0.4, 6.5536e-4)  # Ape-X's first and last environment (Horgan et al. 2018, section 4.1)
RARELY = 0.01  # epsilon beside RLlib's ParameterNoise (rllib/utils/exploration/parameter_noise.py)
KINDS = {
    "EpsilonGreedy": "epsilon_greedy",
    "PerWorkerEpsilonGreedy": "epsilon_greedy",
    "SoftQ": "soft_q",
    "ParameterNoise": "parameter_noise",
    "Random": "random",
}


def replayed(
    one: Translation,
    length: int,
    batch: int,
    envs: int,
    lengths: tuple[str, ...],
    batches: tuple[str, ...],
    sequence: int = 1,
) -> None:
    """Sets the numbers of rows of an algorithm with a replay. sequence: rows of what it draws."""
    at, sequence, round_ = one.inner, sequence, length * envs
    if one.core == "r2d2":
        sequence = int(one.get("model.max_seq_len", default=20))
        one.set(f"{at}.sequence_length", sequence, "model.max_seq_len")
        one.set(f"{at}.sequence_stride", sequence, why="RLlib's sequences do not overlap")
        burns = ("replay_buffer_config.replay_burn_in", "replay_burn_in", "burn_in")
        one.set(f"{at}.burn_in", int(one.get(*burns, default=0)), *burns)
        zeros = ("replay_buffer_config.zero_init_states", "zero_init_states")
        one.set(f"{at}.zero_init_state", bool(one.get(*zeros, default=True)), *zeros)
        scale = float(one.get("h_function_epsilon")) if one.get("use_h_function") else None
        one.set(f"{at}.value_rescaling", scale, "use_h_function", "h_function_epsilon")
        round_ = math.ceil(length / sequence) * sequence * envs
    length = math.ceil(length / sequence) * sequence
    size = max(1, batch // sequence)
    one.set(f"{at}.fragment_length", length, *lengths)
    one.set(f"{at}.num_envs", envs, why="the environments of all of RLlib's workers")
    one.set(f"{at}.batch_size", size, *batches, why=f"sequences of {sequence} rows" if sequence > 1 else "")
    natural, apex = batch / round_, one.outer in ("apex", "apex_ddpg")
    ratio = one.get("training_intensity") or natural
    if not apex or one.get("training_intensity"):
        every = "every env step" if round_ == 1 else f"every {round_} env steps"
        why = "" if one.get("training_intensity") else f"an update of {batch} rows for {every}"
        one.set(f"{at}.replay_ratio", rounded(float(ratio)), "training_intensity", why=why)
    if apex:
        free = not one.get("training_intensity")
        why = "RLlib's workers and learner do not wait for each other" if free else "training_intensity is a ratio"
        one.set("runner.pace", "free" if free else "ratio", why=why)
    rows = float(one.get("target_network_update_freq"))
    if apex or one.core == "cql":
        updates, why = rows / batch, f"{rows:g} rows learnt"
    else:
        updates, why = rows * float(ratio) / batch, f"{rows:g} env steps"
    one.set(f"{at}.target_update_interval", max(1, round(updates)), "target_network_update_freq", why=why)
    starts = (
        "num_steps_sampled_before_learning_starts",
        "replay_buffer_config.learning_starts",
        "replay_buffer_config.min_size_for_sampling",
        "learning_starts",
    )
    fewest = one.get("n_step", default=1)
    fewest = int(max(fewest) if isinstance(fewest, list) else fewest)
    fewest, what = (sequence, "a sequence of") if one.core in JOINT else (fewest, "n_step")
    first, most = int(one.get(*starts)), _capacity(one)[0]
    why = f"the replay must hold {what} {fewest} rows" if first < fewest else ""
    if first > most:
        first, why = most, f"the replay has room for {most} rows, and the file says {first}"
    one.set(f"{at}.learning_starts", max(first, fewest), *starts, why=why)


def q_learning(one: Translation) -> None:
    if one.core not in Q_LEARNING:
        return
    at = one.inner
    from_replay(one)
    exploration(one)
    one.set(f"{at}.head.gradient_scale", 1.0, why="RLlib does not scale the gradient of a dueling head")
    if one.atari:
        one.set(f"{at}.head.encoder_layer", True, why="RLlib's networks keep the encoder's last layer")
    keys = ("model.head_fcnet_hiddens", "hiddens") if one.era == "new" else ("hiddens",)
    one.set(f"{at}.head.hidden", [int(width) for width in one.get(*keys) or []], *keys)
    _atoms(one)
    if one.core == "rainbow":
        one.say("double_q", "mapped", "algo=rainbow", "always double")
    else:
        one.set(f"{at}.double", bool(one.get("double_q", default=False)), "double_q")
    _error(one)
    if one.get("tau") is None:
        one.set(f"{at}.target_tau", 1.0, why="RLlib copies the whole network")


def _atoms(one: Translation) -> None:
    """Sets the support of a distribution over returns."""
    number = int(one.get("num_atoms", default=1) or 1)
    if one.core in ("c51", "rainbow"):
        one.set(f"{one.inner}.num_atoms", number, "num_atoms")
        return
    if number > 1:
        why = f"algo={one.outer} cannot be around c51 or rainbow" if one.outer else f"{one.core} learns no distribution"
        one.say("num_atoms", "not mapped", why=why)
    one.say("num_atoms", "dropped", why="1 stands for values without a distribution")
    for key in ("v_min", "v_max"):
        one.say(key, "dropped", why="num_atoms is 1" if number == 1 else "see num_atoms")


def _error(one: Translation) -> None:
    """Sets the loss of the TD error, which RLlib's new API stack can choose; before, it was Huber's."""
    kind = str(one.get("td_error_loss_fn", default="huber")).lower()
    if one.core in ("c51", "rainbow"):
        one.say("td_error_loss_fn", "dropped", why="a distribution has the cross-entropy, in RLlib too")
    elif kind not in ("huber", "mse"):
        one.say("td_error_loss_fn", "not mapped", why="RLlib has huber and mse")
    else:
        delta = 1.0 if kind == "huber" else None
        one.set(f"{one.inner}.huber_delta", delta, "td_error_loss_fn", why="RLlib's loss is Huber's" if delta else "")


def from_replay(one: Translation) -> None:
    """Sets the kind and size of the replay."""
    at, buffer = one.inner, "replay_buffer_config"
    always = one.outer in ("apex", "apex_ddpg")
    kind = str(one.get(f"{buffer}.type", default=""))
    asked = bool(one.given["prioritized_replay"]) if "prioritized_replay" in one.given else "Prioritized" in kind
    prioritized = asked or always
    why = "Ape-X's replay always has priorities" if always and not asked else ""
    file = "prioritized" if prioritized else "uniform"
    one.choose("replay", file, "prioritized_replay", f"{buffer}.type", why=why)
    capacity, why = _capacity(one)
    one.set("replay.capacity", capacity, *CAPACITIES, why=why)
    draws = "algorithms with memory draw sequences, the others draw transitions"
    one.say(f"{buffer}.storage_unit", "dropped", why=draws)
    for name in ("replay_batch_size", "_enable_replay_buffer_api"):
        one.say(f"{buffer}.{name}", "dropped", why=f"the size of a batch is {at}.batch_size, in RLlib too")
    length = int(one.get(f"{buffer}.replay_sequence_length", default=1) or 1)
    sequences = (*JOINT, "r2d2")
    fits = length == (one.made.values[f"{at}.sequence_length"] if one.core in sequences else 1)
    why = f"{one.core}'s is {at}.sequence_length" if one.core in sequences else "algo=r2d2 learns from sequences"
    one.say(f"{buffer}.replay_sequence_length", "dropped" if fits else "not mapped", why=why)
    _first_priorities(one)
    betas = ("beta_annealing_fraction", "final_prioritized_replay_beta", "prioritized_replay_beta_annealing_timesteps")
    if prioritized:
        _priorities(one, betas)
    else:
        for key in (*(key for name in ("alpha", "beta", "eps") for key in priority_names(name)), *betas):
            one.say(key, "dropped", why="the replay is not prioritized")


def _capacity(one: Translation) -> tuple[int, str]:
    """Returns the rows of the replay, and why they are not what the file says."""
    capacity = int(one.get(*CAPACITIES))
    if one.core == "r2d2":
        return capacity, "rows, which RLlib's code counts; its comment says sequences"
    if one.core in JOINT and one.outer not in ("apex", "apex_ddpg"):
        return rows_of_fragments(one, capacity, int(one.get("rollout_fragment_length")))
    return capacity, ""


def rows_of_fragments(one: Translation, capacity: int, length: int) -> tuple[int, str]:
    """Returns the rows that RLlib's replay of whole fragments holds, and why.

    RLlib 1.0 to 1.12, whose option is buffer_size, kept so many fragments. Before and since then its replays drop old
    fragments once so many rows have been added. length: rows of a fragment, of which whole episodes may have more."""
    if "buffer_size" in one.given and one.era != "old":
        return capacity * length, f"rows, where RLlib counts fragments of at least {length}"
    return capacity, "rows, which RLlib's code counts; its comment says batches" if one.era != "old" else ""


def priority_names(name: str) -> tuple[str, ...]:
    """RLlib's names of alpha, beta or eps of a prioritized replay, the newest first."""
    buffer = "replay_buffer_config"
    return (f"{buffer}.{name}", f"prioritized_replay_{name}", f"{buffer}.prioritized_replay_{name}")


def _first_priorities(one: Translation) -> None:
    keys = ("replay_buffer_config.worker_side_prioritization", "worker_side_prioritization")
    if one.offline:
        for key in keys:
            one.say(key, "dropped", why="nothing is sampled")
        return
    asked = bool(one.get(*keys, default=False))
    always = one.outer in ("apex", "apex_ddpg")
    if always and not asked and any(key in one.given for key in keys):
        for key in keys:
            one.say(key, "not mapped", why="Ape-X's samplers always compute the first priorities")
    elif asked and (one.core in SOFT or one.outer in ("icm", "re3", "multi")) and not always:
        unknown = "samplers know no intrinsic reward"
        lost = {"icm": unknown, "re3": unknown, "multi": "several policies have no first priorities"}
        why = lost.get(one.outer or "", f"{one.core} has no first priorities")
        for key in keys:
            one.say(key, "not mapped", why=f"{why}: new rows get the largest priority so far")
    else:
        why = "" if asked else "new rows get the largest priority so far, as in RLlib"
        why = "Ape-X's samplers always compute the first priorities" if always and not asked else why
        one.set(f"{one.inner}.input_priorities", asked or always, *keys, why=why)


def _priorities(one: Translation, betas: tuple[str, ...]) -> None:
    alphas, epsilons, firsts = (priority_names(name) for name in ("alpha", "eps", "beta"))
    why = "" if one.get(*alphas) is not None else "RLlib's default"
    one.set("replay.alpha", float(one.get(*alphas, default=0.6)), *alphas, why=why)
    one.set("replay.priority_epsilon", float(one.get(*epsilons, default=1e-6)), *epsilons, why=why)
    beta = float(one.get(*firsts, default=0.4))
    final = float(one.get("final_prioritized_replay_beta", default=beta))
    steps = float(one.get("beta_annealing_fraction", default=0.2)) * float(
        one.get("schedule_max_timesteps", default=100000)
    )
    steps = float(one.get("prioritized_replay_beta_annealing_timesteps", default=steps))
    value = beta if final == beta else {"start": beta, "end": final, "steps": steps}
    one.set("replay.beta", value, *firsts, *betas, why=why)


def exploration(one: Translation) -> None:
    """Sets how training chooses actions that are not the best ones."""
    at, group = one.inner, "exploration_config"
    usual = str(one.defaults.get(f"{group}.type") or "EpsilonGreedy")  # RLlib's default
    kind = str(one.get(f"{group}.type") or usual).rsplit(".", 1)[-1]
    for key, name in {"soft_q": "SoftQ", "parameter_noise": "ParameterNoise"}.items():
        if one.given.get(key):
            kind = name
    per_worker = one.given.get("per_worker_exploration")
    if per_worker is not None and KINDS.get(kind) == "epsilon_greedy":
        kind = "PerWorkerEpsilonGreedy" if per_worker else "EpsilonGreedy"
    if kind not in KINDS or (one.core in JOINT and KINDS[kind] != "epsilon_greedy"):
        why = f"rlrun has no {kind} here, and explores as RLlib's default does, which is {usual}"
        one.say(f"{group}.type", "not mapped", why=why)
        kind = usual
    why = "" if any(key.startswith(f"{group}.") for key in one.given) else "as RLlib explores"
    one.set(f"{at}.exploration.kind", KINDS[kind], f"{group}.type", why=why)
    for key in ("soft_q", "parameter_noise"):
        if one.given.get(key) and KINDS[kind] == key:
            one.say(key, "mapped", f"{at}.exploration.kind={key}")
        if one.given.get(key):
            one.say(key, "not mapped", why=f"{at}.exploration.kind is {KINDS[kind]}, which the file asks for too")
        one.say(key, "dropped", why=f"false: {at}.exploration.kind={KINDS[kind]}")
    schedule = (
        *(f"{group}.{name}" for name in ("initial_epsilon", "final_epsilon", "epsilon_timesteps", "warmup_timesteps")),
        "epsilon",
        "schedule_max_timesteps",
        "exploration_fraction",
        "exploration_final_eps",
    )
    alone = kind == "PerWorkerEpsilonGreedy" and players(one) == 0
    if kind == "PerWorkerEpsilonGreedy" and not alone:
        first, last, why = apart(one, "epsilon")
        one.set(f"{at}.exploration.epsilon", first, "per_worker_exploration", why=why)
        one.set(f"{at}.exploration.epsilon_min", last, why=why)
        for key in schedule:
            one.say(key, "dropped", why="each environment has a constant epsilon, spaced as in Ape-X")
    else:
        if alone:
            kind, per_worker = "EpsilonGreedy", None
            one.say("per_worker_exploration", "dropped", why=ALONE)
        one.set(f"{at}.exploration.epsilon_min", None, why="all environments explore alike")
        if per_worker and kind != "EpsilonGreedy":
            one.say("per_worker_exploration", "not mapped", why=f"{KINDS[kind]} is the same in all environments")
        one.say("per_worker_exploration", "dropped", why=f"false: {at}.exploration.epsilon_min=null")
        _epsilons(one, kind, schedule)
    if kind == "Random":
        for key in (*schedule, f"{group}.random_timesteps"):
            one.say(key, "dropped", why="all actions are random")
    for name in ("softmax_temp", f"{group}.temperature"):
        one.say(name, "dropped", why="it belongs to soft_q")
    for name in ("initial_stddev", "random_timesteps"):
        one.say(f"{group}.{name}", "dropped", why="it belongs to parameter_noise")


def players(one: Translation) -> int:
    """RLlib's workers that play beside the learner. 0: the learner's own one plays."""
    return int(one.get("num_workers", "num_env_runners", default=0))


def apart(one: Translation, name: str) -> tuple[float, float | None, str]:
    """The first and the last number with which environments explore where each of RLlib's workers has its own, and why.

    name: what the number is called. RLlib spaces workers like Ape-X, so that a single one has the first."""
    if players(one) == 1:
        return EPSILONS[0], None, f"RLlib's only worker has this constant {name}"
    return *EPSILONS, f"as in Ape-X, each environment has a constant {name} between these two"


def _epsilons(one: Translation, kind: str, keys: tuple[str, ...]) -> None:
    """Sets the probability of a random action over time, and what soft_q and parameter_noise have of their own."""
    at, group = one.inner, "exploration_config"
    random = float(one.get(f"{group}.random_timesteps", default=0.0))
    if kind == "SoftQ":
        one.set(f"{at}.exploration.epsilon", 0.0, *keys, why="RLlib's SoftQ has none")
        temperature = float(one.get(f"{group}.temperature", "softmax_temp", default=1.0))
        one.set(f"{at}.exploration.temperature", temperature, f"{group}.temperature", "softmax_temp")
        return
    if kind == "Random":
        return
    if kind == "ParameterNoise":
        # The class has this epsilon; releases with parameter_noise=true had no such class.
        rare = RARELY if f"{group}.type" in one.given else 0.0
        why = "RLlib's parameter noise also acts epsilon-greedily" if rare else ""
        one.set(f"{at}.exploration.epsilon", rare, *keys, why=why)
        if rare:
            why = "RLlib's noise adapts to the distance of its own epsilon"
            one.set(f"{at}.exploration.noise_epsilon", rare, why=why)
        one.set(f"{at}.random_steps", int(random), f"{group}.random_timesteps")
        deviation = float(one.get(f"{group}.initial_stddev", default=1.0))
        one.set(f"{at}.exploration.noise_std", deviation, f"{group}.initial_stddev")
        return
    one.set(f"{at}.exploration.epsilon", epsilon_schedule(one), *keys)


def epsilon_schedule(one: Translation) -> Any:
    """Returns the probability of a random action over time."""
    group = "exploration_config"
    if one.given.get("epsilon") is not None or (one.era == "new" and "epsilon" in one.defaults):
        if not any(key.startswith(f"{group}.") for key in one.given):
            return one.get("epsilon")  # the new API stack's
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
    if warm:
        return [[0, first], [warm, first], [warm + steps, last]]
    return {"start": first, "end": last, "steps": max(steps, 1.0)}
