"""Errors that a user meets as a sentence instead of a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: the command prints the sentence and exits with 2."""


class RunFailed(Exception):
    """The run broke although its input was fine (a killed sampler, a crashing env): printed, exit 1."""


class EnvError(Exception):
    """An environment raised; says which one, its seed and its last action."""


class Notice(UserWarning):
    """Something that a user should know and that does not end the run; the command prints it without the line of code that said it."""


def closest(word: str, options: Iterable[str], count: int = 3) -> str:
    """' Did you mean a, b?' for a mistyped word, or an empty string when nothing is near."""
    options = list(options)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(lowered[name] for name in near)}?" if near else ""
