"""Evaluation: what a run plays to judge its policy, in the trainer or beside it, and the user's own way of doing so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rlrun.core.errors import FAILURES, RunFailed, UserError, told
from rlrun.core.plugins import load_object
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock


class Evaluated(NamedTuple):
    """The result of one evaluation."""

    returns: Sequence[float]  # of all games, unclipped; empty if the user's own evaluation gave numbers instead
    numbers: Mapping[str, float] = {}  # what the user's own evaluation returned

    @property
    def mean(self) -> float:
        """The number that decides which checkpoint is the best."""
        return self.numbers["return_mean"] if self.numbers else sum(self.returns) / len(self.returns)


class Evaluators(Protocol):
    """Processes that evaluate while training goes on. One evaluation runs at a time."""

    def begin(self, policy: Policy, clock: Clock, round_: int) -> None:
        """Copies the weights and starts an evaluation of them."""
        ...

    def result(self, timeout_sec: float = 0.0) -> Evaluated | None:
        """Returns the result, or None if it is not there within timeout_sec. Raises RunFailed if a process died or was
        silent for too long."""
        ...


@dataclass(frozen=True)
class Games:
    """What a user's own evaluation works with."""

    policy: Policy  # with the weights that are evaluated; policy.act() chooses actions
    clock: Clock  # env steps and updates of these weights
    number: int  # how many evaluations the run has made before
    episodes: int  # eval.episodes
    greedy: bool  # eval.greedy
    # Makes environments that are stepped together, with the seeds of this evaluation: a core.env.VectorEnv.
    make_env: Callable[[int], Any]
    # play(episodes, greedy=True, env_steps=None) plays full games, as the options of eval do, and returns (unclipped
    # return, length in decisions) of each.
    play: Callable[..., list[tuple[float, int]]]
    # Whether the run is being interrupted, so that evaluate() should return at once; what it returns is then not used.
    stopped: Callable[[], bool]


class Evaluation:
    """A base class for the user's own evaluation, which eval.function=package.module:Name names.

    The process that evaluates makes one instance, without arguments. Before a run begins, another is made and thrown
    away, to see whether that works: what can be opened only once belongs in the first call of evaluate(), and not in
    __init__. Checkpoints do not hold the attributes of an evaluation."""

    def evaluate(self, games: Games) -> Mapping[str, float]:
        """Returns numbers, which are logged as eval/<name>. `return_mean` must be among them: it decides which
        checkpoint is the best, and whether the run improves (stop.no_improvement_steps). An exception ends the run."""
        raise NotImplementedError


def evaluation_class(name: str) -> type[Evaluation]:
    """Returns the class that eval.function=name names. Raises UserError if it is not an Evaluation's."""
    kind = load_object(name, "eval.function", Evaluation)
    if not (isinstance(kind, type) and issubclass(kind, Evaluation)):
        raise UserError(f"eval.function={name} is no subclass of rlrun.Evaluation")
    if kind.evaluate is Evaluation.evaluate:
        raise UserError(f"eval.function={name} has no method evaluate(games)")
    return kind


def make_evaluation(name: str) -> Evaluation:
    """Makes the user's evaluation. Raises UserError if that fails."""
    kind = evaluation_class(name)
    try:
        return kind()
    except FAILURES as error:  # the class is the user's code
        raise UserError(f"eval.function={name} cannot be made: {told(error, __file__)}") from None


def own_numbers(evaluation: Evaluation, games: Games) -> dict[str, float]:
    """Calls the user's evaluation and returns its numbers. Raises RunFailed if it raises or returns something else."""
    kind = type(evaluation)
    named = f"eval.function={kind.__module__}:{kind.__qualname__}"
    try:
        numbers = evaluation.evaluate(games)
    except FAILURES as error:  # it is the user's code
        raise RunFailed(f"{named} failed: {told(error, __file__)}") from error
    try:
        made = {str(name): float(value) for name, value in numbers.items()}
        made["return_mean"]
    except (AttributeError, TypeError, ValueError, KeyError):
        raise RunFailed(f"{named} returned {numbers!r}, and not numbers by name with return_mean among them") from None
    return made
