"""rlrun sweep algo=ppo,impala env=Pong,Breakout seed=1,2,3 [any option of rlrun train]
            [--jobs N] [--dry-run] [--timeout SEC] [--dir DIR] [--config-dir DIR] [--trust]
rlrun sweep algo=ppo env=Pong 'algo.lr=tag(log,interval(1e-5,1e-3))' --search tpe|random --trials 30 [--prune]
rlrun sweep algo=ppo env=Pong 'algo.lr=tag(log,interval(1e-5,1e-3))' --search pbt --trials 8 --every 100000
rlrun sweep ... --cluster slurm --queue partition=gpu,cpus_per_task=8,gpus_per_node=1,timeout_min=600
rlrun sweep ... --cluster ray --queue address=HOST:6379,cpus_per_task=8,gpus_per_task=1
rlrun sweep --resume DIR [--jobs N] [--trust]

Trains every combination, each run in a process of its own. Values are written a=1,2,3, or a=range(1,4) for the same, or
tuned='glob(impala/*)'. --jobs says how many runs share the machine at a time; each gets its share of the cores and one
GPU. The default is one run for each GPU, or one for every two cores. --dry-run prints the runs and starts none. All
runs are checked before the first begins, as rlrun train --plan checks one. --timeout ends a run after so many seconds.
Time in a cluster's queue does not count. A run that fails does not stop the others. --resume continues the
runs that failed or were interrupted, from their last checkpoint. With --search random or tpe it continues only those
that were interrupted, because the search has learnt from the failures; with pbt, members that failed need a checkpoint
to go on. Ctrl-C lets running jobs save a checkpoint.
--trust lets --config-dir, or a sweep from elsewhere that is resumed, name modules that no installed package contains.

--search draws values from lists and intervals instead; int(interval(1,8)) draws whole numbers. Its methods are random,
tpe (Optuna) and pbt. pbt trains a population of --trials runs: after every --every env steps the worst runs copy the
weights of the best and go on with perturbed values. --timeout counts for each of these parts of a run. --prune ends
runs early: one whose best mean return so far is below the median that finished runs had after as many env steps.

--cluster slurm hands the jobs to SLURM's queue, --jobs at a time. It needs submitit and a file system that all machines
share. --cluster local tries the same on this machine. --cluster ray runs each job on a machine of a Ray cluster, which
has to share a file system too; without address=, Ray starts on this machine and ends with the sweep, and simulate=N
makes N parts of it. docs/cluster.md says how to start a cluster."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli import flags_given, take_flags
from rlrun.commands.sweep_check import JobCheck, check_fractions, check_goal
from rlrun.core.errors import UserError, closest

if TYPE_CHECKING:
    from rlrun.experiments.jobs import Starter
    from rlrun.experiments.places import Place

FLAGS = {
    "--jobs": int,
    "--timeout": float,
    "--dir": str,
    "--resume": str,
    "--dry-run": bool,
    "--config-dir": str,
    "--trust": bool,
    "--search": str,
    "--trials": int,
    "--prune": bool,
    "--every": float,
    "--cluster": str,
    "--queue": str,
}
SEARCHES = ("random", "tpe", "pbt")
# Names in the directory of a search, which draws the names of its jobs later.
MADE_BY_PBT = ("member-*", "population.json")
MADE_BY_TRIALS = ("[0-9][0-9][0-9]", "[0-9][0-9][0-9]-*", "study.jsonl")


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    for word in words:
        if word in ("-m", "--multirun"):
            raise UserError(f"sweep needs no {word}: several values, such as seed=1,2,3, are several runs already")
    flags, words = take_flags(words, FLAGS)
    check_flags(flags)
    if flags["--resume"] is not None:
        fixed = ("--search", "--trials", "--every", "--prune", "--dir", "--config-dir")
        changed = [*words, *flags_given(flags, fixed)]
        if changed:
            raise UserError(f"--resume goes on with the sweep as it was, and {changed[0]} would change it")
        return resume(Path(flags["--resume"]), flags)
    return begin(words, flags)


def check_flags(flags: dict[str, Any]) -> None:
    """Raises UserError for a flag's value that is out of range."""
    from rlrun.experiments.jobs import check_timeout

    check_timeout(flags["--timeout"])
    if flags["--jobs"] is not None and flags["--jobs"] < 1:
        raise UserError("--jobs must be at least 1")
    if flags["--queue"] and not flags["--cluster"]:
        raise UserError("--queue is for --cluster slurm and --cluster ray")
    if flags["--cluster"]:
        from rlrun.experiments.cluster import check

        check(flags["--cluster"], flags["--queue"] or "")


