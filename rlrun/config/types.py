"""Turns configs into frozen dataclasses. Messages name the path of a wrong value and the nearest key.

Only this file and cli.py import omegaconf.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.words import at_home, refuse_empty, word_at_home
from rlrun.core.errors import UserError, closest
from rlrun.core.numbers import hint, whole_number
from rlrun.core.ranges import NotEmpty, Range, SeedRange
from rlrun.core.schedule import Schedule

T = TypeVar("T")
# Where typed() notes what it reads from texts such as 200k, as path -> number; None: it is not noted.
_READ: ContextVar[dict[str, int | float] | None] = ContextVar("_READ", default=None)
LARGEST_YAML = 1_000_000  # characters of a config file
MOST_ALIASES = 20
# Octal and sexagesimal numbers of YAML 1.1.
ODD_NUMBER = re.compile(r"[-+]?(0[0-7_]*[1-7][0-7_]+|[1-9][0-9_]*(:[0-5]?[0-9])+)")


class ConfigError(UserError):
    """A value has the wrong type or is out of range. The message gives its path."""


class MissingOption(ConfigError):
    """An option has no value."""


def typed(cls: type[T], values: Any, path: str = "") -> T:
    """Makes an instance of a dataclass from a plain mapping.

    A dataclass whose options depend on one of their values has a classmethod variant(values), which returns the
    subclass for these values. The mapping must have every field and no other key. Values must have the types of their
    fields and lie in the ranges that annotations give (`Annotated[float, Share]`, core/ranges.py). The dataclass's
    __post_init__ checks combinations of options.

    Raises ConfigError with the path of the value (`algo.lr`) and, for an unknown key, the closest one."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path or 'the config'} must be a group of keys, not {values!r}")
    variant = getattr(cls, "variant", None)
    if variant is not None:
        cls = variant(values)
    hints = _hints(cls)  # type: ignore[arg-type]
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    for key in values:
        if key not in fields:
            near = closest(str(key), fields, prefix=prefix)
            if not near and len(fields) <= FEW:
                near = f" There {'is' if len(fields) == 1 else 'are'} {', '.join(prefix + name for name in fields)}."
            raise ConfigError(f"There is no option {prefix}{key}.{near}")
    missing = [name for name in fields if name not in values]
    if missing:
        raise MissingOption(f"The option {prefix}{missing[0]} has no value")
    made = {name: _convert(hints[name], values[name], prefix + name) for name in fields}
    try:
        return cls(**made)
    except ValueError as error:
        raise ConfigError(f"{path or 'config'}: {error}") from None


@contextmanager
def numbers_read() -> Iterator[dict[str, int | float]]:
    """Collects, by path, the numbers that typed() reads from texts such as 200k meanwhile, as ints or floats."""
    found: dict[str, int | float] = {}
    token = _READ.set(found)
    try:
        yield found
    finally:
        _READ.reset(token)


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Types of a dataclass's fields, with their ranges. Callers must not change the result."""
    return typing.get_type_hints(cls, include_extras=True)


def check_value(cls: type, path: list[str], value: Any, option: str) -> None:
    """Checks one value against the type of an option. path: the names that lead from cls to it.

    Raises ConfigError, which names `option`, if there is no such option or if it cannot have the value."""
    hints = _hints(cls)
    if path[0] not in hints:
        raise ConfigError(f"There is no option {option}.{closest(path[0], hints)}")
    kind = hints[path[0]]
    if len(path) == 1:
        _convert(kind, value, option)
        return
    inside = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and dataclasses.is_dataclass(one)]
    if inside:
        # An option may exist with some choices of its group only, and mean several things.
        known = [one for one in (inside[0], *_variants(inside[0])) if path[1] in _hints(one)] or [inside[0]]
        refused: list[ConfigError] = []
        for one in known:
            try:
                return check_value(one, path[1:], value, option)
            except ConfigError as error:
                refused.append(error)
        raise refused[0]


def _variants(cls: type) -> list[type]:
    """Returns the classes that a class of options has for its choices: its subclasses, and those in `others`."""
    own: list[type] = [*cls.__subclasses__(), *getattr(cls, "others", ())] if hasattr(cls, "variant") else []
    return [found for one in own for found in (one, *_variants(one))]


