"""rlrun from Python: train, resume, evaluate and sweep, with the options and the sentences of the command line.

Each function does what the command of its name does, in this process; sweep() starts processes for its runs, as the
command does. docs/python.md describes them with examples."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import multiprocessing
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.core.errors import RunFailed, UserError

if TYPE_CHECKING:
    from rlrun.runtime.session import Watch
    from rlrun.runtime.trained import Trained

Row = dict[str, Any]
OWN_PACKAGES = ("gymnasium", "rlrun", "ale_py", "shimmy")  # their ids are known in every process


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
    prints.

    Raises UserError before anything starts if an option is wrong, and RunFailed if the run fails. Ctrl-C saves a
    checkpoint, ends all processes of the run and raises KeyboardInterrupt."""
    refuse_unguarded("train")
    given = {name: value for name, value in (("algo", algo), ("env", env), ("tuned", tuned)) if value is not None}
    if isinstance(env, type):
        given["env"] = _named(env)
    elif hasattr(env, "step") and hasattr(env, "reset"):
        raise UserError(_MADE_ALREADY.format(getattr(getattr(env, "spec", None), "id", "my_module:MyEnv")))
    from rlrun.config.words import words_of
    from rlrun.core.passwords import masked

    words = [*words_of(given | options), *_words(overrides)]

    def start(watch: Watch) -> int:
        from rlrun.cli import compose
        from rlrun.commands.train import train as command

        return compose(words, lambda cfg, choices: command(cfg, choices, watch))

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
    from rlrun.config.types import load_yaml, parse_assignments
    from rlrun.config.words import flat, unwrapped

    changes = {key: unwrapped(value) for key, value in flat(options)} | parse_assignments(_words(overrides))
    env = load_yaml(path / "config.yaml").get("env")

    def start(watch: Watch) -> int:
        from rlrun.commands.resume import resume as command

        return command(path, changes, trust, watch=watch)

    said = shlex.join(["rlrun", "resume", str(path), *(f"{key}={value}" for key, value in changes.items())])
    return _session(start, said, callback, quiet, env.get("name") if isinstance(env, dict) else None)


def evaluate(
    run: str | os.PathLike | Trained | Sequence[str | os.PathLike],
    episodes: int = 10,
    *,
    checkpoint: str | int = "last",
    greedy: bool = True,
    seed: int = 0,
    opponent: str | None = None,
    env: str | None = None,
    quiet: bool = True,
    trust: bool = False,
) -> Row:
    """Plays full games and returns their numbers, as `rlrun evaluate --json` prints them.

    run: a run directory, or what load() or train() returned, whose policy plays then as it is. Several run directories
    or players, in a list, play each other. The other arguments are those of the command. quiet=False prints what the
    command prints.

    The result has return_mean, return_mean_95 (the mean's 95% interval), return_std, return_min, return_max, returns,
    episode_length_mean, episodes, env, run_dir and checkpoint_env_steps; with an opponent also won, drawn, lost and
    points; of several players, players and points. Raises UserError if an argument is wrong, and EnvError if the
    environment fails."""
    from rlrun.commands import evaluate as command
    from rlrun.config.types import typed
    from rlrun.config.words import unwrapped
    from rlrun.runtime.trained import Trained, load

    given = {"episodes": episodes, "checkpoint": checkpoint, "greedy": greedy, "seed": seed}
    options = typed(command.EvaluateOptions, unwrapped({**given, "opponent": opponent, "env": env}))
    with _one_thread():
        if isinstance(run, list | tuple):
            names = [os.fspath(one) for one in run]
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
    **options: Any,
) -> list[Row]:
    """Trains every combination of the options' values, each run in a process of its own, as `rlrun sweep` does.

    options: as for train(), but a list holds values to vary: sweep(algo=["ppo", "a2c"], env="CartPole-v1",
    seed=[1, 2, 3]). A value that is itself a list is written as a tuple: model={"hidden": [(32, 32), (64, 64)]}.
    overrides: words of the command, such as ["algo.lr=tag(log,interval(1e-5,1e-3))"]. dir, jobs, timeout, search,
    trials, every, prune: the flags of the command.

    Returns a dictionary for each run: name, words, run_dir, status (COMPLETED, STOPPED, FAILED, INTERRUPTED or PRUNED),
    reason, env_steps, return_mean and wall_sec. A run that fails does not stop the others. Raises UserError if an
    option is wrong; Ctrl-C lets all runs save, and raises KeyboardInterrupt."""
    from rlrun.commands import sweep as command
    from rlrun.config.words import flat, unwrapped, word

    given = {name: value for name, value in (("algo", algo), ("env", env)) if value is not None} | options
    words = []
    for key, value in flat(given):
        several = value if isinstance(value, list) and key != "logger" and key != "callbacks" else [value]
        if not several:
            raise UserError(f"{key}=[] is a list without values to vary; an empty list as a value is written ()")
        words.append(f"{key}={','.join(word(key, _named(one) if isinstance(one, type) else one) for one in several)}")
    words += _words(overrides)
    for one in words:
        for name in one.removeprefix("env=").split(",") if one.startswith("env=") else ():
            if _registered_here(name) is not None:
                raise UserError(
                    f"env={name} is registered in this program, and the runs of a sweep are programs of their own: name"
                    f" the module that registers it, env=my_module:{name}"
                )
    flags: dict[str, Any] = dict.fromkeys(command.FLAGS)
    flags |= {"--jobs": jobs, "--timeout": timeout, "--search": search, "--trials": trials, "--every": every}
    flags |= {"--prune": prune, "--dir": None if dir is None else os.fspath(dir)}
    flags = {name: _of_kind(name, unwrapped(value), command.FLAGS[name]) for name, value in flags.items()}
    command.check_flags(flags)
    with _rlrun_is_found(), _said(quiet):
        code = command.begin(words, flags)
    folder = Path(flags["--dir"])
    if code > 128:
        raise KeyboardInterrupt(f"the sweep has saved its runs: rlrun sweep --resume {folder} goes on")
    made: list[Row] = json.loads((folder / "outcomes.json").read_text())
    return [{**one, "run_dir": folder / one["run_dir"]} for one in made]


