"""The one door through which code of the user's own packages comes in.

Configs name such code as `package.module:Name`. Who may name it depends on where a config comes from:

- Words of the command line, and configs that this user signed or trusts, may name any module. Modules in the current
  folder can be imported once they are named in that way. The current folder is not on the path before, because a file
  that merely lies there must not be imported in place of a missing package.
- Other files may only name classes of installed packages (`only_installed()`). Functions and Python's own modules are
  refused, since a call of one of them can do anything. So are packages that have nothing to do with reinforcement
  learning, and what a package does as a program, because importing these is enough: `flask.__main__` reads the words of
  the command line and runs app.py of the current folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from rlrun.core.errors import UserError, closest, told

if TYPE_CHECKING:
    from importlib.metadata import Distribution

TRUST = "--trust"
# Who needs one of these has environments, wrappers or networks.
FITTING = ("gymnasium", "pettingzoo", "torch", "rlrun")
# Wrappers of Gymnasium, Stable-Baselines3 and Minari that write files into any folder that their arguments name.
WRITERS = {"RecordVideo", "Monitor", "VideoRecorder", "VecVideoRecorder", "DataCollector"}
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_NAMED = re.compile(r"([A-Za-z_][\w.]*):(?=[^\s/])|\bmodule=([A-Za-z_][\w.]*)")
_OBJECT = re.compile(r"([A-Za-z_][\w.]*):(?=([A-Za-z_][\w.]*))")


class _Door:
    """Which modules may be imported in this process."""

    closed = False  # whether only installed packages may be named, apart from `named`
    trusted = False  # whether the user trusts all that is read, so that nothing closes the door
    named: ClassVar[set[str]] = set()  # top-level modules that the user named or trusts
    away: ClassVar[set[str]] = set()  # those of them that may not be imported from the current folder
    objects: ClassVar[set[str]] = set()  # package.module:Name of what may be called though it is no class


def allow(values: Any, here: bool = True) -> None:
    """Lets the modules be imported that the user's words, or the values of a config of the user's own, name. Functions
    may be called only if they are named there themselves.

    here: whether they may be in the current folder. Those of a copy may not: whoever published it could have put
    modules of these names beside it."""
    tops = {module.split(".")[0] for module in modules_in(values)}
    if here:
        _Door.away -= tops
    else:
        _Door.away |= tops - _Door.named
    _Door.named |= tops
    _Door.objects |= set(_objects_in(values))


@contextmanager
def only_installed(closed: bool = True) -> Iterator[None]:
    """Refuses modules of no installed package that the user has not named. If `closed` is false, it allows all, and so
    do blocks inside this one."""
    before = _Door.closed, _Door.trusted, set(_Door.named), set(_Door.away), set(_Door.objects)
    _Door.trusted = _Door.trusted or not closed
    _Door.closed = not _Door.trusted
    try:
        yield
    finally:
        _Door.closed, _Door.trusted, _Door.named, _Door.away, _Door.objects = before


def modules_in(values: Any) -> set[str]:
    """Returns the modules that words of a command line, or values of a config, may name."""
    if isinstance(values, Mapping):
        made = {str(values["module"])} if isinstance(values.get("module"), str) else set()
        return made.union(*map(modules_in, values.values()))
    if isinstance(values, list | tuple | set):
        return set().union(*map(modules_in, values))
    return {name for pair in _NAMED.findall(values) for name in pair if name} if isinstance(values, str) else set()


def _objects_in(values: Any) -> Iterator[str]:
    """Every package.module:Name in these values."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple | set):
        for value in values:
            yield from _objects_in(value)
    elif isinstance(values, str):
        yield from (":".join(found) for found in _OBJECT.findall(values))


def is_path(name: str) -> bool:
    return ":" in name


def import_named(module: str, option: str) -> ModuleType:
    """Imports a module that an option names. Raises UserError if it may not be imported, or if it would end the
    process, and what the module itself raises otherwise."""
    if not MODULE.fullmatch(module):
        raise UserError(f"{option}: {module!r} is not the name of a module, such as my_package.module")
    top = module.split(".")[0]
    named = top in _Door.named or not _Door.closed
    if named:
        here = os.getcwd()
        if here not in sys.path and (Path(here, top).is_dir() or Path(here, f"{top}.py").is_file()):
            if top not in _Door.away:
                sys.path.append(here)  # last, so that it hides no installed package
            elif importlib.util.find_spec(top) is None:
                raise UserError(
                    f"{option}: {module} lies in the current folder, and the run that names it is a copy of one of"
                    f" yours, so that somebody else may have put it there: {TRUST} imports it all the same"
                )
    else:
        check_installed(module, option)
    try:
        with nullcontext() if named else _no_words():
            return importlib.import_module(module)
    except SystemExit as left:
        raise UserError(
            f"{option}: importing {module} ends the process (SystemExit: {left.code}); what a module does as a program"
            ' belongs below a line `if __name__ == "__main__":`'
        ) from None


@contextmanager
def _no_words() -> Iterator[None]:
    """A block in which a module that acts as a program when it is imported sees no words of the command line."""
    words = sys.argv
    sys.argv = words[:1]
    try:
        yield
    finally:
        sys.argv = words


