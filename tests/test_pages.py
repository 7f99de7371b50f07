"""README and docs/: generated pages are up to date, links lead somewhere, and commands name what exists."""

import importlib
import importlib.util
import itertools
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from conftest import compose

from rlrun.commands import COMMANDS
from rlrun.config.automatic import settled
from rlrun.config.option_names import known_keys
from rlrun.config.paths import options
from rlrun.config.run import type_config
from rlrun.machine.machine import Machine
from rlrun.runtime.plan import plan

ROOT = Path(__file__).resolve().parent.parent
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tuned/results/TABLES.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def pages():
    """Gives the module of scripts/pages with this name."""

    def planned(*words):
        return plan(type_config(compose(*words, "logger=[]")), Machine(cores=4, env_step_sec=lambda make, count: 1e-3))

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts" / "pages")
        for name in ("algorithms", "cluster_scale", "gpu", "layout", "options", "pages", "results", "speed"):
            patch.delitem(sys.modules, name, raising=False)
        patch.setattr(importlib.import_module("algorithms"), "planned", planned)  # the same, but of shared configs
        yield importlib.import_module


SLOW = pytest.param("algorithms.md", marks=pytest.mark.slow)  # it makes a plan of every algorithm


@pytest.mark.parametrize("name", ["results.md", "speed.md", "options.md", "cluster_scale.md", SLOW])
def test_a_generated_page_is_what_scripts_docs_writes(pages, name):
    assert (ROOT / "docs" / name).read_text() == pages("pages").PAGES[name]().rstrip() + "\n", "run scripts/docs"


def test_every_bar_says_where_it_is_from():
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| `")]
    sources = {row[0].strip("| `"): row[2].strip(" |") for row in rows}
    for name in options("tuned"):
        bar = yaml.safe_load((ROOT / "tuned" / f"{name}.yaml").read_text())["expected"]
        assert bar["return"] is None or sources[name] == " ".join(bar["source"].split()), name


@pytest.mark.parametrize("name, several", [("mbmpo", ""), ("lin_ts", "yes"), ("lin_ucb", "yes"), ("es", ""), ("a2c", "yes")])
def test_several_learners_are_where_a_run_with_them_starts(pages, name, several):
    """The plan alone does not say it: the algorithm itself may refuse them."""
    page = pages("algorithms")
    assert page._can(name, "resources.num_learners=2", *page._with_learners(name)) == several
    (row,) = (line for line in (ROOT / "docs" / "algorithms.md").read_text().splitlines() if line.startswith(f"| [`{name}`]"))
    assert row.split("|")[6].strip() == several


def test_a_label_begins_a_paragraph_and_a_sentence_is_not_torn(pages):
    text = "Both are on, as in\nRLlib: clipping and the penalty. (Few do so.)\nRecorded: nothing.\n"
    text += "Differs from the paper: much.\n\nChecked: yes."
    assert pages("algorithms")._paragraphs(text).split("\n\n") == [
        "Both are on, as in\nRLlib: clipping and the penalty. (Few do so.)",
        "Recorded: nothing.",
        "Differs from the paper: much.",
        "Checked: yes.",
    ]


def test_every_algorithm_is_on_its_page():
    text = (ROOT / "docs" / "algorithms.md").read_text()
    assert [name for name in options("algo") if f"`{name}`" not in text] == []


def loaded(name):
    made = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "pages" / f"{name}.py")
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


def navigation():
    """The pages in the site's navigation. mkdocs.yml names a Python function, which is not needed here."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
    parts = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    return [page for part in parts for pages in part.values() for entry in pages for page in entry.values()]


def test_every_page_is_in_the_navigation_of_the_site():
    listed = navigation()
    assert sorted(listed) == sorted(page.relative_to(ROOT).as_posix() for page in PAGES)
    assert sorted(loaded("site").pages()) == sorted(PAGES)


def test_the_site_has_the_files_that_pages_link_to(tmp_path, monkeypatch):
    site = loaded("site")
    monkeypatch.setattr(site, "PAGES", tmp_path / "pages")
    site.lay_out()
    assert {path.relative_to(tmp_path / "pages").as_posix() for path in (tmp_path / "pages").rglob("*.md")} == set(navigation())
    for page in PAGES:
        for target in site.linked(page):
            assert (tmp_path / "pages" / target.relative_to(ROOT)).exists() or target.is_dir(), (page.name, target)


def test_the_picture_at_the_top_is_small_and_drawn_from_results():
    picture = loaded("picture")
    shown = re.search(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())[1]
    assert (ROOT / shown).resolve() == picture.PICTURE and 10_000 < picture.PICTURE.stat().st_size < 150_000
    for panel in picture.PANELS:
        for _, names in panel.groups:
            for name in names:
                drawn = picture.curve(name)
                assert len(drawn.x) == len(drawn.y) > 10 and list(drawn.x) == sorted(drawn.x), name


def first_steps():
    """The commands of docs/start.md and of the README's quick start, as lists of words behind rlrun."""
    found = []
    for page in (ROOT / "docs" / "start.md", ROOT / "README.md"):
        for line in re.findall(r"^    (?:scripts/)?rlrun ([^\n]+)", page.read_text(), re.M):
            if not line.startswith("train:"):
                found.append(shlex.split(line))
    return found


