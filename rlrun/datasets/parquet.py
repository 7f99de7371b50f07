"""rlrun's own data sets: folders of Parquet files, each of which says by itself what its rows are.

Columns are called by the path of their field: obs/observation, action, reward, terminated, truncated, valid, log_prob;
and episode, agent, policy and whole say which trajectory a row belongs to. A field with a shape is a column of fixed
bytes, whose shape and dtype stand in the file's metadata under "rlrun", together with the environment's spec. Rows of a
trajectory are neighbours, and a row group holds whole trajectories, so that it can be read by itself. Images and other
whole numbers are compressed with zstd; floats, which hardly compress, are not. dataset.json lists the files with their
sha256 sums.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rlrun.core.batch import Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.spec_json import field_from_json, field_to_json, spec_from_json, spec_to_json
from rlrun.core.specs import Discrete, EnvSpec, MultiDiscrete, Nested, Space, alike
from rlrun.datasets.trajectories import DataFacts, Trajectory, row_fields

FORMAT = 1
KEY = b"rlrun"
LIST = "dataset.json"
ENDING = ".parquet"
LARGEST = 1 << 30  # bytes of a row group in memory; rlrun's have 32 MB, or one trajectory
RATIO = 32  # a larger one must be no more than so many times as large as in its file, where equal rows take no room
ROWS = ("obs", "action", "reward", "terminated", "truncated", "valid")  # fields of every trajectory
TRAJECTORY = ("episode", "agent", "policy", "whole")  # columns that say which trajectory a row belongs to

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


def arrow_type(field: Field) -> pa.DataType:
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
        "env": facts.env,
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
            env=env if isinstance(env := value.get("env"), dict) else None,
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


def describe_file(path: Path) -> dict[str, Any]:
    """What dataset.json says about a finished file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": path.stat().st_size, "rows": pq.read_metadata(path).num_rows}


def read_list(folder: Path) -> dict[str, Any]:
    """Raises UserError if dataset.json is damaged, and FileNotFoundError if there is none."""
    try:
        listed = json.loads((folder / LIST).read_text())
        facts_from_json(listed["facts"])
        if not isinstance(listed["files"], dict) or not all(isinstance(one, dict) for one in listed["files"].values()):
            raise ValueError("it lists no files")
        return listed
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / LIST} is damaged: {error}") from None


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
            if facts.env != first.env:
                first = replace(first, env=None)
            self.groups += [(file, number) for number in range(len(rows))]
            self.rows_of += rows
        assert first is not None
        self.facts = replace(first, policies=tuple(names))
        self.files = files
        self.listed: dict[str, Any] = {}
        if path.is_dir() and (path / LIST).is_file():
            listed = read_list(path)
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
        compared = 0
        for file in self.files:
            wanted = self.listed.get(file.name, {}).get("sha256")
            if wanted is None:
                continue
            if describe_file(file)["sha256"] != wanted:
                raise UserError(f"{file} is damaged: its sha256 sum is not the one in {LIST}")
            compared += 1
        return compared

    @property
    def most_rows(self) -> int:
        return sum(self.rows_of)

    @property
    def identity(self) -> list[str]:
        """The names and row groups of its files: no two files that were recorded have the same name."""
        pairs = zip(self.groups, self.rows_of, strict=True)
        return [f"{file.name} {group} {rows}" for (file, group), rows in pairs]

    def pieces(self) -> int:
        return len(self.groups)

    def block(self, piece: int) -> Block:
        """All rows of a piece. Raises UserError that names the file, the row group and the reason if it is damaged."""
        file, group = self.groups[piece]
        try:
            with pq.ParquetFile(file, page_checksum_verification=True, memory_map=True) as opened:
                self._check_group(file, group, opened)
                names = [column_name(path) for path, _ in self.fields]
                table = opened.read_row_group(group, [*names, *TRAJECTORY], use_threads=False)
            return self._block(table, self.numbers[file])
        except (pa.ArrowException, OSError, ValueError, KeyError, IndexError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{file} is damaged in row group {group}: {reason}") from None

    def _check_group(self, file: Path, group: int, opened: pq.ParquetFile) -> None:
        """Raises UserError for a row group that would take much more memory than its file seems to say: Parquet writes
        a row that is repeated a million times in a few bytes. ValueError if a column is of another type, of which the
        size is unknown."""
        meta, schema = opened.metadata.row_group(group), opened.schema_arrow
        columns = [meta.column(number) for number in range(meta.num_columns)]
        width = 3 * 8 + 1  # of episode, agent, policy and whole
        for path, field in self.fields:
            kind = schema.field(column_name(path)).type
            if kind != arrow_type(field):
                raise ValueError(f"a column holds {kind} in place of {arrow_type(field)}")
            width += math.prod(field.shape) * field.dtype.itemsize
        rows = max(meta.num_rows, *(column.num_values for column in columns))
        needed = max(rows * width, meta.total_byte_size, sum(column.total_uncompressed_size for column in columns))
        if needed > max(LARGEST, RATIO * file.stat().st_size):
            raise UserError(
                f"{file}: row group {group} would take {needed:,} bytes of memory, and the file has"
                f" {file.stat().st_size:,}: write it again in smaller row groups"
            )

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
        check_numbers(rows, self.facts.spec)
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
    kind = arrow_type(field)
    if column.type != kind:
        raise ValueError(f"a column holds {column.type} in place of {kind}")
    if column.null_count:
        raise ValueError("a column has missing values")
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], kind)
    if not len(array):
        return np.zeros((0, *field.shape), numpy_dtype(field))
    # PyArrow's own to_numpy() would import pandas, which takes longer than reading half a million rows.
    buffer = array.buffers()[1]
    if kind == pa.bool_():  # eight of them are a byte
        bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little", count=array.offset + len(array))
        return bits[array.offset :].view(np.bool_)
    width = kind.byte_width
    flat = np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)
    return flat.view(numpy_dtype(field)).reshape(len(array), *field.shape)


