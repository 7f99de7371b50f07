"""Finds conf/ and tuned/, which are beside the package in a checkout and inside it in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def root() -> Path:
    """The folder that holds conf/ and tuned/."""
    checkout = _PACKAGE.parent
    return checkout if (checkout / "conf" / "train.yaml").is_file() else _PACKAGE / "_data"


def options(group: str) -> list[str]:
    """Names of a config group's files, including those in subfolders (`tuned` -> impala/pong, ...)."""
    folder = root() / group if group == "tuned" else root() / "conf" / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def base_options(algo: str) -> list[str]:
    """Files of conf/ from which conf/algo/<algo>.yaml inherits options, directly or indirectly, the nearest first.

    Examples: algo/ppo; q_learning/base; off_policy/deterministic and off_policy/actor_critic.
    """
    return _bases("algo", algo)


def _bases(group: str, name: str) -> list[str]:
    import yaml

    found: list[tuple[str, str]] = []
    for line in yaml.safe_load((root() / "conf" / group / f"{name}.yaml").read_text()).get("defaults", []):
        if isinstance(line, str) and line != "_self_":
            found.append((group, line))
        elif isinstance(line, dict):
            found += [(key[1:].removesuffix("@_here_"), value) for key, value in line.items() if key.endswith("@_here_")]
    return [path for base in found for path in ("/".join(base), *_bases(*base))]


def inner_algorithm(algo: str) -> str | None:
    """Default inner algorithm of conf/algo/<algo>.yaml; None if it has none."""
    import yaml

    lines = yaml.safe_load((root() / "conf" / "algo" / f"{algo}.yaml").read_text()).get("defaults", [])
    return next((line["/algo@inner"] for line in lines if isinstance(line, dict) and "/algo@inner" in line), None)


def package() -> Path:
    """The folder rlrun/ of the package."""
    return _PACKAGE
