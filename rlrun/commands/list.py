"""rlrun list algos|envs|tuned: lists all algorithms, environments or tuned files."""

from __future__ import annotations

import ast
import shutil
import textwrap

from rlrun.config.paths import options, root
from rlrun.core.errors import UserError, closest
from rlrun.core.installing import install_line


def main(words: list[str]) -> int:
    if not words or any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0 if words else 2
    kinds = {"algos": algos, "envs": envs, "tuned": tuned}
    if words[0] not in kinds:
        meant = {"algorithms": "algos", "games": "envs", "environments": "envs", "examples": "tuned"}.get(words[0])
        near = f" Did you mean {meant}?" if meant else closest(words[0], kinds)
        raise UserError(f"There is no list of {words[0]!r}.{near} There are algos, envs and tuned.")
    if len(words) > 1:
        raise UserError(f"rlrun list takes one word, such as {words[0]}: {words[1]!r} is one too many")
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


# The headings of `rlrun list envs`, by where the class of a Gymnasium environment is from.
HEADINGS = {
    "gymnasium.envs.classic_control": "Gymnasium: classic control",
    "gymnasium.envs.toy_text": "Gymnasium: toy text",
    "gymnasium.envs.box2d": "Gymnasium: Box2D",
    "gymnasium.envs.mujoco": "Gymnasium: MuJoCo",
    "minigrid": "MiniGrid and BabyAI",
    "rlrun": "rlrun's own",
    "": "other packages that register with Gymnasium",
}


def envs() -> None:
    """Prints one environment a line below the heading of its family. Headings begin with #."""
    from rlrun.envs.names import (
        AGENT_GAMES,
        ATARI,
        EXTRA,
        GONE,
        GRIDS,
        NEEDS,
        TUPLES,
        games,
        installed,
        names,
        own_names,
        zoo_modules,
        zoo_names,
    )

    zoo, own = zoo_names(), own_names()
    others = {*games(), *AGENT_GAMES, *zoo, *own}
    groups: dict[str, list[str]] = {heading: [] for heading in HEADINGS.values()}
    for name in names():
        if name not in others:
            module = _module(name)
            part = next(part for part in HEADINGS if module == part or module.startswith(f"{part}." if part else ""))
            needed = next((NEEDS[part] for part in NEEDS if module.startswith(part)), None)
            groups[HEADINGS[part]].append(_line(name, needed and _absent(*needed)))
    if not groups[HEADINGS["minigrid"]]:
        module, package, extra = NEEDS["minigrid"]
        groups[HEADINGS["minigrid"]] = [_line(f"{begin}...", _absent(module, package, extra)) for begin in GRIDS]
    groups["rlrun's own, with several agents"] = list(AGENT_GAMES)
    groups["Atari games"] = sorted(games()) or [f"({ATARI} installs them)"]
    for package, heading in (("pettingzoo", "PettingZoo"), ("mpe2", "mpe2")):
        lines = groups[heading] = []
        for name in sorted(name for name in zoo if zoo[name] == package):
            older = f", older releases: {GONE[name]}" if name in GONE and name not in zoo_modules() else ""
            absent = "" if installed(package) else f", not installed: {EXTRA}"
            lines.append(f"{name:<32} {package}{older or absent}")
    groups["level-based foraging and the warehouse"] = [
        f"{begin + '...':<32} {package}" + ("" if installed(package) else f", not installed: {EXTRA}")
        for begin, package in TUPLES.items()
    ]
    for prefix in dict.fromkeys(own.values()):
        module, package, extra = NEEDS[prefix]
        groups[package] = [
            _line(name, _absent(module, package, extra) or package) for name in own if own[name] == prefix
        ]
    print("\n\n".join("\n".join([f"# {heading}", *lines]) for heading, lines in groups.items() if lines))


def _module(name: str) -> str:
    """The module that a Gymnasium environment's class is from."""
    import gymnasium

    entry = gymnasium.registry[name].entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")


def _absent(module: str, package: str, extra: str) -> str:
    """What to install for an environment, or "" where its package is there."""
    from rlrun.envs.names import installed

    return "" if installed(module) else f"{package}, not installed: {install_line(extra)}"


def _line(name: str, told: str | None) -> str:
    return f"{name:<32} {told}" if told else name


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
