"""The options of conf/train.yaml under `data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rlrun.core.conditions import REWARDED, UNITS, OnlyFor, OnlyWith
from rlrun.core.ranges import Count, Positive, PositiveShareBelowOne

WITH_DATA = OnlyWith("path")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    path: str | dict[str, float] | None
    share: Annotated[Annotated[float, PositiveShareBelowOne] | None, OnlyWith("runner.name", "replay")]
    buffer: Annotated[int, Count, WITH_DATA]
    readers: Annotated[int, Count, WITH_DATA]
    min_return: Annotated[float | None, WITH_DATA]
    max_return: Annotated[float | None, WITH_DATA]
    reward_scale: Annotated[Literal["returns"] | Annotated[float, Positive], WITH_DATA, OnlyFor(REWARDED)]
    reward_shift: Annotated[float, WITH_DATA, OnlyFor(REWARDED)]
    actions_normalized: Annotated[bool, WITH_DATA, OnlyFor(UNITS)]

    def __post_init__(self):
        if self.path == "":
            raise ValueError("path must name a folder or a file")
        shares = self.shares
        if any(share < 0 for share in shares.values()) or (shares and abs(sum(shares.values()) - 1.0) > 1e-6):
            raise ValueError(f"the shares of data.path must be 0 or more, and 1 in all: {shares}")
        if self.min_return is not None and self.max_return is not None and self.min_return > self.max_return:
            raise ValueError("min_return is above max_return, so that no trajectory would be left")
        if self.share is not None and self.path is None:
            raise ValueError("share says how much of a batch comes from data, so that path must name them")

    @property
    def shares(self) -> dict[str, float]:
        """Every path with its share of the rows that are drawn."""
        if self.path is None:
            return {}
        return dict(self.path) if isinstance(self.path, dict) else {self.path: 1.0}


def absolute_data(path: str | dict[str, float]) -> str | dict[str, float]:
    """data.path with the folders and files that are there as absolute paths. Patterns and names of Minari sets stay as
    they are."""
    if isinstance(path, dict):
        return {str(absolute_data(place)): share for place, share in path.items()}
    return str(Path(path).resolve()) if Path(path).exists() else path
