"""What the names of options mean: which options there are, and which one is meant by a name that is none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.config.paths import (
    base_options,
    files,
    group_defaults,
    included_groups,
    inner_algorithm,
    options,
    output_of,
    package,
    root,
)
from rlrun.core.errors import UserError, closest

KINDS = {
    "atari": "Atari games",
    "gym": "Gymnasium environments",
    "agents": "environments with several agents",
    "dmc": "dm-control's tasks",
    "crafter": "Crafter",
}
# Options of environments that mean nearly the same in different families: the other's name, and what it takes.
TWINS = {
    "frame_skip": ("action_repeat", "N"),
    "action_repeat": ("frame_skip", "N"),
    "max_frames": ("max_episode_steps", "DECISIONS"),
    "max_episode_steps": ("max_frames", "FRAMES"),
}


def asked_family(words: list[str]) -> str | None:
    """The family that env.family= asks for; None if no word does."""
    return next((word.partition("=")[2] for word in words if word.lstrip("+").startswith("env.family=")), None)


def nearest(key: str, words: list[str], folder: Path | None = None) -> str:
    """Returns ' Did you mean ...?' with an option of the chosen algorithm, or of the inner one for its keys.

    folder: the user's own folder of options."""
    if (own := own_keys(words, folder)) is not None:
        return closest(key, own)
    algo = chosen(words)
    inner = chosen(words, "algo@algo.inner") or (inner_algorithm(algo) if algo else None)
    if key.startswith("algo.inner."):
        return closest(
            key, [name.replace("algo.", "algo.inner.", 1) for name in known_keys(inner) if name.startswith("algo.")]
        )
    found = env_family(words)
    there = None if found is None else {f"env.{name}" for name in group_defaults("env", found[1])}
    known = [name for name in known_keys(algo) if there is None or not name.startswith("env.") or name in there]
    groups = [] if "." in key else ["algo", "env", "model", "logger", "replay", "resources", "runner", "tuned"]
    return closest(key, [*groups, *(name for name in known if name != key)])


def own_keys(words: list[str], folder: Path | None) -> list[str] | None:
    """Returns the dotted keys of an algorithm of the user's own and of those that its file begins with; None where the
    chosen algorithm is rlrun's."""
    import yaml

    name = dict(word.split("=", 1) for word in words if "=" in word).get("algo")
    if folder is None or name not in files(folder / "algo"):
        return None
    values = yaml.safe_load((folder / "algo" / f"{name}.yaml").read_text()) or {}
    bases = [line for line in values.get("defaults", ()) if line in options("algo")]
    others = [key for base in bases or [None] for key in known_keys(base) if bases or not key.startswith("algo.")]
    return [*(f"algo.{key}" for key in values if key != "defaults"), *others]


def elsewhere(key: str) -> str:
    """Returns ' with the ... that were chosen' for a key that exists in other groups."""
    return " with the algo, env and runner that were chosen" if key in known_keys() else ""


def env_family(words: list[str]) -> tuple[str, str] | None:
    """Returns the environment of env=... or tuned=..., and its family; None if there is none of that name."""
    from rlrun.envs.names import family_of

    said = dict(word.split("=", 1) for word in words if "=" in word)
    name = said.get("env") or tuned_choice(said.get("tuned"), "env")
    if name in options("env"):
        return name, name
    try:
        return None if name is None else (name, family_of(name, asked_family(words), needed=False)[0])
    except UserError:
        return None


def of_another_env(key: str, words: list[str]) -> str:
    """Returns a sentence about an option that other kinds of environments have than the one that was chosen, with the
    option that this one has in its place; '' if there is none such."""
    from rlrun.envs.names import resolve

    group, _, name = key.partition(".")
    found = env_family(words)
    if group != "env" or found is None or name in group_defaults("env", found[1]):
        return ""
    env, family = found
    kinds = [KINDS[one] for one in KINDS if name in group_defaults("env", one)]
    if not kinds:
        return ""
    twin = TWINS.get(name)
    other = ""
    if twin is not None and twin[0] in group_defaults("env", family):
        other = f": env.{twin[0]}={twin[1]} is the option here"
    elif family == "atari" and name in group_defaults("env", "gym"):
        game = resolve(env.removeprefix("atari/")) or "GAME"
        other = f": env=gym/ALE/{game}-v5 is the game as Gymnasium makes it, and has the option"
    return f"{key} is an option of {_either(kinds)}, and env={env} is of the family {family}{other}"


def of_a_logger(key: str) -> str:
    """Returns a sentence about an option of a logger that was left out; '' if it is none."""
    parts = key.split(".")
    if parts[0] != "logger" or len(parts) < 3 or parts[1] not in options("logger"):
        return ""
    if parts[2] not in group_defaults("logger", parts[1]).get(parts[1], {}):
        return ""
    return f"{key} is an option of the logger {parts[1]}, which logger= leaves out: write it into the list too"


