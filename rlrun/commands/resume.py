"""rlrun resume RUN_DIR [env_steps=... log_every_sec=... log_every_steps=... stop.*=... eval.*=... checkpoint.*=...
                     resources.*=... logger=[console,...] logger.*=... checkpoint=last|best|<env steps>|DIR]
                     [data.path=DIR] [--if-needed] [--trust]

Continues a run from its last checkpoint. Schedules keep the horizons that they had at the first launch. Other options
cannot change, because that would be another run. data.path names another place of the same recorded data. checkpoint
goes back to an earlier checkpoint, given by its env steps, its name or its folder: later checkpoints, and the rows
after it, are moved to RUN_DIR/left_behind. A run that has nothing left to do is refused; with --if-needed that is no
error, and its summary says that it is COMPLETED or STOPPED, even if it was interrupted in its last moment. --trust runs
modules of your own that the config of a run from elsewhere names."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli import run_dir_argument, take_trust
from rlrun.config.hydra_errors import THEIRS
from rlrun.config.option_names import counterpart, of_a_logger
from rlrun.config.paths import options, root
from rlrun.config.saved import read_config, save_config, saved_config, without_its_store
from rlrun.config.types import load_yaml, parse_assignments
from rlrun.core.errors import UserError, closest
from rlrun.core.numbers import whole_number
from rlrun.core.outputs import tell
from rlrun.loggers.mlflow import absolute_address

if TYPE_CHECKING:
    from rlrun.core.duties import Stops
    from rlrun.runtime.again import Restored
    from rlrun.runtime.plan import Plan
    from rlrun.runtime.rundir import RunDir

IF_NEEDED = "--if-needed"
CHANGEABLE = ("env_steps", "log_every_sec", "log_every_steps", "stop.", "eval.", "checkpoint.", "logger.", "resources.")


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    needed = IF_NEEDED not in words
    path, rest = run_dir_argument([word for word in words if word != IF_NEEDED], "resume")
    changes = parse_assignments(rest)
    # A checkpoint's name is taken as it is written, since YAML reads 000000000120 as an octal number.
    for word in rest:
        if word.startswith("checkpoint="):
            changes["checkpoint"] = word.partition("=")[2]
    return resume(path, changes, trusted, needed)


def resume(
    path: Path,
    changes: dict[str, Any],
    trusted: bool = False,
    needed: bool = True,
    watch: Any = None,
    found: Any = None,
) -> int:
    """Continues a run with these changes, by dotted key, and returns the exit code.

    needed: whether a run that has nothing left to do raises UserError, or else returns 0. watch: a
    session.Watch, for a run from Python. found: the run's ReadConfig, if it has been read."""
    changes = dict(changes)
    wanted = changes.pop("checkpoint", None)
    if isinstance(address := changes.get("logger.mlflow.uri"), str):
        changes["logger.mlflow.uri"] = absolute_address(address)
    found = found or read_config(path, trusted)
    values = saved_config(path, trusted, changes.keys(), found)
    for key, value in loggers_first(changes):
        change(values, key, value)
    unsent = [] if found.own else without_its_store(values, path, changes.keys() - {"runs_root"})
    check_data(path, values)
    from rlrun.algos.multi import with_saved_weights
    from rlrun.config.run import type_config, with_numbers
    from rlrun.config.unused import flattened
    from rlrun.core.passwords import check_logger
    from rlrun.runtime import session
    from rlrun.runtime.cluster import machine_for
    from rlrun.runtime.plan import plan
    from rlrun.runtime.preflight import preflight
    from rlrun.runtime.rundir import RunDir
    from rlrun.runtime.unused import refuse_unused

    check_logger(values)
    values = with_numbers(values)
    # The checkpoint already contains what init and algo.fixed loaded.
    config = type_config({**values, "init": None, "algo": with_saved_weights(values["algo"])})
    lines = [f"rlrun resume: {config.algorithm_name} on {config.env.name}, seed {config.run.seed}"]
    lines += [f"  {line}" for line in unsent]
    machine = machine_for(config)
    given = flattened(changes)
    planned = plan(config, machine, given)
    refuse_unused(planned, given)
    # This comes before config.yaml is written, so that no wrong option stays in it.
    callbacks = preflight(planned, machine)
    directory = RunDir(path)
    directory.acquire()
    try:
        restored = _restored(planned, directory, wanted, needed, lines)
        if restored is None:
            directory.release()
            return 0
        values = save_config(values, path, found.own)
    except BaseException:
        directory.release()
        raise
    return session.run(planned, values, directory, restored, watch, callbacks)


