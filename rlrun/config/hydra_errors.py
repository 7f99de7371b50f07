"""Turns Hydra's errors into sentences with the closest name."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.paths import (
    base_options,
    choices,
    files,
    group_defaults,
    included_groups,
    inner_algorithm,
    options,
    output_of,
    package,
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

KINDS = {
    "atari": "Atari games",
    "gym": "Gymnasium environments",
    "agents": "environments with several agents",
    "dmc": "dm-control's tasks",
    "crafter": "Crafter",
}
# Options of environments that mean nearly the same in different families: the other's name, and what it takes.
TWINS = {
    "frame_skip": ("action_repeat", "N"),
    "action_repeat": ("frame_skip", "N"),
    "max_frames": ("max_episode_steps", "DECISIONS"),
    "max_episode_steps": ("max_frames", "FRAMES"),
}


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
        if value == "null" and group in (*GROUPS, "env") and group != "tuned":
            instead = "logger=[] writes nothing" if group == "logger" else "give a name, or leave this word out"
            raise UserError(f"{word}: there is no such choice; {instead}")
        if ".." in group or (
            ".." in value and any((place / group).is_dir() for place in (root() / "conf", root(), folder) if place)
        ):
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

            if value == CRAFTER or value not in FAMILIES:
                family_of(value, asked_family(words))
        elif group in GROUPS:
            known = [*choices(group), *own]
            if value not in known:
                other = of_rllib(value) if group == "algo" and value.lower() not in known else ""
                near = other or closest(value, known)
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


def asked_family(words: list[str]) -> str | None:
    """The family that env.family= asks for; None if no word does."""
    return next((word.partition("=")[2] for word in words if word.lstrip("+").startswith("env.family=")), None)


def translate(error: Exception, words: list[str], folder: Path | None = None) -> str:
    """Describes an exception of Hydra or OmegaConf in one sentence. folder: the user's own folder of options."""
    text = str(error)
    cause = str(error.__cause__ or "")
    strange = next((word for word in words if "=" in word and not word.isascii()), None)
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
    if placed:
        return (
            f"{placed[1]}: an algorithm can be algo, algo@algo.inner where it is inside another, or"
            " algo@algo.options.NAME for one policy of several"
        )
    if "Ambiguous value" in text:
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
    given = {word.lstrip("+~").partition("=")[0] for word in words}
    if given & {".".join(path[:length]) for length in range(2, len(path) + 1)} or path[0] in given - {"algo", "env"}:
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


def nearest(key: str, words: list[str], folder: Path | None = None) -> str:
    """Returns ' Did you mean ...?' with an option of the chosen algorithm, or of the inner one for its keys.

    folder: the user's own folder of options."""
    if (own := own_keys(words, folder)) is not None:
        return closest(key, own)
    algo = chosen(words)
    inner = chosen(words, "algo@algo.inner") or (inner_algorithm(algo) if algo else None)
    if key.startswith("algo.inner."):
        return closest(
            key, [name.replace("algo.", "algo.inner.", 1) for name in known_keys(inner) if name.startswith("algo.")]
        )
    found = env_family(words)
    there = None if found is None else {f"env.{name}" for name in group_defaults("env", found[1])}
    known = [name for name in known_keys(algo) if there is None or not name.startswith("env.") or name in there]
    return closest(key, [name for name in known if name != key])


def own_keys(words: list[str], folder: Path | None) -> list[str] | None:
    """Returns the dotted keys of an algorithm of the user's own and of those that its file begins with; None where the
    chosen algorithm is rlrun's."""
    import yaml

    name = dict(word.split("=", 1) for word in words if "=" in word).get("algo")
    if folder is None or name not in files(folder / "algo"):
        return None
    values = yaml.safe_load((folder / "algo" / f"{name}.yaml").read_text()) or {}
    bases = [line for line in values.get("defaults", ()) if line in options("algo")]
    others = [key for base in bases or [None] for key in known_keys(base) if bases or not key.startswith("algo.")]
    return [*(f"algo.{key}" for key in values if key != "defaults"), *others]


def elsewhere(key: str) -> str:
    """Returns ' with the ... that were chosen' for a key that exists in other groups."""
    return " with the algo, env and runner that were chosen" if key in known_keys() else ""


def env_family(words: list[str]) -> tuple[str, str] | None:
    """Returns the environment of env=... or tuned=..., and its family; None if there is none of that name."""
    from rlrun.envs.names import family_of

    said = dict(word.split("=", 1) for word in words if "=" in word)
    name = said.get("env") or tuned_choice(said.get("tuned"), "env")
    if name in options("env"):
        return name, name
    try:
        return None if name is None else (name, family_of(name, asked_family(words), needed=False)[0])
    except UserError:
        return None


def of_another_env(key: str, words: list[str]) -> str:
    """Returns a sentence about an option that other kinds of environments have than the one that was chosen, with the
    option that this one has in its place; '' if there is none such."""
    from rlrun.envs.names import resolve

    group, _, name = key.partition(".")
    found = env_family(words)
    if group != "env" or found is None or name in group_defaults("env", found[1]):
        return ""
    env, family = found
    kinds = [KINDS[one] for one in KINDS if name in group_defaults("env", one)]
    if not kinds:
        return ""
    twin = TWINS.get(name)
    other = ""
    if twin is not None and twin[0] in group_defaults("env", family):
        other = f": env.{twin[0]}={twin[1]} is the option here"
    elif family == "atari" and name in group_defaults("env", "gym"):
        game = resolve(env.removeprefix("atari/")) or "GAME"
        other = f": env=gym/ALE/{game}-v5 is the game as Gymnasium makes it, and has the option"
    return f"{key} is an option of {_either(kinds)}, and env={env} is of the family {family}{other}"