def _has(values: Any, path: list[str]) -> bool:
    """Whether nested values have an option of this path."""
    for name in path:
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


def belonging(key: str, words: list[str]) -> str:
    """Returns a sentence that names the choices of a group that have this option, or '' if there are none."""
    found = [
        (group, name)
        for group in ("replay", "runner", "model/memory", "resources")
        if key.startswith(f"{group.replace('/', '.')}.")
        for name in options(group)
        if _has(group_defaults(group, name), key.split(".")[group.count("/") + 1 :])
    ]
    if found:
        names = [name for _, name in found]
        return f"{key} is an option of {found[0][0].split('/')[0]}={_either(names)}, which was not chosen"
    algo = chosen(words)
    having = [
        name
        for name in options("algo")
        if key.rpartition(".")[0] == "model"
        and inner_algorithm(name) is None
        and key.rpartition(".")[2] in group_defaults("model/output", output_of(name))
    ]
    if algo is None or not having:
        return ""
    inner = chosen(words, "algo@algo.inner") or inner_algorithm(algo)
    return f"{key} is an option of algo={_either(having)}; {algo}{f' around {inner}' if inner else ''} does not use it"


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


# Libraries whose names of options have a file in rlrun/data.
OTHERS = (("Stable-Baselines3", "stable_baselines3"), ("CleanRL", "cleanrl"), ("Sample Factory", "sample_factory"))


def counterpart(key: str, words: list[str]) -> str:
    """Returns ' RLlib's gamma is algo.discount here.' for names of RLlib and of the libraries in OTHERS, else ''."""
    import yaml

    from rlrun.rllib.option_map import option_map

    algo, name, inside = chosen(words), key.split(".")[-1], key.startswith("algo.inner.")
    if algo is None:
        return ""
    for row in option_map(algo):
        if row["rllib"] == name and row["rlrun"] != key:
            return (
                f" RLlib's {name} is {row['rlrun']} here{_in_parentheses(row.get('why'))}."
                if row["rlrun"]
                else f" RLlib's {name} has no counterpart: {row['why']}."
            )
    known = known_keys((chosen(words, "algo@algo.inner") or inner_algorithm(algo)) if inside else algo)
    for whose, file in OTHERS:
        row = yaml.safe_load((package() / "data" / f"{file}.yaml").read_text()).get(name, {"ours": []})
        there = (
            option for option in row["ours"] if option in known or option in ("env", "model", "resources", "logger")
        )
        ours = next((option for option in there if option != key), None)
        how = row.get("how")
        how = _in_parentheses(how.get(ours) if isinstance(how, dict) else how)
        if ours:
            ours = ours.replace("algo.", "algo.inner.", 1) if inside else ours
            return f" {whose}'s {name} is {ours} here{how}."
    return ""


def _in_parentheses(text: str | None) -> str:
    return f" ({text})" if text else ""


def chosen(words: list[str], group: str = "algo") -> str | None:
    """Returns the algorithm of algo=... or of tuned=...; None if there is no algorithm of that name."""
    said = dict(word.split("=", 1) for word in words if "=" in word)
    algo = said.get(group)
    if algo is None and group == "algo":
        algo = tuned_choice(said.get("tuned"), "algo")
    return algo if algo in options("algo") else None


def tuned_choice(tuned: str | None, group: str) -> str | None:
    """Returns what a tuned file of rlrun's chooses of a group; None if it chooses nothing or is not there."""
    import yaml

    if tuned not in options("tuned"):
        return None
    values = yaml.safe_load((root() / "tuned" / f"{tuned}.yaml").read_text())
    word = f"override /{group}"
    return next((line[word] for line in values["defaults"] if isinstance(line, dict) and word in line), None)


def known_keys(algo: str | None = None) -> list[str]:
    """Returns every dotted key of conf/ for suggestions, with the options of this algorithm or, without one, of all."""
    import yaml

    found: set[str] = set()

    def walk(values: dict, prefix: str) -> None:
        for key, value in values.items():
            if key in ("defaults", "hydra", "by_observation", "auto_images"):
                continue
            found.add(f"{prefix}{key}")
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")

    def read(path: str, prefix: str) -> None:
        text = (root() / "conf" / f"{path}.yaml").read_text()
        walk(yaml.safe_load(text) or {}, "" if text.startswith("# @package _global_") else prefix)

    read("train", "")
    for group in ("env", "model", "resources", "runner", "replay"):
        for name in options(group):
            inside = name.split("/")[0] if "/" in name else ""
            read(f"{group}/{name}", f"{group}.{inside}." if inside not in ("", "output") else f"{group}.")
    for name in options("algo") if algo is None else [algo]:
        for path in (f"algo/{name}", *base_options(name)):
            read(path, "algo.")
        for group, path in included_groups(name).items():
            found.add(f"algo.{group}")
            read(path, f"algo.{group}.")
    return sorted(found)
