"""The value of a trained policy, estimated from episodes that others played (rlrun estimate).

A policy's value is the expected discounted return of an episode. Rewards are those of the environment, unclipped. An
episode is what its trajectory holds from the first row to the last one: a lost life in between does not end it. What a
time limit cuts off counts as far as it was played for is, pdis, wis and step_wis; dm, dr and wdr add the model's value
of what would have come.

All episodes are held in memory, with their stacks of frames; a caller may read fewer of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.policy import Mode, Policy
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec, executed
from rlrun.families.fitted_q import FittedQ, FittedQConfig, PlayedRows
from rlrun.models.config import ModelConfig
from rlrun.models.model import Model
from rlrun.ops import estimators
from rlrun.ops.estimators import Estimate, EstimateInterval
from rlrun.runtime.played_value import PlayedValue
from rlrun.runtime.recorded_episodes import (
    IMAGES_AT_A_TIME,
    ROWS_AT_A_TIME,
    RecordedEpisodes,
    chances,
    log_prob,
)

IntervalKind = Literal["bootstrap", "t", "bernstein"]
FIT = FittedQConfig(updates=10_000, batch_size=256, lr=1e-3, hidden=(128, 128), target_tau=0.05, clip=True)
NEED_CHANCES = ("is", "pdis", "wis", "step_wis", "dr", "wdr")  # methods that need probabilities of the actions
NEED_MODEL = ("dm", "dr", "wdr")  # methods that need a model of action values
FEW = 30  # effective episodes below which an estimate is said to be uncertain
NEARLY = 0.99  # share of the episodes above which weights lose nothing
SMALL_SHARE = 0.1  # and the share of all episodes
FAR_FROM_ONE = 0.1  # mean weight below which it is said that the data hardly shows what the policy does


@dataclass(frozen=True)
class Question:
    """What is asked about a policy."""

    methods: tuple[str, ...]
    discount: float
    interval: IntervalKind = "bootstrap"
    confidence: float = 0.95
    bounds: tuple[float, float] | None = None  # between which every episode's contribution lies, for bernstein
    mode: Mode = "explore"
    folds: int = 2  # parts of the episodes; the model that judges a part is fitted to the others
    num_actions: int = 8  # actions that a policy of other actions than single choices draws in every row
    seed: int = 0


def discount_of(algo: Any) -> float:
    """The discount of an algorithm's options, of the algorithm inside it, or of its search; 1 if there is none."""
    if hasattr(algo, "inner"):
        return discount_of(algo.inner.cfg)
    return float(getattr(getattr(algo, "search", algo), "discount", 1.0))


def endless(methods: Sequence[str], discount: float, cut: int, episodes: int) -> tuple[tuple[str, ...], str]:
    """Those of these methods whose estimate may be infinite, and why. cut: how many of the episodes a time limit ended.

    Their model goes on behind the limit. Without a discount, and without an episode that came to its own end, its
    values grow with every update."""
    if discount < 1 or cut < episodes:
        return (), ""
    why = f"a time limit cut all {cut:,} episodes, and with discount=1 the rewards behind it may have no finite sum"
    return tuple(method for method in methods if method in NEED_MODEL), why


@dataclass
class Answer:
    """One method's estimate. What could not be computed is None."""

    method: str
    value: float | None
    low: float | None
    high: float | None
    effective: float
    mean_weight: float | None  # of whole episodes; None without weights, or if it is too large for a number
    covers_played: bool | None = None  # whether the interval covers the value that was played; None: unknown


@dataclass
class EstimateReport:
    """All estimates, the data's own returns and sentences about both."""

    answers: list[Answer] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0
    left_out: int = 0  # episodes that are not whole
    cut: int = 0  # episodes that a time limit ended
    discount: float = 1.0
    data_return: float = 0.0  # mean undiscounted return of the episodes
    data_value: float = 0.0  # mean discounted return, with its interval
    data_low: float | None = None
    data_high: float | None = None
    played: PlayedValue | None = None  # of the policy's own games
    warnings: list[str] = field(default_factory=list)

    def compare(self, played: PlayedValue) -> None:
        """Notes what the policy's own games show."""
        self.played = played
        for answer in self.answers:
            answer.covers_played = played.covered_by(answer.low, answer.high)


# -- estimates ---------------------------------------------------------------------------------------------------------


@dataclass
class Padded:
    """Tensors [E, T] of the steps of E episodes, without dead rows."""

    reward: Tensor
    valid: Tensor
    row: Tensor  # the number of the step's row among those of PlayedRows
    end: Tensor  # [E] the number of the last row
    terminated: Tensor  # [E] whether the episode has come to its own end
    log_b: Tensor
    log_pi: Tensor | None = None


