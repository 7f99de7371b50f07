"""README and docs/: generated pages are up to date, links lead somewhere, and commands name what exists."""

import importlib.util
import re
from pathlib import Path

import pytest
from conftest import compose

from rlrun.commands import COMMANDS
from rlrun.config.paths import options
from rlrun.config.run import type_config
from rlrun.machine.machine import Machine
from rlrun.runtime.plan import plan

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def pages():
    made = importlib.util.spec_from_file_location("pages", ROOT / "scripts" / "pages" / "pages.py")
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)

    def planned(*words):
        return plan(type_config(compose(*words, "logger=[]")), Machine(cores=4, env_step_sec=lambda make, count: 1e-3))

    module.planned = planned  # the same, but of configs that all tests share
    return module


@pytest.mark.parametrize("name", ["algorithms.md", "results.md", "speed.md", "options.md"])
def test_a_generated_page_is_what_scripts_docs_writes(pages, name):
    assert (ROOT / "docs" / name).read_text() == pages.PAGES[name]().rstrip() + "\n", "run scripts/docs"


def test_the_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text().split()) < 700


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, heading = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        assert place.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", place.read_text(), re.M)
            assert heading in [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings], target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_exists(page):
    known = {"algo": options("algo"), "tuned": options("tuned")}
    found = re.findall(r"(?:^    |`)((?:scripts/)?rlrun [^`\n]+)", page.read_text(), re.M)
    for line in found:
        words = line.split()
        command = next((word for word in words[1:] if not word.startswith("-")), None)
        if words[1].startswith("-") or command in ("COMMAND", "train:", "..."):
            continue
        assert command in COMMANDS, line
        if "--config-dir" in words:
            continue
        for word in words:
            group, chosen, names = word.partition("=")
            for name in names.split(",") if chosen and group in known else ():
                assert name in known[group] or name.isupper() or "..." in name, line
    assert found or page.name not in ("README.md", "start.md", "commands.md")
