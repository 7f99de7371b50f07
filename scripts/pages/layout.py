"""What all pages have in common: where they are, their first line and their tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))  # rlrun itself, where it is not installed

MADE = "<!-- scripts/docs makes this page; change what it is made from. -->\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in line) + " |" for line in lines) + "\n"
