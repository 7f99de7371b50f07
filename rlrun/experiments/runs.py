"""Reads saved runs, for comparing and drawing them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.config.saved import refuse_links
from rlrun.config.signature import in_place
from rlrun.config.types import load_yaml
from rlrun.core.errors import Notice, UserError, closest
from rlrun.core.saved_files import check_run_config
from rlrun.experiments.outcomes import DONE
from rlrun.loggers.jsonl import read as read_rows
from rlrun.loggers.mlflow import flatten
from rlrun.runtime.rundir import RunDir

# Options with these prefixes do not change what a run learns, apart from its seed and its end.
SAME = (
    "seed",
    "run_dir",
    "runs_root",
    "record",
    "replay.directory",
    "logger",
    "expected",
    "measured",
    "checkpoint.",
    "log_every_",
    "episode_window",
    "callbacks",
    "stop.",
    "resources.",
)
RETURN = "sample/return_mean"
EVALUATED = "eval/return_mean"
LABELLED = 4  # how many options a label has, unless it needs more to differ from the others


class SavedRun:
    """A run directory. UserError where its files cannot be read."""

    def __init__(self, path: Path):
        self.path = path
        self.config = load_yaml(path / "config.yaml")
        check_run_config(self.config, path / "config.yaml")
        self.summary = RunDir(path).known

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        try:
            return read_rows(self.path / "progress.jsonl")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.path / 'progress.jsonl'} cannot be read: {error.strerror}") from None

    @cached_property
    def options(self) -> dict[str, Any]:
        """The config as dotted keys and values."""
        return dict(flatten(self.config))

    @cached_property
    def ended(self) -> tuple[str, str]:
        """Its status and why it ended. A run that its sweep ended knows only that it was interrupted; the sweep knows
        why. UserError where the sweep's files are damaged."""
        said = str(self.summary.get("status", "unknown")), str(self.summary.get("reason") or "")
        if said[0] in (*DONE, "RUNNING") or not (self.path.parent / "sweep.json").is_file():
            return said
        told = {name: (status, why) for name, status, why in outcomes(self.path.parent)}
        return told.get(self.path.name, said)

    @property
    def status(self) -> str:
        return self.ended[0]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def title(self) -> str:
        return f"{self.config['algo']['name']} on {self.config['env']['name']}"

    def series(self, metric: str, against: str = "env_steps") -> tuple[list[float], list[float]]:
        """x and y of all rows that have the metric.

        The env steps of an evaluation are those of the weights that were evaluated, which may be older than the row."""
        judged = metric.startswith("eval/") and against == "env_steps"
        found = [
            (row.get("eval/env_steps", row["env_steps"]) if judged else row.get(against), row.get(metric))
            for row in self.rows
        ]
        points = [(x, y) for x, y in found if isinstance(x, int | float) and isinstance(y, int | float)]
        return [x for x, _ in points], [y for _, y in points]


def whole(members: Sequence[SavedRun]) -> list[SavedRun]:
    """Those of a setting's runs that came to their end, or all of them if none has: a return after a tenth of the env
    steps says nothing about the end."""
    return [run for run in members if run.status in DONE] or list(members)


def few_games(run: SavedRun) -> int | None:
    """How many games a run has played in training, if they are fewer than episode_window; otherwise None."""
    games = max((row.get("sample/episodes") or 0 for row in run.rows), default=0)
    return games if 0 < games < run.options.get("episode_window", 100) else None


def best_return(run: SavedRun) -> float | None:
    """The best mean return of a run. Rows from before episode_window games had ended are left out. If the run never had
    so many games, it is the mean of all its games."""
    metric = return_metric([run])
    values = run.series(metric)[1]
    if metric == RETURN:
        window = run.options.get("episode_window", 100)
        full = [
            row[RETURN]
            for row in run.rows
            if isinstance(row.get(RETURN), int | float) and (row.get("sample/episodes") or 0) >= window
        ]
        values = full or (values[-1:] if few_games(run) else values)
    return max(values, default=None)


