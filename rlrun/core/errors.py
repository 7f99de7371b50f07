"""Errors that are shown to the user as a sentence instead of a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """The input is wrong. The command prints the sentence and exits with 2."""


class RunFailed(Exception):
    """The run failed although its input was right, as when a sampler is killed or an environment crashes. The command
    prints the sentence and exits with 1."""


class EnvError(Exception):
    """An environment raised. The message names the environment, its seed and its last action."""


class Notice(UserWarning):
    """Something that a user should know but that does not end the run. The command prints it without the line of code
    that issued the warning."""


def closest(word: str, options: Iterable[str], count: int = 3) -> str:
    """' Did you mean a, b?' for a mistyped word, or an empty string if no option is similar."""
    options = list(options)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(lowered[name] for name in near)}?" if near else ""
