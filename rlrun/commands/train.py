"""rlrun train: Hydra composes the config and a session runs it.

rlrun train --plan ... prints what the run would consist of on this machine, and why, and starts nothing.
rlrun train --from-run DIR [seed=2 key=value ...] trains the same run again in a new directory.
--trust lets a folder of options (--config-dir) or a run from elsewhere name modules that no installed package has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.cli import compose, take_trust
from rlrun.core.errors import UserError
from rlrun.dataflow.workers import cool, warm

PLAN = "--plan"
FEW_ROWS = 256  # of PPO's whole update; who asks for fewer may mean a minibatch
# Words that say that this process starts no workers.
NO_WORKERS = {"resources=debug", "resources=ray", "resources.inference=serial", "runner=offline"}


def main(words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        from rlrun.commands.train_help import show

        return show(words)
    rest = [word for word in words if word != PLAN]
    if any(word.split("=")[0] == FROM_RUN for word in words):
        return again(rest, plans=PLAN in words)
    said = given_twice(rest)
    if PLAN in words:
        return compose(rest, lambda cfg, choices: show_plan(cfg, choices, said))
    if words and not NO_WORKERS.intersection(words) and not any(word.startswith("-") for word in words) and cores() > 1:
        warm()  # before this process imports PyTorch itself
    try:
        return compose(words, lambda cfg, choices: train(cfg, choices, said=said))
    finally:
        cool()  # a command that ends at once must not leave it importing


def cores() -> int:
    """Cores that this process may use. machine.cores() knows more, but importing it imports PyTorch."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


FROM_RUN = "--from-run"


def again(words: list[str], plans: bool = False) -> int:
    """Starts a new run with the config of an old one and these changes. plans: only shows what it would consist of."""
    from rlrun.commands.resume import choose_loggers, dotted, loggers_first, set_option
    from rlrun.config.saved import read_config, saved_config, without_its_store
    from rlrun.config.types import parse_assignments
    from rlrun.config.unused import flattened
    from rlrun.config.words import at_home

    trusted, words = take_trust(words)
    place = next(i for i, word in enumerate(words) if word.split("=")[0] == FROM_RUN)
    _, equals, given = words[place].partition("=")
    if not equals:
        given = words[place + 1] if place + 1 < len(words) else ""
    given = at_home(given)
    rest = words[:place] + words[place + (1 if equals else 2) :]
    if not (Path(given) / "config.yaml").is_file():
        from rlrun.core.saved_files import no_run

        raise UserError(no_run(Path(given)) if given else f"{FROM_RUN} takes a run directory")
    changes = parse_assignments(rest)
    found = read_config(Path(given), trusted)
    own = found.own
    values = saved_config(Path(given), trusted, changes.keys(), found)
    values["run_dir"] = None
    if values["env"].get("family") == "data" and any(key.split(".")[:2] == ["data", "path"] for key in changes):
        values["env"] |= {"spec": None, "options": None}  # the new data say what they are from
    for key, value in loggers_first(changes):
        if key == "logger":
            choose_loggers(values, value)
            continue
        known = sorted(dotted(values))
        if isinstance(values.get(key), dict):
            example = next(k for k in known if k.startswith(f"{key}."))
            raise UserError(
                f"{key}= cannot be chosen anew with {FROM_RUN}, but its options can change, such as {example}=..."
            )
        set_option(values, key, value)
    from rlrun.config.run import with_numbers

    said = [f"the config of {given}"]
    if not own:
        said += without_its_store(values, Path(given), changes.keys())
    values, changed = with_numbers(values), flattened(changes)
    return plan_of(values, changed, said=said) if plans else start(values, changed, said=said, own=own)


def train(cfg: Any, choices: dict[str, Any], watch: Any = None, said: Sequence[str] = ()) -> int:
    """Trains a composed config. watch: a session.Watch, for a run from Python. said: notes that come first."""
    from rlrun.config.run import with_numbers
    from rlrun.config.types import plain

    values = with_numbers(plain(cfg))
    return start(values, given_by_user(values), watch, [*said, *notes(choices, values)])


def show_plan(cfg: Any, choices: dict[str, Any], said: Sequence[str] = ()) -> int:
    """Prints what a run of this composed config would consist of, and starts nothing. said: notes that come first."""
    from rlrun.config.run import with_numbers
    from rlrun.config.types import plain

    values = with_numbers(plain(cfg))
    return plan_of(values, given_by_user(values), [*said, *notes(choices, values)])


def given_by_user(values: dict[str, Any]) -> dict[str, Any]:
    """The options, by path, that the user has set in a plain config. Raises UserError for one that does not fit."""
    from rlrun.config.run import check_networks, type_config
    from rlrun.config.saved import set_by_user
    from rlrun.runtime.data_plan import fill_spec

    check_networks(values)
    try:
        return set_by_user(values)
    except Exception:
        type_config(fill_spec(values))  # a wrong type or an unknown name is the reason, and says more
        raise


