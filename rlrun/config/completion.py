"""Shell completion, installed with `eval "$(rlrun -sc install=bash)"`.

The shell then runs `rlrun -sc query=bash` with COMP_LINE set. This module never imports torch, so that it answers
quickly.
"""

from __future__ import annotations

import os

from rlrun.core.errors import UserError

BASH = """_rlrun_complete() {
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" rlrun -sc query=bash 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o default -F _rlrun_complete rlrun
"""


def complete(words: list[str]) -> int:
    verb = words[1] if len(words) > 1 else ""
    if verb == "install=bash":
        print(BASH)
        return 0
    if verb == "uninstall=bash":
        print("complete -r rlrun; unset -f _rlrun_complete")
        return 0
    if verb == "query=bash":
        line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", 10**6))]
        print("\n".join(suggestions(line)))
        return 0
    raise UserError("completion: rlrun -sc install=bash, uninstall=bash or query=bash")


def suggestions(line: str) -> list[str]:
    """Words that can complete the end of the line."""
    from rlrun.commands import COMMANDS
    from rlrun.config.hydra_errors import GROUPS, known_keys
    from rlrun.config.paths import options

    words = line.split()
    current = "" if line.endswith(" ") or not words else words.pop()
    if len(words) < 2:  # only rlrun so far, perhaps with the start of a subcommand
        return [name for name in COMMANDS if name.startswith(current)]
    command = words[1]
    if command == "list":
        return [kind for kind in ("algos", "envs", "tuned") if kind.startswith(current)]
    if command == "explain":
        return [name for name in options("algo") if name.startswith(current)]
    if command == "benchmark" and len(words) == 2:
        return [name for name in ("throughput", "replay") if name.startswith(current)]
    if command not in ("train", "sweep", "benchmark"):
        return []
    group, equals, value = current.partition("=")
    if not equals:
        keys = {key + "=" for key in known_keys() if key not in GROUPS and key != "env"} | {
            f"{g}=" for g in (*GROUPS, "env", "logger", "model/memory")
        }
        return sorted(key for key in keys if key.startswith(current) and not _is_group(key, keys))
    if group == "env":
        from rlrun.envs.names import names

        return [f"env={name}" for name in names() if name.startswith(value)]
    if group in (*GROUPS, "logger", "model/memory"):
        return [f"{group}={name}" for name in options(group) if name.startswith(value)]
    return []


def _is_group(key: str, keys: set[str]) -> bool:
    """Whether the key is a group like `stop=`, whose options are `stop.wall_sec=` and so on."""
    return (
        any(other.startswith(key[:-1] + ".") for other in keys)
        and "." not in key
        and key[:-1] in ("stop", "eval", "checkpoint")
    )
