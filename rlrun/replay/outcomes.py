"""How the episodes of a replay's rows ended, which is filled in behind them."""

from __future__ import annotations

import numpy as np

from rlrun.core.batch import Batch
from rlrun.replay.storage import Plain, Tree

OUTCOMES = ("return_to_go", "episode_return")  # the fields of a drawn row


class Outcomes:
    """The return behind every row of a ring, and that of its whole episode, from the moment when the episode is over.

    Rows of episodes that were broken off (by a checkpoint of an exact run, or a sampler that began anew) never get
    one. Of an episode that is longer than the ring, the rows get one that the ring still holds."""

    def __init__(self, tree: Tree, columns: int, length: int, discount: float, drawn: str | None):
        """tree: the ring's fields, each [columns, length, ...]. discount: of return_to_go. drawn: the recorded field
        that says which rows are wanted; None: all."""
        self.tree, self.length, self.discount, self.drawn = tree, length, discount, drawn
        # NaN: not known (yet), or not wanted.
        self.to_go = np.full((columns, length), np.nan, dtype=np.float32)
        self.total = np.full((columns, length), np.nan, dtype=np.float32)
        self.begun = np.full(columns, -1, dtype=np.int64)  # absolute row at which the open episode began; -1: none
        self.paid = np.zeros(columns)  # rewards of the open episode so far
        # Whether a time limit has cut the open episode off, whose last observation comes with the next row.
        self.cut = np.zeros(columns, dtype=bool)

    def clear(self) -> None:
        self.to_go[:], self.total[:] = np.nan, np.nan
        self.break_off(slice(None))

    def break_off(self, columns: slice) -> None:
        """Drops the open episodes of these columns."""
        self.begun[columns], self.cut[columns] = -1, False

    def add(self, columns: slice, first: int, batch: Batch) -> list[tuple[int, int, int]]:
        """Takes note of a new fragment [T, B] that the ring already holds; its first row has the absolute number
        `first`. Returns (column, first row, rows) of what is left of every episode that it ends."""
        is_first, valid, terminated, truncated, reward = (
            batch[name].cpu().numpy()  # type: ignore[union-attr]
            for name in ("is_first", "valid", "terminated", "truncated", "reward")
        )
        rows, over, slot = len(valid), [], first % self.length
        oldest = first + rows - self.length + 1  # of the slot before, the observation is that of the newest row's end
        paid = np.where(valid, reward, 0.0).cumsum(0, dtype=np.float64)  # [T, B]
        self.to_go[columns, slot : slot + rows] = self.total[columns, slot : slot + rows] = np.nan
        # Rows at which something happens are few.
        for t, b in np.argwhere(is_first[:rows] | terminated | truncated | ~valid).tolist():
            column = columns.start + b
            if is_first[t, b]:
                self.begun[column], self.cut[column] = first + t, False
                self.paid[column] = -paid[t - 1, b] if t else 0.0
            begun = int(self.begun[column])
            if valid[t, b] and truncated[t, b] and not terminated[t, b]:
                self.cut[column] = True
                continue
            ends = self.cut[column] if not valid[t, b] else terminated[t, b]
            if ends and begun >= 0:
                begun = max(begun, oldest)
                count = first + t - begun + int(valid[t, b])
                if count > 0:
                    self._fill(column, begun, count, self.paid[column] + paid[t, b])
                    over.append((column, begun, count))
            if ends or not valid[t, b]:
                self.begun[column], self.cut[column] = -1, False
        self.paid[columns] += paid[-1]
        return over

    def _values(self, name: str, column: int, slots: np.ndarray) -> np.ndarray:
        """Numbers of a field in one column of the ring."""
        store = self.tree[name]
        assert isinstance(store, Plain)
        return store.values[column].cpu().numpy()[slots]

    def _fill(self, column: int, begun: int, count: int, total: float) -> None:
        """Writes the outcome of the last `count` rows of an episode that paid `total`."""
        slots = (begun + np.arange(count)) % self.length
        paid = self._values("reward", column, slots).astype(np.float64)
        after = np.array([(begun + count) % self.length])
        ahead = float(self._values("value", column, after)[0]) if self.cut[column] else 0.0
        to_go = np.empty(count)
        for row in range(count - 1, -1, -1):
            ahead = to_go[row] = paid[row] + self.discount * ahead
        chosen = slots if self.drawn is None else slots[self._values(self.drawn, column, slots)]
        self.to_go[column, slots], self.total[column, chosen] = to_go, total

    def known(self, column: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Whether rows [...] may be drawn: their episodes are over, and they are wanted."""
        return np.isfinite(self.total[column, row % self.length])

    def read(self, column: np.ndarray, row: np.ndarray) -> dict[str, np.ndarray]:
        """return_to_go and episode_return [...] of rows."""
        slot = row % self.length
        return dict(zip(OUTCOMES, (self.to_go[column, slot], self.total[column, slot]), strict=True))

    def state(self) -> dict:
        """The open episodes."""
        return {"begun": self.begun.tolist(), "cut": self.cut.tolist(), "paid": self.paid.tolist()}

    def load_state(self, state: dict) -> None:
        self.begun[:], self.cut[:] = state["begun"], state["cut"]
        if "paid" in state:
            self.paid[:] = state["paid"]
        else:  # a checkpoint from before this sum was kept: what its open episodes have paid is not known
            self.break_off(slice(None))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """What is saved with the rows."""
        return self.to_go, self.total
