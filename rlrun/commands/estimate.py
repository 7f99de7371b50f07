"""rlrun estimate RUN_DIR data.path=DIR [method=is,pdis,wis,step_wis,dm,dr,wdr] [episodes=100 greedy=false discount=0.99
checkpoint=last|best|<env steps> interval=bootstrap|t|bernstein confidence=0.95 bounds=[LOW,HIGH] data.episodes=1000
data.actions_normalized=true folds=2 num_actions=8 seed=0 model.updates=10000 model.batch_size=256 model.lr=1e-3
model.hidden=[128,128] model.target_tau=0.05 model.clip=true] [--json]

Estimates the value of a policy from recorded episodes: the expected discounted return of an episode. The discount is
that of the run, unless another one is given. data.episodes=N reads the first N episodes of the data.
data.actions_normalized is the run's own where it is not given.

is        ordinary importance sampling: unbiased, with a large variance
pdis      per-decision importance sampling: unbiased, with less variance
wis       weighted importance sampling: biased, consistent, and within the range of the returns
step_wis  weighted importance sampling of every step
dm        the direct method: a model of action values, learnt by fitted Q evaluation
dr        doubly robust: the model, corrected by per-decision weights
wdr       doubly robust, with weights as in step_wis

Where a time limit cut all episodes of the data and the discount is 1, the estimates of dm, dr and wdr may be infinite.
They are then left out, or refused if method= names them. A run of bc has no discount of its own, so its discount is 1.

All methods except dm need the probability with which each recorded action was chosen. rlrun's own data sets have it.
greedy=true judges the policy as evaluations play it; greedy=false (the default) as it explores in training, at the
checkpoint's env steps.

Where there is an environment, the same policy then plays episodes=N full games in it with the same discount, and the
table says whose interval covers their mean; episodes=0 plays none. It is the environment of the run or, for a run that
learnt from data alone, one of this machine that has the name and the spaces of that of the data.

`effective` is the effective sample size: how many episodes of the policy itself the weighted episodes are worth. Where
it is small, no interval of an estimate with weights can be trusted. interval=bernstein holds for every number of
episodes, but needs bounds=[LOW,HIGH] for what an episode contributes, which is its return times its weight. One episode
alone gets an interval by no other method.

folds, num_actions and model.* are for dm, dr and wdr. folds is the number of parts into which episodes are divided: a
model is fitted for each part to the others; with folds=1 it judges the episodes that it has learnt from. num_actions is
how many actions the policy draws in every row, where it does not give the probabilities of all choices."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from rlrun.cli import run_dir_argument, take_trust
from rlrun.config.types import parse_assignments, typed
from rlrun.core.conditions import UNITS
from rlrun.core.errors import UserError, closest
from rlrun.core.estimates import METHODS
from rlrun.core.ranges import Count, NotNegative, PositiveShareBelowOne, Seed, Share
from rlrun.core.seeding import Seeds
from rlrun.envs.registry import Factory
from rlrun.families.fitted_q import FittedQConfig
from rlrun.loggers.console import duration
from rlrun.runtime.estimate import (
    FIT,
    NEED_MODEL,
    EstimateReport,
    IntervalKind,
    Question,
    discount_of,
    endless,
    estimate,
)
from rlrun.runtime.played_env import environment_of
from rlrun.runtime.played_value import played_value
from rlrun.runtime.recorded_episodes import RecordedEpisodes, knows_choices

if TYPE_CHECKING:
    from rlrun.runtime.trained import Trained


@dataclass(frozen=True, kw_only=True)
class DataPath:
    path: str
    episodes: Annotated[int, Count] | None
    actions_normalized: bool | None  # None: as the run reads them


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    data: DataPath
    method: str | tuple[str, ...] | None  # None: USUAL, without those that may be infinite
    greedy: bool
    discount: Annotated[float, Share] | None
    checkpoint: str | int
    interval: IntervalKind
    confidence: Annotated[float, PositiveShareBelowOne]
    bounds: tuple[float, float] | None
    episodes: Annotated[int, NotNegative]
    folds: Annotated[int, Count]
    num_actions: Annotated[int, Count] | None
    seed: Annotated[int, Seed]
    model: FittedQConfig

    @property
    def methods(self) -> tuple[str, ...]:
        """Raises UserError if there is no such method."""
        asked = USUAL if self.method is None else self.method
        names = asked.split(",") if isinstance(asked, str) else asked
        if not names:
            raise UserError(f"method=[] asks for no estimate: name some of {', '.join(METHODS)}")
        for name in names:
            if name not in METHODS:
                raise UserError(f"method must be some of {', '.join(METHODS)}, not {name!r}.{closest(name, METHODS)}")
        return tuple(dict.fromkeys(names))


USUAL = ("is", "pdis", "wis", "step_wis", "dm", "dr")
DEFAULTS = {
    "method": None,
    "greedy": False,
    "discount": None,
    "checkpoint": "last",
    "interval": "bootstrap",
    "confidence": 0.95,
    "bounds": None,
    "episodes": 100,
    "folds": 2,
    "num_actions": None,
    "seed": 0,
}
TOLD_EVERY = 15.0  # seconds between two lines about the fits of the model
FIRST_TOLD = 200  # updates after which the first one is printed
COVERS = {True: "yes", False: "no", None: "-"}


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    trusted, words = take_trust(words)
    as_json = "--json" in words
    path, rest = run_dir_argument([word for word in words if word != "--json"], "estimate")
    options = parsed(rest)

    import torch

    torch.set_num_threads(1)

    from rlrun.datasets.open import open_source
    from rlrun.runtime.trained import load
    from rlrun.runtime.unused import in_units

    trained = load(path, str(options.checkpoint), trusted)
    normalized = options.data.actions_normalized
    if normalized is None:
        normalized = trained.config.run.data.actions_normalized
    source = open_source(options.data.path, trained.spec, normalized)
    if options.data.actions_normalized is not None and not in_units(trained.spec, [source]):
        raise UserError(f"data.actions_normalized is for {UNITS}, and {options.data.path} holds none")
    discount = discount_of(trained.config.algo) if options.discount is None else options.discount
    question = Question(
        methods=options.methods,
        discount=float(discount),
        interval=options.interval,
        confidence=options.confidence,
        bounds=options.bounds,
        mode="greedy" if options.greedy else "explore",
        folds=options.folds,
        num_actions=Question.num_actions if options.num_actions is None else options.num_actions,
        seed=options.seed,
    )

    if not as_json:
        print(f"rlrun estimate: {path} from {options.data.path}", flush=True)
    played = RecordedEpisodes(source, trained.spec, options.data.episodes)
    if options.num_actions is not None and knows_choices(played, trained.policy, question.mode, trained.clock):
        raise UserError("num_actions has no effect: the policy gives the probabilities of all choices; leave it out")
    infinite, why = endless(question.methods, question.discount, played.cut, len(played))
    if options.method is not None:  # what was asked for is refused
        infinite = ()
    question = replace(question, methods=tuple(method for method in question.methods if method not in infinite))
    told = Fitting(question.methods, min(options.folds, len(played)), options.model.updates, shown=not as_json)
    report = estimate(trained.policy, played, trained.clock, trained.config.run.model, question, options.model, told)
    if infinite:
        report.warnings.append(
            f"{' and '.join(infinite)} are left out: {why}. discount=0.99, or another below 1, estimates by them too."
        )
    unplayed = compare(report, trained, question, options, quiet=as_json)
    if as_json:
        facts: dict[str, Any] = {"run_dir": str(path), "data": options.data.path, "env": trained.spec.name}
        facts |= {"checkpoint_env_steps": trained.clock.env_steps, "greedy": options.greedy}
        facts |= {"not_played": unplayed if report.played is None else None}
        print(json.dumps(facts | {"interval": options.interval} | dataclasses.asdict(report)))
        return 0
    acting = "greedy" if options.greedy else "exploring"
    print(f"\n{trained.spec.name}, the {acting} policy at {trained.clock.env_steps:,} env steps\n")
    print(shown(report, options.confidence, unplayed))
    return 0


def compare(report: EstimateReport, trained: Trained, question: Question, options: EstimateOptions, quiet: bool) -> str:
    """Plays full games with the policy and adds their mean return to the report. Returns why nothing was played, where
    that is so. quiet: whether nothing is printed."""
    why = "episodes=0 plays none"
    found = environment_of(trained) if options.episodes else why
    if isinstance(found, str):
        return found
    (cfg, spec), seeds = found, Seeds(options.seed)
    if not quiet:
        print(f"playing {options.episodes:,} episodes of {spec.name}", flush=True)
    report.compare(
        played_value(
            trained.policy,
            Factory(cfg=cfg, spec=spec, seeds=seeds, stream="estimate", learning=False),
            question.mode,
            trained.clock,
            question.discount,
            options.episodes,
            seeds,
            options.confidence,
        )
    )
    return why


class Fitting:
    """Says how far the fits of the model are, and how long they still need: once at the start, and then from time to
    time."""

    def __init__(self, methods: tuple[str, ...], folds: int, updates: int, shown: bool):
        self.folds, self.updates, self.shown = folds, updates, shown
        self.began = self.said = time.monotonic()
        self.learnt = [method for method in methods if method in NEED_MODEL]
        self.others = [method for method in methods if method not in NEED_MODEL]

    def __call__(self, fold: int, update: int) -> None:
        """Is told that so many updates were made in a fold."""
        if not self.shown:
            return
        now, made, total = time.monotonic(), fold * self.updates + update, self.folds * self.updates
        if made == 1:
            self.began = self.said = now
            without = f"; method={','.join(self.others)} does without" if self.others else ""
            print(f"{', '.join(self.learnt)}: a model of values is learnt by {total:,} updates{without}", flush=True)
        elif now - self.said >= TOLD_EVERY or made == total or (made == FIRST_TOLD < total):
            self.said = now
            left = duration((now - self.began) / (made - 1) * (total - made))
            print(f"  {made:,} of {total:,} updates{f', about {left} left' if made < total else ''}", flush=True)


def parsed(words: list[str]) -> EstimateOptions:
    """The options of a command's words."""
    given = parse_assignments(words)
    nested: dict[str, dict] = {"data": {"episodes": None, "actions_normalized": None}, "model": dataclasses.asdict(FIT)}
    flat = {}
    for name, value in given.items():
        group, dot, key = name.partition(".")
        if name in nested:
            example = "data.path=DIR" if name == "data" else "model.updates=20000"
            raise UserError(f"{name}= is a group of options here, such as {example}")
        if dot and group in nested:
            nested[group][key] = value
        else:
            flat[name] = value
    if "path" not in nested["data"]:
        raise UserError("rlrun estimate needs data.path=DIR, a data set with episodes")
    for_models = [name for name in given if name in ("folds", "num_actions") or name.startswith("model.")]
    if for_models:
        flat.setdefault("method", USUAL)  # who gives options of models asks for models
    options = typed(EstimateOptions, DEFAULTS | flat | nested)
    if options.bounds is not None and options.interval != "bernstein":
        raise UserError(f"bounds is for interval=bernstein, and the interval is {options.interval}; leave it out")
    if for_models and not any(method in NEED_MODEL for method in options.methods):
        raise UserError(
            f"{', '.join(for_models)}: only dm, dr and wdr learn a model, and method={','.join(options.methods)} asks"
            " for none of them"
        )
    return options


