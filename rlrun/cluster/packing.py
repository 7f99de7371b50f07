"""Fragments as bytes, for the way from one machine to another.

What is packed is what a sampler wrote, to the bit. Stacked frames are sent once: a row's older frames are those of the
row before, moved by one place, unless an episode has begun. Images are compressed with LZ4, the rows of a column
together, because neighbouring frames of an environment are alike. Other fields are sent as they are.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.installing import install_line
from rlrun.core.moments import Moments
from rlrun.dataflow.slots import Episode, Header

IMAGE_BYTES = 1024  # bytes in one row from which uint8 fields are compressed
LENGTH = np.dtype("<u8")


class Form(NamedTuple):
    """How a run's fragments are packed. Both sides have the same."""

    layout: RowSpec  # full shapes of a fragment
    stack: int  # frames in every row of obs.observation (EnvSpec.stack)
    compress: bool


def pack(form: Form, fragments: Sequence[tuple[Header, Batch]], facts: dict[str, Any]) -> np.ndarray:
    """Returns one array of bytes [N] that holds these fragments and facts, which JSON can write."""
    blocks: list[bytes] = []
    headers = []
    for header, batch in fragments:
        before = len(blocks)
        for path, value in _fields(batch.numpy()):
            blocks += _pack_field(form, path, value)
        headers.append({"header": header_to_json(header), "sizes": [len(block) for block in blocks[before:]]})
    said = json.dumps({"fragments": headers, **facts}).encode()
    return np.frombuffer(b"".join([len(said).to_bytes(LENGTH.itemsize, "little"), said, *blocks]), dtype=np.uint8)


class PackedFragment(NamedTuple):
    """A fragment that has arrived and is still packed."""

    header: Header
    sizes: list[int]  # bytes of its blocks
    data: memoryview

    def unpack(self, form: Form, into: Batch) -> None:
        """Writes the rows into memory of the form's layout."""
        blocks = _blocks(self.data, self.sizes)
        for path, value in _fields(into.numpy()):
            _unpack_field(form, path, value, blocks)


def unpack(packed: np.ndarray) -> tuple[list[PackedFragment], dict[str, Any]]:
    """Returns the fragments, still packed, and the facts of an array that pack() made. The fragments refer to it."""
    data = memoryview(packed)  # type: ignore[arg-type]
    size = int.from_bytes(data[: LENGTH.itemsize], "little")
    at = LENGTH.itemsize + size
    facts = json.loads(bytes(data[LENGTH.itemsize : at]))
    made = []
    for one in facts.pop("fragments"):
        end = at + sum(one["sizes"])
        made.append(PackedFragment(header_from_json(one["header"]), one["sizes"], data[at:end]))
        at = end
    return made, facts


def check_compression(wanted: bool) -> None:
    """Raises UserError where fragments should be compressed and LZ4 is not installed."""
    if wanted and importlib.util.find_spec("lz4") is None:
        raise UserError(f"resources.ray.compress=true needs lz4: {install_line('ray')}")


# -- fields ------------------------------------------------------------------------------------------------------------


def _fields(tree: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _fields(value, (*path, name))
        else:
            yield (*path, name), value


def _stacked(form: Form, path: tuple[str, ...]) -> bool:
    return form.stack > 1 and path[:2] == ("obs", "observation")


def _pack_field(form: Form, path: tuple[str, ...], value: np.ndarray) -> list[bytes]:
    """value [R, B, ...]."""
    if not _stacked(form, path):
        return _pack_array(form, value)
    older, newest = value[:, :, :-1], value[:, :, -1]
    whole = np.ones(value.shape[:2], dtype=bool)  # rows [R, B] whose older frames are sent too
    whole[1:] = ~_alike(older[1:], value[:-1, :, 1:])
    return [whole.tobytes(), *_pack_array(form, newest), *_pack_array(form, older[whole][:, None])]


def _unpack_field(form: Form, path: tuple[str, ...], value: np.ndarray, blocks: Iterator[memoryview]) -> None:
    if not _stacked(form, path):
        _unpack_array(form, value, blocks)
        return
    whole = np.frombuffer(next(blocks), dtype=bool).reshape(value.shape[:2])
    newest = np.empty((*value.shape[:2], *value.shape[3:]), value.dtype)
    _unpack_array(form, newest, blocks)
    value[:, :, -1] = newest
    given = np.empty((int(whole.sum()), 1, value.shape[2] - 1, *value.shape[3:]), value.dtype)
    _unpack_array(form, given, blocks)
    number = 0
    for row in range(len(value)):
        columns = np.flatnonzero(whole[row])
        if row and len(columns) < value.shape[1]:
            value[row, :, :-1] = value[row - 1, :, 1:]
        if len(columns):
            value[row, columns, :-1] = given[number : number + len(columns), 0]
            number += len(columns)


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns whether the frames [R, B, K, ...] of each row and column are equal, to the bit."""
    rows, columns = one.shape[:2]
    size = one[0, 0].nbytes if rows else 0
    words = np.uint64 if size % 8 == 0 else np.uint8
    same = np.empty((rows, columns), dtype=bool)
    for row in range(rows):
        for column in range(columns):  # each is contiguous memory, which is compared in words
            a, b = (side[row, column].reshape(-1).view(np.uint8).view(words) for side in (one, other))
            same[row, column] = np.array_equal(a, b)
    return same


def _compressed(form: Form, value: np.ndarray) -> bool:
    return form.compress and value.dtype == np.uint8 and int(np.prod(value.shape[2:])) >= IMAGE_BYTES


def _pack_array(form: Form, value: np.ndarray) -> list[bytes]:
    if not _compressed(form, value):
        return [np.ascontiguousarray(value).tobytes()]
    from lz4.block import compress

    return [compress(np.ascontiguousarray(value[:, column]), store_size=False) for column in range(value.shape[1])]


def _unpack_array(form: Form, value: np.ndarray, blocks: Iterator[memoryview]) -> None:
    if not _compressed(form, value):
        value[...] = np.frombuffer(next(blocks), dtype=value.dtype).reshape(value.shape)
        return
    from lz4.block import decompress

    for column in range(value.shape[1]):
        into = value[:, column]
        rows = decompress(next(blocks), uncompressed_size=into.nbytes)
        into[...] = np.frombuffer(rows, dtype=value.dtype).reshape(into.shape)


def _blocks(data: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size


# -- headers -----------------------------------------------------------------------------------------------------------


def header_to_json(header: Header) -> dict[str, Any]:
    made = header._asdict()
    made["episodes"] = [[int(e.env), float(e.ret), int(e.length), _floats(e.info)] for e in header.episodes]
    if header.returns is not None:
        samples, mean, m2 = header.returns
        made["returns"] = [float(samples), float(mean), float(m2)]
    made["env_steps"], made["agent_steps"] = int(header.env_steps), int(header.agent_steps)
    return made


def header_from_json(made: dict[str, Any]) -> Header:
    episodes = tuple(Episode(env, ret, length, info) for env, ret, length, info in made["episodes"])
    returns = made["returns"]
    if returns is not None:
        samples, mean, m2 = returns
        returns = Moments(samples, mean, m2)
    return Header(
        **made
        | {
            "episodes": episodes,
            "returns": returns,
            "seconds": tuple(made["seconds"]),
            "failures": tuple(made["failures"]),
        }
    )


def _floats(info: Any) -> dict[str, float]:
    return {name: float(value) for name, value in info.items()}
