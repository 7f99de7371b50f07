"""Finds conf/ and tuned/, which are beside the package in a checkout and inside it in an installed wheel."""

import re
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent.parent


def root() -> Path:
    """The folder that holds conf/ and tuned/."""
    checkout = _PACKAGE.parent
    return checkout if (checkout / "conf" / "train.yaml").is_file() else _PACKAGE / "_data"


def options(group: str) -> list[str]:
    """Names of a config group's files, including those in subfolders (`tuned` -> impala/pong, ...)."""
    return files(root() / group if group == "tuned" else root() / "conf" / group)


def choices(group: str) -> list[str]:
    """Names that the word GROUP=NAME takes. Subfolders of conf/model are groups of their own, such as model/memory."""
    return [name for name in options(group) if group == "tuned" or "/" not in name]


def files(folder: Path) -> list[str]:
    """Names of the yaml files in a folder and in its subfolders."""
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def base_options(algo: str) -> list[str]:
    """Files of conf/ from which conf/algo/<algo>.yaml inherits options, directly or indirectly, the nearest first.

    Examples: algo/ppo; q_learning/base; off_policy/deterministic and off_policy/actor_critic.
    """
    return bases("algo", algo)


def group_defaults(group: str, name: str) -> dict[str, Any]:
    """Returns the values of a choice of a group, such as replay/prioritized, including those that it inherits.

    Groups inside are left out, as they are choices of their own (model/memory)."""
    import yaml

    merged: dict[str, Any] = {}
    for path in reversed([f"{group}/{name}", *bases(group, name)]):
        merged |= yaml.safe_load((root() / "conf" / f"{path}.yaml").read_text()) or {}
    merged.pop("defaults", None)
    return merged


def included_groups(algo: str) -> dict[str, str]:
    """Maps the groups in an algorithm's options to their files in conf/: {"optimizer": "optimizer/base"}."""
    found: dict[str, str] = {}
    for file in (f"algo/{algo}", *base_options(algo)):
        for line in _defaults(file):
            for key, value in line.items() if isinstance(line, dict) else ():
                included = re.fullmatch(r"/(\w+)@(\w+)", key)
                if included and included[1] != "algo" and included[2] != "_here_":
                    found.setdefault(included[2], f"{included[1]}/{value}")
    return found


@cache
def _defaults(file: str) -> list:
    """The defaults list of conf/<file>.yaml."""
    import yaml

    return (yaml.safe_load((root() / "conf" / f"{file}.yaml").read_text()) or {}).get("defaults", [])


def bases(group: str, name: str) -> list[str]:
    """Files of conf/ from which a choice of a group inherits options, directly or indirectly, the nearest first."""
    found: list[tuple[str, str]] = []
    for line in _defaults(f"{group}/{name}"):
        if isinstance(line, str) and line != "_self_":
            found.append((group, line))
        elif isinstance(line, dict):
            found += [
                (key[1:].removesuffix("@_here_"), value)
                for key, value in line.items()
                if key.startswith("/") and key.endswith("@_here_")
            ]
    return [path for base in found for path in ("/".join(base), *bases(*base))]


def inner_algorithm(algo: str) -> str | None:
    """Default inner algorithm of conf/algo/<algo>.yaml; None if it has none."""
    return next(
        (line["/algo@inner"] for line in _defaults(f"algo/{algo}") if isinstance(line, dict) and "/algo@inner" in line),
        None,
    )


def runner_of(algo: str) -> str | None:
    """The runner that conf/algo/<algo>.yaml chooses, or a file that it inherits from; None if none does."""
    return _choice(algo, "override /runner@_global_.runner")


def replay_of(algo: str) -> str | None:
    """The file of conf/replay that an algorithm chooses; None if it has no replay."""
    return _choice(algo, "override /replay@_global_.replay")


def model_of(algo: str) -> str:
    """The file of conf/model that an algorithm chooses."""
    return _choice(algo, "override /model@_global_.model") or "auto"


def output_of(algo: str) -> str:
    """The file of conf/model/output that an algorithm chooses, or else the algorithm inside."""
    chosen, inner = _choice(algo, "override /model/output@_global_.model"), inner_algorithm(algo)
    return chosen or (output_of(inner) if inner else "distribution_and_value")


def _choice(algo: str, override: str) -> str | None:
    for file in (f"algo/{algo}", *base_options(algo)):
        for line in _defaults(file):
            chosen = line.get(override) if isinstance(line, dict) else None
            if chosen:
                return chosen
    return None


def package() -> Path:
    """The folder rlrun/ of the package."""
    return _PACKAGE
