"""rlrun's own data sets: folders of Parquet files, each of which says by itself what its rows are.

Columns are called by the path of their field: obs/observation, action, reward, terminated, truncated, valid, log_prob;
and episode, agent, policy and whole say which trajectory a row belongs to. A field with a shape is a column of fixed
bytes, whose shape and dtype stand in the file's metadata under "rlrun", together with the environment's spec. Rows of a
trajectory are neighbours, and a row group holds whole trajectories, so that it can be read by itself. Images and other
whole numbers are compressed with zstd; floats, which hardly compress, are not. dataset.json lists the files with their
sha256 sums.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rlrun.core.batch import Field, RowSpec
from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import UserError
from rlrun.core.spec_json import field_from_json, field_to_json, spec_from_json, spec_to_json
from rlrun.datasets.trajectories import DataFacts, Trajectory, row_fields

FORMAT = 1
KEY = b"rlrun"
LIST = "dataset.json"
ENDING = ".parquet"
ROWS = ("obs", "action", "reward", "terminated", "truncated", "valid")  # fields of every trajectory
TRAJECTORY = ("episode", "agent", "policy", "whole")  # columns that say which trajectory a row belongs to
GROUP_ROWS = 50_000  # rows of a row group, unless they are large
GROUP_BYTES = 32 << 20
FILE_BYTES = 256 << 20  # bytes of rows, before compression, after which a file is finished
FILE_SEC = 300.0  # seconds after which rows are in a finished file, so that a process that is killed loses little
COMPRESSED = (np.uint8, np.int8, np.int16, np.int32, np.int64)

Path_ = tuple[str, ...]


def flat_fields(spec: RowSpec, path: Path_ = ()) -> Iterator[tuple[Path_, Field]]:
    """Yields (path, field) of every field."""
    for name, part in spec.items():
        if isinstance(part, Field):
            yield (*path, name), part
        else:
            yield from flat_fields(part, (*path, name))


def column_name(path: Path_) -> str:
    return "/".join(path)


def numpy_dtype(field: Field) -> np.dtype:
    return torch.empty((), dtype=field.dtype).numpy().dtype


def _arrow(field: Field) -> pa.DataType:
    """The type of a field's column: numbers where the field is one number, otherwise fixed bytes."""
    if field.shape:
        return pa.binary(math.prod(field.shape) * field.dtype.itemsize)
    return pa.bool_() if field.dtype == torch.bool else pa.from_numpy_dtype(numpy_dtype(field))


def facts_to_json(facts: DataFacts) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "spec": spec_to_json(facts.spec),
        "record": [[list(path), field_to_json(field)] for path, field in flat_fields(facts.record)],
        "policies": list(facts.policies),
        "random_return": facts.random_return,
        "expert_return": facts.expert_return,
        "made_by": facts.made_by,
        "notes": list(facts.notes),
    }


