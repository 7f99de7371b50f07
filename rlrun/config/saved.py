"""Reads and writes config.yaml of a run directory, which may come from elsewhere or be older than some options."""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.config.automatic import TABLE, observations, settled
from rlrun.config.foreign import check_values
from rlrun.config.paths import group_defaults, model_of, options, output_of, root
from rlrun.config.signature import read_signed, write_signed
from rlrun.config.types import MissingOption, load_yaml, plain, save_yaml, yaml_text
from rlrun.config.unused import changed
from rlrun.core.errors import UserError
from rlrun.core.passwords import check_known, masked_values
from rlrun.core.plugins import TRUST, allow, is_path
from rlrun.core.saved_files import check_run_config


def save_config(values: dict[str, Any], run_dir: Path, own: bool = True) -> dict[str, Any]:
    """Writes config.yaml, and returns what it holds: the same options without passwords.

    own: whether it is signed. A config from elsewhere that nobody trusts stays one from elsewhere, because parts of it
    that were not used yet have not been checked either."""
    saved = masked_values(values)
    if own:
        write_signed(run_dir / "config.yaml", yaml_text(saved))
    else:
        save_yaml(saved, run_dir / "config.yaml")
    return saved


class ReadConfig(NamedTuple):
    """A run's config.yaml, which has been read once, with what its signature says."""

    values: dict[str, Any]
    own: bool  # whether the user made it or trusts it
    in_place: bool  # whether it is in the folder in which the user made it, or the user trusts it


def read_config(run_dir: Path, trusted: bool = False) -> ReadConfig:
    """Reads config.yaml as it is. Raises UserError if it cannot be read."""
    path = run_dir / "config.yaml"
    try:
        file = read_signed(path)
    except OSError:
        return ReadConfig(load_yaml(path), trusted, trusted)  # which says why it cannot be read
    return ReadConfig(load_yaml(path, file.data), trusted or file.signed, trusted or file.in_place)


def saved_config(
    run_dir: Path, trusted: bool = False, unused: Collection[str] = (), found: ReadConfig | None = None
) -> dict[str, Any]:
    """Returns the plain config of a run directory. Raises UserError if it cannot be read or does not fit.

    A config without this user's signature may only name modules of installed packages, unless it is trusted, and no
    folders and addresses. unused: options, by path, whose values in the file are not used, such as those that the
    user's words replace; they may name any. found: what read_config() returned, if it has been read.

    Options that did not exist when it was saved get today's defaults and are named on stderr. Options of an environment
    and of a user's own algorithm have no such defaults.
    """
    from rlrun.config.run import type_config

    path = run_dir / "config.yaml"
    values, own, placed = found or read_config(run_dir, trusted)
    values = copy.deepcopy(values)
    check_run_config(values, path)
    check_known(values, str(path))
    if not placed:
        refuse_links(run_dir)
    if own:
        allow(values, here=placed)
    else:
        values["runs_root"] = str(run_dir.resolve().parent)  # the file may not choose where results are written
        values["run_dir"] = str(run_dir)
    check_values(values, str(path), own, places=("directory", "uri", "record", "address"), unused=unused)
    _retire(values)
    _as_before(values)
    try:
        type_config(values)
    except MissingOption:
        added = list(_fill(values, settled(defaults_of(values), "vectors")[0], ""))
        if added:
            print(f"  {run_dir} is older than {', '.join(added)}: defaults are taken", file=sys.stderr, flush=True)
    return values


def without_its_store(values: dict[str, Any], run_dir: Path, given: Collection[str]) -> list[str]:
    """Switches MLflow off in the config of a run from elsewhere unless the user's words name the store, because the one
    beside the run may have come with it: it says where files are written. given: the options that the words set.
    Returns a note about it, if it was on."""
    node = (values.get("logger") or {}).get("mlflow")
    if not isinstance(node, dict) or not node.get("enabled") or node.get("uri") is not None:
        return []
    if {"runs_root", "logger.mlflow.uri"} & set(given):
        return []
    node["enabled"] = False
    return [f"not logged to MLflow, {theirs(run_dir)}"]


def theirs(run_dir: Path) -> str:
    """Why the store beside a run from elsewhere is not used, and what to do."""
    return (
        f"because {run_dir} was made elsewhere and the store beside it may have been, too:"
        f" logger.mlflow.uri=ADDRESS names yours, and {TRUST} trusts what is there"
    )


