"""Translates what ends an experiment (`stop`) and what it is to reach (`pass_criteria`), as a part of translate.py."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rlrun.core.schedule import Schedule
from rlrun.rllib.algorithms import META
from rlrun.rllib.evaluation import LOOK_EVERY, iteration, set_greedy
from rlrun.rllib.meta import rows_of_iteration
from rlrun.rllib.team import told
from rlrun.rllib.translation import Translation, first_of
from rlrun.rllib.yaml_files import How, Line, flow, rounded

FILES_END = 1.0e7  # env steps of a file that names none; RLlib's Atari tables end there
UNREACHED = 1.0e9  # env steps of a file that ends by its time or return, so that they do not end the run before
MEANS = ("episode_reward_mean", "episode_return_mean")
AGENT_STEPS = ("agent_timesteps_total", "num_agent_steps_sampled", "num_agent_steps_sampled_lifetime")
STEPS = ("timesteps_total", "num_env_steps_sampled", "num_env_steps_sampled_lifetime", *AGENT_STEPS)
# RLlib's names of the returns of one policy or agent
PARTIAL = ("policy_reward_", "module_episode_returns_", "agent_episode_returns_")
RETURN, WALL = "stop.return_mean", "stop.wall_sec"


class Mark(NamedTuple):
    """What one of RLlib's criteria is here."""

    option: str  # stop.return_mean, env_steps or stop.wall_sec; empty if it has no counterpart
    number: float
    why: str


def ends(it: Translation) -> None:
    """Sets what ends the run, and what it is to reach.

    A file's `stop` ends it at the first of its marks, and pass_criteria say only what is expected. Where no mark of
    `stop` has a counterpart, they end the run, because nothing else would. env_steps is written in any case."""
    stops = {key: _mark(it, key, value) for key, value in it.stop.items()}
    passes = {key: _mark(it, key, value) for key, value in it.passes.items()}
    stopped, wanted = _first_of_each(stops), _first_of_each(passes)
    ruling = stopped or wanted
    steps = ruling.get("env_steps", wanted.get("env_steps"))
    reached = wanted.get(RETURN, ruling.get(RETURN))
    expected: dict[str, Any] | None = None
    if reached is not None and steps is not None:
        expected = {"return": reached, "env_steps": rounded(steps), "metric": "last100", "seeds": 1}
        expected["source"] = f"RLlib {it.source}"
    _list(it, "stop", stops, ruling, {})
    filled = {} if expected is None else {RETURN: reached, "env_steps": steps}
    _list(it, "pass_criteria", passes, {} if stopped else ruling, filled, flow(expected))
    for option in (RETURN, WALL):
        if option in ruling:
            it.made.values[option] = ruling[option]
    last, why = (ruling["env_steps"], "") if "env_steps" in ruling else _own_end(it, ruling)
    it.set("env_steps", rounded(last), why=why)
    if expected is not None:
        it.made.values["expected"] = expected
        it.reasons["expected"] = "what the file is to reach" if RETURN in wanted else "what the file stops at"


def _own_end(it: Translation, ruling: dict[str, float]) -> tuple[float, str]:
    """Returns the env steps of a file that names none, and why. ruling: what ends the run, by options."""
    if it.atari:
        return FILES_END, "the file names no number of env steps; RLlib's Atari tables end there"
    scheduled = max((_end_of_schedules(value) for key, value in it.made.values.items() if _may_change(key)), default=0)
    others = [option for option in (RETURN, WALL) if option in ruling]
    if others:
        ending = " or ".join(f"{option}={flow(ruling[option])}" for option in others)
        return max(UNREACHED, scheduled), f"{ending} ends the run; so many env steps are not to end it before"
    if scheduled > FILES_END:
        return scheduled, "the file names no number of env steps; its longest schedule ends there"
    if it.stop:
        why = f"nothing in the file's `stop` has a counterpart here; this run ends at {FILES_END:,.0f} env steps"
        return FILES_END, why
    return FILES_END, f"the file never stops; this run ends at {FILES_END:,.0f} env steps"


def _may_change(option: str) -> bool:
    """Tells whether an option, or one inside its group, may be a schedule. Pairs in other options mean other things."""
    return option.split(".")[0] in ("algo", "replay")


def _end_of_schedules(value: Any) -> float:
    """Returns the env steps at which a value, or the last of those in a group, stays as it is; 0 for constants."""
    if isinstance(value, dict) and set(value) - {"curve"} != {"start", "end", "steps"}:
        return max(map(_end_of_schedules, value.values()), default=0.0)
    try:
        return Schedule.parse(value).points[-1][0]
    except ValueError:  # no schedule, but another list or text
        return 0.0


def _first_of_each(marks: dict[str, Mark]) -> dict[str, float]:
    """Returns the smallest number of every option."""
    made: dict[str, float] = {}
    for option, number, _ in marks.values():
        if option:
            made[option] = min(number, made.get(option, number))
    return made