def facts_from_json(value: Any) -> DataFacts:
    """Raises ValueError if this is not what facts_to_json() returned."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"it is not a description of format {FORMAT}")
    try:
        record: dict[str, Any] = {}
        for path, field in value["record"]:
            place = record
            for name in path[:-1]:
                place = place.setdefault(str(name), {})
            place[str(path[-1])] = field_from_json(field)
        random_return, expert_return = (
            None if value[name] is None else float(value[name]) for name in ("random_return", "expert_return")
        )
        return DataFacts(
            spec=spec_from_json(value["spec"]),
            record=record,
            policies=tuple(map(str, value["policies"])),
            random_return=random_return,
            expert_return=expert_return,
            made_by=str(value["made_by"]),
            notes=tuple(map(str, value["notes"])),
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"its description is not complete: {error!r}") from None


class Block(NamedTuple):
    """The rows of consecutive trajectories, one behind the other."""

    rows: dict[str, Any]  # by field, as in row_fields(): arrays [N, ...], nested dictionaries for nested fields
    begins: np.ndarray  # [E] int64: the first row of each trajectory
    agent: np.ndarray  # [E]
    policy: np.ndarray  # [E]
    whole: np.ndarray  # [E] bool

    @property
    def ends(self) -> np.ndarray:
        """[E]: one behind the last row of each trajectory."""
        return np.append(self.begins[1:], len(self.rows["reward"]))

    def trajectory(self, number: int) -> Trajectory:
        part = slice(int(self.begins[number]), int(self.ends[number]))

        def cut(tree: Any) -> Any:
            return {name: cut(value) for name, value in tree.items()} if isinstance(tree, dict) else tree[part]

        rows = cut(self.rows)
        return Trajectory(
            **{name: rows[name] for name in ROWS},
            record={name: value for name, value in rows.items() if name not in ROWS},
            agent=int(self.agent[number]),
            policy=int(self.policy[number]),
            whole=bool(self.whole[number]),
        )


def block_of(trajectories: Sequence[Trajectory]) -> Block:
    """Puts trajectories one behind the other."""

    def joined(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], Mapping):
            return {name: joined([part[name] for part in parts]) for name in parts[0]}
        return np.concatenate(parts)

    rows = {
        **{name: joined([getattr(one, name) for one in trajectories]) for name in ROWS},
        **joined([one.record for one in trajectories]),
    }
    lengths = np.array([len(one) for one in trajectories])
    return Block(
        rows,
        np.concatenate(([0], lengths.cumsum()[:-1])),
        np.array([one.agent for one in trajectories]),
        np.array([one.policy for one in trajectories]),
        np.array([one.whole for one in trajectories]),
    )


# -- writing -----------------------------------------------------------------------------------------------------------


class Writer:
    """Writes trajectories into a folder, as files called part-<session>-<number>.parquet.

    A file that is not finished has another name, which nobody reads. Several writers may write into one folder."""

    def __init__(self, folder: Path, facts: DataFacts, group_rows: int = GROUP_ROWS):
        """Raises UserError if the folder cannot be made, or holds something else than data of the same spec."""
        self.folder, self.facts, self.group_rows = folder, facts, group_rows
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [path.name for path in folder.iterdir() if not _own(path.name)]
        except OSError as error:
            raise UserError(f"{folder}: data cannot be written there: {error.strerror}") from None
        if others and not (folder / LIST).is_file():
            raise UserError(
                f"{folder} holds other files, such as {others[0]}; data are written into a folder of their own"
            )
        if (folder / LIST).is_file():
            check_same(ParquetSource(folder).facts, facts, str(folder))
        self.fields = list(flat_fields(row_fields(facts)))
        row = sum(math.prod(field.shape) * field.dtype.itemsize for _, field in self.fields)
        self.group_rows = max(1, min(group_rows, GROUP_BYTES // max(1, row)))
        self.row_bytes, self.waiting, self.waiting_rows = row, [], 0  # type: ignore[var-annotated]
        self.session, self.number, self.episode = f"{time.time_ns():x}{os.getpid():x}", 0, 0
        self.file: pq.ParquetWriter | None = None
        self.since = 0.0  # when the first row was written that is in no finished file
        self.rows = self.steps = self.episodes = 0  # all that was handed to write()
        types = [("episode", pa.int64()), ("agent", pa.int32()), ("policy", pa.int32()), ("whole", pa.bool_())]
        types += [(column_name(path), _arrow(field)) for path, field in self.fields]
        if len(dict(types)) < len(types):
            raise UserError("two fields of the rows have the same name, such as parts of an observation with a / in it")
        self.schema = pa.schema(types, metadata={KEY: json.dumps(facts_to_json(facts)).encode()})

    def write(self, trajectory: Trajectory) -> None:
        """Adds a trajectory. Raises UserError when the disk is full."""
        if self.file is None and not self.waiting:
            self.since = time.monotonic()
        self.waiting.append(trajectory)
        self.waiting_rows += len(trajectory)
        self.rows += len(trajectory)
        self.steps += trajectory.steps
        self.episodes += 1
        if self.waiting_rows >= self.group_rows or self._late():
            self._write_group()

    def _late(self) -> bool:
        """Whether rows have waited so long that they must not be lost any more."""
        return time.monotonic() - self.since >= FILE_SEC

    def _write_group(self) -> None:
        if not self.waiting:
            return
        block, self.waiting, self.waiting_rows = block_of(self.waiting), [], 0
        lengths = block.ends - block.begins
        numbers = self.episode + np.arange(len(lengths))
        self.episode += len(lengths)
        arrays = [
            pa.array(np.repeat(numbers, lengths), pa.int64()),
            pa.array(np.repeat(block.agent, lengths), pa.int32()),
            pa.array(np.repeat(block.policy, lengths), pa.int32()),
            pa.array(np.repeat(block.whole, lengths), pa.bool_()),
        ]
        for path, field in self.fields:
            arrays.append(_column(_at(block.rows, path), field))
        try:
            if self.file is None:
                self._open()
            assert self.file is not None
            self.file.write_table(pa.Table.from_arrays(arrays, schema=self.schema), row_group_size=len(arrays[0]))
            self.filled += len(arrays[0]) * self.row_bytes
            if self.filled >= FILE_BYTES or self._late():
                self._finish()
        except OSError as error:
            raise UserError(f"{self.folder}: data cannot be written: {error.strerror or error}") from None

    def _open(self) -> None:
        self.path = self.folder / f"part-{self.session}-{self.number:05d}{ENDING}"
        self.number += 1
        self.filled = 0
        compressed = {
            column_name(path): "zstd" if numpy_dtype(field) in COMPRESSED else "none" for path, field in self.fields
        }
        self.file = pq.ParquetWriter(
            self.unfinished(self.path),
            self.schema,
            compression={**compressed, **dict.fromkeys(TRAJECTORY, "zstd")},
            compression_level={name: 1 for name, kind in compressed.items() if kind == "zstd"} or None,
            use_dictionary=False,
            write_page_checksum=True,
            write_statistics=False,
        )

    @staticmethod
    def unfinished(path: Path) -> Path:
        return path.with_name(f".{path.name}.unfinished")

    def _finish(self) -> None:
        """Ends the open file, gives it its name and lists it."""
        if self.file is None:
            return
        file, self.file = self.file, None
        file.close()
        hidden = self.unfinished(self.path)
        entry = describe_file(hidden)
        with open(hidden, "rb") as again:
            os.fsync(again.fileno())
        os.replace(hidden, self.path)
        add_to_list(self.folder, self.facts, {self.path.name: entry})

    def close(self) -> None:
        """Writes what is left. Raises UserError when the disk is full."""
        self._write_group()
        try:
            self._finish()
        except OSError as error:
            raise UserError(f"{self.folder}: data cannot be written: {error.strerror or error}") from None


def _own(name: str) -> bool:
    return name == LIST or name.startswith(".") or name.endswith(ENDING)


def _at(rows: Mapping[str, Any], path: Path_) -> np.ndarray:
    value: Any = rows
    for name in path:
        value = value[name]
    return value


def _column(values: np.ndarray, field: Field) -> pa.Array:
    """Rows [N, *shape] as a column. Raises ValueError if they have another shape."""
    if values.shape[1:] != field.shape:
        raise ValueError(f"rows of shape {values.shape[1:]} in place of {field.shape}")
    whole = np.ascontiguousarray(values, dtype=numpy_dtype(field))
    if not field.shape:
        return pa.array(whole)
    kind = _arrow(field)
    return pa.FixedSizeBinaryArray.from_buffers(
        kind, len(whole), [None, pa.py_buffer(whole.reshape(-1).view(np.uint8))]
    )


def describe_file(path: Path) -> dict[str, Any]:
    """What dataset.json says about a finished file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": path.stat().st_size, "rows": pq.read_metadata(path).num_rows}


