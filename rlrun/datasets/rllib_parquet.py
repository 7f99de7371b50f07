"""RLlib's Parquet files (2.40 and later): a transition of one agent in every row, or a whole episode.

Ray Data writes arrays as Arrow tensors, or packed as in JSON. Nothing of Ray's is needed to read them. A folder holds
many small files, and an episode may go on from one to the next: files that share an episode are one piece. Episodes
(`output_write_episodes: true`) are MessagePack in a column `item`. Rows that are whole batches, which older versions
write with `output_config: {format: parquet}`, are read as lines of JSON are."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from rlrun.core.errors import UserError
from rlrun.core.specs import EnvSpec
from rlrun.datasets.foreign import LOOKED_AT, Chunk, Guess, chunk, facts_of
from rlrun.datasets.packed import Unreadable, message
from rlrun.datasets.rllib_json import in_order, unpack_all
from rlrun.datasets.stitcher import Stitcher
from rlrun.datasets.trajectories import DataFacts, Trajectory

NUMBERS = ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "dones", "action_logp", "action_prob")
READ = (*NUMBERS, "eps_id", "agent_id", "t", "type", "item")
TOGETHER = 8192  # rows that are looked at together
ITEM = "item"
TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
AGAIN = "write it again with output_write_episodes: false"


def is_rllib_parquet(path: str | Path) -> bool:
    """Whether the first Parquet file of a path has RLlib's columns. A file that cannot be opened is not one."""
    for file in _paths(path)[:1]:
        try:
            names = set(parquet.read_schema(file).names)
        except DAMAGE:
            return False
        return names == {ITEM} or {"obs", "actions", "rewards"} <= names
    return False


class RLlibParquet:
    """A Source of RLlib's Parquet files. Without a spec, the columns of all files are read once to find out what their
    spaces are."""

    def __init__(self, path: str | Path, spec: EnvSpec | None = None, actions_normalized: bool = True):
        """path: a file, or a folder of which all *.parquet files are read, in folders inside too. spec: that of env=.
        actions_normalized: whether bounded actions lie in [-1, 1] in the files, or in the env's own units.

        Raises UserError if there are no such files, if one is damaged, or if the spaces cannot be known."""
        self.name, self.normalized = str(path), actions_normalized
        files = _paths(path)
        if not files:
            raise UserError(f"{path} holds no *.parquet file")
        self._groups = _groups(files)
        self.identity = [f"{file.name} {file.stat().st_size}" for group in self._groups for file in group]
        guess = Guess(actions_normalized)
        for rows in itertools.chain.from_iterable(map(_chunks, files)):
            guess.see(rows)
            if spec is not None and guess.rows >= LOOKED_AT:
                break
        self.facts: DataFacts = facts_of(guess, spec, self.name)
        self._policies, self._count = guess.policies, guess.counting.found
        # Every decision has at most one dead row behind it. With a spec, only the first rows have been looked at.
        self.most_rows: int | None = 2 * guess.rows if spec is None else None

    def pieces(self) -> int:
        return len(self._groups)

    def read(self, piece: int) -> Iterator[Trajectory]:
        stitcher = Stitcher(self.facts, self._policies, self.normalized, self._count)
        for file in self._groups[piece]:
            for rows in _chunks(file):
                yield from stitcher.add(rows)
        yield from stitcher.finish()


def _paths(path: str | Path) -> list[Path]:
    place = Path(path).expanduser()
    if place.is_file():
        return [place] if place.suffix == ".parquet" else []
    return sorted(one for one in place.rglob("*.parquet") if one.is_file()) if place.is_dir() else []


def _groups(files: list[Path]) -> list[list[Path]]:
    """The files in groups that share no episode. Raises UserError if one cannot be opened."""
    group = {file: [file] for file in files}
    holder: dict[Any, Path] = {}  # of each episode, the first file that has it
    for file in files:
        for name in _episodes(file):
            other = holder.setdefault(name, file)
            if group[other] is not group[file]:
                group[other] += group[file]
                for moved in group[file]:
                    group[moved] = group[other]
    seen: dict[int, list[Path]] = {id(one): one for one in group.values()}
    return [sorted(one, key=in_order) for one in seen.values()]


