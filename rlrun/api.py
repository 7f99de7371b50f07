"""rlrun from Python: train, resume, evaluate and sweep, with the options and the sentences of the command line.

Each function does what the command of its name does, in this process; sweep() starts processes for its runs, as the
command does. docs/python.md describes them with examples."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.core.errors import RunFailed, UserError
from rlrun.runtime.carried import named, refuse_unguarded, registered_here, rlrun_is_found, to_carry
from rlrun.runtime.quiet import aloud, printing

if TYPE_CHECKING:
    from rlrun.runtime.session import Watch
    from rlrun.runtime.trained import Trained

Row = dict[str, Any]

_MADE_ALREADY = (
    "env is an environment that has been made already, and a run makes as many as it needs: give its id or its class,"
    ' with arguments as in env={{"name": "{}", "kwargs": {{...}}}}'
)


def train(
    algo: str | Mapping[str, Any] | None = None,
    env: str | type | Mapping[str, Any] | None = None,
    *,
    tuned: str | None = None,
    overrides: Sequence[str] = (),
    callback: Callable[[Row], Any] | None = None,
    quiet: bool = False,
    config_dir: str | os.PathLike | None = None,
    trust: bool = False,
    **options: Any,
) -> Trained:
    """Trains a policy and returns it, as `rlrun train` does.

    algo, env: as the command takes them, such as "ppo" and "CartPole-v1"; env may also be "my_module:MyEnv", a class
    that other processes can import, or an id that this program has registered with Gymnasium. tuned: a tuned file, such
    as "ppo/cartpole", in place of both. options: any option by its name; those of groups are dictionaries, such as
    model={"hidden": [32, 32]}, in which "name" chooses the group's file: algo={"name": "ppo", "lr": 1e-3}. overrides:
    words of the command line, such as ["algo.lr=1e-3", "model=lstm"], which overrule options.

    callback: called in this process with every row that is logged, as a dictionary. If it returns False, the run saves
    a checkpoint and ends; what it raises ends the run and is raised here. quiet: prints nothing but what the callback
    prints. config_dir: a folder of your own option files, as --config-dir names one. trust: whether they may name
    modules that no installed package contains.

    Raises UserError before anything starts if an option is wrong, and RunFailed if the run fails. Ctrl-C saves a
    checkpoint, ends all processes of the run and raises KeyboardInterrupt."""
    refuse_unguarded("train")
    given = {name: value for name, value in (("algo", algo), ("env", env), ("tuned", tuned)) if value is not None}
    if isinstance(env, type):
        given["env"] = named(env)
    elif hasattr(env, "step") and hasattr(env, "reset"):
        raise UserError(_MADE_ALREADY.format(getattr(getattr(env, "spec", None), "id", "my_module:MyEnv")))
    from rlrun.config.words import words_of
    from rlrun.core.passwords import masked

    words = [*_folder(config_dir, trust), *words_of(given | options), *_words(overrides)]

    def start(watch: Watch) -> int:
        from rlrun.cli import compose
        from rlrun.commands.train import train as command

        try:
            return compose(words, lambda cfg, choices: command(cfg, choices, watch))
        except UserError as error:
            how = _in_python(str(error), algo, options)
            if not how:
                raise
            raise UserError(f"{error}{how}") from None

    said = masked(shlex.join(["rlrun", "train", *words]))
    return _session(start, said, callback, quiet, _asked(words))


def resume(
    run_dir: str | os.PathLike,
    *,
    overrides: Sequence[str] = (),
    callback: Callable[[Row], Any] | None = None,
    quiet: bool = False,
    trust: bool = False,
    **options: Any,
) -> Trained:
    """Goes on with a run from its last checkpoint and returns its policy, as `rlrun resume` does.

    options and overrides: those that may change, such as env_steps=2e6, and checkpoint=. trust: whether a run from
    elsewhere may name modules that no installed package contains. callback, quiet and what is raised: as for train().
    UserError too if the run has nothing left to do."""
    refuse_unguarded("resume")
    path = _run_dir(run_dir)
    from rlrun.config.saved import read_config
    from rlrun.config.signature import guarded
    from rlrun.config.types import parse_assignments
    from rlrun.config.words import flat, unwrapped
    from rlrun.core.plugins import allow

    changes = {key: unwrapped(value) for key, value in flat(options)} | parse_assignments(_words(overrides))
    found = read_config(path, trust)
    env = found.values.get("env")
    name = env.get("name") if isinstance(env, dict) else None

    def start(watch: Watch) -> int:
        from rlrun.commands.resume import resume as command

        return command(path, changes, trust, watch=watch, found=found)

    said = shlex.join(["rlrun", "resume", str(path), *(f"{key}={value}" for key, value in changes.items())])
    with guarded(found.own):
        allow(changes)
        return _session(start, said, callback, quiet, name, changes.keys())


def evaluate(
    run: str | os.PathLike | Trained | Sequence[str | os.PathLike],
    episodes: int = 10,
    *,
    checkpoint: str | int = "last",
    greedy: bool = True,
    seed: int = 0,
    opponent: str | None = None,
    env: str | None = None,
    max_episode_steps: int | None = None,
    quiet: bool = True,
    trust: bool = False,
) -> Row:
    """Plays full games and returns their numbers, as `rlrun evaluate --json` prints them.

    run: a run directory, or what load() or train() returned, whose policy plays then as it is. Several run directories
    or players, in a list, play each other. The other arguments are those of the command. quiet=False prints what the
    command prints.

    The result has return_mean, return_mean_95 (the mean's 95% interval), return_std, return_min, return_max, returns,
    episode_length_mean, episodes, env, run_dir and checkpoint_env_steps; with an opponent also won, drawn, lost and
    points; of several players, players and points; with max_episode_steps also cut_games, the number of games whose
    returns are not those of full games. Raises UserError if an argument is wrong, and EnvError if the
    environment fails."""
    from rlrun.commands import evaluate as command
    from rlrun.config.signature import guarded
    from rlrun.config.types import typed
    from rlrun.config.words import at_home, unwrapped
    from rlrun.core.plugins import allow
    from rlrun.runtime.trained import Trained, load

    given: dict[str, Any] = {"episodes": episodes, "checkpoint": checkpoint, "greedy": greedy, "seed": seed}
    opponent = unwrapped(opponent)
    opponent = at_home(opponent) if isinstance(opponent, str) else opponent
    given |= {"opponent": opponent, "env": env, "max_episode_steps": max_episode_steps}
    options = typed(command.EvaluateOptions, unwrapped(given))
    with _one_thread():
        if isinstance(run, list | tuple):
            names = [at_home(os.fspath(one)) for one in run]
            if len(names) < 2:
                raise UserError("a list needs at least two players; one run is given by itself")
            for name in names:
                command.check_player(name)
            if opponent is not None:
                raise UserError("opponent is for one run; several players play each other")
            result = command.tournament(names, options, trust, said=not quiet)
            show = command.show_tournament
        else:
            if isinstance(run, Trained):
                if checkpoint != "last":
                    raise UserError("a policy that is loaded plays as it is: checkpoint= is for a run directory")
                trained = run
            else:
                trained = load(_run_dir(run), str(options.checkpoint), trust)
            trained.reset()
            with guarded(trust or trained.own):
                allow([opponent, env])
                result = command.played(trained, options, trust)
            show = command.show_tasks if "tasks" in result else command.show
        if not quiet:
            show(result)
    return result


def sweep(
    algo: Any = None,
    env: Any = None,
    *,
    overrides: Sequence[str] = (),
    dir: str | os.PathLike | None = None,
    jobs: int | None = None,
    timeout: float | None = None,
    search: str | None = None,
    trials: int | None = None,
    every: float | None = None,
    prune: bool = False,
    quiet: bool = False,
    config_dir: str | os.PathLike | None = None,
    trust: bool = False,
    **options: Any,
) -> list[Row]:
    """Trains every combination of the options' values, each run in a process of its own, as `rlrun sweep` does.

    options: as for train(), but a list holds values to vary: sweep(algo=["ppo", "a2c"], env="CartPole-v1",
    seed=[1, 2, 3]). A value that is itself a list is written as a tuple: model={"hidden": [(32, 32), (64, 64)]}.
    overrides: words of the command, such as ["algo.lr=tag(log,interval(1e-5,1e-3))"]. dir, jobs, timeout, search,
    trials, every, prune: the flags of the command. config_dir and trust: as for train().

    Returns a dictionary for each run: name, words, run_dir, status (COMPLETED, STOPPED, FAILED, INTERRUPTED or PRUNED),
    reason, env_steps, return_mean and wall_sec. A run that fails does not stop the others. Raises UserError if an
    option is wrong; Ctrl-C lets all runs save, and raises KeyboardInterrupt."""
    from rlrun.commands import sweep as command
    from rlrun.config.words import at_home, flat, unwrapped, word

    given = {name: value for name, value in (("algo", algo), ("env", env)) if value is not None} | options
    words = []
    for key, value in flat(given):
        several = value if isinstance(value, list) and key != "logger" and key != "callbacks" else [value]
        if not several:
            raise UserError(f"{key}=[] is a list without values to vary; an empty list as a value is written ()")
        words.append(f"{key}={','.join(word(key, named(one) if isinstance(one, type) else one) for one in several)}")
    words += _words(overrides)
    for one in words:
        for name in one.removeprefix("env=").split(",") if one.startswith("env=") else ():
            if registered_here(name) is not None:
                raise UserError(
                    f"env={name} is registered in this program, and the runs of a sweep are programs of their own: name"
                    f" the module that registers it, env=my_module:{name}"
                )
    flags: dict[str, Any] = dict.fromkeys(command.FLAGS)
    flags |= {"--jobs": jobs, "--timeout": timeout, "--search": search, "--trials": trials, "--every": every}
    _folder(config_dir, trust)
    flags |= {"--config-dir": None if config_dir is None else at_home(os.fspath(config_dir)), "--trust": trust}
    flags |= {"--prune": prune, "--dir": None if dir is None else at_home(os.fspath(dir))}
    flags = {name: _of_kind(name, unwrapped(value), command.FLAGS[name]) for name, value in flags.items()}
    command.check_flags(flags)
    with rlrun_is_found(), printing(quiet):
        code = command.begin(words, flags)
    folder = Path(flags["--dir"])
    if code > 128:
        resume = f"rlrun sweep --resume {shlex.quote(str(folder))}"
        raise KeyboardInterrupt(f"the sweep has saved its runs: {resume} goes on")
    made: list[Row] = json.loads((folder / "outcomes.json").read_text())
    return [{**one, "run_dir": folder / one["run_dir"]} for one in made]


# -- what they share ---------------------------------------------------------------------------------------------------


def _session(
    start: Callable[[Watch], int],
    said: str,
    callback: Callable[[Row], Any] | None,
    quiet: bool,
    env: str | None,
    changed: Collection[str] = (),
) -> Trained:
    """Runs a session in this process and returns its policy.

    said: the command that does the same. env: the environment's name, which other processes may have to be told of.
    changed: options, by path, that a resumed run was given here."""
    if callback is not None and not callable(callback):
        raise UserError(f"callback is a function that takes a row, not {callback!r}")
    from rlrun.dataflow.workers import carrying
    from rlrun.runtime.rundir import checkpoints_of
    from rlrun.runtime.session import Watch
    from rlrun.runtime.trained import loaded

    watch = Watch(callback=None if callback is None else aloud(callback), console=not quiet, command=said)
    with _one_thread(), printing(quiet), carrying(to_carry(env)):
        code = start(watch)
    path, error = watch.run_dir, watch.error
    assert path is not None
    if watch.stop == signal.SIGTERM:
        raise SystemExit(128 + signal.SIGTERM)
    if watch.stop is not None or isinstance(error, KeyboardInterrupt):
        saved = checkpoints_of(path).names()
        how = f"rlrun.resume({str(path)!r}) goes on" if saved else "it ended before its first save"
        raise KeyboardInterrupt(f"the run was interrupted: {how}")
    if error is not None:
        raise error
    if code != 0:
        raise RunFailed(json.loads((path / "summary.json").read_text())["reason"])
    return loaded(path, said=changed)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Lets rlrun choose PyTorch's threads, and gives the program its own back."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_python(error: str, algo: Any, options: Mapping[str, Any]) -> str:
    """Returns how an option of the algorithm is given here, if an error says that an argument is one; '' for others."""
    found = re.match(r"There is no option (\w+)\. .* is algo\.(\w+) here", error)
    if found is None or found[1] not in options or not isinstance(algo, str):
        return ""
    value = options[found[1]]
    return f' In Python: algo={{"name": "{algo}", "{found[2]}": {value!r}}} or overrides=["algo.{found[2]}={value}"].'


def _run_dir(given: Any) -> Path:
    from rlrun.config.words import at_home

    try:
        path = Path(at_home(os.fspath(given)))
    except TypeError:
        raise UserError(f"a run is given by its directory, not by {given!r}") from None
    if not (path / "config.yaml").is_file():
        from rlrun.core.saved_files import no_run

        raise UserError(no_run(path))
    return path


def _of_kind(flag: str, value: Any, kind: type) -> Any:
    """The value of a flag of the command. Raises UserError if it is of another kind, or an empty text."""
    if value is None or (kind is bool and isinstance(value, bool)):
        return value
    fits = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, fits):
        names = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
        raise UserError(f"{flag.lstrip('-')} must be {names[kind]}, not {value!r}")
    if value == "":
        raise UserError(f"{flag.lstrip('-')} must not be an empty text")
    return value


def _folder(config_dir: Any, trust: bool) -> list[str]:
    """The flags of a folder of the user's own options. Raises UserError if it is no path, or to trust none."""
    if config_dir is None and trust:
        raise UserError("trust=True is for the files of config_dir=, and there are none")
    if config_dir is not None and not isinstance(config_dir, str | os.PathLike):
        raise UserError(f"config_dir is a folder, not {config_dir!r}")
    return [] if config_dir is None else [f"--config-dir={os.fspath(config_dir)}", *(["--trust"] if trust else [])]


def _words(overrides: Sequence[str]) -> list[str]:
    if isinstance(overrides, str) or not all(isinstance(one, str) for one in overrides):
        raise UserError(f'overrides is a list of words, such as ["algo.lr=1e-3"], not {overrides!r}')
    for one in overrides:
        if "=" not in one:
            raise UserError(f"{one!r} in overrides is not of the form key=value")
    return list(overrides)


def _asked(words: Sequence[str]) -> str | None:
    """The environment that words name last; None if they name none."""
    named = [word.partition("=")[2] for word in words if word.startswith("env=")]
    return named[-1].strip("'\"") if named else None
