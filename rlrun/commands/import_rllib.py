"""rlrun import-rllib FILE.yaml [...] [--dir rllib_imported] [--env my_package:MyEnv-v0] [--quiet] [--force] [--trust]
                   FILE.yaml [...] --table [--env ...]

Reads RLlib's tuned YAML files (0.5 to 2.x) and writes rlrun's into DIR/tuned/<algo>/, one for every environment of a
file's grid. RLlib's defaults for options that a file does not set are written out, so that the run means the same.
Every option is listed: mapped, added (written, though no option of RLlib's says it), dropped (nothing that is learnt
changes without it) or not mapped (something may change), with the reason. What a file cannot say, such as a function
that gives agents their policies, must be filled in, and the command that is printed has a place for it. --env names an
environment to use instead of the file's, for a file whose environment rlrun cannot import. --force overwrites existing
files that differ. --trust accepts an environment whose module no installed package contains. --quiet prints how many
options were not mapped in place of the list. If one of the files would not start, none is written. An experiment that
cannot be translated, for example because rlrun does not have its algorithm, is left out, and the exit code is 1 then.
--table writes no file and prints the lists as a Markdown page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli import take_flags
from rlrun.config.paths import options
from rlrun.core.errors import UserError, check_name

if TYPE_CHECKING:
    from rlrun.rllib.yaml_files import Imported, Line

MARKS = {"mapped": " ", "added": "+", "dropped": "-", "not mapped": "!"}
# What a file is tried for: a machine that is large enough for every RLlib experiment, since this one need not train it.
CORES, ENV_STEP_SEC = 1024, 1e-4
FLAGS = {"--dir": str, "--env": str, "--quiet": bool, "--force": bool, "--trust": bool, "--table": bool}


def main(words: list[str]) -> int:
    if not words or any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0 if words else 2
    flags, files = take_flags(words, FLAGS)
    if not files:
        raise UserError("import-rllib needs an RLlib file, such as atari-ppo.yaml")
    folder = Path(flags["--dir"] or "rllib_imported")
    made, refused = translated(files, flags["--env"])
    if flags["--table"]:
        print(page(files, made, refused))
        return 0
    if not made:
        raise UserError("; ".join(refused.values()))
    texts: dict[Path, str] = {}
    names = [one.name for one, _ in made]
    for (one, source), called in zip(made, renamed([one for one, _ in made]), strict=True):
        text = one.text(source, command(folder, one, called, flags["--trust"]))  # the file's head has RLlib's name
        one.name = called
        place = folder / "tuned" / one.algo / f"{one.name}.yaml"
        if place in texts:
            raise UserError(
                f"two experiments are called {one.name}, and both would be written to {place}: rename one of them"
            )
        texts[place] = text
        if place.exists() and not same(place.read_text(), text) and not flags["--force"]:
            raise UserError(
                f"{place} exists and differs from what would be written, so it may have been changed by hand (--force"
                " overwrites it, --dir writes elsewhere)"
            )
    try:
        write(folder, texts, [one for one, _ in made], flags["--trust"])
    except OSError as error:
        raise UserError(f"--dir {folder}: {error.filename} cannot be written: {error.strerror}") from None
    for place, (one, _), name in zip(texts, made, names, strict=True):
        print(f"{place}")
        if one.name != name:
            print(f"  {name} is called {one.name} here, because rlrun has a tuned file {one.algo}/{name} of its own")
        lost = sum(line.how == "not mapped" for line in one.lines)
        if not flags["--quiet"]:
            print("\n".join(told(one)))
        elif lost:
            print(f"  {lost} option{'s' * (lost > 1)} not mapped; without --quiet, they are listed")
        start = command(folder, one, one.name, flags["--trust"])
        print(f"  rlrun train {start}")
        if one.grid:
            print(f"  rlrun sweep {start} {' '.join(one.sweep())}")
    for reason in refused.values():
        print(f"left out: {reason}")
    return 1 if refused else 0


def command(folder: Path, one: Imported, name: str, trusted: bool) -> str:
    """Returns what follows `rlrun train` or `rlrun sweep`, quoted for a shell. name: that of the written file."""
    words = ["--config-dir", shlex.quote(str(folder)), shlex.quote(f"tuned={one.algo}/{name}")]
    words += [*(f"{option}=..." for option in one.asked), *one.place_words()]
    return " ".join([*words, *["--trust"] * trusted])


def same(before: str, text: str) -> bool:
    """Tells whether two texts of a file are the same, but for the command of its grid, which names --dir as it was
    given."""
    from rlrun.rllib.yaml_files import GRID

    texts = ([line for line in one.splitlines() if not line.startswith(GRID)] for one in (before, text))
    return next(texts) == next(texts)


def translated(files: list[str], env: str | None) -> tuple[list[tuple[Imported, str]], dict[str, str]]:
    """Returns the translated experiments of all files, each with its file's name, and why others are refused, by name.

    env: an environment to use instead of the files' own. Raises UserError for a file that is none of RLlib's."""
    from rlrun.rllib.translate import translate
    from rlrun.rllib.yaml_files import for_old_stack, read

    made: list[tuple[Imported, str]] = []
    refused: dict[str, str] = {}
    for file in files:
        if file.endswith(".py"):
            raise UserError(
                f"{file} is a Python file, which import-rllib does not run: write a YAML file with `NAME: {{run: PPO,"
                " env: ..., config: {...}}`, where config.to_dict() of RLlib gives the options under `config:`"
            )
        try:
            text = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
        for name, experiment in read(text, file).items():
            name = typeable(check_name(name, f"{Path(file).name}: the experiment's name"))
            if env is not None:
                experiment = {**experiment, "env": env}
            try:
                if (problem := nothing_to_do(experiment)) is not None:
                    raise UserError(f"{Path(file).name}, {name}: {problem}")
                made += [
                    (one, Path(file).name) for one in translate(name, experiment, Path(file).name, for_old_stack(text))
                ]
            except UserError as error:  # other experiments in the file may still be translated
                refused[name] = str(error)
    return made, refused


def nothing_to_do(experiment: dict[str, Any]) -> str | None:
    """Says which option of an experiment asks for no step, no row or none of several values; None if none does."""
    from rlrun.rllib.batches import LENGTHS, SIZES
    from rlrun.rllib.ends import STEPS
    from rlrun.rllib.yaml_files import numbers

    above_0 = {"stop": (*STEPS, "training_iteration", "time_total_s"), "config": (*SIZES, *LENGTHS)}
    for path, value in parts(numbers({group: experiment.get(group) for group in ("env", "stop", "config")})):
        option = path.removesuffix(".grid_search")
        values = value if isinstance(value, list) else [value]
        if option != path and (values is not value or not values):
            return f"{path} must be a list of at least one value, not {repr(value)[:60]}"
        group, key = path.partition(".")[0], re.split("[./]", option)[-1]
        for one in values if key in above_0.get(group, ()) else ():
            automatic = one == -1 and experiment["run"] == "DDPPO" and key in SIZES  # they are as large as fragments
            if isinstance(one, int | float) and one <= 0 and not automatic:
                return f"{option} is {one}, and it must be above 0"
    return None


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted path and the value of everything inside groups, the groups themselves included."""
    for key, one in value.items() if isinstance(value, dict) else ():
        inside = f"{path}.{key}" if path else str(key)
        yield inside, one
        yield from parts(one, inside)


