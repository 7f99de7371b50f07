"""Makes the stores of a replay, one for each field of its rows."""

from __future__ import annotations

from rlrun.core.batch import Field
from rlrun.replay.layout import Layout
from rlrun.replay.storage import Allocate, Frames, Packed, Plain, Store, Tree, build


def rings(compress: bool, layout: Layout, allocate: Allocate) -> tuple[Tree, Tree]:
    """The stores of all fields of a row, and those of the recurrent state, which is stored every core_every rows.

    compress: whether observations are kept compressed."""
    columns, length = layout.columns, layout.rows_per_column
    firsts: list[Plain] = []

    def make(path: tuple[str, ...], field: Field) -> Store:
        if path == ("is_first",):
            firsts.append(Plain(columns, length, field, allocate))
            return firsts[0]
        stacked = layout.stack > 1 and path[:2] == ("obs", "observation")
        single = Field(field.shape[1:], field.dtype) if stacked else field
        store: Store
        if path[0] == "obs" and compress:
            store = Packed(columns, length, single)
        else:
            store = Plain(columns, length, single, allocate)
        return Frames(store, layout.stack, firsts[0].flat, length) if stacked else store

    # Stacked frames are read with is_first, whose store is therefore made before theirs.
    rest = {name: part for name, part in layout.stored.items() if name != "is_first"}
    tree = build({"is_first": layout.stored["is_first"], **rest}, make)
    every = layout.core_every
    core = build(layout.core, lambda _, field: Plain(columns, length // every, field, allocate)) if layout.core else {}
    return tree, core