def lacking(error: ImportError, module: str) -> str:
    """What an import lacks, as the end of a sentence: the module itself, or what it imports."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return str(error)
    if module == error.name or module.startswith(f"{error.name}."):
        return f"{error} ({module} is looked for in the current folder and on PYTHONPATH)"
    return f"it imports {error.name}, which is not installed"


def hiding(module: str) -> str:
    """Returns a sentence if an imported module is another one than a file of this name in the current folder; else ''.

    Python's own modules and installed packages come first."""
    here = Path.cwd()
    file = here / f"{module.replace('.', '/')}.py"
    found = getattr(sys.modules.get(module), "__file__", None)
    if found is None or not file.is_file() or Path(found).resolve() == file.resolve():
        return ""
    mine = file.relative_to(here)
    return f" {found} was imported, and not {mine} of the current folder: give that file another name."


def load_object(name: str, option: str, base: type | tuple[type, ...] | None = None) -> Any:
    """Returns the object that `package.module:Name` names. Raises UserError, which names the option, if it does not
    exist or cannot be imported.

    base: a class, or several, from one of which it must derive if it is named by a file that only may name classes of
    installed packages.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UserError(f"{option}={name}: name it as package.module:Name")
    try:
        made: Any = import_named(module, f"{option}={name}")
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"{option}={name}: cannot import {module}: {lacking(error, module)}") from None
    except Exception as error:  # the user's own module may raise anything
        raise UserError(f"{option}={name}: importing {module} fails: {told(error, __file__)}") from None
    try:
        for part in attribute.split("."):
            made = getattr(made, part)
    except AttributeError:
        raise UserError(
            f"{option}={name}: {module} has no {attribute}."
            f"{hiding(module) or closest(attribute, vars(importlib.import_module(module)))}"
        ) from None
    if _Door.closed and name not in _Door.objects and base is not None:
        if not (isinstance(made, type) and issubclass(made, base)):
            bases = " or ".join(one.__name__ for one in (base if isinstance(base, tuple) else (base,)))
            raise UserError(f"{option}={name} is not a class that derives from {bases}; {TRUST} allows it")
        if WRITERS & {one.__name__ for one in made.__mro__}:
            raise UserError(f"{option}={name} writes files into any folder that a file names; {TRUST} allows it")
        if module.split(".")[0] not in _Door.named:
            check_installed(made.__module__, f"{option}={name}")
    return made


def check_installed(module: str, where: str) -> None:
    """Raises UserError if a module belongs to no installed distribution that may have environments or networks, or if
    it is a program."""
    top, *_ = parts = module.split(".")
    if not installed(top):
        raise UserError(
            f"{where}: {module} is not part of an installed package: add {TRUST} to use it in a file, or install its"
            " package"
        )
    if top not in FITTING and top not in _edited() and top not in _fitting():
        raise UserError(
            f"{where}: {module} is part of a package that needs none of {', '.join(FITTING)}, and a file from elsewhere"
            f" may only name packages that do: add {TRUST} to use it in a file"
        )
    if any(part.startswith("__") and part.endswith("__") for part in parts):
        raise UserError(f"{where}: importing {module} may run a program; {TRUST} lets a file from elsewhere name it")


def installed(name: str) -> bool:
    """Tells whether a top-level module belongs to an installed distribution. Imports nothing.

    Python's own modules do not: no class of theirs belongs into a run, and many of their functions run commands."""
    if name == "rlrun":
        return True
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return False
    places = [Path(found.origin)] if found.origin else [Path(place) for place in found.submodule_search_locations or ()]
    folders = [*_site_folders(), *_edited().get(name, ())]
    return bool(places) and all(any(place.resolve().is_relative_to(one) for one in folders) for place in places)


@cache
def _site_folders() -> list[Path]:
    """The folders into which packages are installed."""
    names = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    return [Path(name).resolve() for name in (*names, site.getusersitepackages())]


@cache
def _fitting() -> frozenset[str]:
    """Top-level modules of installed distributions that need one of FITTING, themselves or by another that does."""
    from importlib import metadata  # see _edited

    found = {_plain(one.metadata["Name"] or ""): one for one in metadata.distributions(path=_path())}
    needs: dict[str, set[str]] = {}
    for name, distribution in found.items():
        asked = [(_plain(line), "extra" in line.partition(";")[2]) for line in distribution.requires or ()]
        # An optional requirement counts if it is one of FITTING itself: that is how many libraries name torch.
        needs[name] = {other for other, extra in asked if not extra or other in FITTING}
    fits = set(FITTING)
    while more := {name for name, others in needs.items() if others & fits} - fits:
        fits |= more
    return frozenset(top for name in fits & found.keys() for top in _tops(found[name]))


def _plain(requirement: str) -> str:
    """The name of the distribution at the beginning of a requirement, in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]).lower()


def _tops(distribution: Distribution) -> set[str]:
    """The top-level modules of an installed distribution."""
    if said := (distribution.read_text("top_level.txt") or "").split():
        return set(said)
    return {file.parts[0].split(".")[0] for file in distribution.files or () if file.suffix in (".py", ".so")}


def _path() -> list[str]:
    return [str(folder) for folder in _site_folders()]


@cache
def _edited() -> dict[str, list[Path]]:
    """Top-level modules of distributions that were installed with pip install -e, with their source folders."""
    from importlib import metadata  # these two take as long to import as the rest of `rlrun --help`
    from urllib.parse import unquote, urlparse

    made: dict[str, list[Path]] = {}
    for distribution in metadata.distributions(path=_path()):
        try:
            said = json.loads(distribution.read_text("direct_url.json") or "{}")
        except ValueError:
            continue
        if said.get("dir_info", {}).get("editable") and str(said.get("url", "")).startswith("file://"):
            source = Path(unquote(urlparse(said["url"]).path)).resolve()
            for name in (distribution.read_text("top_level.txt") or "").split():
                made.setdefault(name, []).append(source)
    return made
