"""rlrun import-rllib FILE.yaml [...] [--dir rllib_imported] [--env my_package:MyEnv-v0] [--quiet] [--force] [--trust]

Reads RLlib's tuned YAML files (0.5 to 2.x) and writes rlrun's into DIR/tuned/<algo>/, one for every environment of a
file's grid. RLlib's defaults for options that a file does not set are written out, so that the run means the same.
Every option is listed as mapped, dropped (with the reason) or not mapped. --env names an environment to use instead of
the file's, for a file whose environment rlrun cannot import. --force overwrites existing files that differ. --trust
accepts an environment whose module no installed package contains."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rlrun.cli import take_flags
from rlrun.core.errors import UserError, check_name

MARKS = {"mapped": " ", "default": " ", "dropped": "-", "not mapped": "!"}


def main(words: list[str]) -> int:
    if not words or any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0 if words else 2
    flags, files = take_flags(words, {"--dir": str, "--env": str, "--quiet": bool, "--force": bool, "--trust": bool})
    if not files:
        raise UserError("import-rllib needs an RLlib file, such as atari-ppo.yaml")
    folder = Path(flags["--dir"] or "rllib_imported")
    from rlrun.rllib.translate import translate
    from rlrun.rllib.yaml_files import Imported, read

    made: list[tuple[Imported, str]] = []
    skipped: list[str] = []
    for file in files:
        try:
            text = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
        for name, experiment in read(text, file).items():
            check_name(name, f"{Path(file).name}: the experiment's name")
            if flags["--env"]:
                experiment = {**experiment, "env": flags["--env"]}
            try:
                made += [(one, Path(file).name) for one in translate(name, experiment, Path(file).name)]
            except UserError as error:  # other experiments in the file may still be translated
                skipped.append(str(error))
    if not made:
        raise UserError("; ".join(skipped))
    for one, source in made:
        place = folder / "tuned" / one.algo / f"{one.name}.yaml"
        if place.exists() and place.read_text() != one.text(source) and not flags["--force"]:
            raise UserError(
                f"{place} exists and differs from what would be written, so it may have been changed by hand (--force"
                " overwrites it, --dir writes elsewhere)"
            )
        before = place.read_text() if place.exists() else None
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(one.text(source))
        try:
            starts(folder, one, flags["--trust"])
        except UserError:  # a failed import leaves no file behind
            if before is None:
                place.unlink()
                for empty in (place.parent, place.parent.parent, folder):
                    if not any(empty.iterdir()):
                        empty.rmdir()
            else:
                place.write_text(before)
            raise
        print(f"{place}")
        if not flags["--quiet"]:
            print("\n".join(told(one)))
        print(f"  rlrun train --config-dir {shlex.quote(str(folder))} {choice(one)}" + sweep(folder, one))
    for reason in skipped:
        print(f"left out: {reason}")
    return 0


def told(one: Any) -> list[str]:
    """One line for every option: its old name and value, what became of it, and why."""
    from rlrun.rllib.yaml_files import flow

    rows = []
    for line in sorted(one.lines, key=lambda line: list(MARKS).index(line.how)):
        was = f"{line.key}={flow(line.value)}" + (" (RLlib's default)" if line.how == "default" else "")
        became = line.became or line.how
        rows.append(f"  {MARKS[line.how]} {was:<58} {became}" + (f"  ({line.why})" if line.why else ""))
    return rows


def choice(one: Any) -> str:
    """The word that chooses an imported file, quoted for the shell."""
    return shlex.quote(f"tuned={one.algo}/{one.name}")


def sweep(folder: Path, one: Any) -> str:
    from rlrun.rllib.yaml_files import flow

    if not one.grid:
        return ""
    grid = " ".join(f"{key}={','.join(map(flow, values))}" for key, values in one.grid.items())
    return f"\n  rlrun sweep --config-dir {shlex.quote(str(folder))} {choice(one)} {grid}"


def starts(folder: Path, one: Any, trusted: bool) -> None:
    """Raises UserError where rlrun would not accept the imported file."""
    from rlrun.cli import compose
    from rlrun.config.run import type_config
    from rlrun.config.types import plain

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        type_config(plain(cfg))
        return 0

    try:
        trust = ["--trust"] if trusted else []
        compose(["--config-dir", str(folder.resolve()), f"tuned={one.algo}/{one.name}", *trust], job)
    except UserError as error:
        raise UserError(f"{folder}/tuned/{one.algo}/{one.name}.yaml would not start: {error}") from None
