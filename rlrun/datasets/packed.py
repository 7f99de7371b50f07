"""Arrays that RLlib packed into text or bytes. What others would unpickle is parsed here, and nothing is ever executed.

RLlib packs a column as base64 text of an LZ4 frame around a pickle. A pickle is a program. pickletools reads its
instructions without running them, and exactly two programs are accepted: those with which NumPy writes an array. From
them come the numbers, their dtype and their shape. Episodes are packed with MessagePack, which
holds data alone; an array of Python objects in it, which is a pickle again, is not looked into.
"""

from __future__ import annotations

import base64
import io
import math
import pickletools
import re
import struct
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

LARGEST = 1 << 30  # bytes of one packed column; RLlib's files have 64 MB in all
DEEPEST = 32  # containers inside one another
MARK = b"BCJNGGhA"  # how the base64 text of an LZ4 frame begins
NUMBER = re.compile(r"(b1|[iu][1248]|f[248])")  # dtypes of numbers, without their byte order
AGAIN = "write it again with compress_columns: [] (output_compress_columns in newer versions)"
# Instructions that only keep what was made, or say how long the program is.
SILENT = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT")
BYTES = {"BYTEARRAY8": 9, "SHORT_BINBYTES": 2, "BINBYTES": 5, "BINBYTES8": 9}  # how long each is before its bytes
TEXT = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
GET = ("BINGET", "LONG_BINGET")
WHOLE = ("BININT", "BININT1", "BININT2", "LONG1")
ANY = object()


def is_packed(value: Any) -> bool:
    """Whether a value of a file is a packed column."""
    return isinstance(value, str | bytes)


def unpack(value: str | bytes) -> np.ndarray:
    """The array in a packed column. Raises ValueError with the reason if anything but an array of numbers is in it."""
    try:
        frame = base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError("holds text that is not base64") from None
    try:
        data = _decompressed(frame)
    except (OSError, pa.ArrowException):
        raise ValueError("holds text that is not a whole LZ4 frame") from None
    return array_of(data)


def _decompressed(frame: bytes) -> bytes:
    """The bytes in an LZ4 frame, which are read in growing pieces: a frame can hold 250 times its own size."""
    pieces: list[bytes] = []
    total, size = 0, 1 << 14
    with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
        while piece := stream.read(size):
            pieces.append(piece)
            total += len(piece)
            if total > LARGEST:
                raise ValueError(f"holds more than {LARGEST:,} bytes in one packed column")
            size = min(2 * size, 1 << 26)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Known(NamedTuple):
    """A program that was accepted: all its bytes but those of the array, and what they say of the array."""

    head: bytes
    tail: bytes
    dtype: np.dtype
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    axes: tuple[int, ...] | None  # where the axes of the shape go to; None: they stay


_known: dict[int, _Known] = {}  # by the length of the program: a file packs rows of one shape by the thousand


def array_of(program: bytes) -> np.ndarray:
    """The array that a pickle would make if it is a program with which NumPy writes one. Raises ValueError for any
    other program."""
    known = _known.get(len(program))
    if known is None or not (program.startswith(known.head) and program.endswith(known.tail)):
        known = _known_of(program)
        if len(_known) < 64:
            _known[len(program)] = known
    data = memoryview(program)[len(known.head) : len(program) - len(known.tail)]
    made = np.frombuffer(data, known.dtype).reshape(known.shape, order=known.order)
    return made if known.axes is None else made.transpose(known.axes)


def _known_of(program: bytes) -> _Known:
    """Reads the instructions of a program."""
    reader = io.BytesIO(program)
    try:
        steps = [_Step(op.name, arg, at or 0) for op, arg, at in pickletools.genops(reader) if op.name not in SILENT]
    except Exception:  # pickletools raises whatever its parsers of damaged arguments do
        raise ValueError(f"holds no array of numbers that can be read without running code: {AGAIN}") from None
    if reader.read(1):
        raise ValueError("holds more than one array")
    return _Program(steps).known(program)


class _Step(NamedTuple):
    """An instruction, its argument and where in the program it is."""

    name: str
    arg: Any
    at: int


