"""Where a sampler's time goes."""

from types import SimpleNamespace

import pytest

from rlrun.bench.throughput import _sampler_time


def made(inference, samplers=2, learners=1):
    return SimpleNamespace(inference=inference, num_samplers=samplers, num_learners=learners)


def test_shares_are_of_every_process_that_steps_environments():
    assert _sampler_time(made("local"), 1000.0, {"env": 600.0, "policy": 400.0}) == pytest.approx({"env": 0.3, "policy": 0.2, "rest": 0.5})
    assert _sampler_time(made("local", 2, 2), 1000.0, {"env": 600.0, "policy": 400.0})["env"] == pytest.approx(0.15)
    assert _sampler_time(made("serial", 1), 1000.0, {"env": 600.0, "policy": 500.0})["rest"] == 0.0, "not below nothing, where clocks disagree"


def test_the_thread_that_acts_for_all_is_apart():
    shares = _sampler_time(made("batched", 4), 2000.0, {"env": 1000.0, "policy": 100.0})
    assert shares == pytest.approx({"env": 0.5, "rest": 0.5, "inference thread": 0.2})


def test_evolution_says_nothing():
    assert _sampler_time(made("local"), 1000.0, {}) == {}
