"""Samplers, shards and learner as processes: rows arrive complete, priorities return to the shard that drew the rows,
and a run does not wait for dead processes."""

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from test_actor_learner import run_wired
from wired import Wired, checked

from rlrun.algos.dqn import DQN
from rlrun.cli import _dispatch
from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.schedule import Clock
from rlrun.replay.limiter import Limiter
from rlrun.replay.service import Drawn, ShardedReplay
from rlrun.runners.distributed_replay import run

APEX = ["algo=apex", "logger=[]", "resources.device=cpu", "resources.num_samplers=2", "algo.inner.num_envs=4", "algo.inner.fragment_length=10",
        "algo.inner.batch_size=16", "algo.inner.learning_starts=100", "replay.capacity=2000", "model.hidden=[8]", "log_every_sec=0.05"]  # fmt: skip


@pytest.mark.parametrize("kind, shards", [("local", 2), ("batched", 1)])
def test_drawn_rows_are_what_the_env_produced(typed, kind, shards):
    wiring = Wired(typed(*APEX, "env=rlrun/Counting-v0", f"resources.inference={kind}", "algo.inner.n_step=2"))
    algorithm = wiring.algorithm()
    sampler = wiring.sampler(0)
    replay: ShardedReplay = wiring.sharded_replay(0, sampler, shards)
    seen = {0: set(), 1: set()}
    try:
        sampler.publish(algorithm.policy, Clock())
        sampler.begin()
        copying, drawn, deadline = {}, 0, time.monotonic() + 60
        while (drawn < 40 or not all(seen[shard] for shard in range(shards))) and time.monotonic() < deadline:
            sampler.check()
            replay.poll(0.01)
            for slot in replay.added:
                sampler.free([copying.pop(slot)])
            replay.added.clear()
            if sampler.queued:
                (fragment,) = sampler.take(1)
                copying[fragment.header.slot] = fragment
                replay.add(fragment.header)
            replay.draw(Clock())
            while (got := replay.take()) is not None:
                batch = got.batch
                episode, step, _ = batch.obs.observation.unbind(-1)  # [2, B]
                assert torch.equal(episode[0], episode[1]) and batch.valid[0].all()
                count = batch.valid.sum(0)
                assert torch.equal(step[1] - step[0], count) and torch.equal(batch.reward[0], step[0] + 1)
                assert (batch.terminated[-1] <= (step[1] == 7)).all()
                seen[got.shard].add(int(batch.key[0]))
                replay.write(got, batch.key, torch.rand(16))
                replay.free(got)
                drawn += 1
        assert drawn >= 40 and all(seen[shard] for shard in range(shards))
    finally:
        replay.close()
        sampler.close()


def test_a_recorded_field_goes_back_to_the_shard_that_it_came_from(typed):
    """The written numbers encode shard, column and row, so that the test does not depend on when they arrive."""
    wiring = Wired(typed(*APEX, "env=rlrun/Counting-v0", "resources.inference=local", "algo.inner.n_step=2"))
    algorithm, sampler = wiring.algorithm(), wiring.sampler(0)
    replay: ShardedReplay = wiring.sharded_replay(0, sampler, 2)
    seen = {0: 0, 1: 0}
    try:
        sampler.publish(algorithm.policy, Clock())
        for _ in range(12):
            (fragment,) = sampler.take(1)
            replay.add(fragment.header)
            while not replay.added:
                replay.poll(0.1)
            sampler.free([fragment])
            replay.added.clear()
        deadline = time.monotonic() + 60
        while min(seen.values()) < 20 and time.monotonic() < deadline:
            replay.draw(Clock())
            replay.poll(0.05)
            while (got := replay.take()) is not None:
                columns = 2  # columns in a shard, which are those of one sampler
                rows = got.batch.key // columns + torch.arange(2)[:, None]  # [T, B]
                number = -1.0 - rows * columns - got.batch.key % columns - 10_000 * got.shard
                again = got.batch.q_max < -0.5
                assert torch.equal(got.batch.q_max[again], number[again])
                seen[got.shard] += int(again.sum())
                replay.write(got, got.batch.key, q_max=number, priority=torch.ones(16))
                replay.free(got)
        assert min(seen.values()) >= 20
        with pytest.raises(KeyError, match="no_such_field"):
            replay.write(got, torch.zeros(16), no_such_field=torch.zeros(2, 16))
    finally:
        replay.close()
        sampler.close()


