"""Looks at the world model of a run: how far its open-loop predictions are from what was true, and pictures of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from rlrun.core.batch import Batch
from rlrun.core.callbacks import Callback
from rlrun.core.conditions import WORLD_MODELS, OnlyFor
from rlrun.core.open_loop import CONTEXT, Excerpt, comparable, errors, excerpt
from rlrun.core.ranges import Count
from rlrun.core.schedule import Clock

SHOWN = 2  # sequences of a batch that are drawn
GROWTH, LEAST = 10, 100  # auto: env steps grow by a tenth between two looks, and by LEAST at least

Show = Callable[[int, list[Excerpt]], None]  # takes env steps, and the sequences to draw


@dataclass(frozen=True, kw_only=True)
class ImagineConfig:
    every: Annotated[Literal["auto"] | Annotated[int, Count] | None, OnlyFor(WORLD_MODELS)]

    def after(self, at: int) -> int:
        """The env steps of the look after one at `at` env steps."""
        assert self.every is not None
        return at + max(LEAST, at // GROWTH) if self.every == "auto" else (at // self.every + 1) * self.every


class Imagining(Callback):
    """Predicts the sequences of a batch open-loop, before the update that learns from them. Errors are logged with the
    next row, as means over the batch; the first few sequences are drawn."""

    def __init__(self, cfg: ImagineConfig, show: Show, rng: torch.Generator):
        self.cfg, self.show, self.rng = cfg, show, rng
        self.next = 0
        self.row: dict[str, float] = {}

    def on_start(self, run: Any) -> None:
        self.run = run

    def before_learning(self, batch: Batch, clock: Clock) -> None:
        if clock.env_steps < self.next:
            return
        self.next = self.cfg.after(clock.env_steps)
        context = min(CONTEXT, len(batch["is_first"]) // 2)  # type: ignore[arg-type]
        made = self.run.algorithm.open_loop(batch, context, self.rng)
        self.row = {f"learn/{name}": float(value) for name, value in errors(made, batch).items()}
        lengths = comparable(batch, context).cumprod(0).sum(0)
        longest = lengths.argsort(descending=True, stable=True)[:SHOWN].tolist()
        self.show(clock.env_steps, [excerpt(made, batch, column) for column in longest])

    def on_log(self, row: dict[str, Any]) -> None:
        row |= self.row
        self.row = {}