# -- what they share ---------------------------------------------------------------------------------------------------


def _session(
    start: Callable[[Watch], int], said: str, callback: Callable[[Row], Any] | None, quiet: bool, env: str | None
) -> Trained:
    """Runs a session in this process and returns its policy.

    said: the command that does the same. env: the environment's name, which other processes may have to be told of."""
    if callback is not None and not callable(callback):
        raise UserError(f"callback is a function that takes a row, not {callback!r}")
    from rlrun.dataflow.workers import carrying
    from rlrun.runtime.rundir import checkpoints_of
    from rlrun.runtime.session import Watch
    from rlrun.runtime.trained import load

    watch = Watch(callback=None if callback is None else _aloud(callback), console=not quiet, command=said)
    with _one_thread(), _said(quiet), carrying(_to_carry(env)):
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
    return load(path)


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


class _Here(threading.local):
    """What each thread has for itself."""

    quiet: bool | None = None  # whether what it prints is dropped; None: it is in no quiet run, nor in its callback


_HERE = _Here()
_STDOUT = threading.Lock()  # of who puts something in the place of sys.stdout


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


class _Stdout:
    """Stands in the place of sys.stdout, which belongs to the whole program, while runs are quiet. What these runs
    print is dropped, and what other threads of the program print is not."""

    def __init__(self, real: Any):
        self.real, self.nowhere, self.runs = real, _Nowhere(), 0

    def __getattr__(self, name: str) -> Any:
        quiet = self.runs > 0 and _started_by_rlrun() if _HERE.quiet is None else _HERE.quiet
        return getattr(self.nowhere if quiet else self.real, name)


def _started_by_rlrun() -> bool:
    """Whether this is a thread that a run has started, such as the one that lets samplers act."""
    frame, outermost = sys._getframe(2), ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        outermost = outermost if name == "threading" else name
        frame = frame.f_back  # type: ignore[assignment]
    return outermost.startswith("rlrun.")


@contextlib.contextmanager
def _said(quiet: bool) -> Iterator[None]:
    """Drops what this thread and a run's own print inside the block, if quiet."""
    if not quiet:
        yield
        return
    with _STDOUT:
        if not isinstance(sys.stdout, _Stdout):
            sys.stdout = _Stdout(sys.stdout)
        stdout = sys.stdout
        stdout.runs += 1
    try:
        with _here(quiet=True):
            yield
    finally:
        with _STDOUT:
            stdout.runs -= 1
            if stdout.runs == 0 and sys.stdout is stdout:
                sys.stdout = stdout.real


