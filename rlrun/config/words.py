"""Words of the command line: those that options from Python become, and those that say no value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.core.errors import UserError

# Groups whose dictionary may have a `name`, which chooses the group's file, beside options: env={"name": ..., ...}.
CHOSEN = ("algo", "env", "runner", "replay", "model", "resources")
SCHEDULE = {"start", "end", "steps"}
_PLAIN = re.compile(r"[A-Za-z_./@:+-][A-Za-z0-9_./@:+-]*")  # texts that need no quotes
_UNQUOTED = re.compile(r"[A-Za-z0-9_./@:+-]+")  # texts that Hydra reads as texts if they are no numbers nor _WORDS
_NUMBER = re.compile(r"\d[\d_]*(\.\d+)?[kKMGB]?")  # 200k, which an option may read as a number
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "nan", "inf", "-inf", "+inf")  # Hydra reads them as values


def refuse_empty(word: str) -> None:
    """Raises UserError for a word such as env_steps=, which an empty shell variable leaves; null is a value."""
    if word.endswith("=") and word.count("=") == 1:
        raise UserError(f"{word} has no value; a shell variable behind it may not be set")


def at_home(text: str) -> str:
    """The path with the user's home folder in place of a `~/` in front, which shells leave in words such as
    data.path=~/x. Every other text stays as it is."""
    return os.path.expanduser(text) if text == "~" or text.startswith("~/") else text


def word_at_home(word: str) -> str:
    """A word in which the home folder replaces every `~/` that begins a value, or a part of a list or a dictionary.

    Hydra's grammar has no ~ outside quotes, and what is in quotes stays as it is. A home folder that would need quotes
    is not written, and Hydra refuses the word then."""
    home = os.path.expanduser("~")
    if not _PLAIN.fullmatch(home):
        return word
    parts = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|(?<=[=,\[{: ])~/"  # what is in quotes stays
    return re.sub(parts, lambda found: f"{home}/" if found[0] == "~/" else found[0], word)


def words_of(options: Mapping[str, Any]) -> list[str]:
    """The words for these options, such as {"algo": "ppo", "model": {"hidden": (32, 32)}}, those that choose a group's
    file first.

    A dictionary holds the options of a group; "name" in that of a group of CHOSEN chooses its file. Raises UserError
    for a value that no option can have."""
    pairs = list(flat(options))
    chosen = [f"{key}={word(key, value)}" for key, value in pairs if key in CHOSEN]
    return chosen + [f"{key}={word(key, value)}" for key, value in pairs if key not in CHOSEN]


def flat(options: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted name and the value of every option. Two spellings of one option are two pairs."""
    for name, value in options.items():
        if not isinstance(name, str):
            raise UserError(f"{path}{name!r} is not the name of an option, which is a text")
        key = f"{path}{name}"
        if not isinstance(value, Mapping) or key == "data.path" or SCHEDULE <= set(value) <= SCHEDULE | {"curve"}:
            yield key, value
            continue
        inside = dict(value)
        if key in CHOSEN and "name" in inside:
            yield key, inside.pop("name")
        yield from flat(inside, f"{key}.")


def unwrapped(value: Any) -> Any:
    """A value with Python's numbers, texts and lists in place of NumPy's and PyTorch's numbers, paths and tuples."""
    if hasattr(value, "item") and hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [unwrapped(one) for one in value]
    return {key: unwrapped(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def word(key: str, value: Any) -> str:
    """The right side of a word. key: the option, for messages."""
    path = isinstance(value, os.PathLike)
    value = unwrapped(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if path:
        return quoted(value)
    if isinstance(value, str):
        plain = (_PLAIN.fullmatch(value) and value.lower() not in _WORDS) or _NUMBER.fullmatch(value)
        return value if plain else quoted(value)
    if isinstance(value, list):
        return f"[{','.join(word(key, one) for one in value)}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{word(key, name)}:{word(key, one)}" for name, one in value.items()) + "}"
    raise UserError(
        f"{key} cannot be {value!r}: options are numbers, texts, true or false, None, lists and dictionaries; name your"
        " own code as package.module:Name"
    )


def exact(value: Any) -> str:
    """The right side of a word, or one of several values of a sweep's word, that Hydra reads as this very value.

    `word` leaves it to the option what a text such as 200k or 5e-4 is; here a text stays a text."""
    if isinstance(value, list):
        return f"[{', '.join(map(exact, value))}]"
    if isinstance(value, Mapping):  # Hydra takes no quotes around a key
        pairs = ((re.sub(r"[\\()\[\]{}:=,\s]", r"\\\g<0>", str(name)), exact(one)) for name, one in value.items())
        return "{" + ", ".join(map(":".join, pairs)) + "}"
    if value is None or isinstance(value, bool | int | float):
        return word("", value)
    text = str(value)
    plain = _UNQUOTED.fullmatch(text) and text.lower() not in _WORDS and not looks_like_number(text)
    return text if plain else quoted(text)


def looks_like_number(text: str) -> bool:
    """Tells whether YAML, OmegaConf or Hydra could read a text without quotes as a decimal number."""
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True


def quoted(text: str) -> str:
    """The text in quotes for the right side of a Hydra override, where only a backslash before a quote is special."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", text)) + "'"
