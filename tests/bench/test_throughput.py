"""How benchmark throughput divides a sampler's time and computes its bound."""

from types import SimpleNamespace

import pytest

from rlrun.bench.parts import updates_per_row
from rlrun.bench.throughput import _sampler_time, bound_of


def made(inference, samplers=2, learners=1):
    return SimpleNamespace(inference=inference, num_samplers=samplers, num_learners=learners)


def test_shares_are_of_every_process_that_steps_environments():
    assert _sampler_time(made("local"), 1000.0, {"env": 600.0, "policy": 400.0}) == pytest.approx(
        {"env": 0.3, "policy": 0.2, "rest": 0.5}
    )
    assert _sampler_time(made("local", 4, 2), 1000.0, {"env": 600.0, "policy": 400.0})["env"] == pytest.approx(0.15)
    assert _sampler_time(made("serial", 1), 1000.0, {"env": 600.0, "policy": 500.0})["rest"] == 0.0, (
        "never below 0, even where the clocks disagree"
    )


def test_the_thread_that_acts_for_all_is_apart():
    shares = _sampler_time(made("batched", 4), 2000.0, {"env": 1000.0, "policy": 100.0})
    assert shares == pytest.approx({"env": 0.5, "rest": 0.5, "inference thread": 0.2})


def test_evolution_says_nothing():
    assert _sampler_time(made("local"), 1000.0, {}) == {}


def test_a_gpu_works_beside_the_cores():
    rates = {"env": 2000.0, "inference": 100_000.0, "learning": 50_000.0}
    gpu = SimpleNamespace(inference="batched", num_samplers=15, num_learners=1, device=SimpleNamespace(type="cuda"))
    assert bound_of(gpu, rates, 16) == pytest.approx(30_000.0)
    assert bound_of(gpu, rates | {"env": 4000.0}, 16) == pytest.approx(1 / (1 / 100_000 + 1 / 50_000))
    cpu = SimpleNamespace(inference="local", num_samplers=2, num_learners=1, device=SimpleNamespace(type="cpu"))
    assert bound_of(cpu, {"env": 1500.0, "inference": 1800.0, "learning": 900.0}, 2) == pytest.approx(
        2 / (1 / 1500 + 1 / 1800 + 1 / 900)
    )


def test_an_update_stands_for_fewer_env_steps_where_batches_are_used_again(typed):
    """tests/runners/test_actor_learner.py checks that the runner uses rows this often."""
    runner = typed(
        "algo=impala",
        "env=CartPole-v1",
        "runner.num_sgd_iter=2",
        "runner.replay_proportion=0.5",
        "runner.replay_slots=5",
    ).runner
    assert updates_per_row(runner) == 3.0
    assert (
        updates_per_row(typed("algo=impala", "env=CartPole-v1").runner)
        == updates_per_row(typed("algo=ppo", "env=CartPole-v1").runner)
        == 1.0
    )
