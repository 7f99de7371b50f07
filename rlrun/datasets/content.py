"""A sum of the rows of a data set, which is the same wherever, whenever and in whatever files they were recorded."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rlrun.datasets.parquet import column_name, flat_fields
from rlrun.datasets.trajectories import DataFacts, Trajectory, row_fields

# Fields of which a dead row holds something. What stands in its others means nothing.
OF_DEAD_ROWS = ("obs", "valid")


class ContentSum:
    """Adds up trajectories, in any order."""

    def __init__(self, facts: DataFacts):
        self.fields = list(flat_fields(row_fields(facts)))
        self.sums: list[bytes] = []  # one for each trajectory

    def add(self, one: Trajectory) -> None:
        made = hashlib.sha256(f"{len(one)} rows of agent {one.agent}, {'whole' if one.whole else 'cut'}".encode())
        rows: dict[str, Any] = {**one.record, **vars(one)}
        for path, _ in self.fields:
            values: Any = rows
            for name in path:
                values = values[name]
            if path[0] not in OF_DEAD_ROWS:
                values = values.copy()
                values[~one.valid] = 0
            values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
            made.update(f"\n{column_name(path)} {values.dtype.str} {values.shape}\n".encode())
            made.update(values.data)
        self.sums.append(made.digest())

    def hex(self) -> str:
        """The sha256 sum of the sorted sums of all trajectories."""
        return hashlib.sha256(b"".join(sorted(self.sums))).hexdigest()
