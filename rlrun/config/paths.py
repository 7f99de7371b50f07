"""Where conf/ and tuned/ are: beside the package in a checkout, inside it in an installed wheel."""

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def root() -> Path:
    """The folder that holds conf/ and tuned/."""
    checkout = _PACKAGE.parent
    return checkout if (checkout / "conf" / "train.yaml").is_file() else _PACKAGE / "_data"


def options(group: str) -> list[str]:
    """Names of a config group's files, sub-folders included (`tuned` -> impala/pong, ...)."""
    folder = root() / group if group == "tuned" else root() / "conf" / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def base_options(algo: str) -> list[str]:
    """Files of conf/ whose options conf/algo/<algo>.yaml begins with, and theirs: algo/ppo, or q_learning/base, or off_policy/deterministic and
    off_policy/actor_critic. The nearest first."""
    return _bases("algo", algo)


def included_groups(algo: str) -> dict[str, str]:
    """Files of conf/ that hold a group of an algorithm's options, by the group's name: {"optimizer": "optimizer/base"}."""
    found: dict[str, str] = {}
    for file in (f"algo/{algo}", *base_options(algo)):
        for line in _defaults(file):
            for key, value in line.items() if isinstance(line, dict) else ():
                included = re.fullmatch(r"/(\w+)@(\w+)", key)
                if included and included[1] != "algo" and included[2] != "_here_":
                    found.setdefault(included[2], f"{included[1]}/{value}")
    return found


def _defaults(file: str) -> list:
    """The defaults list of conf/<file>.yaml."""
    import yaml

    return yaml.safe_load((root() / "conf" / f"{file}.yaml").read_text()).get("defaults", [])


def _bases(group: str, name: str) -> list[str]:
    found: list[tuple[str, str]] = []
    for line in _defaults(f"{group}/{name}"):
        if isinstance(line, str) and line != "_self_":
            found.append((group, line))
        elif isinstance(line, dict):
            found += [(key[1:].removesuffix("@_here_"), value) for key, value in line.items() if key.endswith("@_here_")]
    return [path for base in found for path in ("/".join(base), *_bases(*base))]


def inner_algorithm(algo: str) -> str | None:
    """The algorithm that conf/algo/<algo>.yaml puts inside, unless another is chosen."""
    return next((line["/algo@inner"] for line in _defaults(f"algo/{algo}") if isinstance(line, dict) and "/algo@inner" in line), None)


def package() -> Path:
    """rlrun/ itself."""
    return _PACKAGE
