"""Search with Optuna, random or TPE (Bergstra et al. 2011).

Runs can be pruned that do worse than others did after as many env steps.
The study is a journal of JSON lines in the sweep's directory, so that a search can be resumed.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
from rlrun.core.outputs import tell
from rlrun.experiments.grid import Space, Variation, job_name
from rlrun.experiments.outcomes import DONE, Outcome, TrainingJob
from rlrun.experiments.record import job_in
from rlrun.loggers.jsonl import rows_behind

METHODS = ("random", "tpe")
STARTUP_TRIALS = 5  # runs to finish before another can be pruned, and before TPE stops drawing at random
SEEDS = 2**32  # Optuna's samplers take no larger seeds
RUNGS = 20  # number of points, evenly spaced over env_steps, at which runs are compared
FAILED = "failed"  # attribute of a trial whose run failed or was refused


def optuna() -> Any:
    """The optuna module. UserError where it is not installed."""
    try:
        import optuna as found
    except ImportError:
        raise UserError(f"--search needs Optuna: {install_line('search')}") from None
    logging.getLogger("optuna").setLevel(logging.WARNING)
    return found


def journal(path: Path) -> Any:
    """Optuna's storage in a file of JSON lines. UserError where the file cannot be read.

    A last line that was cut, as by a full disk, is removed: Optuna would append the next one to it."""
    path = path.resolve()  # Optuna locks with a link to this path, which it would never find where it is relative
    if path.exists():
        whole = path.read_bytes()
        if (kept := whole.rfind(b"\n") + 1) < len(whole):
            os.truncate(path, kept)
            print(f"  the last line of {path} was cut short, and is removed", flush=True)
    storages = optuna().storages
    try:
        return storages.JournalStorage(storages.journal.JournalFileBackend(str(path)))
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _ended(frozen: Any) -> str | None:
    """PRUNED or FAILED for a trial that must not run again; None for others."""
    if frozen.state.name not in ("PRUNED", "FAIL"):  # FAIL was written by earlier versions
        return None
    return "PRUNED" if frozen.state.name == "PRUNED" and FAILED not in frozen.user_attrs else "FAILED"


def over_of(study: Any) -> dict[int, str]:
    """The trials of a study that must not run again, by number, with PRUNED or FAILED."""
    return {one.number: status for one in study.get_trials(deepcopy=False) if (status := _ended(one)) is not None}


def left_of(folder: Path, count: int) -> tuple[dict[int, str], int]:
    """What over_of() says about the search in a sweep's directory, and how many of its `count` trials are to be drawn
    yet."""
    if not (folder / "study.jsonl").exists():
        return {}, count
    study = optuna().load_study(study_name="sweep", storage=journal(folder / "study.jsonl"))
    return over_of(study), count - len(study.get_trials(deepcopy=False))


@dataclass
class _Seen:
    """How far the rows of a trial's run have been read."""

    rung: int = 0  # the last one that was reported to the study
    offset: int = 0  # bytes of progress.jsonl
    point: tuple[float, float] | None = None  # env steps and mean return of the last row that has a return


def _judged(row: dict[str, Any]) -> tuple[float, float] | None:
    """The env steps and the mean return by which a row is judged; None where it has no return. Runs that learn from
    data play no games but those of evaluations, whose weights may be older than the row."""
    if (mean := row.get("sample/return_mean")) is not None:
        return row["env_steps"], mean
    if (mean := row.get("eval/return_mean")) is not None:
        return row.get("eval/env_steps", row["env_steps"]), mean
    return None


