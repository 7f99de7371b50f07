"""Batch, the container for rows of experience, and the layout of a fragment in memory.

A fragment has T rows and B columns. Every field has T rows, except `obs` (with everything in it) and `is_first`, which
have T+1 rows, and `core` (recurrent state), which is stored at rows 0, L, 2L ... T. In row t the agent saw obs[t],
chose action[t] and received reward[t]. obs[t+1] is always the true consequence of that action, even at the end of an
episode. `valid[t]` is False on dead rows: the trajectory ends at obs[t], and that row's action, reward and records have
no meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Field(NamedTuple):
    """Shape of one row of one column, and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


RowSpec = dict[str, "Field | RowSpec"]
SCALAR_REWARD = Field((), torch.float32)  # one number per row, as in most environments
ALIGNMENT = 64  # bytes; this is a cache line and enough for any vector instruction


class Batch(Mapping[str, "Tensor | Batch"]):
    """An immutable mapping from names to tensors or nested Batches. `batch.reward` is `batch["reward"]`. An index that
    is not a name indexes the leading dimension of every field."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Tensor | Batch] | None = None, /, **more: Tensor | Batch):
        object.__setattr__(self, "_fields", {**(fields or {}), **more})

    def __getitem__(self, index):
        if isinstance(index, str):
            return self._fields[index]
        return self.map(lambda value: value[index])

    def __getattr__(self, name: str):
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(f"Batch has no field {name!r}; it has {', '.join(self._fields)}") from None

    def __setattr__(self, name, value):
        raise AttributeError("a Batch is immutable: use replace()")

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        inside = ", ".join(
            f"{k}={v!r}" if isinstance(v, Batch) else f"{k}={v.dtype}{list(v.shape)}" for k, v in self._fields.items()
        )
        return f"Batch({inside})"

    def __reduce__(self):
        return Batch, (self._fields,)

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same tree with `function` applied to every tensor."""
        return Batch(
            {name: v.map(function) if isinstance(v, Batch) else function(v) for name, v in self._fields.items()}
        )

    def leaves(self) -> Iterator[Tensor]:
        """Yields every tensor, depth first, in the order in which the names were inserted."""
        for value in self._fields.values():
            if isinstance(value, Batch):
                yield from value.leaves()
            else:
                yield value

    def replace(self, /, **fields: Tensor | Batch) -> Batch:
        """A new Batch with these fields added or replaced."""
        return Batch(self._fields, **fields)

    def to(self, device: torch.device | str) -> Batch:
        return self.map(lambda value: value.to(device, non_blocking=True))

    def clone(self) -> Batch:
        return self.map(torch.clone)

    def copy_(self, source: Batch) -> None:
        """Copies every tensor of `source`, whose order of names does not matter, into this Batch's memory. Shapes must
        match. Raises ValueError if the names are not the same."""
        if self._fields.keys() != source._fields.keys():
            raise ValueError(f"a Batch of {', '.join(self)} cannot be filled from one of {', '.join(source)}")
        for name, mine in self._fields.items():
            mine.copy_(source._fields[name])

    def columns(self, index) -> Batch:
        """These columns (dimension 1) of every field: views for a slice, copies for a tensor of column numbers [N]."""
        if isinstance(index, slice):
            return self.map(lambda value: value[:, index])

        def select(value: Tensor) -> Tensor:
            # value[:, index] would copy images byte by byte, which is twenty times as slow on a CPU.
            return value[0].index_select(0, index).unsqueeze(0) if len(value) == 1 else value.index_select(1, index)

        return self.map(select)

    def discount(self, value: float) -> Tensor:
        """value * (1 - terminated) [T, B]. Truncation does not make the discount zero."""
        return value * (1.0 - self["terminated"].float())

    def sequences(self, length: int) -> Batch:
        """[T(+1), B] -> [length, B * T / length]: cuts every column into pieces and drops row T. Recurrent state must
        be stored every `length` rows; the result holds the state at row 0 of each piece, as core [1, ...]. With length
        1, every row becomes a column of one row."""
        rows, columns = self["reward"].shape[:2]
        assert rows % length == 0, (rows, length)

        def cut(value: Tensor) -> Tensor:
            pieces = value[:rows].unflatten(0, (rows // length, length))  # [T / length, length, B, ...]
            return pieces.transpose(0, 1).reshape(length, rows // length * columns, *value.shape[2:])

        def first(value: Tensor) -> Tensor:
            return value[: rows // length].reshape(1, rows // length * columns, *value.shape[2:])

        return Batch(
            {
                name: value.map(first) if name == "core" else value.map(cut) if isinstance(value, Batch) else cut(value)  # type: ignore[union-attr]
                for name, value in self._fields.items()
            }
        )

    def lived(self) -> Batch:
        """The rows [T(+1), B, ...] without those behind the first one in which no column lives any more. Without a dead
        row at the end, or with recurrent state, nothing is left out."""
        alive = self["valid"].any(1).nonzero()  # type: ignore[union-attr]
        rows = len(self["valid"])
        count = min(rows, int(alive[-1]) + 2 if len(alive) else 1)
        if count == rows or "core" in self:
            return self

        def cut(name: str, value: Tensor | Batch) -> Tensor | Batch:
            if isinstance(value, Batch):
                return Batch({key: cut(name, part) for key, part in value.items()})
            return value[: count + (name in ("obs", "is_first"))]

        return Batch({name: cut(name, value) for name, value in self.items()})

    def ends(self) -> Batch:
        """A fragment's first row and its end, leaves [2, B, ...] of obs and is_first. The end is the first dead row, or
        row T if all rows are live. If replay has already left out the other rows, the result is the same rows."""
        rows, columns = self["valid"].shape
        kept = Batch(obs=self["obs"], is_first=self["is_first"])
        if rows == 1 or len(self["is_first"]) != rows + 1:  # a single row is live
            return kept
        over = ~self["valid"]  # type: ignore[operator]
        end = torch.where(over.any(0), over.long().argmax(0), rows)
        index = torch.stack((torch.zeros_like(end), end)), torch.arange(columns, device=end.device)
        return kept.map(lambda value: value[index])

    def alive(self) -> Batch:
        """The columns that have a live row, or the first one if none has, because an update of no columns is none.
        After sequences(), columns are pieces or single rows."""
        found = self["valid"].any(0)
        found[0] |= ~found.any()
        return self.columns(found.nonzero().squeeze(1))

    def split(self, columns: int) -> Iterator[Batch]:
        """Yields `columns` columns of every field at a time."""
        total = self["reward"].shape[1]
        for start in range(0, total, columns):
            yield self.columns(slice(start, start + columns))

    def minibatches(self, epochs: int, columns: int, rng: torch.Generator) -> Iterator[Batch]:
        """Yields `columns` random columns of every field at a time, and every column at most once per epoch. Columns
        that do not fill a minibatch are left out of that epoch."""
        total = self["reward"].shape[1]
        for _ in range(epochs):
            order = torch.randperm(total, generator=rng, device=rng.device)
            for start in range(0, total - columns + 1, columns):
                picks = order[start : start + columns]
                yield self.columns(picks)

    def numpy(self) -> dict:
        """The same tree as dictionaries of NumPy views (CPU only), into which writing a row is cheaper."""
        return {name: value.numpy() for name, value in self._fields.items()}


def at(tree: Tensor | Batch, path: tuple[str, ...]) -> Tensor:
    """The tensor at this path of a tree, or the tree itself if the path is empty."""
    for name in path:
        assert isinstance(tree, Batch)
        tree = tree[name]
    assert isinstance(tree, Tensor)
    return tree


def paths(tree: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all leaves of a tree of nested mappings, in its own order; a tree that is a leaf has the path ()."""
    if not isinstance(tree, Mapping):
        return [before]
    return [path for name, inner in tree.items() for path in paths(inner, (*before, name))]


def nested(tree: Mapping[str, Any]) -> Batch:
    """A Batch of nested mappings, as a checkpoint holds them."""
    return Batch({name: nested(value) if isinstance(value, Mapping) else value for name, value in tree.items()})


def stack_columns(batches: Sequence[Batch], out: Batch | None = None) -> Batch:
    """Puts fragments side by side: [T, B1], [T, B2] ... -> [T, B1 + B2 + ...], in the memory of `out` if given."""
    if out is None:
        if len(batches) == 1:
            return batches[0]
        first = batches[0]
        return Batch(
            {
                k: (
                    stack_columns([b[k] for b in batches])
                    if isinstance(v, Batch)
                    else torch.cat([b[k] for b in batches], 1)
                )
                for k, v in first.items()
            }
        )
    start = 0
    for batch in batches:
        width = next(batch.leaves()).shape[1]
        out.columns(slice(start, start + width)).copy_(batch)
        start += width
    return out


def fragment_layout(
    obs: RowSpec,
    action: Field | RowSpec,
    record: RowSpec,
    core: RowSpec,
    rows: int,
    columns: int,
    core_every: int,
    reward: Field = SCALAR_REWARD,
) -> RowSpec:
    """Full shapes ([rows, columns, ...]) of a fragment's fields. `core` is empty for policies without memory."""

    def widen(spec: Field | RowSpec, count: int) -> Field | RowSpec:
        if isinstance(spec, Field):
            return Field((count, columns, *spec.shape), spec.dtype)
        return {name: widen(inner, count) for name, inner in spec.items()}

    layout: RowSpec = {
        "obs": widen(obs, rows + 1),
        "is_first": Field((rows + 1, columns), torch.bool),
        "action": widen(action, rows),
        "reward": widen(reward, rows),
        **{name: Field((rows, columns), torch.bool) for name in ("terminated", "truncated", "valid")},
        **{name: widen(spec, rows) for name, spec in record.items()},
    }
    if core:
        layout["core"] = widen(core, rows // core_every + 1)
    return layout


def layout_bytes(layout: RowSpec) -> int:
    """The bytes of one fragment, in which every field is aligned."""
    total = 0
    for spec in layout.values():
        if isinstance(spec, Field):
            size = math.prod(spec.shape) * torch.empty((), dtype=spec.dtype).element_size()
            total += -(-size // ALIGNMENT) * ALIGNMENT
        else:
            total += layout_bytes(spec)
    return total


def allocate(layout: RowSpec, memory: Tensor | None = None, pin: bool = False) -> Batch:
    """Tensors of these full shapes, as views of `memory` (uint8, 1-D, at least layout_bytes(layout) long) or of new
    memory.

    New memory is filled with a sentinel (NaN, or 0x7F in every byte), which makes rows that nobody wrote noticeable."""
    if memory is None:
        memory = torch.full((layout_bytes(layout),), 0x7F, dtype=torch.uint8, pin_memory=pin)
        fresh = True
    else:
        fresh = False
    offset = 0

    def carve(spec: Field | RowSpec) -> Tensor | Batch:
        nonlocal offset
        if not isinstance(spec, Field):
            return Batch({name: carve(inner) for name, inner in spec.items()})
        size = math.prod(spec.shape) * torch.empty((), dtype=spec.dtype).element_size()
        flat = memory[offset : offset + size].view(spec.dtype)
        offset += -(-size // ALIGNMENT) * ALIGNMENT
        field = flat.view(spec.shape)
        if fresh and spec.dtype.is_floating_point:
            field.fill_(math.nan)
        elif fresh and spec.dtype == torch.bool:
            field.zero_()
        return field

    batch = carve(layout)
    assert isinstance(batch, Batch)
    return batch


def torch_dtype(dtype) -> torch.dtype:
    """The torch dtype for a NumPy dtype."""
    return torch.from_numpy(np.zeros(1, dtype=dtype)).dtype