def test_shards_with_more_rows_are_drawn_from_more_often():
    replay = object.__new__(ShardedReplay)
    replay.starts_of, replay.owed, replay.ready = [300, 100, 100], [0.0] * 3, []
    taken = Counter()
    for _ in range(500):
        replay.ready = [Drawn(shard, 0, Batch()) for shard in range(3)]
        taken[replay.take().shard] += 1
    assert taken == {0: 300, 1: 100, 2: 100}
    for _ in range(3):
        replay.ready = [Drawn(1, 0, Batch())]
        assert replay.take().shard == 1
    replay.ready = [Drawn(1, 0, Batch())]
    assert replay.take() is None, "the others' turn"
    replay.starts_of = [0, 100, 0]
    assert replay.take().shard == 1, "the others have nothing"


def test_apex_learns_with_two_shards(typed, tmp_path):
    words = [*APEX, "env=rlrun/Identity-v0", "resources.inference=local", "runner.num_shards=2", "model.hidden=[64]", "algo.inner.lr=3e-3",
             "algo.inner.discount=0", "algo.inner.n_step=1", "algo.inner.replay_ratio=10", "algo.inner.target_update_interval=50", "env_steps=100000",
             "stop.return_mean=18", "episode_window=20"]  # fmt: skip
    _, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "STOPPED" and job.episodes.mean >= 18
    assert job.clock.updates * 16 <= 10 * job.clock.env_steps, "no more is learnt than the ratio says"
    assert job.first_counted == 3, "of four columns the one that explores least counts"


def test_outcomes_of_games_come_with_the_rows_of_shards(tmp_path, capsys):
    """AlphaZero learns the returns of whole games: those of Tic-tac-toe are -1, 0 and 1."""
    words = ["algo=alphazero", "env=TicTacToe-v0", "runner=distributed_replay", "runner.num_shards=2", "resources.num_samplers=2", "algo.num_envs=4",
             "algo.search.simulations=4", "algo.learning_starts=150", "model.hidden=[8]", "resources.device=cpu", "logger=[]", "log_every_sec=0.05"]  # fmt: skip
    path = tmp_path / "run"
    assert _dispatch(["train", *words, "env_steps=800", f"run_dir={path}"]) == 0
    assert _dispatch(["resume", str(path), "env_steps=1200"]) == 0
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    learnt = [row["learn/value_loss"] for row in rows if row.get("learn/value_loss") is not None]
    assert len(learnt) > 2 and all(0 < value < 2 for value in learnt)
    with pytest.raises(UserError, match=r"it runs with replay or distributed_replay$"):
        _dispatch(["train", "--plan", *words[:2], "runner=on_policy"])


@pytest.mark.parametrize("pace", ["ratio", "free"])
def test_samplers_wait_for_a_slow_learner_only_where_they_are_told_to(typed, tmp_path, monkeypatch, pace):
    """Two samplers hold 80 rows in their slots: more rows in an update's time have been handed over beside it."""
    learnt = DQN.update

    def slow(self, batch, clock):
        time.sleep(1.0 if pace == "free" else 0.3)
        return learnt(self, batch, clock)

    monkeypatch.setattr(DQN, "update", slow)
    words = [*APEX, "env=CartPole-v1", "resources.inference=local", "runner.num_shards=2", f"runner.pace={pace}"]
    words += ["model.observation_filter=mean_std", f"env_steps={2000 if pace == 'free' else 140}"]
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert int(made.policy.filter.filters[0].count) == job.clock.env_steps
    each = (job.clock.env_steps - 100) / job.clock.updates
    assert each > 100 if pace == "free" else each < 20


