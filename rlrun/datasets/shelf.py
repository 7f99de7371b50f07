"""Shelf: a ring of rows (replay/buffer.py) into which the trajectories of a data set are written, one behind the other.

A set that fits is read once. Of a larger one, as many rows are read as are drawn, so that the ring is a shuffle buffer
in which every row waits until it has been drawn once on average."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.moments import fold
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.slots import Fragment, Header
from rlrun.datasets.options import DataConfig
from rlrun.datasets.reading import DataNeeds, ReadPart, RowReader, check_fits
from rlrun.datasets.trajectories import Source
from rlrun.replay.buffer import Replay
from rlrun.replay.layout import ReplayConfig
from rlrun.replay.sum_tree import SumTree


def sum_of(identity: Sequence[str]) -> str:
    """A sum that tells one data set from another."""
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()


def _nothing(rows: Batch) -> None:
    """Does nothing, where nobody asks for the moments of rows."""


def _next(stream: Iterator[ReadPart]) -> ReadPart:
    """The next part of a set. Raises RunFailed if it is damaged."""
    try:
        return next(stream)
    except UserError as error:
        raise RunFailed(str(error)) from None


class Shelf:
    """The rows of one data set, from which fragments are drawn."""

    def __init__(
        self,
        source: Source,
        wanted: DataNeeds,
        cfg: DataConfig,
        replay: ReplayConfig,
        capacity: int,
        seeds: Seeds,
        number: int,
        rng: torch.Generator,
        tells: bool,
        device: torch.device,
    ):
        """capacity: rows in memory. rng: draws the rows. tells: whether this learner tells the user what it reads.
        Raises UserError if the set does not fit the run or cannot be read."""
        check_fits(source.facts, wanted, source.name)
        self.source, self.wanted, self.cfg = source, wanted, cfg
        self.held = sum_of(source.identity)  # as it is now that it is read
        self.reader = RowReader(source, wanted, cfg, seeds, number)
        self.tells = tells
        known = capacity if source.most_rows is None else source.most_rows
        unit, drawn = wanted.layout(1).fragment_rows, wanted.layout(1).rows
        if known <= capacity:
            capacity = known + unit + drawn  # room for the whole set, and for the dead rows behind it
        self.ring = Replay(
            dataclasses.replace(replay, capacity=capacity),
            wanted.layout(capacity),
            rng,
            device,
            number=number,
        )
        self.unit = self.ring.layout.fragment_rows
        self.room = self.ring.length - self.unit - drawn  # sets of fewer rows are held as a whole
        self.whole = False  # whether all rows are in memory, so that nothing more is read
        self.first_pass = 0  # rows that were read to fill the memory, which is the whole set where it fits
        # Trajectories in the first pass that filters kept and left out, and how many of these are parts of episodes.
        self.kept = self.left_out = self.cut = 0
        self.stream = self.reader.parts()
        # Of the parts whose rows are in memory: place and number (ReadPart), and the row at which it begins.
        self.marks: deque[tuple[int, int, int]] = deque()
        self.rest: list[dict[str, Any]] = []  # rows that are read and not written yet, in parts
        self.rest_rows = 0
        self.fed = 0  # rows that were written, which is the number of the next row
        self.owed = 0.0  # rows to be read for those that were drawn
        self.seen: Callable[[Batch], object] = _nothing  # told of every fragment that is written

    def fill(
        self, moments: Callable[[Batch], Any] | None = None, stopping: Callable[[], bool] = lambda: False
    ) -> list[Any] | None:
        """Reads until the ring is full or the set has been read once.

        Returns what moments(rows) returned, except None, for the rows [T, 1] of the whole set. Lists of moments are
        merged into one. If the set is larger than memory, it is read once more for that, which may take long; None if
        the run is stopping meanwhile. Raises UserError if no row can be learnt from."""
        found: list[Any] = []
        if moments is not None:
            self.seen = lambda rows: fold(found, moments(rows))
        self._fill()
        self.seen = _nothing
        if moments is not None and not self.whole and any(one is not None for one in found):
            if self.tells:
                print(f"  the observation filter reads all rows of {self.source.name} first", flush=True)
            found.clear()
            for rows in self._all_rows():
                if stopping():
                    return None
                fold(found, moments(rows))
        return [one for one in found if one is not None]

    def _fill(self) -> None:
        over = False
        while not over and self.fed + self.rest_rows < self.ring.length:
            over = self._take_part()
            self._feed()
        self.first_pass = self.fed + self.rest_rows
        # Only what was not overwritten is there.
        self.whole = over and self.first_pass < self.room
        if self.whole:
            self._feed(to_the_end=True)
            self.close()
        if self.ring.starts == 0:
            why = f"; {self._filtered('them')}" if self.left_out else ""
            raise UserError(
                f"{self.source.name}: there is nothing to learn from in {self.kept + self.left_out:,} trajectories{why}"
            )
        if self.left_out and self.tells:
            read = f"the {self.kept + self.left_out:,} trajectories of {self.source.name} that were read"
            print(f"  {self._filtered(read)}", flush=True)

    def _filtered(self, trajectories: str) -> str:
        """What filters left out of the first pass, as a sentence."""
        said = f"data.min_return and data.max_return leave out {self.left_out:,} of {trajectories}"
        return said + (f", {self.cut:,} because they are only parts of episodes" if self.cut else "")

    def _take_part(self) -> bool:
        """Reads on. Returns whether the set has been read once now. Raises RunFailed if it is damaged."""
        part = _next(self.stream)
        pieces = self.source.pieces()
        if part.place < pieces:
            self.kept, self.left_out = self.kept + part.kept, self.left_out + part.left_out
            self.cut += part.cut
        row = self.fed + self.rest_rows
        if self.marks and self.marks[-1][2] == row:
            self.marks.pop()  # filters left nothing of that part
        self.marks.append((part.place, part.number, row))
        oldest = self.fed - self.ring.length
        while len(self.marks) > 1 and self.marks[1][2] <= oldest:
            self.marks.popleft()
        if part.rows is not None:
            self.rest.append(part.rows)
            self.rest_rows += len(part.rows["reward"])
        return part.over and part.place == pieces - 1

    def _all_rows(self) -> Iterator[Batch]:
        """Reads the set once and yields what filters leave of it, in parts [T, 1]. Raises RunFailed if it is
        damaged."""
        stream, over = self.reader.parts(), False
        while not over:
            part = _next(stream)
            if part.rows is not None:
                yield self._batch(_filled(part.rows, 1))
            over = part.over and part.place == self.source.pieces() - 1

    def _feed(self, to_the_end: bool = False) -> None:
        """Writes whole fragments of the waiting rows into the ring, and with to_the_end also the last ones. Dead rows
        fill these up, and as many as are drawn at a time stand behind the last live row, so that it is drawn too."""
        # The row behind a fragment is written with it.
        while self.rest_rows > self.unit or (to_the_end and self.rest_rows > 0):
            rows = self.rest[0] if len(self.rest) == 1 else _joined(self.rest)
            have = len(rows["reward"])
            if have <= self.unit:
                rows = _filled(rows, self._padded(have) + 1 - have)
            count = max(1, (len(rows["reward"]) - 1) // self.unit)
            for start in range(0, count * self.unit, self.unit):
                self._add({name: _cut(value, start, start + self.unit + 1) for name, value in rows.items()})
            left = have - count * self.unit
            self.rest = (
                [{name: _cut(value, count * self.unit, have) for name, value in rows.items()}] if left > 0 else []
            )
            self.rest_rows = max(0, left)

    def _padded(self, rows: int) -> int:
        """The length of the last fragments of a set, which hold these live rows."""
        return -(-(rows + self.ring.layout.rows) // self.unit) * self.unit

    def _add(self, rows: dict[str, Any]) -> None:
        """Writes one fragment, given its rows and the one behind it."""
        batch = self._batch(rows)
        self.ring.add(Fragment(Header(0, 0, self.fed, 0, 0, 0, (), (0.0, 0.0)), batch))
        self.fed += self.unit
        self.seen(batch)

    def _batch(self, rows: dict[str, Any]) -> Batch:
        """Rows as a batch [T, 1], given the one behind them too."""
        layout = self.ring.layout

        def tensor(value: Any, frames: bool = False) -> Any:
            if isinstance(value, dict):
                return Batch({name: tensor(part, frames) for name, part in value.items()})
            made = torch.from_numpy(value if value.flags.writeable else value.copy()).unsqueeze(1)  # [T + 1, 1, ...]
            return made.unsqueeze(2).expand(-1, -1, layout.stack, *made.shape[2:]) if frames else made

        fields: dict[str, Any] = {}
        for name, value in rows.items():
            if name == "obs":
                stacked = layout.stack > 1
                fields[name] = Batch(
                    {part: tensor(inner, stacked and part == "observation") for part, inner in value.items()}
                )
            elif name == "is_first":
                fields[name] = tensor(value)
            else:
                made = tensor(value)
                fields[name] = made.map(lambda x: x[:-1]) if isinstance(made, Batch) else made[:-1]
        return Batch(fields)

    # -- drawing -------------------------------------------------------------------------------------------------------

    def sample(self, count: int, clock: Clock) -> Batch:
        """Draws fragments as Replay.sample does, and reads as many new rows as are drawn if the set is larger than
        memory."""
        batch = self.ring.sample(count, clock)
        if self.wanted.replay.returns is not None:
            batch = self._with_ends(batch, clock)
        if self.wanted.core and self.wanted.core_every:
            batch = batch.replace(core=_zeros(self.wanted.core, count).to(batch.reward.device))  # [1, count]
        if not self.whole:
            self.owed += count * self.wanted.replay.rows_learnt
            if self.owed >= self.unit:
                while self.rest_rows <= self.owed:
                    self._take_part()
                before = self.fed
                self._feed_some(int(self.owed // self.unit))
                self.owed -= self.fed - before
        return batch

    def _feed_some(self, fragments: int) -> None:
        """Writes at most this many fragments of the waiting rows."""
        rows = self.rest[0] if len(self.rest) == 1 else _joined(self.rest)
        count = min(fragments, (len(rows["reward"]) - 1) // self.unit)
        for start in range(0, count * self.unit, self.unit):
            self._add({name: _cut(value, start, start + self.unit + 1) for name, value in rows.items()})
        self.rest = [{name: _cut(value, count * self.unit, self.rest_rows) for name, value in rows.items()}]
        self.rest_rows -= count * self.unit

    def _with_ends(self, batch: Batch, clock: Clock) -> Batch:
        """Adds the observation at the end of each row's trajectory. Rows whose end is not in memory yet are drawn
        again."""
        for _ in range(1000):
            end = batch.key + batch["end_distance"][0].cpu()  # a key is the row's number, since there is one column
            early = (end > self.ring.draws.head[0]).nonzero().squeeze(1)
            if not len(early):
                return batch.replace(end=self.ring.observations(end[None]))
            batch = _replaced(batch, self.ring.sample(len(early), clock), early)
        raise RunFailed(f"data.buffer is too small: it holds no whole trajectory of {self.source.name}")

    def write(self, key: Tensor, **fields: Any) -> None:
        """Writes as Replay.write does. There is no room for recurrent states, which are those of no policy."""
        fields.pop("core", None)
        self.ring.write(key, **fields)

    # -- saving --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to draw the same rows: the place in the set and priorities, and not the rows
        themselves."""
        tree = self.ring.draws.tree
        return {
            "held": self.held,
            "length": self.ring.length,
            "room": self.room,
            "fed": self.fed,
            "owed": self.owed,
            "rest_rows": self.rest_rows,
            "marks": [list(mark) for mark in self.marks],
            "rng": self.ring.draws.rng.get_state(),
            "largest": self.ring.draws.largest,
            "priorities": None if tree is None else torch.from_numpy(tree.leaves.copy()),
        }

    def restore(self, state: Mapping[str, Any], own: bool) -> None:
        """Reads the rows again that were in memory, and goes on from there. own: whether the state is this learner's,
        so that its random stream goes on too. Raises UserError if there are other rows now.

        The ring of an older checkpoint may have had another length. A set that fits only into today's ring stays in it
        as a whole."""
        changed = UserError(f"{self.source.name} has changed since the checkpoint was made; start a new run")
        # Older checkpoints know only the number of pieces of other libraries' sets, and the oldest know nothing.
        if state.get("held", self.held) not in (self.held, sum_of([f"{self.source.pieces()} pieces"])):
            raise changed
        was_whole = state["rest_rows"] == 0  # rows always wait to be written where a set is larger than memory
        # Older checkpoints had no dead rows behind those that fill the last fragment.
        older = -(-self.first_pass // self.unit) * self.unit
        if self.whole and was_whole and state["fed"] not in (self.fed, older):
            raise changed
        # As far as a checkpoint says what its ring had room for, a set that was larger must be so still.
        room = state.get("room", state.get("length", 0) - self.unit)
        if self.whole and not was_whole and self.first_pass < room:
            raise changed
        if not self.whole and not self._read_again(state):
            raise changed
        if own:
            self.ring.draws.rng.set_state(state["rng"])
        self.ring.draws.largest = state["largest"]
        if self.ring.draws.tree is not None and state["priorities"] is not None:
            self._take_priorities(state, self.ring.draws.tree)

    def _read_again(self, state: Mapping[str, Any]) -> bool:
        """Goes to the place of a saved state in a set that is larger than memory. Returns whether the rows that it
        tells of are there."""
        place, *number, row = state["marks"][0]  # older checkpoints know pieces and no parts
        begin = -(-row // self.unit) * self.unit
        self.stream = self.reader.parts(place, *number)
        self.rest, self.rest_rows, self.marks, self.fed = [], 0, deque(), row
        while self.fed + self.rest_rows < state["fed"] + state["rest_rows"] or self.rest_rows < begin - row:
            self._take_part()
        if self.fed + self.rest_rows != state["fed"] + state["rest_rows"]:
            return False
        rows = self.rest[0] if len(self.rest) == 1 else _joined(self.rest)
        self.rest = [{name: _cut(value, begin - row, self.rest_rows) for name, value in rows.items()}]
        self.rest_rows, self.fed = self.rest_rows - (begin - row), begin
        self.ring.forget(begin)
        self._feed_some((state["fed"] - begin) // self.unit)
        self.owed = state["owed"]
        return True

    def _take_priorities(self, state: Mapping[str, Any], tree: SumTree) -> None:
        """Gives every row that was in the saved ring its priority, and the others the largest, as new rows get it."""
        draws, layout, saved = self.ring.draws, self.ring.layout, state["priorities"].numpy()
        value = np.full(len(draws.may), draws.largest)
        same = state["rest_rows"] == 0 if self.whole else state["fed"] == self.fed
        if same:  # otherwise the saved rows are those of another pass over the set
            length = state.get("length", len(saved) * layout.starts_every)  # older checkpoints do not say it
            row = np.arange(*draws.window(0), layout.starts_every)
            row = row[row >= self.fed - length + layout.stack]  # the oldest row that the saved ring drew
            known = saved[row % length // layout.starts_every]
            # Older checkpoints could not draw the last rows of a set, and have no priorities of them.
            value[draws.leaf(np.zeros_like(row), row)] = np.where(known > 0, known, draws.largest)
        tree.set(np.arange(len(value)), np.where(draws.may, value, 0.0))

    def close(self) -> None:
        """Ends the reading, and forgets what was read ahead."""
        self.reader.close()
        self.stream = iter(())


def _replaced(old: Any, new: Any, columns: Tensor) -> Any:
    """A batch in which these columns [N] are those of another batch."""
    if isinstance(old, Batch):
        return Batch({name: _replaced(old[name], new[name], columns) for name in old})
    return old.index_copy(min(old.ndim - 1, 1), columns.to(old.device), new)  # weight and key have columns alone


def _cut(value: Any, begin: int, end: int) -> Any:
    if isinstance(value, dict):
        return {name: _cut(part, begin, end) for name, part in value.items()}
    return value[begin:end]


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)


def _filled(rows: Any, count: int) -> Any:
    """Rows with `count` blank ones behind them. They are dead, because valid is False there."""
    if isinstance(rows, dict):
        return {name: _filled(part, count) for name, part in rows.items()}
    return np.concatenate((rows, np.zeros((count, *rows.shape[1:]), rows.dtype)))


def _zeros(spec: RowSpec, columns: int) -> Batch:
    """Zeros [1, columns, ...] for every field."""
    return Batch(
        {
            name: torch.zeros(1, columns, *part.shape, dtype=part.dtype)
            if isinstance(part, Field)
            else _zeros(part, columns)
            for name, part in spec.items()
        }
    )
