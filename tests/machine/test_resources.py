"""The layout that each runner chooses for a machine."""

import dataclasses
import pickle
import re
import time

import gymnasium
import numpy as np
import pytest
import torch
from conftest import compose

from rlrun.config.run import type_config
from rlrun.core.errors import UserError
from rlrun.core.logs import LOOK_STEPS, SecondLook
from rlrun.machine.machine import Machine, gpu_free, measured
from rlrun.machine.resources import Resources
from rlrun.runtime import session
from rlrun.runtime.plan import plan
from rlrun.runtime.plan_text import described
from rlrun.runtime.rundir import RunDir

SAC = ["algo=sac", "env=Pendulum-v1", "logger=[]"]


def machine(cores: int, step_sec: float, *gpus: str) -> Machine:
    """A machine with this number of cores, on which an env step takes this many seconds."""
    return Machine(
        cores=cores, env_step_sec=lambda make_env, count: step_sec, gpus=gpus, gpu_free=lambda index: 2**36
    )


def decided(config, *facts) -> Resources:
    return plan(config, machine(*facts)).resources


@pytest.mark.parametrize("cores", [2, 8])
@pytest.mark.parametrize(("step_sec", "words", "inference"), [
    (1e-4, [], "serial"),  # an update for every env step takes 20 times as long as the step
    (1e-2, [], "local"),
    (1e-4, ["algo.replay_ratio=16"], "local"),  # an update for every 16 env steps does not
    (1e-5, ["algo.replay_ratio=16"], "serial"),
    (1e-4, ["resources.num_samplers=2", "algo.num_envs=2"], "local"),
    (1e-4, ["algo.batch_size=64", "algo.replay_ratio=64"], "local"),  # the learner cannot use the other cores
    (1e-4, ["resources.learner_threads=1"], "local"),
])  # fmt: skip
def test_env_steps_that_are_little_beside_learning_get_no_process(typed, cores, step_sec, words, inference):
    made = decided(typed(*SAC, *words), cores, step_sec)
    assert made.inference == inference
    assert "resources.inference=" in " ".join(made.why) or words[:1] == ["resources.num_samplers=2"], (
        "how to repeat what was measured is said"
    )


@pytest.mark.parametrize("words", [
    ["algo=ppo", "algo.fragment_length=128", "algo.batch_size=640"], ["algo=a2c", "algo.fragment_length=5", "algo.batch_size=75"],
    ["algo=ppo", "algo.fragment_length=128", "algo.batch_size=768", "resources.num_learners=2"],
])  # fmt: skip
def test_an_odd_number_of_columns_cannot_take_turns_on_a_gpu(typed, words):
    made = decided(typed("env=Pong", "logger=[]", *words), 8, 1e-4, "H200", "H200")
    assert made.inference == "local" and "cannot take turns on the GPU (batch_size / fragment_length)" in " ".join(made.why)


@pytest.mark.parametrize("algo, why", [("ppo", "serial inference acts with"), ("es", "one weighted sum of noise"), ("a3c", "without waiting")])
def test_a_learner_that_leaves_a_gpu_alone_says_why(typed, algo, why):
    for words, said in (([], True), (["resources.device=cpu"], False)):
        made = decided(typed(f"algo={algo}", "env=CartPole-v1", "logger=[]", *words), 8, 1e-5, "H200")
        assert made.device.type == "cpu" and any(one.startswith("device=cpu: ") and why in one for one in made.why) is said


@pytest.mark.parametrize("algo", ["dreamer", "dreamerv3"])
def test_world_models_of_vectors_learn_and_act_on_a_gpu(typed, algo):
    made = decided(typed(f"algo={algo}", "env=CartPole-v1", "logger=[]"), 8, 1e-5, "H200")
    assert made.device.type == "cuda" and made.inference != "serial"


@pytest.mark.parametrize(("cores", "gpus", "inference"), [(1, [], "serial"), (2, [], "local"), (8, ["H200"], "local")])
def test_searches_have_processes_of_their_own(typed, cores, gpus, inference):
    """A search of trees in NumPy takes far longer than what a GPU or a learner's cores could save."""
    made = decided(typed("algo=alphazero", "env=ConnectFour-v0", "logger=[]"), cores, 1e-4, *gpus)
    assert made.inference == inference
    assert "searches" in " ".join(made.why) or cores == 1


