"""Translates the numbers of rows and environments that batches are made of, as a part of translate.py."""

from __future__ import annotations

import math
from typing import Any

from rlrun.core.errors import UserError
from rlrun.rllib.algorithms import DREAMING, EVOLUTION, IMITATION, JOINT, META, SEARCHING
from rlrun.rllib.environments import TWO_STEP
from rlrun.rllib.joint import sequence_of
from rlrun.rllib.networks import memories, sequence_length
from rlrun.rllib.q_learning import replayed
from rlrun.rllib.slates import BANDITS
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import SWEPT

LENGTHS = ("rollout_fragment_length", "sample_batch_size")
SIZES = ("train_batch_size", "train_batch_size_per_learner")
ON_POLICY = ("pg", "a2c", "ppo", "marwil", *BANDITS)


def batches(it: Translation) -> None:
    """Sets the lengths of fragments and the sizes of batches, and says what becomes of whole episodes."""
    workers = int(it.get("num_workers", "num_env_runners", default=0))
    per_worker = int(it.get("num_envs_per_worker", "num_envs_per_env_runner", default=1))
    envs = max(workers, 1) * per_worker
    length, batch = it.get(*LENGTHS), it.get(*SIZES)
    for key in (*LENGTHS, *SIZES):
        if isinstance(it.given.get(key), float) and 0 < it.given[key] < 1:  # DD-PPO's -1 means another option
            raise UserError(f"{key}={it.given[key]:g} is less than 1")
    learners = int(it.get("num_learners", default=0) or 0)
    if "train_batch_size_per_learner" in it.given and learners > 1:
        batch = float(batch) * learners
    if it.core in IMITATION and it.offline:
        _drawn(it, int(batch))
    elif it.core == "crr":
        _regularized(it, int(batch))
    elif it.core in ON_POLICY:
        _on_policy(it, length, batch, envs, learners)
    elif it.core == "ddppo":
        _decentralised(it, int(length), float(batch), max(workers, 1), per_worker)
    elif it.core == "a3c":
        at, every = it.inner, ("num_workers", "num_env_runners")
        it.set(f"{at}.fragment_length", int(length), *LENGTHS)
        it.set(f"{at}.batch_size", int(length) * per_worker, *SIZES, why="of one gradient")
        it.set("resources.num_learners", max(workers, 1), *every, why="processes that apply gradients")
    elif it.core in ("impala", "appo"):
        rows = 50 if length == "auto" else int(length)
        total, why = _joined(it, rows, float(batch), per_worker)
        it.set(f"{it.inner}.fragment_length", rows, *LENGTHS)
        it.set(f"{it.inner}.batch_size", total, *SIZES, why=why)
    elif it.core not in (*EVOLUTION, *DREAMING, *SEARCHING, *META):
        steps = it.get("n_step", default=1)
        automatic = max(steps) if isinstance(steps, list) else steps  # as RLlib's `auto`
        sequence = sequence_of(it) if it.core in JOINT else 1
        rows = int(automatic if length == "auto" else length)
        replayed(it, rows, int(batch), envs, LENGTHS, SIZES, sequence)
    _batch_mode(it)


def _on_policy(it: Translation, length: Any, batch: Any, envs: int, learners: int) -> None:
    adjusted = _adjusted(it, length, float(batch), envs)
    rows, columns = _whole(it, adjusted, float(batch), envs)
    total = rows * columns
    why = f"of {columns} environments" + (f", where RLlib's {envs} take turns" if columns > envs else "")
    why += "" if adjusted == length else f"; fragments of {length} rows do not make up {batch}, so RLlib changes them"
    it.set(f"{it.inner}.fragment_length", rows, *LENGTHS, why=why)
    why = "" if total == batch else f"RLlib rounds {batch} up to whole fragments of all {envs} environments"
    it.set(f"{it.inner}.batch_size", total, *SIZES, why=why)
    if it.core == "ppo":
        _minibatch(it, total, max(learners, 1))
    if it.core == "a2c":
        _microbatch(it, rows, total)


def _joined(it: Translation, rows: int, batch: float, per_worker: int) -> tuple[int, str]:
    """Returns the rows of IMPALA's and APPO's batches, and why they are not what the file says.

    RLlib's old API stack joins whole samples of workers until it has enough rows. For the new one it is the
    number of whole fragments that comes nearest."""
    if it.era == "new":
        total, why = max(rows, round(batch / rows) * rows), f"whole fragments of {rows} rows"
    else:
        sample = rows * per_worker
        total = max(1, math.ceil(batch / sample)) * sample
        why = f"RLlib joins whole samples, of {sample} rows each, until it has {batch:g}"
    return total, "" if total == batch else why


def _decentralised(it: Translation, rows: int, batch: float, workers: int, per_worker: int) -> None:
    """DD-PPO, each of whose workers plays `rows` rows of its environments and learns from them."""
    one = rows * per_worker
    rounds = max(1, math.ceil(batch / one))
    it.set(f"{it.inner}.fragment_length", rows * rounds, *LENGTHS)
    it.set(f"{it.inner}.batch_size", one * rounds * workers, *SIZES, why=f"of all {workers} workers together")
    _minibatch(it, one * rounds * workers, workers)
    it.set("resources.num_learners", workers, "num_workers", "num_env_runners", why="every worker learns")


