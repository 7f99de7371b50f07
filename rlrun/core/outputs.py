"""Outputs that nobody reads any more, as in `rlrun train ... | head`, and terminals that are gone. A command goes on
without them to its end, and a run of a Python program too, because hours of training are worth more than words."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

# Characters by which a text can steer the terminal that shows it: all that control, but for ends of lines and tabs.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def steers(values: Any) -> bool:
    """Whether a text, or one in nested dicts and lists, could steer the terminal that shows it."""
    if isinstance(values, Mapping):
        return any(steers(part) for pair in values.items() for part in pair)
    if isinstance(values, list | tuple):
        return any(map(steers, values))
    return isinstance(values, str) and _STEERING.search(values) is not None


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a file on a disk without room
LOST = (errno.EPIPE, errno.EIO)  # errors of an output that nobody will ever read again: of a pipe, of a terminal


class _Announced:
    """What is said on stderr when nobody reads stdout any more; an empty text says nothing."""

    text = ""


class _Output(io.FileIO):
    """stdout or stderr. It becomes /dev/null when nobody can read it any more. A full disk is no error while a run or a
    sweep goes on, which would lose more than its words."""

    name_in_sys = ""
    before: Any = None  # what it stands in for, which would close the file if nobody held it

    def write(self, data: Any) -> Any:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in FULL and _Announced.text:
                return len(data)
            if error.errno not in LOST:
                raise
            to_nowhere(self.fileno())
            if self.name_in_sys == "stdout" and _Announced.text:
                with contextlib.suppress(OSError):  # stderr may be lost too
                    os.write(2, f"rlrun: {_Announced.text}\n".encode())
            return len(data)


def go_on_unread() -> None:
    """From now on, what this process prints is left out where nobody reads it any more, and raises no error.

    Something else that stands in the place of sys.stdout or sys.stderr, such as a test's, stays."""
    for name in ("stdout", "stderr"):
        text = getattr(sys, name)
        if type(text) is not io.TextIOWrapper or type(getattr(text.buffer, "raw", text.buffer)) is not io.FileIO:
            continue
        with contextlib.suppress(OSError):
            text.flush()
        raw = _Output(text.fileno(), "w", closefd=False)
        raw.name_in_sys, raw.before = name, text
        buffer: Any = raw if isinstance(text.buffer, io.FileIO) else io.BufferedWriter(raw)  # as python -u made it
        made = io.TextIOWrapper(
            buffer,
            encoding=text.encoding,
            errors=text.errors,
            newline="\n",
            line_buffering=text.line_buffering,
            write_through=text.write_through,
        )
        setattr(sys, name, made)


def announce(text: str) -> None:
    """Sets what is said on stderr when nobody reads stdout any more; an empty text says nothing."""
    _Announced.text = text


def tell(text: str, file: TextIO | None = None) -> None:
    """Prints words of a run or a sweep, by default to stdout. In a Python program, whose outputs are its own, words
    that nobody reads any more are no reason to end what it has begun."""
    try:
        print(text, file=file, flush=True)
    except OSError as error:
        if error.errno not in (*LOST, *FULL):
            raise


def open_outputs() -> None:
    """Opens /dev/null in the place of standard input and outputs that are closed (`>&-`). Another file would get their
    numbers, and sys.stdout is None."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def same_output() -> bool:
    """Whether stdout and stderr are one file, such as a terminal."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except (OSError, ValueError, AttributeError):  # a test's or a notebook's have no number
        return False


def to_nowhere(output: int) -> None:
    """Puts /dev/null in the place of an output, for this process and the programs that it starts from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
