"""The `rlrun` command finds the subcommand and hands it the other words. No other module reads sys.argv."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import re
import site
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.commands import ALSO_CALLED, COMMANDS
from rlrun.core.errors import TRACEBACK, Notice, UserError, closest, explained, show_notices, show_tracebacks
from rlrun.core.numbers import number
from rlrun.core.outputs import go_on_unread, open_outputs
from rlrun.core.passwords import masked, masked_values
from rlrun.core.plugins import TRUST, allow, only_installed
from rlrun.core.saved_files import no_run

# Hydra's own flags that make sense here. --multirun is not one of them, because `rlrun sweep` replaces it.
FLAGS = (
    "--help",
    "--hydra-help",
    "--cfg",
    "--resolve",
    "--info",
    "--version",
)
BESIDE_CFG = ("--resolve",)
SHORT_FLAGS = ("-h", "-c", "-i")


def usage() -> str:
    lines = ["rlrun: train reinforcement learning agents from one command; each algorithm is one readable file", ""]
    lines += [f"  rlrun {name:<12} {text}" for name, text in COMMANDS.items()]
    lines += [
        "",
        "rlrun train --help algo=NAME shows every option of an algorithm.",
        "rlrun ... --traceback shows where an error came from, with every command.",
        'Completion: eval "$(rlrun -sc install=bash)", the same with zsh, or rlrun -sc install=fish | source',
    ]
    return "\n".join(lines)


def main() -> None:
    """Runs the command. Exit codes: 0 done, 1 the run failed, 2 bad input, 130 or 143 interrupted."""
    open_outputs()
    with contextlib.suppress(ValueError, OSError):  # stderr may be closed
        faulthandler.enable()  # an environment that crashes in this process is named at least
    go_on_unread()
    show_notices()
    with_line = warnings.formatwarning
    warnings.formatwarning = lambda said, kind, *place: (
        f"warning: {said}\n" if issubclass(kind, Notice) else with_line(said, kind, *place)
    )
    words = [word for word in sys.argv[1:] if word != TRACEBACK]
    if len(words) < len(sys.argv[1:]):
        show_tracebacks()
    try:
        leave_the_current_folder()
        sys.exit(_dispatch(words))
    except KeyboardInterrupt:
        print("rlrun: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        print(f"rlrun: {printable(explained(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["-sc"]:
        from rlrun.config.completion import complete

        return complete(words)
    if words[:1] == ["help"] and len(words) == 2:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if words[0] == "--version":
        from rlrun.version import VERSION

        print(VERSION)
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise UserError(f"There is no command {name!r}.{_meant(name)} rlrun --help lists them.")
    module = importlib.import_module(f"rlrun.commands.{name.replace('-', '_')}")
    trusted, _ = take_trust(rest)
    with only_installed(not trusted):
        allow(rest)
        return module.main(rest)


def _meant(name: str) -> str:
    """Returns ' Did you mean watch?' for a name that is no command, or an empty string."""
    from rlrun.config.paths import options

    if name == "tensorboard":
        return " TensorBoard is a program of its own: tensorboard --logdir runs."
    if name.lower() in options("algo"):
        return f" Did you mean rlrun train algo={name.lower()} env=NAME?"
    ours = next((command for command, names in ALSO_CALLED.items() if name.lower() in names), None)
    return f" Did you mean {ours}?" if ours else closest(name, COMMANDS)


def leave_the_current_folder() -> None:
    """Takes the current folder from the path of this process and of those that it starts.

    Otherwise any file there could be imported in place of a module that Python looks for. core/plugins.py imports the
    user's own modules from there once they are named. Raises UserError if the folder has been deleted."""
    package = Path(__file__).resolve().parent.parent
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder does not exist any more: go to another one with cd") from None
    if here != package:
        sys.path[:] = [path for path in sys.path if path and Path(path).resolve() != here]
    os.environ["PYTHONSAFEPATH"] = "1"
    if package not in (Path(path).resolve() for path in (*site.getsitepackages(), site.getusersitepackages())):
        known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*known, str(package)]))


