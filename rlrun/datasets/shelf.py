"""DataRows: what a learner draws from data sets in place of a replay of experience.

Every data set has a Shelf: a ring of rows (replay/buffer.py) into which trajectories are written one behind the other.
A set that fits is read once. Of a larger one, as many rows are read as are drawn, so that the ring is a shuffle buffer
in which every row waits until it has been drawn once on average. Pieces of a set are read in random order.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.core.algorithm import FromReplay
from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.dataflow.slots import Fragment, Header
from rlrun.datasets.options import DataConfig
from rlrun.datasets.parquet import Block, ParquetSource, block_of, check_same, column_name, flat_fields
from rlrun.datasets.trajectories import DataFacts, Source, without_previous
from rlrun.replay.buffer import Replay
from rlrun.replay.layout import Layout, ReplayConfig

FEED_ROWS = 1024  # rows that are written into a ring at once
AHEAD = 2  # pieces that each reader may have ready
RETURNS: RowSpec = {
    "return_to_go": Field((), torch.float32),
    "end_discount": Field((), torch.float32),
    "end_distance": Field((), torch.int64),  # rows to the end of the trajectory
}


class DataNeeds(NamedTuple):
    """What an algorithm draws."""

    spec: EnvSpec
    record: RowSpec  # recorded fields that it learns from
    core: RowSpec
    core_every: int
    rows: int
    replay: FromReplay

    def layout(self, capacity: int) -> Layout:
        """The layout of a ring with one column. Recurrent state is no part of it: data hold none."""
        asked, unit = self.replay, np.lcm(self.replay.starts_every, self.core_every or 1)
        return Layout(
            obs=self.spec.obs_rows,
            action=self.spec.action_row,
            record={**self.record, **(RETURNS if asked.returns is not None else {})},
            core={},
            core_every=1,
            block=1,
            blocks=1,
            fragment_rows=int(-(-FEED_ROWS // unit) * unit),
            rows=self.rows,
            rows_from=asked.rows_from,
            ends=asked.obs == "ends",
            starts_every=asked.starts_every,
            sequences=asked.sequences,
            stack=self.spec.stack,
            capacity=capacity,
            reward=self.spec.reward_row,
        )


def check_fits(facts: DataFacts, wanted: DataNeeds, name: str) -> None:
    """Raises UserError if a data set's rows are not those of the run's environment, or lack what the algorithm
    needs."""
    spec, theirs = without_previous(wanted.spec), facts.spec
    absent = [part for part in spec.obs if part not in theirs.obs]
    if absent:
        raise UserError(f"{name} has no {absent[0]} in its observations, and this run needs it")
    kept = dataclasses.replace(theirs, obs={part: theirs.obs[part] for part in spec.obs})
    check_same(DataFacts(spec=spec), DataFacts(spec=kept), name)
    for path, field in flat_fields(wanted.record):
        if dict(flat_fields(facts.record)).get(path) != field:
            raise UserError(f"{name} has no {column_name(path)} with its rows, which this algorithm learns from")


def returns_of(source: Source) -> np.ndarray:
    """The undiscounted return of every trajectory."""
    found = [one.ret for piece in range(source.pieces()) for one in source.read(piece)]
    return np.array(found)


def held(source: Source) -> str:
    """A sum that tells one data set from another: of the names and row groups of files, if they are rlrun's own. No
    two files that were recorded have the same name."""
    told = [f"{source.pieces()} pieces"]
    if isinstance(source, ParquetSource):
        pairs = zip(source.groups, source.rows_of, strict=True)
        told = [f"{file.name} {group} {rows}" for (file, group), rows in pairs]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


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
        rank: int,
        device: torch.device,
    ):
        """capacity: rows in memory. Raises UserError if the set does not fit the run or cannot be read."""
        check_fits(source.facts, wanted, source.name)
        self.source, self.wanted, self.cfg = source, wanted, cfg
        self.scale = cfg.reward_scale if isinstance(cfg.reward_scale, float | int) else _scale(source)
        self.seeds, self.number, self.rank = seeds, number, rank
        known = capacity if source.most_rows is None else source.most_rows
        unit = wanted.layout(1).fragment_rows
        capacity = min(capacity, (known // unit + 3) * unit)  # room for the whole set, and for its last fragment
        self.ring = Replay(
            dataclasses.replace(replay, capacity=capacity),
            wanted.layout(capacity),
            seeds.generator("data", rank, number),
            device,
            number=number,
        )
        self.unit = self.ring.layout.fragment_rows
        self.whole = False  # whether all rows are in memory, so that nothing more is read
        self.kept = self.left_out = 0  # trajectories in the first pass that filters kept and left out
        self.pool = ThreadPoolExecutor(cfg.readers, thread_name_prefix="data")
        self.stream = self._stream(0)
        self.marks: deque[tuple[int, int]] = deque()  # (place in the reading order, row at which that piece begins)
        self.rest: list[dict[str, Any]] = []  # rows that are read and not written yet, in pieces
        self.rest_rows = 0
        self.fed = 0  # rows that were written, which is the number of the next row
        self.owed = 0.0  # rows to be read for those that were drawn
        self.seen: Callable[[Batch], object] = lambda rows: None  # told of every fragment that is written

    # -- reading -------------------------------------------------------------------------------------------------------

    def order(self, turn: int) -> np.ndarray:
        """The order in which the pieces are read in one pass."""
        rng = self.seeds.numpy("data-order", self.number, turn)  # the same for all learners
        return rng.permutation(self.source.pieces())

    def _stream(self, place: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (place, rows) of the pieces from a place in the endless reading order on. Several threads read ahead,
        and the order never depends on them."""
        count, ahead = self.source.pieces(), deque[tuple[int, Future]]()
        turn, order = place // count, self.order(place // count)
        while True:
            while len(ahead) < AHEAD * self.cfg.readers:
                if place // count != turn:
                    turn, order = place // count, self.order(place // count)
                ahead.append((place, self.pool.submit(self._read, int(order[place % count]))))
                place += 1
            there, future = ahead.popleft()
            yield there, future.result()

    def _read(self, piece: int) -> dict[str, Any]:
        """Reads a piece as rows, without what filters leave out; it has no rows if nothing is left."""
        source = self.source
        if isinstance(source, ParquetSource):
            block = source.block(piece)
            if self.cfg.min_return is None and self.cfg.max_return is None:
                return {**self._prepared(block), "counts": (len(block.begins), 0)}
            found = [block.trajectory(number) for number in range(len(block.begins))]
        else:
            found = list(source.read(piece))
        kept = [one for one in found if self._kept(one.ret)]
        if not kept:
            return {"counts": (0, len(found))}
        return {**self._prepared(block_of(kept)), "counts": (len(kept), len(found) - len(kept))}

    def _kept(self, ret: float) -> bool:
        low, high = self.cfg.min_return, self.cfg.max_return
        return (low is None or ret >= low) and (high is None or ret <= high)

    def _prepared(self, block: Block) -> dict[str, Any]:
        """The rows of a block as the ring stores them."""
        spec, rows = self.wanted.spec, block.rows
        count = len(rows["reward"])
        first = np.zeros(count, dtype=bool)
        first[block.begins] = True
        obs = {name: rows["obs"][name] for name in spec.obs if name in rows["obs"]}
        if "prev_action" in spec.obs:
            obs["prev_action"] = _previous(rows["action"], first)
        if "prev_reward" in spec.obs:
            obs["prev_reward"] = _previous(rows["reward"][:, None], first)
        made = {
            "obs": obs,
            "is_first": first,
            "action": rows["action"],
            "reward": self._scaled(rows["reward"]),
            "terminated": rows["terminated"],
            "valid": rows["valid"],
            **{name: rows[name] for name in self.wanted.record},
        }
        if self.wanted.replay.returns is not None:
            made |= to_go(made["reward"], rows["valid"], rows["terminated"], self.wanted.replay.returns)
        return made

    def _scaled(self, reward: np.ndarray) -> np.ndarray:
        if self.scale == 1.0 and self.cfg.reward_shift == 0.0:
            return reward
        return (reward * self.scale + self.cfg.reward_shift).astype(np.float32)

    def fill(self) -> None:
        """Reads until the ring is full or the set has been read once.

        Raises UserError if no row can be learnt from."""
        last = self.source.pieces() - 1
        place = -1
        while place < last and self.fed + self.rest_rows < self.ring.length:
            place = self._take_piece()
            self._feed()
        # Only what was not overwritten is there.
        self.whole = place == last and self.fed + self.rest_rows < self.ring.length - self.unit
        if self.whole:
            self._feed(to_the_end=True)
            self.close()
        if self.ring.starts == 0:
            why = f"; data.min_return and data.max_return leave out {self.left_out} of them" if self.left_out else ""
            raise UserError(
                f"{self.source.name}: there is nothing to learn from in {self.kept + self.left_out} trajectories{why}"
            )

    def _take_piece(self) -> int:
        """Reads the next piece. Returns its place in the reading order. Raises RunFailed if it is damaged."""
        try:
            place, rows = next(self.stream)
        except UserError as error:
            raise RunFailed(str(error)) from None
        kept, left_out = rows.pop("counts")
        if place < self.source.pieces():
            self.kept, self.left_out = self.kept + kept, self.left_out + left_out
        self.marks.append((place, self.fed + self.rest_rows))
        oldest = self.fed - self.ring.length
        while len(self.marks) > 1 and self.marks[1][1] <= oldest:
            self.marks.popleft()
        if kept:
            self.rest.append(rows)
            self.rest_rows += len(rows["reward"])
        return place

    def _feed(self, to_the_end: bool = False) -> None:
        """Writes whole fragments of the waiting rows into the ring, and with to_the_end also the last ones, filled up
        with dead rows."""
        # The row behind a fragment is written with it.
        while self.rest_rows > self.unit or (to_the_end and self.rest_rows > 0):
            rows = self.rest[0] if len(self.rest) == 1 else _joined(self.rest)
            have = len(rows["reward"])
            if have <= self.unit:
                rows = _filled(rows, self.unit + 1 - have)
            count = max(1, (len(rows["reward"]) - 1) // self.unit)
            for start in range(0, count * self.unit, self.unit):
                self._add({name: _cut(value, start, start + self.unit + 1) for name, value in rows.items()})
            left = have - count * self.unit
            self.rest = (
                [{name: _cut(value, count * self.unit, have) for name, value in rows.items()}] if left > 0 else []
            )
            self.rest_rows = max(0, left)

    def _add(self, rows: dict[str, Any]) -> None:
        """Writes one fragment, given its rows and the one behind it."""
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
                fields[name] = made.map(lambda x: x[: self.unit]) if isinstance(made, Batch) else made[: self.unit]
        batch = Batch(fields)
        self.ring.add(Fragment(Header(0, 0, self.fed, 0, 0, 0, (), (0.0, 0.0)), batch))
        self.fed += self.unit
        self.seen(batch)

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
                    self._take_piece()
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
            early = (end > self.ring.head[0]).nonzero().squeeze(1)
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
        tree = self.ring.tree_of_priorities
        return {
            "held": held(self.source),
            "fed": self.fed,
            "owed": self.owed,
            "rest_rows": self.rest_rows,
            "marks": [list(mark) for mark in self.marks],
            "rng": self.ring.rng.get_state(),
            "largest": self.ring.largest,
            "priorities": None if tree is None else torch.from_numpy(tree.leaves.copy()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Reads the rows again that were in memory, and goes on from there. Raises UserError if there are other rows
        now."""
        changed = UserError(f"{self.source.name} has changed since the checkpoint was made; start a new run")
        if state.get("held", held(self.source)) != held(self.source):  # older checkpoints do not say it
            raise changed
        if self.whole:
            if state["fed"] != self.fed:
                raise changed
        else:
            place, row = state["marks"][0]
            begin = -(-row // self.unit) * self.unit
            self.stream = self._stream(place)
            self.rest, self.rest_rows, self.marks, self.fed = [], 0, deque(), row
            while self.fed + self.rest_rows < state["fed"] + state["rest_rows"] or self.rest_rows < begin - row:
                self._take_piece()
            if self.fed + self.rest_rows != state["fed"] + state["rest_rows"]:
                raise changed
            rows = self.rest[0] if len(self.rest) == 1 else _joined(self.rest)
            self.rest = [{name: _cut(value, begin - row, self.rest_rows) for name, value in rows.items()}]
            self.rest_rows, self.fed = self.rest_rows - (begin - row), begin
            self.ring.forget(begin)
            self._feed_some((state["fed"] - begin) // self.unit)
            self.owed = state["owed"]
        if self.rank == 0:
            self.ring.rng.set_state(state["rng"])
        else:
            self.ring.rng = self.seeds.generator("data", self.rank, self.number, self.fed)
        self.ring.largest = state["largest"]
        if self.ring.tree_of_priorities is not None and state["priorities"] is not None:
            leaves = state["priorities"].numpy()
            self.ring.tree_of_priorities.set(np.arange(len(leaves)), leaves)

    def close(self) -> None:
        """Ends the reading, and forgets the pieces that were read ahead."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.stream = iter(())


def _replaced(old: Any, new: Any, columns: Tensor) -> Any:
    """A batch in which these columns [N] are those of another batch."""
    if isinstance(old, Batch):
        return Batch({name: _replaced(old[name], new[name], columns) for name in old})
    return old.index_copy(min(old.ndim - 1, 1), columns.to(old.device), new)  # weight and key have columns alone


def to_go(reward: np.ndarray, valid: np.ndarray, terminated: np.ndarray, discount: float) -> dict[str, np.ndarray]:
    """For rows [N] that end with a dead one: the discounted sum of rewards from each row to the next dead row, the
    discount of the value there (0 if the row before it was terminated), and the distance to it in rows."""
    count = len(reward)
    dead = np.flatnonzero(~valid)
    end = dead[np.searchsorted(dead, np.arange(count))]  # the next dead row, which may be the row itself
    distance = end - np.arange(count)
    # After step k, a row's total covers 2^k rewards, so that few passes over all rows suffice.
    total = np.where(valid, reward, 0.0).astype(np.float64)
    reach = 1
    while reach <= distance.max(initial=0):
        inside = np.flatnonzero(distance > reach)
        total[inside] = total[inside] + discount**reach * total[inside + reach]
        reach *= 2
    over = terminated[np.maximum(end - 1, 0)] & valid
    return {
        "return_to_go": total.astype(np.float32),
        "end_discount": np.where(over | ~valid, 0.0, discount**distance).astype(np.float32),
        "end_distance": distance.astype(np.int64),
    }


def _scale(source: Source) -> float:
    """1000 / (largest - smallest return), as the authors of implicit Q-learning scale rewards."""
    found = returns_of(source)
    if not len(found) or found.max() <= found.min():
        raise UserError(f"data.reward_scale=returns: all returns of {source.name} are the same")
    return 1000.0 / float(found.max() - found.min())


def _previous(values: Any, first: np.ndarray) -> Any:
    """What the row before holds, and 0 where an episode begins."""
    if isinstance(values, dict):
        return {name: _previous(part, first) for name, part in values.items()}
    made = np.zeros_like(values)
    made[1:] = values[:-1]
    made[first] = 0
    return made


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
