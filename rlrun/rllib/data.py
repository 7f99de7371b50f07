"""Translates RLlib's options of the offline data API, as a part of translate.py."""

from __future__ import annotations

from typing import Any

from rlrun.config.paths import runner_of
from rlrun.rllib.algorithms import FROM_DATA, Q_LEARNING
from rlrun.rllib.translation import INPUTS, SAMPLER, Translation
from rlrun.rllib.yaml_files import flow

FILES = (".json", ".jsonl", ".zip", ".parquet")
DIGITS = 12  # of shares, so that those of many paths are 1 in all, and 0.1 does not become 0.10000000000000002
D4RL = "D4RL's own files are not read; Minari has such sets under other names, and data.path=minari:ID reads them"


def data(one: Translation) -> None:
    """Sets what an experiment learns from and what it records."""
    if one.runner is not None:
        one.choose("runner", one.runner, why="it learns from what it plays")
    _input(one)
    if one.offline and "data.path" not in one.made.places:
        _ask(one)
    one.taken |= {key for key in INPUTS if key not in one.given}
    one.say("input_config", "dropped", why="it is read with input: dataset alone")
    normalized = one.given.get("actions_in_input_normalized")
    if "data.path" not in one.made.places:
        one.say("actions_in_input_normalized", "dropped", why="there are no data to which it could apply")
    elif isinstance(normalized, bool) and (one.core in Q_LEARNING or one.discrete):
        chooser = one.core if one.core in Q_LEARNING else one.made.env
        one.say("actions_in_input_normalized", "dropped", why=f"the actions of {chooser} are choices")
    elif isinstance(normalized, bool):
        why = "on the command line, because it is about these data"
        one.place("data.actions_normalized", normalized, "actions_in_input_normalized", why)
    _output(one)


def _ask(one: Translation) -> None:
    """Leaves the place of the data to the user, who has to say it on the command line."""
    one.made.asked["data.path"] = "data"
    if not any(key in one.given for key in INPUTS):
        one.say(INPUTS[0], "not mapped", why=f"{one.core} learns from data, and the file names none; data.path= does")


def _input(one: Translation) -> None:
    key = next((name for name in INPUTS if name in one.given), None)
    if key is None or key in one.taken:
        return
    value, reader = one.given[key], one.given.get("input_config")
    reader = reader if isinstance(reader, dict) else {}
    if value == SAMPLER and one.core in FROM_DATA:
        if one.core == "marwil":
            one.set("algo.learns_from", "experience", key)
        elif one.core == "cql":
            one.say(key, "mapped", "runner=replay")
        why = "it would clone itself, and learns from data alone, which data.path= names"
        one.say(key, "not mapped", why=why)
        return
    if value == SAMPLER:
        one.say(key, "dropped", why="algorithms learn from what they play, unless data.path= names data")
        return
    if value == "dataset":
        value = reader.get("paths", reader.get("path"))
    shares, problem = _shares(value)
    played = shares.pop(SAMPLER, 0.0)
    runner = runner_of(one.outer or one.core)
    runner = one.runner or runner
    if problem is None and (one.outer is not None or runner not in ("replay", "offline")):
        problem = f"{one.outer or one.core} learns from what its newest policy plays"
    if problem is None and played and runner != "replay":
        problem = f"{one.core} learns from data alone"
    if problem is not None:
        one.say(key, "not mapped", why=problem)
        one.say("input_config", "not mapped", why=f"see {key}")
        return
    if len(shares) == 1:
        path: Any = next(iter(shares))
    else:
        total = sum(shares.values())
        path = {name: round(share / total, DIGITS) for name, share in shares.items()}
    if one.place("data.path", path, key) and runner == "replay":
        if played:
            share = round(1.0 - played / (played + sum(shares.values())), 6)
            one.set("data.share", share, why=f"the rest of a batch is what was played ({key}: sampler)")
        else:
            one.choose("runner", "offline", why="nothing is played")
    one.say("input_config", "dropped", why=f"its paths are data.path, and the readers are rlrun's own ({key})")


def _shares(value: Any) -> tuple[dict[str, float], str | None]:
    """Returns every path with its share of the rows, and the reason why it cannot be read; None if it can."""
    if isinstance(value, list) and value and all(isinstance(path, str) for path in value):
        value = dict.fromkeys(value, 1.0)
    elif isinstance(value, str):
        value = {value: 1.0}
    numbers = value.values() if isinstance(value, dict) else ()
    fitting = all(isinstance(share, int | float) and not isinstance(share, bool) and share >= 0 for share in numbers)
    if not isinstance(value, dict) or not fitting or sum(numbers) <= 0 or set(value) == {SAMPLER}:
        return {}, "it names no files"
    for path in value:
        text = str(path)
        if text.startswith("d4rl."):
            return {}, D4RL
        if "://" in text:
            return {}, f"rlrun reads files of this machine, and {flow(text)} is elsewhere"
        if text != SAMPLER and "/" not in text and "." in text and not text.endswith(FILES):
            return {}, f"{flow(text)} is Python that has to be ported; rlrun reads files"
    return {str(path): float(share) for path, share in value.items() if share > 0}, None


def _output(one: Translation) -> None:
    """Sets the folder that a run records into."""
    value, writer = one.given.get("output"), one.given.get("output_config")
    if value == "dataset":
        value = writer.get("path") if isinstance(writer, dict) else None
    if isinstance(value, str) and "://" in value:
        one.say("output", "dropped", why="record=DIR records into a folder of this machine")
    elif value == "logdir" or (value is None and "output" in one.given):
        one.say("output", "dropped", why="record=DIR records into a folder that you name")
    elif isinstance(value, str):
        one.place("record", value, "output")
    else:
        one.say("output", "not mapped", why="record=DIR names a folder")
    one.say("output_config", "dropped", why="its path is record, and files are rlrun's own Parquet")
