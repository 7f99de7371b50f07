"""What `auto` makes of a machine."""

import dataclasses

import pytest
import torch

from rlrun.machine import resources
from rlrun.runtime.wiring import Wiring

SAC = ["algo=sac", "env=Pendulum-v1", "logger=[]"]


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many cores, where an env step takes so long."""

    def make(cores: int, step_sec: float, gpu: bool = False) -> None:
        monkeypatch.setattr(resources, "cores", lambda: cores)
        monkeypatch.setattr(resources, "env_step_sec", lambda *_: step_sec)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    return make


@pytest.mark.parametrize("cores", [2, 8])
@pytest.mark.parametrize(("step_sec", "words", "inference"), [
    (1e-4, [], "serial"),  # an update for every step takes 20 times as long
    (1e-2, [], "local"),
    (1e-4, ["algo.replay_ratio=16"], "local"),  # an update for every 16 steps does not
    (1e-5, ["algo.replay_ratio=16"], "serial"),
    (1e-4, ["resources.num_samplers=2", "algo.num_envs=2"], "local"),
    (1e-4, ["algo.batch_size=64", "algo.replay_ratio=64"], "local"),  # learning has no use for the other cores
    (1e-4, ["resources.learner_threads=1"], "local"),
])  # fmt: skip
def test_env_steps_that_are_little_beside_learning_get_no_process(typed, machine, cores, step_sec, words, inference):
    machine(cores, step_sec)
    made = Wiring(typed(*SAC, *words)).resources
    assert made.inference == inference
    assert "resources.inference=" in " ".join(made.why) or words[:1] == ["resources.num_samplers=2"], "how to repeat what was measured is said"


def test_threads_are_tried_where_a_batch_is_large(typed, machine):
    machine(2, 1e-4)
    assert Wiring(typed(*SAC)).resources.learner_threads == (1, 2)
    assert Wiring(typed(*SAC, "algo.batch_size=64")).resources.learner_threads == (1,)
    assert Wiring(typed(*SAC, "resources=debug")).resources.learner_threads == (1,), "exact runs are the same everywhere"
    machine(1, 1e-4)
    assert Wiring(typed(*SAC)).resources.learner_threads == (1,)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_learner_that_samplers_wait_for_takes_all_cores_where_it_learns_images(typed, machine, algo):
    machine(2, 1e-3)
    pong = [f"algo={algo}", "env=Pong", "logger=[]"]
    made = Wiring(typed(*pong)).resources
    assert (made.num_learners, made.num_samplers, made.learner_threads) == (1, 2, (1, 2))
    assert Wiring(typed(*pong, "resources.num_learners=2")).resources.learner_threads == (1,), "each learner has a core"
    assert Wiring(typed(*pong, "resources=debug")).resources.learner_threads == (1,)
    assert Wiring(typed(f"algo={algo}", "env=CartPole-v1", "logger=[]")).resources.learner_threads == (1,), "small nets gain nothing"
    assert Wiring(typed("algo=impala", "env=Pong", "logger=[]")).resources.learner_threads == (1,), "its samplers never wait"
    machine(16, 1e-3)
    assert Wiring(typed(*pong)).resources.learner_threads == (1, 2, 4, 8)


def test_with_a_gpu_samplers_keep_a_process(typed, machine):
    machine(8, 1e-4, gpu=True)
    config = typed(*SAC)
    needs = config.algorithm.needs(config.algo)
    choose = lambda device: resources._inference(dataclasses.replace(config.run.resources, device=device), needs, 1, 1, None, False, [])  # noqa: E731
    assert choose("cpu") == "serial" and choose("auto") == "local"
    machine(1, 1e-6, gpu=True)
    assert choose("cuda") == "local" and choose("cpu") == "serial", "a device that was asked for is not lost to a quick environment"
