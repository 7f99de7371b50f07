"""Where conf/ and tuned/ are: beside the package in a checkout, inside it in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """The folder that holds conf/ and tuned/."""
    checkout = _PACKAGE.parent
    return checkout if (checkout / "conf" / "train.yaml").is_file() else _PACKAGE / "_data"


def options(group: str) -> list[str]:
    """Names of a config group's files, sub-folders included (`tuned` -> impala/pong, ...)."""
    folder = root() / group if group == "tuned" else root() / "conf" / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml"))


def base_options(algo: str) -> list[str]:
    """Files of conf/ whose options conf/algo/<algo>.yaml begins with: algo/ppo, or q_learning/base."""
    import yaml

    lines = yaml.safe_load((root() / "conf" / "algo" / f"{algo}.yaml").read_text()).get("defaults", [])
    found = [f"algo/{line}" for line in lines if isinstance(line, str) and line != "_self_"]
    for line in lines:
        if isinstance(line, dict):
            found += [f"{group[1:].removesuffix('@_here_')}/{name}" for group, name in line.items() if group.endswith("@_here_")]
    return found


def inner_algorithm(algo: str) -> str | None:
    """The algorithm that conf/algo/<algo>.yaml puts inside, unless another is chosen."""
    import yaml

    lines = yaml.safe_load((root() / "conf" / "algo" / f"{algo}.yaml").read_text()).get("defaults", [])
    return next((line["/algo@inner"] for line in lines if isinstance(line, dict) and "/algo@inner" in line), None)


def package() -> Path:
    """rlrun/ itself."""
    return _PACKAGE