def of_a_logger(key: str) -> str:
    """Returns a sentence about an option of a logger that was left out; '' if it is none."""
    parts = key.split(".")
    if parts[0] != "logger" or len(parts) < 3 or parts[1] not in options("logger"):
        return ""
    if parts[2] not in group_defaults("logger", parts[1]).get(parts[1], {}):
        return ""
    return f"{key} is an option of the logger {parts[1]}, which logger= leaves out: write it into the list too"


def belonging(key: str, words: list[str]) -> str:
    """Returns a sentence that names the choices of a group that have this option, or '' if there are none."""
    found = [
        (group, name)
        for group in ("replay", "runner", "model/memory")
        if key.startswith(f"{group.replace('/', '.')}.")
        for name in options(group)
        if key.rpartition(".")[2] in group_defaults(group, name)
    ]
    if found:
        names = [name for _, name in found]
        return f"{key} is an option of {found[0][0].split('/')[0]}={_either(names)}, which was not chosen"
    algo = chosen(words)
    having = [
        name
        for name in options("algo")
        if key.rpartition(".")[0] == "model"
        and inner_algorithm(name) is None
        and key.rpartition(".")[2] in group_defaults("model/output", output_of(name))
    ]
    if algo is None or not having:
        return ""
    inner = chosen(words, "algo@algo.inner") or inner_algorithm(algo)
    return f"{key} is an option of algo={_either(having)}; {algo}{f' around {inner}' if inner else ''} does not use it"


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def counterpart(key: str, words: list[str]) -> str:
    """Returns ' RLlib's gamma is algo.discount here.' for names of RLlib, Stable-Baselines3 and CleanRL, else ''."""
    import yaml

    from rlrun.rllib.option_map import option_map

    algo, name, inside = chosen(words), key.split(".")[-1], key.startswith("algo.inner.")
    if algo is None:
        return ""
    for row in option_map(algo):
        if row["rllib"] == name and row["rlrun"] != key:
            return (
                f" RLlib's {name} is {row['rlrun']} here{_in_parentheses(row.get('why'))}."
                if row["rlrun"]
                else f" RLlib's {name} has no counterpart: {row['why']}."
            )
    known = known_keys((chosen(words, "algo@algo.inner") or inner_algorithm(algo)) if inside else algo)
    for whose, file in (("Stable-Baselines3", "stable_baselines3"), ("CleanRL", "cleanrl")):
        row = yaml.safe_load((package() / "data" / f"{file}.yaml").read_text()).get(name, {"ours": []})
        there = (option for option in row["ours"] if option in known or option in ("env", "resources"))
        ours = next((option for option in there if option != key), None)
        how = row.get("how")
        how = _in_parentheses(how.get(ours) if isinstance(how, dict) else how)
        if ours:
            ours = ours.replace("algo.", "algo.inner.", 1) if inside else ours
            return f" {whose}'s {name} is {ours} here{how}."
    return ""


def _in_parentheses(text: str | None) -> str:
    return f" ({text})" if text else ""


def chosen(words: list[str], group: str = "algo") -> str | None:
    """Returns the algorithm of algo=... or of tuned=...; None if there is no algorithm of that name."""
    said = dict(word.split("=", 1) for word in words if "=" in word)
    algo = said.get(group)
    if algo is None and group == "algo":
        algo = tuned_choice(said.get("tuned"), "algo")
    return algo if algo in options("algo") else None


def tuned_choice(tuned: str | None, group: str) -> str | None:
    """Returns what a tuned file of rlrun's chooses of a group; None if it chooses nothing or is not there."""
    import yaml

    if tuned not in options("tuned"):
        return None
    values = yaml.safe_load((root() / "tuned" / f"{tuned}.yaml").read_text())
    word = f"override /{group}"
    return next((line[word] for line in values["defaults"] if isinstance(line, dict) and word in line), None)


def known_keys(algo: str | None = None) -> list[str]:
    """Returns every dotted key of conf/ for suggestions, with the options of this algorithm or, without one, of all."""
    import yaml

    found: set[str] = set()

    def walk(values: dict, prefix: str) -> None:
        for key, value in values.items():
            if key in ("defaults", "hydra", "by_observation", "auto_images"):
                continue
            found.add(f"{prefix}{key}")
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")

    def read(path: str, prefix: str) -> None:
        text = (root() / "conf" / f"{path}.yaml").read_text()
        walk(yaml.safe_load(text) or {}, "" if text.startswith("# @package _global_") else prefix)

    read("train", "")
    for group in ("env", "model", "resources", "runner", "replay"):
        for name in options(group):
            inside = name.split("/")[0] if "/" in name else ""
            read(f"{group}/{name}", f"{group}.{inside}." if inside not in ("", "output") else f"{group}.")
    for name in options("algo") if algo is None else [algo]:
        for path in (f"algo/{name}", *base_options(name)):
            read(path, "algo.")
        for group, path in included_groups(name).items():
            found.add(f"algo.{group}")
            read(path, f"algo.{group}.")
    return sorted(found)
