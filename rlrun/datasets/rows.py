"""DataRows: what a learner draws from data sets in place of a replay of experience."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlrun.core.batch import Batch, stack_columns
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.datasets.options import DataConfig
from rlrun.datasets.reading import DataNeeds, check_fits, reward_scale
from rlrun.datasets.shelf import Shelf
from rlrun.datasets.trajectories import Source
from rlrun.replay.layout import ReplayConfig


class DataRows:
    """Draws from one data set, or from several by their shares."""

    def __init__(
        self,
        sources: Sequence[tuple[Source, float]],
        wanted: DataNeeds,
        cfg: DataConfig,
        replay: ReplayConfig,
        seeds: Seeds,
        rank: int,
        device: torch.device,
        generation: int = 0,
    ):
        """sources: data sets with their shares of what is drawn. Those with the share 0 are checked and not read.
        generation: that of the run; a resumed one draws other rows, unless load() restores its random streams."""
        for source, _ in sources:
            check_fits(source.facts, wanted, source.name)
        pairs = [(source, share) for source, share in sources if share > 0]
        total = sum(share for _, share in pairs)
        # Rows of all sets are drawn into one batch, so that their rewards must be in one unit.
        cfg = replace(cfg, reward_scale=reward_scale(cfg, [source for source, _ in pairs]))
        self.largest_weight = 1.0  # by which the weights of the last batch were divided, as Replay.largest_weight
        self.shares = torch.tensor([share / total for _, share in pairs], dtype=torch.float64)
        later = (generation,) if generation else ()
        self.rank, self.rng = rank, seeds.generator("data-mix", rank, *later)
        self.finish_writes: Callable[[], None] = lambda: None  # called before saving, to complete delayed writes
        self.shelves = [
            Shelf(
                source,
                wanted,
                cfg,
                replay,
                max(1, int(cfg.buffer * share / total)),
                seeds,
                number,
                seeds.generator("data", rank, number, *later),
                rank == 0,
                device,
            )
            for number, (source, share) in enumerate(pairs)
        ]

    def read(
        self, moments: Callable[[Batch], Any] | None = None, stopping: Callable[[], bool] = lambda: False
    ) -> list[Any]:
        """Fills the memory. Returns what moments(rows) returned, except None, for the rows [T, 1] of all sets, whether
        they fit into memory or not; or nothing if the run is stopping before all of them have been read."""
        found = [shelf.fill(moments, stopping) for shelf in self.shelves]
        return [] if None in found else [one for part in found if part is not None for one in part]

    @property
    def whole(self) -> bool:
        """Whether all rows are in memory."""
        return all(shelf.whole for shelf in self.shelves)

    @property
    def rows(self) -> int:
        """Rows in memory, dead ones too."""
        return sum(len(shelf.ring) for shelf in self.shelves)

    def sample(self, count: int, clock: Clock) -> Batch:
        """Draws `count` fragments, as Replay.sample does. Their keys are for write()."""
        if len(self.shelves) == 1:
            batch = self.shelves[0].sample(count, clock)
            self.largest_weight = self.shelves[0].ring.largest_weight
            return batch
        picks = torch.multinomial(self.shares, count, replacement=True, generator=self.rng)
        counts = torch.bincount(picks, minlength=len(self.shelves)).tolist()
        parts, largest = [], []
        for number, (shelf, part) in enumerate(zip(self.shelves, counts, strict=True)):
            if part:
                drawn = shelf.sample(part, clock)
                parts.append(drawn.replace(key=drawn.key * len(self.shelves) + number))
                largest.append(shelf.ring.largest_weight)
        batch, self.largest_weight = _beside(parts, largest)
        return batch

    def write(self, key: Tensor, /, **fields: Tensor | Batch) -> None:
        """Writes what an update computed for drawn fragments, such as priorities."""
        if len(self.shelves) == 1:
            self.shelves[0].write(key, **fields)
            return
        for number, shelf in enumerate(self.shelves):
            mine = (key % len(self.shelves) == number).nonzero().squeeze(1)
            if len(mine):
                shelf.write(key[mine] // len(self.shelves), **{name: _columns(x, mine) for name, x in fields.items()})

    # -- saving: the run keeps this by name (core/learners.Kept) -------------------------------------------------------

    def state(self) -> dict[str, Any]:
        self.finish_writes()
        return {
            "rank": self.rank,
            "shelves": [shelf.state() for shelf in self.shelves],
            "rng": self.rng.get_state(),
        }

    def load(self, state: dict[str, Any], folder: Path | None) -> None:
        """Goes on where state() was. The state may be another learner's, where a checkpoint has none of this learner.
        Then the place in the data and the priorities are that learner's, and the random streams begin anew with the
        run's generation. Raises UserError if the data have changed."""
        if len(state["shelves"]) != len(self.shelves):
            raise UserError("the checkpoint was made with another number of data sets; data.path must be the same")
        own = state.get("rank", 0) == self.rank  # older checkpoints have the first learner's alone
        for shelf, saved in zip(self.shelves, state["shelves"], strict=True):
            shelf.restore(saved, own)
        if own:
            self.rng.set_state(state["rng"])

    def close(self) -> None:
        for shelf in self.shelves:
            shelf.close()


def _beside(parts: Sequence[Batch], largest: Sequence[float]) -> tuple[Batch, float]:
    """Puts the parts of a batch side by side. Returns it with the number by which its weights were divided.

    largest: those of the parts. A row of N in a set that gives the share c of a batch is drawn with c P where it should
    be drawn with c / N, so that its weight is (N P)^-beta whatever the share is."""
    most = max(largest)
    scales = [own / most for own in largest]
    weight = torch.cat([part["weight"].cpu() * scale for part, scale in zip(parts, scales, strict=True)])
    key = torch.cat([part["key"].cpu() for part in parts])
    rest = [Batch({name: value for name, value in part.items() if name not in ("weight", "key")}) for part in parts]
    return stack_columns(rest).replace(weight=weight, key=key), most


def _columns(value: Tensor | Batch, which: Tensor | slice) -> Any:
    """Of what an update writes, a priority [B] or rows [R, B, ...], the part for some fragments."""
    if isinstance(value, Batch):
        return value.map(lambda x: _columns(x, which))
    index = which.to(value.device) if isinstance(which, Tensor) else which
    return value[index] if value.ndim == 1 else value[:, index]


class WithData:
    """A replay of experience and data, of which every batch has a part."""

    def __init__(self, replay: Any, data: DataRows, columns: int):
        """replay: a Replay. columns: fragments of a batch that come from data."""
        self.replay, self.data, self.columns = replay, data, columns
        self.largest_weight = 1.0  # as Replay.largest_weight

    def sample(self, count: int, clock: Clock) -> Batch:
        """Draws `count` fragments; those from data are the last ones."""
        own = self.replay.sample(count - self.columns, clock)
        other = self.data.sample(self.columns, clock).to(own.reward.device)
        batch, self.largest_weight = _beside((own, other), (self.replay.largest_weight, self.data.largest_weight))
        return batch

    def write(self, key: Tensor, /, **fields: Tensor | Batch) -> None:
        """Writes what an update computed for drawn fragments, such as priorities."""
        own = len(key) - self.columns
        for target, which in ((self.replay, slice(0, own)), (self.data, slice(own, None))):
            target.write(key[which], **{name: _columns(value, which) for name, value in fields.items()})