def add_to_list(folder: Path, facts: DataFacts, files: Mapping[str, Any]) -> None:
    """Adds files to a folder's dataset.json. Other processes may do so at the same time."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = {"facts": facts_to_json(facts), "files": {}}
        with contextlib.suppress(FileNotFoundError):
            listed = _read_list(folder)
        listed["files"] |= dict(files)
        write_atomically(folder / LIST, json.dumps(listed, indent=1) + "\n")


def set_references(folder: Path, random_return: float | None, expert_return: float | None) -> None:
    """Stores the two mean returns from which normalised scores are computed."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = _read_list(folder)
        listed["facts"] |= {"random_return": random_return, "expert_return": expert_return}
        write_atomically(folder / LIST, json.dumps(listed, indent=1) + "\n")


def _read_list(folder: Path) -> dict[str, Any]:
    """Raises UserError if dataset.json is damaged, and FileNotFoundError if there is none."""
    try:
        listed = json.loads((folder / LIST).read_text())
        facts_from_json(listed["facts"])
        if not isinstance(listed["files"], dict) or not all(isinstance(one, dict) for one in listed["files"].values()):
            raise ValueError("it lists no files")
        return listed
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / LIST} is damaged: {error}") from None


# -- reading -----------------------------------------------------------------------------------------------------------


