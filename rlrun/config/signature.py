"""Signs the files from which runs are started again, so that rlrun knows those that were made here.

`config.yaml` and `sweep.json` name modules and commands, and resume, evaluate and export run them. Each has a signature
beside it: an HMAC-SHA256 (RFC 2104) of its contents, and one of its folder, with a key that only this user can read.
Directories from elsewhere have none, and rlrun/config/foreign.py checks them more strictly.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import Notice
from rlrun.core.plugins import only_installed

SUFFIX = ".signature"


def key_path() -> Path:
    """The file that holds this user's key."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "rlrun" / "signing.key"


def write_signed(path: Path, text: str) -> None:
    """Writes a file and its signature, such that a process that is killed meanwhile leaves a file with one.

    While the file is replaced, the signature has two lines, of which one is that of the old contents and the other one
    that of the new ones. OSError if the disk is full; the old file stays."""
    with contextlib.suppress(RuntimeError, OSError):
        key, data = _key(make=True), text.encode()
        lines = [_digest(path, key)] if signed(path) else []  # never that of contents from elsewhere
        lines += [_digest(path, key, data), _place(path, key)]
        write_atomically(beside(path), "\n".join(lines) + "\n")
    write_atomically(path, text)
    sign(path)


def sign(path: Path) -> None:
    """Writes the signature of a file beside it. If there can be no key, a warning says so and none is written."""
    try:
        key = _key(make=True)
        write_atomically(beside(path), f"{_digest(path, key)}\n{_place(path, key)}\n")
    except (OSError, RuntimeError) as error:
        if signed(path):  # it has been signed beforehand
            return
        # Without a home folder there is no path of a key, and the error says so.
        why = f"{key_path()}: {error.strerror}" if isinstance(error, OSError) else error
        warnings.warn(
            f"{path} is not signed ({why}); if it names modules of your own, it needs --trust later",
            Notice,
            stacklevel=2,
        )


class SignedFile(NamedTuple):
    """The contents of a file, and what its signature says about these contents.

    Whoever uses the contents takes both from here. If the file were read a second time, somebody who may write to the
    folder could have it signed at one moment and read at another."""

    data: bytes
    signed: bool  # whether they have this user's signature
    in_place: bool  # whether they were signed in this folder, or in this one under another name


def read_signed(path: Path) -> SignedFile:
    """Reads a file once. OSError if it cannot be read."""
    data = path.read_bytes()
    ours = _holds(path, lambda file, key: _digest(file, key, data))
    return SignedFile(data, ours, ours and _holds(path, _place))


def signed(path: Path) -> bool:
    """Tells whether a file has this user's signature."""
    return _holds(path, _digest)


def in_place(path: Path) -> bool:
    """Tells whether a file has this user's signature and its folder is the one in which it was signed, or that one
    under another name. A copy is another folder: whoever had it may have put symbolic links into it."""
    return _holds(path, _digest) and _holds(path, _place)


def guarded(own: bool) -> AbstractContextManager[None]:
    """A block in which only classes of installed packages may be named, where a run directory is from elsewhere and the
    user does not trust it. Around a run that was made here it changes nothing, because that may name the user's own
    modules, also in a program that is not the command. own: whether it was made here, or the user trusts it."""
    return nullcontext() if own else only_installed()


def _holds(path: Path, line: Callable[[Path, bytes], str]) -> bool:
    try:
        own = line(path, _key(make=False)).encode()
        return any(hmac.compare_digest(one.encode(), own) for one in beside(path).read_text().split())
    except (OSError, RuntimeError, ValueError):
        return False


def beside(path: Path) -> Path:
    """The file of a file's signature, such as .config.yaml.signature."""
    return path.with_name(f".{path.name}{SUFFIX}")


def _digest(path: Path, key: bytes, data: bytes | None = None) -> str:
    """The signature of a file, with these contents or those that it has."""
    # The file's name is part of what is signed, so that a signature of one kind of file does not fit another.
    data = path.read_bytes() if data is None else data
    return hmac.new(key, path.name.encode() + b"\0" + data, hashlib.sha256).hexdigest()


def _place(path: Path, key: bytes) -> str:
    """The signature of a file's folder, by the number that its file system has given it."""
    at = path.absolute().parent.stat()
    return hmac.new(key, f"place\0{path.name}\0{at.st_dev}:{at.st_ino}".encode(), hashlib.sha256).hexdigest()


def _key(make: bool) -> bytes:
    """Reads this user's key. RuntimeError if others could read it too, OSError if it cannot be read or made."""
    path = key_path()
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The file appears with its contents, so that a process that starts at the same time never reads half a key.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
    if path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
        raise RuntimeError("others can read this key, so that it proves nothing; chmod 600 or remove it")
    key = path.read_bytes()
    if len(key) < 32:
        raise RuntimeError("the key is damaged; remove it")
    return key
