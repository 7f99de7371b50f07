"""Storage for the rows of a replay: in memory, in a file or on a GPU, with frames stored once or compressed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.installing import install_line

CHUNK_BYTES = 64 << 20  # size of the pieces in which checkpoints are read and written
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Store(Protocol):
    """One field of a ring's rows: `columns` columns with `rows` rows each, addressed by column * rows + row."""

    @property
    def dtype(self) -> torch.dtype: ...

    def write(self, columns: slice, row: int, values: Tensor) -> None:
        """Writes values [T, B, ...] into rows row .. row + T - 1 of these columns."""
        ...

    def read(self, index: Tensor) -> Tensor:
        """Returns the values [..., *shape] at index [...] int64."""
        ...

    def save(self, file: BinaryIO, columns: int, rows: int) -> None:
        """Writes the first `rows` rows of every column."""
        ...

    def load(self, file: BinaryIO, columns: int, rows: int) -> None: ...


Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


def in_memory(device: torch.device) -> Allocate:
    """Allocates zeros. On a CPU the operating system provides pages only when rows are written to them."""
    return lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device)


def in_files(folder: Path) -> Allocate:
    """Allocates tensors in files that disappear with the process. Raises UserError where the disk has no room."""

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        path = folder / f".rlrun-replay-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                # Without this, writing into the sparse file on a full disk would end the process with a bus error.
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            return torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=dtype).view(shape)
        except OSError as error:
            raise UserError(
                f"replay.directory={folder}: {size / 1e9:.2f} GB of replay cannot be put there: {error.strerror}"
            ) from None
        finally:
            if path.exists():
                path.unlink()  # the contents exist as long as they are mapped

    return make


class Plain:
    """Stores values unchanged."""

    def __init__(self, columns: int, rows: int, field: Field, allocate: Allocate):
        self.dtype = field.dtype
        self.values = allocate((columns, rows, *field.shape), field.dtype)
        # PyTorch neither picks nor fills numbers without a sign, but bytes.
        self.flat = self.values.view(columns * rows, *field.shape).view(SIGNED.get(field.dtype, field.dtype))

    def write(self, columns: slice, row: int, values: Tensor) -> None:
        self.values[columns, row : row + len(values)] = values.transpose(0, 1).to(self.values.device, self.values.dtype)

    def read(self, index: Tensor) -> Tensor:
        picked = self.flat.index_select(0, index.reshape(-1).to(self.flat.device))
        return picked.view(*index.shape, *self.flat.shape[1:]).view(self.dtype)

    def put(self, index: Tensor, values: Tensor) -> None:
        """Writes values [..., *shape] into single rows at index [...]."""
        there = self.flat.device
        given = values.reshape(-1, *self.flat.shape[1:]).to(there, self.dtype)
        self.flat.index_copy_(0, index.reshape(-1).to(there), given.view(self.flat.dtype))

    def save(self, file: BinaryIO, columns: int, rows: int) -> None:
        for part in _parts(self.values, columns, rows):
            file.write(_bytes(part.cpu().contiguous()))

    def load(self, file: BinaryIO, columns: int, rows: int) -> None:
        for part in _parts(self.values, columns, rows):
            whole = torch.empty(part.shape, dtype=part.dtype)
            if file.readinto(_bytes(whole)) != whole.nbytes:  # type: ignore[attr-defined]
                raise ValueError("ends too early")
            part.copy_(whole)