def _episodes(file: Path) -> set[Any]:
    """The names of the episodes in a file; none where the file does not name them in a column."""
    try:
        table = parquet.ParquetFile(file)
        if "eps_id" not in table.schema_arrow.names or "type" in table.schema_arrow.names:
            return set()
        return set(table.read(["eps_id"]).column(0).unique().to_pylist()) - {None}
    except DAMAGE as error:
        raise _damaged(file, error) from None


def _damaged(where: str | Path, error: BaseException) -> UserError:
    return UserError(f"{where} cannot be read as Parquet: {' '.join(str(error).split()) or type(error).__name__}")


def _chunks(file: Path) -> Iterator[Chunk]:
    """Yields the rows of a file. Raises UserError that names the row group if one is damaged or foreign."""
    try:
        table = parquet.ParquetFile(file)
        schema = table.schema_arrow
        names = [name for name in schema.names if name in READ]
    except DAMAGE as error:
        raise _damaged(file, error) from None
    if ITEM not in names and not {"obs", "actions", "rewards"} <= set(names):
        has = ", ".join(schema.names[:8]) or "none"
        raise UserError(f"{file} is Parquet, but not RLlib's: its columns are {has}")
    for number in range(table.num_row_groups):
        where = f"{file}, row group {number}"
        first = 0
        for batch in _batches(table, number, names, where):
            place = f"{where}, rows {first} to {first + len(batch) - 1}"
            first += len(batch)
            if not len(batch):
                continue
            try:
                yield from _rows(batch, place)
            except DAMAGE as error:
                raise UserError(f"{place}: {' '.join(str(error).split()) or type(error).__name__}") from None


