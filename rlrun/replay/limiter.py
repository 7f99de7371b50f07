"""How often replayed rows are learnt from."""

from __future__ import annotations

from pathlib import Path

SLACK = 4  # updates that the learner may be behind, where samplers do not wait for each


class Limiter:
    """`ratio` rows are learnt from per row that comes, once `starts` env steps have come: an update of `batch` rows costs batch / ratio env steps. What came
    before does not count, so that learning does not begin with a burst of updates."""

    def __init__(self, starts: int, ratio: float, batch: int):
        self.starts, self.ratio, self.batch = starts, ratio, batch
        self.came = 0  # env steps in this replay
        self.credit = 0.0  # rows that may be learnt from

    def inserted(self, env_steps: int) -> None:
        before = max(self.came, self.starts)
        self.came += env_steps
        self.credit += self.ratio * max(0, self.came - before)

    @property
    def due(self) -> bool:
        """Whether an update is, as soon as there is something to draw."""
        return self.came >= self.starts and self.credit >= self.batch

    def may_insert(self) -> bool:
        """False while the learner is far behind, so that samplers that go on by themselves wait for it."""
        return self.came < self.starts or self.credit < SLACK * self.batch

    def sampled(self) -> None:
        self.credit -= self.batch

    def state(self) -> dict:
        return {"came": self.came, "credit": self.credit}

    def load(self, saved: dict, folder: Path | None) -> str | None:
        """folder: where the replay's rows were saved; without them `starts` has to come again, and the sentence says so."""
        self.credit = saved["credit"]
        self.came = 0 if folder is None else saved["came"]
        if folder is not None:
            return None
        return f"the checkpoint holds no replayed rows: learning goes on after {self.starts:,} new env steps (replay.checkpoint=true saves them)"