def shown(report: EstimateReport, confidence: float, unplayed: str = "") -> str:
    """The table, and the sentences under it. unplayed: why nothing was played."""
    from rlrun.experiments.view import text_table

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    def within(low: float | None, high: float | None) -> str:
        return "" if low is None or high is None else f" ({100 * confidence:g}%: {low:.4g} to {high:.4g})"

    rows = [
        [
            one.method,
            number(one.value),
            number(one.low),
            number(one.high),
            f"{one.effective:,.1f}",
            COVERS[one.covers_played],
        ]
        for one in report.answers
    ]
    data = [number(x) for x in (report.data_value, report.data_low, report.data_high)]
    rows.append(["the data's own", *data, f"{report.episodes:,}", ""])
    said = [
        f"The discount is {report.discount:g}. The data has {report.episodes:,} episodes of {report.steps:,} steps,"
        f" with a mean return of {report.data_return:.4g} without discount.",
    ]
    played = report.played
    if played is None:
        said.append(f"There is no value of games that the policy played: {unplayed}.")
    else:
        true = [number(x) for x in (played.value, played.low, played.high)]
        rows.append(["played", *true, f"{played.episodes:,}", ""])
        whole = (
            ""
            if report.discount == 1
            else (f", and of {played.return_mean:.4g}{within(played.return_low, played.return_high)} without discount")
        )
        said.append(
            f"The policy played {played.episodes:,} episodes with a mean return of {played.value:.4g}"
            f"{within(played.low, played.high)}{' with this discount' if whole else ''}{whole}."
        )
        if report.cut and any(answer.method in NEED_MODEL for answer in report.answers):
            said.append("The games that were played end at the time limit too, and dm, dr and wdr look beyond it.")
    columns = ["method", "estimate", f"{100 * confidence:g}% from", "to", "effective"]
    if played is None:
        rows = [row[:-1] for row in rows]
    else:
        columns.append("covers played")
    return "\n".join([text_table(rows, tuple(columns)), "", *said, *report.warnings])
