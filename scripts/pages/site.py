"""scripts/docs --build [FOLDER]

Makes the site of mkdocs.yml in site/, or in FOLDER. Pages are laid out below build/pages as they lie in the repository,
so that a link leads to the same place on the forge and on the site. Links from a page to a file that is no page, such
as an example's source, are followed too: those files become part of the site. A link that leads nowhere ends it with
exit code 1."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "pages"
STYLE = ROOT / "docs" / "site.css"  # mkdocs.yml names it
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def pages() -> list[Path]:
    """All pages of the site."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tuned/results/TABLES.md")]
    return [*top, *sorted((ROOT / "docs").glob("*.md"))]


def linked(page: Path) -> list[Path]:
    """The files that a page's relative links name, whether they are there or not."""
    targets = LINK.findall(page.read_text())
    return [(page.parent / target).resolve() for target in targets if "://" not in target and not target.startswith("mailto:")]


def lay_out() -> None:
    """Copies all pages, their style and the files that they link to below build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    every = pages()
    for file in dict.fromkeys([STYLE, *every, *(target for page in every for target in linked(page))]):
        if file.is_file():  # mkdocs names the links that lead nowhere
            place = PAGES / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def main() -> int:
    words = sys.argv[1:]
    if len(words) > 1 or any(word.startswith("-") for word in words):
        print(__doc__)
        return 2
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        print("The site needs mkdocs-material, which the extra docs installs: scripts/rlrun setup docs", file=sys.stderr)
        return 2
    out = Path(words[0]).resolve() if words else ROOT / "site"
    lay_out()
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement for its successor
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(out)]
    made = subprocess.run(build, cwd=ROOT, env=quiet)
    if made.returncode == 0:
        print(out / "index.html")
    return made.returncode


if __name__ == "__main__":
    sys.exit(main())