def typeable(name: str) -> str:
    """Returns an experiment's name without what Hydra would need quotes for in tuned=NAME."""
    return re.sub(r"[^A-Za-z0-9_.+ -]+", "_", name).strip("_ ") or "experiment"


def renamed(made: list[Imported]) -> list[str]:
    """Returns names for the files of experiments: NAME-2 where rlrun has a tuned file NAME, which Hydra would read."""
    own = set(options("tuned"))
    taken = own | {f"{one.algo}/{one.name}" for one in made}
    names = []
    for one in made:
        tried = (f"{one.name}-{number}" for number in count(2))
        clashes = f"{one.algo}/{one.name}" in own
        names.append(next(name for name in tried if f"{one.algo}/{name}" not in taken) if clashes else one.name)
    return names


def write(folder: Path, texts: dict[Path, str], made: list[Imported], trusted: bool) -> None:
    """Writes the files. If one of them would not start, everything is left as it was, and UserError is raised."""
    before = {place: place.read_text() if place.exists() else None for place in texts}
    folders = {parent for place in texts for parent in place.parents if not parent.exists()}
    try:
        for place, text in texts.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        for one in made:
            starts(folder, one, trusted)
    except BaseException:
        for place, text_before in before.items():
            if text_before is not None:
                place.write_text(text_before)
            else:
                place.unlink(missing_ok=True)
        for parent in sorted(folders, key=lambda parent: len(parent.parts), reverse=True):
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise


def page(files: list[str], made: list[tuple[Imported, str]], refused: dict[str, str]) -> str:
    """Returns a Markdown page with the fate of every option that the files name."""
    from rlrun.rllib.yaml_files import flow

    command = " ".join(["rlrun import-rllib --table", *map(shlex.quote, files)])
    lines = [
        "# RLlib's options in rlrun",
        "",
        "To look up one option, search this page, or read the end of `rlrun explain ALGO`.",
        "",
        f"`{cell(command)}` prints this page. Each section is an experiment of its files. Mapped: the option has a",
        "counterpart. Dropped: nothing that is learnt changes without it. Not mapped: something may change. An option",
        "that an experiment does not name has RLlib's default, in an imported file too; such options are listed here",
        "only where they are lost.",
        "",
        "| experiment | rlrun | options | mapped | dropped | not mapped |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one, _ in made:
        given = [line for line in one.lines if line.given and line.how != "added"]
        counts = [sum(line.how == how for line in given) for how in ("mapped", "dropped", "not mapped")]
        chosen = next(line.became for line in one.lines if line.key == "run")
        lines.append(f"| {cell(one.name)} | `{chosen}` | {len(given)} | {' | '.join(map(str, counts))} |")
    lines += [f"| {cell(name)} | refused: {cell(reason)} | | | | |" for name, reason in refused.items()]
    for one, _ in made:
        lines += ["", f"## {cell(one.name)}", "", "| RLlib | rlrun | why |", "| --- | --- | --- |"]
        for line in sorted(one.lines, key=lambda line: list(MARKS).index(line.how)):
            if line.how != "added" and (line.given or line.how == "not mapped"):
                was = f"`{cell(f'{line.key}={flow(line.value)}')}`" + default(line)
                became = f"`{cell(line.became)}`" if line.became else line.how
                lines.append(f"| {was} | {became} | {cell(line.why)} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text that cannot leave a cell of a Markdown table, nor a code span in it, nor become HTML."""
    kept = "".join(character if character.isprintable() else " " for character in text)
    kept = " ".join(kept.split()).replace("`", "'").replace("|", "/")
    return kept.replace("&", "&amp;").replace("<", "&lt;")


def default(line: Line) -> str:
    return "" if line.given else " (RLlib's default)"


def told(one: Imported) -> list[str]:
    """One line for every option: its old name and value, what became of it, and why."""
    from rlrun.rllib.yaml_files import flow

    rows = []
    for line in sorted(one.lines, key=lambda line: list(MARKS).index(line.how)):
        was, became = f"{line.key}={flow(line.value)}{default(line)}", line.became or line.how
        if line.how == "added":
            was, became = line.became, "added"
        row = f"  {MARKS[line.how]} {was:<58} {became}" + (f"  ({line.why})" if line.why else "")
        rows.append("".join(character if character.isprintable() else "?" for character in row))
    return rows


def starts(folder: Path, one: Imported, trusted: bool) -> None:
    """Raises UserError where rlrun would not accept the imported file, or would not start a run with it. Without the
    environment's package only the options are looked at."""
    from dataclasses import replace

    from rlrun.cli import compose
    from rlrun.config.run import type_config
    from rlrun.config.saved import set_by_user
    from rlrun.config.types import plain
    from rlrun.config.words import exact
    from rlrun.envs.names import OWN
    from rlrun.machine.machine import measured
    from rlrun.runtime.fitting import make_spec
    from rlrun.runtime.plan import plan
    from rlrun.runtime.unused import refuse_unused

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        values = plain(cfg)
        config, given = type_config(values), set_by_user(values)
        if one.asked or not _has_data(one):  # what the user has yet to say or to bring is only a place here
            return 0
        try:
            make_spec(config, config.algorithm.needs(config.algo))
        except UserError:
            if OWN.fullmatch(config.env.name):  # the user's own, which is here
                raise
            return 0
        machine = replace(measured(), cores=CORES, env_step_sec=lambda make_env, count: ENV_STEP_SEC)
        refuse_unused(plan(config, machine, given), given)
        return 0

    try:
        trust = ["--trust"] if trusted else []
        asked = [f"{option}={exact(value)}" for option, value in {**one.asked, **one.places}.items()]
        compose(["--config-dir", str(folder.resolve()), f"tuned={one.algo}/{one.name}", *asked, *trust], job)
    except UserError as error:
        place = folder / "tuned" / one.algo / f"{one.name}.yaml"
        reason = str(error).removeprefix(f"{place.resolve()}: ")  # many reasons name the file themselves
        raise UserError(f"{place} would not start: {reason}") from None


def _has_data(one: Imported) -> bool:
    """Tells whether the data that an experiment learns from are on this machine; True if it learns from none."""
    from rlrun.datasets.open import open_source

    path = one.places.get("data.path", {})
    try:
        for place in [path] if isinstance(path, str) else path:
            open_source(place)
    except UserError:
        return False
    return True