def plan_of(values: dict[str, Any], given: dict[str, Any], said: Sequence[str] = ()) -> int:
    """Prints the same for a plain config. given: the options, by path, that the user set. said: notes for the top."""
    from rlrun.config.automatic import settled
    from rlrun.config.run import type_config
    from rlrun.runtime.cluster import machine_for
    from rlrun.runtime.data_plan import fill_spec
    from rlrun.runtime.plan_text import described
    from rlrun.runtime.preflight import preflight
    from rlrun.runtime.unused import refuse_unused

    values, lines = fill_spec(values), list(said)
    machine = machine_for(type_config(settled(values)[0]))
    planned = planned_here(values, machine, given, lines, capacity_is_auto(values))
    refuse_unused(planned, given)
    preflight(planned, machine)
    print(*(f"  {line}" for line in lines), described(planned), sep="\n")
    return 0


def start(
    values: dict[str, Any], given: dict[str, Any], watch: Any = None, said: Sequence[str] = (), own: bool = True
) -> int:
    """Starts a new run of this plain config. Returns the exit code.

    given: the options, by path, that the user set. watch: a session.Watch, for a run from Python. said: notes that are
    printed under the run's name. own: whether the config is the user's own, and therefore signed. Nothing is printed
    before all checks have passed, so that an error stands alone."""
    from rlrun.config.automatic import settled
    from rlrun.config.run import type_config
    from rlrun.core.outputs import tell
    from rlrun.core.passwords import check_logger
    from rlrun.loggers.console import say
    from rlrun.loggers.mlflow import make_root
    from rlrun.runtime.cluster import machine_for
    from rlrun.runtime.data_plan import fill_spec
    from rlrun.runtime.preflight import preflight
    from rlrun.runtime.rundir import RunDir
    from rlrun.runtime.unused import refuse_unused

    values = fill_spec(values)
    auto = capacity_is_auto(values)
    values, defaults = settled(values)
    lines = [*said, *([defaults] if defaults else [])]
    config = type_config(values)
    check_logger(values)
    use_absolute_paths(values)
    machine = machine_for(config)
    planned = planned_here(values, machine, given, lines, auto)
    refuse_unused(planned, given)
    callbacks = preflight(planned, machine)
    run = config.run
    if run.logger.get("mlflow", {}).get("enabled"):
        make_root(run.logger["mlflow"]["uri"], run.runs_root)
    directory = (
        RunDir.create(Path(run.run_dir))
        if run.run_dir
        else RunDir.new(run.runs_root, config.algo.name, config.env.name, run.seed)
    )
    values["run_dir"] = str(directory.path)
    tell(f"rlrun train: {config.algorithm_name} on {config.env.name}, seed {config.run.seed}")
    for line in lines:
        say(line)
    values["resources"] |= planned.settings()  # a resumed run keeps these, whatever the machine is doing by then
    from rlrun.config.saved import save_config
    from rlrun.runtime import session

    try:
        values = save_config(values, directory.path, own)
    except BaseException:
        directory.release()
        raise
    return session.run(planned, values, directory, restored=None, watch=watch, callbacks=callbacks)


def use_absolute_paths(values: dict[str, Any]) -> None:
    """Makes the paths absolute that a run reads data from or writes to outside its directory, so that it can be resumed
    from another directory."""
    from rlrun.datasets.options import absolute_data
    from rlrun.loggers.mlflow import absolute_address

    replay, mlflow = values.get("replay") or {}, (values.get("logger") or {}).get("mlflow") or {}
    for options, name in ((values, "runs_root"), (values, "record"), (replay, "directory")):
        if options.get(name):
            options[name] = str(Path(options[name]).resolve())
    if data := (values.get("data") or {}).get("path"):
        values["data"]["path"] = absolute_data(data)
    if mlflow:
        mlflow["uri"] = absolute_address(mlflow["uri"])


def capacity_is_auto(values: dict[str, Any]) -> bool:
    return (values.get("replay") or {}).get("capacity") == "auto"


