"""Replay: keeps the last rows of every column and draws fragments from them.

Every column is a ring of `rows_per_column` rows. Every sampler owns a block of columns with its own head. Rows of a
column are contiguous in time, so a fragment is given by its start (column, row) and its length. The observation that
follows the newest row is also stored, at the place of the next row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.checkpoint import rows_file
from rlrun.core.errors import Diverged, RunFailed, UserError
from rlrun.core.schedule import Clock
from rlrun.dataflow.reuse import Courier
from rlrun.dataflow.slots import Fragment
from rlrun.replay.layout import Layout, PrioritizedReplayConfig, ReplayConfig, saved_with
from rlrun.replay.outcomes import Outcomes
from rlrun.replay.rings import rings
from rlrun.replay.rows_file import RowsFile
from rlrun.replay.storage import Plain, in_files, in_memory, put, read, stores, write
from rlrun.replay.sum_tree import SumTree

REDRAWS = 100  # of starts that were dead, before the live ones are looked up among all
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
    ):
        """Allocates the ring. Raises UserError where it does not fit onto the disk.

        device: that of the learner, used with cfg.device=learner. first_priority: computes the priorities of new
        fragments; if None, they get the largest priority seen so far. number: index of this replay among those that are
        saved together.
        """
        self.cfg, self.layout, self.rng, self.first_priority, self.number = cfg, layout, rng, first_priority, number
        # Rows after a fragment that must be present: first priorities need what was recorded at its end.
        self.lag = 0 if first_priority is None else 1
        if layout.fragment_rows % layout.starts_every or (layout.core and layout.starts_every % layout.core_every):
            raise UserError(
                "replayed fragments must begin where recurrent state is stored, and samplers' fragments hold a whole"
                " number of them"
            )
        where = device if cfg.device == "learner" else torch.device("cpu")
        self.gpu = where if where.type == "cuda" else None
        self.courier = None if self.gpu is None else Courier(self.gpu)
        self.finish_writes: Callable[[], None] = lambda: None  # called before saving, to complete delayed writes
        self.length = layout.rows_per_column
        allocate = in_memory(where) if cfg.directory is None else in_files(Path(cfg.directory))
        columns = layout.columns
        # A copy of the ring's `valid` that is always on the CPU, where it decides what may be drawn.
        self.valid = torch.zeros(columns * self.length, dtype=torch.bool)
        self.tree, self.core = rings(cfg.compress, layout, allocate)
        self.head = np.zeros(layout.blocks, dtype=np.int64)  # for each block, the absolute number of the next row
        self.next_row: list[int | None] = [None] * layout.blocks  # the sampler's number of that row
        self.first = 0  # absolute number of the first row that was ever stored, see forget()
        self.spots = self.length // layout.starts_every  # number of possible starts in a column
        self.outcomes: Outcomes | None = None
        if layout.outcomes is not None:
            assert layout.rows == layout.starts_every == 1, "outcomes are those of single rows"
            self.outcomes = Outcomes(self.tree, columns, self.length, layout.outcomes, layout.drawn)
        self.may_start = np.zeros(columns * self.spots, dtype=bool)  # starts at which a fragment may be drawn
        self.starts = 0  # number of true entries in may_start
        # With new_first: for each column, the absolute number of the row where the next fragment begins that is new.
        self.new = np.zeros(columns, dtype=np.int64)
        self.priorities = cfg if isinstance(cfg, PrioritizedReplayConfig) else None
        self.tree_of_priorities = None if self.priorities is None else SumTree(columns * self.spots)
        self.largest_weight = 1.0  # largest P^-beta in the last batch, by which its weights were divided
        self.largest = 1.0  # largest priority ** alpha so far, which new rows get

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
        slot = int(self.head[block] % self.length)
        last = (slot + rows) % self.length
        valid = batch.valid
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
        over = [] if self.outcomes is None else self.outcomes.add(columns, int(self.head[block]), fragment.batch)
        self._advance(block, rows)
        for column, first, count in over:
            row = np.arange(max(first, self._window(block)[0]), first + count)
            alive = self._startable(np.full(row.shape, column), row)
            self._set_starts(self._leaf(np.full(row.shape, column), row), alive, np.where(alive, self.largest, 0.0))
        self.next_row[block] = header.first_row + rows

    def forget(self, row: int) -> None:
        """Empties a ring with one block. The next row has the absolute number `row`, a multiple of fragment_rows."""
        assert self.layout.blocks == 1 and row % self.layout.fragment_rows == 0
        self.valid.zero_()
        self._set_starts(np.arange(len(self.may_start)), False, 0.0)
        self.head[0], self.next_row = row, [None]
        self.new[:] = row
        self.first = row
        if self.outcomes is not None:
            self.outcomes.clear()

    def _break(self, block: int) -> None:
        """Inserts a fragment of dead rows. One dead row would suffice to mark the break, but with a whole fragment the
        starts stay aligned."""
        layout = self.layout
        columns, slot = slice(block * layout.block, (block + 1) * layout.block), int(self.head[block] % self.length)
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
        before = self._window(block)
        self.head[block] += rows
        layout, every = self.layout, self.layout.starts_every
        low, high = self._window(block)
        columns = np.arange(block * layout.block, (block + 1) * layout.block)
        gone = np.arange(before[0], min(low, before[1]), every)
        if gone.size:
            self._set_starts(self._leaf(columns[:, None], gone).reshape(-1), False, 0.0)
        new = np.arange(max(before[1], low), high, every)
        if new.size:
            column, row = np.repeat(columns, new.size), np.tile(new, columns.size)
            alive = self._startable(column, row)
            value: np.ndarray | float = self.largest
            if self.first_priority is not None and self.priorities is not None:
                value = self._scaled(self.first_priority(self._recorded(column, row)))
            self._set_starts(self._leaf(column, row), alive, np.where(alive, value, 0.0))

    def _set_starts(self, leaf: np.ndarray, alive: np.ndarray | bool, priority: np.ndarray | float) -> None:
        before = int(self.may_start[leaf].sum())
        self.may_start[leaf] = alive
        self.starts += int(self.may_start[leaf].sum()) - before
        if self.tree_of_priorities is not None:
            self.tree_of_priorities.set(leaf, priority)

    def _recorded(self, column: np.ndarray, row: np.ndarray) -> Batch:
        """Reads fragments [T + 1, N] without observations. In the last row only what the policy recorded belongs to a
        fragment; the reward does not."""
        index = column * self.length + (row + np.arange(self.layout.rows + 1)[:, None]) % self.length
        return read(
            {name: store for name, store in self.tree.items() if name not in ("obs", "is_first")},
            torch.from_numpy(index),
        )

    def _scaled(self, priority: Tensor) -> np.ndarray:
        """Returns (priority + priority_epsilon) ** alpha, as the tree holds it.
        Raises Diverged when a priority is negative or not finite."""
        value = priority.detach().double().cpu().numpy()
        if not np.isfinite(value).all() or (value < 0).any():
            raise Diverged("a priority is negative or not finite: the loss has diverged")
        assert self.priorities is not None
        return (value + self.priorities.priority_epsilon) ** self.priorities.alpha

    def _window(self, block: int) -> tuple[int, int]:
        """Returns the absolute rows [low, high), multiples of starts_every, at which complete fragments of this block
        begin: all their rows and the stacked frames before them are present."""
        layout, head, every = self.layout, int(self.head[block]), self.layout.starts_every
        oldest = max(self.first, head - self.length + 1)
        low = oldest + (layout.stack - 1 if oldest else 0)
        low = -(-low // every) * every
        high = (head - layout.rows - self.lag) // every * every + every
        return low, max(high, low)

    def _leaf(self, column: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Returns the numbers [...] of starts among all starts, from column [...] and absolute row [...]."""
        return column * self.spots + row % self.length // self.layout.starts_every

    def _place(self, leaf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the columns and absolute rows of starts, given their numbers among all starts."""
        column, slot = leaf // self.spots, leaf % self.spots * self.layout.starts_every
        head = self.head[column // self.layout.block]
        return column, head - 1 - (head - 1 - slot) % self.length  # the newest row in this slot

    def _startable(self, column: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Whether a fragment may begin at this row, which must be live. A sequence may also begin at a dead row if a
        later row is live."""
        valid, at = self.valid.numpy(), column * self.length
        alive = valid[at + row % self.length]
        if self.layout.sequences:
            for after in range(1, self.layout.rows):
                if alive.all():
                    break
                alive = alive | valid[at + (row + after) % self.length]
        return alive if self.outcomes is None else alive & self.outcomes.known(column, row)

    @property
    def blocks(self) -> int:
        """The number of producers of fragments."""
        return self.layout.blocks

    def __len__(self) -> int:
        """Returns the number of stored rows, including dead ones."""
        return int(np.minimum(self.head, self.length - 1).sum()) * self.layout.block

    # -- drawing -----------------------------------------------------------------------------------------------------

    def sample(self, count: int, clock: Clock) -> Batch:
        """Draws `count` fragments [T, count].

        obs is [2, count] (that of the first row and that of the end) or [T + 1, count], as the layout says. weight
        [count] holds importance sampling weights, relative to the largest of the batch (section 3.4; all 1 when drawn
        uniformly). key [count] identifies the fragments for write().
        """
        column, row, weight = self._draw(count, clock)
        layout, offsets = self.layout, np.arange(self.layout.rows)[:, None]
        index = torch.from_numpy(column * self.length + (row + offsets) % self.length)  # [T, B]
        fields = read(
            {name: store for name, store in self.tree.items() if name not in ("obs", "is_first")}, self._sent(index)
        )
        valid = self.valid[index]  # read from the copy on the CPU, so that a GPU need not be waited for
        if layout.rows_from < layout.rows:  # rows beyond the drawn length are made dead
            lengths = torch.randint(layout.rows_from, layout.rows + 1, (count,), generator=self.rng)
            valid &= torch.from_numpy(offsets) < lengths
            fields = fields.replace(valid=self._sent(valid))
        if layout.rows == 1:  # a single row is always live
            at = np.stack((column * self.length + row % self.length, column * self.length + (row + 1) % self.length))
        elif layout.ends:
            over = ~valid
            # The first dead row holds the observation that follows the last live one.
            end = torch.where(over.any(0), over.long().argmax(0), layout.rows).numpy()
            at = np.stack((column * self.length + row % self.length, column * self.length + (row + end) % self.length))
        else:
            at = column * self.length + (row + np.arange(layout.rows + 1)[:, None]) % self.length
        seen = read({name: self.tree[name] for name in ("obs", "is_first")}, self._sent(torch.from_numpy(at)))
        batch = Batch(**{**fields, **seen})
        if self.core:
            spot = torch.from_numpy(
                column * (self.length // layout.core_every) + row % self.length // layout.core_every
            )
            batch = batch.replace(core=read(self.core, self._sent(spot[None])))  # [1, B]
        if self.outcomes is not None:
            known = self.outcomes.read(column, row)
            batch = batch.replace(**{name: torch.from_numpy(part[None]) for name, part in known.items()})
        return batch.replace(weight=torch.from_numpy(weight), key=torch.from_numpy(row * layout.columns + column))

    def _sent(self, index: Tensor) -> Tensor:
        """Copies an index to the device that holds the rows, without waiting for the work of a GPU."""
        return index if self.gpu is None else index.pin_memory().to(self.gpu, non_blocking=True)

    def _draw(self, count: int, clock: Clock) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns columns [count], absolute rows [count] and weights [count] float32."""
        if self.tree_of_priorities is not None:
            return self._draw_by_priority(count, clock, self.tree_of_priorities)
        if self.layout.new_first and (new := self._new(count)):
            begun = np.array(new, dtype=np.int64)
            column, row = begun.T
            if len(new) < count:
                others = self._draw_any(count - len(new))
                column, row = np.concatenate((column, others[0])), np.concatenate((row, others[1]))
            return column, row, np.ones(count, dtype=np.float32)
        return self._draw_any(count)

    def _new(self, count: int) -> list[tuple[int, int]]:
        """Takes up to `count` fragments that were never drawn, those with the oldest rows first, as (column, row).

        Those of a column follow each other, and the row behind one fragment, whose observation it has too, is its own
        (the online queue of danijar/dreamerv3 @ e3f0224, embodied/core/replay.py). Fragments whose rows are gone, or
        that hold dead rows alone, are passed over."""
        layout = self.layout
        found: list[tuple[int, int]] = []
        bounds = np.repeat([self._window(block) for block in range(layout.blocks)], layout.block, axis=0)
        step = -(-(layout.rows + 1) // layout.starts_every) * layout.starts_every
        behind = np.maximum(bounds[:, 0] - self.new, 0)
        self.new += -(-behind // step) * step
        while len(found) < count:
            column = int(np.where(self.new < bounds[:, 1], self.new, np.iinfo(np.int64).max).argmin())
            row = int(self.new[column])
            if row >= bounds[column, 1]:
                break
            self.new[column] += step
            if self.may_start[self._leaf(np.array([column]), np.array([row]))][0]:
                found.append((column, row))
        return found

    def _draw_any(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws uniformly over all starts."""
        layout, every = self.layout, self.layout.starts_every
        windows = [self._window(block) for block in range(layout.blocks)]
        sizes = np.array([(high - low) // every for low, high in windows])
        ends = (sizes * layout.block).cumsum()
        if self.starts == 0:
            raise RunFailed("replay was asked for rows before it had any")
        column, row = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        missing = np.arange(count)
        for _ in range(REDRAWS):  # dead starts are drawn again
            pick = torch.randint(int(ends[-1]), (missing.size,), generator=self.rng).numpy()
            block = np.searchsorted(ends, pick, side="right")
            within = pick - (ends - sizes * layout.block)[block]
            column[missing] = block * layout.block + within % layout.block
            row[missing] = np.array([low for low, _ in windows])[block] + within // layout.block * every
            missing = missing[~self.may_start[self._leaf(column[missing], row[missing])]]
            if not missing.size:
                break
        else:
            live = np.flatnonzero(self.may_start)
            pick = torch.randint(live.size, (missing.size,), generator=self.rng).numpy()
            column[missing], row[missing] = self._place(live[pick])
        return column, row, np.ones(count, dtype=np.float32)

    def _draw_by_priority(self, count: int, clock: Clock, tree: SumTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        total = tree.total
        if self.starts == 0 or total <= 0:
            raise RunFailed("replay was asked for rows before it had any")
        # Makes one draw from each of `count` equal stretches (appendix B.2.1).
        target = (np.arange(count) + torch.rand(count, generator=self.rng, dtype=torch.float64).numpy()) * (
            total / count
        )
        leaf = tree.find(target)
        column, row = self._place(leaf)
        # w = (N P)^-beta. N (the same for all learners) and the sum of priorities cancel when weights are divided by
        # the largest of the batch.
        assert self.priorities is not None
        beta = self.priorities.beta(clock)
        weight = tree.leaves[leaf] ** -beta
        self.largest_weight = float(weight.max()) * total**beta
        return column, row, (weight / weight.max()).astype(np.float32)

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
        low = np.array([self._window(block)[0] for block in range(self.layout.blocks)])
        there = row >= low[column // self.layout.block]
        tree = self.tree_of_priorities
        if priority is not None and tree is not None:
            value = self._scaled(priority)
            if there.any():
                self.largest = max(self.largest, float(value[there].max()))
                tree.set(self._leaf(column[there], row[there]), value[there])
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
            # The row of the last observation may not be complete yet. Then it has a place, and core is written again
            # when it arrives.
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
            "head": self.head.tolist(),
            "next_row": list(self.next_row),
            "largest": self.largest,
            **({"new": self.new.tolist()} if self.layout.new_first else {}),
            "rng": self.rng.get_state(),
            "length": self.length,
            "columns": self.layout.columns,
            **({} if self.outcomes is None else {"outcomes": self.outcomes.state()}),
        }

    def save_rows(self, folder: Path) -> None:
        """Writes the rows into a file in this folder piece by piece, so that memory never holds a second copy."""
        self.finish_writes()
        filled = int(min(self.head.max(initial=0) + 1, self.length))
        leaves = [] if self.tree_of_priorities is None else [self.tree_of_priorities.leaves]
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
        leaves = [] if self.tree_of_priorities is None else [np.empty(self.layout.columns * self.spots)]
        arrays = [*leaves, *([] if self.outcomes is None else self.outcomes.arrays())]
        self._rows_file(folder).read(arrays)
        if self.tree_of_priorities is not None:
            self.tree_of_priorities.set(np.arange(self.layout.columns * self.spots), leaves[0])
        self.head, self.next_row, self.largest = (
            np.array(state["head"], dtype=np.int64),
            list(state["next_row"]),
            state["largest"],
        )
        self.rng.set_state(state["rng"])
        if self.outcomes is not None:
            self.outcomes.load_state(state["outcomes"])
        # Fragments of a checkpoint from before this counter existed count as drawn.
        heads = np.repeat(self.head, self.layout.block).tolist()
        self.new = np.array(state.get("new", heads), dtype=np.int64)
        valid = self.tree["valid"]
        assert isinstance(valid, Plain)
        self.valid.copy_(valid.flat)
        for column, rows in self._windows():
            alive = self._startable(np.full(rows.shape, column), rows)
            self.may_start[self._leaf(np.full(rows.shape, column), rows)] = alive
        self.starts = int(self.may_start.sum())

    def _windows(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields every column with the rows at which its complete fragments begin."""
        for block in range(self.layout.blocks):
            low, high = self._window(block)
            for column in range(block * self.layout.block, (block + 1) * self.layout.block):
                yield column, np.arange(low, high, self.layout.starts_every)

    # -- for tests and debugging -------------------------------------------------------------------------------------

    def check_valid(self) -> None:
        """Raises AssertionError unless exactly the complete live starts can be drawn, and every node of the sum tree is
        the sum of its children."""
        tree = self.tree_of_priorities
        may = np.zeros((self.layout.columns, self.spots), dtype=bool)
        for column, rows in self._windows():
            may[column, rows % self.length // self.layout.starts_every] = self._startable(
                np.full(rows.shape, column), rows
            )
        assert (self.may_start.reshape(may.shape) == may).all() and self.starts == may.sum()
        assert torch.equal(self.tree["valid"].flat.cpu(), self.valid)  # type: ignore[union-attr]
        if tree is not None:
            leaves = tree.leaves.reshape(self.layout.columns, self.spots)
            assert ((leaves > 0) == may).all()
            for below, level in zip(tree.levels, tree.levels[1:], strict=False):
                assert (level.reshape(-1)[: len(below)] == below.sum(1)).all()