@contextlib.contextmanager
def _here(quiet: bool) -> Iterator[None]:
    before, _HERE.quiet = _HERE.quiet, quiet
    try:
        yield
    finally:
        _HERE.quiet = before


def _aloud(callback: Callable[[Row], Any]) -> Callable[[Row], Any]:
    """The callback, which may print although the run is quiet."""

    def called(row: Row) -> Any:
        with _here(quiet=False):
            return callback(row)

    return called


@contextlib.contextmanager
def _rlrun_is_found() -> Iterator[None]:
    """Lets processes that start meanwhile import rlrun from where this one has it."""
    package, before = str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")
    known = [path for path in (before or "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*known, package]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _run_dir(given: Any) -> Path:
    try:
        path = Path(given)
    except TypeError:
        raise UserError(f"a run is given by its directory, not by {given!r}") from None
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not a run directory: it has no config.yaml")
    return path


def _of_kind(flag: str, value: Any, kind: type) -> Any:
    """The value of a flag of the command. Raises UserError if it is of another kind."""
    if value is None or (kind is bool and isinstance(value, bool)):
        return value
    fits = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, fits):
        names = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
        raise UserError(f"{flag.lstrip('-')} must be {names[kind]}, not {value!r}")
    return value


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


def _named(kind: type) -> str:
    """The name of an environment's class. Raises UserError if no other process can import it."""
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise UserError(
            f"env={kind.__qualname__} is a class that other processes cannot import: write it to a file, such as"
            f' my_envs.py, and name it env="my_envs:{kind.__name__}"'
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def _registered_here(name: str) -> Any:
    """Gymnasium's spec of an id that this program has registered itself; None for all other names."""
    gymnasium = sys.modules.get("gymnasium")
    spec = gymnasium.registry.get(name) if gymnasium is not None else None
    if spec is None:
        return None
    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return None if str(module).split(".")[0] in OWN_PACKAGES else spec


def _to_carry(env: str | None) -> list[Callable[[], None]]:
    """What new processes call to know the environment, if this program has registered it. Raises UserError if they
    cannot know it."""
    spec = None if env is None else _registered_here(env)
    if spec is None:
        return []
    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)
    if module == "__main__" and getattr(sys.modules["__main__"], "__file__", None) is None:
        raise UserError(
            f"env={env} is made by {getattr(entry, '__qualname__', entry)}, which is defined in this notebook, where"
            ' other processes cannot find it: write it to a file, such as my_envs.py, and use env="my_envs:MyEnv"'
        )
    if not isinstance(entry, str) and "<" in getattr(entry, "__qualname__", "<"):
        raise UserError(
            f"env={env} is made by {entry!r}, which other processes cannot import: register a class or a function that"
            " stands at the top of a module"
        )
    return [functools.partial(register_again, spec)]


def register_again(spec: Any) -> None:
    """Registers an environment of the first process in this one, unless its script has done so here."""
    import gymnasium

    gymnasium.registry.setdefault(spec.id, spec)


def refuse_unguarded(name: str) -> None:
    """Raises UserError if a script calls rlrun.<name>() where its processes, which import the script again, would call
    it too."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    importing = getattr(multiprocessing.current_process(), "_inheriting", False)
    unguarded = importing or (main is not None and file is not None and _reaches(vars(main), str(file)))
    if unguarded:
        text = (
            f"a run starts processes, which import {Path(str(file or 'your script')).name} again: put the call of"
            f' rlrun.{name}() under `if __name__ == "__main__":`'
        )
        if importing:
            raise SystemExit(f"rlrun: {text}")
        raise UserError(text)


def _reaches(main: dict[str, Any], file: str) -> bool:
    """Whether the present call comes from a statement that runs when the main script is imported."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is main and frame.f_code.co_name == "<module>":
            return not _guarded(file, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _guarded(file: str, line: int) -> bool:
    """Whether a line of a script stands under an `if` that looks at __name__."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return True  # it is no script that could be imported again
    return any(
        node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and "__name__" in {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
    )