def planned_here(values: dict[str, Any], machine: Any, given: dict[str, Any], said: list[str], auto: bool) -> Any:
    """Returns the plan of a new run's plain config on this machine.

    said: gets a line where the replay is smaller than its default. auto: whether replay.capacity is auto. It is smaller
    then than its default where that would take more than half of the free memory; `values` gets the number, which a
    resumed run keeps."""
    from rlrun.config.automatic import settled
    from rlrun.config.run import type_config
    from rlrun.runtime.data_plan import check_new
    from rlrun.runtime.plan import plan

    config = type_config(values)
    check_new(config.run.data)
    planned = plan(config, machine, given)
    if not auto or planned.replay is None:
        return planned
    own = min(machine.free_memory, machine.memory_share)
    rows = planned.replay.fitting(own, planned.resources.device)
    if rows is None:
        return planned
    which = "that are free" if own == machine.free_memory else "that are this job's part"
    said.append(
        f"replay.capacity={rows}: the default of {planned.replay.cfg.capacity:,} rows would take more than half of the"
        f" {own / 1e9:.1f} GB of memory {which}"
    )
    values |= settled(values)[0]
    values["replay"]["capacity"] = rows
    return plan(type_config(values), machine, given)


def given_twice(words: Sequence[str]) -> list[str]:
    """Returns a note for every option that several words set, of which the last one counts."""
    from rlrun.core.passwords import masked_values

    given: dict[str, list[str]] = {}
    for word in words:
        if "=" in word and not word.startswith("-"):
            given.setdefault(word.partition("=")[0].lstrip("+"), []).append(word)
    unlike = [list(dict.fromkeys(one)) for one in given.values()]
    # Dictionaries of the user's own keys are merged.
    several = [masked_values(one) for one in unlike if len(one) > 1 and not any("={" in word for word in one)]
    return [
        f"note: {one[-1]} counts, and {' and '.join(one[:-1])} {'does' if len(one) == 2 else 'do'} not"
        for one in several
    ]


def notes(choices: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Returns what is said about the choices of a composed config. Raises UserError as check_tuned() does."""
    found = [*check_tuned(choices, values), *tuned_for_game(choices, values), *sticky_by_name(choices, values)]
    return [*found, *small_batch(choices, values)]


def check_tuned(choices: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Returns a note if the tuned file is for another env. Raises UserError if it is for another algorithm."""
    tuned = choices.get("tuned")
    if not tuned:
        return []
    folder = tuned.split("/")[0]
    algo = values["algo"]
    if folder not in (algo["name"], (algo.get("inner") or {}).get("name")):  # ppo/ holds PPO inside self_play too
        raise UserError(f"tuned={tuned} is for algo={folder}, not algo={algo['name']}: leave one of them out")
    env = choices.get("env")
    return [f"note: tuned={tuned} was made for env={one}, not env={env}" for one in _made_for(tuned) if one != env]


def tuned_for_game(choices: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Returns a note if a run without a tuned file trains on an Atari game for which the algorithm has a measured one,
    because hours pass before one sees whether a game is learnt."""
    from rlrun.config.paths import files, root

    if choices.get("tuned") or values["env"].get("family") != "atari":
        return []
    algo, game = values["algo"]["name"], values["env"]["name"]
    found = [f"{algo}/{name}" for name in files(root() / "tuned" / algo)]
    measured = [f"tuned={one}" for one in found if game in _made_for(one) and "measured" in _tuned(one)]
    if not measured:
        return []
    have = "has" if len(measured) == 1 else "have"
    return [f"note: {' and '.join(measured)} {have} options that were measured on {game}"]


def sticky_by_name(choices: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Returns a note if the id of an Atari game, such as ALE/Pong-v5, has brought sticky actions along."""
    from rlrun.envs.names import sticky_actions

    env, chosen = values["env"], str(choices.get("env"))
    if env.get("family") != "atari" or not env["sticky_actions"] == sticky_actions(chosen) > 0:
        return []
    return [f"note: env.sticky_actions={env['sticky_actions']:g}, as in {chosen}; env={env['name']} has none"]


def small_batch(choices: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Returns a note if an update of PPO would learn from so few rows that its user may mean a minibatch, which is what
    Stable-Baselines3 calls batch_size. Who gives both sizes knows the difference."""
    algo = values["algo"]
    rows, alone = algo.get("batch_size"), algo.get("minibatch_size") == "auto"
    if choices.get("tuned") or algo["name"] != "ppo" or not alone or not isinstance(rows, int) or rows >= FEW_ROWS:
        return []
    return [
        f"note: algo.batch_size={rows} is the rows of a whole update, which Stable-Baselines3 calls n_steps x n_envs;"
        " its batch_size is algo.minibatch_size here"
    ]


def _tuned(tuned: str) -> dict[str, Any]:
    """The contents of a tuned file. One that is not there is the user's own and comes from --config-dir."""
    import yaml

    from rlrun.config.paths import root

    file = root() / "tuned" / f"{tuned}.yaml"
    return yaml.safe_load(file.read_text()) if file.is_file() else {}


def _made_for(tuned: str) -> list[str]:
    """The environment of a tuned file, if it names one."""
    defaults = _tuned(tuned).get("defaults", [])
    return [line["override /env"] for line in defaults if isinstance(line, dict) and "override /env" in line]
