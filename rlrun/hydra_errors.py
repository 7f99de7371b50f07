"""Hydra's complaints as sentences with the closest name."""

from __future__ import annotations

import re

from rlrun.core.errors import UserError, closest
from rlrun.paths import options

GROUPS = ("algo", "model", "resources", "runner", "tuned")


def check_groups(words: list[str]) -> None:
    """UserError for an option of a group that does not exist: Hydra would print all 400 envs."""
    if any(word.startswith(("--config-dir", "-cd", "hydra.searchpath")) for word in words):
        return  # the user brought options of their own; Hydra judges
    for word in words:
        group, equals, value = word.partition("=")
        if not equals or "," in value or value in ("", "null", "???"):
            continue
        if group == "env":
            from rlrun.envs.names import family_of

            if value not in ("atari", "gym"):
                family_of(value)
        elif group in GROUPS or group == "model/memory":
            known = options(group)
            if value not in known:
                raise UserError(f"There is no {group} {value!r}.{closest(value, known)} There are: {', '.join(known)}")


def translate(error: Exception, words: list[str]) -> str:
    """One sentence for an exception of Hydra or OmegaConf."""
    text = str(error)
    cause = str(error.__cause__ or "")
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown and "not in struct" in text + cause:
        return f"There is no option {unknown[1]}.{closest(unknown[1], known_keys())}"
    if "You must specify" in text:
        group = re.search(r"specify '([^']+)'", text)
        name = group[1] if group else "a group"
        return f"{name}= is missing: say algo=... and env=..., or tuned=... (rlrun list {'envs' if name == 'env' else name + 's'})"
    first = [line.strip() for line in text.splitlines() if line.strip()]
    return first[0] if first else type(error).__name__


def known_keys() -> list[str]:
    """Every dotted key of conf/, for suggestions."""
    import yaml

    from rlrun.paths import root

    found: list[str] = []

    def walk(values: dict, prefix: str) -> None:
        for key, value in values.items():
            if key in ("defaults", "hydra"):
                continue
            found.append(f"{prefix}{key}")
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")

    walk(yaml.safe_load((root() / "conf" / "train.yaml").read_text()), "")
    for group in ("algo", "env", "model", "resources", "runner"):
        for path in (root() / "conf" / group).glob("*.yaml"):
            walk(yaml.safe_load(path.read_text()) or {}, f"{group}.")
    return sorted(set(found))
