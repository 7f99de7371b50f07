"""rlrun resume RUN_DIR [env_steps=... log_every_sec=... log_every_steps=... stop.*=... eval.*=... checkpoint.*=...
                     resources.*=... logger=[console,...] logger.*=...] [--trust]

Continues a run from its last checkpoint. Schedules keep the horizons that they had at the first launch. Other options
cannot change, because that would be another run. --trust runs modules of your own that the config of a run from
elsewhere names."""

from __future__ import annotations

import shlex
from typing import Any

from rlrun.cli import run_dir_argument, take_trust
from rlrun.config.paths import options, root
from rlrun.config.saved import save_config, saved_config
from rlrun.config.types import load_yaml, parse_assignments
from rlrun.core.errors import UserError, closest

CHANGEABLE = ("env_steps", "log_every_sec", "log_every_steps", "stop.", "eval.", "checkpoint.", "logger.", "resources.")


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    path, rest = run_dir_argument(words, "resume")
    changes = parse_assignments(rest)
    values = saved_config(path, trusted)
    for key, value in loggers_first(changes):
        change(values, key, value)
    from rlrun.config.run import type_config
    from rlrun.config.unused import flattened
    from rlrun.core.passwords import check_logger
    from rlrun.machine.machine import measured
    from rlrun.runtime import session
    from rlrun.runtime.build import checkpoints_of, preflight
    from rlrun.runtime.plan import check_saved, plan
    from rlrun.runtime.rundir import RunDir
    from rlrun.runtime.unused import refuse_unused

    check_logger(values)
    config = type_config({**values, "init": None})  # the checkpoint already contains what init loaded
    print(f"rlrun resume: {config.algo.name} on {config.env.name}, seed {config.run.seed}", flush=True)
    machine = measured()
    given = flattened(changes)
    planned = plan(config, machine, given)
    refuse_unused(planned, given)
    preflight(planned, machine)  # this comes before config.yaml is written, so that no wrong option stays in it
    directory = RunDir(path)
    directory.acquire()
    try:
        restored = checkpoints_of(path).load()
        steps = restored[1]["env_steps"]
        if steps >= config.run.env_steps:
            raise UserError(
                f"{path} is already at {steps} env steps; to train on: rlrun resume {shlex.quote(str(path))}"
                f" env_steps={2 * steps}"
            )
        check_saved(planned, path / "checkpoints" / f"{steps:012d}")
        print(f"  from the checkpoint at {steps:,} env steps", flush=True)
        values = save_config(values, path)
    except BaseException:
        directory.release()
        raise
    return session.run(planned, values, directory, restored)


def change(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key that may change on resume, or chooses the loggers. UserError for any other key."""
    if key == "logger":
        choose_loggers(values, value)
        return
    if not any(key == allowed or (allowed.endswith(".") and key.startswith(allowed)) for allowed in CHANGEABLE):
        known = sorted(dotted(values))
        if key not in known:
            raise UserError(f"There is no option {key}.{closest(key, known)}")
        if f"{key}." in CHANGEABLE:
            example = next(k for k in known if k.startswith(f"{key}."))
            raise UserError(
                f"{key}= cannot be chosen anew on resume, but its options can change, such as {example}=..."
            )
        allowed = ", ".join(a + "*" if a.endswith(".") else a for a in CHANGEABLE)
        raise UserError(f"{key} cannot change on resume; these can: {allowed}")
    set_option(values, key, value)


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
    if last not in node:
        beside = [".".join([*groups, name]) for name in node]
        raise UserError(f"There is no option {key}.{closest(key, beside or dotted(values))}")
    node[last] = value


def dotted(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key of a config, including the keys of groups."""
    found = []
    for key, value in values.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, dict):
            found += dotted(value, f"{prefix}{key}.")
    return found
