"""TrajectoryRecorder writes what a sampler hands over into a data set."""

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
from rlrun.datasets.parquet_writer import Writer
from rlrun.datasets.trajectories import DataFacts, Trajectory, without_previous
from rlrun.samplers.base import Sampler

ROWS = ("action", "reward", "terminated", "truncated", "valid")


class Pending:
    """The rows of an unfinished episode of one column, in pieces."""

    def __init__(self) -> None:
        self.pieces: list[dict[str, Any]] = []
        self.begun = False  # whether the episode's first row was seen


class TrajectoryRecorder:
    """Cuts fragments into trajectories and writes them."""

    def __init__(self, folder: Path, spec: EnvSpec, record: RowSpec, policy: str, made_by: str):
        """record: the fields that are kept besides what the environment gives, such as log_prob. policy: who acts, in
        words. Raises UserError if the folder cannot take these rows."""
        self.spec = without_previous(spec)
        facts = DataFacts(spec=self.spec, record=record, policies=(policy,), made_by=made_by)
        self.writer, self.record = Writer(folder, facts), tuple(record)
        self.columns: dict[tuple[int, int], Pending] = {}  # by worker and column
        self.next_row: dict[int, int] = {}
        self.unusable = ""  # why nobody could learn from an episode that was not written
        # Whether a trajectory of a column is written.
        self.keeps: Callable[[int, Trajectory], bool] = lambda column, trajectory: True

    def add(self, fragments: Sequence[Fragment]) -> None:
        """Writes the episodes that these fragments end. Raises RunFailed when the disk is full, and, after all others
        are written, if nobody could learn from one of them."""
        for fragment in fragments:
            header, rows = fragment.header, fragment.batch.numpy()
            count, width = fragment.batch["reward"].shape[:2]
            lost = self.next_row.get(header.worker, header.first_row) != header.first_row
            self.next_row[header.worker] = header.first_row + count
            for column in range(width):
                pending = self.columns.setdefault((header.worker, column), Pending())
                if lost:
                    self._cut(pending, column)
                self._add(pending, rows, count, column)
        if self.unusable:
            raise RunFailed(self.unusable)

    def _add(self, pending: Pending, rows: dict[str, Any], count: int, column: int) -> None:
        """Adds rows 0 .. count - 1 of a column. A row with is_first begins an episode, and the dead row before it is
        the end of the last one."""
        begin = 0
        for start in np.flatnonzero(rows["is_first"][:count, column]).tolist():
            if start > begin:
                pending.pieces.append(self._piece(rows, column, begin, start))
            self._end(pending, column)
            pending.begun, begin = True, start
        if begin < count:
            pending.pieces.append(self._piece(rows, column, begin, count))

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

    def _cut(self, pending: Pending, column: int) -> None:
        """Ends an episode whose further rows are lost: a dead row holds the last observation that is known."""
        if pending.pieces and pending.pieces[-1]["valid"][-1]:
            last = pending.pieces[-1]
            blank = {
                name: map_rows(last[name], lambda value: np.zeros_like(value[-1:])) for name in (*ROWS, *self.record)
            }
            pending.pieces.append({"obs": map_rows(last["then"], lambda value: value[None]), **blank, "then": None})
        self._end(pending, column)
        pending.begun = False

    def _end(self, pending: Pending, column: int) -> None:
        """Writes an episode, unless its beginning was not seen or nothing was done in it."""
        pieces, pending.pieces = pending.pieces, []
        if not pieces or not pending.begun:
            return

        def joined(*names: str) -> Any:
            parts: list[Any] = pieces
            for name in names:
                parts = [part[name] for part in parts]
            if isinstance(parts[0], dict):
                return {name: joined(*names, name) for name in parts[0]}
            return np.concatenate(parts)

        live = np.flatnonzero(joined("valid"))
        if not live.size:
            return
        last = int(live[-1])
        end = slice(0, last + 2)  # one dead row is enough; with complete episodes there may be more

        def cut(tree: Any) -> Any:
            return map_rows(tree, lambda value: value[end])

        terminated, truncated = joined("terminated"), joined("truncated")
        made = Trajectory(
            obs=cut(joined("obs")),
            **{name: cut(joined(name)) for name in ROWS},
            record={name: cut(joined(name)) for name in self.record},
            agent=column % self.spec.columns_per_env,
            whole=bool(terminated[last] or truncated[last]),
        )
        if not self.keeps(column, made):
            return
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
