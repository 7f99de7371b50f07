"""rlrun compare RUN_DIR RUN_DIR
rlrun compare SWEEP_DIR

Shows how two runs differ: their options, versions and machine, and their results at the end and after as many env steps
as both of them have. Of a sweep, or of a directory with several runs, it shows what each setting reached: its seeds,
its mean return with a 95 % interval where it has five seeds or more, and the difference to the best setting."""

from __future__ import annotations

from typing import Any

from rlrun.cli import take_flags
from rlrun.core.errors import UserError

NO_OPTIONS = ("run_dir", "runs_root", "expected", "measured")  # how keys begin that decide nothing of a run


def main(words: list[str]) -> int:
    if not words or any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0 if words else 2
    _, places = take_flags(words, {})
    from pathlib import Path

    if len(places) == 1 and not (Path(places[0]) / "config.yaml").is_file():
        return settings(places[0])
    if len(places) != 2:
        raise UserError("compare takes two run directories, or the directory of one sweep")
    from rlrun.core.saved_files import no_run
    from rlrun.experiments.runs import SavedRun
    from rlrun.experiments.view import text_table

    for place in places:
        if not (Path(place) / "config.yaml").is_file():
            raise UserError(no_run(Path(place)))
    one, other = (SavedRun(Path(place)) for place in places)
    rows = options(one, other)
    print(text_table(rows, ("option", "first", "second")) if rows else "Both runs have the same options.")
    rows = facts(one, other)
    if rows:
        print("\n" + text_table(rows, ("made with", "first", "second")))
    print("\n" + text_table(outcomes(one, other), ("result", "first", "second")))
    return 0


def settings(place: str) -> int:
    """Prints what each setting of a sweep reached, and the jobs of it that never became a run. UserError where the
    directory holds no run."""
    import textwrap
    from pathlib import Path

    from rlrun.experiments.runs import find
    from rlrun.experiments.settings import explained, settings_of, settings_text, without_run
    from rlrun.experiments.view import text_table

    runs = find([place])
    found = settings_of(runs)
    print(settings_text(found))
    for text in explained(found):
        print("\n" + textwrap.fill(text, 118, break_long_words=False))
    never = without_run([Path(place)], {run.path.resolve() for run in runs})
    if never:
        print("\n" + text_table(never, ("jobs that never became a run", "status", "why")))
    return 0


def short(value: Any) -> str:
    text = "-" if value is None else f"{value:,.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 48 else text[:45] + "..."


def options(one, other) -> list[list[str]]:
    """All options that differ, the seed included. Where a run is and what a tuned file tells of others are left out."""
    keys = [key for key in dict.fromkeys([*one.options, *other.options]) if not key.startswith(NO_OPTIONS)]
    missing = object()
    return [
        [key, *(short(run.options.get(key, "(no such option)")) for run in (one, other))]
        for key in keys
        if one.options.get(key, missing) != other.options.get(key, missing)
    ]


def facts(one, other) -> list[list[str]]:
    rows = []
    for group in ("versions", "hardware"):
        both = [run.summary.get(group) or {} for run in (one, other)]
        rows += [
            [key, *(short(values.get(key)) for values in both)]
            for key in dict.fromkeys([*both[0], *both[1]])
            if both[0].get(key) != both[1].get(key)
        ]
    if one.summary.get("git_commit") != other.summary.get("git_commit"):
        rows.append(["git commit", *(commit(run.summary.get("git_commit")) for run in (one, other))])
    return rows


def commit(name: str | None) -> str:
    """The first ten letters of a commit, and whether files had been changed since it."""
    return "-" if not name else name[:10] + (" + local changes" if name.endswith("+") else "")


def return_at(run, steps: int) -> float | None:
    """The mean return at so many env steps, interpolated between rows; None before the first or after the last row."""
    import numpy as np

    from rlrun.experiments.runs import return_metric

    x, y = run.series(return_metric([run]))
    return float(np.interp(steps, x, y)) if x and x[0] <= steps <= x[-1] else None


def outcomes(one, other) -> list[list[str]]:
    from rlrun.experiments.runs import best_return, few_games, last_games, metrics
    from rlrun.loggers.console import duration

    both = (one, other)
    rows = [["status", *(run.status for run in both)]]
    last = [run.rows[-1] if run.rows else {} for run in both]
    rows.append(["env steps", *(f"{row.get('env_steps', 0):,}" for row in last)])
    rows.append(["wall time", *(duration(row.get("time_sec", 0.0)) for row in last)])
    speeds = [row["env_steps"] / row["time_sec"] if row.get("time_sec") else None for row in last]
    rows.append(["env steps/s", *(short(speed) for speed in speeds)])
    best = [(best_return(run), few_games(run)) for run in both]
    texts = [short(value) + (f" (of {games} games)" if games else "") for value, games in best]
    rows.append([f"best return, {last_games(both)}", *texts])
    shared = min(row.get("env_steps", 0) for row in last)
    at = [return_at(run, shared) for run in both]
    rows.append([f"return at {shared:,} env steps", *(short(value) for value in at)])
    for name in metrics(both):
        values = [next((row[name] for row in reversed(run.rows) if row.get(name) is not None), None) for run in both]
        if any(value is not None for value in values) and name.split("/")[0] in ("sample", "learn", "eval", "estimate"):
            rows.append(
                [
                    f"last {name}",
                    *(short(float(value)) if isinstance(value, int | float) else short(value) for value in values),
                ]
            )
    return rows
