"""A checkpoint's file is a program for torch.load. Those that rlrun did not write are refused before they ask for memory."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch

from rlrun.core.checkpoint import as_bytes, from_bytes
from rlrun.core.tensor_file import read_tensors

STATE = {
    "weights": OrderedDict(a=torch.randn(3, 4), b=torch.zeros(0), c=torch.ones((), dtype=torch.bool)),
    "halves": torch.randn(5).bfloat16(), "words": torch.arange(3).to(torch.uint16), "random": torch.get_rng_state(),
    "generator": {"state": {"state": 1 << 120, "inc": (1 << 127) - 1}, "uinteger": 7}, "nested": [(1, 2.5, None, True, "x")],
    "parameter": torch.nn.Parameter(torch.ones(2)), "size": torch.Size((2, 3)), "dtype": torch.float32, "set": {1, 2},
    "expanded": torch.zeros(1).expand(1000),
}  # fmt: skip


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_what_a_state_consists_of_comes_back():
    assert same(STATE, from_bytes(as_bytes(STATE)))
    shared = torch.randn(100, 100)
    many = {str(i): shared for i in range(1000)}
    assert same(many, from_bytes(as_bytes(many))), "agents share a network"


def saved(program):
    """A file of torch.save in whose place this program is."""
    file = io.BytesIO()
    torch.save({}, file)
    with zipfile.ZipFile(file) as archive:
        parts = {part.filename: archive.read(part) for part in archive.infolist()}
    (name,) = (name for name in parts if name.endswith("data.pkl"))
    writer = torch._C.PyTorchFileWriter(made := io.BytesIO())
    for part, data in (parts | {name: program}).items():
        if part.startswith(name.partition("/")[0]) and not part.endswith((".data/serialization_id", "version")):
            writer.write_record(part.partition("/")[2], data, len(data))
    writer.write_end_of_file()
    return made.getvalue()


class Asks:
    def __init__(self, call, *words):
        self.call, self.words = call, words

    def __reduce__(self):
        return self.call, self.words


def deep():
    made = [0]
    for _ in range(60):
        made = [made, made]
    return made


def tensor(size, stride):
    """A tensor of another size than its memory."""
    made = torch.zeros(4)
    text = as_bytes({"a": made})
    with zipfile.ZipFile(io.BytesIO(text)) as archive:
        program = next(archive.read(part) for part in archive.infolist() if part.filename.endswith("data.pkl"))
    assert program.count(b"K\x04\x85") == 1 and program.count(b"K\x01\x85") == 1
    sized = program.replace(b"K\x04\x85", b"\x8a\x08" + struct.pack("<q", size) + b"\x85")
    file = io.BytesIO(text)
    return sized.replace(b"K\x01\x85", b"K" + bytes([stride]) + b"\x85"), file


@pytest.mark.parametrize("name, program, said", [
    ("bytes", pickle.dumps({"a": Asks(bytearray, 1 << 40)}, 2), r"__builtin__\.bytearray, which is no part of a tensor"),
    ("code", pickle.dumps({"a": Asks(eval, "1")}, 2), "eval, which is no part of a tensor"),
    ("newer", pickle.dumps({"a": Asks(bytearray, 1 << 40)}, 4), "STACK_GLOBAL"),
    ("list", pickle.dumps([1], 2), "holds list and no dict"),
    ("deep", pickle.dumps({"a": deep()}, 2), "hold one another too often"),
])  # fmt: skip
def test_a_program_that_asks_for_more_is_refused(name, program, said):
    with pytest.raises(Exception, match=said):
        read_tensors(saved(program))
    assert same({"a": 1}, read_tensors(saved(pickle.dumps({"a": 1}, 2)))), "a file that is made here is read"


@pytest.mark.parametrize("size, stride", [(1 << 33, 1), (1 << 33, 0)])
def test_a_tensor_that_is_larger_than_its_file_is_refused(size, stride):
    program, file = tensor(size, stride)
    with zipfile.ZipFile(file) as archive:
        data = next(archive.read(part) for part in archive.infolist() if part.filename.endswith("data/0"))
    writer = torch._C.PyTorchFileWriter(made := io.BytesIO())
    for name, text in (("data.pkl", program), ("byteorder", b"little"), ("data/0", data)):
        writer.write_record(name, text, len(text))
    writer.write_end_of_file()
    # A tensor that steps over its memory again and again is made, and one that lies behind its end is not.
    with pytest.raises((ValueError, RuntimeError), match=r"larger than the file|not resizable"):
        read_tensors(made.getvalue())


def test_an_archive_that_torch_did_not_write_is_refused():
    good = as_bytes({"a": torch.zeros(1000)})
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        parts = [(part.filename, archive.read(part)) for part in archive.infolist()]
    with zipfile.ZipFile(packed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts:
            archive.writestr(name, data)
    ends = good[:-34] + b"\0" + good[-33:], good + b"\0", good[:-2] + b"\1\0" + b"x"
    for bad in (b"", b"\x80\x02}.", packed.getvalue(), b"PK\3\4" + good, *ends):
        with pytest.raises(ValueError, match=r"it is no archive|its archive is not as torch\.save writes it"):
            read_tensors(bad)
    marked = bytearray(good)
    at = marked.rindex(b"PK\1\2")
    marked[at + 10 : at + 12] = b"\x08\0"  # the method of the last part in the list
    with pytest.raises(ValueError, match="compressed"):
        read_tensors(bytes(marked))
