"""Callback and EnvCallback: run the user's own code at the events of a run. callbacks=[package.module:Name] makes
instances of these classes, without arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.env import Rows, Step
from rlrun.core.errors import FAILURES, RunFailed, UserError, closest, told
from rlrun.core.plugins import load_object
from rlrun.core.schedule import Clock


class Callback:
    """A base class whose methods you override as needed. All methods but before_learning are called in the run's first
    process, between updates, and an exception ends the run. Checkpoints do not hold a callback's attributes: a resumed
    run makes new callbacks."""

    def on_start(self, run: Any) -> None:
        """Called once, before the first update. It may read run.clock, run.episodes, run.algorithm and run.best."""

    def before_learning(self, batch: Batch, clock: Clock) -> Mapping[str, float] | None:
        """Called before every update with the rows [T(+1), B, ...] that it learns from, which must not be changed.
        Numbers that it returns are logged as learn/custom/<name>, as means over the updates between two rows.

        It is called where the update is made. If a run has several learners, each has an instance of its own and its
        own part of the rows. Of learners that make every update together, the first one's numbers are logged."""

    def on_update(self, clock: Clock, metrics: dict[str, Any]) -> None:
        """Called after every update. `metrics` are 0-d tensors or floats; their names lack the prefix learn/."""

    def on_episode(self, ret: float, length: int, info: dict[str, float]) -> None:
        """Called after every finished training episode, with its unclipped return, its length in decisions, the numeric
        entries of its info, and what EnvCallbacks returned for it, as custom/<name>."""

    def on_log(self, row: dict[str, Any]) -> None:
        """Called before a row goes to progress.jsonl, TensorBoard and MLflow. Numbers added to it are logged too."""

    def on_evaluate(self, clock: Clock, returns: Sequence[float]) -> None:
        """Called after an evaluation."""

    def on_save(self, path: Path, clock: Clock) -> None:
        """Called after a checkpoint was written to this directory."""

    def on_end(self, status: str) -> None:
        """Called once when the runner is done, with COMPLETED, STOPPED or INTERRUPTED, or with FAILED where the
        run cannot write its recording. It is not called after other failures."""


class EnvCallback:
    """A base class for code that watches training where environments are stepped: in the sampler processes or, with
    serial inference, in the learner's.

    Every group of environments that are stepped together has an instance of its own. Before a run begins, one more is
    made and thrown away, to see whether that works: what can be opened only once belongs in the first call of a method,
    and not in __init__. An exception ends the run. Evaluation games are not watched, and checkpoints do not hold a
    callback's attributes."""

    columns: range  # the numbers of these environments among all of the run, set before the first call

    def on_episode_start(self, column: int, obs: Rows) -> None:
        """Called before the first step of an episode. column: the environment's place among those of this instance,
        which is the index of its row in on_step. obs: its first observation, without an axis of columns. Where an
        environment has N agents, its rows in on_step are N * column and the N - 1 after it, and obs has an axis [N].

        An episode that a checkpoint of a bit-exact run cuts off begins again without an end."""

    def on_step(self, action: Any, step: Step) -> None:
        """Called after every step of all columns, with the actions [B, ...] in the form that rows have, and what they
        led to [B, ...]. Where step.valid is False, the agent did not decide: that row only resets the environment."""

    def on_episode_end(self, column: int, ret: float, length: int) -> Mapping[str, float] | None:
        """Called when an episode has ended, with its unclipped return and its length in env steps. The means of the
        numbers that it returns, over the last episodes (episode_window), are logged as sample/custom/<name>, and the
        least and the largest as <name>_min and <name>_max."""


Kind = TypeVar("Kind", Callback, EnvCallback)


def callback_class(name: str) -> type:
    """Returns the class that callbacks=[name] names. Raises UserError if it is not a callback's, or if it has a method
    that looks like one of theirs and would never be called."""
    kind = load_object(name, "callbacks")
    if not (isinstance(kind, type) and issubclass(kind, Callback | EnvCallback)):
        raise UserError(f"callbacks={name} is no subclass of rlrun.Callback or rlrun.EnvCallback")
    known = [event for base in (Callback, EnvCallback) if issubclass(kind, base) for event in vars(base)]
    for method in dir(kind):
        if method.startswith(("on_", "before_")) and method not in known:
            hint = closest(method, [event for event in known if event.startswith(("on_", "before_"))])
            raise UserError(f"callbacks={name} has a method {method}, which nothing calls.{hint}")
    return kind


def make_callbacks(names: Sequence[str], kind: type[Kind]) -> list[Kind]:
    """Makes an instance of each named class that is of this kind. Raises UserError if one cannot be made."""
    made = []
    for name in names:
        own = callback_class(name)
        if issubclass(own, kind):
            try:
                made.append(own())
            except FAILURES as error:  # the class is the user's code
                raise UserError(f"callbacks={name} cannot be made: {told(error, __file__)}") from None
    return made


def call(callback: Callback | EnvCallback, event: str, *facts: Any) -> Any:
    """Calls a method of a callback. Raises RunFailed with the name of a callback that raised."""
    try:
        return getattr(callback, event)(*facts)
    except FAILURES as error:  # a callback is the user's code
        raise RunFailed(f"{named(callback)} failed in {event}: {told(error, __file__)}") from error


def add_to_row(callback: Callback, row: dict[str, Any]) -> None:
    """Calls on_log and makes plain numbers of those that it put into the row, such as NumPy's. Raises RunFailed if it
    raised or put something else there."""
    call(callback, "on_log", row)
    for name, value in row.items():
        if value is None or isinstance(value, str | int | float):
            continue
        try:
            row[name] = float(value)
        except (TypeError, ValueError):
            raise RunFailed(f"{named(callback)} put {value!r} into a row as {name}, and not a number") from None


def named(callback: Callback | EnvCallback) -> str:
    """What messages call it."""
    kind = type(callback)
    return getattr(callback, "called", f"callbacks={kind.__module__}:{kind.__qualname__}")


def call_for_numbers(callback: Callback | EnvCallback, event: str, *facts: Any) -> dict[str, float]:
    """Calls a method of a callback that may return numbers. Returns them as custom/<name>."""
    found = call(callback, event, *facts)
    if found is None:
        return {}
    try:
        return {f"custom/{name}": float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise RunFailed(f"{named(callback)} returned {found!r} from {event}, and not numbers by name") from None


def watches_learning(callback: Callback) -> bool:
    return type(callback).before_learning is not Callback.before_learning


def told_before(update: Callable[[Batch, Clock], Update], watching: Sequence[Callback]) -> Callable[..., Update]:
    """The update, before which these callbacks see the batch."""

    def watched(batch: Batch, clock: Clock) -> Update:
        numbers: dict[str, float] = {}
        for callback in watching:
            numbers |= call_for_numbers(callback, "before_learning", batch, clock)
        made = update(batch, clock)
        return made._replace(metrics={**made.metrics, **numbers})

    return watched
