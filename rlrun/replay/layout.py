"""Describes what a replay stores and what is drawn from it, and checks that it fits into memory or onto the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from rlrun.core.batch import SCALAR_REWARD, Field, RowSpec
from rlrun.core.conditions import REPLAYS, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.ranges import Count, NotNegative
from rlrun.core.schedule import Schedule
from rlrun.replay.storage import row_bytes

AUTO_SHARE = 0.5  # share of the free memory that a replay whose capacity is auto may take
FLAGS: RowSpec = {name: Field((), torch.bool) for name in ("terminated", "valid", "is_first")}


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Options of every replay."""

    name: Literal["uniform", "prioritized"]
    capacity: Annotated[int, Count, OnlyFor(REPLAYS)]
    compress: Annotated[bool, OnlyFor(REPLAYS)]
    directory: Annotated[str | None, OnlyFor(REPLAYS)]
    device: Annotated[Literal["auto", "cpu", "learner"], OnlyFor(REPLAYS)]
    checkpoint: Annotated[Literal["auto"] | bool, OnlyFor(REPLAYS)]
    checkpoint_max_gb: Annotated[float, NotNegative, OnlyWith("checkpoint", "auto"), OnlyFor(REPLAYS)]

    def __post_init__(self):
        if self.compress and (self.directory is not None or self.device == "learner"):
            raise ValueError("compress is for replay in memory: directory=null and device=cpu")
        if self.directory is not None and self.device == "learner":
            raise ValueError("directory is for replay on the CPU: device=cpu")

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[ReplayConfig]:
        return PrioritizedReplayConfig if values.get("name") == "prioritized" else ReplayConfig


@dataclass(frozen=True, kw_only=True)
class PrioritizedReplayConfig(ReplayConfig):
    alpha: Annotated[float, NotNegative]
    beta: Annotated[Schedule, NotNegative, OnlyWith("alpha")]
    priority_epsilon: Annotated[float, NotNegative, OnlyWith("alpha")]


@dataclass(frozen=True)
class Layout:
    """What a replay stores and what is drawn from it."""

    obs: RowSpec  # the observation of one row
    action: Field | RowSpec
    record: RowSpec
    core: RowSpec
    core_every: int
    block: int  # columns that come in one fragment
    blocks: int  # number of producers of fragments
    fragment_rows: int  # rows in an added fragment
    rows: int  # rows T in a drawn fragment
    rows_from: int  # the live length of every drawn fragment is random, from rows_from to rows
    ends: bool  # whether only the observations of a fragment's first row and of its end are drawn
    starts_every: int  # fragments begin at multiples of this number of rows
    sequences: bool  # whether fragments may begin with a dead row if a later row is live, from burn_in on
    new_first: bool = False  # whether fragments that were never drawn, one behind the other, come before random ones
    stack: int = 1  # frames in every part of obs.observation; each frame is shared by this many rows
    capacity: int = 1
    reward: Field = SCALAR_REWARD  # EnvSpec.reward_row
    outcomes: float | None = None  # FromReplay.outcomes
    drawn: str | None = None  # FromReplay.drawn
    core_first: int = 0  # Needs.core_first
    burn_in: int = 0  # the first rows of a sequence, from which nothing is learnt

    @property
    def columns(self) -> int:
        return self.block * self.blocks

    @property
    def rows_per_column(self) -> int:
        """At least capacity / columns rows and one more for the next observation, rounded up to whole fragments."""
        need = max(-(-self.capacity // self.columns), self.rows + self.stack + 2 * self.starts_every + 1) + 1
        unit = self.fragment_rows
        return -(-need // unit) * unit

    @property
    def stored(self) -> RowSpec:
        """The fields of one row, without recurrent state."""
        return {"obs": self.obs, "action": self.action, "reward": self.reward, **FLAGS, **self.record}

    def refuse_unknown(self, fields: Iterable[str]) -> None:
        """Raises KeyError with the name of a field that the policy does not record, because it cannot be written."""
        for name in fields:
            if name not in self.record and not (name == "core" and self.core):
                raise KeyError(name)

    @property
    def bytes(self) -> int:
        """The size of the whole ring, without priorities."""
        frames = ("obs", "observation") if self.stack > 1 else None
        core = row_bytes(self.core, None, 1) // self.core_every if self.core else 0
        return self.columns * self.rows_per_column * (row_bytes(self.stored, frames, self.stack) + core)


def saved_with(layout: Layout, cfg: ReplayConfig) -> bool:
    """Returns whether checkpoints hold the rows of a replay with this layout."""
    if cfg.checkpoint == "auto":
        return layout.bytes <= cfg.checkpoint_max_gb * 1e9
    return bool(cfg.checkpoint)


def memory_needed(layout: Layout, cfg: ReplayConfig, device: torch.device) -> int:
    """Returns the bytes of main memory that a full replay takes. With compress it takes an unknown share of them."""
    return 0 if cfg.directory is not None or (cfg.device == "learner" and device.type != "cpu") else layout.bytes


def fitting(layout: Layout, cfg: ReplayConfig, available: int, device: torch.device, count: int = 1) -> int | None:
    """Returns how many rows take AUTO_SHARE of the free memory, where the replays of a run would take more than that;
    None where they do not. What is compressed takes an unknown share, so that nothing is said of it. The arguments are
    those of refuse_too_large()."""
    need, room = count * memory_needed(layout, cfg, device), AUTO_SHARE * available
    return None if cfg.compress or need <= room else max(1, int(cfg.capacity * room / need))


def refuse_too_large(layout: Layout, cfg: ReplayConfig, available: int, device: torch.device, count: int = 1) -> None:
    """Raises UserError if the replays of a run would not fit.

    available: bytes of free main memory. device: that of the learner. count: number of replays with this layout, which
    share cfg.capacity.
    """
    if cfg.directory is not None:
        folder = Path(cfg.directory)
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"replay.directory={folder}: nothing can be written to {there}")
        free = shutil.disk_usage(there).free
        if count * layout.bytes > free:
            raise UserError(
                f"replay.directory={folder}: the replay takes {count * layout.bytes / 1e9:.1f} GB, and {free / 1e9:.1f}"
                " GB are free there"
            )
    need = count * memory_needed(layout, cfg, device)
    if need > available and not cfg.compress:
        rows = int(cfg.capacity * available / need * 0.9)
        raise UserError(
            f"a replay of {cfg.capacity:,} rows takes {need / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are"
            f" free; replay.capacity={rows} would fit, or replay.compress=true (LZ4), or replay.directory=DIR (a"
            " file)"
        )