def _batches(table: parquet.ParquetFile, number: int, names: list[str], where: str) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a row group. Raises UserError if it is damaged."""
    try:
        yield from table.iter_batches(TOGETHER, row_groups=[number], columns=names)
    except DAMAGE as error:
        raise _damaged(where, error) from None


def _rows(batch: pa.RecordBatch, where: str) -> Iterator[Chunk]:
    if ITEM in batch.schema.names:
        for i, value in enumerate(batch.column(batch.schema.names.index(ITEM)).to_pylist()):
            yield _episode(value, f"{where}, episode {i}")
    elif "type" in batch.schema.names:
        for i, columns in enumerate(batch.to_pylist()):
            present = {name: value for name, value in columns.items() if value is not None}
            yield chunk(present, f"{where}, batch {i}")
    else:
        yield chunk(_columns(batch, where), where)


def _columns(batch: pa.RecordBatch, where: str) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for schema, values in zip(batch.schema, batch.columns, strict=True):
        if schema.name == "eps_id" and values.null_count < len(values):
            columns["eps_id"] = values.to_pylist()
        elif schema.name == "agent_id" and len(values.unique()) > 1:
            raise UserError(f"{where} holds rows of several agents, which RLlib cannot read back itself")
        elif schema.name in (*NUMBERS, "t") and values.null_count < len(values):
            columns[schema.name] = _numbers(values, schema, where)
    return columns


def _numbers(values: pa.Array, schema: pa.Field, where: str) -> Any:
    """A column of numbers, tensors or packed arrays as an array [n, ...]."""
    name = schema.name
    if values.null_count:
        raise UserError(f"{where}: {name} is empty in {values.null_count} rows")
    shape = None
    if isinstance(values, pa.ExtensionArray):  # a process that has Ray has its types
        values = values.storage
    metadata = schema.metadata or {}
    extension = metadata.get(b"ARROW:extension:name", b"").decode("utf-8", "replace")
    if extension in TENSORS or isinstance(schema.type, pa.FixedShapeTensorType):
        text = metadata.get(b"ARROW:extension:metadata", b"null")
        shape = list(schema.type.shape) if isinstance(schema.type, pa.FixedShapeTensorType) else json.loads(text)
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise UserError(f"{where}: {name} is a tensor whose shape is {str(shape)[:40]!r}")
    if pa.types.is_struct(values.type) and {"data", "shape"} <= {one.name for one in values.type}:
        shapes = set(map(tuple, values.field("shape").to_pylist()))
        if len(shapes) != 1:
            raise UserError(f"{where}: {name} holds rows of different shapes")
        shape, values = list(shapes.pop()), values.field("data")
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_binary(values.type):
        return unpack_all(values.to_pylist(), name, where)
    made = _flat(values, name, where)
    if shape is not None:
        if math.prod(shape) * len(values) != made.size:
            raise UserError(f"{where}: {name} says that its rows have the shape {shape}, and they do not")
        made = made.reshape(len(values), *shape)
    return made


def _flat(values: pa.Array, name: str, where: str) -> np.ndarray:
    """Nested lists of equal lengths as an array [n, ...]."""
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = values.value_lengths().unique().to_pylist()
        if len(lengths) != 1 or values.null_count:
            raise UserError(f"{where}: {name} holds rows of different shapes")
        inside = _flat(values.flatten(), name, where)
        return inside.reshape(len(values), lengths[0], *inside.shape[1:])
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)) or values.null_count:
        raise UserError(f"{where}: {name} holds {kind} instead of numbers")
    return values.to_numpy(zero_copy_only=False)


def _episode(value: Any, where: str) -> Chunk:
    """The rows of an episode that RLlib packed as a whole."""
    if not isinstance(value, bytes):
        raise UserError(f"{where} is no MessagePack: {AGAIN}")
    try:
        state = message(value)
    except ValueError as error:
        raise UserError(f"{where} {error}") from None
    if not isinstance(state, dict) or not {"observations", "actions", "rewards"} <= set(state):
        raise UserError(f"{where} is MessagePack, but no episode of RLlib's")
    extra = state.get("extra_model_outputs") or {}
    obs, action, reward = (_buffer(state, name, where) for name in ("observations", "actions", "rewards"))
    count = len(reward)
    if not count or len(obs) != count + 1:
        raise UserError(f"{where} has {len(obs)} observations for {count} steps")
    begun = state.get("t_started")
    begun = begun if type(begun) is int else 0
    columns: dict[str, Any] = {
        "obs": obs[:-1],
        "new_obs": obs[1:],
        "actions": action,
        "rewards": reward,
        "terminateds": _last(count, state.get("is_terminated")),
        "truncateds": _last(count, state.get("is_truncated")),
        "eps_id": [str(state.get("id_"))] * count,
        "t": np.arange(begun, begun + count, dtype=np.float64),
    }
    if isinstance(extra, dict) and extra.get("action_logp") is not None:
        columns["action_logp"] = _buffer(extra, "action_logp", where)
    return chunk(columns, where)


def _last(count: int, flag: Any) -> np.ndarray:
    made = np.zeros(count, dtype=bool)
    made[-1] = flag is True
    return made


def _buffer(state: dict[str, Any], name: str, where: str) -> np.ndarray:
    """What one of RLlib's buffers holds, without what is in front of the episode's beginning."""
    found = state[name]
    values = found.get("data") if isinstance(found, dict) else found
    before = found.get("lookback", 0) if isinstance(found, dict) else 0
    if any(isinstance(one, Unreadable) for one in (values if isinstance(values, list) else [values])):
        raise UserError(f"{where}: {name} holds Python objects, and opening them would run code: {AGAIN}")
    try:
        made = values if isinstance(values, np.ndarray) else np.asarray(values)
    except ValueError:
        raise UserError(f"{where}: {name} holds rows of different shapes") from None
    if made.dtype.kind not in "biuf" or made.ndim == 0 or type(before) is not int or not 0 <= before <= len(made):
        raise UserError(f"{where}: {name} holds something else than numbers: {AGAIN}")
    return made[before:]