class _Program:
    """The instructions of a pickle, which are compared one by one with those that are expected."""

    def __init__(self, steps: list[_Step]):
        self.steps = iter(steps)

    def known(self, program: bytes) -> _Known:
        """Reads the whole program, whose first text is the module of the function that it would call."""
        module = self._take(*TEXT).arg
        if module in ("numpy.core.numeric", "numpy._core.numeric"):
            return self._from_buffer(program)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return self._reconstructed(program)
        raise _refusal()

    def _from_buffer(self, program: bytes) -> _Known:
        """numpy.core.numeric._frombuffer(data, dtype, shape, order), as NumPy writes it with protocol 5. NumPy 2.3 and
        newer write arrays with other orders of their axes as (data, dtype, shape, "K", axes)."""
        self._take(*TEXT, value="_frombuffer")
        self._take("STACK_GLOBAL")
        self._take("MARK")
        data = self._take(*BYTES)
        self._take(*TEXT, value="numpy")
        dtype = self._dtype()
        shape = self._shape()
        order, axes = self._take(*TEXT).arg, None
        if order == "K":
            order, axes = "C", self._shape()
            if sorted(axes) != list(range(len(shape))):
                raise _refusal()
        for name in ("TUPLE", "REDUCE", "STOP"):
            self._take(name)
        return self._checked(program, data, dtype, shape, order, axes)

    def _reconstructed(self, program: bytes) -> _Known:
        """numpy.core.multiarray._reconstruct(ndarray, (0,), b"b") with the state (1, shape, dtype, is_fortran, data).
        NumPy writes it with protocol 4, which is RLlib's with Python 3.7 and older, and NumPy before 2.3 writes arrays
        with other orders of their axes so."""
        self._take(*TEXT, value="_reconstruct")
        self._take("STACK_GLOBAL")
        self._take(*TEXT, value="numpy")
        self._take(*TEXT, value="ndarray")
        self._take("STACK_GLOBAL")
        self._take(*WHOLE, value=0)
        self._take("TUPLE1")
        self._take(*BYTES, value=b"b")
        for name in ("TUPLE3", "REDUCE", "MARK"):
            self._take(name)
        self._take(*WHOLE, value=1)
        shape = self._shape()
        self._take(*GET, value=3)  # the text "numpy", which was the fourth thing that was kept
        dtype = self._dtype()
        order = "F" if self._take("NEWFALSE", "NEWTRUE").name == "NEWTRUE" else "C"
        data = self._take(*BYTES)
        for name in ("TUPLE", "BUILD", "STOP"):
            self._take(name)
        return self._checked(program, data, dtype, shape, order, None)

    @staticmethod
    def _checked(
        program: bytes, data: _Step, dtype: np.dtype, shape: tuple[int, ...], order: Any, axes: tuple[int, ...] | None
    ) -> _Known:
        """Parts a program at its data, whose length must be that of such an array."""
        if order not in ("C", "F") or math.prod(shape) * dtype.itemsize != len(data.arg):
            raise ValueError(f"says that {len(data.arg)} bytes are an array {list(shape)} of {dtype}")
        start = data.at + BYTES[data.name]
        return _Known(program[:start], program[start + len(data.arg) :], dtype, shape, order, axes)

    def _dtype(self) -> np.dtype:
        """The dtype whose instructions follow the text "numpy"."""
        self._take(*TEXT, value="dtype")
        self._take("STACK_GLOBAL")
        kind = self._take(*TEXT).arg
        for name in ("NEWFALSE", "NEWTRUE", "TUPLE3", "REDUCE", "MARK"):
            self._take(name)
        self._take(*WHOLE, value=3)
        order = self._take(*TEXT).arg
        for name in ("NONE", "NONE", "NONE"):
            self._take(name)
        for value in (-1, -1, 0):
            self._take(*WHOLE, value=value)
        self._take("TUPLE")
        self._take("BUILD")
        if not NUMBER.fullmatch(kind) or order not in ("<", ">", "|", "="):
            raise ValueError(f"holds an array of {kind!r} where an array of numbers is expected")
        return np.dtype(order + kind)

    def _shape(self) -> tuple[int, ...]:
        sizes: list[int] = []
        marked = False
        for name, arg, _ in self.steps:
            if name in WHOLE:
                sizes.append(arg)
            elif name == "MARK" and not sizes and not marked:
                marked = True
            elif name == ("TUPLE" if marked else f"TUPLE{len(sizes)}" if sizes else "EMPTY_TUPLE"):
                break
            else:
                raise _refusal()
        if len(sizes) > DEEPEST or any(size < 0 for size in sizes):
            raise _refusal()
        return tuple(sizes)

    def _take(self, *names: str, value: Any = ANY) -> _Step:
        """The next instruction, which must be one of these and, if given, have this argument."""
        step = next(self.steps, _Step("", None, 0))
        if step.name not in names or (value is not ANY and (type(step.arg) is not type(value) or step.arg != value)):
            raise _refusal()
        return step


