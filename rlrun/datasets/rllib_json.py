"""RLlib's JSON files: a batch of transitions on every line, plain or packed, in *.json or inside *.zip.

RLlib 0.6 to 2.x writes them with `output: FOLDER`. Its newer Ray Data writes a transition on every line instead, and
that is read too. A worker's files follow each other, and an episode may go on from a line or file to the next. Files
name no spaces: they are env='s or, without env=, those that all rows together suggest."""

from __future__ import annotations

import glob
import io
import itertools
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from rlrun.core.errors import UserError
from rlrun.core.specs import EnvSpec
from rlrun.datasets.foreign import LOOKED_AT, Chunk, Guess, chunk, facts_of
from rlrun.datasets.packed import is_packed, unpack
from rlrun.datasets.stitcher import Stitcher
from rlrun.datasets.trajectories import DataFacts, Trajectory

ENDINGS = (".json", ".jsonl", ".zip")
LONGEST = 1 << 30  # bytes of a line; RLlib begins a new file after 64 MB
TOGETHER = 1024  # transitions on lines of their own that are looked at together
# output-2021-05-01_12-00-00_worker-3_17.json: the number of the worker and that of the file
WRITTEN = re.compile(r"(?P<kind>.*)worker-(?P<worker>\d+)_(?P<number>\d+)\.json")
DAMAGE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


class _File(NamedTuple):
    """A file of lines, which may be inside an archive."""

    path: Path
    member: str | None = None
    told: str = ""  # its size and, inside an archive, its checksum

    def __str__(self) -> str:
        return f"{self.path}" if self.member is None else f"{self.path}, {self.member}"

    @property
    def name(self) -> str:
        return self.path.name if self.member is None else self.member


def is_rllib_json(path: str | Path) -> bool:
    """Whether RLlib's reader would take the files of a path for its own: *.json or *.zip, without a look inside."""
    return bool(_paths(path))


class RLlibJson:
    """A Source of RLlib's JSON files. Without a spec, all files are read once to find out what their spaces are."""

    def __init__(self, path: str | Path, spec: EnvSpec | None = None, actions_normalized: bool = True):
        """path: a folder, a file, or a pattern such as out/*.json. spec: that of env=. actions_normalized: whether
        bounded actions lie in [-1, 1] in the files (RLlib's actions_in_input_normalized), or in the env's own units.

        Raises UserError if there are no such files, if one is damaged, or if the spaces cannot be known."""
        self.name, self.normalized = str(path), actions_normalized
        paths = _paths(path)
        if not paths:
            raise UserError(f"{path} holds no *.json or *.zip file of RLlib's")
        files, notes = _files(paths)
        self._chains = _chains(files)
        self.identity = [f"{file.name} {file.told}" for chain in self._chains for file in chain]
        guess = Guess(actions_normalized)
        for rows in itertools.chain.from_iterable(map(_chunks, files)):
            guess.see(rows)
            if spec is not None and not rows.policy and guess.rows >= LOOKED_AT:
                break  # a set with several policies is read whole, to learn their names
        self.facts: DataFacts = facts_of(guess, spec, self.name, notes)
        self._policies, self._count = guess.policies, guess.counting.found
        # Every decision has at most one dead row behind it. With a spec, only the first rows have been looked at.
        self.most_rows: int | None = 2 * guess.rows if spec is None else None

    def pieces(self) -> int:
        return len(self._chains)

    def read(self, piece: int) -> Iterator[Trajectory]:
        stitcher = Stitcher(self.facts, self._policies, self.normalized, self._count)
        for file in self._chains[piece]:
            for rows in _chunks(file):
                yield from stitcher.add(rows)
        yield from stitcher.finish()


def _paths(path: str | Path) -> list[Path]:
    text = str(path)
    place = Path(text).expanduser()
    if place.is_dir():
        return sorted(one for one in place.iterdir() if one.suffix in ENDINGS and one.is_file())
    if place.is_file():
        return [place] if place.suffix in ENDINGS else []
    found = (Path(one) for one in glob.glob(str(place), recursive=True))
    return sorted(one for one in found if one.suffix in ENDINGS and one.is_file())


def _files(paths: list[Path]) -> tuple[list[_File], list[str]]:
    """The files of lines among these paths, and sentences about what was left out."""
    found: list[_File] = []
    notes: list[str] = []
    for path in paths:
        if path.suffix != ".zip":
            found.append(_File(path, told=f"{path.stat().st_size}"))
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                inside = {one.filename: f"{one.file_size} {one.CRC:08x}" for one in archive.infolist()}
        except DAMAGE as error:
            raise UserError(f"{path} is no zip archive that can be read: {error}") from None
        members = sorted(one for one in inside if one.endswith((".json", ".jsonl")))
        if not members:
            raise UserError(f"{path} holds no *.json file")
        for member in members:
            if path.parent / Path(member).name in paths:
                notes.append(f"{member} in {path.name} is left out, because the folder holds the same file unpacked.")
            else:
                found.append(_File(path, member, inside[member]))
    return found, notes