def begin(words: list[str], flags: dict[str, Any]) -> int:
    from rlrun.core.passwords import masked
    from rlrun.experiments.grid import bare, grid, job_name, parse

    if not words:
        raise UserError(
            "a sweep needs words that say what to run, such as rlrun sweep algo=ppo,impala env=CartPole-v1 seed=1,2"
        )
    space = parse(words)
    for reserved in ("run_dir", "runs_root"):
        if space.varies(reserved) or (
            reserved == "run_dir" and any(bare(word).startswith("run_dir=") for word in words)
        ):
            raise UserError(
                f"{reserved}= cannot vary: every job has a directory of its own in the sweep's directory (--dir)"
            )
    own = [f"--config-dir={Path(flags['--config-dir']).resolve()}"] if flags["--config-dir"] else []
    own += ["--trust"] if flags["--trust"] else []
    if flags["--search"] is not None:
        return search(words, space, own, flags)
    for flag in flags_given(flags, ("--trials", "--prune", "--every")):
        raise UserError(
            f"{flag} is for --search"
            f" {'pbt' if flag == '--every' else 'random|tpe|pbt' if flag == '--trials' else 'random|tpe'}"
        )
    if space.intervals:
        key = next(iter(space.intervals))
        raise UserError(
            f"{key} is an interval, but a grid needs single values, such as {key}=1,2,3; --search draws from intervals"
        )
    jobs = [
        (job_name(number, varied), [*own, *space.fixed, *(v.word for v in varied)])
        for number, varied in enumerate(grid(space.choices))
    ]
    names = [name for name, _ in jobs]
    check_free(flags, names)
    check = JobCheck(plans=jobs_run_here(flags))
    config = check.all(jobs)  # all are checked now: the last may begin hours from now
    if flags["--dry-run"]:
        for name, job in jobs:
            print(masked(f"{name}: rlrun train {' '.join(job)}"))
        print(f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}")
        return 0
    return launch(flags, names, words, jobs, config)


def search(words: list[str], space: Any, own: list[str], flags: dict[str, Any]) -> int:
    """Begins a sweep that draws the values of its jobs."""
    kind, trials = flags["--search"], flags["--trials"]
    if kind not in SEARCHES:
        raise UserError(f"There is no --search {kind}.{closest(kind, SEARCHES)} There are {', '.join(SEARCHES)}.")
    if trials is None or trials < 1:
        raise UserError("--search needs --trials N, the number of runs")
    if kind == "pbt" and flags["--prune"]:
        raise UserError("--prune is for --search random|tpe: in a population, the worst copy the best instead")
    if flags["--every"] is not None and not flags["--every"] >= 1:
        raise UserError("--every must be at least 1")
    if (kind == "pbt") != (flags["--every"] is not None):
        raise UserError(
            "--search pbt needs --every N, the env steps between two takeovers"
            if kind == "pbt"
            else "--every is for --search pbt"
        )
    if space.varies("seed"):
        raise UserError("seed= varies, but a search takes one seed: it would otherwise find the luckiest")
    if not space.choices and not space.intervals:
        raise UserError("--search needs something to search in, such as 'algo.lr=tag(log, interval(1e-5, 1e-3))'")
    if kind != "pbt":
        from rlrun.experiments.search import optuna

        optuna()
    first = [f"{key}={values[0]}" for key, values in space.choices.items()]
    first += [f"{key}={int(one.low) if one.whole else one.text(one.low)}" for key, one in space.intervals.items()]
    taken = MADE_BY_PBT if kind == "pbt" else MADE_BY_TRIALS
    check_free(flags, taken)
    check = JobCheck(plans=jobs_run_here(flags), compares=True)
    config = check([*own, *space.fixed, *first], "at the lowest values")
    check_goal(config)
    check_fractions(config, space.intervals)
    if kind == "pbt":
        from rlrun.commands.sweep_check import check_changes
        from rlrun.experiments.population import fits

        fits(space, config, trials, flags["--every"])
        ends = {
            key: [str(int(end)) if one.whole else one.text(end) for end in (one.low, one.high)]
            for key, one in space.intervals.items()
        }
        check_changes(
            lambda key, value: check([*own, *space.fixed, *first, f"{key}={value}"], f"with {key}={value}"),
            {**space.choices, **ends},
        )
    said = {
        "kind": kind,
        "trials": trials,
        "prune": flags["--prune"],
        "every": flags["--every"],
        "own": own,
        "env_steps": config["env_steps"],
        "seed": config["seed"],
    }
    if flags["--dry-run"]:
        drawn = [f"{key} of {', '.join(values)}" for key, values in space.choices.items()]
        drawn += [f"{key} from {one.low:.12g} to {one.high:.12g}" for key, one in space.intervals.items()]
        print(f"{trials} {'members' if kind == 'pbt' else 'runs'} by {kind}: {'; '.join(drawn)}")
        return 0
    return launch(flags, taken, words, [], config, said)


