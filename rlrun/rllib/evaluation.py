"""Translates RLlib's options of evaluation, as a part of translate.py."""

from __future__ import annotations

from rlrun.rllib.algorithms import EVOLUTION, FROM_DATA, SEARCHING
from rlrun.rllib.translation import Translation

SAMPLED = ("timesteps_per_iteration", "min_sample_timesteps_per_iteration", "min_sample_timesteps_per_reporting")
TRAINED = ("min_train_timesteps_per_iteration", "min_train_timesteps_per_reporting")
CLOCKS = ("min_time_s_per_iteration", "min_time_s_per_reporting", "min_iter_time_s")
EXPLORE = "evaluation_config.explore"  # whether evaluations explore
ALWAYS_GREEDY = (*EVOLUTION, *SEARCHING)  # in evaluations, whatever `explore` is
LOOK_EVERY = 50000  # env steps between evaluations that a file asks for, where it does not say how often
# env steps of an iteration of off-policy algorithms, where a file says no others
ITERATIONS = {
    "dqn": 1000,
    "c51": 1000,
    "rainbow": 1000,
    "r2d2": 1000,
    "ddpg": 1000,
    "td3": 1000,
    "sac": 100,
    "slateq": 1000,
    "lin_ucb": 100,
    "lin_ts": 100,
}


def evaluation(it: Translation) -> None:
    """Lists RLlib's options of evaluation, which is counted in iterations there and in env steps here."""
    for key in [key for key in it.given if key.startswith("evaluation_config.")]:
        value = it.given[key]
        if key == EXPLORE and isinstance(value, bool):
            it.set("eval.greedy", not value, key)
        else:
            it.say(key, "not mapped", why="evaluation has the options of training; eval.greedy concerns it alone")
    unit = it.given.get("evaluation_duration_unit", "episodes")
    counted = "eval.env_steps" if unit == "timesteps" else "eval.episodes"
    games = 10
    for key in ("evaluation_duration", "evaluation_num_episodes"):
        number = it.given.get(key)
        if isinstance(number, int | float):
            it.set(counted, int(number), key, "evaluation_duration_unit")
            games = int(number)
        elif number is not None:
            it.say(key, "not mapped", why="an evaluation has a number of games or of env steps")
    it.say("evaluation_duration_unit", "dropped", why="evaluation_duration is not given")
    _evaluators(it, games if unit == "episodes" else None)
    interval, steps = it.given.get("evaluation_interval"), iteration(it)
    if interval and steps:
        why = f"an iteration of RLlib's loop has {steps} env steps"
        it.set("eval.every", int(interval) * steps, "evaluation_interval", why=why)
    elif interval and it.offline:
        it.set("eval.every", LOOK_EVERY, why="the file asks for evaluations, which alone show what was learnt")
        why = f"an iteration of RLlib's loop has no fixed number of rows here; eval.every={LOOK_EVERY} counts rows"
        it.say("evaluation_interval", "not mapped", why=why)
    elif interval:
        why = "iterations of RLlib's loop last for a time here; eval.every= counts env steps and is off by default"
        why += ", and eval.greedy=false explores as RLlib's evaluations do" if _explores(it) else ""
        it.say("evaluation_interval", "not mapped", why=why)
    if "eval.estimate.methods" in it.made.values and "eval.every" not in it.made.values:
        it.set("eval.every", LOOK_EVERY, why="RLlib estimates in every iteration of its loop")
    if "eval.every" in it.made.values:
        set_greedy(it)
    it.say(EXPLORE, "dropped", why="nothing is evaluated")


def set_greedy(it: Translation) -> None:
    """Sets whether evaluations take greedy actions, where the file does not say it."""
    if "eval.greedy" in it.made.values or it.core in ALWAYS_GREEDY:
        return
    inherits = not isinstance(it.get(EXPLORE), bool)
    why = "RLlib's evaluations act as training does" if inherits else ""
    it.set("eval.greedy", not _explores(it), *(() if inherits else (EXPLORE,)), why=why)


def _explores(it: Translation) -> bool:
    """Tells whether RLlib's evaluations explore: as training does, unless evaluation_config says otherwise in the file
    or in the algorithm's defaults."""
    return it.core not in ALWAYS_GREEDY and bool(it.get(EXPLORE, default=it.get("explore", default=True)))


def iteration(it: Translation) -> int | None:
    """Returns the env steps of an iteration of RLlib's loop, or None if a clock ends it, as A2C's ten seconds do."""
    if it.core in FROM_DATA:
        return _iteration_of_data(it)
    if any(it.given.get(key) for key in CLOCKS):
        return None
    if it.core == "sac" and not any(key in it.given for key in CLOCKS):  # its default is a second at least
        return None
    sampled, trained = (
        max((int(it.given[key]) for key in keys if isinstance(it.given.get(key), int | float)), default=0)
        for keys in (SAMPLED, TRAINED)
    )
    if it.outer not in (None, "multi"):
        return None if trained else sampled or None
    if it.core in ("ppo", "ddppo", "pg"):
        batch = it.made.values.get(f"{it.inner}.batch_size")
        return batch * max(1, -(-max(sampled, trained) // batch)) if isinstance(batch, int) else None
    return None if trained else sampled or ITERATIONS.get(it.core)


def _iteration_of_data(it: Translation) -> int | None:
    """Returns the rows that RLlib learns in an iteration, or None if a clock or the size of the data ends it.

    RLlib's CQL inherits from SAC that an iteration lasts for a second at least, and its CRR has ten seconds."""
    updates = it.given.get("dataset_num_iters_per_learner", 1 if it.era != "new" else None)
    clock = any(it.given.get(key) for key in CLOCKS)
    if it.core in ("cql", "crr") or clock or not isinstance(updates, int) or updates < 1:
        return None
    return updates * int(it.made.values[f"{it.inner}.batch_size"])


def _evaluators(it: Translation, games: int | None) -> None:
    """Sets who evaluates. games: those of an evaluation; None: env steps are counted."""
    keys = ("evaluation_num_workers", "evaluation_num_env_runners")
    asked = next((int(it.given[key]) for key in keys if isinstance(it.given.get(key), int | float)), 0)
    workers = asked if games is None else min(asked, games)
    why = f"one for each of {games} games" if workers < asked else ""
    if any(key in it.given for key in keys):
        it.set("eval.workers", workers, *keys, why=why)
    parallel = "evaluation_parallel_to_training"
    if workers:
        it.set("eval.parallel", bool(it.given.get(parallel, False)), parallel, why="RLlib's default is false")
    lost = "not mapped" if it.given.get(parallel) else "dropped"
    it.say(parallel, lost, why="the learner's process evaluates, and training waits for it")  # type: ignore[arg-type]
    it.say("enable_async_evaluation", "dropped", why="eval.parallel=true never waits for an evaluation")
    for key in ("custom_evaluation_function", "custom_eval_function"):
        it.say(key, "not mapped", why="eval.function=my_package.module:Name names a subclass of rlrun.Evaluation")
