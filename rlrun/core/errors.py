"""Errors that are shown to the user as a sentence instead of a traceback."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Final


class UserError(Exception):
    """The input is wrong. The command prints the sentence and exits with 2."""


class RunFailed(Exception):
    """The run failed although its input was right, as when a sampler is killed or an environment crashes. The command
    prints the sentence and exits with 1."""


class ProcessLost(RunFailed):
    """A process of the run has died or does not answer. What it did can be done again from a checkpoint."""


class Diverged(RunFailed):
    """The learner itself failed: what it has learnt is worth less than its last checkpoint."""


class EnvError(Exception):
    """An environment raised, or returned something wrong. The command prints the sentence and exits with 1.

    The message names the environment, its number among all environments of the run (its column), and its seed."""

    def __init__(self, name: str, numbers: range, seed: int | None, what: str):
        """numbers: the environments among which it is; a library that steps several at once may not say which one it
        was. what: what it did, such as "failed in reset: KeyError: 'x'"."""
        super().__init__(name, numbers, seed, what)
        self.name, self.numbers, self.seed, self.what = name, numbers, seed, what

    def __str__(self) -> str:
        first, last = self.numbers[0], self.numbers[-1]
        which = f"env {first}" if first == last else f"envs {first} to {last},"
        return f"{self.name}, {which}{'' if self.seed is None else f' (seed {self.seed})'} {self.what}"

    @property
    def kind(self) -> str:
        """What two failures of the same cause have in common: the exception and its place, without step and action."""
        return self.what.partition(": ")[2] or self.what

    def counted_from(self, first: int) -> EnvError:
        """Returns the same error of an environment whose numbers begin at `first` and not at 0."""
        moved = range(self.numbers.start + first, self.numbers.stop + first)
        return EnvError(self.name, moved, self.seed, self.what)


# What the user's own code may raise. A sys.exit() in it, which some simulators have, must not end a run without a word.
FAILURES: Final = (Exception, SystemExit)

# What the system refuses, whatever a program does: errno, and the sentence for it.
_REFUSED = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "your quota of the disk is used up: free some space",
    errno.EROFS: "the disk may only be read",
    errno.EFBIG: "a file would be larger than is allowed here (ulimit -f)",
    errno.EMFILE: "too many files are open in one process: raise the limit (ulimit -n 4096)",
    errno.ENFILE: "too many files are open on this machine",
}


def refused(error: BaseException) -> str | None:
    """Returns a sentence for an error by which the system refuses space or files, or None for any other error."""
    if not isinstance(error, OSError) or error.errno not in _REFUSED:
        return None
    where = f"{error.filename}: " if isinstance(error.filename, str) else ""
    return f"{where}{_REFUSED[error.errno]}"


def without_memory(error: BaseException) -> str | None:
    """Returns a sentence for an error by which memory is refused to PyTorch or NumPy, or None for any other error."""
    text = " ".join(str(error).split())
    on_gpu = type(error).__name__ == "OutOfMemoryError"  # torch's, for a GPU
    if not on_gpu and not isinstance(error, MemoryError) and "you tried to allocate" not in text:
        return None
    size = _ALLOCATED.search(text)
    asked = "" if size is None else f" for the {_gib(*size.groups())} that were asked for"
    return (
        f"the {'GPU' if on_gpu else 'machine'} has not enough memory{asked}: make the networks, the batches"
        " (algo.batch_size) or the replay (replay.capacity) smaller, or take fewer environments"
    )


def without_threads(error: BaseException) -> str | None:
    """Returns a sentence for an error by which the system refuses a thread, or None for any other error."""
    if not isinstance(error, RuntimeError) or "can't start new thread" not in str(error):
        return None
    return (
        "no more threads and processes are allowed here: raise the limit (ulimit -u, or --pids-limit of a container),"
        " or take fewer processes, or a single one (resources.inference=serial)"
    )


# How PyTorch and NumPy say how much they asked for: "you tried to allocate 4000000000000 bytes", "Tried to allocate
# 20.00 GiB", "Unable to allocate 7.28 TiB for an array".
_ALLOCATED = re.compile(r"(?:tried|Tried|Unable) to allocate ([\d.]+) (bytes|[KMGTPE]iB)")


def _gib(number: str, unit: str) -> str:
    """A size as text, such as 3,725 GiB."""
    powers = {"bytes": -3, "KiB": -2, "MiB": -1, "GiB": 0, "TiB": 1, "PiB": 2, "EiB": 3}
    size = float(number) * 1024.0 ** powers[unit]
    return f"{size:,.0f} GiB" if size >= 10 else f"{size:.2g} GiB"


def told(error: BaseException, *ours: str) -> str:
    """Returns an exception of the user's code as part of a sentence: its kind, its message and the line that raised it.

    ours: files that only call the user's code. Where none of the user's lines has part in it, rlrun's own is named."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in ours]
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    package = Path(__file__).resolve().parent.parent

    def foreign(frame: traceback.FrameSummary) -> bool:
        path = Path(frame.filename)
        return frame.filename.startswith("<") or any(path.is_relative_to(one) for one in folders)

    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(package)]
    own = [frame for frame in frames if frame not in inside and not foreign(frame)]
    has_line = isinstance(error, SyntaxError) and not (error.filename or "<").startswith(
        "<"
    )  # of a file, not of a text
    named = [] if has_line else own or inside or frames
    place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in named[-1:])
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if said else ''}{said}{place}"


# The flag of every command by which tracebacks are shown, and the environment variable that tells it to the processes
# of a run.
TRACEBACK, _SHOWN = "--traceback", "RLRUN_TRACEBACK"


def show_tracebacks() -> None:
    """Lets this process, and those that it starts from now on, show tracebacks beside sentences."""
    os.environ[_SHOWN] = "1"


def tracebacks_shown() -> bool:
    return os.environ.get(_SHOWN) == "1"


def explained(error: BaseException) -> str:
    """Returns what a person is told about an error: its sentence, or its kind, message and line where it has none.

    With --traceback the traceback follows, of the process in which the error was raised."""
    has_sentence = isinstance(error, UserError | RunFailed | EnvError | KeyboardInterrupt)
    said = str(error) if has_sentence else _refusal(error) or told(error)
    if tracebacks_shown():
        carried = "\nTraceback" in said  # it comes from another process
        return said if carried else f"{said}\n{''.join(traceback.format_exception(_whole(error))).rstrip()}"
    return said if has_sentence or refused(error) is not None else f"{said}; {TRACEBACK} shows where it came from"


def _refusal(error: BaseException) -> str | None:
    return refused(error) or without_memory(error) or without_threads(error)


def _whole(error: BaseException) -> BaseException:
    """Lets a traceback show what an error was made from, also where `from None` would hide it."""
    one: BaseException | None = error
    while one is not None:
        one.__suppress_context__ = one.__cause__ is not None
        one = one.__cause__ or one.__context__
    return error


class Notice(UserWarning):
    """Something that a user should know but that does not end the run. The command prints it without the line of code
    that issued the warning."""


def show_notices() -> None:
    """Lets this process print notices also where PYTHONWARNINGS hides warnings or makes errors of them. A checkpoint
    that a full disk left out would end the run otherwise."""
    warnings.filterwarnings("default", category=Notice)


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


def closest(word: str, options: Iterable[str], count: int = 3, prefix: str = "") -> str:
    """' Did you mean a, b?' for a mistyped word, or an empty string if no option is similar. prefix: is put before each
    option that is named."""
    options = list(options)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(prefix + lowered[name] for name in near)}?" if near else ""