class ParquetSource:
    """A folder of rlrun's Parquet files, or one of its files. A piece is a row group."""

    def __init__(self, path: Path):
        """Raises UserError for a folder or file that is not such data, is damaged, or whose files differ in what they
        hold."""
        self.path, self.name = path, str(path)
        files = sorted(file for file in path.glob(f"*{ENDING}") if file.is_file()) if path.is_dir() else [path]
        if not files:
            raise UserError(f"{path} holds no finished data: there is no file *{ENDING} in it")
        self.groups: list[tuple[Path, int]] = []
        self.rows_of: list[int] = []  # rows of each piece
        first: DataFacts | None = None
        names: list[str] = []  # policies of all files
        self.numbers: dict[Path, np.ndarray] = {}  # for each file, where in `names` its policies are
        for file in files:
            facts, rows = _open_file(file)
            names += [name for name in facts.policies if name not in names]
            self.numbers[file] = np.array([names.index(name) for name in facts.policies], dtype=np.int32)
            if first is None:
                first = facts
            check_same(first, facts, str(file))
            self.groups += [(file, number) for number in range(len(rows))]
            self.rows_of += rows
        assert first is not None
        self.facts = replace(first, policies=tuple(names))
        self.files = files
        self.listed: dict[str, Any] = {}
        if path.is_dir() and (path / LIST).is_file():
            listed = _read_list(path)
            self.listed = listed["files"]
            told = facts_from_json(listed["facts"])
            self.facts = replace(self.facts, random_return=told.random_return, expert_return=told.expert_return)
            missing = sorted(set(self.listed) - {file.name for file in files})
            if missing:
                raise UserError(f"{path}: {missing[0]} is listed in {LIST} and missing")
            self._check_sizes()
        if not self.groups:
            raise UserError(f"{path} holds no rows")
        self.fields = list(flat_fields(row_fields(self.facts)))

    def _check_sizes(self) -> None:
        for file in self.files:
            wanted = self.listed.get(file.name, {}).get("bytes")
            if wanted is not None and file.stat().st_size != wanted:
                raise UserError(f"{file} is damaged: it has {file.stat().st_size} bytes, and {LIST} says {wanted}")

    def check_hashes(self) -> int:
        """Compares the files with their sha256 sums. Returns how many have one. Raises UserError for one that
        differs."""
        for file in self.files:
            wanted = self.listed.get(file.name, {}).get("sha256")
            if wanted is not None and describe_file(file)["sha256"] != wanted:
                raise UserError(f"{file} is damaged: its sha256 sum is not the one in {LIST}")
        return len(self.listed)

    @property
    def most_rows(self) -> int:
        return sum(self.rows_of)

    def pieces(self) -> int:
        return len(self.groups)

    def block(self, piece: int) -> Block:
        """All rows of a piece. Raises UserError that names the file, the row group and the reason if it is damaged."""
        file, group = self.groups[piece]
        try:
            with pq.ParquetFile(file, page_checksum_verification=True, memory_map=True) as opened:
                table = opened.read_row_group(group, use_threads=False)
            return self._block(table, self.numbers[file])
        except (pa.ArrowException, OSError, ValueError, KeyError, IndexError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{file} is damaged in row group {group}: {reason}") from None

    def _block(self, table: pa.Table, numbers: np.ndarray) -> Block:
        episode = _values(table.column("episode"), Field((), torch.int64))
        changes = np.flatnonzero(np.diff(episode)) + 1
        begins = np.concatenate(([0], changes)) if len(episode) else np.zeros(0, dtype=np.int64)
        rows: dict[str, Any] = {}
        for path, field in self.fields:
            place = rows
            for name in path[:-1]:
                place = place.setdefault(name, {})
            place[path[-1]] = _values(table.column(column_name(path)), field)
        last = np.append(begins[1:], len(episode)) - 1
        if len(episode) and rows["valid"][last].any():
            raise ValueError("a trajectory has no end")
        agent, policy = (_values(table.column(name), Field((), torch.int32))[begins] for name in ("agent", "policy"))
        if len(numbers):
            policy = numbers[policy]
        return Block(rows, begins, agent, policy, _values(table.column("whole"), Field((), torch.bool))[begins])

    def read(self, piece: int) -> Iterator[Trajectory]:
        block = self.block(piece)
        for number in range(len(block.begins)):
            yield block.trajectory(number)


def _values(column: pa.ChunkedArray, field: Field) -> np.ndarray:
    """A column as rows [N, *shape]. Raises ValueError if it is of another type or has missing values."""
    kind = _arrow(field)
    if column.type != kind:
        raise ValueError(f"a column holds {column.type} in place of {kind}")
    if column.null_count:
        raise ValueError("a column has missing values")
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], kind)
    if not field.shape:
        return array.to_numpy(zero_copy_only=False)
    buffer = array.buffers()[1]
    width = kind.byte_width
    flat = np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)
    return flat.view(numpy_dtype(field)).reshape(len(array), *field.shape)


