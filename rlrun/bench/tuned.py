"""rlrun benchmark tuned [NAME ... such as ppo/cartpole dqn/*] [--fast] [seeds=1] [--jobs N] [--timeout SEC]
                      [--json FILE] [--runs DIR] [--dry-run]

Runs tuned files until they reach what they expect, and reports for each whether it met its bar: reaching
`expected.return` within `expected.env_steps`. Where the bar is greedy, the return is measured in 100 greedy games
afterwards, against `expected.opponent` if there is one. Without names, all tuned files that have been measured are run.
--fast runs only the quickest of them, as many as fit into 15 minutes on 2 cores; those that were measured on a GPU
count only where there is one."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from rlrun.bench.arguments import check_results_file, write_results
from rlrun.bench.reproduce import number, same_options
from rlrun.cli import take_flags
from rlrun.config.paths import options, root
from rlrun.core.errors import UserError, closest
from rlrun.experiments.jobs import Fixed, Pool, check_timeout
from rlrun.experiments.outcomes import DONE, Outcome, TrainingJob, known
from rlrun.experiments.places import places
from rlrun.experiments.runs import RETURN, SavedRun
from rlrun.experiments.view import text_table, view
from rlrun.loggers.console import duration
from rlrun.runtime.rundir import command_line, git_commit, hardware, versions

FLAGS = {"--fast": bool, "--jobs": int, "--timeout": float, "--json": str, "--runs": str, "--dry-run": bool}
FAST_SEC = 15 * 60.0
START_SEC = 12.0  # what a process takes until it learns, in addition to the time that a tuned file measured
GREEDY_EPISODES = 100


class Bar(NamedTuple):
    """What a tuned file expects."""

    tuned: str
    aim: float
    env_steps: float
    greedy: bool
    seconds: float | None  # the longest time that a seed took when the file was measured
    opponent: str | None = None  # against whom the greedy games are played
    on_gpu: bool = False  # whether the machine that measured it had a GPU


def bar_of(tuned: str) -> Bar | None:
    """The bar of a tuned file, or None where the file expects nothing."""
    values = yaml.safe_load((root() / "tuned" / f"{tuned}.yaml").read_text())
    expected, known = values.get("expected"), values.get("measured")
    if not expected or expected.get("return") is None or expected.get("env_steps") is None:
        return None
    seconds = known.get("wall_sec") if known else None
    several = seconds if isinstance(seconds, list) else [seconds]
    longest = max((float(value) for value in several if value is not None), default=None)
    return Bar(
        tuned,
        float(expected["return"]),
        float(expected["env_steps"]),
        expected.get("metric") == "greedy",
        longest,
        expected.get("opponent"),
        "NVIDIA" in (known or {}).get("machine", ""),
    )


def choose(names: Sequence[str], fast: bool, seeds: int, has_gpu: bool) -> list[Bar]:
    """The bars to run. UserError where a name fits no tuned file, no file expects anything, or none is fast.

    has_gpu: whether this machine has a GPU. Without one, the seconds that a file took on a GPU do not make it fast."""
    known = options("tuned")
    if names:
        found: list[str] = []
        for name in names:
            fitting = [one for one in known if fnmatch.fnmatchcase(one, name)]
            if not fitting:
                raise UserError(f"There is no tuned file {name!r}.{closest(name, known)} (rlrun list tuned)")
            found += fitting
        bars = [bar for bar in map(bar_of, dict.fromkeys(found)) if bar is not None]
        if not bars:
            raise UserError(f"{', '.join(names)}: these tuned files expect no result")
    else:
        bars = [bar for bar in map(bar_of, known) if bar is not None and bar.seconds is not None]
    if not fast:
        return bars
    timed = [bar for bar in bars if bar.seconds is not None and (has_gpu or not bar.on_gpu)]
    chosen, total = [], 0.0
    for bar in sorted(timed, key=lambda bar: bar.seconds or 0.0):
        total += seeds * ((bar.seconds or 0.0) + START_SEC)
        if total > FAST_SEC:
            break
        chosen.append(bar)
    if not chosen:
        where = "" if has_gpu else " on a machine without a GPU"
        raise UserError(f"none of these tuned files was measured to be quick enough for --fast{where}")
    return chosen


def main(words: Sequence[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    flags, rest = take_flags(list(words), FLAGS)
    check_timeout(flags["--timeout"])
    json_file = flags["--json"]
    if json_file is not None:
        check_results_file(json_file)
    names = [word for word in rest if "=" not in word]
    seeds = [1]
    for word in rest:
        key, equals, value = word.partition("=")
        if equals and key != "seeds":
            raise UserError(
                f"There is no option {key!r} here.{closest(key, ('seeds',))} There are seeds= and {', '.join(FLAGS)}."
            )
        if equals:
            seeds = [number(part, int, "seeds") for part in value.split(",") if part] or seeds
    if min(seeds) < 0:
        raise UserError("seeds must not be negative")
    bars = choose(names, flags["--fast"], len(seeds), torch.cuda.is_available())
    if flags["--runs"]:
        folder = Path(flags["--runs"])
    else:
        folder = Path("runs") if flags["--dry-run"] else new_folder()  # a dry run makes no folder
    jobs = {}
    for bar in bars:
        for seed in seeds:
            name = f"{bar.tuned.replace('/', '-')}-seed{seed}"
            words = [f"tuned={bar.tuned}", f"seed={seed}", f"env_steps={bar.env_steps:.0f}", "logger=[]"]
            words += [] if bar.greedy else [f"stop.return_mean={bar.aim:g}"]
            jobs[name] = (
                bar,
                seed,
                TrainingJob(name=name, words=tuple(words), run_dir=folder / name, log=folder / "logs" / f"{name}.log"),
            )
    if flags["--dry-run"]:
        if json_file is not None:
            raise UserError("--dry-run runs nothing, so that --json would write nothing")
        for _, _, job in jobs.values():
            print(f"rlrun train {' '.join(job.words)}")
        return 0
    before = [left_by(job) for _, _, job in jobs.values()]
    todo = [outcome.job for outcome in before if outcome.status not in DONE]
    print(f"rlrun benchmark tuned: {len(todo)} of {len(jobs)} runs to do in {folder}", flush=True)
    pool = Pool(places(flags["--jobs"]), view(len(jobs)), flags["--timeout"], before)
    outcomes = [outcome for outcome in pool.run(Fixed(todo)) if outcome.status != "WAITING"]
    results = [judged(*jobs[outcome.job.name][:2], outcome) for outcome in outcomes]
    print()
    print(
        text_table(
            [cells(result) for result in results], ("tuned file", "seed", "bar", "reached", "at env steps", "time", "")
        )
    )
    if json_file is not None:
        about = {"hardware": hardware(), "versions": versions(), "git_commit": git_commit(), "command": command_line()}
        every = [{**one, "words": list(run.job.words)} for one, run in zip(results, outcomes, strict=True)]
        write_results({"results": every, **about}, json_file)
    missed = sum(result["verdict"] != "pass" for result in results)
    print(f"{len(results) - missed} of {len(results)} bars met")
    if pool.signal is not None:
        return 128 + pool.signal
    return 1 if missed else 0


def left_by(job: TrainingJob) -> Outcome:
    """What an earlier session has left of a job. UserError where it ran with other options than the tuned file has."""
    from rlrun.commands.sweep_check import checked

    if (job.run_dir / "config.yaml").is_file():
        same_options(job, checked(job.words, job.name))
    return known(job)


def new_folder() -> Path:
    from rlrun.commands.sweep import new_folder as dated

    return dated(Path("runs") / "benchmark-tuned")


def judged(bar: Bar, seed: int, outcome: Outcome) -> dict[str, Any]:
    """The verdict on a run ("pass", "short" or "failed") with the facts that it rests on."""
    result: dict[str, Any] = {
        "tuned": bar.tuned,
        "seed": seed,
        "aim": bar.aim,
        "env_steps_allowed": bar.env_steps,
        "greedy": bar.greedy,
        "env_steps": outcome.env_steps,
        "wall_sec": outcome.wall_sec,
        "return": outcome.return_mean,
    }
    if outcome.status not in DONE:
        return {**result, "verdict": "failed", "reason": outcome.reason or outcome.status}
    reached: float | None = outcome.return_mean
    if bar.greedy:
        reached = greedy(outcome.job.run_dir, bar.opponent)
    elif outcome.summary.get("status") != "STOPPED":  # it ended on its env steps, but may have met the bar on the way
        reached = best_within(SavedRun(outcome.job.run_dir), bar.env_steps)
    # The last batch may have gone beyond the bar's env steps.
    late = outcome.summary.get("status") == "STOPPED" and outcome.env_steps > bar.env_steps
    met = reached is not None and reached >= bar.aim and not late
    return {**result, "return": reached, "verdict": "pass" if met else "short", "reason": ""}


def best_within(run: SavedRun, env_steps: float) -> float | None:
    """The best mean return of a run's last `episode_window` games within so many env steps, or that of all its games
    where it never played so many. None where no game ended."""
    rows = [row for row in run.rows if row["env_steps"] <= env_steps and row.get(RETURN) is not None]
    full = [row[RETURN] for row in rows if row.get("sample/episodes", 0) >= run.options.get("episode_window", 100)]
    return max(full or [row[RETURN] for row in rows[-1:]], default=None)


def greedy(run_dir: Path, opponent: str | None = None) -> float:
    """Mean return of the last checkpoint in greedy games with evaluation seeds."""
    import contextlib
    import io

    from rlrun.commands.evaluate import main as evaluate

    with contextlib.redirect_stdout(io.StringIO()) as said:
        evaluate(
            [str(run_dir), f"episodes={GREEDY_EPISODES}", *([f"opponent={opponent}"] if opponent else []), "--json"]
        )
    return float(json.loads(said.getvalue())["return_mean"])


def cells(result: dict[str, Any]) -> list[str]:
    reached = "" if result["return"] is None else f"{result['return']:,.2f}"
    aim = f">= {result['aim']:g} @{result['env_steps_allowed']:,.0f}" + (" greedy" if result["greedy"] else "")
    return [
        result["tuned"],
        str(result["seed"]),
        aim,
        reached,
        f"{result['env_steps']:,}",
        duration(result["wall_sec"]),
        " ".join(filter(None, (result["verdict"], result["reason"][:80]))),
    ]