def _batch_mode(it: Translation) -> None:
    """Says what becomes of whole episodes."""
    mode = it.get("batch_mode")
    if it.core in (*DREAMING, *SEARCHING, *META):
        return
    if it.core in EVOLUTION:
        it.say("batch_mode", "dropped", why="whole episodes are played")
    elif it.offline:
        it.say("batch_mode", "dropped", why="data are whole episodes already")
    elif it.core in (*ON_POLICY, "ddppo"):
        it.set("runner.complete_episodes", mode == "complete_episodes", "batch_mode")
        if it.core == "ddppo" and mode == "complete_episodes":
            it.set(f"{it.inner}.cut_share", 1.0, why="episodes that are cut are not complete")
    elif mode == "complete_episodes" and it.core in ("impala", "appo"):
        it.say(
            "batch_mode",
            "not mapped",
            why=("fragments that cut an episode bootstrap from the value; only on-policy runners play whole episodes"),
        )
    elif mode == "complete_episodes" and it.made.env != TWO_STEP:  # whose episodes are no longer than a fragment
        ratio = f"{it.inner}.replay_ratio"
        why = f"RLlib makes one update for each whole episode: set {ratio} to the batch / the length of an episode"
        it.say("batch_mode", "not mapped", why=why)
    else:
        it.say("batch_mode", "dropped", why="fragments are cut where they are full, or folded by a replay")


def _drawn(it: Translation, batch: int) -> None:
    """Sets the rows of a batch that is drawn from data: single rows or, with memory, whole sequences."""
    sequence = int(it.get("model.max_seq_len")) if any(memories(it)) else 1
    total = max(1, round(batch / sequence)) * sequence
    why = "" if total == batch else f"whole sequences of {sequence} rows"
    it.set(f"{it.inner}.batch_size", total, *SIZES, why=why)
    for key in LENGTHS:
        it.say(key, "dropped", why="rows are drawn one by one from the data, or sequences by model.max_seq_len")


def _regularized(it: Translation, batch: int) -> None:
    """CRR, which draws single rows from data. RLlib moves its targets when so many rows have been learnt."""
    it.set(f"{it.inner}.batch_size", batch, *SIZES)
    rows = it.get("target_network_update_freq")
    updates = 100 if rows is None else max(1, math.ceil(float(rows) / batch))
    why = "RLlib's default is 100 updates" if rows is None else f"{float(rows):g} rows learnt"
    it.set(f"{it.inner}.target_update_interval", updates, "target_network_update_freq", why=why)
    for key in LENGTHS:
        it.say(key, "dropped", why="rows are drawn one by one from the data")
    for key in ("n_step", "prioritized_replay"):
        it.say(key, "not mapped" if it.given.get(key) else "dropped", why=f"RLlib's CRR has no {key}")


def _adjusted(it: Translation, length: Any, batch: float, envs: int) -> Any:
    """Returns the length of the fragments that RLlib collects.

    From 1.4 on its PPO gives up the file's length where fragments of all environments do not make up the batch. (It
    divided without the remainder up to 1.13.0.)"""
    if it.core != "ppo" or it.era != "middle" or length == "auto" or batch % (int(length) * envs) == 0:
        return length
    return math.ceil(batch / envs)


def _whole(it: Translation, length: Any, batch: float, envs: int) -> tuple[int, int]:
    """Returns the rows of a fragment and the number of environments that make a batch.

    RLlib collects rounds of fragments from all its environments until it has enough rows. The length of a fragment
    is the horizon of its returns, so that more rounds become more environments here. Whole episodes have no such
    horizon: for them more rounds become more rows.
    """
    if length == "auto":
        return math.ceil(batch / envs), envs
    rounds = math.ceil(batch / (int(length) * envs))
    if it.get("batch_mode") == "complete_episodes":
        return int(length) * rounds, envs
    return int(length), envs * rounds


def _minibatch(it: Translation, total: int, workers: int) -> None:
    keys = ("sgd_minibatch_size", "minibatch_size")

    it.minibatch_unit = unit = sequence_length(it) * workers

    def fitting(rows: int) -> int:
        """Returns the largest size up to `rows` that divides the batch, that the workers share evenly, and that
        consists of whole sequences where there is a memory; the smallest such size if all are larger."""
        most = min(max(rows, unit), total)
        return next((size for size in range(most, 0, -1) if total % size == 0 and size % unit == 0), total)

    def rows_of(size: Any) -> int:
        """Returns the rows of a minibatch of all workers and agents together; auto is the whole batch."""
        return total * share if size == "auto" else int(size) * workers

    several = next((it.grids[key] for key in keys if key in it.grids), None)
    target, share = f"{it.inner}.minibatch_size", 1 if it.team is None else it.team.share
    if several is not None:
        it.made.grid[target] = [fitting(max(1, rows_of(one) // share)) for one in several]
    it.minibatch_rows = rows_of(it.get(*reversed(keys)))
    asked = max(1, it.minibatch_rows // share)
    why = "of all workers together" if workers > 1 else ""
    why = f"env steps: RLlib counts rows, of which {share} agents have {share} in an env step" if share > 1 else why
    if fitting(asked) != asked:
        why = f"{asked} does not divide the batch of {total}"
        why = why if total % asked else f"whole sequences of {sequence_length(it)} rows"
    if several is not None:
        why = "; ".join(filter(None, [f"the first of {len(several)}", SWEPT, why]))
    it.set(target, fitting(asked), *keys, why=why)


def _microbatch(it: Translation, rows: int, total: int) -> None:
    asked = it.get("microbatch_size")
    if asked:
        size = next(
            (size for size in range(rows * max(1, round(int(asked) / rows)), total + 1, rows) if total % size == 0),
            total,
        )
        it.set(
            f"{it.inner}.microbatch_size",
            size,
            "microbatch_size",
            why="" if size == asked else "whole fragments that divide the batch",
        )
