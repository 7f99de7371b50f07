"""A run that learns from a dataset: the rows learnt are its env steps, which drive everything that a run does by the
clock. There is no sampler and no environment."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from conftest import optimizer_config
from torch import nn

from rlrun.core.algorithm import Algorithm, LearnerContext, Update
from rlrun.core.batch import Batch
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.duties import CheckpointConfig, StopConfig
from rlrun.core.estimates import NO_ESTIMATES
from rlrun.core.evaluation_duty import EvalConfig
from rlrun.core.logs import LogConfig
from rlrun.core.policy import Policy
from rlrun.core.run import Run
from rlrun.core.schedule import Schedule
from rlrun.core.signals import Signals

ADAM = optimizer_config()
LR = Schedule(((0.0, 0.1), (400.0, 0.0)))
COLUMNS = 10


class Line(Policy):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))


class Regression(Algorithm):
    def __init__(self):
        super().__init__(Line(), None, None, LearnerContext(torch.device("cpu"), torch.Generator().manual_seed(0)))
        self.optimizer = self.ctx.optimizer(self.policy.parameters(), ADAM, LR, 0.0)

    def update(self, batch, clock):
        loss = (self.policy.weight * batch.obs[:-1] - batch.reward).square()[batch.valid].mean()
        return Update({"loss": loss.detach(), **self.optimizer.step(loss, clock)})


class Dataset:
    """Draws fragments [4, 10] one after the other from fixed rows, of which every fifth is dead. It stands in for a
    sampler, and checkpoints hold its place in the data."""

    def __init__(self):
        rng = torch.Generator().manual_seed(0)
        obs = torch.randn(5, 100, generator=rng)
        self.rows = Batch(obs=obs, reward=3.0 * obs[:-1], valid=(torch.arange(400) % 5 != 4).view(4, 100))
        self.place = 0

    def draw(self):
        self.place += COLUMNS
        return self.rows.columns(torch.arange(self.place - COLUMNS, self.place) % 100)

    def save(self):
        return {"place": self.place}

    def load(self, saved):
        self.place = saved["place"]

    def restart(self, generation):
        pass


def run(folder, total, restored=None):
    logged = []
    job = Run(
        env_steps=total, stop=StopConfig(return_mean=None, wall_sec=None, no_improvement_steps=None), evaluation=EvalConfig(every=100, episodes=1, env_steps=None, greedy=True, workers=0, parallel=False, function=None, estimate=NO_ESTIMATES),
        checkpoint=CheckpointConfig(every=200, every_sec=None, best_every_sec=None, keep=9, first_sec=None), log=LogConfig(every_sec=1e-9, every_steps=None), checkpoints=Checkpoints(folder, 9),
        logger=SimpleNamespace(log=logged.append), signals=Signals(), evaluate=lambda algorithm, clock, number, stop: [float(clock.env_steps)],
        exact=True, restored=restored,
    )  # fmt: skip
    algorithm, data = Regression(), Dataset()
    clock, update = job.begin(algorithm), None
    job.sampler_ready(data)
    while job.tick(clock, update):
        batch = data.draw()
        update = algorithm.update(batch, clock)
        clock = clock.after(env_steps=int(batch.valid.sum()), updates=1)
    return job, algorithm, logged


def test_schedules_stops_saves_evaluations_and_logs_follow_the_rows_learnt(tmp_path):
    job, algorithm, logged = run(tmp_path, 400)
    # 32 of the 40 rows in each fragment are live
    assert job.status == "COMPLETED" and job.clock.env_steps == 416 and job.clock.updates == 13
    assert [row["env_steps"] for row in logged] == [32 * i for i in range(14)]
    for before, row in itertools.pairwise(logged):
        assert row["learn/lr"] == pytest.approx(0.1 * max(0.0, 1 - before["env_steps"] / 400))
    assert [row["env_steps"] for row in logged if "eval/return_mean" in row] == [128, 224, 320, 416]
    assert {224, 416} <= {int(name) for name in job.checkpoints.names()}
    assert algorithm.policy.weight.item() > 0.3


def test_a_run_says_the_env_steps_that_are_counted_after_its_learners_were_held(tmp_path):
    """Learners that do not wait for each other have done more than the clock knows when the run is over."""
    job, *_ = run(tmp_path, 200)
    assert job.reason == "224 env steps, a few more than env_steps=200 because the last update was finished"
    job.hold_learners = lambda: job.progress.clock.after(env_steps=7, updates=1)
    assert not job.tick(job.clock, None)
    assert job.reason == "231 env steps, a few more than env_steps=200 because environments step together"
    assert job.clock.env_steps == 231 and job.status == "COMPLETED"


def test_a_resumed_run_reads_on_at_its_place(tmp_path):
    _, whole, _ = run(tmp_path / "whole", 400)
    run(tmp_path / "half", 200)
    restored = Checkpoints(tmp_path / "half", 9).load(None)
    job, resumed, _ = run(tmp_path / "half", 400, restored)
    assert job.clock.env_steps == 416 and torch.equal(resumed.policy.weight, whole.policy.weight)