def launch(
    flags: dict[str, Any],
    taken: Sequence[str],
    words: list[str],
    jobs: Sequence[tuple[str, Sequence[str]]],
    config: dict[str, Any],
    said: dict[str, Any] | None = None,
) -> int:
    """Makes the sweep's directory, writes sweep.json there and runs the jobs.

    taken: as check_free takes it. The others are those of record.write()."""
    from rlrun.experiments.record import held, write

    folder = made(flags, config)
    with held(folder):
        check_free(flags, taken)  # another sweep may have begun in --dir while the jobs of this one were checked
        write(folder, words, jobs, config, said)
        return work(folder, flags)


def made(flags: dict[str, Any], config: dict[str, Any]) -> Path:
    """Makes the sweep's directory. UserError where it cannot be made."""
    try:
        if not flags["--dir"]:
            return new_folder(Path(config["runs_root"]) / "sweeps")
        folder = Path(flags["--dir"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        return folder
    except OSError as error:
        raise UserError(f"{error.filename} cannot be made: {error.strerror}") from None


def resume_words(folder: Path, flags: Mapping[str, Any]) -> str:
    """The command that goes on with a sweep in the same place, as a user can paste it."""
    where = [f" {flag} {shlex.quote(flags[flag])}" for flag in ("--cluster", "--queue") if flags.get(flag)]
    return f"rlrun sweep --resume {shlex.quote(str(folder))}{''.join(where)}"


def check_free(flags: dict[str, Any], taken: Sequence[str]) -> None:
    """UserError where --dir holds a sweep, or what jobs of a new one would take for their own.

    taken: the names of what they would, or patterns of these."""
    if not flags["--dir"]:
        return
    folder = Path(flags["--dir"])
    if (folder / "sweep.json").exists():
        raise UserError(f"{folder} holds a sweep: {resume_words(folder, flags)} continues it")
    found = next((path for pattern in taken for path in sorted(folder.glob(pattern))), None)
    if found is not None:
        raise UserError(f"{found} exists already, and this sweep would use it: choose another --dir, or move it away")


def jobs_run_here(flags: dict[str, Any]) -> bool:
    """Whether jobs run on this machine, so that a plan that is made here is theirs."""
    return flags["--cluster"] in (None, "local")


def new_folder(root: Path) -> Path:
    """Makes a directory named after the date and time; a number is added where that second's name is taken."""
    from datetime import datetime

    from rlrun.runtime.rundir import new_folder as unused

    return unused(root / f"{datetime.now():%Y%m%d-%H%M%S}")


def resume(folder: Path, flags: dict[str, Any]) -> int:
    from rlrun.config.saved import refuse_links
    from rlrun.config.signature import in_place
    from rlrun.experiments.record import held, read

    if not (folder / "sweep.json").is_file():
        raise UserError(f"{folder} is not the directory of a sweep: it has no sweep.json")
    if not flags["--trust"] and not in_place(folder / "sweep.json"):
        refuse_links(folder)
    read(folder, flags["--trust"])  # before anything is written there
    with held(folder):
        return work(folder, flags)


class RecordedSupply:
    """A supply that writes each job to sweep.json and puts it under the sweep's MLflow run."""

    def __init__(self, supply: Any, parent: Any, folder: Path, trusted: bool, view: Any):
        """trusted: whether jobs may run modules that no installed package contains. view: is told how many draws are
        left out."""
        self.supply, self.parent, self.folder, self.trusted, self.view = supply, parent, folder, trusted, view
        self.look, self.done = supply.look, supply.done

    def next(self) -> Any:
        from rlrun.experiments.record import add

        job = self.supply.next()
        self.view.left_out = getattr(self.supply, "refused", 0)
        if job is None:
            return None
        add(self.folder, job)
        return self.parent.adopt(replace(job, trusted=self.trusted))


def supply_of(record: Any, folder: Path, todo: Sequence[Any], plans: bool) -> Any:
    """The supply that gives out the jobs: a fixed list, an Optuna study or a population.

    plans: whether jobs that are drawn are planned before they begin."""
    said = record.search
    if said is None:
        from rlrun.experiments.jobs import Fixed

        return Fixed(todo)
    from rlrun.core.plugins import allow
    from rlrun.experiments.grid import parse

    space = parse(record.words)
    # What names a module was typed by the user when the sweep began, in the folder where its jobs run.
    allow([*record.words, *said["own"]])
    check = JobCheck(plans=plans, compares=True, cwd=record.cwd if Path(record.cwd).is_dir() else None)
    if said["kind"] == "pbt":
        from rlrun.experiments.population import PopulationTraining

        return PopulationTraining(
            space,
            said["trials"],
            int(said["every"]),
            int(said["env_steps"]),
            said["seed"],
            folder,
            check,
            said["own"],
        )
    from rlrun.experiments.search import Trials

    return Trials(
        space,
        said["kind"],
        said["trials"],
        said["prune"],
        said["env_steps"],
        said["seed"],
        folder,
        check,
        said["own"],
    )


@contextlib.contextmanager
def started(flags: dict[str, Any], folder: Path, cwd: str) -> Iterator[tuple[Starter, list[Place]]]:
    """What starts the jobs of a sweep, and the places where they run."""
    cwd = cwd if Path(cwd).is_dir() else str(Path.cwd())
    given = flags["--queue"]
    if flags["--cluster"] == "ray":
        from rlrun.experiments.cluster import words
        from rlrun.experiments.ray_queue import RayQueue

        with contextlib.closing(RayQueue(words(given) if given else {}, cwd)) as queue:
            yield queue, queue.slots(flags["--jobs"])
    elif flags["--cluster"]:
        from rlrun.experiments.cluster import Queue, parse, slots

        yield Queue(flags["--cluster"], parse(given) if given else {}, folder, cwd), slots(flags["--jobs"])
    else:
        from rlrun.experiments.jobs import Here
        from rlrun.experiments.places import places

        yield Here(cwd=cwd), places(flags["--jobs"])


def work(folder: Path, flags: dict[str, Any]) -> int:
    """Runs the jobs that are left. Returns 0 when all are done, 1 when one failed, 130 or 143 after a signal. The
    caller holds the directory."""
    from rlrun.experiments.jobs import Pool
    from rlrun.experiments.outcomes import DONE, known
    from rlrun.experiments.record import Parent, read
    from rlrun.experiments.view import view

    with contextlib.ExitStack() as end:
        record = read(folder, flags["--trust"])
        before = [known(job) for job in record.jobs]
        todo = [outcome.job for outcome in before if outcome.status not in DONE]
        if flags["--dry-run"]:
            show_what_is_left(record, folder, before)
            return 0
        starter, where = end.enter_context(started(flags, folder, record.cwd))
        count = len(before) if record.search is None else record.search["trials"]
        jobs = f"{len(todo)} of {count} jobs" if record.search is None else f"{count} by {record.search['kind']}"
        print(f"rlrun sweep: {jobs}, {min(len(where), max(count, 1))} at a time, in {folder}", flush=True)
        parent = Parent(record, folder)
        supply = supply_of(record, folder, todo, jobs_run_here(flags))
        if record.search is not None:
            for outcome in before:
                outcome.status = supply.status(outcome.job.name) or outcome.status
        # Draws that were refused in an earlier session have no job.
        refused = 0 if record.search is None or record.search["kind"] == "pbt" else supply.drawn - len(before)
        table = view(count - refused)
        pool = Pool(where, table, flags["--timeout"], before, starter)
        try:
            outcomes = pool.run(RecordedSupply(supply, parent, folder, flags["--trust"], table))
        finally:
            parent.close(pool.outcomes, pool.interrupted)
        flags["--dir"] = str(folder)  # for who has called begin() without one
        (folder / "outcomes.json").write_text(json.dumps([told(outcome) for outcome in outcomes], indent=1) + "\n")
    if record.search is not None and supply.best() is not None:
        print(supply.best(), flush=True)
    if record.search is None or record.search["kind"] != "pbt":  # members of a population change their settings
        show_settings(folder)
    if not outcomes:
        raise UserError(f"none of the {count} runs could start; the reasons are above")
    unfinished = [outcome for outcome in outcomes if outcome.status not in (*DONE, "PRUNED")]
    print(folder, flush=True)
    if pool.signal is not None:
        print(f"{resume_words(folder, flags)} goes on", flush=True)
        return 128 + pool.signal
    # A search has learnt from the jobs that failed, and goes on with those that were interrupted or lost.
    left = [one for one in unfinished if record.search is None or one.status == "INTERRUPTED" or one.lost]
    if left:
        print(f"{resume_words(folder, flags)} goes on with {len(left)} of {len(outcomes)} jobs", flush=True)
    return 1 if unfinished else 0


def show_settings(folder: Path) -> None:
    """Prints what each setting reached over its seeds, where a setting has several."""
    from rlrun.experiments.runs import find
    from rlrun.experiments.settings import settings_of, settings_text

    try:
        found = settings_of(find([str(folder)]))
    except UserError:  # no job became a run that can be read; the table above says so
        return
    if any(len(one.scores) > 1 for one in found):
        said = f"rlrun compare {shlex.quote(str(folder))} says what these numbers are"
        print(f"\n{settings_text(found)}\n{said}", flush=True)


def show_what_is_left(record: Any, folder: Path, before: Sequence[Any]) -> None:
    """Prints what --resume would do, and changes nothing."""
    from rlrun.experiments.outcomes import DONE, checkpoints

    said = record.search
    if said is not None and said["kind"] == "pbt":
        from rlrun.experiments.population import generation_of

        whole = math.ceil(said["env_steps"] / said["every"])
        print(f"{generation_of(folder)} of {whole} generations of {said['trials']} members are done")
        return
    todo, more = [one.job for one in before if one.status not in DONE], 0
    if said is not None:
        from rlrun.experiments.search import left_of

        over, more = left_of(folder, said["trials"])
        todo = [job for job in todo if int(job.name.split("-", 1)[0]) not in over]
    for job in todo:
        print(f"{job.name}: {'goes on' if checkpoints(job.run_dir) else 'begins'}")
    if more:
        print(f"{more} more will be drawn")
    print(f"{len(todo) + more} of {len(before) + more} jobs to do")


def told(outcome: Any) -> dict[str, Any]:
    """What outcomes.json says about a job."""
    return {
        "name": outcome.job.name,
        "words": list(outcome.job.words),
        "run_dir": outcome.job.run_dir.name,
        "status": outcome.status,
        "reason": outcome.reason,
        "env_steps": outcome.env_steps,
        "return_mean": outcome.return_mean,
        "wall_sec": outcome.wall_sec,
    }