def _restored(planned: Plan, directory: RunDir, wanted: Any, needed: bool, lines: list[str]) -> Restored | None:
    """Makes the directory of a run ready to go on, and returns its checkpoint, or None where nothing is left to do and
    this need not be an error. wanted: what checkpoint= says. lines: what is printed when all checks have passed."""
    from rlrun.runtime.leftovers import tidy
    from rlrun.runtime.plan import check_saved
    from rlrun.runtime.rundir import SILENT, checkpoints_of

    path, run = directory.path, planned.config.run
    if directory.known.get("reason") == SILENT:
        lines.append(f"  its last session did not say how it ended: {SILENT}")
    if gone := tidy(path):
        lines.append(f"  removed what a killed process was still writing: {', '.join(gone)}")
    checkpoints = checkpoints_of(path)
    checkpoints.best()  # a damaged one ends here, before anything is written
    restored = checkpoints.load(None if wanted is None else name_of(path, wanted))
    steps = restored[1]["env_steps"]
    over = reached(run, restored[1])
    if over is not None:
        nothing = nothing_left(path, run, restored[1], over)
        if needed:
            raise UserError(nothing)
        print(*lines, f"  {nothing}", sep="\n", flush=True)
        # It is written anew in any case, so that a sweep sees how this session ended.
        known = directory.known
        directory.summary(**(known if wanted is not None else finished(known, over, restored[1])))
        return None
    name = checkpoints.name_at(steps, restored[1]["updates"])
    check_saved(planned, checkpoints.directory / name)
    # Nothing is printed before all checks have passed, so that an error stands alone.
    tell("\n".join([*lines, f"  from the checkpoint at {steps:,} env steps"]))
    if wanted is not None:
        leave_behind(path, name)
    return restored


def name_of(path: Path, wanted: Any) -> str:
    """The name of the checkpoint that checkpoint= asks for: last, best, env steps, or its folder in this run. Raises
    UserError for a folder that is not one of the run's checkpoints."""
    text = str(wanted)
    if whole_number(text) is not None:
        return str(whole_number(text))
    if text in ("last", "best"):
        return text
    folder = Path(text)
    if folder.resolve().parent != (path / "checkpoints").resolve():
        raise UserError(
            f"checkpoint={text} is not a checkpoint of {path}: give last, best, a number of env steps or a folder in"
            f" {path / 'checkpoints'}; to begin another run with its weights: rlrun train ... init={shlex.quote(text)}"
        )
    return folder.name


def reached(run: Any, state: dict[str, Any]) -> Stops | None:
    """How a run would end at once, because it has reached its last env step or a stop condition; otherwise None.

    run: its options. state: the checkpoint's run.json."""
    from rlrun.core.duties import Progress, Stops
    from rlrun.core.signals import Signals

    progress = Progress(run.episode_window)
    progress.load(state)
    made = Stops(run.env_steps, run.stop, Signals(), progress)
    return made if made.due(progress.clock) else None


def nothing_left(path: Path, run: Any, state: dict[str, Any], over: Stops) -> str:
    """A sentence that says why there is nothing left to do, and how to go on. The arguments are those of reached(), and
    what it has returned."""
    from dataclasses import replace

    again, steps = f"rlrun resume {shlex.quote(str(path))}", state["env_steps"]
    if steps >= run.env_steps:
        return f"{path} is already at {steps} env steps; to train on: {again} env_steps={2 * steps}"
    names = ("return_mean", "wall_sec", "no_improvement_steps")
    none = replace(run.stop, **dict.fromkeys(names))

    def alone(name: str) -> Any:
        return replace(run, stop=replace(none, **{name: getattr(run.stop, name)}))

    passed = [name for name in names if reached(alone(name), state) is not None]
    words = " ".join(f"stop.{name}=null" for name in passed)
    return f"{path} has already reached its stop condition: {over.reason}; to train on: {again} {words}"


def finished(known: dict[str, Any], over: Stops, state: dict[str, Any]) -> dict[str, Any]:
    """The summary of a run that has nothing left to do: the one that it has, if that says so, or else one made from its
    last checkpoint. A run that is interrupted in its last update, or killed before it could write how it ended, has no
    such summary.

    known: its summary. over: how it would end. state: the checkpoint's run.json."""
    from rlrun.experiments.outcomes import DONE

    if known.get("status") in DONE and known.get("env_steps") == state["env_steps"]:
        return known
    progress = over.progress
    return {
        **known,
        "status": over.status,
        "reason": over.reason,
        "env_steps": progress.clock.env_steps,
        "updates": progress.clock.updates,
        "wall_sec": round(progress.wall_before, 2),
        "return_mean": progress.episodes.mean,
        "episodes": progress.episodes.count,
        "eval_return_mean": state["eval_mean"],
        "best_return_mean": progress.best_return,
    }