def _list(
    it: Translation,
    where: str,
    marks: dict[str, Mark],
    ruling: dict[str, float],
    filled: dict[str, float | None],
    expected: str = "",
) -> None:
    """Lists what becomes of each criterion. ruling: what ends the run. filled: what is expected, by options."""
    values, grids = (it.stop, it.stop_grids) if where == "stop" else (it.passes, it.pass_grids)
    for key, (option, number, why) in marks.items():
        how: How = "mapped" if option else "not mapped"
        became = ""
        if option and ruling.get(option) == number:
            became = f"{option}={flow(rounded(number) if option == 'env_steps' else number)}"
        elif option and filled.get(option) == number:
            became = f"expected={expected}"
            why = f"`stop` ends the run; {why}" if why else "`stop` ends the run"
        elif option:
            how, why = "dropped", "another criterion comes first" if option in ruling else "`stop` ends the run"
        said = {"grid_search": grids[key]} if key in grids else values[key]
        it.made.lines.append(Line(f"{where}.{key}", said, how, became, first_of(grids.get(key), why)))


def _mark(it: Translation, key: str, value: Any) -> Mark:
    """Returns what a criterion is here."""
    last = key.rsplit("/", 1)[-1]
    lost = "rlrun ends at a return, a number of env steps or a time"
    if not isinstance(value, int | float):
        return Mark("", 0.0, f"{flow(value)} is no number")
    if isinstance(value, float) and not math.isfinite(value):
        return Mark("", 0.0, f"{lost}, and none of them is ever {flow(value)}")
    if last in MEANS and key.startswith("evaluation/"):
        return Mark("", 0.0, _evaluated(it))
    if any(part in key for part in PARTIAL):
        return Mark("", 0.0, f"{RETURN} looks at the sum over all agents; sample/return/AGENT shows each one's")
    if last in MEANS and (it.offline or it.made.values.get("algo.eval_share") == 0):
        games = "games" if it.offline else "games of the unperturbed policy"
        return Mark("", 0.0, f"no {games} are played in training; eval.every= shows the return of evaluations")
    if last in MEANS:
        return Mark(RETURN, float(value), "" if it.team is None else "the sum over all agents, as in RLlib")
    if last in STEPS and _agents_of(it, last) is None:
        return Mark("", 0.0, f"rlrun counts env steps, and how many agents {it.env.name} has is unknown here")
    if last in STEPS:
        number = _agents_of(it, last) or 1
        own = float(math.ceil(float(value) / number / it.repeat))
        why = "" if number == 1 else f"agent steps, of which an env step has {number}"
        why = why if it.repeat == 1 else f"frames, of which an env step has {it.repeat}"
        return Mark("env_steps", own, _rows_learnt(it, own) if it.offline else why)
    if last == "time_total_s":
        return Mark(WALL, float(value), "")
    return _iterations(it, float(value)) if last == "training_iteration" else Mark("", 0.0, lost)


def _evaluated(it: Translation) -> str:
    """Has the run evaluated, because the file looks at evaluations, and returns why they do not end it."""
    if "eval.every" not in it.made.values:
        it.set("eval.every", LOOK_EVERY, why="the file looks at evaluations")
        set_greedy(it)
    shows = f"{RETURN} looks at training games, so that evaluations do not end the run"
    shows = shows.replace(f"{RETURN} looks at training games", "training plays no games") if it.offline else shows
    return f"eval.every={it.made.values['eval.every']} shows it; {shows}"


def _iterations(it: Translation, number: float) -> Mark:
    """Returns what a number of iterations of RLlib's loop is."""
    if it.core in META:
        each = rows_of_iteration(it)
        why = f"iterations of {each:,} env steps, where episodes are as long as a fragment"
        return Mark("env_steps", number * each, why)
    steps = iteration(it)
    if not steps:
        why = "iterations of RLlib's loop have no fixed number of env steps here; env_steps= ends a run"
        return Mark("", 0.0, why)
    why = _rows_learnt(it, number * steps) if it.offline else f"iterations of {steps:,} env steps"
    return Mark("env_steps", number * steps, why)


def _rows_learnt(it: Translation, rows: float) -> str:
    """Says what a number of env steps means for an algorithm that learns from data alone."""
    updates, clones = rows / it.made.values[f"{it.inner}.batch_size"], it.made.values.get("algo.bc_iters", 0)
    cloned = f"; all of these {updates:g} updates clone, because bc_iters is {clones}" if updates <= clones else ""
    return f"env steps count the rows that are learnt, because nothing is played{cloned}"


def _agents_of(it: Translation, counter: str) -> int | None:
    """Returns the agents whose steps a counter of RLlib's counts: 1 for env steps, None if it is unknown."""
    unit = told(it.config, "count_steps_by")[1]
    agents_counted = counter in AGENT_STEPS or (counter == "timesteps_total" and unit == "agent_steps")
    return it.acting if agents_counted else 1
