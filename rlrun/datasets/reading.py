"""RowReader: reads a data set again and again, as rows in the form in which a ring stores them.

The pieces of a set are read in random order. A piece may be larger than memory, such as a worker's whole chain of
RLlib's files; it is read in parts, each with whole trajectories of about PART_ROWS rows or PART_BYTES."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.core.algorithm import FromReplay
from rlrun.core.batch import Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec, executed
from rlrun.datasets.options import DataConfig
from rlrun.datasets.parquet import Block, ParquetSource, block_of, check_same, column_name, flat_fields
from rlrun.datasets.trajectories import DataFacts, Source, Trajectory, row_fields, without_previous
from rlrun.replay.layout import Layout

FEED_ROWS = 1024  # rows that are written into a ring at once
AHEAD = 2  # pieces of which each reader may have a part ready
PART_ROWS = 8192
PART_BYTES = 32 << 20

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
            burn_in=max(0, self.rows - asked.rows_learnt) if asked.sequences else 0,
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
    """The undiscounted return of every whole episode."""
    found = [one.ret for piece in range(source.pieces()) for one in source.read(piece) if one.whole]
    return np.array(found)


class ReadPart(NamedTuple):
    """Consecutive trajectories of a piece."""

    place: int  # of the piece in the endless reading order
    number: int  # of this part in its piece
    rows: dict[str, Any] | None  # None: filters left out all of them
    kept: int  # trajectories
    left_out: int
    cut: int  # of those that are left out, the parts of episodes
    over: bool  # whether the piece has no more parts


@dataclass
class _Begun:
    """A piece of which the next part is being read."""

    place: int
    parts: Iterator[ReadPart]
    next: Future[ReadPart]


class RowReader:
    """Reads the pieces of a set in random order, with threads that are ahead of who takes the rows."""

    def __init__(self, source: Source, wanted: DataNeeds, cfg: DataConfig, seeds: Seeds, number: int):
        """number: that of the set among those of the run."""
        self.source, self.wanted, self.cfg, self.seeds, self.number = source, wanted, cfg, seeds, number
        self.scale = reward_scale(cfg, [source])
        row = sum(math.prod(field.shape) * field.dtype.itemsize for _, field in flat_fields(row_fields(source.facts)))
        self.part_rows = max(1, min(PART_ROWS, PART_BYTES // max(1, row)))
        self.pool = ThreadPoolExecutor(cfg.readers, thread_name_prefix="data")

    def order(self, turn: int) -> np.ndarray:
        """The order in which the pieces are read in one pass."""
        rng = self.seeds.numpy("data-order", self.number, turn)  # the same for all learners
        return rng.permutation(self.source.pieces())

    def parts(self, place: int = 0, number: int = 0) -> Iterator[ReadPart]:
        """Yields the parts from one on, which is given by the place of its piece in the endless reading order and its
        number in the piece. Several threads read ahead, each another piece, and the order never depends on them.

        Raises UserError if a piece is damaged."""
        count, begun = self.source.pieces(), deque[_Begun]()
        turn, order = place // count, self.order(place // count)
        while True:
            while len(begun) < AHEAD * self.cfg.readers:
                if place // count != turn:
                    turn, order = place // count, self.order(place // count)
                parts = itertools.islice(self._parts(int(order[place % count]), place), number, None)
                begun.append(_Begun(place, parts, self.pool.submit(next, parts)))
                place, number = place + 1, 0
            first = begun[0]
            part = first.next.result()
            if part.over:
                begun.popleft()
            else:
                first.next = self.pool.submit(next, first.parts)
            yield part

    def _parts(self, piece: int, place: int) -> Iterator[ReadPart]:
        """Reads a piece without what filters leave out."""
        source, number = self.source, 0
        if isinstance(source, ParquetSource):
            block = source.block(piece)
            if self.cfg.min_return is None and self.cfg.max_return is None:
                yield ReadPart(place, 0, self._prepared(block), len(block.begins), 0, 0, True)
            else:
                yield self._part(place, 0, [block.trajectory(one) for one in range(len(block.begins))], True)
            return
        found: list[Trajectory] = []
        rows = 0
        for one in source.read(piece):
            found.append(one)
            rows += len(one)
            if rows >= self.part_rows:
                yield self._part(place, number, found, False)
                found, rows, number = [], 0, number + 1
        yield self._part(place, number, found, True)

    def _part(self, place: int, number: int, found: list[Trajectory], over: bool) -> ReadPart:
        kept = [one for one in found if self._kept(one)]
        rows = self._prepared(block_of(kept)) if kept else None
        cut = sum(not one.whole for one in found) - sum(not one.whole for one in kept)
        return ReadPart(place, number, rows, len(kept), len(found) - len(kept), cut, over)

    def _kept(self, one: Trajectory) -> bool:
        """Whether filters leave a trajectory. That of a part of an episode says nothing about the episode's return."""
        low, high = self.cfg.min_return, self.cfg.max_return
        if low is None and high is None:
            return True
        return one.whole and (low is None or one.ret >= low) and (high is None or one.ret <= high)

    def _prepared(self, block: Block) -> dict[str, Any]:
        """The rows of a block as the ring stores them."""
        spec, rows = self.wanted.spec, block.rows
        count = len(rows["reward"])
        first = np.zeros(count, dtype=bool)
        first[block.begins] = True
        obs = {name: rows["obs"][name] for name in spec.obs if name in rows["obs"]}
        if "prev_action" in spec.obs:
            obs["prev_action"] = _previous(executed(spec.action, rows["action"]), first)
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

    def close(self) -> None:
        """Ends the reading ahead."""
        self.pool.shutdown(wait=False, cancel_futures=True)


def to_go(reward: np.ndarray, valid: np.ndarray, terminated: np.ndarray, discount: float) -> dict[str, np.ndarray]:
    """For rows [N] that end with a dead one: the discounted sum of rewards from each row to its end, the discount of
    the value there (0 if the row before it was terminated), and the distance to it in rows. The end is the next dead
    row, or the row behind a terminated one, as behind a lost life of an Atari game that goes on."""
    row = np.arange(len(reward))
    begins = np.append(False, (terminated & valid)[:-1])
    ends = np.flatnonzero(~valid | begins)
    # The next one behind a live row, which may begin the rest of a game itself; a dead row is its own.
    end = ends[np.searchsorted(ends, row + valid)]
    distance = end - row
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


def reward_scale(cfg: DataConfig, sources: Sequence[Source]) -> float:
    """The factor on the rewards of all sets of a run. reward_scale=returns makes it 1000 / (largest - smallest return),
    as the authors of implicit Q-learning do. Raises UserError if no episode is whole or all returns are the same."""
    if isinstance(cfg.reward_scale, float | int):
        return cfg.reward_scale
    found, names = np.concatenate([returns_of(source) for source in sources]), ", ".join(one.name for one in sources)
    if not len(found):
        raise UserError(f"data.reward_scale=returns: {names} has no whole episode, whose return would be known")
    if found.max() <= found.min():
        raise UserError(f"data.reward_scale=returns: all returns of {names} are the same")
    return 1000.0 / float(found.max() - found.min())


def _previous(values: Any, first: np.ndarray) -> Any:
    """What the row before holds, and 0 where an episode begins."""
    if isinstance(values, dict):
        return {name: _previous(part, first) for name, part in values.items()}
    made = np.zeros_like(values)
    made[1:] = values[:-1]
    made[first] = 0
    return made