def _convert(kind: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        converted = _convert(args[0], value, path)
        for wanted in args[1:]:
            if isinstance(wanted, Range | NotEmpty | SeedRange) and converted not in wanted:
                raise ConfigError(f"{path} must be {wanted}, not {value!r}")
        return converted
    if origin in (typing.Union, types.UnionType):
        return _union(args, value, path)
    if origin is Literal:
        if value in args:
            return value
        if value is None and "none" in args:  # YAML reads `null` as None and `none` as a string
            return "none"
        raise ConfigError(
            f"{path} must be one of {', '.join(map(str, args))}, not"
            f" {value!r}.{closest(str(value), [str(a) for a in args])}"
        )
    if kind is Schedule:
        try:
            return Schedule.parse(value)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}; not {value!r}") from None
    if dataclasses.is_dataclass(kind):
        return typed(kind, value, path)  # type: ignore[arg-type]
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path} must be a list, not {value!r}: write '{path}=[{value}]'")
        if Ellipsis not in args and len(value) != len(args):
            raise ConfigError(f"{path} must be a list of {len(args)}, not {value!r}")
        return tuple(_convert(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict or kind is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} must be a group of keys, not {value!r}")
        return (
            {name: _convert(args[1], item, f"{path}.{name}") for name, item in value.items()} if args else dict(value)
        )
    return _scalar(kind, value, path)


def _union(kinds: tuple, value: Any, path: str) -> Any:
    if value is None:
        if type(None) in kinds:
            return None
        if not any(get_origin(k) is Literal and "none" in get_args(k) for k in kinds):
            raise ConfigError(f"{path} needs a value")
    errors = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _convert(kind, value, path)
        except ConfigError as error:
            errors.append(str(error))
    said = f"{path} must be "
    # These errors come from inside the value: it has the right form, and a part of it is wrong.
    inside = [error for error in errors if not error.startswith(said)]
    if inside:
        raise ConfigError(inside[0])
    rest = {error.removeprefix(said).split(f", not {value!r}")[0].removeprefix("one of ") for error in errors}
    if type(None) in kinds:
        rest.add("null")
    if len(rest) == 1:
        raise ConfigError(errors[0])
    meant = hint(value) if any(_WORDS[int] in error for error in rest) else ""
    raise ConfigError(f"{said}{' or '.join(sorted(rest))}, not {value!r}{meant}")


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _scalar(kind: type, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isnan(value):
            raise ConfigError(f"{path} must be a number, not NaN")
        return float(value)
    if (
        kind is int
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value == int(value)
    ):
        return int(value)  # so that 1e6 is accepted
    if kind in (int, float) and isinstance(value, str) and (read := whole_number(value)) is not None:
        noted = _READ.get()
        if noted is not None:
            noted[path] = kind(read)
        return kind(read)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value
    raise ConfigError(f"{path} must be {_WORDS[kind]}, not {value!r}{hint(value) if kind in (int, float) else ''}")


def plain(cfg: Any) -> dict:
    """Converts a DictConfig to dictionaries, lists and scalars, and resolves its interpolations.

    Raises ConfigError for a missing value or a broken interpolation."""
    from omegaconf.errors import MissingMandatoryValue

    try:
        made = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(
            f"{error.full_key} must be filled in: it is ??? in its file (say {error.full_key}=...)"
        ) from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"config: {str(error).splitlines()[0]}") from None
    assert isinstance(made, dict)
    return made


def check_size(text: str, path: Path | str) -> None:
    """Raises UserError for a file that is too large for a config, or whose aliases could make it so."""
    if len(text) > LARGEST_YAML or (text.count("*") > MOST_ALIASES and _aliases(text) > MOST_ALIASES):
        raise UserError(f"{path} is too large for a config")


def load_yaml(path: Path, data: bytes | None = None) -> dict:
    """Reads a yaml file as it is, without resolving interpolations. Raises UserError if it is missing or unreadable.

    data: its contents, if they have been read."""
    try:
        text = path.read_text() if data is None else data.decode()
        check_size(text, path)
        check_numbers(text, path)
        made = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except UserError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} does not exist: is this a run directory?") from None
    except Exception as error:
        raise UserError(f"{path} cannot be read: {unreadable(error)}") from None
    if not isinstance(made, dict):
        raise UserError(f"{path} cannot be read: it holds no options")
    return made  # type: ignore[return-value]


