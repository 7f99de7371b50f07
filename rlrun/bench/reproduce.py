"""rlrun benchmark reproduce-tables [table=impala_10m,...] [game=Breakout,...] [algo=impala,...] [seeds=1,2,3]
                                 [budget=1.0] [--only-render] [--dry-run] [--jobs N] [--timeout SEC] [--results DIR]
                                 [--runs DIR]

Runs the cells of RLlib's published tables that have no result yet, each with its tuned file in a process of its own.
Writes a small JSON file for every cell and seed to tuned/results/ (or to --results DIR), and draws the tables as
Markdown, HTML and PNG. budget is the share of a table's env steps or seconds to run; results with less than the whole
budget are marked as partial. A cell whose run is the beginning of another cell's run, as the first hour of a run to 10M
env steps, takes its result from there and is not run again. --only-render draws the results that exist and runs
nothing. Interrupted runs continue from their last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.bench.longer import from_longer, may_contain_others, same_training
from rlrun.bench.recipes import changed
from rlrun.bench.results import Key, default_folder, from_run, key_of, read, train_words, write
from rlrun.bench.tables import Wanted, load, select
from rlrun.cli import flags_given, take_flags
from rlrun.config.paths import options
from rlrun.core.errors import UserError, closest
from rlrun.experiments.jobs import Pool, check_timeout
from rlrun.experiments.outcomes import DONE, Outcome, TrainingJob, known
from rlrun.experiments.places import places
from rlrun.experiments.runs import SavedRun, science_of
from rlrun.experiments.view import view
from rlrun.loggers.mlflow import flatten

FLAGS = {"--only-render": bool, "--dry-run": bool, "--jobs": int, "--timeout": float, "--results": str, "--runs": str}
KEYS = ("table", "game", "algo", "seeds", "budget")


def main(words: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    flags, rest = take_flags(list(words), FLAGS)
    check_timeout(flags["--timeout"])
    asked = lists(rest)
    seeds = [number(seed, int, "seeds") for seed in asked.get("seeds", ["1", "2", "3"])]
    if len(asked.get("budget", [])) > 1:
        raise UserError("budget takes one number")
    budget = float(f"{number(asked.get('budget', ['1'])[0], float, 'budget'):.6g}")  # rounded as in the file names
    if not 0 < budget <= 1:
        raise UserError("budget is a share of the whole budget, above 0 and at most 1")
    if min(seeds) < 0:
        raise UserError("seeds must not be negative")
    folder = Path(flags["--results"]) if flags["--results"] else default_folder()
    runs = Path(flags["--runs"] or "runs/benchmark")
    chosen = select(asked.get("table", []), asked.get("game", []), asked.get("algo", []))
    code = 0
    if flags["--only-render"]:
        useless = [*rest, *flags_given(flags, ("--dry-run", "--jobs", "--timeout"))]
        if useless:
            given = ", ".join(useless)
            raise UserError(f"--only-render draws all tables and runs nothing, so that {given} would do nothing")
    else:
        every = {key_of(one, seed, budget): one for seed in seeds for one in chosen}
        todo = {
            key: one for key, one in every.items() if read(folder, key, one) is None and whole(folder, key, one) is None
        }
        for key, one in every.items():
            tell_changes(folder, key, one)
        print(f"rlrun benchmark reproduce-tables: {len(todo)} of {len(chosen) * len(seeds)} runs to do", flush=True)
        if flags["--dry-run"]:
            for key, one in todo.items():
                print(f"  rlrun train {' '.join(train_words(one, key))}")
            return 0
        if todo:
            code = work(todo, folder, runs, flags)
    from rlrun.bench.publish import publish

    tables = [load(name) for name in options("benchmark")]
    for path in publish(tables, folder, runs):
        print(path)
    return code


def lists(words: Sequence[str]) -> dict[str, list[str]]:
    """{key: values} from words such as key=a,b. UserError for other words and for unknown keys."""
    found: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise UserError(
                f"There is no option {key!r} here.{closest(key, KEYS)} There are {', '.join(f'{k}=' for k in KEYS)} and"
                f" {', '.join(FLAGS)}."
            )
        values = [part for part in value.split(",") if part]
        if not values:
            raise UserError(f"{key}= needs a value")
        if key in found:
            instead = "" if key == "budget" else f": write {key}={','.join([*found[key], *values])}"
            raise UserError(f"{key}= is given twice{instead}")
        found[key] = values
    return found


def number(text: str, kind: type, name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UserError(f"{name}={text}: this is not a {'whole ' if kind is int else ''}number") from None


def tell_changes(folder: Path, key: Key, wanted: Wanted) -> None:
    """Prints which options of a cell have changed since its result was made. The cell is not run again by itself."""
    result = read(folder, key, wanted) or whole(folder, key, wanted)
    other = [] if result is None else changed(result, train_words(wanted, key))
    if other:
        print(
            f"  {key.file}: {', '.join(other)} had another value when this result was made; remove the file to run the"
            " cell again",
            flush=True,
        )


def whole(folder: Path, key: Key, wanted: Wanted) -> dict[str, Any] | None:
    """The result for the whole budget, where there is one: running a part of the budget would then add nothing."""
    return None if key.budget == 1 else read(folder, key._replace(budget=1.0), wanted)


class CellJob(NamedTuple):
    """The job of a cell, and the dotted options of its run."""

    key: Key
    wanted: Wanted
    options: dict[str, Any]


class Cells:
    """A supply of the cells' runs. It writes a result as soon as its run, or another run that contains it, is done."""

    def __init__(self, jobs: dict[str, CellJob], outcomes: Sequence[Outcome], folder: Path, runs: Path):
        """outcomes: of all jobs; those that wait are given out. A cell that another run contains becomes COMPLETED."""
        self.jobs, self.folder, self.runs = jobs, folder, runs
        waiting = [outcome for outcome in outcomes if outcome.status not in DONE]
        self.waiting = sorted(waiting, key=lambda one: not may_contain_others(jobs[one.job.name].wanted.table))
        self.running: set[str] = set()
        self.problems: list[str] = []
        for outcome in outcomes:
            self.done(outcome)  # writes results that an earlier session had no chance to write
        self._take_parts()

    def next(self) -> TrainingJob | None:
        for outcome in self.waiting:
            if not any(self._contains(name, outcome.job.name) for name in self.running):
                self.waiting.remove(outcome)
                self.running.add(outcome.job.name)
                return outcome.job
        return None  # what waits is asked for again when the runs that may contain it have ended

    def look(self, outcome: Outcome) -> bool:
        return False

    def done(self, outcome: Outcome) -> None:
        self.running.discard(outcome.job.name)
        if outcome.status in DONE:
            key, wanted, _ = self.jobs[outcome.job.name]
            try:
                self._write(key, from_run(key, wanted, outcome.job.run_dir), outcome.job.words)
            except UserError as error:
                self.problems.append(str(error))
            self._take_parts()

    def _write(self, key: Key, values: dict[str, Any], words: Sequence[str], comment: str = "") -> None:
        write(self.folder, key, values | {"command": f"rlrun train {' '.join(words)}{comment}"})

    def _contains(self, name: str, other: str) -> bool:
        """Whether the run of the first job may contain that of the second."""
        one, two = self.jobs[name], self.jobs[other]
        return (
            may_contain_others(one.wanted.table)
            and same_training(one.wanted, two.wanted)
            and (one.key.seed, one.key.budget, two.key.budget) == (two.key.seed, 1, 1)
        )

    def _take_parts(self) -> None:
        """Writes the results of waiting cells that another cell's run contains."""
        every = select([], [], [])
        for outcome in list(self.waiting):
            key, wanted, options = self.jobs[outcome.job.name]
            if key.budget != 1:
                continue

            def run_of(other: Wanted, seed: int = key.seed) -> Path:
                return self.runs / key_of(other, seed, 1.0).run

            found = from_longer(key, wanted, every, run_of, options)
            if found is None:
                continue
            values, run_dir = found
            other = next(one for one in every if run_of(one) == run_dir)
            words = train_words(other, key_of(other, key.seed, 1.0))
            self._write(key, values, words, f"  # its first {values['env_steps']:,} env steps")
            self.waiting.remove(outcome)
            outcome.status, outcome.row = "COMPLETED", {"env_steps": values["env_steps"]}
            outcome.summary = {name: values[name] for name in ("env_steps", "return_mean", "wall_sec")}
            print(f"  {outcome.job.name} is the beginning of {run_dir}", flush=True)


