"""Statistics of episodes, and when a row of metrics is due."""

import itertools
import math
import random
import statistics
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from rlrun.core.duties import Progress
from rlrun.core.logs import LogConfig, Logs
from rlrun.core.metrics import EpisodeStatistics
from rlrun.core.schedule import Clock
from rlrun.core.timing import Timers


def test_statistics_are_those_of_the_last_episodes_of_the_window():
    rng = random.Random(0)
    returns, lengths = [rng.gauss(0, 9) for _ in range(50)], [rng.randrange(1, 99) for _ in range(50)]
    made = EpisodeStatistics(window=7)
    assert made.metrics()["return_std"] is None and made.metrics()["episodes"] == 0
    for number, (ret, length) in enumerate(zip(returns, lengths)):
        assert made.full == (number >= 7)
        made.add(ret, length, {"x": float(number)})
        seen = returns[max(0, number - 6) : number + 1]
        told = made.metrics()
        assert told["return_mean"] == pytest.approx(statistics.mean(seen)) == made.mean
        assert told["return_std"] == pytest.approx(statistics.pstdev(seen), abs=1e-12)
        assert (told["return_min"], told["return_max"]) == (min(seen), max(seen))
    assert told["episode_length_mean"] == pytest.approx(statistics.mean(lengths[-7:]))
    assert (told["episode_length_min"], told["episode_length_max"]) == (min(lengths[-7:]), max(lengths[-7:]))
    assert told["info/x"] == 46.0 and told["episodes"] == 50


def test_the_mean_of_a_window_is_summed_once_for_as_long_as_no_episode_ends():
    class Counted(deque):
        sums = 0

        def __iter__(self):
            self.sums += 1
            return super().__iter__()

    made, other = EpisodeStatistics(window=3), EpisodeStatistics(window=3)
    other.add(7.0, 1, {})
    assert made.mean is None
    made.returns = Counted(maxlen=3)
    for number, mean in enumerate([1.0, 2.0, 3.0, 5.0]):
        made.add([1.0, 3.0, 5.0, 7.0][number], 1, {})
        assert [made.mean, made.mean, made.mean] == [mean] * 3 and made.returns.sums == number + 1
    made.load(other.state())
    assert made.mean == (5.0 + 7.0 + 7.0) / 3


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, None])
def test_means_of_very_many_values_are_exact(kind):
    logs = Logs(LogConfig(every_sec=None, every_steps="auto"), 10**10, SimpleNamespace(), Progress(), Timers())
    value = 1.0 if kind is None else torch.tensor(1, dtype=kind)
    for means in (logs.learn, logs.sample):
        means.add({"loss": value})
        means.sums["loss"], means.counts["loss"] = means.sums["loss"] * 2**24, 2**24
        for _ in range(3):
            means.add({"loss": value})
        assert means.result() == {"loss": 1.0} and means.sums == {}


def rows(cfg: LogConfig, total: int, batch: int, until: int | None = None, begin: int = 0) -> list[int]:
    """The env steps of the rows of a run that learns from `batch` env steps at a time, and is stopped at `until`."""
    logged: list[dict] = []
    progress = Progress()
    logs = Logs(cfg, total, SimpleNamespace(log=logged.append), progress, Timers())
    progress.clock = Clock(begin, 0)
    logs.begin(progress.clock)
    while progress.clock.env_steps < (until or total):
        progress.clock = progress.clock.after(env_steps=batch, updates=1)
        if logs.due(progress.clock):
            logs.write(logs.row({}, None, 0))
    return [row["env_steps"] for row in logged]


AUTO = LogConfig(every_sec=None, every_steps="auto")


@pytest.mark.parametrize("total, batch", [(50_000, 128), (10_000, 1), (10_000_000, 500), (20_000, 200), (10**12, 4000)])
def test_every_run_has_many_rows_and_none_has_too_many(total, batch):
    if total < 10**12:
        whole = rows(AUTO, total, batch)
        assert 95 <= len(whole) <= 400 and whole[-1] >= 0.98 * total
        gaps = [after - before for before, after in itertools.pairwise(whole)]
        assert max(gaps) <= max(total // 100, 1) + batch
    for until in (100 * batch, 1000 * batch):
        if until < total:
            assert 50 <= len(rows(AUTO, total, batch, until)) <= 400, "a run that is stopped early has a curve too"


def test_rows_follow_the_number_of_env_steps_that_is_asked_for():
    assert rows(LogConfig(every_sec=None, every_steps=300), 1000, 100) == [300, 600, 900]
    assert rows(LogConfig(every_sec=None, every_steps=300), 1000, 250) == [500, 1000]
    assert rows(LogConfig(every_sec=99, every_steps=None), 1000, 100) == []
    assert rows(LogConfig(every_sec=1e-9, every_steps=None), 300, 100) == [100, 200, 300]
    assert rows(AUTO, 1000, 10, begin=500)[:3] == [510, 520, 530], "a resumed run goes on from where it is"


def test_the_rate_is_that_of_the_last_seconds(monkeypatch):
    """Rows that follow each other fast share a rate over RATE_SEC; others have the rate since the row before."""
    now = 0.0
    monkeypatch.setattr("rlrun.core.logs.time", SimpleNamespace(monotonic=lambda: now))
    progress = Progress()
    logs = Logs(LogConfig(every_sec=5.0, every_steps=1), 10**6, SimpleNamespace(log=None), progress, Timers())
    logs.begin(progress.clock)
    logs.begin_clock()
    told = {}
    for second in (1, 2, 3, 4, 5, 6, 7, 8, 20, 30):
        now = float(second)
        progress.clock = Clock(second**2, second)
        told[second] = logs.row({}, None, 0)["sample/env_steps_per_sec"]
    assert told[4] == pytest.approx(16 / 4) and told[5] == pytest.approx(25 / 5)
    assert told[8] == pytest.approx((64 - 9) / 5)
    assert told[20] == pytest.approx((400 - 64) / 12) and told[30] == pytest.approx((900 - 400) / 10)
    assert not math.isnan(told[1])
