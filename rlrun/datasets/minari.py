"""Minari's data sets, read and written.

A set is a folder with data/metadata.json, whose spaces are JSON, and one of three storages: HDF5 (read with h5py),
Arrow and Parquet (read with pyarrow). Reading needs nothing of Minari's own and never makes an environment: the one
that the metadata name would be imported, and importing runs code. Writing is Minari's own work."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from rlrun.core.env import map_rows
from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
from rlrun.core.specs import (
    Box,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    Nested,
    Space,
    alike,
    leaves,
    mask_size,
)
from rlrun.datasets.foreign import LOG_PROB, cast, outside, within_float32
from rlrun.datasets.stitcher import WithEnds
from rlrun.datasets.trajectories import DataFacts, Trajectory, without_previous

METADATA = "metadata.json"
HDF5 = "main_data.hdf5"
PREFIX = "minari:"  # of a name that is an id and no path
TOGETHER = 64  # episodes of a piece
MASK = "action_mask"
DAMAGE = (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, OverflowError, pa.ArrowException)
INSTALL = install_line("minari")


def folder_of(name: str | Path) -> Path | None:
    """The folder of a Minari set with its metadata.json: that of a path, or of an id such as minari:D4RL/pen/human-v2
    under MINARI_DATASETS_PATH. None if there is none."""
    text = str(name)
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    places = [root / text.removeprefix(PREFIX)] if text.startswith(PREFIX) else [Path(text).expanduser(), root / text]
    for place in places:
        for folder in (place / "data", place):
            if (folder / METADATA).is_file():
                return folder
    return None


def is_minari(name: str | Path) -> bool:
    """Whether a path or an id names a Minari set."""
    folder = folder_of(name)
    try:
        return folder is not None and "data_format" in json.loads((folder / METADATA).read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


class MinariSet:
    """A Source of a Minari set."""

    def __init__(self, name: str | Path, spec: EnvSpec | None = None):
        """name: a folder or an id. spec: that of env=, which must have the spaces of the set. Raises UserError if there
        is no such set, or if it cannot be read."""
        folder = folder_of(name)
        if folder is None:
            raise UserError(
                f"{name} is no Minari set: there is no {METADATA} in it, and no set of this name is installed"
            )
        self.name, self._folder = str(name), folder
        try:
            self._about = json.loads((folder / METADATA).read_bytes())
            if not isinstance(self._about, dict):
                raise ValueError("it is no group of keys")
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{folder / METADATA} cannot be read: {error}") from None
        self._format = self._about.get("data_format", "hdf5")
        episodes = self._about.get("total_episodes")
        if type(episodes) is not int or episodes < 1:
            raise UserError(f"{name} has no episodes")
        self._episodes: int = episodes
        steps = self._about.get("total_steps")
        # Every decision has at most one dead row behind it.
        self.most_rows: int | None = 2 * steps if type(steps) is int and steps > 0 else None
        self._space = self._read_space("observation_space", "observation")
        self._action = self._read_space("action_space", "action")
        for _, part in leaves(self._action):
            if isinstance(part, Box) and part.bounded and (np.asarray(part.low) >= part.high).any():
                raise UserError(f"{name} has an action whose lowest value is its highest")
        own = EnvSpec(name=self._env_name(), obs=self._obs(), action=self._action, max_episode_steps=self._limit())
        if spec is not None:
            spec = without_previous(spec)
            self._check(own, spec)
        self._masked = MASK in own.obs
        files = (one for one in folder.glob("**/*") if one.name in (METADATA, HDF5) or one.suffix == f".{self._format}")
        self.identity = sorted(f"{one.relative_to(folder)} {one.stat().st_size}" for one in files)
        first = next(iter(self._open(range(1))))
        self.facts = DataFacts(
            spec=spec or own,
            record=LOG_PROB if self._recorded(first) is not None else {},
            policies=(str(self._about.get("algorithm_name") or "unknown"),),
            random_return=_score(self._about.get("ref_min_score")),
            expert_return=_score(self._about.get("ref_max_score")),
            made_by=f"Minari {self._about.get('minari_version', '')}".strip(),
            notes=self._notes(own),
        )

    def pieces(self) -> int:
        return math.ceil(self._episodes / TOGETHER)

    def read(self, piece: int) -> Iterator[Trajectory]:
        numbers = range(piece * TOGETHER, min((piece + 1) * TOGETHER, self._episodes))
        for number, found in zip(numbers, self._open(numbers), strict=True):
            yield self._trajectory(found, f"{self._folder}, episode {number}")

    # Facts

    def _read_space(self, key: str, what: str) -> Space:
        text = self._about.get(key)
        if not isinstance(text, str):
            raise UserError(
                f"{self.name} does not describe its {what} space; older versions of Minari left it to the environment,"
                " which rlrun does not make for you. Write the set again with a newer Minari"
            )
        try:
            return space_of(json.loads(text), what)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None
        except (*DAMAGE, RecursionError) as error:
            raise UserError(
                f"{self.name} has a damaged {what} space in {METADATA}: {type(error).__name__}: {error}"
            ) from None

    def _obs(self) -> dict[str, Any]:
        """The parts of observations. An action_mask in a Dict is one of its own."""
        space = self._space
        if not (isinstance(space, Nested) and MASK in space.parts and not space.ordered):
            return {"observation": space}
        size = mask_size(self._action)
        rest = tuple((name, part) for name, part in space.spaces if name != MASK)
        if size is None or not rest or math.prod(getattr(space.parts[MASK], "shape", (0,))) != size:
            raise UserError(f"{self.name} has an action_mask that does not fit its actions {self._action}")
        return {"observation": Nested(spaces=rest, ordered=False), MASK: MultiBinary(shape=(size,))}

    def _env(self) -> dict[str, Any]:
        """What the metadata say about the environment, which is only read."""
        try:
            found = json.loads(self._about.get("env_spec") or "{}")
        except (ValueError, TypeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _env_name(self) -> str:
        name = self._env().get("id")
        return name if isinstance(name, str) and name else str(self._about.get("dataset_id") or self.name)

    def _limit(self) -> int | None:
        limit = self._env().get("max_episode_steps")
        return limit if type(limit) is int and limit > 0 else None

    def _notes(self, own: EnvSpec) -> tuple[str, ...]:
        said = [f"It is {self._about.get('dataset_id') or self.name}, recorded in {own.name}."]
        if self._about.get("author"):
            authors = self._about["author"]
            said.append(f"Its author is {', '.join(map(str, authors)) if isinstance(authors, list) else authors}.")
        return tuple(said)

    def _check(self, own: EnvSpec, spec: EnvSpec) -> None:
        """Raises UserError if the spaces of env= are others."""
        wanted = spec.observation
        same = own.obs.keys() == spec.obs.keys() and alike(own.observation, wanted)
        if not same and spec.stack > 1 and isinstance(wanted, Box) and isinstance(own.observation, Box):
            same = own.observation.shape == wanted.shape[1:] and own.observation.dtype == wanted.dtype
        if not same:
            raise UserError(f"{self.name} has observations {own.observation}, and {spec.name} has {wanted}")
        if own.action != spec.action:
            raise UserError(f"{self.name} has actions {own.action}, and {spec.name} has {spec.action}, or other bounds")

    # Episodes

    def _open(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yields episodes as trees of arrays. Raises UserError if one is damaged."""
        opened = {"hdf5": self._hdf5, "arrow": self._arrow, "parquet": self._arrow}.get(self._format)
        if opened is None:
            raise UserError(f"{self.name} is stored as {self._format!r}; rlrun reads hdf5, arrow and parquet")
        last = -1
        try:
            for last, found in opened(numbers):  # noqa: B007  an error names the last one that was read
                yield found
        except DAMAGE as error:
            place = f"{self._folder}, behind episode {last}" if last >= 0 else f"{self._folder}"
            text = " ".join(str(error).split())
            raise UserError(f"{place} cannot be read: {text or type(error).__name__}") from None

    def _hdf5(self, numbers: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            import h5py
        except ImportError:
            raise UserError(f"{self.name} is stored as HDF5, which needs h5py: {INSTALL}") from None

        def inside(group: Any, key: str) -> Any:
            """Part of a group that is in this file. A link or a virtual part could show another file of the machine."""
            if not isinstance(group, h5py.Group) or not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise ValueError(f"it has no {key} of its own")
            found = group[key]
            if isinstance(found, h5py.Dataset) and (found.is_virtual or found.external):
                raise ValueError(f"its {key} are in another file")
            return found

        def tree(space: Space, group: Any, key: str) -> Any:
            found = inside(group, key)
            if isinstance(space, Nested):
                names = {name: f"_index_{name}" if space.ordered else name for name, _ in space.spaces}
                return {name: tree(part, found, names[name]) for name, part in space.spaces}
            values = found[()]
            pictures = values.dtype.kind == "O" or (values.ndim == 2 and isinstance(space, Box) and space.image)
            return _pictures(list(values), space) if pictures else values

        with h5py.File(self._folder / HDF5, "r") as file:
            for number in numbers:
                episode = inside(file, f"episode_{number}")
                made = {
                    "observations": tree(self._space, episode, "observations"),
                    "actions": tree(self._action, episode, "actions"),
                }
                for key in ("rewards", "terminations", "truncations"):
                    made[key] = inside(episode, key)[()]
                infos = episode.get("infos")
                if isinstance(infos, h5py.Group) and "log_prob" in infos:
                    made["log_prob"] = inside(infos, "log_prob")[()]
                yield number, made

    def _arrow(self, numbers: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number in numbers:
            files = sorted((self._folder / str(number)).glob(f"*.{self._format}"))
            if not files:
                raise ValueError(f"there is no {self._format} file of episode {number}")
            table = pa.concat_tables([_table(file, self._format) for file in files])
            made: dict[str, Any] = {
                "observations": _arrow_tree(self._space, table.column("observations").combine_chunks()),
                "actions": _arrow_tree(self._action, table.column("actions").combine_chunks()[:-1]),
            }
            for key in ("rewards", "terminations", "truncations"):
                made[key] = table.column(key).combine_chunks().to_numpy(zero_copy_only=False)[:-1]
            infos = table.column("infos").combine_chunks() if "infos" in table.column_names else None
            if infos is not None and pa.types.is_struct(infos.type) and "log_prob" in {one.name for one in infos.type}:
                made["log_prob"] = infos.field("log_prob").to_numpy(zero_copy_only=False)
            yield number, made

    @staticmethod
    def _recorded(found: Mapping[str, Any]) -> np.ndarray | None:
        """The log probabilities that rlrun wrote; None if the episode has none."""
        values = found.get("log_prob")
        return None if values is None else np.asarray(values)

    def _trajectory(self, found: Mapping[str, Any], where: str) -> Trajectory:
        reward = _finite(np.asarray(found["rewards"]), "rewards", where).astype(np.float32).reshape(-1)
        count = len(reward)
        flags = [np.asarray(found[key]).reshape(-1).astype(bool) for key in ("terminations", "truncations")]
        if not count or any(len(flag) != count for flag in flags):
            raise UserError(
                f"{where} has {count} rewards, {len(flags[0])} terminations and {len(flags[1])} truncations"
            )
        terminated, truncated = flags[0], flags[1] & ~flags[0]
        spec, space = self.facts.spec, self._space
        obs = _observations(space, found["observations"], count + 1, where)
        rows: dict[str, Any] = {"observation": obs}
        if self._masked:
            rows = {"observation": {k: v for k, v in obs.items() if k != MASK}, MASK: obs[MASK].reshape(count + 1, -1)}
            rows[MASK] = rows[MASK].astype(np.int64)
        stacked = isinstance(space, Box) and space.shape == getattr(spec.observation, "shape", None)
        if spec.stack > 1 and stacked:
            rows["observation"] = np.ascontiguousarray(rows["observation"][:, -1])
        action = _actions(self._action, found["actions"], count, where)
        gap = terminated | truncated
        whole = bool(gap[-1])
        gap[-1] = True
        layout = WithEnds(gap)

        def with_ends(values: np.ndarray) -> np.ndarray:
            made = layout.spread(values)
            made[layout.dead] = values[1:][gap]
            return made

        record = {}
        if "log_prob" in self.facts.record:
            values = self._recorded(found)
            if values is None or values.dtype.kind != "f" or values.ndim != 1 or len(values) < count:
                values = np.full(count, np.nan)
            record["log_prob"] = layout.spread(values[:count].astype(np.float32))
        return Trajectory(
            obs=map_rows(rows, with_ends),
            action=map_rows(action, layout.spread),
            reward=layout.spread(reward),
            terminated=layout.spread(terminated),
            truncated=layout.spread(truncated),
            valid=layout.valid,
            record=record,
            whole=whole,
        )


def _score(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def space_of(data: Any, what: str) -> Space:
    """The space that Minari's JSON describes. Raises UserError for one that rlrun does not support, and others for
    damaged JSON."""
    kind = data["type"]
    if kind == "Discrete":
        return Discrete(n=_positive(data["n"]), start=int(data.get("start", 0)))
    if kind == "MultiDiscrete":
        sizes = np.asarray(data["nvec"])
        starts = np.asarray(data.get("start", np.zeros_like(sizes)))
        if sizes.dtype.kind not in "iu" or sizes.shape != starts.shape or sizes.min() < 1:
            raise ValueError("its sizes are no whole numbers")
        flat = (tuple(int(one) for one in values.ravel()) for values in (sizes, starts))
        return MultiDiscrete(sizes=next(flat), starts=next(flat), shape=sizes.shape)
    if kind == "MultiBinary":
        sizes = data["n"]
        return MultiBinary(shape=tuple(_positive(one) for one in (sizes if isinstance(sizes, list) else [sizes])))
    if kind == "Box":
        return _box(data, what)
    if kind in ("Dict", "Tuple") and data["subspaces"]:
        inside = data["subspaces"]
        parts = inside.items() if kind == "Dict" else ((str(i), part) for i, part in enumerate(inside))
        spaces = tuple((name, space_of(part, what)) for name, part in parts)
        return Nested(spaces=spaces, ordered=kind == "Tuple")
    raise UserError(
        f"it has the {what} space {kind}; rlrun takes Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of"
        " these"
    )


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is no size")
    return value


def _box(data: Mapping[str, Any], what: str) -> Box:
    shape = tuple(_positive(size) for size in data["shape"])
    dtype = np.dtype(str(data["dtype"]))
    if dtype.kind not in "biuf":
        raise ValueError(f"{dtype} is no dtype of numbers")
    low, high = (np.asarray(data[name], dtype=np.float64) for name in ("low", "high"))
    if low.shape != shape or high.shape != shape or np.isnan(low).any() or np.isnan(high).any():
        raise ValueError("its bounds do not have its shape")
    bounds = (low.ravel(), high.ravel())
    if what == "observation":
        bounds = (bounds[0].min(keepdims=True), bounds[1].max(keepdims=True))
        dtype = np.dtype("float32") if dtype.kind == "f" else dtype
    lows, highs = (tuple(float(one) for one in bound) for bound in bounds)
    return Box(shape=shape, dtype=str(dtype), low=lows, high=highs)


def _table(file: Path, kind: str) -> pa.Table:
    if kind == "parquet":
        return parquet.ParquetFile(file).read()
    with pa.memory_map(str(file)) as source:
        return pa.ipc.open_file(source).read_all()


def _arrow_tree(space: Space, values: pa.Array) -> Any:
    if isinstance(space, Nested):
        if not pa.types.is_struct(values.type):
            raise ValueError(f"a space of several parts is stored as {values.type}")
        return {name: _arrow_tree(part, values.field(name)) for name, part in space.spaces}
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return _pictures(values.to_pylist(), space)
    if isinstance(space, Discrete):
        return values.to_numpy(zero_copy_only=False)
    count, kind = len(values), values.type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = values.flatten()
        kind = values.type
    return values.to_numpy(zero_copy_only=False).reshape(count, *space.shape)


def _pictures(encoded: list[Any], space: Space) -> np.ndarray:
    """JPEG pictures as arrays. Other kinds of pictures are refused."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UserError(f"its pictures are JPEG, which needs pillow: {INSTALL}") from None
    if not isinstance(space, Box):
        raise ValueError(f"pictures stand where {space} is expected")
    made = np.empty((len(encoded), *space.shape), dtype=np.uint8)
    for i, data in enumerate(encoded):
        try:
            with Image.open(io.BytesIO(bytes(data)), formats=("JPEG",)) as picture:
                if picture.size[::-1] != space.shape[:2]:
                    raise ValueError(f"a picture has the size {picture.size}, and {space} is expected")
                made[i] = np.asarray(picture).reshape(space.shape)
        except (UnidentifiedImageError, Image.DecompressionBombError):
            raise ValueError("a picture is no JPEG") from None
    return made


def _finite(numbers: np.ndarray, what: str, where: str) -> np.ndarray:
    if numbers.dtype.kind not in "biuf" or (numbers.dtype.kind == "f" and not np.isfinite(numbers).all()):
        raise UserError(f"{where}: {what} hold something else than finite numbers")
    return within_float32(numbers, what, where)


def _parts(
    space: Space, values: Any, count: int, what: str, where: str, convert: Callable[[Any, np.ndarray], np.ndarray]
) -> Any:
    """Converts the leaves of a space's values [count, ...], which are checked."""
    if isinstance(space, Nested):
        return {name: _parts(part, values[name], count, what, where, convert) for name, part in space.spaces}
    numbers = _finite(np.asarray(values), what, where)
    shape = (count, *(() if isinstance(space, Discrete) else space.shape))
    if numbers.shape != shape:
        raise UserError(f"{where}: {what} have the shape {list(numbers.shape)} instead of {list(shape)}")
    if isinstance(space, Box):
        return convert(space, numbers)
    made = space.from_env(numbers)
    if outside(space, made):
        raise UserError(f"{where}: {what} hold numbers outside {space}")
    return made


def _observations(space: Space, values: Any, count: int, where: str) -> Any:
    name = "observations"
    return _parts(space, values, count, name, where, lambda box, numbers: cast(numbers, box, name, where))


def _actions(space: Space, values: Any, count: int, where: str) -> Any:
    return _parts(space, values, count, "actions", where, lambda box, numbers: box.from_env(numbers.astype(np.float64)))
