"""TrajectoryRecorder writes what a sampler hands over into a data set.

The rows of an episode wait in memory until it ends. Where that takes too long, or never happens, a trajectory ends
where it is, and the next one goes on with the same episode. Neither is whole. The second one begins with rows that the
first has too, as dead rows: stacks of frames and the last action are true then, and no decision is there twice."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.core.batch import RowSpec
from rlrun.core.env import map_rows
from rlrun.core.errors import Notice, RunFailed
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.dataflow.slots import Fragment
from rlrun.datasets.parquet import check_numbers
from rlrun.datasets.parquet_writer import FILE_BYTES, GROUP_ROWS, Writer
from rlrun.datasets.trajectories import DataFacts, Trajectory, without_previous
from rlrun.samplers.base import Sampler

ROWS = ("action", "reward", "terminated", "truncated", "valid")
# A trajectory ends when so many rows, or rows of so many bytes, wait for the end of its episode. An episode of an Atari
# game, which has 27,000 rows at most, has fewer of both.
LONGEST_ROWS, LONGEST_BYTES = GROUP_ROWS, FILE_BYTES
WAITING_BYTES = 2 << 30  # of all columns; where more wait, the longest trajectories end


class Pending:
    """The rows of an unfinished episode of one column, in pieces."""

    def __init__(self) -> None:
        self.pieces: list[dict[str, Any]] = []
        self.rows = 0  # of the pieces
        self.begun = False  # whether the episode's first row was seen
        self.episode = -1  # its number among the episodes of its environment that were seen to begin, from 0
        self.goes_on = False  # whether the rows before these are in another trajectory
        self.wanted_whole = False  # whether a part of this episode would not be kept


class TrajectoryRecorder:
    """Cuts fragments into trajectories and writes them."""

    def __init__(
        self,
        folder: Path,
        spec: EnvSpec,
        record: RowSpec,
        policy: str,
        made_by: str,
        env: dict[str, Any] | None = None,
    ):
        """record: the fields that are kept besides what the environment gives, such as log_prob. policy: who acts, in
        words. env: the options of the environment, where they are known. Raises UserError if the folder cannot take
        these rows."""
        self.spec = without_previous(spec)
        facts = DataFacts(spec=self.spec, record=record, policies=(policy,), made_by=made_by, env=env)
        self.writer, self.record = Writer(folder, facts), tuple(record)
        self.lives = bool((env or {}).get("life_loss_terminal"))
        self.columns: dict[tuple[int, int], Pending] = {}  # by worker and column
        self.next_row: dict[int, int] = {}
        self.unusable = ""  # why nobody could learn from an episode that was not written
        # Whether a trajectory is written, of which environment of its worker and of which episode there it is.
        self.keeps: Callable[[int, int, Trajectory], bool] = lambda env, episode, trajectory: True

    def add(self, fragments: Sequence[Fragment]) -> None:
        """Writes the episodes that these fragments end. Raises RunFailed when the disk is full, and, after all others
        are written, if nobody could learn from one of them."""
        for fragment in fragments:
            header, rows = fragment.header, fragment.batch.numpy()
            count, width = fragment.batch["reward"].shape[:2]
            begins = self._begins(rows["is_first"][:count])
            lost = self.next_row.get(header.worker, header.first_row) != header.first_row
            self.next_row[header.worker] = header.first_row + count
            for column in range(width):
                pending = self.columns.setdefault((header.worker, column), Pending())
                if lost:
                    self._cut(pending, column)
                self._add(pending, rows, count, column, begins[:, column // self.spec.columns_per_env])
        self._bound()
        if self.unusable:
            raise RunFailed(self.unusable)

    def ended(self, worker: int, envs: int) -> np.ndarray:
        """How many episodes of each of a worker's environments [E] have ended."""
        many, nothing = self.spec.columns_per_env, Pending()
        return np.array([max(0, self.columns.get((worker, env * many), nothing).episode) for env in range(envs)])

    def _begins(self, is_first: np.ndarray) -> np.ndarray:
        """[T, B] -> where episodes of environments begin [T, E]. An agent may also appear in the middle of one."""
        return np.all(is_first.reshape(len(is_first), -1, self.spec.columns_per_env), axis=2)

    def _add(self, pending: Pending, rows: dict[str, Any], count: int, column: int, begins: np.ndarray) -> None:
        """Adds rows 0 .. count - 1 of a column. A row with is_first begins a trajectory, and the dead row before it is
        the end of the last one. begins [T]: where an episode of the column's environment begins."""
        begin = 0
        for start in np.flatnonzero(rows["is_first"][:count, column]).tolist():
            self._append(pending, rows, column, begin, start)
            self._end(pending, column)
            pending.begun, begin = True, start
            pending.episode += int(begins[start])
        self._append(pending, rows, column, begin, count)

    def _append(self, pending: Pending, rows: dict[str, Any], column: int, begin: int, end: int) -> None:
        """Adds rows [begin, end) of a column, unless nobody saw their episode begin."""
        if begin == end or not pending.begun:
            return
        if pending.pieces:
            pending.pieces[-1]["then"] = None
        pending.pieces.append(self._piece(rows, column, begin, end))
        pending.rows += end - begin

    def _bound(self) -> None:
        """Ends trajectories that have become so long that their rows would take too much memory, or be too many to
        lose."""
        size = self.writer.row_bytes
        longest = min(LONGEST_ROWS, max(1, LONGEST_BYTES // size))
        held = sum(pending.rows for pending in self.columns.values())
        for (_, column), pending in sorted(self.columns.items(), key=lambda one: -one[1].rows):
            if pending.rows < longest and held * size <= WAITING_BYTES:
                return
            held -= pending.rows
            self._divide(pending, column)

    def _divide(self, pending: Pending, column: int) -> None:
        """Writes what there is of an episode, unless its last row may be its end or nobody keeps parts of episodes."""
        last = pending.pieces[-1] if pending.pieces else None
        if last is None or pending.wanted_whole or not last["valid"][-1]:
            return
        if last["terminated"][-1] or last["truncated"][-1]:
            return
        repeated = self._repeated(pending.pieces)
        made = self._trajectory([*pending.pieces, self._behind(last)], column, part=True)
        assert made is not None  # its last row is live
        if not self._kept(pending, column, made):
            pending.wanted_whole = True
            return
        self._write(made)
        pending.pieces, pending.rows, pending.goes_on = [repeated], len(repeated["valid"]), True

    def _repeated(self, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        """The last of these rows as dead ones, with which the next trajectory begins."""
        count = max(1, self.spec.stack - 1)
        recent = pieces[-count:]  # each has a row at least
        made = {name: self._joined(recent, name, rows=slice(-count, None)) for name in ("obs", *ROWS, *self.record)}
        made |= {name: np.zeros_like(made[name]) for name in ("valid", "terminated", "truncated")}
        return {**made, "then": pieces[-1]["then"]}

    def _piece(self, rows: dict[str, Any], column: int, begin: int, end: int) -> dict[str, Any]:
        """Copies rows [begin, end) of a column."""

        def part(value: np.ndarray) -> np.ndarray:
            return value[begin:end, column].copy()

        obs = {name: map_rows(rows["obs"][name], part) for name in self.spec.obs}
        if self.spec.stack > 1:
            obs["observation"] = map_rows(rows["obs"]["observation"], lambda value: value[begin:end, column, -1].copy())
        piece = {"obs": obs, **{name: map_rows(rows[name], part) for name in (*ROWS, *self.record)}}
        last = {name: map_rows(rows["obs"][name], lambda value: value[end, column]) for name in self.spec.obs}
        if self.spec.stack > 1:
            last["observation"] = map_rows(rows["obs"]["observation"], lambda value: value[end, column, -1])
        piece["then"] = map_rows(last, np.array)  # the observation behind the last row, if recording ends here
        return piece

    def _behind(self, last: dict[str, Any]) -> dict[str, Any]:
        """A dead row with the observation behind a piece."""
        blank = {name: map_rows(last[name], lambda value: np.zeros_like(value[-1:])) for name in (*ROWS, *self.record)}
        return {"obs": map_rows(last["then"], lambda value: value[None]), **blank, "then": None}

    def _cut(self, pending: Pending, column: int) -> None:
        """Ends an episode whose further rows are lost: a dead row holds the last observation that is known."""
        if pending.pieces and pending.pieces[-1]["valid"][-1]:
            pending.pieces.append(self._behind(pending.pieces[-1]))
        self._end(pending, column, cut=True)
        pending.begun = False

    def _end(self, pending: Pending, column: int, cut: bool = False) -> None:
        """Writes an episode, or what is left of it, unless its beginning was not seen or nothing was done in it. cut:
        whether its further rows are lost, if there were any."""
        pieces, part = pending.pieces, pending.goes_on
        pending.pieces, pending.rows, pending.goes_on, pending.wanted_whole = [], 0, False, False
        made = self._trajectory(pieces, column, part, cut) if pieces and pending.begun else None
        if made is not None and self._kept(pending, column, made):
            self._write(made)

    def _kept(self, pending: Pending, column: int, made: Trajectory) -> bool:
        return self.keeps(column // self.spec.columns_per_env, pending.episode, made)

    @staticmethod
    def _joined(pieces: list[dict[str, Any]], *names: str, rows: slice = slice(None)) -> Any:
        """The rows of one field of these pieces."""
        parts: list[Any] = pieces
        for name in names:
            parts = [part[name] for part in parts]
        if isinstance(parts[0], dict):
            return {name: TrajectoryRecorder._joined(pieces, *names, name, rows=rows) for name in parts[0]}
        return np.concatenate(parts)[rows]

    def _trajectory(
        self, pieces: list[dict[str, Any]], column: int, part: bool, cut_off: bool = False
    ) -> Trajectory | None:
        """The rows of these pieces, or None if nothing was done in them. part: whether the episode has more rows.
        cut_off: whether nobody knows if it has."""

        def joined(name: str) -> Any:
            return self._joined(pieces, name)

        live = np.flatnonzero(joined("valid"))
        if not live.size:
            return None
        last = int(live[-1])
        end = slice(0, last + 2)  # one dead row is enough; with complete episodes there may be more

        def cut(tree: Any) -> Any:
            return map_rows(tree, lambda value: value[end])

        terminated, truncated = joined("terminated"), joined("truncated")
        return Trajectory(
            obs=cut(joined("obs")),
            **{name: cut(joined(name)) for name in ROWS},
            record={name: cut(joined(name)) for name in self.record},
            agent=column % self.spec.columns_per_env,
            # A lost life is terminal, and ends no game.
            whole=bool(truncated[last] or (terminated[last] and not (cut_off and self.lives))) and not part,
        )

    def _write(self, made: Trajectory) -> None:
        try:
            check_numbers({name: getattr(made, name) for name in ("obs", "action", "reward", "valid")}, self.spec)
        except ValueError as error:
            self.unusable = f"an episode cannot be recorded, because {error}: nobody could learn from it"
        else:
            self.writer.write(made)

    def close(self) -> None:
        """Writes what is left, unfinished episodes too, unless writing has failed before. Raises RunFailed when the
        disk is full. Warns of an episode from which nobody could learn, because the run has ended."""
        if self.writer.failed:
            return
        known, self.unusable = self.unusable, ""
        for (_, column), pending in self.columns.items():
            self._cut(pending, column)
        self.writer.close()
        if self.unusable and not known:
            warnings.warn(self.unusable, Notice, stacklevel=2)


class RecordingSampler:
    """A sampler that records what it hands over. Everything else is the other sampler's."""

    def __init__(self, sampler: Sampler, recorder: TrajectoryRecorder, watched: bool = False):
        """watched: whether somebody looks at `trouble` between updates, so that a run whose recording fails is saved
        before it ends. Otherwise take() raises."""
        self.sampler, self.recorder, self.watched = sampler, recorder, watched
        self.trouble: str | None = None  # why nothing is recorded any more

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def take(self, count: int) -> Sequence[Fragment]:
        fragments = self.sampler.take(count)
        if self.trouble is None:
            try:
                self.recorder.add(fragments)
            except RunFailed as error:
                if not self.watched:
                    raise
                self.trouble = str(error)
        return fragments

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        self.sampler.publish(policy, clock)

    def close(self) -> None:
        try:
            self.sampler.close()
        finally:
            self.recorder.close()