def printable(error: BaseException | str) -> str:
    """Returns an error's text without passwords and without characters that would control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in masked(str(error)))


def check_words(words: list[str]) -> None:
    """Raises UserError for a word that is no option of a run, or has no value."""
    from rlrun.config.foreign import names_hydra
    from rlrun.config.words import refuse_empty

    for index, word in enumerate(words):
        if word in ("-m", "--multirun"):
            raise UserError(
                f"{word}: use `rlrun sweep` for several runs; it shares this machine among them and can be resumed"
            )
        if not word.startswith("-"):
            refuse_empty(word)
        if word.startswith("--") and word.split("=")[0] not in FLAGS:
            example = _without_dashes(words, index) or "such as algo.lr=3e-4"
            raise UserError(f"{word} is not a flag: options are key=value, {example}; rlrun train --help lists them")
        if word.startswith("-") and not word.startswith("--") and word not in SHORT_FLAGS:
            files = "" if word != "-f" else "; tuned=NAME is a tuned file, and rlrun import-rllib FILE converts RLlib's"
            raise UserError(f"{word} is not a flag here{files}; rlrun train --help lists the options")
        if names_hydra(word.split("=")[0].lstrip("+~")):
            raise UserError(f"{word}: rlrun sets Hydra's own options itself; --config-dir DIR adds a folder of options")


def _without_dashes(words: list[str], index: int) -> str:
    """Returns 'so write algo=ppo' where words[index] is --algo, and the next word ppo, or where it is --algo=ppo."""
    from rlrun.config.hydra_errors import GROUPS
    from rlrun.config.option_names import known_keys

    key, equals, value = words[index].lstrip("-").partition("=")
    following = words[index + 1] if index + 1 < len(words) else ""
    if not equals and following and "=" not in following and not following.startswith("-"):
        value = following
    known = key in (*GROUPS, "env", *known_keys())
    return f"so write {key}={value}" if known and value else ""


def compose(words: list[str], job, config_name: str = "train") -> int:
    """Composes a config from these words with Hydra and calls job(cfg, choices) with it; returns what job returns.

    cfg is a DictConfig and choices maps each group to the file that was chosen. `--config-dir DIR` adds a folder of the
    user's own options, which are checked (rlrun/config/foreign.py); `--trust` lets them name modules that no installed
    package contains. UserError: Hydra's errors as sentences.
    """
    if "--version" in words:
        return _dispatch(["--version"])
    folder, trusted, words = own_folder(words)
    with contextlib.nullcontext() if folder is None or trusted else only_installed():  # also in a Python program
        allow(words)
        return _compose(words, job, config_name, folder, trusted)


def _compose(words: list[str], job: Any, config_name: str, folder: Path | None, trusted: bool) -> int:
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    from rlrun.config.hydra_errors import THEIRS, check_groups, set_in, translate
    from rlrun.config.hydra_plugins import composing
    from rlrun.config.option_names import asked_family
    from rlrun.config.paths import root
    from rlrun.config.types import ConfigError
    from rlrun.config.words import word_at_home

    check_words(words)
    words = checked_cfg(words)
    check_groups(words, folder)
    if "--help" in words or "-h" in words:  # Hydra composes a config before it prints help, and needs both choices
        words = [
            *words,
            *(
                f"{key}={value}"
                for key, value in (("algo", "impala"), ("env", "CartPole-v1"))
                if not any(w.startswith(f"{key}=") for w in words)
            ),
        ]
    words = with_data(words)
    words = [part for word in words for part in replacing(word_at_home(word))]
    # These keys are the user's own: conf/ does not know them, so that Hydra has to be told to add them.
    words = [f"++{word}" if THEIRS.match(word) else word for word in words]
    words = [f"+{word}" if word.startswith("algo@algo.options.") else word for word in words]
    shown = any(word in ("--cfg", "-c") for word in words)
    beside = next((word for word in words if word.split("=")[0] in BESIDE_CFG), None)
    if beside is not None and not shown:
        raise UserError(f"{beside} changes what --cfg job prints, and does nothing without it")
    flags = [word for word in words if word.startswith("-")]
    try:
        if flags and not shown:
            return show(words, config_name)
        with composing(folder, trusted, asked_family(words)):
            # compose() acts on nothing in Hydra's own config; hydra.main would set up logging and run callbacks.
            with hydra.initialize_config_dir(version_base="1.3", config_dir=str(root() / "conf"), job_name="rlrun"):
                overrides = words_without_flags(words)
                cfg = hydra.compose(config_name, overrides=overrides, return_hydra_config=True)
            choices = dict(cfg.hydra.runtime.choices)
            with open_dict(cfg):
                del cfg["hydra"]
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(translate(error, words, folder)) from None
    except RecursionError:
        raise UserError(
            "a file of these options contains itself: through its `defaults`, or by a YAML alias inside its own anchor"
        ) from None
    if shown:
        values = masked_values(OmegaConf.to_container(cfg, resolve="--resolve" in words))
        print(masked(OmegaConf.to_yaml(OmegaConf.create(values))), end="")
        return 0
    try:
        return job(cfg, choices)
    except ConfigError as error:
        raise type(error)(f"{error}{set_in(str(error), words, choices, folder)}") from None


def with_data(words: list[str]) -> list[str]:
    """Returns the words with env=data where data are learnt from and no environment is named."""
    given = {word.partition("=")[0] for word in words}
    return [*words, "env=data"] if {"algo", "data.path"} <= given and not {"env", "tuned"} & given else words


def words_without_flags(words: list[str]) -> list[str]:
    """Returns the words that set options, without --cfg job, --resolve and the like."""
    rest, given = [], list(words)
    while given:
        word = given.pop(0)
        if not word.startswith("-"):
            rest.append(word)
        elif word in ("--cfg", "-c") and given:
            given.pop(0)  # the flag's value
    return rest


def checked_cfg(words: list[str]) -> list[str]:
    """Returns the words with --cfg job as two words. Raises UserError if another config than the run's is asked for,
    because Hydra's own options are rlrun's to set, and Hydra would print passwords."""
    rest: list[str] = []
    given = list(words)
    while given:
        name, equals, value = (word := given.pop(0)).partition("=")
        if name not in ("--cfg", "-c"):
            rest.append(word)
            continue
        value = value if equals else given.pop(0) if given else ""
        if value != "job":
            raise UserError(f"{name} prints the whole config of a command where job follows it: {name} job")
        rest += [name, value]
    return rest


def show(words: list[str], config_name: str) -> int:
    """Lets Hydra answer its own flags, such as --help. It sees only rlrun's own files."""
    import hydra

    from rlrun.config.hydra_plugins import install
    from rlrun.config.paths import root

    install()

    @hydra.main(version_base="1.3", config_path=str(root() / "conf"), config_name=config_name)
    def app(cfg) -> None:
        pass

    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise exceptions instead of printing them
    sys.argv = ["rlrun", *words]
    app()
    return 0