def padded(played: RecordedEpisodes) -> tuple[Padded, Tensor]:
    """Returns the episodes' steps, and the numbers [M] of the rows that are kept: steps, and behind the last step of
    every episode the row with its last observation."""
    kept: list[Tensor] = []
    firsts, counts = [], []
    made = 0
    for start, length in zip(played.starts, played.lengths, strict=True):
        steps = played.rows["valid"][start : start + length].nonzero().squeeze(1) + start  # type: ignore[operator, union-attr]
        kept += [steps, steps[-1:] + 1]
        firsts.append(made)
        counts.append(len(steps))
        made += len(steps) + 1
    row = torch.cat(kept)
    first, count = torch.tensor(firsts), torch.tensor(counts)
    time = torch.arange(max(counts))
    valid = time < count.unsqueeze(1)
    place = (first.unsqueeze(1) + time).where(valid, first.unsqueeze(1))
    rows = played.rows
    picked = row[place]
    last = row[first + count - 1]
    made_of = {name: rows[name][picked].double() for name in ("reward", "log_prob")}  # type: ignore[index, call-overload, union-attr]
    return Padded(
        reward=made_of["reward"],
        valid=valid,
        row=place,
        end=first + count,
        terminated=rows["terminated"][last],  # type: ignore[arg-type, index, call-overload]
        log_b=made_of["log_prob"],
    ), row


def estimate(
    policy: Policy,
    played: RecordedEpisodes,
    clock: Clock,
    model: ModelConfig,
    question: Question,
    fit: FittedQConfig,
    told: Callable[[int, int], None] = lambda fold, update: None,
) -> EstimateReport:
    """Answers a question about a policy by recorded episodes.

    model: whose encoder the model of action values has. told is called with the number of a fold and of the updates
    made in it. Raises UserError if a method needs probabilities that the data or the policy do not have, or if its
    estimate may be infinite."""
    if question.interval == "bernstein" and question.bounds is None:
        raise UserError(
            "interval=bernstein needs bounds=[LOW,HIGH] between which the contribution of every episode lies"
        )
    if question.bounds is not None and not question.bounds[0] < question.bounds[1]:
        raise UserError("bounds=[LOW,HIGH] needs a LOW that is below HIGH")
    needing = [method for method in question.methods if method in NEED_CHANCES]
    if needing and played.unknown:
        which = "" if played.unknown == len(played) else f" in {played.unknown} of {len(played)} episodes"
        raise UserError(
            f"{played.name} has no behaviour probabilities{which}, and method={','.join(needing)} needs them; method=dm"
            " does not"
        )
    infinite, why = endless(question.methods, question.discount, played.cut, len(played))
    if infinite:
        raise UserError(f"{', '.join(infinite)}: {why}; give a discount below 1, such as discount=0.99")
    data, row = padded(played)
    rng = Seeds(question.seed).generator("estimate")
    if needing:
        try:
            data.log_pi = log_prob(played, policy, question.mode, clock)[row][data.row]
        except UserError as error:
            raise UserError(f"{', '.join(needing)}: {error}; method=dm needs no probabilities") from None
    value = q = end = None
    if any(method in NEED_MODEL for method in question.methods):
        acts = chances(played, policy, question.mode, clock, question.num_actions, rng)
        kept = played.rows.map(lambda x: x[row])
        value, q, end = modelled(kept, acts[row], data, played.spec, model, question, fit, told)
    report = EstimateReport(
        episodes=len(played), steps=int(data.valid.sum()), left_out=played.left_out, discount=question.discount
    )
    returns = estimators.discounted_return(data.reward, data.valid, question.discount)
    report.data_return = float(estimators.discounted_return(data.reward, data.valid, 1.0).mean())
    report.data_value = float(returns.mean())
    around = interval(estimators.direct(returns), question, rng)
    if not isinstance(around, str):
        report.data_low, report.data_high = around.low, around.high
    for method in question.methods:
        made = by_method(method, data, question.discount, value, q, end)
        add(report, method, made, question, rng)
    warn(report, data, played.name)
    return report


def modelled(
    kept: Batch,
    acts: Any,
    data: Padded,
    spec: EnvSpec,
    model: ModelConfig,
    question: Question,
    fit: FittedQConfig,
    told: Callable[[int, int], None],
) -> tuple[Tensor, Tensor, Tensor]:
    """V(s_t) [E, T], Q(s_t, a_t) [E, T] and the value behind every episode's last step [E], of models that were fitted
    to other episodes than those that they judge. Otherwise a model would know the chance events of these, and its
    errors would not be independent of the weights (Kallus and Uehara 2020, arXiv:1908.08526, cross-fitting)."""
    episodes = len(data.end)
    folds = min(question.folds, episodes)
    fold = torch.arange(episodes) % folds
    value, q, end = (torch.zeros(shape) for shape in (data.valid.shape, data.valid.shape, data.end.shape))
    for number in range(folds):
        judged = fold == number
        learnt = ~judged if folds > 1 else judged
        rows = PlayedRows(
            kept["obs"],  # type: ignore[arg-type]
            executed(spec.action, kept["action"]),
            kept["reward"].float(),  # type: ignore[union-attr, arg-type]
            _terminated(data, len(kept["reward"])),
            data.row[learnt][data.valid[learnt]],
            executed(spec.action, acts),
        )
        rng = Seeds(question.seed).generator("fitted_q", number)
        fitted = FittedQ(spec, Model(model), fit, rows, question.discount, rng, lambda u, n=number: told(n, u))  # type: ignore[misc]
        inside = judged.unsqueeze(1) & data.valid
        value[inside] = _in_pieces(fitted.value, rows, data.row[inside], spec)
        q[inside] = _in_pieces(fitted.q, rows, data.row[inside], spec)
        end[judged] = _in_pieces(fitted.value, rows, data.end[judged], spec)
    return value, q, torch.where(data.terminated, 0.0, end)