@pytest.mark.parametrize("words", first_steps(), ids=" ".join)
def test_the_commands_of_the_first_steps_are_understood(words, capsys):
    """Trainings are composed and planned; of the others, the command and its flags are what --help tells."""
    command, *rest = words
    if command in ("train", "sweep") and not any(word.startswith("env=my_package") for word in rest):
        options = [word for word in rest if "=" in word]
        for chosen in ([word.replace(",", " ").split()[0] for word in options] if command == "sweep" else None,):
            plan(type_config(compose(*(chosen or options), "logger=[]")), Machine(cores=2, env_step_sec=lambda make, count: 1e-3))
    module = importlib.import_module(f"rlrun.commands.{command.replace('-', '_')}")
    assert module.main(["--help"]) == 0
    said = capsys.readouterr().out
    for word in rest:
        if word.startswith("--"):
            assert word in said, f"rlrun {command} --help does not tell {word}"
        elif "=" in word and command not in ("train", "sweep", "resume"):
            assert word.partition("=")[0] in said, f"rlrun {command} --help does not tell {word}"


def test_the_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text().split()) < 700


def test_the_figures_of_the_readme_are_on_the_pages_that_they_link_to():
    figures = re.findall(r"\[(\d[\d,.]*) [^]]*\]\(([^)#]+)", (ROOT / "README.md").read_text())
    assert len(figures) >= 3
    for figure, page in figures:
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", (ROOT / page).read_text()), (figure, page)


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


def test_the_code_of_your_own_parts_is_that_of_the_example():
    """tests/example is trained by other tests, so that what the page shows runs."""
    sources = [path.read_text() for path in (ROOT / "tests" / "example" / "my_rl").glob("*.py")]
    blocks = re.findall(r"```python\n(.*?)\n```", (ROOT / "docs" / "your_own.md").read_text(), re.S)
    assert len(blocks) == 4
    for block in blocks:
        for part in block.split("\n\n\n"):
            assert any(part in source for source in sources), part


@pytest.mark.parametrize("page", ["from_sb3", "from_cleanrl", "from_sample_factory"])
def test_the_options_for_those_of_other_libraries_exist(page):
    known = {key for algo in ("ppo", "appo", "dqn", "c51", "sac", "td3") for key in known_keys(algo)}
    text = (ROOT / "docs" / f"{page}.md").read_text()
    named = re.findall(r"[` ']((?:algo|model(?!\.save)|replay|eval|checkpoint|resources)\.[\w.]+)", text)
    assert len(named) > 30 and [name for name in named if name.rstrip(".") not in known] == []


def test_the_commands_of_the_tables_of_gpus_normalise_pixels_where_the_page_says_so():
    """The defaults have changed since the figures of the first table were measured."""
    text = (ROOT / "docs" / "speed.md").read_text()
    tables = text[text.index("## On a GPU") : text.index("## Runs on a GPU")].split("with normalised pixels in")
    found = [re.findall(r"^\| (.*) \| .*`rlrun benchmark throughput ([^`]+)` \|$", part, re.M) for part in tables]
    assert [len(rows) for rows in found] == [5, 5]
    for name, command in itertools.chain.from_iterable(found):
        options = [word for word in command.split() if not word.startswith("seconds=")]
        config, _ = settled(compose(*options), "images")
        normalised = (name, command) in found[1] and not name.startswith("dqn")
        assert config["env"]["name"] == "Pong", command
        assert config["model"]["observation_filter"] == ("mean_std" if normalised else "none"), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_exists(page):
    known = {"algo": options("algo"), "tuned": options("tuned")}
    text = page.read_text()
    found = re.findall(r"(?:^    |`)((?:scripts/)?rlrun [^`\n]+)", text, re.M)
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        found += re.findall(r"^((?:scripts/)?rlrun .+)$", block, re.M)
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


def test_sections_of_options_link_to_what_they_inherit(pages):
    sources = pages("options")._sources
    assert list(sources("algo/td3")) == ["off_policy/deterministic", "off_policy/actor_critic", "optimizer/base"]
    assert "model/memory/none" in sources("model/mlp") and "model/memory/none" not in sources("model/lstm")
    text = (ROOT / "docs" / "options.md").read_text()
    said = text.partition("\n## algo/sac\n")[2].partition("\n## ")[0]
    assert "[off_policy/actor_critic](#off_policyactor_critic) and [optimizer/base](#optimizerbase)." in said
    titles = {title.replace("/", "") for title in re.findall(r"^## (\S+)$", text, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= titles


@pytest.mark.parametrize(
    ("above", "behind", "said"),
    [
        ("Rows per env.", "With 4 envs, 25 rows are 100 env steps", "Rows per env. With 4 envs, 25 rows are 100 env steps."),
        ("Env steps before learning.", "env steps (RLlib x)", "Env steps before learning. Unit: env steps (RLlib x)."),
        ("puct or gumbel decide. null: none", "puct or null", "puct or gumbel decide. null: none. Value: puct or null."),
        ("Of data.", "trajectories with less are left out", "Trajectories with less are left out. Of data."),
    ],
)
def test_comments_above_and_behind_are_whole_sentences(above, behind, said):
    from rlrun.config.texts import options_of

    assert list(options_of(f"# {above}\nname: 1  # {behind}\n")) == [("name", "1", said)]
