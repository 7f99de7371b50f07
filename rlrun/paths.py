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


def package() -> Path:
    """rlrun/ itself."""
    return _PACKAGE
