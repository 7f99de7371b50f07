"""The files of conf/ as text, comments included, for `rlrun explain` and `rlrun train --help`."""

from __future__ import annotations

import re

from rlrun.config.paths import bases, options, root

# Groups of which one file is chosen, and what is said about the choice.
CHOICES = {
    "resources": "Which parts of this machine are used: resources=NAME, resources.<option>=<value>",
    "runner": "Who waits for whom. The algorithm chooses its runner; runner.<option>=<value>",
    "replay": "What off-policy algorithms remember: replay=NAME, replay.<option>=<value>",
    "model": "Networks: model=NAME, model.<option>=<value>",
    "env": "Environments. The name of an environment decides its family; env.<option>=<value>",
    "logger": "Loggers, in addition to progress.jsonl: logger=[NAME,NAME], logger.<NAME>.<option>=<value>",
}


def text_of(file: str) -> str:
    return (root() / "conf" / f"{file}.yaml").read_text()


def without_defaults(text: str) -> str:
    """The text of a yaml file, comments included, without Hydra's defaults list."""
    lines, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("defaults:") or (inside and (line.startswith((" ", "-")) or not line.strip()))
        if not inside:
            lines.append(line)
    return "\n".join(lines) + "\n"


def of_runs() -> str:
    """The options of every run, which are in conf/train.yaml, without groups and without Hydra's own."""
    text = without_defaults(text_of("train")).partition("\nhydra:")[0]
    return text.partition("\n")[2].strip() + "\n"


def sections() -> dict[str, str]:
    """The parts of conf/train.yaml that have options of their own, such as stop, eval and checkpoint."""
    found: dict[str, str] = {}
    above: list[str] = []
    name = ""
    for line in of_runs().splitlines():
        if line.startswith("#"):
            above.append(line)
            continue
        if not line.startswith(" "):
            top = re.fullmatch(r"(\w+):", line.rstrip())
            name = top[1] if top else ""
            if name:
                found[name] = "\n".join([*above, ""]) if above else ""
            above = []
        if name:
            found[name] += "".join(f"{kept}\n" for kept in above) + line + "\n"
            above = []
    return {name: text.rstrip() + "\n" for name, text in found.items()}


def of_group(group: str) -> list[tuple[str, str]]:
    """The choices of a group with their texts, such as ("resources=auto", ...)."""
    return [(f"{group}={name}", without_defaults(text_of(f"{group}/{name}"))) for name in options(group)]


def of_choice(group: str, name: str) -> list[tuple[str, str]]:
    """A choice of a group and what it inherits from, nearest first, each with its text."""
    memory = re.search(r"override memory: (\w+)", text_of(f"{group}/{name}"))
    files = [f"{group}/{name}", *([f"{group}/memory/{memory[1]}"] if memory else []), *bases(group, name)]
    return [(file.replace("/", "=", 1), without_defaults(text_of(file))) for file in files]