def _terminated(data: Padded, rows: int) -> Tensor:
    """[M]: only at an episode's last step. What ends in the middle, such as a life, does not end the episode."""
    made = torch.zeros(rows, dtype=torch.bool)
    made[data.end - 1] = data.terminated
    return made


def _in_pieces(of: Callable[[PlayedRows, Tensor], Tensor], rows: PlayedRows, index: Tensor, spec: EnvSpec) -> Tensor:
    size = IMAGES_AT_A_TIME if spec.image else ROWS_AT_A_TIME
    return torch.cat([of(rows, part) for part in index.split(size)])


def by_method(
    method: str, data: Padded, discount: float, value: Tensor | None, q: Tensor | None, end: Tensor | None
) -> Estimate:
    """The estimate of one method."""
    if method == "dm":
        assert value is not None
        return estimators.direct(value[:, 0])
    assert data.log_pi is not None
    given = (data.reward, data.log_pi - data.log_b, data.valid, discount)
    if method in ("dr", "wdr"):
        assert value is not None and q is not None and end is not None
        return estimators.doubly_robust(*given, value, q, end, self_normalized=method == "wdr")
    of = {
        "is": estimators.importance_sampling,
        "pdis": estimators.per_decision,
        "wis": estimators.weighted,
        "step_wis": estimators.step_wise_weighted,
    }
    return of[method](*given)


def interval(made: Estimate, question: Question, rng: torch.Generator) -> EstimateInterval | str:
    """The interval that was asked for, or the reason why there is none."""
    if not torch.isfinite(made.each).all():
        return "an episode contributes no finite number, because all weights are 0 or one is too large"
    if len(made.each) < 2 and question.interval != "bernstein":
        return "there is only one episode"
    if question.interval != "bernstein":
        if question.interval == "bootstrap":
            around = estimators.bootstrap(made.terms, rng, question.confidence)
        else:
            around = estimators.student(made.each, question.confidence)
        return around if all(map(math.isfinite, around)) else "its ends are too large for numbers"
    assert question.bounds is not None
    if made.weighted:
        return "an empirical Bernstein interval is for independent contributions, and weighted ones are not"
    try:
        return estimators.bernstein(made.each, *question.bounds, question.confidence)
    except ValueError as error:
        return str(error)


def add(report: EstimateReport, method: str, made: Estimate, question: Question, rng: torch.Generator) -> None:
    """Adds an estimate to the report, and a warning if there is no interval."""
    around = interval(made, question, rng)
    value, mean_weight = float(made.value), float(made.log_mean_weight.exp())
    report.answers.append(
        Answer(
            method=method,
            value=value if math.isfinite(value) else None,
            low=None if isinstance(around, str) else around.low,
            high=None if isinstance(around, str) else around.high,
            effective=float(made.effective),
            mean_weight=None if method == "dm" or not math.isfinite(mean_weight) else mean_weight,
        )
    )
    if isinstance(around, str):
        report.warnings.append(f"{method} has no interval: {around}.")


def warn(report: EstimateReport, data: Padded, name: str) -> None:
    """Adds the sentences that a reader of the estimates should know."""
    weighted = [answer for answer in report.answers if answer.method in NEED_CHANCES]
    if weighted:
        effective, mean = weighted[0].effective, weighted[0].mean_weight
        if effective == 0:
            report.warnings.append("No episode of the data could be one of this policy: every weight is 0.")
        elif effective < min(FEW, NEARLY * report.episodes) or effective < SMALL_SHARE * report.episodes:
            report.warnings.append(
                f"The weights of {report.episodes:,} episodes are worth {effective:.1f} episodes of the policy's own:"
                " the estimates with weights, and their intervals, are not reliable."
            )
        if effective and mean is not None and mean < FAR_FROM_ONE:
            report.warnings.append(
                f"The mean weight is {mean:.2g}, and its expectation is 1: the data hardly shows what the policy does,"
                " and is and pdis are too close to 0."
            )
    if report.episodes < FEW:
        report.warnings.append(f"There are only {report.episodes} episodes.")
    if report.left_out:
        report.warnings.append(
            f"{report.left_out:,} trajectories of {name} were left out because they are not whole episodes."
        )
    report.cut = cut = int((~data.terminated).sum())
    if cut and any(answer.method in NEED_MODEL for answer in report.answers):
        report.warnings.append(
            f"A time limit cut {cut:,} of the episodes. dm, dr and wdr add the value of what would have come behind it,"
            " and the other estimates do not."
            + ("" if report.discount < 1 else " Without a discount, this value may be infinite.")
        )
    if any(answer.method == "dm" for answer in report.answers):
        report.warnings.append(
            "The interval of dm is that of the first observations; it knows nothing of the model's errors."
        )
