"""Shell completion for bash, zsh and fish.

bash: eval "$(rlrun -sc install=bash)"; zsh: eval "$(rlrun -sc install=zsh)"; fish: rlrun -sc install=fish | source. The
shell then runs `rlrun -sc query=SHELL` with COMP_LINE set. This module never imports torch, so that it answers quickly.
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


# zsh's compadd is told not to add a blank behind words that end with =.
ZSH = """_rlrun() {
    local -a found more
    local word
    for word in "${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" rlrun -sc query=zsh 2>/dev/null)}"; do
        [[ -z "$word" ]] && continue
        if [[ "$word" == *= ]]; then more+=("$word"); else found+=("$word"); fi
    done
    (( ${#more} )) && compadd -Q -S '' -a more
    (( ${#found} )) && compadd -Q -a found
    (( ${#more} + ${#found} )) || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _rlrun rlrun
"""

FISH = """function __rlrun_complete
    set -lx COMP_LINE (commandline -cp)
    rlrun -sc query=fish 2>/dev/null
end
complete -c rlrun -a '(__rlrun_complete)'
"""

MEASURES = ("throughput", "growth", "replay", "reproduce-tables", "tuned")  # what rlrun benchmark measures
INSTALL = {"bash": BASH, "zsh": ZSH, "fish": FISH}
UNINSTALL = {
    "bash": "complete -r rlrun; unset -f _rlrun_complete",
    "zsh": "compdef -d rlrun; unfunction _rlrun",
    "fish": "complete -c rlrun -e; functions -e __rlrun_complete",
}


def complete(words: list[str]) -> int:
    """Answers `rlrun -sc install=SHELL`, uninstall=SHELL and query=SHELL. Raises UserError for anything else."""
    verb, _, shell = (words[1] if len(words) > 1 else "").partition("=")
    if shell not in INSTALL or verb not in ("install", "uninstall", "query"):
        raise UserError(
            "completion: rlrun -sc install=SHELL or uninstall=SHELL prints what the shell has to run; SHELL is bash,"
            " zsh or fish"
        )
    if verb == "query":
        line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", 10**6))]
        print("\n".join(suggestions(line)))
    else:
        print((INSTALL if verb == "install" else UNINSTALL)[shell])
    return 0


def suggestions(line: str) -> list[str]:
    """Words that can complete the end of the line."""
    from rlrun.commands import COMMANDS
    from rlrun.config.hydra_errors import GROUPS
    from rlrun.config.option_names import known_keys
    from rlrun.config.paths import choices, options

    words = line.split()
    current = "" if line.endswith(" ") or not words else words.pop()
    if len(words) < 2:  # only rlrun so far, perhaps with the start of a subcommand
        return [name for name in COMMANDS if name.startswith(current)]
    command = words[1]
    if command == "list":
        return [kind for kind in ("algos", "envs", "tuned") if kind.startswith(current)]
    if command == "explain":
        from rlrun.config.texts import CHOICES, sections

        if current.startswith("env="):
            return _environments(current.removeprefix("env="))
        group, equals, value = current.partition("=")
        if equals and group in CHOICES:
            return [f"{group}={name}" for name in options(group) if name.startswith(value)]
        return [name for name in [*options("algo"), *CHOICES, *sections(), "env="] if name.startswith(current)]
    if command == "check-env":
        if current.startswith("env=") or "=" not in current:
            from rlrun.envs.names import names

            bare, prefix = current.removeprefix("env="), "env=" * current.startswith("env=")
            own = [option for option in ("seconds=", "env.kwargs=") if option.startswith(current)]
            return [*own, *(f"{prefix}{name}" for name in names() if name.startswith(bare))]
        return []
    if command == "setup":
        from rlrun.core.installing import extras

        return [name for name in extras() if name.startswith(current)]
    if command == "benchmark" and len(words) == 2:
        return [name for name in MEASURES if name.startswith(current)]
    if command not in ("train", "sweep", "benchmark"):
        return []
    group, equals, value = current.partition("=")
    if not equals:
        keys = {key + "=" for key in known_keys(chosen_algorithm(words)) if key not in GROUPS and key != "env"} | {
            f"{g}=" for g in (*GROUPS, "env")
        }
        return sorted(key for key in keys if key.startswith(current) and not _is_group(key, keys))
    if group == "env":
        return _environments(value)
    if group in GROUPS:
        return [f"{group}={name}" for name in choices(group) if name.startswith(value)]
    return []


def chosen_algorithm(words: list[str]) -> str | None:
    """The algorithm that the words choose, by algo= or tuned=; None if they choose none, or several."""
    from rlrun.config.paths import options

    given = dict(word.split("=", 1) for word in words if "=" in word)
    algo = given.get("algo") or given.get("tuned", "").split("/")[0]
    return algo if algo in options("algo") else None


def _environments(begin: str) -> list[str]:
    from rlrun.envs.names import names

    return [f"env={name}" for name in names() if name.startswith(begin)]


def _is_group(key: str, keys: set[str]) -> bool:
    """Whether the key is a group like `stop=`, whose options are `stop.wall_sec=` and so on."""
    return (
        any(other.startswith(key[:-1] + ".") for other in keys)
        and "." not in key
        and key[:-1] in ("stop", "eval", "checkpoint")
    )
