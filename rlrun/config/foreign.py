"""Checks configs that rlrun did not write, before anything in them is used.

Nothing that is read may run code, write where the user did not ask for it, or send passwords elsewhere. A config from
somebody else could do so in four ways: by a `hydra` section, which Hydra would act on; by an interpolation with a
resolver (`${oc.env:SECRET}`); by options that name code (`package.module:Name`); and by options that name folders and
addresses. The first two are refused. Code must come from installed packages, and folders and addresses are refused,
unless the user says --trust. core/plugins.py checks names of modules a second time, when they are imported. Texts are
shown on a terminal, which they may not steer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rlrun.core.errors import UserError
from rlrun.core.outputs import steers
from rlrun.core.plugins import MODULE, TRUST, check_installed

# Options whose values are folders and addresses.
PLACES = ("run_dir", "runs_root", "init", "directory", "uri", "path", "record", "address")
NOTES = ("expected", "measured")  # groups of texts about a tuned file
_REFERENCE = re.compile(r"\$\{\.*[A-Za-z_]\w*(\.\w+)*\}")  # ${algo.lr}: another option of the same config
_HYDRA = re.compile(r"(^|[/@.:\s])hydra($|[/@.:\s])")
_SCHEMES = ("http", "https", "ftp", "file", "s3", "gs")  # of addresses, which are no names of modules
_WORDS = ("override", "optional")  # keywords that may precede a group in a defaults list


def check_values(
    values: Any, source: str, trusted: bool, places: tuple[str, ...] = PLACES, unused: Collection[str] = ()
) -> None:
    """Raises UserError if values of a config that rlrun did not write may do harm.

    values: the config before its interpolations are resolved. source: the file, for messages. trusted: whether the user
    trusts the modules, folders and addresses that it names. places: options that may not name folders or addresses.
    unused: options, by path, whose values nobody uses, so that they may name any."""
    if isinstance(values, Mapping) and "hydra" in values:
        raise UserError(f"{source}: a `hydra` section can run any code, so only rlrun's own files may have one")
    for path, key, value in _walk(values, source):
        if key == "_target_":
            raise UserError(f"{source}: {path} can run any code, and rlrun never uses it; remove it")
        if not trusted and steers(list(value) if isinstance(value, Mapping) else value):
            raise UserError(f"{source}: {path or 'a key'} has characters that steer a terminal, where names are shown")
        if isinstance(value, Mapping) and key == "path" and value and not trusted and "path" in places:
            value = next(iter(value))  # data.path may be a mapping from places to their shares
        if isinstance(value, str):
            _check_text(value, path, source)
            if not trusted and path not in unused:
                if key in places:
                    raise UserError(
                        f"{source}: {path}={value} lets this file choose where results are written or sent to, or what"
                        f" is read; {TRUST} allows it, and so does a word on the command line"
                    )
                if path.split(".")[0] not in NOTES:
                    _check_names(path, key, value, source)


def _check_names(path: str, key: str, value: str, source: str) -> None:
    """Raises UserError for a value that seems to name a module of no installed package."""
    module, colon, rest = value.partition(":")
    if key == "module":
        check_installed(value, f"{source}: {path}")
    # Libraries that take such a text, as gymnasium.make does, import what stands before the colon, whatever follows.
    elif colon and MODULE.fullmatch(module.strip()) and not (module in _SCHEMES and rest.startswith("//")):
        check_installed(module.strip(), f"{source}: {path}")


def check_defaults(defaults: Any, source: str, trusted: bool) -> None:
    """Raises UserError if defaults are no list, or choose Hydra's own groups, or a module that is not trusted."""
    if not isinstance(defaults, list) or not all(isinstance(line, str | Mapping) for line in defaults):
        raise UserError(f"{source}: `defaults` must be a list of files, such as [ppo], and not {str(defaults)[:60]!r}")
    for line in defaults:
        for key, value in line.items() if isinstance(line, Mapping) else [("", line)]:
            *words, group = str(key).split() or [""]
            if any(word not in _WORDS for word in words):
                raise UserError(
                    f"{source}: `defaults` has {key!r}, and only {' and '.join(_WORDS)} may precede a group"
                )
            for text in (group, *(value if isinstance(value, list) else [value])):
                if isinstance(text, str):
                    if names_hydra(text):
                        raise UserError(f"{source}: `defaults` must not choose Hydra's own groups ({text})")
                    if "${" in text or ".." in text or any(c.isspace() for c in text):
                        raise UserError(f"{source}: `defaults` must name files of the same folder, not {text}")
                    if not trusted and ":" in text:
                        check_installed(text.split(":")[0].split("/")[-1], source)


def check_package(package: str | None, source: str) -> None:
    """Raises UserError if a file's `# @package` line puts its contents into Hydra's own config."""
    if package is not None and (names_hydra(package) or "_name_" in package or "_group_" in package):
        raise UserError(f"{source}: `# @package {package}` would change Hydra itself")


def names_hydra(text: str) -> bool:
    """Tells whether a key, a group or a package is Hydra's own, such as hydra.callbacks or override /hydra/launcher."""
    return _HYDRA.search(text) is not None


def _check_text(text: str, path: str, source: str) -> None:
    if "${" in text and ("${" in _REFERENCE.sub("", text) or "${hydra" in text):
        raise UserError(
            f"{source}: {path} has the interpolation {text!r}; only references to other options, such as ${{algo.lr}},"
            " are allowed"
        )


def _walk(values: Any, source: str, path: str = "", key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields (path, key, value) of every value, including the values in lists and the groups."""
    yield path, key, values
    if isinstance(values, Mapping):
        for name, value in values.items():
            _check_text(str(name), path or "a key", source)
            yield from _walk(value, source, f"{path}.{name}".lstrip("."), str(name))
    elif isinstance(values, list | tuple):
        for i, value in enumerate(values):
            yield from _walk(value, source, f"{path}[{i}]", key)