def find(places: Sequence[str]) -> list[SavedRun]:
    """The runs in these run directories, sweep directories, or directories that contain runs.

    A damaged run among several is left out with a warning. UserError where one of the places contains no run that can
    be read.
    """
    found: dict[Path, SavedRun] = {}
    for place in places:
        path = Path(place)
        if (path / "config.yaml").is_file():
            below = [path]
        elif (path / "sweep.json").is_file():
            below = [path / name for name in sweep_of(path).jobs]
        else:
            below = sorted(file.parent for file in path.rglob("config.yaml")) if path.is_dir() else []
        runs = [one for one in below if (one / "config.yaml").is_file() and (one / "progress.jsonl").is_file()]
        if not runs:
            raise UserError(f"{place} contains no run: a run directory has config.yaml and progress.jsonl")
        damaged: list[UserError] = []
        for one in runs:
            if not in_place(one / "config.yaml"):
                refuse_links(one)  # what is drawn is written there, and a report contains what lies there
            try:
                found.setdefault(one.resolve(), SavedRun(one)).rows  # noqa: B018  reads them
            except UserError as error:
                found.pop(one.resolve(), None)
                damaged.append(error)
        if len(damaged) == len(runs):
            raise damaged[0]
        for lost in damaged:
            warnings.warn(f"a run is left out, because {lost}", Notice, stacklevel=2)
    return list(found.values())


class SavedSweep(NamedTuple):
    """What is read of a sweep.json."""

    command: str  # empty if the file does not say it
    jobs: list[str]  # their names, which are those of their run directories


def sweep_of(folder: Path) -> SavedSweep:
    """The sweep of this directory. UserError where rlrun cannot have written its sweep.json."""
    said = read_json(folder / "sweep.json")
    try:
        made = SavedSweep(said.get("command", ""), [job["name"] for job in said["jobs"]])
    except (AttributeError, KeyError, TypeError):
        made = None
    if made is None or not all(isinstance(text, str) for text in (made.command, *made.jobs)):
        raise UserError(f"{folder / 'sweep.json'} is damaged: it does not say what the sweep's jobs are called")
    return made


def outcomes(folder: Path) -> list[tuple[str, str, str]]:
    """Name, status and reason of the jobs that a sweep ended as PRUNED or FAILED. UserError where rlrun cannot have
    written outcomes.json."""
    file = folder / "outcomes.json"
    if not file.is_file():
        return []
    said = read_json(file)
    if not isinstance(said, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in said
    ):
        raise UserError(f"{file} is damaged: it does not say what the sweep's jobs are called")
    ended = [one for one in said if one.get("status") in ("FAILED", "PRUNED")]
    return [(one["name"], one["status"], str(one.get("reason") or "")) for one in ended]


def read_json(path: Path) -> Any:
    """What a JSON file holds. UserError where it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def science_of(options: dict[str, Any]) -> dict[str, Any]:
    """Dotted options without those that only change a run's directory, seed, end and the like."""
    return {key: value for key, value in options.items() if not key.startswith(SAME)}


def return_metric(runs: Sequence[SavedRun]) -> str:
    """The metric of these runs' returns: that of training or, where none has played, as with runner=offline, that of
    evaluation."""
    played = any(run.series(RETURN)[0] for run in runs)
    return EVALUATED if not played and any(run.series(EVALUATED)[0] for run in runs) else RETURN


def last_games(runs: Sequence[SavedRun]) -> str:
    """What the mean returns of these runs are means of: "last 100 games", "last games" where runs differ, or those of
    evaluations."""
    if return_metric(runs) == EVALUATED:
        return "evaluation games"
    windows = {run.options.get("episode_window", 100) for run in runs}
    return f"last {windows.pop():,} games" if len(windows) == 1 else "last games"


