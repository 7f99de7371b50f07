"""Runs the counting environment and algorithm through the runner, with every way of reusing fragments."""

import dataclasses
import json
import math
import multiprocessing
import os
import signal
import time
from collections import Counter

import pytest
import torch
from counting import CountingAlgorithm, CountingPolicy
from tape import Tapes
from test_samplers import KINDS, counting
from wired import Wired

from rlrun.core.batch import Batch, Field
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import RunFailed
from rlrun.core.logs import LogConfig
from rlrun.core.run import Run
from rlrun.core.signals import Signals
from rlrun.core.timing import Timers
from rlrun.dataflow.reuse import FragmentReplay, Gatherer, PassRing
from rlrun.dataflow.slots import Fragment, Header
from rlrun.dataflow.workers import Workers
from rlrun.runners.actor_learner import _Stream


class Rows:
    def __init__(self):
        self.rows = []

    def log(self, row):
        self.rows.append(row)


def run_counting(typed, tmp_path, kind, *words, env_steps=600):
    return run_wired(counting(typed, kind, "log_every_sec=0.001", f"env_steps={env_steps}", *words), tmp_path)


def run_wired(wiring, tmp_path, evaluate=None):
    """Runs to the end and returns (algorithm, job, log rows)."""
    cfg = wiring.config.run
    tmp_path.mkdir(exist_ok=True)
    logger = Rows()
    made = []
    original = wiring.algorithm
    wiring.algorithm = lambda: made.append(original()) or made[-1]  # type: ignore[method-assign]
    job = Run(
        env_steps=cfg.env_steps, stop=cfg.stop, evaluation=cfg.eval, checkpoint=cfg.checkpoint, log=LogConfig(every_sec=cfg.log_every_sec, every_steps=cfg.log_every_steps),
        checkpoints=Checkpoints(tmp_path / "checkpoints", 3), logger=logger, signals=Signals(), evaluate=evaluate, exact=False, restored=None,
    )  # fmt: skip
    wiring.train(job)
    return made[0], job, logger.rows


def kill_at_the_first_row(monkeypatch, name):
    """Kills the worker of this name when the run logs its first row, in the middle of learning. Returns a list, which
    then holds the time."""
    started, logged = Workers.start, Rows.log
    workers, times = {}, []

    def start(self, called, *args, **more):
        workers[called] = started(self, called, *args, **more)
        return workers[called]

    def log(self, row):
        logged(self, row)
        if len(self.rows) == 1:
            os.kill(workers[name].process.pid, signal.SIGKILL)
            times.append(time.monotonic())

    monkeypatch.setattr(Workers, "start", start)
    monkeypatch.setattr(Rows, "log", log)
    return times


@pytest.mark.parametrize("kind", KINDS)
def test_counts_agree_from_env_to_learner(typed, tmp_path, kind):
    algorithm, job, rows = run_counting(typed, tmp_path, kind)
    assert job.status == "COMPLETED" and algorithm.rows == job.clock.env_steps >= 600
    assert rows[-1]["env_steps"] == job.clock.env_steps and rows[-1]["sample/episodes"] >= 60
    assert rows[-1]["sample/return_mean"] == 28.0
    assert algorithm.updates == job.clock.updates
    json.dumps(rows)  # every row must be valid JSON for progress.jsonl


@pytest.mark.parametrize("kind", ["serial", "local"])
def test_several_passes_and_replay_use_rows_again(typed, tmp_path, kind):
    algorithm, job, _ = run_counting(typed, tmp_path, kind, "runner.num_sgd_iter=3", "runner.minibatch_buffer_size=2")
    assert algorithm.rows == pytest.approx(3 * job.clock.env_steps, rel=0.2)
    again, job, _ = run_counting(typed, tmp_path, kind, "runner.replay_proportion=1.0", "runner.replay_slots=5")
    assert again.rows == pytest.approx(2 * job.clock.env_steps, rel=0.15)


def test_fake_sampler_learns_from_one_batch_for_ever(typed, tmp_path):
    algorithm, job, _ = run_counting(typed, tmp_path, "local", "runner.fake_sampler=true", env_steps=2000)
    assert algorithm.updates > 50 and job.clock.env_steps >= 2000


