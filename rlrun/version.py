"""The version of rlrun, by itself, so that the command need not import what the package offers to Python."""

VERSION = "0.1.0"


def sources() -> str:
    """The version and a digest of the package's sources, which tell two machines whether they run the same code."""
    import hashlib
    from pathlib import Path

    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    return f"{VERSION}, sources {code.hexdigest()[:12]}"
