"""Replay: keeps the last rows of every column and draws fragments from them.

Every column is a ring of `rows_per_column` rows. Every sampler owns a block of columns with its own head. Rows of a
column are contiguous in time, so a fragment is given by its start (column, row) and its length. The observation that
follows the newest row is also stored, at the place of the next row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.algorithm import Recorder
from rlrun.core.batch import Batch, RowSpec, allocate
from rlrun.core.checkpoint import rows_file
from rlrun.core.schedule import Clock
from rlrun.dataflow.reuse import Courier
from rlrun.dataflow.slots import Fragment
from rlrun.replay.layout import Layout, PrioritizedReplayConfig, ReplayConfig, saved_with
from rlrun.replay.outcomes import Outcomes
from rlrun.replay.rings import rings
from rlrun.replay.rows_file import RowsFile
from rlrun.replay.starts import Starts
from rlrun.replay.storage import Plain, in_files, in_memory, put, read, stores, write

FirstPriority = Callable[[Batch], Tensor]  # fragments [T + 1, N] without observations -> [N]


class Replay:
    """Draws fragments uniformly over starts, or in proportion to priorities (Schaul et al. 2016, arXiv:1511.05952)."""

    def __init__(
        self,
        cfg: ReplayConfig,
        layout: Layout,
        rng: torch.Generator,
        device: torch.device,
        first_priority: FirstPriority | None = None,
        number: int = 0,
        recorder: Recorder | None = None,
    ):
        """Allocates the ring. Raises UserError where it does not fit onto the disk.

        device: that of the learner, used with cfg.device=learner. first_priority: computes the priorities of new
        fragments; if None, they get the largest priority seen so far. number: index of this replay among those that are
        saved together. recorder: records what a replay on a GPU does with its rows, where it is not None.
        """
        self.cfg, self.layout, self.first_priority, self.number = cfg, layout, first_priority, number
        # First priorities need what was recorded at the end of a fragment, so that one row must be present after it.
        lag = 0 if first_priority is None else 1
        self.draws = Starts(layout, rng, cfg if isinstance(cfg, PrioritizedReplayConfig) else None, lag)
        assert layout.fragment_rows % layout.starts_every == 0  # runtime/replay_plan.py has checked it
        assert not layout.core or layout.starts_every % layout.core_every == 0, "fragments begin at a stored state"
        where = device if cfg.device == "learner" else torch.device("cpu")
        self.gpu = where if where.type == "cuda" else None
        self.courier = None if self.gpu is None else Courier(self.gpu)
        self.whole: RowSpec = {}  # the layout of a fragment in one piece
        self._place: Callable[[Batch, Any], Any] = self._placed
        self._rows: Callable[[Batch, Any], Batch] = self._read
        if recorder is not None and self.gpu is not None:
            self._place, self._rows = (recorder.recorded(function, list) for function in (self._place, self._rows))
        self.finish_writes: Callable[[], None] = lambda: None  # called before saving, to complete delayed writes
        self.length = layout.rows_per_column
        allocate = in_memory(where) if cfg.directory is None else in_files(Path(cfg.directory))
        columns = layout.columns
        # A copy of the ring's `valid` that is always on the CPU, where it decides what may be drawn.
        self.valid = torch.zeros(columns * self.length, dtype=torch.bool)
        self.tree, self.core = rings(cfg.compress, layout, allocate)
        self.next_row: list[int | None] = [None] * layout.blocks  # for each block, the sampler's number of its next row
        self.outcomes: Outcomes | None = None
        if layout.outcomes is not None:
            assert layout.rows == layout.starts_every == 1, "outcomes are those of single rows"
            self.outcomes = Outcomes(self.tree, columns, self.length, layout.outcomes, layout.drawn)

    # -- adding ------------------------------------------------------------------------------------------------------

    def add(self, fragment: Fragment) -> None:
        """Copies a fragment [T, B] into the ring.

        Its rows must follow those of the same worker's last fragment. Otherwise they must begin new episodes, and dead
        rows are inserted before them.
        """
        header, batch, layout = fragment.header, fragment.batch, self.layout
        block = header.worker % layout.blocks
        if self.next_row[block] is not None and self.next_row[block] != header.first_row:
            assert bool(batch.is_first[0].all()), "rows are missing in the middle of an episode"
            self._break(block)
        rows = batch.reward.shape[0]
        assert rows == layout.fragment_rows and batch.reward.shape[1] == layout.block, "fragments of another shape"
        columns = slice(block * layout.block, (block + 1) * layout.block)
        slot = int(self.draws.head[block] % self.length)
        last = (slot + rows) % self.length
        valid = batch.valid
        if self.courier is not None and fragment.whole is not None:
            self._send(*fragment.whole, columns, slot)
        else:
            if self.courier is not None:
                (batch,) = self.courier([batch])
            for name in self.tree:
                part = batch[name]
                leading = part.map(lambda x: x[:rows]) if isinstance(part, Batch) else part[:rows]
                write({name: self.tree[name]}, columns, slot, Batch({name: leading}))
                if name in ("obs", "is_first"):
                    end = part.map(lambda x: x[rows:]) if isinstance(part, Batch) else part[rows:]
                    write({name: self.tree[name]}, columns, last, Batch({name: end}))
            if self.core:
                every = layout.core_every
                write(self.core, columns, slot // every, batch.core.map(lambda x: x[: rows // every]))
        by_column = self.valid.view(layout.columns, self.length)
        by_column[columns, slot : slot + rows] = valid.T
        over = [] if self.outcomes is None else self.outcomes.add(columns, int(self.draws.head[block]), fragment.batch)
        self._advance(block, rows)
        for column, first, count in over:
            row = np.arange(max(first, self.draws.window(block)[0]), first + count)
            alive = self._startable(np.full(row.shape, column), row)
            self.draws.set(
                self.draws.leaf(np.full(row.shape, column), row), alive, np.where(alive, self.draws.largest, 0.0)
            )
        self.next_row[block] = header.first_row + rows

    def _send(self, memory: Tensor, whole: RowSpec, columns: slice, slot: int) -> None:
        """Copies a fragment that is one piece of memory to the GPU and writes its rows from row `slot` on. The thread
        that acts waits for Python whenever this one works, so that few calls are made here."""
        assert self.courier is not None
        self.whole, layout, every = whole, self.layout, self.layout.core_every
        column = np.arange(columns.start, columns.stop)
        row = (slot + np.arange(layout.fragment_rows + 1)[:, None]) % self.length
        sent = Batch(memory=memory, index=torch.from_numpy(column * self.length + row))
        if self.core:
            spot = slot // every + np.arange(layout.fragment_rows // every)[:, None]
            sent = sent.replace(spot=torch.from_numpy(column * (self.length // every) + spot))
        self._place(self.courier([sent])[0], Clock())

    def _placed(self, sent: Batch, clock: Any) -> tuple[()]:
        """Writes what _send() has sent."""
        batch, index = allocate(self.whole, sent["memory"]), sent["index"]  # type: ignore[arg-type]
        for name, store in self.tree.items():
            ends = name in ("obs", "is_first")
            put(store, index if ends else index[:-1], batch[name])  # type: ignore[arg-type]
        if self.core:
            spot: Tensor = sent["spot"]  # type: ignore[assignment]
            put(self.core, spot, batch.core.map(lambda x: x[: len(spot)]))
        return ()

    def forget(self, row: int) -> None:
        """Empties a ring with one block. The next row has the absolute number `row`, a multiple of fragment_rows."""
        assert self.layout.blocks == 1 and row % self.layout.fragment_rows == 0
        self.valid.zero_()
        self.draws.forget(row)
        self.next_row = [None]
        if self.outcomes is not None:
            self.outcomes.clear()

    def _break(self, block: int) -> None:
        """Inserts a fragment of dead rows. One dead row would suffice to mark the break, but with a whole fragment the
        starts stay aligned."""
        layout = self.layout
        columns, slot = (
            slice(block * layout.block, (block + 1) * layout.block),
            int(self.draws.head[block] % self.length),
        )
        for name in ("reward", "terminated", "valid"):
            store = self.tree[name]
            assert isinstance(store, Plain)
            store.values[columns, slot : slot + layout.fragment_rows] = 0
        # The policy did not act on the first dead row, which the row before it may bootstrap from. It gets the records
        # of the row before it, which are the closest that exist.
        for _, store in stores({name: self.tree[name] for name in layout.record}):
            assert isinstance(store, Plain)
            store.values[columns, slot] = store.values[columns, slot - 1]
        first = self.tree["is_first"]
        assert isinstance(first, Plain)
        first.values[columns, slot + 1 : slot + layout.fragment_rows] = 0
        self.valid.view(layout.columns, self.length)[columns, slot : slot + layout.fragment_rows] = False
        if self.outcomes is not None:
            self.outcomes.break_off(columns)
        self._advance(block, layout.fragment_rows)

    def _advance(self, block: int, rows: int) -> None:
        """Moves the head of a block over `rows` new rows. Starts that these complete may be drawn from now on; starts
        whose rows they overwrote may not."""
        before = self.draws.window(block)
        self.draws.head[block] += rows
        layout, every = self.layout, self.layout.starts_every
        low, high = self.draws.window(block)
        columns = np.arange(block * layout.block, (block + 1) * layout.block)
        gone = np.arange(before[0], min(low, before[1]), every)
        if gone.size:
            self.draws.set(self.draws.leaf(columns[:, None], gone).reshape(-1), False, 0.0)
        new = np.arange(max(before[1], low), high, every)
        if new.size:
            column, row = np.repeat(columns, new.size), np.tile(new, columns.size)
            alive = self._startable(column, row)
            value: np.ndarray | float = self.draws.largest
            if self.first_priority is not None and self.draws.priorities is not None:
                value = self.draws.scaled(self.first_priority(self._recorded(column, row)))
            self.draws.set(self.draws.leaf(column, row), alive, np.where(alive, value, 0.0))

    def _recorded(self, column: np.ndarray, row: np.ndarray) -> Batch:
        """Reads fragments [T + 1, N] without observations. In the last row only what the policy recorded belongs to a
        fragment; the reward does not."""
        index = column * self.length + (row + np.arange(self.layout.rows + 1)[:, None]) % self.length
        return read(
            {name: store for name, store in self.tree.items() if name not in ("obs", "is_first")},
            torch.from_numpy(index),
        )

    def _startable(self, column: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Whether a fragment may begin at this row, which must be live. A sequence may also begin at a dead row. One of
        the rows that are learnt from, which follow its burn-in, must be live."""
        valid, at, burn_in = self.valid.numpy(), column * self.length, self.layout.burn_in
        alive = valid[at + (row + burn_in) % self.length]
        if self.layout.sequences:
            for after in range(burn_in + 1, self.layout.rows):
                if alive.all():
                    break
                alive = alive | valid[at + (row + after) % self.length]
        return alive if self.outcomes is None else alive & self.outcomes.known(column, row)

    @property
    def starts(self) -> int:
        """The number of places at which a fragment may begin."""
        return self.draws.count

    @property
    def largest_weight(self) -> float:
        """The largest number by which weights of the last batch were divided."""
        return self.draws.largest_weight

    @property
    def blocks(self) -> int:
        """The number of producers of fragments."""
        return self.layout.blocks

    def __len__(self) -> int:
        """Returns the number of stored rows, including dead ones."""
        return int(np.minimum(self.draws.head, self.length - 1).sum()) * self.layout.block

    # -- drawing -----------------------------------------------------------------------------------------------------

    def sample(self, count: int, clock: Clock) -> Batch:
        """Draws `count` fragments [T, count].

        obs is [2, count] (that of the first row and that of the end) or [T + 1, count], as the layout says. weight
        [count] holds importance sampling weights, relative to the largest of the batch (section 3.4; all 1 when drawn
        uniformly). key [count] identifies the fragments for write().
        """
        column, row, weight = self.draws.draw(count, clock)
        layout, offsets = self.layout, np.arange(self.layout.rows)[:, None]
        index = torch.from_numpy(column * self.length + (row + offsets) % self.length)  # [T, B]
        picked, live = Batch(index=index), None
        valid = self.valid[index]  # read from the copy on the CPU, so that a GPU need not be waited for
        if layout.rows_from < layout.rows:  # rows beyond the drawn length are made dead
            lengths = torch.randint(layout.rows_from, layout.rows + 1, (count,), generator=self.draws.rng)
            valid &= torch.from_numpy(offsets) < lengths
            live = valid
        if layout.rows == 1:  # a single row is always live
            at = np.stack((column * self.length + row % self.length, column * self.length + (row + 1) % self.length))
        elif layout.ends:
            over = ~valid
            # The first dead row holds the observation that follows the last live one.
            end = torch.where(over.any(0), over.long().argmax(0), layout.rows).numpy()
            at = np.stack((column * self.length + row % self.length, column * self.length + (row + end) % self.length))
        else:
            at = column * self.length + (row + np.arange(layout.rows + 1)[:, None]) % self.length
        picked = picked.replace(at=torch.from_numpy(at))
        if self.core:
            spot = torch.from_numpy(
                column * (self.length // layout.core_every) + row % self.length // layout.core_every
            )
            picked = picked.replace(spot=spot[None])  # [1, B]
        batch = self._rows(picked.map(self._sent), clock)
        if live is not None:
            batch = batch.replace(valid=self._sent(live))
        if self.outcomes is not None:
            known = self.outcomes.read(column, row)
            batch = batch.replace(**{name: torch.from_numpy(part[None]) for name, part in known.items()})
        return batch.replace(weight=torch.from_numpy(weight), key=torch.from_numpy(row * layout.columns + column))

    def _read(self, picked: Batch, clock: Any) -> Batch:
        """Reads rows: all fields at index [T, B] but obs and is_first, which are read at `at`, and core at `spot`."""
        index, at = (picked[name] for name in ("index", "at"))
        ends = ("obs", "is_first")
        fields = read({name: store for name, store in self.tree.items() if name not in ends}, index)  # type: ignore[arg-type]
        batch = Batch({**fields, **read({name: self.tree[name] for name in ends}, at)})  # type: ignore[arg-type]
        return batch.replace(core=read(self.core, picked["spot"])) if self.core else batch  # type: ignore[arg-type]

    def _sent(self, index: Tensor) -> Tensor:
        """Copies an index to the device that holds the rows, without waiting for the work of a GPU."""
        return index if self.gpu is None else index.pin_memory().to(self.gpu, non_blocking=True)

    def write(self, key: Tensor, /, priority: Tensor | None = None, **fields: Tensor | Batch) -> None:
        """Writes what an update computed for drawn fragments (Update.writes), given their keys [B].

        Fragments that have been overwritten are skipped. priority [B] are the new priorities. `fields` are new values
        [R, B, ...] of fields that the policy recorded, by name, for the first R rows of each fragment; for `core`, for
        R rows at which state is stored, from Needs.core_first on, to the row of the last observation at most. If two
        fragments share a row, the later one's values are kept. Raises KeyError for a name that is not recorded, and
        Diverged when a priority is negative or not finite.
        """
        self.layout.refuse_unknown(fields)
        keys = key.cpu().numpy()
        column, row = keys % self.layout.columns, keys // self.layout.columns
        low = np.array([self.draws.window(block)[0] for block in range(self.layout.blocks)])
        there = row >= low[column // self.layout.block]
        tree = self.draws.tree
        if priority is not None and tree is not None:
            value = self.draws.scaled(priority)
            if there.any():
                self.draws.largest = max(self.draws.largest, float(value[there].max()))
                tree.set(self.draws.leaf(column[there], row[there]), value[there])
        if fields and there.any():
            self._write_fields(
                column[there],
                row[there],
                Batch(fields).map(lambda x: x.detach()[:, torch.from_numpy(there).to(x.device)]),
            )

    def _write_fields(self, column: np.ndarray, row: np.ndarray, fields: Batch) -> None:
        """Writes leaves [R, N, ...] into fragments that begin at column [N], row [N]."""
        for name, values in fields.items():
            core = name == "core"
            every = self.layout.core_every if core else 1  # distance in rows between stored values
            count = len(values if isinstance(values, Tensor) else next(values.leaves()))
            offsets = (self.layout.core_first if core else 0) + every * np.arange(count)[:, None]
            # The row of the last observation may not be complete yet. It has a place already; its core is written now,
            # and again with the whole row.
            assert 0 < count and offsets[-1] < self.layout.rows + core, f"{name} has more rows than a fragment"
            spot = (row + offsets) % self.length // every  # [R, N]
            put(
                self.core if name == "core" else self.tree[name],
                torch.from_numpy(column * (self.length // every) + spot),
                values,
            )

    def observations(self, row: Tensor) -> Batch:
        """Returns obs and is_first [..., B] at absolute rows [..., B] of a ring with one column, if they are stored."""
        index = row % self.length
        return read({name: self.tree[name] for name in ("obs", "is_first")}, self._sent(index))

    # -- saving ------------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> bool:
        """Whether checkpoints hold the rows."""
        return saved_with(self.layout, self.cfg)

    def state(self) -> dict:
        """Returns the counters and the generator's state. save_rows() saves the rows."""
        self.finish_writes()
        return {
            "head": self.draws.head.tolist(),
            "next_row": list(self.next_row),
            "largest": self.draws.largest,
            **({"new": self.draws.new.tolist()} if self.layout.new_first else {}),
            "rng": self.draws.rng.get_state(),
            "length": self.length,
            "columns": self.layout.columns,
            **({} if self.outcomes is None else {"outcomes": self.outcomes.state()}),
        }

    def save_rows(self, folder: Path) -> None:
        """Writes the rows into a file in this folder piece by piece, so that memory never holds a second copy."""
        self.finish_writes()
        filled = int(min(self.draws.head.max(initial=0) + 1, self.length))
        leaves = [] if self.draws.tree is None else [self.draws.tree.leaves]
        arrays = [*leaves, *([] if self.outcomes is None else self.outcomes.arrays())]
        self._rows_file(folder).write(filled, arrays)

    def _rows_file(self, folder: Path) -> RowsFile:
        return RowsFile(
            folder, rows_file(self.number), self.layout.columns, self.tree, self.core, self.layout.core_every or 1
        )

    def load(self, state: dict, folder: Path | None) -> None:
        """Restores what state() and save_rows() saved.

        folder is None if the rows were not saved; then the replay begins empty. Raises UserError where the rows do not
        fit this run or are damaged.
        """
        if folder is None:
            return
        assert state["length"] == self.length and len(state["head"]) == self.layout.blocks, (
            "ReplayPlan.check_saved() comes first"
        )
        leaves = [] if self.draws.tree is None else [np.empty(self.layout.columns * self.draws.per_column)]
        arrays = [*leaves, *([] if self.outcomes is None else self.outcomes.arrays())]
        self._rows_file(folder).read(arrays)
        self.draws.head, self.next_row, self.draws.largest = (
            np.array(state["head"], dtype=np.int64),
            list(state["next_row"]),
            state["largest"],
        )
        self.draws.rng.set_state(state["rng"])
        if self.outcomes is not None:
            self.outcomes.load_state(state["outcomes"])
        # Fragments of a checkpoint from before this counter existed count as drawn.
        heads = np.repeat(self.draws.head, self.layout.block).tolist()
        self.draws.new = np.array(state.get("new", heads), dtype=np.int64)
        valid = self.tree["valid"]
        assert isinstance(valid, Plain)
        self.valid.copy_(valid.flat)
        for column, rows in self.draws.windows():
            alive = self._startable(np.full(rows.shape, column), rows)
            self.draws.may[self.draws.leaf(np.full(rows.shape, column), rows)] = alive
        self.draws.count = int(self.draws.may.sum())
        if self.draws.tree is not None:  # older checkpoints have priorities of sequences that nothing is learnt from
            self.draws.tree.set(np.arange(len(self.draws.may)), np.where(self.draws.may, leaves[0], 0.0))

    # -- for tests and debugging -------------------------------------------------------------------------------------

    def check_valid(self) -> None:
        """Raises AssertionError unless exactly the complete live starts can be drawn, and every node of the sum tree is
        the sum of its children."""
        tree = self.draws.tree
        may = np.zeros((self.layout.columns, self.draws.per_column), dtype=bool)
        for column, rows in self.draws.windows():
            may[column, rows % self.length // self.layout.starts_every] = self._startable(
                np.full(rows.shape, column), rows
            )
        assert (self.draws.may.reshape(may.shape) == may).all() and self.draws.count == may.sum()
        assert torch.equal(self.tree["valid"].flat.cpu(), self.valid)  # type: ignore[union-attr]
        if tree is not None:
            leaves = tree.leaves.reshape(self.layout.columns, self.draws.per_column)
            assert ((leaves > 0) == may).all()
            for below, level in zip(tree.levels, tree.levels[1:], strict=False):
                assert (level.reshape(-1)[: len(below)] == below.sum(1)).all()
