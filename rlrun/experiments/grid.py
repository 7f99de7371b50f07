"""Turns words with several values into the words of each job.

The grammar is Hydra's: a=1,2, range(1,5), choice(...), and glob(...) for names.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlrun.config.hydra_errors import with_keys
from rlrun.config.paths import choices as names_of
from rlrun.config.words import word_at_home
from rlrun.core.errors import UserError, closest
from rlrun.core.numbers import number

MOST_VALUES = 10_000  # of one word

# The values of these groups are clear without their key.
NAMED = ("algo", "env", "tuned", "model", "resources", "replay", "runner")


class Variation(NamedTuple):
    """One word that differs from job to job."""

    key: str
    value: str

    @property
    def word(self) -> str:
        return f"{self.key}={self.value}"


class Interval(NamedTuple):
    """A range to search in, written interval(1e-5, 1e-3), tag(log, interval(...)) or int(interval(1, 8))."""

    low: float
    high: float
    log: bool
    whole: bool

    def text(self, value: float) -> str:
        """A number of the interval with six digits, or with all of them where six would leave the interval."""
        short = f"{value:.6g}"
        return short if self.low <= float(short) <= self.high else str(value)


class Space(NamedTuple):
    """The words of a sweep: those that are fixed, and the values and intervals of those that vary."""

    fixed: tuple[str, ...]
    choices: dict[str, list[str]]
    intervals: dict[str, Interval]

    def varies(self, option: str) -> bool:
        """Whether the option has several values, whatever Hydra's sign before its key."""
        return any(bare(key) == option for key in (*self.choices, *self.intervals))


def bare(word: str) -> str:
    """A word or its key without Hydra's +, ++ or ~ before it."""
    return word.lstrip("+~")


def with_ends(word: str) -> str:
    """A word whose intervals and ranges have plain numbers in place of 200k and the like."""
    ends = r"(?<=[(,])(\s*)(\d[\d_]*(?:\.\d+)?[kKMGB])(?=\s*[,)])"
    return (
        re.sub(ends, lambda one: f"{one[1]}{number(one[2])}", word) if re.search(r"(interval|range)\(", word) else word
    )


def parse(words: Sequence[str]) -> Space:
    """The space that the words of a sweep span. UserError where a word cannot be read, stands for no value at all, or
    where a key that varies or one of its values is given twice."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    fixed: list[str] = []
    choices: dict[str, list[str]] = {}
    intervals: dict[str, Interval] = {}
    # Of two fixed words with the same key the last counts, as for rlrun train.
    single: set[str] = set()
    several: set[str] = set()
    for word in map(word_at_home, words):
        try:
            override = parser.parse_override(with_ends(word))
        except HydraException as error:
            meant = with_keys(words)
            why = meant or f": {str(error).splitlines()[0]}"
            raise UserError(f"{word!r} is not of the form key=value{why}") from None
        key = override.get_key_element()
        option, varies = bare(key), override.is_sweep_override()
        if option in several or (varies and option in single):
            raise UserError(f"{option}= is given twice: write all of its values in one word, such as {option}=1,2,3")
        (several if varies else single).add(option)
        if not varies:
            fixed.append(word)
        elif override.is_interval_sweep():
            intervals[key] = _interval(word, override.value())
        else:
            choices[key] = _choices(word, key, override)
    return Space(tuple(fixed), choices, intervals)


def _interval(word: str, sweep: Any) -> Interval:
    """The interval of a word such as algo.lr=interval(1e-5,1e-3), which Hydra read as an IntervalSweep."""
    if sweep.tags - {"log"}:
        raise UserError(
            f"{word}: there is no tag {', '.join(sorted(sweep.tags - {'log'}))}; the only one is log, as in"
            " tag(log, interval(...))"
        )
    low, high, log = float(sweep.start), float(sweep.end), "log" in sweep.tags
    if not math.isfinite(high - low):
        raise UserError(f"{word}: both ends of an interval must be finite numbers, and their difference too")
    if not low < high or (log and low <= 0):
        raise UserError(
            f"{word}: an interval's first number must be below its last{', and above 0 with log' if log else ''}"
        )
    return Interval(low, high, log, isinstance(sweep.start, int) and isinstance(sweep.end, int))


def _choices(word: str, key: str, override: Any) -> list[str]:
    """The values of a word such as seed=1,2,3, which Hydra read as override."""
    from hydra.core.override_parser.types import Glob

    glob = override.value()
    if isinstance(glob, Glob):
        values = matches(key, glob)
    else:
        # Hydra writes a colon with a backslash, which names of classes in a later word must not have.
        written = itertools.islice(override.sweep_string_iterator(), MOST_VALUES + 1)
        values = [value.replace("\\:", ":") for value in written]
    if not values:
        raise UserError(f"{word} stands for no value, which would make a sweep without jobs")
    if len(values) > MOST_VALUES:
        raise UserError(f"{word} stands for {len(values):,} values, and a sweep takes at most {MOST_VALUES:,}")
    twice = next((value for value, times in Counter(values).items() if times > 1), None)
    if twice is not None:
        raise UserError(f"{word} has {twice} twice, which would run the same job twice")
    return values


def matches(key: str, glob: Any) -> list[str]:
    """The names of a group that fit a glob's patterns. UserError where the key is not a group."""
    if key == "env":
        from rlrun.envs.names import names

        known = list(names())
    elif key in NAMED:
        known = names_of(key)
    else:
        raise UserError(
            f"{key}=glob(...) needs a list of names to choose from, and {key} has none.{closest(key, NAMED)}"
        )
    return [name for name in known if _fits(name, glob.include) and not _fits(name, glob.exclude)]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def grid(choices: dict[str, list[str]]) -> list[tuple[Variation, ...]]:
    """Every combination of the values. The last key varies fastest."""
    return list(itertools.product(*([Variation(key, value) for value in values] for key, values in choices.items())))


def job_name(number: int, variations: Sequence[Variation]) -> str:
    """The name of a job and its folder, such as 003-ppo-Pong-seed2."""
    parts = [value if key.split("@")[0] in NAMED else f"{key.split('.')[-1]}{value}" for key, value in variations]
    slug = re.sub(r"[^A-Za-z0-9._+-]+", "_", "-".join(parts)).strip("_-.")[:80]
    return f"{number:03d}-{slug}" if slug else f"{number:03d}"
