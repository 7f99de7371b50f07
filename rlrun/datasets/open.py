"""Opens a data set of any format that rlrun reads."""

from __future__ import annotations

from pathlib import Path

from rlrun.core.errors import UserError
from rlrun.core.outputs import steers
from rlrun.core.specs import EnvSpec
from rlrun.datasets.minari import PREFIX, MinariSet, folder_of, is_minari
from rlrun.datasets.parquet import ENDING, LIST, ParquetSource, facts_to_json, is_own, unreadable
from rlrun.datasets.rllib_json import RLlibJson, is_rllib_json
from rlrun.datasets.rllib_parquet import RLlibParquet, is_rllib_parquet
from rlrun.datasets.trajectories import Source

MADE = "data"  # the folder in which scripts/make_offline_data makes the sets that tuned files learn from


def is_there(path: str) -> bool:
    """Whether there is a file or folder at this path, files that fit a pattern, or a Minari set of this name."""
    return Path(path).exists() or path.startswith(PREFIX) or is_minari(path) or is_rllib_json(path)


def open_source(path: str, spec: EnvSpec | None = None, actions_normalized: bool = True) -> Source:
    """Returns the data set in a folder or file, behind a pattern of RLlib's JSON files, or of the id of a Minari set.

    spec: that of the run's environment, for formats that do not hold spaces. actions_normalized: whether bounded
    actions in such formats lie in [-1, 1]. Raises UserError if there is no such place, if nothing there is data, or if
    names in the data would steer a terminal."""
    source = _opened(path, spec, actions_normalized)
    # Names of the environment, its parts and policies, and notes are shown in many places.
    if steers(facts_to_json(source.facts)):
        raise UserError(f"{path} has names or notes with characters that steer a terminal")
    return source


def _opened(path: str, spec: EnvSpec | None, actions_normalized: bool) -> Source:
    place = Path(path)
    if path.startswith(PREFIX) or is_minari(path):
        return MinariSet(path, spec)
    if not is_there(path):
        if place.parts[:1] == (MADE,) and len(place.parts) == 2 and "-" in place.name:
            name, _, level = place.name.rpartition("-")
            command = f"scripts/make_offline_data {name} --levels {level}"
            raise UserError(f"there is no folder {path} yet; {command} makes it")
        raise UserError(f"there is no file or folder {path}, and no Minari set of this name")
    if place.is_dir() and (place / LIST).is_file():
        return ParquetSource(place)
    if place.is_dir() and (place / "config.yaml").is_file():
        raise UserError(f"{path} is a run directory; rlrun record {path} records data with its policy")
    if (place.is_file() or any(place.glob(f"*{ENDING}"))) and is_own(place):
        return ParquetSource(place)
    if is_rllib_parquet(path):
        return RLlibParquet(path, spec, actions_normalized)
    if is_rllib_json(path):
        return RLlibJson(path, spec, actions_normalized)
    damaged = unreadable(place)
    if damaged is not None:
        raise UserError(damaged)
    raise UserError(
        f"{path} holds no data that rlrun can read: its own Parquet files, RLlib's *.json, *.zip or *.parquet, or a"
        " Minari set"
    )


def would_read(source: Source, folder: Path) -> bool:
    """Whether files that are written into this folder would belong to a data set when it is opened again."""
    place = folder_of(source.name) if isinstance(source, MinariSet) else Path(source.name).expanduser()
    if place is None or not place.is_dir():
        return False
    place, folder = place.resolve(), folder.resolve()
    # The others read no folders inside theirs.
    return folder == place or (isinstance(source, MinariSet | RLlibParquet) and folder.is_relative_to(place))
