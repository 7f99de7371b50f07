"""The file in which a checkpoint keeps the rows of a replay."""

import json

import pytest
import torch

from rlrun.core.batch import Field
from rlrun.core.errors import UserError
from rlrun.replay.rows_file import RowsFile
from rlrun.replay.storage import Plain, build, in_memory


def test_rows_of_other_number_types_are_refused(tmp_path):
    def file(dtype):
        spec = {"action": Field((2,), dtype), "reward": Field((), torch.float32)}
        tree = build(spec, lambda path, field: Plain(3, 4, field, in_memory(torch.device("cpu"))))
        return RowsFile(tmp_path, "replay-0.bin", 3, tree, {}, 1)

    file(torch.float64).write(4, [])
    file(torch.float64).read([])
    with pytest.raises(UserError, match="holds other fields"):
        file(torch.float32).read([])
    path = tmp_path / "replay-0.bin"
    head, _, rows = path.read_bytes().partition(b"\n")
    older = {name: value for name, value in json.loads(head).items() if name != "dtypes"}
    path.write_bytes(json.dumps(older).encode() + b"\n" + rows)
    with pytest.raises(UserError, match="holds numbers of another size"):
        file(torch.float32).read([])