class Three:
    """Stands in for samplers that fill three slots of ten env steps in every update, which takes until a replay has
    their rows, and for the parts of a run that are beside them."""

    def __init__(self):
        self.queued, self.kept, self.counted, self.ticks = 1, 0, 0, []
        self.starts, self.added, self.threads, self.number = 1, [], contextlib.nullcontext(), 0
        self.policy, self.cfg, self.generation = SimpleNamespace(moments=lambda batch: None), None, 0
        self.ctx = SimpleNamespace(device=torch.device("cpu"))

    def __getattr__(self, name):
        return lambda *_, **__: None

    def needs(self, cfg):
        return SimpleNamespace(columns=1, replay=SimpleNamespace(learning_starts=10, ratio=1.0, rows_learnt=1))

    def begin(self, *_):
        return Clock()

    def timers(self, *_):
        return contextlib.nullcontext()

    rescuing = timers

    def algorithm(self):
        return self

    def sampler(self, *_):
        return self

    def sharded_replay(self, *_):
        return self

    def handles(self):
        return []

    def take(self, count=None):
        if count is None:
            return Drawn(0, 0, Batch(key=torch.zeros(1), weight=torch.zeros(1), reward=torch.zeros(1, 1)))
        self.queued, self.number = self.queued - 1, self.number + 1
        return [SimpleNamespace(header=SimpleNamespace(slot=self.number), batch=None)]

    def add(self, header):
        self.kept += 10

    def poll(self, *_):
        return time.sleep(0.001)

    def update(self, batch, clock):
        wanted, self.queued, end = self.kept + 30, 3, time.monotonic() + 20
        while self.kept < wanted and time.monotonic() < end:
            time.sleep(0.001)
        return Update({})

    def collected(self, headers):
        self.counted += 10 * len(headers)
        return 10 * len(headers)

    def tick(self, clock, update):
        self.ticks.append((clock.updates, clock.env_steps, self.counted, self.kept))
        return clock.updates < 3


def test_a_fragment_of_slow_steps_may_take_longer_than_the_queues_time():
    job, asked = Three(), []
    job.queued, job.at_work = 0, lambda: asked.append(1) or len(asked) < 3
    cfg = SimpleNamespace(pace="free", num_shards=1, max_weight_sync_delay=100, queue_timeout_sec=0.05)
    with pytest.raises(RunFailed, match="no fragment for"):
        run(job, cfg, job)
    assert len(asked) == 3


def test_rows_that_come_beside_an_update_are_counted_before_the_next_tick():
    """A tick may be the last one, or save the rows of the shards."""
    job = Three()
    run(job, SimpleNamespace(pace="free", num_shards=1, max_weight_sync_delay=100, queue_timeout_sec=60), job)
    assert job.ticks[-1][0] == 3 and job.kept == 100
    assert all(env_steps == counted == kept for _, env_steps, counted, kept in job.ticks)


def test_an_env_that_fails_beside_an_update_ends_the_run(typed, tmp_path, monkeypatch):
    monkeypatch.setattr(DQN, "update", lambda self, batch, clock: time.sleep(3.0) or Update({}))
    words = [*APEX, "env=rlrun/Counting-v0", "++env.kwargs.fail_at=400", "++env.kwargs.fault=raise"]
    with pytest.raises(RunFailed, match=r"env \d .* failed in step 400 .*told to fail"):
        run_wired(Wired(typed(*words, "resources.inference=local", "runner.pace=free", f"env_steps={10**8}")), tmp_path)


def test_shards_of_other_columns_are_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "run"
    words = [*APEX, "env=CartPole-v1", "resources.inference=local", "runner.num_shards=2", "env_steps=300"]
    assert _dispatch(["train", *words, f"run_dir={path}"]) == 0
    config = (path / "config.yaml").read_text()
    with pytest.raises(UserError, match="replay was made with another capacity"):
        _dispatch(["resume", str(path), "env_steps=400", "resources.envs_per_sampler=1"])
    assert (path / "config.yaml").read_text() == config and _dispatch(["resume", str(path), "env_steps=400"]) == 0


@pytest.mark.parametrize("victim", ["replay-0", "sampler-1"])
def test_a_killed_process_ends_the_run_at_once(typed, tmp_path, victim):
    import multiprocessing

    def kill():
        deadline = time.monotonic() + 60
        while not any(p.name == victim for p in multiprocessing.active_children()):
            assert time.monotonic() < deadline, f"{victim} has not started"
            time.sleep(0.05)
        time.sleep(1.0)
        for process in multiprocessing.active_children():
            if process.name == victim:
                os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    started = time.monotonic()
    try:
        with pytest.raises(RunFailed, match=f"{victim} was killed by SIGKILL"):
            run_wired(
                Wired(typed(*APEX, "env=rlrun/Identity-v0", "resources.inference=local", f"env_steps={10**8}")),
                tmp_path,
            )
    finally:
        thread.join()
    assert time.monotonic() - started < 40


