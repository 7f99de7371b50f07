"""Checks configs that rlrun did not write, before anything in them is used.

Nothing that is read may run code. A config from somebody else can name code in three ways: a `hydra` section, which
Hydra would instantiate, an interpolation with a resolver (`${oc.env:SECRET}`), and an option that takes a class of the
user's own package (`package.module:Name`). The first two are refused. The third is refused unless the module belongs
to an installed distribution, or the user says --trust.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from rlrun.core.errors import UserError

TRUST = "--trust"
NOTES = ("expected", "measured")  # groups of texts about a tuned file, which are never loaded
_REFERENCE = re.compile(r"\$\{\.*[A-Za-z_]\w*(\.\w+)*\}")  # ${algo.lr}: another option of the same config
_OBJECT = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[\w.\-/]+")  # package.module:Name
_HYDRA = re.compile(r"(^|[/@.:])hydra($|[/@.:])")


def check_values(values: Any, source: str, trusted: bool) -> None:
    """Raises UserError if values of a config that rlrun did not write may run code.

    values: the config before its interpolations are resolved. source: the file, for messages. trusted: whether the user
    trusts the modules that it names."""
    if isinstance(values, Mapping) and "hydra" in values:
        raise UserError(f"{source}: a `hydra` section can run any code, so only rlrun's own files may have one")
    for path, key, value in _walk(values):
        if key == "_target_":
            raise UserError(f"{source}: {path} can run any code, and rlrun never uses it; remove it")
        if isinstance(value, str):
            _check_text(value, path, source)
            if not trusted and path.split(".")[0] not in NOTES:
                for module in modules_of(key, value):
                    check_module(module, f"{source}: {path}")


def check_defaults(defaults: Any, source: str, trusted: bool) -> None:
    """Raises UserError if a defaults list chooses Hydra's own groups, or a module that is not trusted."""
    for line in defaults if isinstance(defaults, list) else [defaults]:
        for key, value in line.items() if isinstance(line, Mapping) else [("", line)]:
            for text in (str(key).removeprefix("override "), *(value if isinstance(value, list) else [value])):
                if isinstance(text, str):
                    if names_hydra(text):
                        raise UserError(f"{source}: `defaults` must not choose Hydra's own groups ({text})")
                    if "${" in text or ".." in text:
                        raise UserError(f"{source}: `defaults` must name files of the same folder, not {text}")
                    if not trusted:
                        for module in modules_of("", text.strip()):
                            check_module(module, f"{source}: defaults")


def check_package(package: str | None, source: str) -> None:
    """Raises UserError if a file's `# @package` line puts its contents into Hydra's own config."""
    if package is not None and (names_hydra(package) or "_name_" in package):
        raise UserError(f"{source}: `# @package {package}` would change Hydra itself")


def names_hydra(text: str) -> bool:
    """Tells whether a key, a group or a package is Hydra's own, such as hydra.callbacks or override /hydra/launcher."""
    return _HYDRA.search(text.strip()) is not None


def modules_of(key: str, value: str) -> list[str]:
    """Returns the modules that an option's value names, such as my_package.envs of `my_package.envs:Maze-v0`."""
    if key == "module" and re.fullmatch(r"[A-Za-z_][\w.]*", value):
        return [value]
    return [value.split(":")[0]] if _OBJECT.fullmatch(value) and "://" not in value else []


def check_module(module: str, where: str) -> None:
    """Raises UserError if a module belongs to no installed distribution."""
    if not installed(module.split(".")[0]):
        raise UserError(
            f"{where} names the module {module}, which no installed package contains and which would be run;"
            f" {TRUST} allows it, and so does installing its package"
        )


def installed(name: str) -> bool:
    """Tells whether a top-level module comes with Python or with an installed distribution. Imports nothing."""
    if name in sys.stdlib_module_names or name == "rlrun":
        return True
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return True  # nothing can run; the option that names the module says that it is missing
    places = [Path(found.origin)] if found.origin else [Path(place) for place in found.submodule_search_locations or ()]
    folders = [*_site_folders(), *_edited().get(name, ())]
    return all(any(place.resolve().is_relative_to(folder) for folder in folders) for place in places)


@cache
def _site_folders() -> list[Path]:
    """The folders into which packages are installed."""
    names = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    return [Path(name).resolve() for name in (*names, site.getusersitepackages())]


@cache
def _edited() -> dict[str, list[Path]]:
    """Top-level modules of distributions that were installed with pip install -e, with their source folders."""
    made: dict[str, list[Path]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            said = json.loads(distribution.read_text("direct_url.json") or "{}")
        except ValueError:
            continue
        if said.get("dir_info", {}).get("editable") and str(said.get("url", "")).startswith("file://"):
            source = Path(unquote(urlparse(said["url"]).path)).resolve()
            for name in (distribution.read_text("top_level.txt") or "").split():
                made.setdefault(name, []).append(source)
    return made


def _check_text(text: str, path: str, source: str) -> None:
    if "${" in text and ("${" in _REFERENCE.sub("", text) or "${hydra" in text):
        raise UserError(
            f"{source}: {path} has the interpolation {text!r}; only references to other options, such as ${{algo.lr}},"
            " are allowed"
        )


def _walk(values: Any, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields (path, key, value) of every value, including the values in lists and the groups."""
    yield path, key, values
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _walk(value, f"{path}.{name}".lstrip("."), str(name))
            _check_text(str(name), path or "a key", "the config")
    elif isinstance(values, list | tuple):
        for i, value in enumerate(values):
            yield from _walk(value, f"{path}[{i}]", key)