def refuse_links(folder: Path) -> None:
    """Raises UserError if a folder from elsewhere, or a copy, has symbolic links, because files outside would be
    overwritten."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (Path(place) / name).is_symlink():
                raise UserError(
                    f"{Path(place) / name} is a symbolic link, and {folder} was made elsewhere or is a copy, in which"
                    " links are refused: remove the link"
                )


# Options that once existed with every choice of their group, and that did nothing with these choices, with the values
# that they had by default.
_RETIRED: dict[tuple[str, ...], dict[str, Any]] = {
    ("uniform",): {"alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6},
    ("lstm", "gru"): {"layers": 1, "heads": 2, "length": 50},
    ("none",): {"size": 256, "layers": 1, "heads": 2, "length": 50, "prev_action": False, "prev_reward": False},
}


def _retire(values: dict[str, Any]) -> None:
    """Drops options of older versions that did nothing. One that was not at its default is named on stderr."""
    replay, model = values.get("replay"), values.get("model")
    memory = model.get("memory") if isinstance(model, dict) else None
    for path, node, key in (("replay", replay, "name"), ("model.memory", memory, "kind")):
        if not isinstance(node, dict):
            continue
        choice = node.get(key)
        for option, default in next((named for kinds, named in _RETIRED.items() if choice in kinds), {}).items():
            if option in node and (given := node.pop(option)) != default:
                print(f"  {path}.{option}={given} never did anything with {choice}, and is left out", file=sys.stderr)
    _retire_outputs(values)


def _retire_outputs(values: dict[str, Any]) -> None:
    """Drops options of the model that the algorithm never used; once every algorithm had all of conf/model/output.

    An action distribution and a shared value were defaults everywhere, so these are dropped in silence."""
    model, algo = values.get("model"), values.get("algo")
    if not isinstance(model, dict) or not isinstance(algo, dict):
        return
    inside = algo["inner"] if isinstance(algo.get("inner"), dict) else algo
    if "module" in inside or inside.get("name") not in options("algo"):
        return
    used = group_defaults("model/output", output_of(inside["name"]))
    every = {
        name: default
        for one in options("model/output")
        for name, default in group_defaults("model/output", one).items()
    }
    for option in every.keys() - used.keys() & model.keys() - {"by_observation"}:
        given = model.pop(option)
        if option not in ("share_value", "action_distribution") and given != every[option]:
            told = f"model.{option}={given} never did anything with {inside['name']}, and is left out"
            print(f"  {told}", file=sys.stderr)


def _as_before(values: dict[str, Any]) -> None:
    """Gives the environment and the model of an older version the options that make the same ones in this version.

    Screens of Atari games were always grey, observations of other environments were not stacked, those of Gymnasium
    environments were their own and actions taken once, and the time limit of games with several agents was always a
    truncation. No update was taped, processes had two minutes to start, nothing was restarted, and the first checkpoint
    was that of an interval. The number of samplers was once saved beside ray.samplers_per_node, from which it had been
    made. Hidden layers and their activation once had no effect on a network for a single image or on a user's own
    encoder, and convolutions always had relu. An optimiser's epsilon could be 0, and the time limit of a
    Gymnasium environment could stand among its arguments."""
    model, env, resources = values.get("model"), values.get("env"), values.get("resources")
    if isinstance(resources, dict):
        resources.setdefault("tapes", False)
        resources.setdefault("restarts", 0)
        resources.setdefault("restart_window_sec", 600.0)
        resources.setdefault("start_timeout_sec", 120.0)
        resources.setdefault("max_processes_per_core", 16)
        resources.setdefault("ray", None)
        ray = resources["ray"]
        if isinstance(ray, dict) and ray.get("samplers_per_node", "auto") != "auto":
            resources["num_samplers"] = "auto"
    checkpoint = values.get("checkpoint")
    if isinstance(checkpoint, dict):
        checkpoint.setdefault("first_sec", None)
    mlflow = (values.get("logger") or {}).get("mlflow")
    if isinstance(mlflow, dict):
        mlflow.setdefault("wait_sec", 3.0)
    if isinstance(env, dict):
        name, before = ("grayscale", True) if env.get("family") == "atari" else ("stack", 1)
        if env.get("family") != "data":
            env.setdefault(name, before)
            env.setdefault("step_timeout_sec", None)
            env.setdefault("reset_timeout_sec", None)
        else:
            env.setdefault("options", None)
        if env.get("family") == "agents":
            env.setdefault("time_limit", "truncation")
        if env.get("family") == "gym":
            for option, only in (("observation", "own"), ("size", 64), ("action_repeat", 1)):
                env.setdefault(option, only)
            _limit_as_before(env)
    _small_epsilons(values.get("algo"))
    if not isinstance(model, dict) or not isinstance(env, dict) or "encoder" not in model or "conv_activation" in model:
        return
    encoder, kind = str(model.get("encoder")), observations(env)
    own = is_path(encoder)
    convolves = not own and encoder != "mlp"
    model["conv_activation"] = "auto"
    if own or (convolves and kind == "images"):
        model["hidden"] = []
    if convolves and kind == "images":
        model["activation"] = "relu"


def _limit_as_before(env: dict[str, Any]) -> None:
    """Moves a time limit from the environment's arguments to env.max_episode_steps, which counts decisions.

    As an argument it counted the environment's own steps, and it held only where env.max_episode_steps was not set."""
    kwargs = env.get("kwargs")
    limit = kwargs.pop("max_episode_steps", None) if isinstance(kwargs, dict) else None
    if isinstance(limit, int) and env.get("max_episode_steps") is None:
        env["max_episode_steps"] = -(-limit // env["action_repeat"])


# It is so small that adding it matters only to a root of 0, and 0 divided by it is 0.
LEAST_EPSILON = 1e-30


def _small_epsilons(node: Any) -> None:
    """Replaces every optimiser's epsilon of 0 by LEAST_EPSILON."""
    if not isinstance(node, dict):
        return
    for name, part in node.items():
        # An exploration's epsilon may be 0.
        if str(name).endswith("optimizer") and isinstance(part, dict) and part.get("epsilon") == 0:
            part["epsilon"] = LEAST_EPSILON
        _small_epsilons(part)


def learning(values: dict[str, Any]) -> str:
    """The name of the algorithm that learns, which may be inside another one."""
    inner = values["algo"].get("inner")
    return (inner if isinstance(inner, dict) and "name" in inner else values["algo"])["name"]


def defaults_of(values: dict[str, Any]) -> dict[str, Any]:
    """Composes the defaults of the same groups, in which options may be `auto`, without the environment's own options.

    Options of a user's own algorithm have no defaults."""
    ours = "module" not in values["algo"] and values["algo"]["name"] in options("algo")
    inner = values["algo"].get("inner")
    words = [f"algo={values['algo']['name'] if ours else 'impala'}"]
    words += [f"runner={values['runner']['name']}"] if values["runner"].get("name") in options("runner") else []
    if ours and isinstance(inner, dict) and "module" not in inner and inner.get("name") in options("algo"):
        words.append(f"algo@algo.inner={inner['name']}")
    if values["resources"].get("exact"):
        words.append("resources=debug")
    elif values["resources"].get("ray"):
        words.append("resources=ray")
    clip = values["env"].get("reward_clip")  # algo.reward_clip takes its default from it
    if clip in ("none", "sign") or isinstance(clip, float):
        words.append(f"env.reward_clip={clip}")
    if values.get("replay") and values["replay"].get("name") in options("replay"):
        words.append(f"replay={values['replay']['name']}")
    memory = values.get("model", {}).get("memory", {}).get("kind")
    networks = group_defaults("model", model_of(learning(values))) if ours else {"encoder": "auto"}
    if memory in options("model/memory") and "encoder" in networks:
        words.append(f"model/memory={memory}")
    made = copy.deepcopy(_composed((*words, "env=CartPole-v1")))
    made["logger"] = {name: node for name, node in made["logger"].items() if name in (values.get("logger") or {})}
    without = {"env"} if ours else {"env", "algo"}
    if not made["logger"]:  # logger=[] composes to no `logger` at all
        without.add("logger")
    return {name: part for name, part in made.items() if name not in without}


@functools.cache
def _composed(words: tuple[str, ...]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir

    from rlrun.config.hydra_plugins import composing

    with composing(), initialize_config_dir(version_base="1.3", config_dir=str(root() / "conf")):
        return plain(compose("train", overrides=list(words)))


def set_by_user(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the options, by path, that a command, a tuned file or a folder of options has changed.

    values: a plain config as it was composed. Raises UserError for a row of by_observation that nothing takes."""
    family = values["env"].get("family")
    defaults = defaults_of(values) | {"env": group_defaults("env", family) if family in options("env") else {}}
    given = changed(values, defaults)
    for policy, own in (values["algo"].get("options") or {}).items():  # of algo=multi; others are as algo.inner
        given |= changed(own, values["algo"].get("inner", {}), f"algo.options.{policy}")
    tables = [path for path in given if f".{TABLE}." in path]
    for path in tables:
        without = copy.deepcopy(values)
        *groups, name = path.split(".")
        node, default = without, defaults
        for group in groups:
            node, default = node[group], default[group]
        node[name] = default[name]
        if settled(without) == settled(values):
            option = f"{path.split('.' + TABLE)[0]}.{name}"
            raise UserError(
                f"{path}={given[path]} does nothing in this run: it is used only where {option} is auto and"
                f" observations are of the kind {groups[-1]}; set {option} itself"
            )
    return given


def _fill(values: dict[str, Any], defaults: dict[str, Any], path: str):
    """Adds missing options and yields the names of those that were added."""
    for key, default in defaults.items():
        name = f"{path}{key}"
        if key not in values:
            values[key] = default
            yield name
        elif isinstance(values[key], dict) and isinstance(default, dict):
            yield from _fill(values[key], default, f"{name}.")
