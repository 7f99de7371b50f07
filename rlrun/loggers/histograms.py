"""Histograms of returns, lengths of episodes and actions, for TensorBoard (logger.tensorboard.histograms)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.callbacks import Callback
from rlrun.core.schedule import Clock

Draw = Callable[[int, Mapping[str, np.ndarray]], None]  # takes env steps, and numbers by name


class Histograms(Callback):
    """Collects the numbers when a row is written.

    Actions are those of the batch that was learnt from last, at its live rows: one histogram for each number of an
    action, in the form that rows have (bounded actions lie in [-1, 1]). Learners in other processes show none."""

    def __init__(self, draw: Draw):
        self.draw = draw
        self.batch: Batch | None = None

    def on_start(self, run: Any) -> None:
        self.run = run

    def before_learning(self, batch: Batch, clock: Clock) -> None:
        self.batch = batch

    def on_log(self, row: dict[str, Any]) -> None:
        found: dict[str, np.ndarray] = {}
        if self.run.episodes.returns:
            found["sample/returns"] = np.array(self.run.episodes.returns)
            found["sample/episode_lengths"] = np.array(self.run.episodes.lengths)
        if self.batch is not None and "action" in self.batch:
            valid = self.batch["valid"]
            assert isinstance(valid, Tensor)
            for name, action in _leaves("learn/actions", self.batch["action"]):
                live = action[valid]
                live = live.reshape(len(live), -1)
                for number, values in enumerate(live.float().cpu().numpy().T):
                    found[name if live.shape[1] == 1 else f"{name}/{number}"] = values
            self.batch = None  # it may be large, and its memory is used again
        self.draw(row["env_steps"], {name: values for name, values in found.items() if values.size})


def _leaves(name: str, tree: Tensor | Batch) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, Tensor):
        yield name, tree
    else:
        for key, value in tree.items():
            yield from _leaves(f"{name}/{key}", value)