def _open_file(path: Path) -> tuple[DataFacts, list[int]]:
    """Returns what a file says about itself and the rows of each row group. Raises UserError for anything else than
    such a file."""
    try:
        with pq.ParquetFile(path) as opened:
            told, meta = opened.schema_arrow.metadata or {}, opened.metadata
            names = set(opened.schema_arrow.names)
        if KEY not in told:
            raise ValueError("rlrun did not write it")
        facts = facts_from_json(json.loads(told[KEY]))
        missing = {column_name(where) for where, _ in flat_fields(row_fields(facts))} | set(TRAJECTORY)
        if missing - names:
            raise ValueError(f"it has no column {min(missing - names)}")
        return facts, [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
    except FileNotFoundError:
        raise UserError(f"there is no file or folder {path}") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is damaged or holds no data of rlrun: {reason}") from None


def is_own(path: Path) -> bool:
    """Whether a file, or a folder with its first Parquet file, was written by rlrun."""
    file = min(path.glob(f"*{ENDING}"), default=None) if path.is_dir() else path
    try:
        with pq.ParquetFile(file) as opened:
            return KEY in (opened.schema_arrow.metadata or {})
    except (pa.ArrowException, OSError, TypeError):
        # A damaged file is reported by the one who reads it.
        return path.is_dir() and (path / LIST).is_file()


def unreadable(path: Path) -> str | None:
    """What is wrong with the first Parquet file of a path, if nobody can read it; otherwise None."""
    file = min(path.glob(f"*{ENDING}"), default=None) if path.is_dir() else path if path.suffix == ENDING else None
    if file is None:
        return None
    try:
        pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        return f"{file} is damaged, or is no Parquet file: {str(error).splitlines()[0]}"
    return None


def check_same(one: DataFacts, other: DataFacts, name: str) -> None:
    """Raises UserError if two sets hold different rows. name: that of the other one."""
    mine, theirs = row_fields(one), row_fields(other)
    if mine != theirs or one.spec.action != other.spec.action or one.spec.stack != other.spec.stack:
        raise UserError(f"{name} holds other rows: {difference(one, other)}")


def difference(one: DataFacts, other: DataFacts) -> str:
    """The first difference between the rows of two sets, in words."""
    a, b = one.spec, other.spec
    if a.obs_rows["observation"] != b.obs_rows["observation"]:
        return f"observations {b.observation}, where {one.spec.name} has {a.observation}"
    if a.action != b.action:
        bounds = " with other bounds" if str(a.action) == str(b.action) else ""
        return f"actions {b.action}, where {one.spec.name} has {a.action}{bounds}"
    mine, theirs = dict(flat_fields(row_fields(one))), dict(flat_fields(row_fields(other)))
    for path in [*mine, *theirs]:
        if mine.get(path) != theirs.get(path):
            return f"the field {column_name(path)} is {theirs.get(path)}, where it is {mine.get(path)} in the first"
    return f"stacks of {b.stack} frames, where {one.spec.name} has {a.stack}"