def leave_behind(path: Path, name: str) -> None:
    """Moves the checkpoints after this one to RUN_DIR/left_behind, with a copy of all rows, because the run takes
    another way from here."""
    from rlrun.core.checkpoint import BEST
    from rlrun.runtime.rundir import checkpoints_of

    checkpoints = checkpoints_of(path)
    later = checkpoints.after(name)
    if not later:
        return
    number = 1
    while (path / "left_behind" / str(number)).exists():
        number += 1
    folder = path / "left_behind" / str(number)
    folder.mkdir(parents=True)
    if (path / "progress.jsonl").exists():
        shutil.copy2(path / "progress.jsonl", folder / "progress.jsonl")
    if checkpoints.best() in later:
        (checkpoints.directory / "best.json").rename(folder / "best.json")
    for one in later:
        (checkpoints.directory / one).rename(folder / one)
    if name.startswith(BEST):
        checkpoints.take_back(name)
    tell(f"  {len(later)} later checkpoint{'s' * (len(later) > 1)} moved to {folder}")


def change(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key that may change on resume, or chooses the loggers. UserError for any other key."""
    if key == "logger":
        choose_loggers(values, value)
        return
    if key == "data.path":
        move_data(values, value)
        return
    if not any(key == allowed or (allowed.endswith(".") and key.startswith(allowed)) for allowed in CHANGEABLE):
        known = sorted(dotted(values))
        if key not in known:
            near = counterpart(key, [f"algo={values['algo']['name']}"]) or closest(key, known)
            raise UserError(f"There is no option {key}.{near}")
        if f"{key}." in CHANGEABLE:
            example = next(k for k in known if k.startswith(f"{key}."))
            raise UserError(
                f"{key}= cannot be chosen anew on resume, but its options can change, such as {example}=..."
            )
        allowed = ", ".join(a + "*" if a.endswith(".") else a for a in (*CHANGEABLE, "data.path"))
        raise UserError(f"{key} cannot change on resume; these can: {allowed}")
    set_option(values, key, value)


def move_data(values: dict[str, Any], path: Any) -> None:
    """Says where the data of a run are now. That they are the same data is checked when they are read
    (datasets/shelf.py). UserError for a run without data, and for other numbers or shares of data sets."""
    from rlrun.datasets.options import absolute_data

    before = (values.get("data") or {}).get("path")
    if before is None:
        raise UserError("data.path: this run learns from no recorded data, which cannot change on resume")
    shares, now = ([*places.values()] if isinstance(places, dict) else [1.0] for places in (before, path))
    if not path or now != shares:
        raise UserError(
            f"data.path can only name other places of the same data on resume, with the same shares: it was {before}"
        )
    values["data"]["path"] = absolute_data(path)


def check_data(path: Path, values: dict[str, Any]) -> None:
    """Raises UserError if the data of a run are no longer where they were."""
    places = (values.get("data") or {}).get("path")
    if not places:
        return
    from rlrun.datasets.open import is_there

    for place in places if isinstance(places, dict) else [places]:
        if not is_there(place):
            raise UserError(
                f"there are no data at {place}; say where those of this run are: rlrun resume"
                f" {shlex.quote(str(path))} data.path=DIR"
            )


def loggers_first(changes: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns changes as pairs, beginning with logger=[...], so that an option of a logger finds its logger."""
    return sorted(changes.items(), key=lambda change: change[0] != "logger")


def choose_loggers(values: dict[str, Any], names: Any) -> None:
    """Makes these the loggers of a config, as logger=[console,mlflow] does for rlrun train.

    A logger that the config had keeps its options, and another gets the defaults of conf/logger. UserError for a name
    that is not a logger's."""
    known = options("logger")
    chosen = [] if names is None else names if isinstance(names, list) else [names]
    before = values.get("logger") or {}
    for name in chosen:
        if name not in known:
            raise UserError(f"There is no logger {name!r}.{closest(str(name), known)} There are {', '.join(known)}.")
    values["logger"] = {
        name: before.get(name) or load_yaml(root() / "conf" / "logger" / f"{name}.yaml")[name] for name in chosen
    }


def set_option(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key that exists. UserError for any other key."""
    *groups, last = key.split(".")
    node = values
    for group in groups:
        child = node.get(group)
        node = child if isinstance(child, dict) else {}
    if last not in node and THEIRS.match(key) and groups:  # a dictionary of the user's own keys
        values[groups[0]] = _with(values[groups[0]], [*groups[1:], last], value)
        return
    if last not in node:
        if said := of_a_logger(key):
            raise UserError(said)
        beside = [".".join([*groups, name]) for name in node]
        raise UserError(f"There is no option {key}.{closest(key, beside or dotted(values))}")
    node[last] = value


def _with(node: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """The dictionary with this value at a path in it, whose groups are made where they are missing."""
    first, *rest = path
    made = dict(node) if isinstance(node, dict) else {}
    made[first] = _with(made.get(first), rest, value) if rest else value
    return made


def dotted(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key of a config, including the keys of groups."""
    found = []
    for key, value in values.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict):
            found += dotted(value, f"{prefix}{key}.")
    return found