class Trials:
    """A supply of jobs whose words a study draws, to maximise the mean return of the last 100 games of a run."""

    def __init__(
        self,
        space: Space,
        method: str,
        count: int,
        prune: bool,
        env_steps: float,
        seed: int,
        folder: Path,
        check: Callable[[Sequence[str], str], Any],
        own: Sequence[str] = (),
    ):
        """own: words of every job in addition to space.fixed.

        check(words, name) raises UserError where a job with these words would not start.
        """
        found = optuna()
        self.space, self.count, self.prune, self.folder, self.own, self.check = (
            space,
            count,
            prune,
            folder,
            list(own),
            check,
        )
        self.rung = max(1.0, env_steps / RUNGS)
        self.seen: dict[int, _Seen] = {}  # by the number of a trial
        storage = journal(folder / "study.jsonl")
        samplers = {"random": found.samplers.RandomSampler, "tpe": found.samplers.TPESampler}
        # constant_liar keeps runs side by side apart. Optuna calls it experimental at every search.
        options = {"n_startup_trials": STARTUP_TRIALS, "constant_liar": True} if method == "tpe" else {}
        pruner = (
            found.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=2)
            if prune
            else found.pruners.NopPruner()
        )
        # The seed depends on the number of trials, because a resumed search must not draw the same values again.
        begun = len(storage.get_all_trials(0)) if storage.get_all_studies() else 0
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*constant_liar", category=found.exceptions.ExperimentalWarning)
            sampler = samplers[method](seed=(seed + begun) % SEEDS, **options)
        self.study = found.create_study(
            study_name="sweep",
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            direction="maximize",
            load_if_exists=True,
        )
        self.trials: dict[str, Any] = {}
        self.again: list[tuple[Any, TrainingJob]] = []  # jobs of an earlier session that the study has no result for
        # Counted here, because asking the study for its trials takes the longer the more it has.
        self.drawn = begun
        self.refused = 0  # draws of this session whose runs would not have started
        # Trials of earlier sessions that must not run again, by number, and their statuses.
        self.over = over_of(self.study)
        for frozen in self.study.trials:
            if frozen.state == found.trial.TrialState.RUNNING:
                self.seen[frozen.number] = _Seen(rung=max(frozen.intermediate_values, default=0))
                trial = found.trial.Trial(self.study, frozen._trial_id)
                self._check_known(frozen.params)
                # The trial has its values, but for those that were not drawn yet when a session was killed.
                self.again.append((trial, self._job(frozen.number, self._draw(trial))))

    def _check_known(self, params: dict[str, Any]) -> None:
        """Raises UserError if the parameters of a trial of the journal lie outside the space."""
        for key, value in params.items():
            interval, choices = self.space.intervals.get(key), self.space.choices.get(key, ())
            inside = interval is not None and isinstance(value, int | float) and interval.low <= value <= interval.high
            if not inside and value not in choices:
                raise UserError(f"{self.folder / 'study.jsonl'} has {key}={value}, which this search does not contain")

    def _text(self, key: str, value: Any) -> str:
        return self.space.intervals[key].text(value) if isinstance(value, float) else str(value)

    def _job(self, number: int, varied: Sequence[Variation]) -> TrainingJob:
        return job_in(
            self.folder, job_name(number, varied), [*self.own, *self.space.fixed, *(one.word for one in varied)]
        )

    def _draw(self, trial: Any) -> list[Variation]:
        varied = []
        for key, values in self.space.choices.items():
            varied.append(Variation(key, trial.suggest_categorical(key, values)))
        for key, interval in self.space.intervals.items():
            if interval.whole:
                value = trial.suggest_int(key, int(interval.low), int(interval.high), log=interval.log)
            else:
                value = trial.suggest_float(key, interval.low, interval.high, log=interval.log)
            varied.append(Variation(key, self._text(key, value)))
        return varied

    def _failed(self, trial: Any) -> None:
        """Tells the study that a trial is worse than any that has a return.

        Its state is PRUNED, because TPE learns nothing from trials of the state FAIL, and would go on drawing values
        with which runs fail."""
        trial.set_user_attr(FAILED, True)
        self.study.tell(trial, state=optuna().trial.TrialState.PRUNED)

    def next(self) -> TrainingJob | None:
        if self.again:
            trial, job = self.again.pop(0)
            self.trials[job.name] = trial
            return job
        while self.drawn < self.count:
            trial = self.study.ask()
            self.drawn += 1
            job = self._job(trial.number, self._draw(trial))
            try:
                self.check(job.words, job.name)
            except UserError as error:  # the values do not fit together, and the study learns to avoid them
                tell(f"left out: {error}")
                self._failed(trial)
                self.refused += 1
                continue
            self.trials[job.name] = trial
            return job
        return None

    def look(self, outcome: Outcome) -> bool:
        if not self.prune:
            return False
        trial = self.trials[outcome.job.name]
        for rung, mean in self._passed(trial.number, outcome.job.run_dir):
            trial.report(mean, rung)
            if trial.should_prune():
                return True
        return False

    def _passed(self, number: int, run_dir: Path) -> Iterator[tuple[int, float]]:
        """Yields the rungs that a trial's run has passed and that were not yielded before, each with the mean return
        there, which is interpolated between rows. Runs are thus compared after as many env steps, whenever they write
        their rows and however often these are read."""
        seen = self.seen.setdefault(number, _Seen())
        for offset, row in rows_behind(run_dir / "progress.jsonl", seen.offset):
            seen.offset = offset
            point = _judged(row)
            if point is None:
                continue
            (before, low), (steps, high) = seen.point or point, point
            seen.point = point
            for rung in range(max(seen.rung + 1, math.ceil(before / self.rung)), int(steps / self.rung) + 1):
                share = (rung * self.rung - before) / (steps - before) if steps > before else 1.0
                seen.rung = rung
                yield rung, low + share * (high - low)

    def done(self, outcome: Outcome) -> None:
        trial = self.trials[outcome.job.name]
        if outcome.status in DONE and outcome.return_mean is not None:
            if self.prune:
                for rung, mean in self._passed(trial.number, outcome.job.run_dir):
                    trial.report(mean, rung)
            self.study.tell(trial, outcome.return_mean)
        elif outcome.status == "PRUNED":
            self.study.tell(trial, state=optuna().trial.TrialState.PRUNED)
        elif outcome.status != "INTERRUPTED" and not outcome.lost:  # those go on in the next session
            self._failed(trial)

    def status(self, name: str) -> str | None:
        """PRUNED or FAILED for a job of an earlier session that must not run again; None for others."""
        return self.over.get(int(name.split("-", 1)[0]))

    def best(self) -> str | None:
        """A sentence with the best run's return and words; None where no run is complete."""
        all_trials = self.study.get_trials(deepcopy=False)
        complete = [trial for trial in all_trials if trial.value is not None and trial.state.name == "COMPLETE"]
        if not complete:
            return None
        top = max(complete, key=lambda trial: trial.value)
        words = " ".join(f"{key}={self._text(key, value)}" for key, value in top.params.items())
        alike = sum(f"{trial.value:.2f}" == f"{top.value:.2f}" for trial in complete)
        shared = f", which {alike} runs reached, one of them" if alike > 1 else ""
        return f"best of {len(complete)}: return {top.value:.2f}{shared} with {words}"
