"""rlrun train --help: what can be typed, and every option with its comment."""

from __future__ import annotations

import textwrap

from rlrun.commands.explain import groups_of
from rlrun.config.paths import base_options, choices, included_groups, inner_algorithm, options, runner_of
from rlrun.config.texts import CHOICES, of_runs, text_of, without_defaults
from rlrun.core.errors import UserError, closest

HEAD = """rlrun train algo=ALGO env=ENV [group=option] [key=value]
rlrun train tuned=ALGO/ENV [group=option] [key=value]
rlrun train --plan algo=ALGO env=ENV ...       prints what the run would be made of on this machine, and why
rlrun train --from-run RUN_DIR [key=value]     makes a run again in a new directory
rlrun train --help algo=ALGO env=ENV           prints the options of every run, this algorithm and this environment

--cfg job prints the whole config of a command without running it. --config-dir DIR adds a folder of your own options,
and --trust lets it name modules that no installed package has. `rlrun explain` says more about an algorithm, a group or
an environment.

Groups, of which a file is chosen:
"""


def show(words: list[str]) -> int:
    """Prints the help; words: those of the command, which may choose an algorithm and an environment."""
    given = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))
    algo = given.get("algo") or given.get("tuned", "").split("/")[0]
    if algo and algo not in options("algo"):
        raise UserError(f"There is no algorithm {algo!r}.{closest(algo, options('algo'))} rlrun list algos shows all.")
    print(HEAD)
    for group, names in groups():
        print(textwrap.fill(f"  {group}={', '.join(names)}", 118, subsequent_indent=" " * (len(group) + 3)))
    print(f"\nOptions of every run\n\n{of_runs()}")
    print(part("resources", text_of("resources/auto"), CHOICES["resources"]))
    if algo:
        of_algorithm(algo)
    if "env" in given:
        from rlrun.envs.names import family_of

        family, _ = family_of(given["env"])
        print(part("env", text_of(f"env/{family}"), f"Options of its environment, of the family {family}"))
    if not algo:
        print("rlrun train --help algo=NAME adds the options of one algorithm.")
    return 0


def groups() -> list[tuple[str, list[str]]]:
    """The groups of which a run chooses a file, and what there is to choose."""
    models = choices("model")
    return [
        ("algo", options("algo")),
        ("env", ["a name of `rlrun list envs` or package:Class"]),
        ("tuned", ["a name of `rlrun list tuned`, in place of algo and env"]),
        ("resources", options("resources")),
        ("replay", options("replay")),
        ("runner", options("runner")),
        ("model", models),
        ("logger", [f"[{','.join(options('logger'))}]"]),
    ]


def part(group: str, text: str, title: str) -> str:
    return f"{title}\n\n{group}:\n{textwrap.indent(without_defaults(text).strip(), '  ')}\n"


def of_algorithm(algo: str) -> None:
    """Prints the options of an algorithm, of the one inside and of the groups that they choose."""
    inner = inner_algorithm(algo)
    for path, name in [("algo", algo), *([("algo.inner", inner)] if inner else [])]:
        for file in (f"algo/{name}", *base_options(name)):
            print(part(path, text_of(file), f"Options of {file}; if shown twice, the first value counts"))
        for group, file in included_groups(name).items():
            print(part(f"{path}.{group}", text_of(file), f"Options of {file}; if shown twice, the first value counts"))
    for title, files in groups_of(algo, inner):
        print(f"{title}\n")
        for file in files:
            print(textwrap.indent(without_defaults(text_of(file)).strip(), "  ") + "\n")
    runner = runner_of(algo) or (runner_of(inner) if inner else None) or "actor_learner"
    print(part("runner", text_of(f"runner/{runner}"), f"Options of its runner, {runner}"))
