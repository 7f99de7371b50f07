"""scripts/docs [--check]

Makes those pages of docs/ whose facts are in the code, in conf/, in tuned/ and in tuned/results/."""

from __future__ import annotations

import sys

from algorithms import algorithms
from cluster_scale import cluster_scale
from layout import DOCS
from options import every_option
from results import results
from speed import speed

PAGES = {
    "algorithms.md": algorithms,
    "results.md": results,
    "speed.md": speed,
    "options.md": every_option,
    "cluster_scale.md": cluster_scale,
}


def main() -> int:
    words = set(sys.argv[1:])
    if words - {"--check"}:
        print(__doc__)
        return 2
    stale = []
    for name, make in PAGES.items():
        text, path = make().rstrip() + "\n", DOCS / name
        if not path.exists() or path.read_text() != text:
            stale.append(f"docs/{name}")
            if "--check" not in words:
                path.write_text(text)
    for name in stale:
        print(f"{name} {'is not what scripts/docs writes' if '--check' in words else 'is written'}")
    return int("--check" in words and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
