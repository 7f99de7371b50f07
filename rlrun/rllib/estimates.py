"""Translates RLlib's options of estimates of a policy's value from data, as a part of translate.py.

RLlib's `is` weights every reward by the ratios of the actions up to it, which is rlrun's pdis; its `wis` divides these
weights by their mean over episodes at the same step, which is step_wis. `simulation` plays, as every evaluation does.
Sources: rllib/offline/estimators of releases 1.13 and 2.7; the release notes of 0.5 name input_evaluation."""

from __future__ import annotations

from typing import Any

from rlrun.rllib.translation import INPUTS, SAMPLER, Translation
from rlrun.rllib.yaml_files import How, flow

OPTIONS = ("input_evaluation", "off_policy_estimation_methods")
METHODS = {
    "is": "pdis",
    "importancesampling": "pdis",
    "wis": "step_wis",
    "weightedimportancesampling": "step_wis",
    "dm": "dm",
    "directmethod": "dm",
    "dr": "dr",
    "doublyrobust": "dr",
}
PLAYING = "simulation"
CERTAIN = ("ddpg", "td3", "maddpg")  # whose policies give actions no probabilities, so that only dm judges them
INPUT = "evaluation_config.input"


def estimates(one: Translation) -> None:
    """Sets which estimates are made while a run learns, and from which data. It comes behind data.path."""
    given = [key for key in OPTIONS if key in one.given and key not in one.taken]
    names = [name for key in given for name in _names(one.given[key])]
    kinds = {name: name.rsplit(".", 1)[-1].lower() for name in names}
    foreign = [name for name, kind in kinds.items() if kind not in METHODS and kind != PLAYING]
    wanted = list(dict.fromkeys(METHODS[kind] for kind in kinds.values() if kind in METHODS))
    path = _held_out(one)
    how, problem = _problem(one, foreign, wanted, path)
    if problem is not None:
        for key in given:
            one.say(key, how, why=problem)
    elif given:
        whys = {"pdis": "RLlib's is has one weight per decision", "step_wis": "its wis is weighted at every step"}
        why = "; ".join(text for method, text in whys.items() if method in wanted)
        if one.set("eval.estimate.methods", wanted, *given, why=why) and path is not None:
            one.place("eval.estimate.path", path, INPUT)
    if one.given.get(INPUT) == SAMPLER:
        one.say(INPUT, "dropped", why="evaluation always plays")
    one.say(INPUT, "not mapped", why="evaluation plays; eval.estimate.path=DIR judges by data")


def _names(value: Any) -> list[str]:
    """The names or classes of estimators, of a list of names or of a group {name: {type: class}}."""
    if isinstance(value, dict):
        value = [part.get("type", name) if isinstance(part, dict) else name for name, part in value.items()]
    return [str(name) for name in value] if isinstance(value, list) else [str(value)]


def _held_out(one: Translation) -> str | None:
    """The data that evaluation reads, if it is one file or folder."""
    value = one.given.get(INPUT)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value))
    if not isinstance(value, str) or value in (SAMPLER, "dataset"):
        return None
    return None if "://" in value or value.startswith("d4rl.") else value


def _problem(one: Translation, foreign: list[str], wanted: list[str], path: str | None) -> tuple[How, str | None]:
    """Whether something is lost if no estimates are made, and the reason why none are; None if they are."""
    learnt = one.made.places.get("data.path")
    if foreign:
        return "not mapped", f"rlrun has no estimator {flow(foreign[0])}; eval.estimate.methods= takes its own"
    if not wanted:
        return "dropped", "no estimates are asked for; evaluations play"
    if one.team is not None:
        return "not mapped", "estimates are made of one agent's episodes"
    if one.core in CERTAIN and wanted != ["dm"]:
        why = f"the policy of {one.core} gives actions no probabilities; eval.estimate.methods=[dm] needs none"
        return "not mapped", why
    if path is not None or isinstance(learnt, str):
        return "mapped", None
    if learnt is not None:
        why = f"estimates are made from one data set, and there are {len(learnt)}: eval.estimate.path=DIR says which"
        return "not mapped", why
    if one.offline or any(_shares_of(one.given.get(key)) != {SAMPLER} for key in INPUTS if key in one.given):
        why = f"the file names no data that rlrun reads; add eval.estimate.methods={flow(wanted)} where there are some"
        return "not mapped", why
    return "dropped", "the policy is judged by what it plays, which needs no estimate"


def _shares_of(value: Any) -> set[str]:
    """The names of what an experiment learns from."""
    return {str(name) for name in value} if isinstance(value, dict | list) else {str(value)}