def science(run: SavedRun) -> dict[str, Any]:
    """The options that decide what a run learns. A run from before there was init= began with random weights."""
    return {"init": None} | science_of(run.options)


def differing(runs: Sequence[SavedRun]) -> list[str]:
    """The keys of options whose values are not the same in all runs."""
    every = [science(run) for run in runs]
    keys = dict.fromkeys(key for options in every for key in options)
    return [key for key in keys if any(options.get(key, KeyError) != every[0].get(key, KeyError) for options in every)]


def telling(runs: Sequence[SavedRun]) -> list[str]:
    """The few keys that tell runs apart: algorithm and environment, then options that differ where both are the same.

    Options that differ only because the algorithm or the environment does are left out.
    """
    names = [key for key in ("algo.name", "env.name") if len({run.options[key] for run in runs}) > 1]
    kinds: dict[tuple[Any, Any], list[SavedRun]] = {}
    for run in runs:
        kinds.setdefault((run.options["algo.name"], run.options["env.name"]), []).append(run)
    return [*names, *dict.fromkeys(key for members in kinds.values() for key in differing(members))]


def groups(runs: Sequence[SavedRun]) -> list[tuple[str, list[SavedRun]]]:
    """Groups of runs that differ only in their seed and in options that decide nothing of what is learnt (SAME), each
    with a label that tells it from the others."""
    together: dict[str, list[SavedRun]] = {}
    for run in runs:
        together.setdefault(json.dumps(science(run), sort_keys=True, default=str), []).append(run)
    first = [members[0] for members in together.values()]
    return list(zip(_labels(first), together.values(), strict=True))


def _labels(runs: Sequence[SavedRun]) -> list[str]:
    """Short labels: algorithm and environment where they differ, then options that differ where both are the same."""
    if len(runs) == 1:
        return [runs[0].title]
    heads = []
    for run in runs:
        parts = [
            run.config[group]["name"]
            for group in ("algo", "env")
            if len({one.config[group]["name"] for one in runs}) > 1
        ]
        heads.append(" ".join(parts))
    together: dict[str, list[SavedRun]] = {}
    for run, head in zip(runs, heads, strict=True):
        together.setdefault(head, []).append(run)
    options = {head: iter(_options_of_labels(members)) for head, members in together.items()}
    labels = [f"{head} {next(options[head])}".strip() for head in heads]
    return [label or run.title for run, label in zip(runs, labels, strict=True)]


def _options_of_labels(runs: Sequence[SavedRun]) -> list[str]:
    """For each run, the first options that differ, and further ones that tell apart runs whose first are the same."""
    every = [science(run) for run in runs]

    def texts(keys: Sequence[str]) -> list[str]:
        return [" ".join(f"{key.removeprefix('algo.')}={one[key]}" for key in keys if key in one) for one in every]

    keys = differing(runs)
    chosen = keys[:LABELLED]
    for key in keys[LABELLED:]:
        if len(set(texts([*chosen, key]))) > len(set(texts(chosen))):
            chosen.append(key)
    return texts(chosen)


def metrics(runs: Sequence[SavedRun]) -> list[str]:
    """The names of metrics that any of the runs logged."""
    return list(
        dict.fromkeys(
            name for run in runs for row in run.rows for name in row if name not in ("env_steps", "time_sec", "updates")
        )
    )


def check_metric(name: str, runs: Sequence[SavedRun]) -> str:
    """The full name of a metric, such as sample/return_mean for return_mean. Of several that fit, it is the first that
    has a number, as eval/return_mean in runs that learn from data. UserError where no run has it."""
    known = metrics(runs)
    fitting = [one for one in known if one == name or one.split("/", 1)[-1] == name]
    if not known:
        raise UserError("These runs have logged no metric yet.")
    if not fitting:
        raise UserError(
            f"There is no metric {name!r} in these runs.{closest(name, known)} There are: {', '.join(sorted(known))}"
        )
    return next((one for one in fitting if any(run.series(one)[0] for run in runs)), fitting[0])
