"""Writes rlrun's own data sets, whose files parquet.py describes and reads."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlrun.core.batch import Field
from rlrun.core.checkpoint import write_atomically
from rlrun.core.errors import RunFailed, UserError
from rlrun.datasets.parquet import (
    ENDING,
    KEY,
    LIST,
    TRAJECTORY,
    ParquetSource,
    Path_,
    arrow_type,
    block_of,
    check_same,
    column_name,
    describe_file,
    facts_to_json,
    flat_fields,
    is_own,
    numpy_dtype,
    read_list,
)
from rlrun.datasets.trajectories import DataFacts, Trajectory, row_fields
from rlrun.datasets.unfinished import HIDDEN, begin, remove_left

GROUP_ROWS = 50_000  # rows of a row group, unless they are large
GROUP_BYTES = 32 << 20
FILE_BYTES = 256 << 20  # bytes of rows, before compression, after which a file is finished
FILE_SEC = 300.0  # seconds after which rows are in a finished file, so that a process that is killed loses little
FULL = (errno.ENOSPC, errno.EDQUOT)
COMPRESSED = (np.uint8, np.int8, np.int16, np.int32, np.int64)


class Writer:
    """Writes trajectories into a folder, as files called part-<session>-<number>.parquet.

    A file that is not finished has another name, which nobody reads. Several writers may write into one folder, and
    each removes what writers that were killed have left there. When the disk is full, the unfinished file is removed,
    and nothing more is written."""

    def __init__(self, folder: Path, facts: DataFacts, group_rows: int = GROUP_ROWS):
        """Raises UserError if the folder cannot be made, or holds something else than data of the same spec."""
        self.folder, self.facts, self.group_rows = folder, facts, group_rows
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [path.name for path in folder.iterdir() if not _own(path.name) or _foreign(path)]
        except OSError as error:
            raise UserError(f"{folder}: data cannot be written there: {error.strerror}") from None
        if others and not (folder / LIST).is_file():
            raise UserError(
                f"{folder} holds other files, such as {others[0]}; data are written into a folder of their own"
            )
        if (folder / LIST).is_file():
            check_same(facts, ParquetSource(folder).facts, str(folder))
        self.fields = list(flat_fields(row_fields(facts)))
        row = sum(math.prod(field.shape) * field.dtype.itemsize for _, field in self.fields)
        self.group_rows = max(1, min(group_rows, GROUP_BYTES // max(1, row)))
        self.row_bytes, self.waiting, self.waiting_rows = row, [], 0  # type: ignore[var-annotated]
        self.session, self.number, self.episode = f"{time.time_ns():x}{os.getpid():x}", 0, 0
        self.file: pq.ParquetWriter | None = None
        self.held: int | None = None  # the descriptor that says that this file is being written
        self.path: Path  # the name of the last file, once it is finished
        self.since = 0.0  # when the first row was written that is in no finished file
        self.rows = self.steps = self.episodes = 0  # all that was handed to write()
        self.finished = 0  # of these rows, those in finished files
        self.failed = False
        types = [("episode", pa.int64()), ("agent", pa.int32()), ("policy", pa.int32()), ("whole", pa.bool_())]
        types += [(column_name(path), arrow_type(field)) for path, field in self.fields]
        if len(dict(types)) < len(types):
            raise UserError("two fields of the rows have the same name, such as parts of an observation with a / in it")
        self.schema = pa.schema(types, metadata={KEY: json.dumps(facts_to_json(facts)).encode()})

    def write(self, trajectory: Trajectory) -> None:
        """Adds a trajectory. Raises RunFailed when the disk is full."""
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
        with self._failing(len(arrays[0])):
            if self.file is None:
                self._open()
            assert self.file is not None
            self.file.write_table(pa.Table.from_arrays(arrays, schema=self.schema), row_group_size=len(arrays[0]))
            self.filled += len(arrays[0]) * self.row_bytes
        if self.filled >= FILE_BYTES or self._late():
            self._finish()

    @contextlib.contextmanager
    def _failing(self, rows: int) -> Iterator[None]:
        """Turns an OSError into RunFailed, after which this writer writes nothing more. rows: how many are written."""
        try:
            yield
        except OSError as error:
            self.failed = True
            free = shutil.disk_usage(self.folder).free
            if self.file is not None:
                with contextlib.suppress(OSError):
                    self.file.close()
                self.file.is_open = False  # or it would be closed again when it is forgotten
                self.file = None
            if self.number:
                self.unfinished(self.path).unlink(missing_ok=True)
            self._let_go()
            reason, lost = error.strerror or str(error), self.rows - self.finished
            if error.errno in FULL:
                need = f"{rows:,} rows take up to {rows * self.row_bytes / 1e6:,.2f} MB"
                reason = f"the disk is full: {need}, and {free / 1e6:,.2f} MB are free"
            left = f"; {lost:,} recorded rows are in no finished file and are lost" if lost else ""
            raise RunFailed(f"{self.folder}: data cannot be written, because {reason}{left}") from None

    def _open(self) -> None:
        self.path = self.folder / f"part-{self.session}-{self.number:05d}{ENDING}"
        self.number += 1
        self.filled = 0
        remove_left(self.folder)
        self.held = begin(self.unfinished(self.path))
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
        return path.with_name(f".{path.name}{HIDDEN}")

    def _let_go(self) -> None:
        if self.held is not None:
            os.close(self.held)
            self.held = None

    def _finish(self) -> None:
        """Ends the open file, gives it its name and lists it."""
        if self.file is None:
            return
        with self._failing(self.rows - self.finished):
            self.file.close()
            self.file = None
            hidden = self.unfinished(self.path)
            entry = describe_file(hidden)
            with open(hidden, "rb") as again:
                os.fsync(again.fileno())
            os.replace(hidden, self.path)
            self._let_go()
            self.finished = self.rows
            add_to_list(self.folder, self.facts, {self.path.name: entry})

    def close(self) -> None:
        """Writes what is left, unless writing has failed before. Raises RunFailed when the disk is full."""
        if not self.failed:
            self._write_group()
            self._finish()


def _own(name: str) -> bool:
    return name == LIST or name.startswith(".") or name.endswith(ENDING)


def _foreign(path: Path) -> bool:
    """Whether another program wrote this Parquet file. Beside files of rlrun, neither could be read any more."""
    return path.suffix == ENDING and not path.name.startswith(".") and not is_own(path)


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
    kind = arrow_type(field)
    return pa.FixedSizeBinaryArray.from_buffers(
        kind, len(whole), [None, pa.py_buffer(whole.reshape(-1).view(np.uint8))]
    )


def add_to_list(folder: Path, facts: DataFacts, files: Mapping[str, Any]) -> None:
    """Adds files to a folder's dataset.json. Other processes may do so at the same time."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = {"facts": facts_to_json(facts), "files": {}}
        with contextlib.suppress(FileNotFoundError):
            listed = read_list(folder)
        listed["files"] |= dict(files)
        write_atomically(folder / LIST, json.dumps(listed, indent=1) + "\n")


def set_references(folder: Path, random_return: float | None, expert_return: float | None) -> None:
    """Stores the two mean returns from which normalised scores are computed. Raises UserError if they are the same, or
    if the folder has no dataset.json to hold them."""
    if random_return is not None and random_return == expert_return:
        raise UserError(
            "random_return and expert_return must differ: normalised scores are divided by their difference"
        )
    if not (folder / LIST).is_file():
        raise UserError(f"{folder} has no {LIST}, in which random_return and expert_return are stored")
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        listed = read_list(folder)
        listed["facts"] |= {"random_return": random_return, "expert_return": expert_return}
        write_atomically(folder / LIST, json.dumps(listed, indent=1) + "\n")
