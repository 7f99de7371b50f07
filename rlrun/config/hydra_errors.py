"""Turns Hydra's errors into sentences with the closest name."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.option_names import (
    asked_family,
    belonging,
    counterpart,
    elsewhere,
    known_keys,
    nearest,
    of_a_logger,
    of_another_env,
)
from rlrun.config.paths import (
    choices,
    files,
    options,
    root,
    runner_of,
)
from rlrun.config.words import quoted
from rlrun.core.errors import UserError, closest

GROUPS = ("algo", "logger", "model", "model/memory", "replay", "resources", "runner", "tuned")
# Dictionaries of the user's own keys, which may be taken away again.
THEIRS = re.compile(
    r"(env\.kwargs|data\.path|model\.encoder_kwargs|algo\.(inner\.)?exploration\.kwargs|algo\.fixed|algo\.options)(\.|=\{)"
)


def check_groups(words: list[str], folder: Path | None = None) -> None:
    """Raises UserError for a group option that does not exist, because Hydra's own error lists all 400 environments.

    folder: the user's own folder of options."""
    for word in words:
        group, equals, value = word.partition("=")
        group = group.lstrip("+~").split("@")[0]
        if group == "resume":
            raise UserError("rlrun train begins a new run; rlrun resume RUN_DIR goes on with one")
        if word.startswith("~") and not THEIRS.match(word[1:]):
            raise UserError(
                f"{word}: no option can be taken away, only changed"
                + ("; logger=[] writes nothing" if group == "logger" else "")
            )
        if value == "null" and group in (*GROUPS, "env"):
            instead = "logger=[] writes nothing" if group == "logger" else "give a name, or leave this word out"
            raise UserError(f"{word}: there is no such choice; {instead}")
        if equals and (said := no_name(group)):
            raise UserError(f"{word}: {said}")
        if ".." in value and any((place / group).is_dir() for place in (root() / "conf", root(), folder) if place):
            raise UserError(f"{word}: name a file of the group {group}, without its folder; --config-dir adds a folder")
        if equals and not group:
            raise UserError(f"{word!r} is not of the form key=value{with_keys(words)}")
        if value[:1] == "[":
            _check_list(word, group)
        if not equals or "," in value or value[:1] == "[" or value in ("", "null", "???"):
            continue
        own = files(folder / group) if folder is not None else []
        if value in own:
            place = f"{folder}/{group}/{value}.yaml"
            if value in options(group):
                raise UserError(
                    f"{word}: {place} would not be read, because rlrun has a file of this name already; give it"
                    " another name"
                )
            header = re.compile(r"^#\s*@package\s", re.MULTILINE)
            if group == "tuned" and not header.search(Path(place).read_text(errors="replace")):
                raise UserError(f"{place}: a tuned file begins with the line `# @package _global_`; this one does not")
            continue
        if group == "env":
            from rlrun.envs.names import CRAFTER, FAMILIES, family_of

            if value == CRAFTER or value not in (*FAMILIES, "data"):  # env=data: that of the data
                family_of(value, asked_family(words))
        elif group in GROUPS:
            known = [*choices(group), *own]
            if value not in known:
                other = of_rllib(value) if group == "algo" and value.lower() not in known else ""
                near = other or (of_tuned(value, known) if group == "tuned" else "") or closest(value, known)
                raise UserError(f"There is no {group} {value!r}.{near} There are: {', '.join(known)}")


def of_rllib(name: str) -> str:
    """Returns a sentence about an algorithm of RLlib's with another name here, or without one; '' for others."""
    from rlrun.rllib.algorithms import LACKING, RUNS

    def bare(text: str) -> str:
        return re.sub(r"\W|_", "", text.rpartition("/")[2]).lower()

    lacking = next((f" RLlib's {one}: {why}." for one, why in LACKING.items() if bare(one) == bare(name)), "")
    return lacking or next(
        (f" RLlib's {one} is algo={here} here." for one, here in RUNS.items() if bare(one) == bare(name)), ""
    )