def test_weights_are_broadcast_at_their_interval(typed, tmp_path):
    wiring = counting(typed, "serial", "runner.broadcast_interval=4", "env_steps=400")
    published = []

    class Recording:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def publish(self, policy, clock):
            published.append((policy is not None, clock.updates))
            self.inner.publish(policy, clock)

    original = wiring.sampler
    wiring.sampler = lambda generation: Recording(original(generation))  # type: ignore[method-assign]
    cfg = wiring.config.run
    job = Run(
        env_steps=cfg.env_steps, stop=cfg.stop, evaluation=cfg.eval, checkpoint=cfg.checkpoint, log=LogConfig(every_sec=99, every_steps=None), logger=Rows(), signals=Signals(),
        checkpoints=Checkpoints(tmp_path / "checkpoints", 3), evaluate=None, exact=False, restored=None,
    )  # fmt: skip
    wiring.train(job)
    assert [updates for full, updates in published if full] == [0, *range(4, job.clock.updates + 1, 4)]
    assert [updates for _, updates in published] == list(range(job.clock.updates + 1))


class WeightPolicy(CountingPolicy):
    """Also records its weight, which is the number of updates that made it."""

    def record_spec(self, names):
        return {name: Field((), torch.float32) for name in names}

    def act(self, obs, is_first, state, clock, mode, rng, record=()):
        made = super().act(obs, is_first, state, clock, mode, rng, ())
        known = {"log_prob": torch.where(is_first, 0.0, state.count), "value": self.weight[0].expand(len(is_first))}
        return made._replace(record=Batch({name: known[name] for name in record}))


class WeightAlgorithm(CountingAlgorithm):
    @classmethod
    def needs(cls, cfg):
        return dataclasses.replace(super().needs(cfg), record=("log_prob", "value"))

    @classmethod
    def make_policy(cls, spec, model, cfg):
        return WeightPolicy()


@pytest.mark.parametrize("kind", KINDS)
def test_policy_lag_is_the_age_of_the_weights_that_acted(typed, tmp_path, kind, monkeypatch):
    """The clock is sent after every update and the weights after every fifth, so that they get up to four updates
    older. A serial sampler acts with the learner's own weights, which have no age."""
    words = ["runner.broadcast_interval=5", "env_steps=900", "log_every_sec=0.001"]
    wiring = counting(typed, kind, *words)
    wiring = Wired(dataclasses.replace(wiring.config, algorithm=WeightAlgorithm))
    told, ages = [], []
    original, collected = wiring.sampler, Run.collected

    class Listening:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def take(self, count):
            fragments = self.inner.take(count)
            told.extend((f.header.updates, int(f.batch.value[0, 0])) for f in fragments)
            return fragments

    def noting(self, headers):
        ages.extend(self.clock.updates - header.updates for header in headers)
        return collected(self, headers)

    monkeypatch.setattr(Run, "collected", noting)
    wiring.sampler = lambda generation: Listening(original(generation))  # type: ignore[method-assign]
    _, job, rows = run_wired(wiring, tmp_path)
    assert job.clock.updates > 30 and len(told) > 60
    if kind == "serial":
        assert all(said == acted for said, acted in told) and max(ages) == 0
        return
    assert {said % 5 for said, _ in told} == {0} and max(said for said, _ in told) >= 25
    # A batched sampler on a CPU acts with new weights a moment before it hears of them.
    assert all(said == acted or (kind == "batched" and said == acted - 5) for said, acted in told)
    assert sum(ages) / len(ages) > 2, "weights are two updates old on average, and fragments wait for a while"
    assert max(row["sample/policy_lag"] for row in rows if row.get("sample/policy_lag") is not None) >= 4


@pytest.mark.parametrize("fault, words", [("raise", r"env \d .*told to fail"), ("kill", r"sampler-\d")])
def test_a_broken_sampler_ends_the_run_fast(typed, tmp_path, fault, words):
    started = time.monotonic()
    with pytest.raises(RunFailed, match=words):
        run_counting(
            typed, tmp_path, "local", "++env.kwargs.fail_at=60", f"++env.kwargs.fault={fault}", env_steps=10**6
        )
    assert time.monotonic() - started < 25  # includes the start of two processes that import torch


