"""The files of conf/ as text, comments included, for `rlrun explain`, `rlrun train --help` and docs/options.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

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

# How the meaning of an option begins where it stands behind the option, and only a remark stands above.
MEANING = re.compile(
    r"(rows (per|learnt|that)|updates between|env steps before|weight of|learning rate|wrappers of|added to"
    r"|trajectories with) ?"
)
UNIT = re.compile(
    r"((env )?steps|rows|updates|tasks|seconds|episodes|moves|no-ops|failures|nodes|fragments|MiB|1 / unit)\b"
)


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


def options_of(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields (option, default, comment) of a file of options. A comment stands above its option or behind it. The
    default of an option that only holds others is empty."""
    above: list[str] = []
    inside: list[tuple[int, str]] = []
    skipped = False
    for line in text.splitlines():
        if not line.strip():
            above = []
        elif line.lstrip().startswith("#"):
            above.append(line.strip().lstrip("# "))
        elif option := re.match(r"( *)([A-Za-z_][\w-]*):(?: +(.*?))?(?: +# (.*))?$", line):
            depth = len(option[1])
            skipped = option[2] in ("defaults", "hydra", "by_observation", "auto_images") if not depth else skipped
            inside = [part for part in inside if part[0] < depth]
            name = ".".join([*(part[1] for part in inside), option[2]])
            inside.append((depth, option[2]))
            comment = _joined(" ".join(above), option[4] or "")
            above = []
            if not skipped and (option[3] or comment):
                yield name, option[3] or "", comment


def _joined(above: str, behind: str) -> str:
    """The comments above and behind an option, with its meaning first, then its values, its unit or another name."""
    if not above or not behind:
        return above or behind
    if MEANING.match(behind):
        return f"{behind[0].upper()}{behind[1:]}. {above}"
    if behind.startswith(("RLlib", "run.")):
        return f"{above} ({behind})"
    above += "." * above[-1].isalnum()
    if behind.startswith("must "):
        return f"{above} It {behind}."
    if re.fullmatch(r"\w+", behind) and behind in above.lower():
        return above
    if UNIT.match(behind):
        return f"{above} Unit: {behind}."
    # A sentence begins with a capital letter.
    whole = re.match(r"\S+: |env\.|[A-Z]", behind)
    return f"{above} {behind}." if whole else f"{above} Value: {behind}."
