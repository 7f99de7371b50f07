"""Callback: runs the user's own code at the events of a run. callbacks=[package.module:Name] makes one instance of each
class, without arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.core.schedule import Clock


class Callback:
    """A base class whose methods you override as needed. All methods are called in the run's first process, between
    updates, and an exception ends the run. Checkpoints do not hold a callback's attributes: a resumed run makes new
    callbacks."""

    def on_start(self, run: Any) -> None:
        """Called once, before the first update. It may read run.clock, run.episodes, run.algorithm and run.best."""

    def on_update(self, clock: Clock, metrics: dict[str, Any]) -> None:
        """Called after every update. `metrics` are 0-d tensors or floats; their names lack the prefix learn/."""

    def on_episode(self, ret: float, length: int, info: dict[str, float]) -> None:
        """Called after every finished training episode, with its unclipped return, its length in decisions and the
        numeric entries of its info."""

    def on_log(self, row: dict[str, Any]) -> None:
        """Called before a row goes to progress.jsonl, TensorBoard and MLflow. Numbers added to it are logged too."""

    def on_evaluate(self, clock: Clock, returns: Sequence[float]) -> None:
        """Called after an evaluation."""

    def on_save(self, path: Path, clock: Clock) -> None:
        """Called after a checkpoint was written to this directory."""

    def on_end(self, status: str) -> None:
        """Called once when the runner is done, with COMPLETED, STOPPED or INTERRUPTED, but not after a failure."""