def of_tuned(value: str, known: Sequence[str]) -> str:
    """Returns ' Did you mean ppo/cartpole?' for its path, tuned/ppo/cartpole.yaml, and for RLlib's kind of name,
    cartpole-ppo; '' for others."""
    parts = set(re.split(r"[-_/]", re.sub(r"^.*tuned/|\.ya?ml$", "", value).lower())) - {""}
    near = [name for name in known if parts and parts <= {*name.split("/"), *re.split(r"[-_/]", name)}]
    near = [name for name in near if parts == {*re.split(r"[-_/]", name)}] or near
    return f" Did you mean {', '.join(near[:3])}?" if near else ""


def no_name(key: str) -> str:
    """Says why a key can be no option's name; '' if it can."""
    bare = key.lstrip("+~").partition("@")[0]
    if not key or key != key.strip() or re.fullmatch(r"[A-Za-z_][\w-]*([./][\w-]+)*", bare, re.ASCII):
        return ""
    if re.search(r"\[.*\]$", bare):
        whole = bare.partition("[")[0]
        return f"a list is given as a whole, as in {whole}=[64,64]"
    return f"{key!r} cannot be the name of an option"


def mistyped(words: Sequence[str], group: str) -> str | None:
    """The key of a word that seems to be a group's name with a mistake."""
    keys = [word.partition("=")[0] for word in words if "=" in word]
    known = (*GROUPS, "env")
    options = {*known, *known_keys()}
    return next(
        (key for key in keys if key not in options and closest(key, known).startswith(f" Did you mean {group}")), None
    )


def _check_list(word: str, group: str) -> None:
    """Raises UserError for a list of loggers that are not names, and for a list of any other group's choices, because
    Hydra would take the last of them without a word."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString
    from hydra.errors import HydraException

    key = word.partition("=")[0].lstrip("+")
    if group == "logger":
        try:
            names = OverridesParser.create().parse_override(word).value()
        except HydraException:
            return  # composing says what cannot be read
        if isinstance(names, list) and not all(isinstance(name, str | QuotedString) for name in names):
            raise UserError(f"{word}: a list of loggers holds names, such as logger=[{','.join(options('logger'))}]")
    elif group in (*GROUPS, "env"):
        raise UserError(f"{word}: {key}= takes one name, without brackets; rlrun sweep takes several, as in {key}=A,B")


def _unreadable(words: list[str]) -> str | None:
    """Says what is wrong with the first word that Hydra cannot read; None if it is a list, a dictionary or a call."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    for word in words:
        key, equals, value = word.partition("=")
        if equals and (said := no_name(key)):
            return f"{word}: {said}"
        try:
            OverridesParser.create().parse_override(word)
        except HydraException:
            if not equals or key != key.strip() or value != value.strip():
                return f"{word!r} is not of the form key=value, without blanks around the ="
            if re.search(r"[\[{(]", value):
                return None
            if value.endswith((",", ";")):
                return f"{word}: there is a {value[-1]!r} at its end, and only blanks stand between words"
            if value.startswith("~"):
                return f"{word}: write the whole path of the folder in place of ~"
            whole = f"{key}={quoted(value)}"
            typed = shlex.quote(whole) if re.search(r'["$`!]', whole) else f'"{whole}"'
            return f"{word}: this value needs quotes, as in {typed}"
    return None


