"""The file in which a checkpoint keeps the rows of a replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlrun.core.errors import UserError
from rlrun.replay.storage import Tree, stores


class RowsFile:
    """One line of JSON that says what follows; then the rows of every field, and arrays as they are in memory."""

    def __init__(self, folder: Path, name: str, columns: int, tree: Tree, core: Tree, core_every: int):
        """tree: the stores of the rows' fields. core: those of the recurrent state, which hold every core_every-th
        row."""
        self.folder, self.path, self.columns, self.core_every = folder, folder / name, columns, core_every
        self.rows, self.cores = list(stores(tree)), list(stores(core))
        self.fields = [name for name, _ in [*self.rows, *self.cores]]
        self.dtypes = [str(store.dtype).removeprefix("torch.") for _, store in [*self.rows, *self.cores]]

    def write(self, filled: int, arrays: Sequence[np.ndarray]) -> None:
        """Writes the first `filled` rows of every column."""
        with open(self.path, "wb", buffering=1 << 20) as file:
            what = {"columns": self.columns, "rows": filled, "fields": self.fields, "dtypes": self.dtypes}
            file.write(json.dumps(what).encode() + b"\n")
            for _, store in self.rows:
                store.save(file, self.columns, filled)
            for _, store in self.cores:
                store.save(file, self.columns, -(-filled // self.core_every))
            for array in arrays:
                file.write(array.tobytes())

    def read(self, arrays: Sequence[np.ndarray]) -> None:
        """Fills the stores and the arrays. Raises UserError where the file holds other fields or ends too early."""
        with open(self.path, "rb", buffering=1 << 20) as file:
            what = json.loads(file.readline())
            same = what["columns"] == self.columns and what["fields"] == self.fields
            if not same or what.get("dtypes", self.dtypes) != self.dtypes:  # older checkpoints have no dtypes
                raise UserError(
                    "the checkpoint's replay holds other fields than this run's: env, model or algorithm differ"
                )
            try:
                for _, store in self.rows:
                    store.load(file, self.columns, what["rows"])
                for _, store in self.cores:
                    store.load(file, self.columns, -(-what["rows"] // self.core_every))
                for array in arrays:
                    array[:] = np.frombuffer(file.read(array.nbytes), dtype=array.dtype).reshape(array.shape)
                if file.read(1):
                    raise UserError(
                        f"the replay in {self.folder} holds numbers of another size than this run's: it was saved by an"
                        " earlier version of rlrun, or env, model or algorithm differ"
                    )
            except ValueError:
                raise UserError(f"the replay in {self.folder} is damaged: its rows end too early") from None
