"""Opens a data set of any format that rlrun reads."""

from __future__ import annotations

from pathlib import Path

from rlrun.core.errors import UserError
from rlrun.core.specs import EnvSpec
from rlrun.datasets.parquet import ENDING, LIST, ParquetSource, is_own
from rlrun.datasets.trajectories import Source


def open_source(path: str, spec: EnvSpec | None = None, actions_normalized: bool = True) -> Source:
    """Returns the data set in a folder or file.

    spec: that of the run's environment, for formats that do not hold spaces. actions_normalized: whether bounded
    actions in such formats lie in [-1, 1]. Raises UserError if there is no such place, or if nothing there is data."""
    place = Path(path)
    if not place.exists():
        raise UserError(f"there is no file or folder {path}")
    if place.is_dir() and (place / LIST).is_file():
        return ParquetSource(place)
    if place.is_dir() and (place / "config.yaml").is_file():
        raise UserError(f"{path} is a run directory; rlrun record {path} records data with its policy")
    if (place.is_file() or any(place.glob(f"*{ENDING}"))) and is_own(place):
        return ParquetSource(place)
    raise UserError(f"{path} holds no data that rlrun can read")