def translate(error: Exception, words: list[str], folder: Path | None = None) -> str:
    """Describes an exception of Hydra or OmegaConf in one sentence. folder: the user's own folder of options."""
    text = str(error)
    cause = str(error.__cause__ or "")
    strange = next((word for word in words if "=" in word and not word.isascii()), None)
    if strange is not None and (said := no_name(strange.partition("=")[0])):
        return f"{strange}: {said}"
    if strange is not None and "LexerNoViableAlt" in text:
        key, _, value = strange.partition("=")
        return f"{strange}: a value with such letters needs quotes, as in \"{key}='{value}'\""
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and "not in struct" in text + cause:
        inside = re.search(r"full_key: (\S+)", cause)  # of a dictionary that a word gives
        key = inside[1] if inside is not None and inside[1].startswith(f"{unknown[1]}.") else unknown[1]
        return (
            of_another_env(key, words)
            or of_a_logger(key)
            or belonging(key, words)
            or (f"There is no option {key}{elsewhere(key)}.{counterpart(key, words) or nearest(key, words, folder)}")
        )
    placed = re.search(r"Could not override '(algo@[^']+)'", text)
    if unknown and "@" not in unknown[1]:
        groups = ", ".join(sorted((*GROUPS, "env")))
        return f"{unknown[1]}= is no group of which a file can be chosen. The groups are {groups}"
    if placed:
        return (
            f"{placed[1]}: an algorithm can be algo, algo@algo.inner where it is inside another, or"
            " algo@algo.options.NAME for one policy of several"
        )
    if "Ambiguous value" in text or "Sweep parameters" in text:
        return (
            f"{text.split(chr(39))[1]}: one value each; several values are for rlrun sweep, which runs every"
            " combination"
        )
    if "Error parsing override" in text:
        return f"{text.split(chr(39))[1]!r} is not of the form key=value{with_keys(words)}"
    if re.search("LexerNoViableAlt|no viable alternative|mismatched input|extraneous input|token recognition", text):
        return _unreadable(words) or (
            f"a word cannot be read as key=value: {text.splitlines()[0]}. In lists and dictionaries write key: value,"
            " and quote other punctuation"
        )
    unloadable = re.search(r"Could not (?:load|find) '(\w+)/([^']+)'", text)
    if unloadable and unloadable[1] == "env":
        from rlrun.envs.names import names

        return f"There is no env {unloadable[2]!r}.{closest(unloadable[2], names())} rlrun list envs has them all."
    if unloadable:
        known = choices(unloadable[1])
        return (
            f"There is no {unloadable[1]} {unloadable[2]!r}.{closest(unloadable[2], known)} There are:"
            f" {', '.join(known)}"
        )
    if "You must specify" in text:
        group = re.search(r"specify '([^']+)'", text)
        name = group[1] if group else "a group"
        if (typed := mistyped(words, name)) is not None:
            return f"There is no option {typed}. Did you mean {name}?"
        algo = next((word.partition("=")[2] for word in words if word.startswith("algo=")), "")
        if name == "env" and algo in choices("algo") and runner_of(algo) == "offline":
            return f"data.path= is missing: algo={algo} learns from recorded data, which say what the environment shows"
        return (
            f"{name}= is missing: say algo=... and env=..., or tuned=... (rlrun list"
            f" {'envs' if name == 'env' else name + 's'})"
        )
    first = [line.strip() for line in text.splitlines() if line.strip()]
    return first[0] if first else type(error).__name__


def set_in(error: str, words: Sequence[str], choices: Mapping[str, Any], folder: Path | None) -> str:
    """Returns ' (set in FILE)' if a file of the user's own folder sets the option that an error is about, and no word
    does; '' otherwise. choices: the file that was chosen of every group."""
    import yaml

    named = re.match(r"(?:There is no option )?([\w.]+)", error)
    if folder is None or named is None:
        return ""
    path = named[1].rstrip(".").split(".")
    given = {word.lstrip("+~").partition("=")[0] for word in words} - choices.keys()  # those choose files
    if given & {".".join(path[:length]) for length in range(1, len(path) + 1)}:
        return ""
    for group, name in choices.items():
        file = folder / group.partition("@")[0] / f"{name}.yaml"
        if not isinstance(name, str) or not file.is_file():
            continue
        text = file.read_text()
        value: Any = yaml.safe_load(text)
        whole = re.search(r"^#\s*@package\s+_global_", text, re.MULTILINE)
        for part in path if whole else path[1:]:
            value = value.get(part, KeyError) if isinstance(value, Mapping) else KeyError
        if value is not KeyError and not isinstance(value, Mapping) and (whole or path[0] == group):
            return f" (set in {file})"
    return ""


def with_keys(words: Sequence[str]) -> str:
    """Returns '. Did you mean algo=ppo env=CartPole-v1?' where all words without a key are names that are known, and
    where a value was parted at its spaces, how to keep it together."""
    from rlrun.envs.names import names

    if "to" in words and (first := words.index("to")) > 0 and "=" in words[first - 1]:
        parted = " ".join([words[first - 1], *itertools.takewhile(lambda word: "=" not in word, words[first:])])
        return f". A value with spaces needs quotes: '{parted}'"

    groups = (("algo", options("algo")), ("tuned", options("tuned")), ("env", names()))
    bare = [word for word in words if "=" not in word and not word.startswith("-")]
    found = [next((f"{key}={word}" for key, known in groups if word in known), None) for word in bare]
    return f". Did you mean {' '.join(map(str, found))}?" if found and None not in found else ""