def in_order(name: object) -> list[str | int]:
    """A key that sorts names as they were given: by time, and then by number, so that 10 is behind 9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(name))]


def _chains(files: list[_File]) -> list[list[_File]]:
    """The files in chains, in which an episode may go on from a file to the next: a worker's in one run, by number."""
    chains: list[list[_File]] = []
    last: dict[tuple[str, str], tuple[int, list[_File]]] = {}  # of each worker: the number of its last file, its chain
    for file in sorted(files, key=in_order):
        match = WRITTEN.fullmatch(Path(file.name).name)
        if match is None:
            chains.append([file])
            continue
        worker, number = (str(file.path.parent), match["worker"]), int(match["number"])
        before, chain = last.get(worker, (-1, []))
        if not chain or number != before + 1:
            chain = []
            chains.append(chain)
        chain.append(file)
        last[worker] = number, chain
    place = {file: number for number, file in enumerate(files)}
    return sorted(chains, key=lambda chain: place[chain[0]])


def _lines(file: _File) -> Iterator[tuple[int, bytes]]:
    """Yields (number, line) of every line that is not empty."""
    try:
        if file.member is None:
            with open(file.path, "rb") as plain:
                yield from _numbered(plain, file)
        else:
            with zipfile.ZipFile(file.path) as archive, archive.open(file.member) as packed:
                yield from _numbered(io.BufferedReader(packed, 1 << 20), file)  # type: ignore[type-var]
    except DAMAGE as error:
        raise UserError(f"{file} cannot be read to its end: {error or type(error).__name__}") from None


def _numbered(lines: IO[bytes], file: _File) -> Iterator[tuple[int, bytes]]:
    for number in itertools.count(1):
        line = lines.readline(LONGEST + 1)
        if not line:
            return
        if len(line) > LONGEST:
            raise UserError(f"{file}, line {number} has more than {LONGEST:,} bytes")
        if line.strip():
            yield number, line


def _chunks(file: _File) -> Iterator[Chunk]:
    """Yields the rows of a file. Raises UserError that names the line if one is damaged or foreign."""
    single: list[dict[str, Any]] = []  # transitions with a line each
    first = 0
    for number, line in _lines(file):
        where = f"{file}, line {number}"
        data = _parsed(line, where)
        if "type" not in data and isinstance(data.get("rewards"), int | float):
            first = first if single else number
            single.append(data)
            if len(single) == TOGETHER:
                yield _together(single, f"{file}, lines {first} to {number}")
                single = []
            continue
        if single:
            yield _together(single, f"{file}, lines {first} to {number - 1}")
            single = []
        # The arrays of an empty batch have no shape that means anything.
        yield from (batch for batch in _batches(data, where) if len(batch.reward))
    if single:
        yield _together(single, f"{file}, lines {first} to {first + len(single) - 1}")


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            raise UserError(
                f"{where} breaks off: it is the last one, and the recording or a copy of it stopped there. Without this"
                " line the file can be read"
            ) from None
        raise UserError(f"{where} is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{where} is JSON, but no batch of RLlib's")
    return data


def _batches(data: dict[str, Any], where: str) -> Iterator[Chunk]:
    """Yields the rows of a line, those of each policy by themselves."""
    kind = data.get("type")
    if kind == "SampleBatch":
        yield chunk(data, where)
        return
    policies = data.get("policy_batches")
    if kind != "MultiAgentBatch" or not isinstance(policies, dict):
        raise UserError(
            f"{where} is JSON, but no batch of RLlib's: its type is {str(kind)[:40]!r} instead of SampleBatch or"
            " MultiAgentBatch"
        )
    for policy, columns in policies.items():
        if not isinstance(columns, dict):
            raise UserError(f"{where}: the policy {policy!r} has no columns")
        yield chunk(columns, f"{where}, policy {policy}", policy)


def _together(rows: list[dict[str, Any]], where: str) -> Chunk:
    """Transitions as the columns of one batch."""
    names = [name for name in rows[0] if name not in ("infos", "info")]
    columns: dict[str, Any] = {}
    for name in names:
        values: Any = [row.get(name) for row in rows]
        if name != "eps_id" and all(is_packed(value) for value in values):
            values = unpack_all(values, name, where)
        if any(value is not None for value in values):
            columns[name] = values
    return chunk(columns, where)


def unpack_all(values: Iterable[str | bytes], name: str, where: str) -> Any:
    """A packed value for each row, as one array. Raises UserError with the place and the reason."""
    try:
        made = [unpack(value) for value in values]
        return np.stack(made)
    except ValueError as error:
        text = str(error)
        reason = text if text.startswith(("holds", "says")) else "holds rows of different shapes"
        raise UserError(f"{where}: {name} {reason}") from None