@pytest.mark.parametrize("checkpoint, said", [("auto", False), ("false", True)])
def test_a_resumed_run_has_its_rows_or_says_that_it_has_not(tmp_path, capfd, checkpoint, said):
    path = tmp_path / "run"
    words = [
        *APEX,
        "env=CartPole-v1",
        "env_steps=600",
        "resources.inference=local",
        "runner.num_shards=2",
        f"replay.checkpoint={checkpoint}",
    ]
    assert _dispatch(["train", *words, f"run_dir={path}"]) == 0
    last = sorted((path / "checkpoints").glob("0*"))[-1]
    assert len(list(last.glob("replay-*.bin"))) == (0 if said else 2)
    state = torch.load(last / "replay.pt", weights_only=True)
    assert state["limiter"]["came"] == json.loads((last / "run.json").read_text())["env_steps"]
    capfd.readouterr()
    assert _dispatch(["resume", str(path), "env_steps=1000"]) == 0
    assert ("holds no replayed rows" in capfd.readouterr().out) is said
    assert json.loads((path / "summary.json").read_text())["status"] == "COMPLETED"


@pytest.mark.parametrize("words, said", [
    (["resources=debug"], "runner=replay has one process"),
    (["resources.inference=serial"], "runner=replay has one process"),
    (["algo.inner.input_priorities=false"], "input_priorities must be true"),
    (["runner.num_shards=3"], "num_shards=3"),
    (["resources.num_learners=2"], "runner=distributed_replay has one learner"),
])  # fmt: skip
def test_what_cannot_work_gets_a_sentence(typed, words, said):
    with pytest.raises(UserError, match=said):
        checked(typed(*APEX, "env=CartPole-v1", *words))


def test_the_limiter_keeps_the_ratio_and_lets_nobody_run_away(tmp_path):
    limiter = Limiter(starts=100, ratio=2.0, batch=10)
    limiter.inserted(60)
    assert not limiter.due and limiter.may_insert()
    limiter.inserted(60)  # 20 of these come after the start and allow 40 rows
    updates = 0
    while limiter.due:
        limiter.sampled()
        updates += 1
    assert updates == 4
    limiter.inserted(20)
    assert not limiter.may_insert(), "four updates behind"
    limiter.sampled()
    assert limiter.may_insert()
    free = Limiter(starts=100, ratio=None, batch=10)
    free.inserted(99)
    assert not free.due
    free.inserted(1)
    assert free.due, "100 env steps are there"
    free.sampled()
    assert free.due and free.may_insert() and free.credit == 0, "and it leaves no debt to a run that has a ratio"
    again = Limiter(starts=100, ratio=2.0, batch=10)
    assert "learning goes on after 100 new" in again.load(limiter.state(), None)
    assert not again.due, "without rows there is nothing to learn from yet"
    assert again.load(limiter.state(), tmp_path) is None
    assert again.due
    early = Limiter(starts=100, ratio=2.0, batch=10)
    early.inserted(200, drawable=False)
    assert not early.due, "no burst of updates once there is something to draw"
    early.inserted(5)
    assert early.due


def test_an_environment_that_hangs_is_noticed_while_batches_wait(typed, tmp_path):
    words = [*APEX, "env=rlrun/Counting-v0", "++env.kwargs.fail_at=150", "++env.kwargs.fault=hang", "resources.inference=local", "env.step_timeout_sec=4",
             f"env_steps={10**8}", "algo.inner.learning_starts=50"]  # fmt: skip
    started = time.monotonic()
    with pytest.raises(RunFailed, match="hangs: it has been in step"):
        run_wired(Wired(typed(*words)), tmp_path)
    assert time.monotonic() - started < 60


def test_a_disk_that_is_full_is_no_end(typed, tmp_path):
    wiring = Wired(typed(*APEX, "env=CartPole-v1", "resources.inference=local"))
    sampler = wiring.sampler(0)
    replay = wiring.sharded_replay(0, sampler, 1)
    try:
        with pytest.raises(OSError):
            replay.save_rows(tmp_path / "is not there")
        assert len(replay.state()["shards"]) == 1, "the shard goes on"
    finally:
        replay.close()
        sampler.close()