def same_options(job: TrainingJob, config: dict[str, Any]) -> None:
    """UserError where an earlier run of this cell had other options than its tuned file has today.

    Its result would otherwise be published under the name of a tuned file that did not make it.
    """
    if not (job.run_dir / "config.yaml").is_file():
        return
    before, now = SavedRun(job.run_dir).options, dict(flatten(config))
    for key in science_of(now):
        if before.get(key) != now[key]:
            raise UserError(
                f"{job.run_dir} was run with {key}={before.get(key)}, and {job.words[0]} has {now[key]} now:"
                " remove the directory, or choose another with --runs"
            )


def work(todo: dict[Key, Wanted], folder: Path, runs: Path, flags: dict[str, Any]) -> int:
    """Runs the cells without a result. Returns 0 when all succeeded, 1 when one failed, 128 + signal after a signal."""
    from rlrun.commands.sweep_check import checked

    jobs: dict[str, CellJob] = {}
    outcomes: list[Outcome] = []
    for key, wanted in todo.items():
        name = key.run
        words = train_words(wanted, key)
        config = checked(words, name)  # all are checked now: the last may begin hours from now
        job = TrainingJob(name=name, words=tuple(words), run_dir=runs / name, log=runs / "logs" / f"{name}.log")
        same_options(job, config)
        jobs[name] = CellJob(key, wanted, dict(flatten(config)))
        outcomes.append(known(job))
    supply = Cells(jobs, outcomes, folder, runs)
    pool = Pool(places(flags["--jobs"]), view(len(outcomes)), flags["--timeout"], outcomes)
    pool.run(supply)
    for problem in supply.problems:
        print(f"rlrun: {problem}", flush=True)
    if pool.signal is not None:
        print("the same command continues with the runs that are left", flush=True)
        return 128 + pool.signal
    return 1 if supply.problems or any(outcome.status not in DONE for outcome in pool.outcomes) else 0
