"""rlrun plot RUN_DIR [...] [--metric return_mean,entropy] [--out curves.png]

Draws learning curves against env steps and against wall time, for single runs, for a sweep, or for all runs below a
directory. Runs that differ only in their seed, or in options that decide nothing of what is learnt, such as
resources.*, are drawn as one curve: the mean with a band, and the single runs as thin lines behind it. The band of five
seeds or more is the 95% interval of the mean; that of fewer goes from the lowest to the highest. --metric takes one or
several names from progress.jsonl, separated by commas; without it, returns are drawn, and those of evaluations if the
runs learn from data. --metric adaptation draws the returns of algo=maml and mbmpo before and after adaptation in one
picture, and --metric regret the regret of bandits on a logarithmic axis, with that of arms drawn uniformly beside it.
--out takes a file name that ends with .png, .svg or .html; without it, the picture is curves.png in the directory of
the run or sweep, or, of several, in the folder that holds them all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cli import take_flags
from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import UserError

ADAPTATION, MOST_ROUNDS = "adaptation", 12

if TYPE_CHECKING:  # matplotlib is slow to import, and other commands do not need it
    from rlrun.bench.charts import Group
    from rlrun.experiments.runs import SavedRun


REGRET, UNIFORM_REGRET = "sample/regret", "sample/regret_uniform"  # of bandits (core/metrics.py)


def main(words: list[str]) -> int:
    if not words or any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0 if words else 2
    flags, places = take_flags(words, {"--metric": str, "--out": str})
    if not places:
        raise UserError("plot needs run directories, such as runs/impala/Pong/20261121-040000-seed0")
    out = Path(flags["--out"]) if flags["--out"] else beside(places) / "curves.png"
    if out.suffix not in (".png", ".svg", ".html"):
        raise UserError(f"--out {out}: the name must end with .png, .svg or .html")
    from rlrun.bench import charts, page
    from rlrun.experiments.runs import check_metric, find, return_metric

    runs = find(places)
    metric = return_metric(runs) if flags["--metric"] is None else flags["--metric"]
    asked = [name for name in metric.split(",") if name]
    if not asked:
        raise UserError(f"--metric {metric!r} names no metric: it takes one or several, such as return_mean,entropy")
    names = [name if name == ADAPTATION else check_metric(name, runs) for name in asked]
    drawn = [(around if name == ADAPTATION else curves)(runs, name) for name in names]
    figures = [charts.learning_curves(*groups, name, "", name == REGRET) for name, groups in zip(names, drawn)]
    try:
        if out.suffix == ".html":
            body = [
                part
                for name, made in zip(names, figures)
                for part in (f"<h2>{page.escape(name)}</h2>", page.picture(charts.svg(made)))
            ]
            lead = (
                f"{len(runs)} run{'s' if len(runs) > 1 else ''}; where there are several seeds, curves show the mean"
                " and, from five seeds on, its 95% interval; with fewer seeds, the band goes from the lowest to the"
                " highest."
            )
            write_atomically(out, page.page("Learning curves", lead, body, "Made by rlrun plot."))
            written = [out]
        else:
            written = [
                out if len(figures) == 1 else out.with_stem(f"{out.stem}-{name.replace('/', '_')}") for name in names
            ]
            for path, made in zip(written, figures):
                charts.save(made, path)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    for path in written:
        print(path)
    return 0


def beside(places: list[str]) -> Path:
    """The folder of these runs: the only one that is named, or the nearest that holds all of them."""
    folders = [Path(place).resolve() for place in places]
    common = Path(os.path.commonpath(folders))
    named = Path(places[0]) if len(set(folders)) == 1 else common
    if not named.is_dir() or named.parent == named:  # the places are checked later, and "/" is nobody's folder of runs
        return Path()
    here = Path.cwd()
    return named.relative_to(here) if named.is_absolute() and named.is_relative_to(here) else named


def around(runs: list[SavedRun], metric: str) -> tuple[list[Group], list[Group]]:
    """The groups of returns before and after each step of adaptation, against env steps and against wall time.

    UserError where no run adapts."""
    steps: list[Group] = []
    times: list[Group] = []
    for number in range(MOST_ROUNDS):
        try:
            found = curves(runs, f"learn/adapt_{number}")
        except UserError:
            if number == 0:
                raise UserError(f"--metric {ADAPTATION} is for runs of algo=maml and mbmpo that have learnt") from None
            break
        when = f"after {number} step{'s' * (number > 1)}" if number else "before adaptation"
        for groups, more in ((steps, found[0]), (times, found[1])):
            groups += [group._replace(label=f"{group.label}, {when}") for group in more]
    return steps, times


def seeds(members: list[SavedRun]) -> str:
    """How many runs one curve averages, as words behind its label; empty for one run."""
    count, different = len(members), len({run.seed for run in members})
    return "" if count == 1 else f" ({count} seeds)" if count == different else f" ({count} runs of {different} seeds)"


def curves(runs: list[SavedRun], metric: str) -> tuple[list[Group], list[Group]]:
    """The groups of these runs against env steps and against wall time; of a bandit's regret also those of arms drawn
    uniformly.

    UserError where no run has logged a number for the metric.
    """
    from rlrun.bench.charts import Curve, Group
    from rlrun.experiments.runs import groups

    def against(x: str) -> list[Group]:
        drawn = [(metric, "")] + ([(UNIFORM_REGRET, "arms drawn uniformly: ")] if metric == REGRET else [])
        every = [
            Group(said + label + seeds(members), [Curve(*run.series(name, x)) for run in members])
            for name, said in drawn
            for label, members in groups(runs)
        ]
        return [group for group in every if any(len(curve.x) for curve in group.curves)]

    steps, times = against("env_steps"), against("time_sec")
    if not steps:
        raise UserError(f"{metric} has no value yet: no game has ended, or nothing was logged")
    return steps, times
