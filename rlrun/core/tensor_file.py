"""Reads the files that torch.save writes, as far as rlrun writes them. Nothing of a file is executed.

torch.load(weights_only=True) runs no code of a file's own, but a file is a program for it, and may be somebody else's:
a few bytes can ask for gigabytes. So pickletools reads its instructions first without running them, and names of
anything but tensors and their parts are refused. The archive around it must be as torch.save writes it: all that reads
archives finds the same in it then, and it is not compressed, because a small file could otherwise be a large one.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

PROGRAM = "data.pkl"
LARGEST = 1 << 24  # bytes of the program; an object that takes one of them may take a hundred in memory
SPARE = 1 << 24  # bytes that tensors may have beyond those of the file: an expanded one repeats numbers
_KINDS = ("Bool", "Byte", "Char", "Short", "Int", "Long", "Half", "BFloat16", "Float", "Double")
NAMES = {f"torch {kind}Storage" for kind in (*_KINDS, "ComplexFloat", "ComplexDouble")}
NAMES |= {f"torch._utils _rebuild_{what}" for what in ("tensor_v2", "tensor_v3", "parameter")}
NAMES |= {"torch.storage UntypedStorage", "torch Size", "torch device", "collections OrderedDict", "__builtin__ set"}
NAMES |= {f"torch {name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
# Of objects that a program makes without naming what they are.
PLAIN = (str, bool, int, float, bytes, type(None), torch.dtype, torch.Size, torch.device)


def read_tensors(place: Path | bytes) -> dict[str, Any]:
    """Returns the nested tensors and numbers of a file, or of its bytes, in main memory. Raises ValueError with the
    reason if it holds anything else, OSError if it cannot be read, and what torch.load raises if it is damaged."""
    with io.BytesIO(place) if isinstance(place, bytes) else place.open("rb") as file:
        size = _check_archive(file)
        with zipfile.ZipFile(file) as archive:
            steps = _check_program(_program(archive))
        file.seek(0)
        made = torch.load(file, weights_only=True, map_location="cpu")
    if not isinstance(made, dict):
        raise ValueError(f"it holds {type(made).__name__} and no dict")
    _Check(size, 2 * steps + 1000).look(made)
    return made


def _check_archive(file: BinaryIO) -> int:
    """Raises ValueError unless an archive ends as torch.save ends it: with one list of its parts, and with two notes of
    where that list is, which agree. Archives that different readers read differently end otherwise. Returns the size
    of the file."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if size < 102 or file.read(4) != b"PK\3\4":
        raise ValueError("it is no archive")
    file.seek(size - 98)
    end = file.read(98)
    # The end record of ZIP64 has 56 bytes, its locator 20, and the end record of all archives 22.
    mark, listed, begins = struct.unpack_from("<4s36xQQ", end, 0)
    marks = mark, end[56:60], end[76:80]
    place = struct.unpack_from("<Q", end, 64)[0]
    if (
        marks != (b"PK\6\6", b"PK\6\7", b"PK\5\6")
        or place != size - 98
        or begins + listed != place
        or end[-2:] != b"\0\0"
    ):
        raise ValueError("its archive is not as torch.save writes it")
    return size


def _program(archive: zipfile.ZipFile) -> bytes:
    """The pickled part of an archive. Raises ValueError if there are several, or if a part is compressed."""
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size for part in parts):
        raise ValueError("a part of it is compressed")
    names = [part.filename.lower() for part in parts]
    if len(set(names)) < len(names):
        raise ValueError("two parts of it have the same name")
    found = [part for part in parts if part.filename.rpartition("/")[2].lower() == PROGRAM]
    if len(found) != 1 or found[0].file_size > LARGEST:
        raise ValueError(f"it holds no {PROGRAM}, several ones, or a very large one")
    return archive.read(found[0])


def _check_program(program: bytes) -> int:
    """Raises ValueError for a program that names anything but tensors. Returns the number of its instructions."""
    count = 0
    for op, value, _ in pickletools.genops(program):
        count += 1
        if op.name == "GLOBAL" and value not in NAMES:
            raise ValueError(f"it names {str(value).replace(' ', '.')[:80]}, which is no part of a tensor")
        if op.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX") or op.name.startswith("EXT"):
            raise ValueError(f"it makes objects by {op.name}")
    return count


class _Check:
    """Raises ValueError for objects that are no nested tensors and numbers, or that are larger than their file."""

    def __init__(self, size: int, most: int):
        """size: bytes of the file. most: objects that it may have. One that is in several places is counted in each,
        because whoever looks at all of them would never come to an end of a few that hold one another."""
        self.size, self.room, self.left = size, size + SPARE, most
        self.seen: set[tuple[Any, ...]] = set()  # tensors whose bytes have been counted

    def look(self, made: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError("its parts hold one another too often")
        if isinstance(made, dict):
            for name, part in made.items():
                self.look(name)
                self.look(part)
        elif isinstance(made, list | tuple | set):
            for part in made:
                self.look(part)
        elif isinstance(made, torch.Tensor):
            memory = made.untyped_storage()
            key = memory.data_ptr(), made.storage_offset(), made.shape, made.stride()
            if key not in self.seen:
                self.seen.add(key)
                self.room -= made.numel() * made.element_size()
            if self.room < 0 or memory.nbytes() > self.size:
                raise ValueError("its tensors are larger than the file")
        elif not isinstance(made, PLAIN):
            raise ValueError(f"it holds a {type(made).__name__}")
