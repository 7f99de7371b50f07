"""Limits how often replayed rows are learnt from."""

from __future__ import annotations

from pathlib import Path

SLACK = 4  # number of updates that the learner may be behind, where samplers do not wait for each update


class Limiter:
    """Allows `ratio` rows to be learnt from per inserted row, once `starts` env steps have been inserted.

    So an update of `batch` rows needs batch / ratio env steps. Rows inserted before `starts` do not count, nor those
    that come before anything can be drawn, so that learning does not begin with a burst of updates. With ratio None,
    rows may always be inserted, and always be learnt from once `starts` env steps are there.
    """

    def __init__(self, starts: int, ratio: float | None, batch: int, parts: int = 1):
        """parts: the number of processes that insert `starts` env steps each."""
        self.starts, self.ratio, self.batch, self.parts = starts, ratio, batch, parts
        self.came = 0  # env steps inserted into this replay
        self.credit = 0.0  # number of rows that may be learnt from now

    def inserted(self, env_steps: int, drawable: bool = True) -> None:
        """drawable: whether the replay has something to draw."""
        before = max(self.came, self.starts)
        self.came += env_steps
        if drawable:
            self.credit += (self.ratio or 0.0) * max(0, self.came - before)

    @property
    def due(self) -> bool:
        """Whether an update is due, provided that the replay has something to draw."""
        return self.came >= self.starts and (self.ratio is None or self.credit >= self.batch)

    def may_insert(self) -> bool:
        """Whether rows may be inserted. False while the learner is at least SLACK updates behind, so that samplers that
        run by themselves wait for it."""
        return self.came < self.starts or self.ratio is None or self.credit < SLACK * self.batch

    def sampled(self) -> None:
        if self.ratio is not None:
            self.credit -= self.batch

    def state(self) -> dict:
        return {"came": self.came, "credit": self.credit}

    def load(self, saved: dict, folder: Path | None) -> str | None:
        """Restores the state. folder: where the replay's rows were saved, or None if they were not. In that case
        `starts` env steps must be inserted again, and the returned sentence says so."""
        self.credit = saved["credit"]
        self.came = 0 if folder is None else saved["came"]
        if folder is not None:
            return None
        return (
            f"the checkpoint holds no replayed rows: learning goes on after {self.starts * self.parts:,} new env steps"
            " (only a run's newest checkpoint has them; with replay.checkpoint=true it has them whatever their size)"
        )
