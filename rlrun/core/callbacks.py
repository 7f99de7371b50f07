"""Callback: the user's own code at the events of a run; callbacks=[package.module:Name] makes one of each class, without arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.core.schedule import Clock


class Callback:
    """Subclass it and override what is needed. All methods run in the run's first process, between updates; an exception ends the run.
    What a callback remembers is not in checkpoints: a resumed run makes it anew."""

    def on_start(self, run: Any) -> None:
        """Once, before the first update. run.clock, run.episodes, run.algorithm and run.best are there to be read."""

    def on_update(self, clock: Clock, metrics: dict[str, Any]) -> None:
        """After every update. `metrics` are 0-d tensors or floats, without the prefix learn/."""

    def on_episode(self, ret: float, length: int, info: dict[str, float]) -> None:
        """After every finished training episode: unclipped return, length in decisions, numeric info entries."""

    def on_log(self, row: dict[str, Any]) -> None:
        """Before a row goes to progress.jsonl, TensorBoard and MLflow. Numbers that are added to it are logged too."""

    def on_evaluate(self, clock: Clock, returns: Sequence[float]) -> None:
        """After an evaluation."""

    def on_save(self, path: Path, clock: Clock) -> None:
        """After a checkpoint was written to this directory."""

    def on_end(self, status: str) -> None:
        """Once, when the runner is done: COMPLETED, STOPPED or INTERRUPTED. Not after a failure."""
