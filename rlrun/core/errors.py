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


def check_name(name: object, what: str) -> str:
    """Returns a name from which a path is made. Raises UserError if it could lead out of its folder.

    what: what the name is, such as "the experiment's name"."""
    text = str(name)
    known = all(character.isalnum() or character in "-_.+= ()," for character in text)
    fitting = known and text and text[0] not in ".-" and len(text) <= 200
    if not fitting:
        raise UserError(
            f"{what} is {text!r}, and files are named after it: it may have letters, digits, spaces and - _ . + = ( ) ,"
            " and must begin with a letter, a digit or _"
        )
    return text


def closest(word: str, options: Iterable[str], count: int = 3) -> str:
    """' Did you mean a, b?' for a mistyped word, or an empty string if no option is similar."""
    options = list(options)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(lowered[name] for name in near)}?" if near else ""
