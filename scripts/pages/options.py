"""docs/options.md: every option of conf/ with its default and its comment."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from layout import MADE, ROOT, table

from rlrun.config.paths import inner_algorithm
from rlrun.config.texts import options_of


def every_option() -> str:
    """All files of conf/, each option with its default and its comment."""
    parts = []
    groups = {path.relative_to(ROOT / "conf").parts[0] for path in (ROOT / "conf").rglob("*.yaml") if path.parent.name != "conf"}
    for file in [ROOT / "conf" / "train.yaml", *(f for g in sorted(groups) for f in sorted((ROOT / "conf" / g).rglob("*.yaml")))]:
        name = file.relative_to(ROOT / "conf").with_suffix("").as_posix()
        rows = [(f"`{key}`", default and f"`{default}`", comment) for key, default, comment in options_of(file.read_text())]
        if name.startswith("benchmark/"):  # tables are chosen by name, and their options are not typed
            continue
        said = _inherited(name, bool(rows))
        if rows or said:
            parts.append(f"## {name}\n\n{said}{table(('option', 'default', 'what it does'), rows) if rows else ''}")
    return f"""{MADE}
# Every option

Groups are chosen by `algo=NAME`, `env=NAME`, `runner=NAME`, `replay=NAME`, `model=NAME`, `resources=NAME` and
`logger=NAME`. Their options are written with the group in front: `algo.lr=1e-3`. Options under `acting`, `bandit`,
`evolution`, `off_policy` and `q_learning` belong to algorithms: `algo.num_envs=8`. Those under `optimizer` are
`algo.optimizer.NAME`, and those under `model/output` are `model.NAME`. Where a section has the options of another one
too and both list an option, the default in the section itself counts. `rlrun explain NAME` shows all options of one
algorithm together. An option that is a number or a schedule takes each of
[these forms](commands.md#numbers-and-schedules).

{chr(10).join(parts)}"""


def _inherited(file: str, has_own: bool) -> str:
    """A paragraph with links to the sections whose options a file of conf/ has too; empty where there are none."""
    also, inner = dict.fromkeys(_sources(file)), _inner(file)
    linked = _listed([_link(name) for name in also]) if also else ""
    said = f"It also has the options of {linked}.\n" if has_own else f"It has the options of {linked}, and none of its own.\n"
    said = said if also else ""
    if inner:
        said += f"The algorithm inside is {_link(f'algo/{inner}')} by default; its options are `algo.inner.NAME`.\n"
    return said and f"{said}\n"


def _inner(file: str) -> str | None:
    group, _, name = file.partition("/")
    return inner_algorithm(name) if group == "algo" else None


def _sources(file: str) -> Iterator[str]:
    """The files of conf/ whose options a file has as its own, by its defaults list, the nearest first.

    Choices of other groups (override /replay@_global_.replay) and the algorithm inside another one are left out."""
    if file == "train":  # its defaults list chooses the groups
        return
    group = file.rpartition("/")[0]
    lines = (yaml.safe_load((ROOT / "conf" / f"{file}.yaml").read_text()) or {}).get("defaults", [])
    replaced = {key.split()[1] for line in lines if isinstance(line, dict) for key in line if key.startswith("override ")}
    found = []
    for line in lines:
        for key, value in ({"": line} if isinstance(line, str) else line).items():
            name = key.removeprefix("override ").partition("@")[0]
            if value != "_self_" and not key.startswith(("override /", "/algo@inner")):
                found.append(f"{name[1:]}/{value}" if name.startswith("/") else "/".join(filter(None, (group, name, value))))
    for source in found:
        if list(options_of((ROOT / "conf" / f"{source}.yaml").read_text())):
            yield source
        # A choice that this file replaces, such as model/memory/none, is not its own.
        gone = [f"{group}/{name}/" for name in replaced if not source.startswith(f"{group}/{name}/")]
        yield from (one for one in _sources(source) if not one.startswith(tuple(gone)))


def _link(file: str) -> str:
    return f"[{file}](#{file.replace('/', '')})"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
