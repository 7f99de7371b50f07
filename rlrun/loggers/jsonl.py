"""progress.jsonl, the primary record of a run: one JSON object per line, written at once by the run's own thread."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlrun.core.checkpoint import write_atomically
from rlrun.core.outputs import tell
from rlrun.core.saved_files import read_rows

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WAITING = 100_000  # rows that may wait for space on a full disk; the oldest of more are lost
PART_BYTES = 1 << 20  # of progress.jsonl that are read at a time


class Moment(NamedTuple):
    """When the restored checkpoint was saved."""

    env_steps: int
    updates: int
    wall_sec: float


class Jsonl:
    def __init__(self, path: Path, resumed: Moment | None):
        """resumed: the moment from which the run goes on. Later rows are dropped, because the run logs them again."""
        self.cut = False  # whether rows were dropped
        # The rows of the moment's env steps, if others of as many env steps were dropped.
        self.again: list[dict[str, Any]] | None = None
        if resumed is not None and path.exists():
            self._cut(path, resumed)
        self.path, self.file = path, path.open("ab", buffering=0)
        self.waiting: deque[bytes] = deque(maxlen=WAITING)
        self.said = False

    def _cut(self, path: Path, resumed: Moment) -> None:
        """Removes the lines that are later than the moment. The file of a long run is large: it is read and written
        line by line, and stays as it is where there is no space for another one."""
        if all(kept and line.endswith(b"\n") for line, kept in self._judged(path, resumed)):
            return
        kept_lines = (line for line, kept in self._judged(path, resumed) if kept)
        write_atomically(path, (line.rstrip(b"\n") + b"\n" for line in kept_lines))
        self.cut = True

    def _judged(self, path: Path, resumed: Moment) -> Iterator[tuple[bytes, bool]]:
        """Yields each line, and whether it is not later than the moment. Env steps may stand still for many rows, as
        while an evolution strategy plays its first generation."""
        late, self.again = 0, None
        same: list[dict[str, Any]] = []
        with path.open("rb") as file:
            for line in file:
                row = _row(line.decode(errors="replace"))
                kept = row is not None and row["env_steps"] <= resumed.env_steps
                if row is not None and row["env_steps"] == resumed.env_steps:
                    # The first row after the save belongs to it: a checkpoint is saved before its row is logged.
                    late += row.get("time_sec", 0.0) > resumed.wall_sec
                    kept = row.get("updates", 0) <= resumed.updates and late <= 1
                    if kept:
                        same.append(row)
                    else:
                        self.again = same
                yield line, kept

    def log(self, row: dict[str, Any]) -> None:
        """Writes a row. Where the disk is full or does not answer, rows wait until they can be written."""
        self.waiting.append((json.dumps(row) + "\n").encode())
        try:
            self._write()
        except OSError as error:
            full = error.errno in FULL
            if not full:
                self._open_again()
            if not self.said:
                until = "for space" if full else "until they can be written"
                tell(f"rlrun: {self.path}: {error.strerror}; rows wait {until}", sys.stderr)
            self.said = True

    def _open_again(self) -> None:
        """Opens the file anew, behind its last whole row. A network drive that was away may not know the old one."""
        with contextlib.suppress(OSError):
            file = self.path.open("r+b", buffering=0)
            with contextlib.suppress(OSError):
                self.file.close()
            self.file = file
            end = file.seek(0, os.SEEK_END)
            last = max(0, end - PART_BYTES)
            file.seek(last)
            file.truncate(last + file.read(end - last).rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)

    def _write(self) -> None:
        """Writes all rows that wait. A row is written whole or not at all."""
        while self.waiting:
            line = self.waiting[0]
            if (written := self.file.write(line)) < len(line):
                self.file.truncate(self.file.tell() - written)
                raise OSError(errno.ENOSPC, "No space left on device")
            self.waiting.popleft()

    def close(self, status: str, summary: dict[str, Any]) -> None:
        try:
            self._write()
        except OSError as error:
            why = f"{len(self.waiting)} rows could not be written: {error.strerror}"
            tell(f"rlrun: {self.path}: {why}", sys.stderr)
        finally:
            self.file.close()


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
        return row if isinstance(row["env_steps"], int | float) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # the incomplete last line of a killed run


def read(path: Path) -> list[dict[str, Any]]:
    """All complete rows of a progress.jsonl. Raises UserError where rlrun cannot have written it."""
    return read_rows(path)


def rows_behind(path: Path, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (offset behind the row, row) of all complete rows from this offset on; none where there is no file."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        file.seek(offset)
        rest = b""
        while part := file.read(PART_BYTES):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                offset += len(line) + 1
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # a killed run may leave half a row
                if isinstance(row, dict) and "env_steps" in row:
                    yield offset, row
