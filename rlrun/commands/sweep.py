"""rlrun sweep algo=ppo,impala env=Pong,Breakout seed=1,2,3 [any option of rlrun train] [--jobs N] [--dry-run] [--timeout SEC] [--dir DIR] [--config-dir DIR]
rlrun sweep --resume DIR [--jobs N]

One run for every combination, each in a process of its own. Values: a=1,2,3, a=range(1,5), tuned='glob(impala/*)'. --jobs: how many at a time, each with its
share of the cores and one GPU (without it one for each GPU, or for every two cores). --dry-run prints the runs. A run that fails does not stop the others;
--resume goes on with those that failed or were interrupted, from their last checkpoint. Ctrl-C lets the running ones save."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.cli import compose, take_flags
from rlrun.core.errors import UserError

FLAGS = {"--jobs": int, "--timeout": float, "--dir": str, "--resume": str, "--dry-run": bool, "--config-dir": str}


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    flags, words = take_flags(words, FLAGS)
    if flags["--timeout"] is not None and flags["--timeout"] <= 0:
        raise UserError("--timeout must be positive")
    if flags["--resume"] is not None:
        if words:
            raise UserError(f"--resume goes on with the sweep as it was; {words[0]} would change it")
        return resume(Path(flags["--resume"]), flags)
    return begin(words, flags)


def begin(words: list[str], flags: dict[str, Any]) -> int:
    from rlrun.experiments.grid import grid, job_name, parse

    space = parse(words)
    if space.intervals:
        key = next(iter(space.intervals))
        raise UserError(f"{key} is an interval: a grid needs single values, such as {key}=1,2,3")
    if not words:
        raise UserError("a sweep without jobs: say what to run, such as rlrun sweep algo=ppo,impala env=CartPole-v1 seed=1,2")
    for reserved in ("run_dir", "runs_root"):
        if reserved in space.choices or (reserved == "run_dir" and any(word.startswith("run_dir=") for word in words)):
            raise UserError(f"{reserved}= cannot vary: every job has a directory of its own, in that of the sweep (--dir)")
    combinations = grid(space.choices)
    own = [f"--config-dir={Path(flags['--config-dir']).resolve()}"] if flags["--config-dir"] else []
    jobs = [(job_name(number, varied), [*own, *space.fixed, *(v.word for v in varied)]) for number, varied in enumerate(combinations)]
    configs = [checked(job, name) for name, job in jobs]  # a mistake in the last one must not show after hours
    if flags["--dry-run"]:
        for name, job in jobs:
            print(f"{name}: rlrun train {' '.join(job)}")
        print(f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}")
        return 0
    folder = Path(flags["--dir"]) if flags["--dir"] else new_folder(Path(configs[0]["runs_root"]) / "sweeps")
    if (folder / "sweep.json").exists():
        raise UserError(f"{folder} holds a sweep: rlrun sweep --resume {folder} goes on with it")
    folder.mkdir(parents=True, exist_ok=True)
    from rlrun.experiments.record import write

    write(folder, words, jobs, configs[0])
    return work(folder, flags)


def checked(words: Sequence[str], name: str) -> dict[str, Any]:
    """The plain config of a job. UserError with its name where it would not start."""
    from rlrun.commands.train import check_tuned
    from rlrun.config import plain
    from rlrun.wiring import type_config

    made: list[dict[str, Any]] = []

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        values = plain(cfg)
        check_tuned(choices, values)
        type_config(values)
        made.append(values)
        return 0

    try:
        compose(list(words), job)
    except UserError as error:
        raise UserError(f"job {name}: {error}") from None
    return made[0]


def new_folder(root: Path) -> Path:
    from datetime import datetime

    base = root / f"{datetime.now():%Y%m%d-%H%M%S}"
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def resume(folder: Path, flags: dict[str, Any]) -> int:
    if not (folder / "sweep.json").is_file():
        raise UserError(f"{folder} is not the directory of a sweep: it has no sweep.json")
    return work(folder, flags)


def work(folder: Path, flags: dict[str, Any]) -> int:
    """Runs what is not done yet; exit code 0 when everything is, 1 when a job failed, 130 or 143 after a signal."""
    from rlrun.experiments.jobs import DONE, Fixed, Pool, checkpoints, clear, known, places
    from rlrun.experiments.record import Parent, held, read
    from rlrun.experiments.view import view

    with held(folder):
        record = read(folder)
        before = [known(job) for job in record.jobs]
        todo = [outcome.job for outcome in before if outcome.status not in DONE]
        if flags["--dry-run"]:
            for job in todo:
                print(f"{job.name}: {'goes on' if checkpoints(job.run_dir) else 'begins'}")
            print(f"{len(todo)} of {len(before)} jobs to do")
            return 0
        where = places(flags["--jobs"])
        print(f"rlrun sweep: {len(todo)} of {len(before)} jobs, {min(len(where), max(len(todo), 1))} at a time, in {folder}", flush=True)
        for job in todo:
            clear(job)
        parent = Parent(record, folder)
        pool = Pool(where, view(len(before)), flags["--timeout"], before)
        try:
            outcomes = pool.run(Fixed([parent.adopt(job) for job in todo]))
        finally:
            parent.close(pool.outcomes, pool.interrupted)
        (folder / "outcomes.json").write_text(json.dumps([told(outcome) for outcome in outcomes], indent=1) + "\n")
    unfinished = [outcome for outcome in outcomes if outcome.status not in (*DONE, "PRUNED")]
    print(folder, flush=True)
    if unfinished:
        print(f"rlrun sweep --resume {folder} goes on with {len(unfinished)} of {len(outcomes)} jobs", flush=True)
    if pool.signal is not None:
        return 128 + pool.signal
    return 1 if unfinished else 0


def told(outcome: Any) -> dict[str, Any]:
    """What outcomes.json says of a job."""
    return {"name": outcome.job.name, "words": list(outcome.job.words), "run_dir": outcome.job.run_dir.name, "status": outcome.status,
            "reason": outcome.reason, "env_steps": outcome.env_steps, "return_mean": outcome.return_mean, "wall_sec": outcome.wall_sec}  # fmt: skip