def unreadable(error: Exception) -> str:
    """Returns what is wrong with a file, and for YAML also in which line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem is not None and error.problem_mark is not None:
        return f"{error.problem} (line {error.problem_mark.line + 1})"
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_numbers(text: str, place: Path | str) -> None:
    """Raises UserError for a number that YAML 1.1 reads as another one than most people: 010 as 8, and 1:30 as 90."""
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and ODD_NUMBER.fullmatch(event.value):
            line = 0 if event.start_mark is None else event.start_mark.line
            raise UserError(
                f"{place}: YAML reads {event.value} in line {line + 1} as another number; write it"
                " without zeros in front and without colons, or in quotes if it is a text"
            )


def _aliases(text: str) -> int:
    """Counts references to other parts of a YAML file. A few nested ones can fill the memory."""
    return sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader))


def yaml_text(values: dict) -> str:
    """The values as a YAML file has them."""
    return OmegaConf.to_yaml(OmegaConf.create(values))


def save_yaml(values: dict, path: Path) -> None:
    """Writes the values. On a disk that is full, the old file stays as it is."""
    from rlrun.core.checkpoint import write_atomically

    write_atomically(path, yaml_text(values))


FEW = 12  # so many options are all named where none is like a mistyped one
OPENING = "[{('\""  # a value that begins so is no plain text


def parse_assignments(words: list[str]) -> dict[str, Any]:
    """Turns ["episodes=2", "a.b=x"] into {"episodes": 2, "a.b": "x"}. Values are read as rlrun train reads them, but
    numbers with zeros in front as decimal ones, and what Hydra would want in quotes, such as a path with blanks, as a
    text. A path that begins with `~/` gets the user's home folder.

    Raises UserError for a word without `=`, without a value, with a key that was there before, or with a value that
    cannot be read."""
    made: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            if word.startswith("--"):
                raise UserError(f"{word} is not a flag here: options are key=value, as in {word.lstrip('-')}=...")
            raise UserError(f"{word!r} is not of the form key=value")
        refuse_empty(word)
        if key in made:
            raise UserError(f"{key}= is given twice")
        if re.fullmatch(r"0\d+", value):  # the name of a checkpoint's folder; YAML would read 010 as 8
            made[key] = int(value)
            continue
        if ODD_NUMBER.fullmatch(value):  # a text, as for rlrun train; YAML would read 1:30 as 90
            made[key] = value
            continue
        made[key] = _read(value, word)
    return made


def _read(value: str, word: str) -> Any:
    """The value of a word as Hydra reads it, or as it is if Hydra would want it in quotes."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if "${" in value:
        raise UserError(f"{word}: only rlrun train fills in ${{...}}; write the value itself")
    unquoted = at_home(value) if value[:1] not in OPENING else word_at_home(f"x={value}")[2:]
    try:
        parsed = OverridesParser.create().parse_override(f"x={unquoted}")
    except HydraException:
        return _read_yaml(unquoted, word) if value[:1] in OPENING else unquoted
    if parsed.is_sweep_override() and re.match(r"\w+\(", value) is None:
        return unquoted  # such as method=is,wis
    if parsed.is_sweep_override():
        raise UserError(f"{word}: one value each; several values are for rlrun sweep, which runs every combination")
    return plain(OmegaConf.create({"x": _without_quotes(parsed.value())}))["x"]


def _read_yaml(value: str, word: str) -> Any:
    """A list or a dictionary that is JSON, whose quoted keys Hydra does not read."""
    try:
        check_numbers(value, word)
        made = yaml.safe_load(value)
    except yaml.YAMLError:
        made = None
    if not isinstance(made, list | dict) or (isinstance(made, dict) and not all(isinstance(key, str) for key in made)):
        raise UserError(f"{word}: the value cannot be read; a bracket or a quote may be missing")
    return made


def _without_quotes(value: Any) -> Any:
    """A value of Hydra's parser with texts in place of quoted ones."""
    if isinstance(value, list):
        return [_without_quotes(one) for one in value]
    if isinstance(value, dict):
        return {str(_without_quotes(key)): _without_quotes(one) for key, one in value.items()}
    return getattr(value, "text", value)