def _refusal() -> ValueError:
    return ValueError(f"holds something else than an array of numbers, and opening it would run code: {AGAIN}")


class Unreadable:
    """A value of a MessagePack message that is an array of Python objects."""


def message(data: bytes) -> Any:
    """The value in a MessagePack message, in which arrays are written as msgpack-numpy writes them. Raises ValueError
    if it is damaged."""
    reader = io.BytesIO(data)
    value = _value(reader, 0)
    if reader.read(1):
        raise ValueError("has bytes behind its MessagePack value")
    return value


FIXED = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
SIZED = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"), 0xD9: ("text", ">B"), 0xDA: ("text", ">H"),
    0xDB: ("text", ">I"), 0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip


def _value(reader: io.BytesIO, depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError(f"has more than {DEEPEST} containers inside one another")
    first = _bytes(reader, 1)[0]
    if first < 0x80 or first >= 0xE0:
        return first if first < 0x80 else first - 0x100
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first]
    if first in FIXED:
        return _number(reader, FIXED[first])
    if first in SIZED:
        kind, form = SIZED[first]
        return _sized(reader, kind, _number(reader, form), depth)
    if first < 0x90:
        return _sized(reader, "map", first & 0x0F, depth)
    if first < 0xA0:
        return _sized(reader, "list", first & 0x0F, depth)
    if first < 0xC0:
        return _sized(reader, "text", first & 0x1F, depth)
    raise ValueError(f"has the MessagePack type {first:#x}, which RLlib does not write")


def _sized(reader: io.BytesIO, kind: str, count: int, depth: int) -> Any:
    if kind == "bytes":
        return _bytes(reader, count)
    if kind == "text":
        return _bytes(reader, count).decode("utf-8", "replace")
    if kind == "list":
        return list(_values(reader, count, depth))
    pairs = list(_values(reader, 2 * count, depth))
    try:
        made = dict(zip(pairs[::2], pairs[1::2], strict=True))
    except TypeError:
        raise ValueError("has a MessagePack map with a key that is no text or number") from None
    return _numpy(made)


def _values(reader: io.BytesIO, count: int, depth: int) -> Iterator[Any]:
    for _ in range(count):  # a count that is too large ends where the message does
        yield _value(reader, depth + 1)


def _bytes(reader: io.BytesIO, count: int) -> bytes:
    data = reader.read(count)
    if len(data) < count:
        raise ValueError("breaks off inside a MessagePack value")
    return data


def _number(reader: io.BytesIO, form: str) -> Any:
    return struct.unpack(form, _bytes(reader, struct.calcsize(form)))[0]


def _numpy(made: dict[Any, Any]) -> Any:
    """The array or number that a map of msgpack-numpy stands for; other maps as they are."""

    def entry(name: str) -> Any:
        return made.get(name.encode(), made.get(name))

    whole, data = entry("nd"), entry("data")
    if not isinstance(whole, bool) or not isinstance(data, bytes):
        return made
    kind, dtype = entry("kind"), entry("type")
    text = dtype.decode("ascii", "replace") if isinstance(dtype, bytes) else dtype
    if kind not in (None, b"", "") or not isinstance(text, str) or not NUMBER.fullmatch(text[1:]):
        return Unreadable()
    if text[0] not in "<>|=":
        return Unreadable()
    shape = entry("shape") if whole else []
    numbers = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not numbers or math.prod(shape) * np.dtype(text).itemsize != len(data) or len(shape) > DEEPEST:
        raise ValueError(f"says that {len(data)} bytes are an array {shape} of {text}")
    return np.frombuffer(data, text).reshape(shape)