def _parts(values: Tensor, columns: int, rows: int) -> Iterator[Tensor]:
    """Yields the first rows of the first columns in pieces of at most CHUNK_BYTES (at least one row)."""
    step = max(1, CHUNK_BYTES // max(1, values[0, 0].nbytes))
    for column in range(columns):
        for start in range(0, rows, step):
            yield values[column, start : min(rows, start + step)]


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


class Packed:
    """Stores every value compressed with LZ4 (RLlib's compress_observations). This is slower, and for the screens of
    most games many times smaller."""

    def __init__(self, columns: int, rows: int, field: Field):
        try:
            import lz4.block
        except ImportError:
            raise UserError(f"replay.compress=true needs lz4: {install_line('lz4')}") from None
        self.lz4 = lz4.block
        self.rows, self.shape, self.dtype = rows, field.shape, field.dtype
        self.packed: list[bytes] = [b""] * (columns * rows)
        self.blank = self._pack(np.zeros(math.prod(field.shape) * field.dtype.itemsize, dtype=np.uint8))

    def _pack(self, values: np.ndarray) -> bytes:
        return self.lz4.compress(np.ascontiguousarray(values).tobytes())

    def write(self, columns: slice, row: int, values: Tensor) -> None:
        values = values.cpu()
        for b, column in enumerate(range(columns.start, columns.stop)):
            for t in range(len(values)):
                self.packed[column * self.rows + row + t] = self._pack(values[t, b].numpy())

    def read(self, index: Tensor) -> Tensor:
        whole = b"".join(self.lz4.decompress(self.packed[i] or self.blank) for i in index.reshape(-1).tolist())
        return torch.frombuffer(bytearray(whole), dtype=self.dtype).view(*index.shape, *self.shape)

    def save(self, file: BinaryIO, columns: int, rows: int) -> None:
        for column in range(columns):
            for one in self.packed[column * self.rows : column * self.rows + rows]:
                file.write(len(one).to_bytes(4, "little") + one)

    def load(self, file: BinaryIO, columns: int, rows: int) -> None:
        for column in range(columns):
            for row in range(rows):
                size = int.from_bytes(file.read(4), "little")
                self.packed[column * self.rows + row] = file.read(size)


class Frames:
    """Stores stacks of the last S frames [S, *frame] by storing each frame once, with its row.

    Frames from before the first row of an episode are 0, as in environments that stack frames. To read a row, the S - 1
    rows before it must still be stored.
    """

    def __init__(self, one: Store, stack: int, is_first: Tensor, rows: int):
        """one: the store for single frames. is_first: [columns * rows] of the same ring."""
        self.one, self.stack, self.is_first, self.rows = one, stack, is_first, rows
        self.dtype = one.dtype

    def write(self, columns: slice, row: int, values: Tensor) -> None:
        self.one.write(columns, row, values[:, :, -1])

    def read(self, index: Tensor) -> Tensor:
        index = index.to(self.is_first.device)
        column, row = index - index % self.rows, index % self.rows
        back = torch.arange(self.stack - 1, -1, -1, device=index.device)  # distance in rows; the newest frame is last
        where = column.unsqueeze(-1) + (row.unsqueeze(-1) - back) % self.rows  # [..., S]
        began = self.is_first[where]  # an episode begins at this row, so that earlier frames belong to another one
        later = began.flip(-1).cumsum(-1).flip(-1) - began.long()  # number of episode beginnings after a frame
        frames = made = self.one.read(where)  # [..., S, *frame]
        frames = frames.view(SIGNED.get(frames.dtype, frames.dtype))
        if frames.device.type == "cuda":  # a mask avoids nonzero(), for which the CPU would have to wait
            frames.masked_fill_((later > 0).view(*later.shape, *[1] * (frames.ndim - later.ndim)), 0)
            return made
        frames.view(-1, *frames.shape[index.ndim + 1 :]).index_fill_(
            0, (later > 0).view(-1).nonzero().squeeze(1).to(frames.device), 0
        )
        return made

    def save(self, file: BinaryIO, columns: int, rows: int) -> None:
        self.one.save(file, columns, rows)

    def load(self, file: BinaryIO, columns: int, rows: int) -> None:
        self.one.load(file, columns, rows)


Tree = dict[str, "Store | Tree"]


def build(spec: RowSpec, make: Callable[[tuple[str, ...], Field], Store], path: tuple[str, ...] = ()) -> Tree:
    """Makes a store for every field of a row, by make(path, field)."""
    return {
        name: make((*path, name), part) if isinstance(part, Field) else build(part, make, (*path, name))
        for name, part in spec.items()
    }


def write(tree: Tree, columns: slice, row: int, values: Batch) -> None:
    """Writes leaves [T, B, ...] into rows row .. row + T - 1 of these columns."""
    for name, store in tree.items():
        if isinstance(store, dict):
            write(store, columns, row, values[name])  # type: ignore[arg-type]
        else:
            store.write(columns, row, values[name])  # type: ignore[arg-type]


def read(tree: Tree, index: Tensor) -> Batch:
    """Reads leaves [..., *shape] at index [...]."""
    return Batch(
        {name: read(store, index) if isinstance(store, dict) else store.read(index) for name, store in tree.items()}
    )


def put(store: Store | Tree, index: Tensor, values: Tensor | Batch) -> None:
    """Writes leaves [..., *shape] into single rows at index [...], for fields in memory. Of stacked frames, whose index
    is [T, B], the last one of [T, B, S, *frame] is written."""
    if isinstance(store, dict):
        assert isinstance(values, Batch)
        for name, part in store.items():
            put(part, index, values[name])
        return
    assert isinstance(values, Tensor)
    if isinstance(store, Frames):
        store, values = store.one, values[:, :, -1]
    assert isinstance(store, Plain)
    store.put(index, values)


def stores(tree: Tree, path: str = "") -> Iterator[tuple[str, Store]]:
    """Yields (dotted name, store) of every field."""
    for name, store in tree.items():
        if isinstance(store, dict):
            yield from stores(store, f"{path}{name}.")
        else:
            yield f"{path}{name}", store


def row_bytes(spec: RowSpec, frames: tuple[str, ...] | None, stack: int) -> int:
    """Returns the bytes of one row, if all fields below the path `frames` hold stacks whose frames are stored once."""
    total = 0
    for name, part in spec.items():
        below = () if frames == () else frames[1:] if frames and frames[0] == name else None
        if isinstance(part, Field):
            size = math.prod(part.shape) * part.dtype.itemsize
            total += size // stack if below == () else size
        else:
            total += row_bytes(part, below, stack)
    return total