def own_folder(words: list[str]) -> tuple[Path | None, bool, list[str]]:
    """Takes --config-dir DIR and --trust out of the words. Returns the folder, whether it is trusted, and the rest."""
    from rlrun.config.words import at_home

    trusted, given = take_trust(words)
    folder: Path | None = None
    rest = []
    while given:
        word = given.pop(0)
        name, equals, value = word.partition("=")
        if name != "--config-dir":
            rest.append(word)
            continue
        if not equals:
            value = given.pop(0) if given else ""
        if folder is not None:
            raise UserError(f"--config-dir is given twice, and options come from one folder: {folder} or {value}")
        folder = Path(at_home(value)).resolve()
        if not value or not folder.is_dir():
            raise UserError(f"--config-dir {value}: there is no such folder")
    return folder, trusted, rest


def replacing(word: str) -> list[str]:
    """The word itself, or, for a schedule, two words that first remove the configured value and then set the new one.

    Without the first word, OmegaConf would merge two groups of values, and it refuses to merge a list into a group.
    """
    key, _, value = word.partition("=")
    schedule = value.startswith("[[") or (
        value.startswith("{") and {"start", "end", "steps"} == set(re.findall(r"(\w+)\s*:", value)) - {"curve"}
    )
    return [f"{key}=null", word] if schedule else [word]


def take_flags(words: list[str], kinds: dict[str, type]) -> tuple[dict[str, Any], list[str]]:
    """Splits words into the values of these flags and all other words.

    `--jobs 4` and `--jobs=4` mean the same. A bool's flag takes no value and is False where it is not given; others are
    None then. UserError: an unknown flag, or a value that is missing or has the wrong type.
    """
    from rlrun.config.words import at_home

    found: dict[str, Any] = {name: False if kind is bool else None for name, kind in kinds.items()}
    rest, given = [], list(words)
    while given:
        word = given.pop(0)
        name, equals, value = word.partition("=")
        if name not in kinds:
            if name.startswith("--"):
                are = "are" if len(kinds) > 1 else "is"
                known = f"There {are} {', '.join(kinds)}." if kinds else "This command takes no flags."
                raise UserError(f"There is no flag {name} here.{closest(name, kinds)} {known}")
            if f"--{name}" in kinds and equals and not os.path.isdir(word):
                raise UserError(f"{word}: --{name} is a flag here, so write {f'--{name} {value}'.rstrip()}")
            rest.append(word)
            continue
        kind = kinds[name]
        if kind is bool:
            if equals:
                raise UserError(f"{name} takes no value")
            found[name] = True
            continue
        if not equals:
            value = given.pop(0) if given else ""
        if not value:
            raise UserError(f"{name} needs a value")
        read = number(value) if kind in (int, float) else None
        try:
            found[name] = (
                at_home(value) if kind is str else kind(value if read is None or isinstance(read, float) else read)
            )
        except ValueError:
            raise UserError(f"{name} {value}: this is not a {'whole number' if kind is int else 'number'}") from None
    return found, rest


def flags_given(flags: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Returns those of these names whose flags, as take_flags returns them, were given, be it with the value 0."""
    return [name for name in names if flags[name] is not None and flags[name] is not False]


def run_dir_argument(words: list[str], command: str) -> tuple[Path, list[str]]:
    """The RUN_DIR among a command's words, and the other words. UserError where there is not exactly one RUN_DIR."""
    places = [word for word in words if ("=" not in word or os.path.isdir(word)) and not word.startswith("-")]
    if len(places) != 1:
        raise UserError(f"rlrun {command} takes one run directory, then key=value options")
    path = Path(places[0])
    try:
        there = (path / "config.yaml").is_file()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not there:
        raise UserError(no_run(path))
    return path, [word for word in words if word != places[0]]


def take_trust(words: list[str]) -> tuple[bool, list[str]]:
    """Returns whether --trust is among the words, and the other words."""
    return TRUST in words, [word for word in words if word != TRUST]