def check_numbers(rows: Mapping[str, Any], spec: EnvSpec) -> None:
    """Raises ValueError for rows that nobody could learn from: numbers that are not finite, and choices that the space
    does not have, which would be indices behind the end of a network's arrays. Dead rows hold no decision, and the
    observation behind a live row is learnt from even where it is terminal: 0 times NaN is NaN."""
    valid = rows["valid"]
    seen = valid.copy()
    seen[1:] |= valid[:-1]

    def check(tree: Any, used: np.ndarray, name: str) -> None:
        if isinstance(tree, Mapping):
            for part, inner in tree.items():
                check(inner, used, f"{name}/{part}")
        elif tree.dtype.kind == "f" and not np.isfinite(tree).all() and not np.isfinite(tree[used]).all():
            raise ValueError(f"{name} holds a number that is not finite")

    for name, used in (("obs", seen), ("action", valid), ("reward", valid)):
        check(rows[name], used, name)
    _check_choices(rows["action"], valid, spec.action, "action")
    if spec.stack == 1:  # stacks are of images or numbers; their rows have another shape than the space
        _check_choices(rows["obs"]["observation"], seen, spec.observation, "obs/observation")


def _check_choices(values: Any, used: np.ndarray, space: Space, name: str) -> None:
    if isinstance(space, Nested):
        for part, inner in space.spaces:
            _check_choices(values[part], used, inner, f"{name}/{part}")
    elif isinstance(space, Discrete | MultiDiscrete):
        many = space.n if isinstance(space, Discrete) else np.reshape(space.sizes, space.shape)
        if ((values[used] < 0) | (values[used] >= many)).any():
            raise ValueError(f"{name} holds a choice that {space} does not have")


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
    mine, theirs, a, b = row_fields(one), row_fields(other), one.spec, other.spec
    # Fields do not tell how many choices there are.
    seen = all(alike(space, b.obs[name]) for name, space in a.obs.items() if name in b.obs)
    if mine != theirs or not seen or a.action != b.action or a.stack != b.stack:
        raise UserError(f"{name} holds other rows: {difference(one, other)}")


def difference(one: DataFacts, other: DataFacts) -> str:
    """The first difference between the rows of two sets, in words."""
    a, b = one.spec, other.spec
    for name, space in a.obs.items():
        if name in b.obs and not alike(space, b.obs[name]):
            said = "observations" if name == "observation" else name
            starts = " with other first numbers" if str(space) == str(b.obs[name]) else ""
            return f"{said} {b.obs[name]}, where {a.name} has {space}{starts}"
    if a.action != b.action:
        bounds = " with other bounds" if str(a.action) == str(b.action) else ""
        return f"actions {b.action}, where {a.name} has {a.action}{bounds}"
    mine, theirs = dict(flat_fields(row_fields(one))), dict(flat_fields(row_fields(other)))
    for path in [*mine, *theirs]:
        if mine.get(path) != theirs.get(path):
            return f"the field {column_name(path)} is {theirs.get(path)}, where it is {mine.get(path)} in the first"
    return f"stacks of {b.stack} frames, where {a.name} has {a.stack}"
