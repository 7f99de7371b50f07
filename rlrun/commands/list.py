"""rlrun list algos|envs|tuned: lists all algorithms, environments or tuned files."""

from __future__ import annotations

import ast
import shutil
import textwrap

from rlrun.config.paths import options, root
from rlrun.core.errors import UserError, closest
from rlrun.core.installing import install_line


def main(words: list[str]) -> int:
    if words[:1] in (["-h"], ["--help"]) or len(words) != 1:
        print(__doc__)
        return 0 if words else 2
    kinds = {"algos": algos, "envs": envs, "tuned": tuned}
    if words[0] not in kinds:
        raise UserError(f"There is no list of {words[0]!r}.{closest(words[0], kinds)} There are algos, envs and tuned.")
    kinds[words[0]]()
    return 0


def algos() -> None:
    width = min(120, shutil.get_terminal_size((120, 40)).columns)
    for name in options("algo"):
        told = f"{name:<14}{first_sentence(docstring(name))}"
        print(textwrap.fill(told, width, subsequent_indent=" " * 14, break_on_hyphens=False))


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, in one line. A stop inside of parentheses, as in "(Mnih et al. 2016)", ends
    none."""
    whole = " ".join(text.partition("\n\n")[0].split())
    depth = 0
    for place, character in enumerate(whole):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "." and depth == 0 and whole[place + 1 : place + 2] in ("", " "):
            return whole[: place + 1]
    return whole


def docstring(algo: str) -> str:
    """The docstring of rlrun/algos/<algo>.py, read without importing the module, which would import torch."""
    import rlrun.algos

    path = next(iter(rlrun.algos.__path__))
    return ast.get_docstring(ast.parse(open(f"{path}/{algo}.py").read())) or ""


def envs() -> None:
    from rlrun.envs.names import (
        ATARI,
        EXTRA,
        GONE,
        NEEDS,
        TUPLES,
        games,
        installed,
        names,
        own_names,
        zoo_modules,
        zoo_names,
    )

    zoo = zoo_names()
    for name in names():
        if name not in zoo and name not in own_names():
            print(name)
    for name, package in sorted(zoo.items()):
        older = f", older releases: {GONE[name]}" if name in GONE and name not in zoo_modules() else ""
        absent = "" if installed(package) else f", not installed: {EXTRA}"
        print(f"{name:<32} {package}{older or absent}")
    for begin, package in TUPLES.items():
        print(f"{begin + '...':<32} {package}" + ("" if installed(package) else f", not installed: {EXTRA}"))
    for name, prefix in own_names().items():
        module, package, extra = NEEDS[prefix]
        print(f"{name:<32} {package}" + ("" if installed(module) else f", not installed: {install_line(extra)}"))
    if not games():
        print(f"(Atari games: {ATARI})")


def tuned() -> None:
    import yaml

    for name in options("tuned"):
        values = yaml.safe_load((root() / "tuned" / f"{name}.yaml").read_text())
        print(f"{name:<28} {cell('expected', values.get('expected'))}; {cell('measured', values.get('measured'))}")


def cell(label: str, values: dict | None) -> str:
    if not values or values.get("return") is None:
        return f"not {label}"
    returns, steps = (
        values[key] if isinstance(values[key], list) else [values[key]] for key in ("return", "env_steps")
    )
    return (
        f"{label} {'/'.join(f'{float(r):g}' for r in returns)} at {'/'.join(f'{float(s):,.0f}' for s in steps)} env"
        " steps"
    )