@pytest.mark.parametrize("full", [False, True], ids=["slots_free", "slots_full"])
@pytest.mark.parametrize("kind", ["local", "batched"])
def test_a_sampler_that_dies_during_an_evaluation_is_noticed_then(typed, tmp_path, kind, full):
    wiring = counting(typed, kind, "eval.every=1")
    samplers = []
    original = wiring.sampler
    wiring.sampler = lambda generation: samplers.append(original(generation)) or samplers[-1]  # type: ignore[method-assign]

    def evaluate(algorithm, clock, round_, stop):
        deadline = time.monotonic() + 10
        while full and samplers[0].queued < samplers[0].slots.count:  # when all are filled, no environment steps
            assert not stop() and time.monotonic() < deadline
            time.sleep(0.01)
        multiprocessing.active_children()[0].kill()
        for _ in range(100):  # an evaluation of 10 s
            assert not stop()
            time.sleep(0.1)
        raise AssertionError("the death was not noticed")

    with pytest.raises(RunFailed, match=r"sampler-\d was killed by SIGKILL"):
        run_wired(wiring, tmp_path, evaluate)


def test_pass_ring_emits_each_batch_as_often_as_asked():
    numbers = iter(range(100))
    ring = PassRing(2, 3, lambda old: next(numbers))
    assert [ring.emit() for _ in range(12)] == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]


@pytest.mark.parametrize(("proportion", "count"), [(1.5, 4), (1.0, 3), (0.5, 2), (4.0, 7)])
def test_replayed_fragments_are_drawn_uniformly_from_the_last_ones(proportion, count):
    """Train batches of `count` fragments are made as the runner makes them. A replayed fragment may wait for its batch
    while newer ones arrive; what is learnt must be what was drawn."""
    slots, batches = 4, 3000
    fragments = iter(range(10**6))
    header = Header(0, 0, 0, 0, 0, 0, (), (0.0, 0.0))

    class Numbers:
        """Makes fragments that hold their number."""

        columns = 1

        def take(self, count):
            return [Fragment(header, Batch(reward=torch.full((1, 1), float(next(fragments))))) for _ in range(count)]

        def free(self, fragments):
            pass

    replay, newest = FragmentReplay(proportion, slots, torch.Generator().manual_seed(0)), [-1]
    drawn: list[tuple[int, int]] = []
    accompany = replay.accompany

    def noting(fragment):
        newest[0] = int(fragment.batch.reward)
        picks = accompany(fragment)
        drawn.extend((newest[0], int(pick.reward)) for pick in picks)
        return picks

    replay.accompany = noting  # type: ignore[method-assign]
    timers = Timers()
    stream = _Stream(
        Numbers(), replay, count, False, timers, lambda fragment: None, Gatherer(torch.device("cpu"), timers)
    )
    learnt: list[int] = []
    for _ in range(batches):
        learnt += [int(number) for number in stream.train_batch(None).reward[0]]
    new, again = Counter(range(newest[0] + 1)), Counter(number for _, number in drawn)
    waiting = Counter(int(batch.reward) for batch, _ in stream.ready)
    assert Counter(learnt) + waiting == new + again
    ages = Counter(now - number for now, number in drawn if now >= slots)
    total = sum(ages.values())
    assert set(ages) == set(range(slots)) and total / newest[0] == pytest.approx(proportion, rel=0.05)
    for age in range(slots):
        assert ages[age] / total == pytest.approx(1 / slots, abs=4 * math.sqrt(0.19 / total)), "four standard errors"
    assert sum(replay.drawn.values()) == sum(fragment is None for _, fragment in stream.ready)


@pytest.mark.parametrize("words", [
    ["algo=impala", "algo.lr=1e-3 to 0 over 600", "algo.fragment_length=5", "algo.batch_size=20"],
    ["algo=ppo", "algo.fragment_length=5", "algo.batch_size=20", "algo.minibatch_size=10"],
    ["algo=dqn", "algo.learning_starts=30", "algo.num_envs=4", "algo.batch_size=16", "replay=prioritized"],
])  # fmt: skip
def test_a_whole_run_with_recorded_updates_and_acting(typed, tmp_path, words):
    """Simulates the CUDA graphs of a GPU with tests/tape.py."""
    wiring, tapes = Wired(typed(*words, "env=CartPole-v1", "model.hidden=[8]", "logger=[]", "resources.device=cpu", "resources.inference=batched",
                                 "resources.num_samplers=1", "resources.envs_per_sampler=2", "env_steps=600", "log_every_sec=0.001")), Tapes()  # fmt: skip
    wiring.recorder = tapes
    _, job, rows = run_wired(wiring, tmp_path)
    assert job.status == "COMPLETED" and tapes.recordings >= 2 and tapes.replayed > 50
    assert rows[-1].get("learn/skipped_updates") in (0.0, None) and rows[-1]["sample/episodes"] > 5