class Sleepy(gymnasium.Env):
    """Sleeps in every 20th step, so that a short trial does not see it."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps % 20 == 0:
            time.sleep(0.02)
        return np.zeros(1, dtype=np.float32), 0.0, False, self.steps % 10 == 0, {}


gymnasium.register("Sleepy-v0", entry_point=Sleepy)


@pytest.mark.parametrize("env, env_steps, wrong", [
    ("Sleepy-v0", 1500, True),  # on average a step takes 1 ms
    ("CartPole-v1", 60000, False),
])  # fmt: skip
def test_a_run_looks_again_at_the_speed_of_its_environments(tmp_path, capsys, monkeypatch, env, env_steps, wrong):
    monkeypatch.setattr("rlrun.core.logs.LOOK_SEC", 0.1)
    monkeypatch.setattr("rlrun.core.logs.others_are_busy", lambda: False)
    words = ["algo=a2c", f"env={env}", "logger=[]", "algo.fragment_length=20", "algo.batch_size=640"]
    values = compose(*words, "resources.device=cpu", f"env_steps={env_steps}", f"run_dir={tmp_path / 'run'}")
    made = plan(type_config(values), machine(2, 5e-6))
    assert made.resources.inference == "serial"
    assert session.run(made, values, RunDir.create(tmp_path / "run"), None) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "resources.inference=" in line and "note:" in line]
    assert len(notes) == wrong, "it is said once"
    assert not wrong or re.search(r"not the 5 us that .* resources\.inference=local, which a resumed run may set", notes[0])


def test_a_look_needs_many_env_steps(monkeypatch):
    """On a busy machine, a few pauses of the process make a hundred steps look slow."""
    monkeypatch.setattr("rlrun.core.logs.LOOK_SEC", 0.1)
    monkeypatch.setattr("rlrun.core.logs.others_are_busy", lambda: False)
    asked = []

    def judge(env_step_sec, share):
        asked.append(env_step_sec)
        shares.append(share)

    shares = []
    look = SecondLook(judge)
    look.begun = look.last = look.last - 1.0
    look.note(0.05, 120)
    assert asked == []
    look.note(0.05, LOOK_STEPS)
    assert asked == [0.1 / (120 + LOOK_STEPS)] and 0.01 < shares[0] < 0.1, "0.1 of at least 1 second"
    slow = SecondLook(judge)
    slow.last -= 1.0
    slow.note(0.2, 4)
    assert asked[1:] == [0.05], "steps that take long need no such number"
    monkeypatch.setattr("rlrun.core.logs.others_are_busy", lambda: True)
    slow.last -= 1.0
    slow.note(0.2, 4)
    assert len(asked) == 2, "a busy machine says nothing about the environment"


def test_only_a_clear_difference_is_worth_a_message(typed):
    """CartPole with SAC learns for 2 ms at every env step: its environments get no process below 0.5 ms a step."""
    serial, local = (decided(typed(*SAC), 2, sec).pace for sec in (1e-4, 1e-2))
    assert serial.serial_below_sec == local.serial_below_sec == pytest.approx(5e-4)
    assert serial.second_look(9e-4, 0.5) is None and "resources.inference=local" in serial.second_look(1.1e-3, 0.5)
    assert serial.second_look(1.1e-3, 0.2) is None, "nearly all of the time goes into learning"
    assert local.second_look(3e-4, 0.5) is None and "resources.inference=serial" in local.second_look(2e-4, 0.5)
    assert "takes 200 us on average, and not the 10000 us" in local.second_look(2e-4, 0.5)
    for words in (["resources=debug"], ["resources.inference=serial"], ["resources.inference=local"]):
        assert decided(typed(*SAC, *words), 2, 1e-4).pace is None, "the user decided"


def test_threads_are_tried_where_a_batch_is_large(typed):
    assert decided(typed(*SAC), 2, 1e-3).learner_threads == (1, 2)
    assert decided(typed(*SAC, "algo.batch_size=64"), 2, 1e-3).learner_threads == (1,)
    assert decided(typed(*SAC, "resources=debug"), 2, 1e-3).learner_threads == (1,), (
        "exact runs are the same everywhere"
    )
    assert decided(typed(*SAC), 1, 1e-4).learner_threads == (1,)


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_a_learner_that_samplers_wait_for_takes_all_cores_where_it_learns_images(typed, algo):
    pong = [f"algo={algo}", "env=Pong", "logger=[]"]
    made = decided(typed(*pong), 2, 1e-3)
    assert (made.num_learners, made.num_samplers, made.learner_threads) == (1, 2, (1, 2))
    assert decided(typed(*pong, "resources.num_learners=2"), 2, 1e-3).learner_threads == (1,), "each learner has a core"
    assert decided(typed(*pong, "resources=debug"), 2, 1e-3).learner_threads == (1,)
    assert decided(typed(f"algo={algo}", "env=CartPole-v1", "logger=[]"), 2, 1e-3).learner_threads == (1,), (
        "small nets gain nothing"
    )
    assert decided(typed("algo=impala", "env=Pong", "logger=[]"), 2, 1e-3).learner_threads == (1,), (
        "its samplers never wait"
    )
    assert decided(typed(*pong), 16, 1e-3).learner_threads == (1, 2, 4, 8)


def test_with_a_gpu_samplers_keep_a_process(typed):
    cpu, auto, cuda = (typed(*SAC, f"resources.device={device}") for device in ("cpu", "auto", "cuda"))
    assert decided(cpu, 8, 1e-4, "H200").inference == "serial" and decided(auto, 8, 1e-4, "H200").inference == "local"
    assert decided(cuda, 1, 1e-6, "H200").inference == "local", (
        "a device that was asked for is not lost to a quick environment"
    )
    assert decided(cpu, 1, 1e-6, "H200").inference == "serial"


def test_a_layout_is_a_function_of_values(typed):
    """The same config and machine give the same plan, whatever this machine is; totals differ from shares."""
    config = typed("algo=impala", "env=Pong", "logger=[]")
    one, two = (plan(config, machine(16, 1e-3, "H200", "H200")) for _ in range(2))
    assert str(one) == str(two) and one.resources == two.resources
    made = one.resources
    assert (made.inference, made.groups, made.producers_per_learner) == ("batched", 2, 2 * made.samplers_per_learner)
    assert made.num_envs == made.envs_per_group * made.producers_per_learner * made.num_learners
    together = plan(typed("algo=ddppo", "env=CartPole-v1", "logger=[]"), machine(4, 1e-3))
    assert (
        together.resources.num_samplers
        == together.resources.num_learners
        > together.resources.samplers_per_learner
        == 1
    )
    assert together.columns_per_learner * together.resources.num_learners == together.needs.columns


def test_only_the_gpu_that_learns_is_asked_for_its_memory(typed, monkeypatch):
    """The question takes some hundreds of MB of a GPU, and fails where the GPU is full or belongs to another process."""
    asked = []

    def free(index):
        asked.append(index)
        if index == 0:
            raise RuntimeError("CUDA error: out of memory")
        return 2**36, 2**36

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    here = dataclasses.replace(measured(), env_step_sec=lambda *_: 1e-3, cores=4)
    for words in (["resources.device=cpu"], ["algo=ppo"], ["replay.device=cpu"]):
        plan(typed("algo=dqn", "env=CartPole-v1", "logger=[]", *words), here)
    assert asked == []
    for device, kept in (("cuda:0", "cpu"), ("cuda:1", "learner")):
        made = plan(typed("algo=dqn", "env=CartPole-v1", "logger=[]", f"resources.device={device}"), here)
        assert made.replay.cfg.device == kept
    assert asked == [0, 1]
    monkeypatch.setenv("RLRUN_GPU_JOBS", "4")
    assert gpu_free(1) == 2**34
    with pytest.raises(UserError, match="learner_threads=2 is for a learner on the CPU"):
        plan(typed(*SAC, "resources.device=cuda", "resources.learner_threads=2"), here)


@pytest.mark.parametrize("algo", ["impala", "ppo", "dqn", "apex", "es", "a3c"])
def test_every_plan_can_be_printed_and_sent(typed, algo):
    made = plan(typed(f"algo={algo}", "env=CartPole-v1", "logger=[]"), machine(4, 1e-3))
    said = described(made)
    assert all(word in said for word in ("algorithm", "samplers", made.resources.why[0])) and len(said.splitlines()) > 7
    assert described(pickle.loads(pickle.dumps(made))) == said, "it goes to learners in other processes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("algo=dqn",), "dqn; an update learns from 32 rows that are drawn from the replay; an update every 4 env steps\n"),
        (("algo=apex",), "apex around dqn; an update learns from 512 transitions of 3 rows that are drawn from the replay;"),
        (("algo=dqn", "algo.n_step=[1,3]"), "32 transitions of 1 to 3 rows that are drawn from the replay"),
        (("algo=r2d2",), "32 sequences of 40 rows (the first 20 only update memories) that are drawn from the replay"),
        (("algo=dqn", "resources.num_learners=2"), "32 rows that are drawn from the replay, 16 for each of 2 learners;"),
        (("algo=dqn",), "for each sampler"),
        (("algo=ppo", "resources.inference=serial"), "for each learner"),
        (("algo=ppo", "resources.inference=batched"), "for each group"),
        (("algo=ppo",), "ppo; an update learns from 2 columns x 768 rows\n"),
    ],
)
def test_a_plan_says_what_an_update_learns_from(typed, words, said):
    assert said in described(plan(typed(*words, "env=CartPole-v1", "logger=[]"), machine(4, 1e-3)))
