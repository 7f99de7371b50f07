"""What the runs of each setting of a sweep reached, with intervals over seeds: for `rlrun report`, `rlrun compare` and
the end of `rlrun sweep`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rlrun.bench.stats import INTERVAL_RUNS, ConfidenceInterval, student_interval, welch_interval
from rlrun.experiments.runs import (
    DONE,
    RETURN,
    SavedRun,
    best_return,
    groups,
    last_games,
    outcomes,
    return_metric,
    whole,
)
from rlrun.experiments.view import text_table
from rlrun.loggers.console import number


class SavedSetting(NamedTuple):
    """Runs that differ only in their seed, and the statistics of their returns."""

    label: str
    members: list[SavedRun]
    counted: str  # how many seeds count, in words
    scores: list[float]  # the last mean return of each run that counts; empty where no game has ended
    interval: ConfidenceInterval | None = None  # the 95% interval of their mean, from INTERVAL_RUNS different seeds on
    difference: ConfidenceInterval | None = None  # to the best setting; None for that setting itself
    best: bool = False  # whether the others with enough seeds are compared with this setting


def settings_of(runs: Sequence[SavedRun]) -> list[SavedSetting]:
    """The settings of these runs, the one with the highest mean return first and those without a return last.

    The best setting of an environment is that with the highest mean among those with INTERVAL_RUNS seeds. Returns of
    different environments are not compared."""
    found = [_setting(label, members) for label, members in groups(runs)]
    found.sort(key=lambda one: float("-inf") if not one.scores else sum(one.scores) / len(one.scores), reverse=True)
    best: dict[str, SavedSetting] = {}
    many = [one for one in found if one.interval is not None]
    for one in many:
        best.setdefault(_env(one), one)
    rivals = {name for name in best if sum(_env(one) == name for one in many) > 1}
    made = []
    for one in found:
        if one.interval is None or _env(one) not in rivals:
            made.append(one)
        elif one is best[_env(one)]:
            made.append(one._replace(best=True))
        else:
            made.append(one._replace(difference=welch_interval(one.scores, best[_env(one)].scores)))
    return made


def _setting(label: str, members: list[SavedRun]) -> SavedSetting:
    known = [(run.seed, returns(run)[0]) for run in whole(members)]
    scores = {number: (seed, float(score)) for number, (seed, score) in enumerate(known) if score is not None}
    values = [score for _, score in scores.values()]
    # Two runs of one seed are no two independent results.
    enough = len(values) >= INTERVAL_RUNS and len({seed for seed, _ in scores.values()}) == len(values)
    return SavedSetting(label, members, counted(members), values, student_interval(values) if enough else None)


def _env(setting: SavedSetting) -> str:
    return setting.members[0].options["env.name"]


def explained(settings: Sequence[SavedSetting]) -> list[str]:
    """What the numbers of a table of settings are, in sentences; empty where every setting has one run alone."""
    if all(len(one.scores) < 2 for one in settings):
        return []
    games = last_games([run for one in settings for run in one.members])
    said = (
        f"A run's return is its mean over the {games}, and a setting's is the mean over its seeds. From {INTERVAL_RUNS}"
        " different seeds on, that mean has a 95 % interval (Student's t over seeds): 95 of 100 such intervals contain"
        " the mean that very many seeds would have. Fewer seeds have no interval, and only their lowest and highest"
        " return are shown."
    )
    if not any(one.difference for one in settings):
        return [said]
    best = (
        f"A difference is a setting's mean minus that of the best setting with {INTERVAL_RUNS} seeds or more on the"
        " same environment, with its 95 % interval (Welch's t). Where the interval contains 0, these seeds do not show"
        " which of the two is better. The best was chosen by these same returns, so differences look a little larger"
        " than they are."
    )
    return [said, best]


def between(interval: ConfidenceInterval) -> str:
    return f"{number(interval.low)} to {number(interval.high)}"


def difference(setting: SavedSetting) -> str:
    """The difference to the best setting and its interval, such as "-3.40 (-5.10 to -1.70)"."""
    if setting.best:
        return "the best"
    return f"{number(setting.difference.value)} ({between(setting.difference)})" if setting.difference else ""


def spread(setting: SavedSetting) -> str:
    """The interval of a setting's mean, or the lowest and the highest return of few seeds; empty for one."""
    if setting.interval is not None:
        return f"95 %: {between(setting.interval)}"
    if len(setting.scores) < 2:
        return ""
    return f"lowest {number(min(setting.scores))}, highest {number(max(setting.scores))}"


def settings_text(settings: Sequence[SavedSetting]) -> str:
    """A table of settings as text: their seeds, mean return, its spread and the difference to the best."""
    rivals = any(one.difference for one in settings)
    rows = [
        [
            one.label,
            one.counted,
            number(mean(one.scores)),
            spread(one),
            *([difference(one)] if rivals else []),
        ]
        for one in settings
    ]
    headings = ("setting", "seeds", "mean return", "spread", *(("difference to the best",) if rivals else ()))
    return text_table(rows, headings)


def returns(run: SavedRun) -> tuple[float | None, float | None]:
    """A run's last and best mean return; None where no game has ended."""
    metric = return_metric([run])
    values = run.series(metric)[1]
    last = "return_mean" if metric == RETURN else "eval_return_mean"
    return (run.summary.get(last, values[-1] if values else None), best_return(run))


def without_run(places: list[Path], seen: set[Path]) -> list[list[str]]:
    """Name, status and the reason's last line for each job that ended before it had a run directory.

    seen: the directories of the runs that are shown. Jobs of two sweeps may have one name."""
    return [
        [name, status.lower(), (reason.strip().splitlines() or [""])[-1][:160]]
        for place in places
        for name, status, reason in outcomes(place)
        if (place / name).resolve() not in seen
    ]


def counted(members: Sequence[SavedRun]) -> str:
    """The number of seeds, such as "3", or "4 runs of 3" where seeds repeat, and how many runs do not count."""
    counts = whole(members)
    seeds = len({run.seed for run in counts})
    said = str(seeds) if seeds == len(counts) else f"{len(counts)} runs of {seeds}"
    if len(counts) < len(members):
        left = len(members) - len(counts)
        return f"{said}; {left} unfinished run{'s do' if left > 1 else ' does'} not count"
    return said if members[0].status in DONE else f"{said}, unfinished"


def mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None
