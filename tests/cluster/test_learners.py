"""Several learners on several machines, without Ray: what they learn, and what happens when one is lost."""

import json
import os
import re
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from apart import Apart
from test_hosts import RAY, weights

import rlrun.runtime.cluster as cluster
from rlrun.cli import _dispatch
from rlrun.cluster.learners import LearnerHosts, LearnersWanted
from rlrun.core.errors import RunFailed, UserError
from rlrun.dataflow.meeting import NAMED, StoreCut, interface_to, through
from rlrun.machine.machine import Machine
from rlrun.machine.nodes import Node, RayConfig
from rlrun.runtime.plan import plan

WORDS = ["env=CartPole-v1", "logger=[]", "model.hidden=[64]", "algo.fragment_length=16", "algo.batch_size=64",
         "algo.minibatch_size=32", "algo.num_epochs=2", "resources.num_learners=2", "resources.device=cpu"]  # fmt: skip
DDPPO = ["algo=ddppo", "algo.cut_share=1", *WORDS]


@pytest.fixture(autouse=True)
def engines(monkeypatch, tmp_path):
    Apart.made = []
    monkeypatch.setattr(cluster, "RayEngine", Apart)
    monkeypatch.setattr(cluster, "check_installed", lambda: None)
    monkeypatch.chdir(tmp_path)
    yield Apart.made
    assert all(engine.closed for engine in Apart.made), "every engine is closed with its run"


def equal(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def summary(path) -> dict:
    return json.loads((path / "summary.json").read_text())


def test_two_machines_learn_what_two_learners_on_one_do(tmp_path, engines):
    """The same weights to the bit, also after a resume. The other machine sees no file of the run."""
    for name, words in (("one", []), ("two", RAY)):
        assert _dispatch(["train", *DDPPO, "model.observation_filter=mean_std", "env_steps=200", *words, f"run_dir={name}"]) == 0
        assert _dispatch(["resume", name, "env_steps=400"]) == 0
    assert equal(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert 400 <= summary(tmp_path / "one")["env_steps"] == summary(tmp_path / "two")["env_steps"]
    assert [[(host.name, host.node) for host in engine.started] for engine in engines] == [[("learner-1", "node-1")]] * 2


def test_a_silent_learner_lets_the_run_begin_again(tmp_path, engines, capfd):
    """It is on a machine that has lost its power, so nothing closes its connections. What init= names is a file that
    only the first learner sees."""
    path, seconds = tmp_path / "run", []
    assert _dispatch(["train", "algo=ppo", *WORDS, "resources.num_learners=1", "env_steps=64", "run_dir=before"]) == 0

    def rows() -> list[dict]:
        there = path / "progress.jsonl"
        return [json.loads(line) for line in there.read_text().splitlines()] if there.is_file() else []

    def lose() -> None:
        while len(rows()) < 3:
            time.sleep(0.02)
        begun, before = time.monotonic(), len(rows())
        engines[0].silence("learner-1")
        while not engines[0].closed:
            time.sleep(0.02)
        seconds.append(time.monotonic() - begun)
        while len(rows()) < before + 3:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=lose, daemon=True).start()
    words = ["init=before", "log_every_sec=0.1", "checkpoint.every=64", "env_steps=1e6", "resources.restarts=9", "run_dir=run"]
    assert _dispatch(["train", *DDPPO, *RAY, *words]) == 143
    said = capfd.readouterr()
    assert len(engines) == 2 and seconds[0] < 10
    assert said.out.count("learner-1 on node-1: its process has died; the run begins again at") == 1, said
    assert rows()[-1]["restarts/processes"] == 1 and summary(path)["status"] == "INTERRUPTED"


def test_an_error_of_another_learner_is_one_sentence(monkeypatch, capfd):
    """Of one that cannot start, and of one that finds no way to the first learner."""
    for_hosts = iter(["255.255.255.255"])
    with monkeypatch.context() as patched:
        patched.setattr(Apart, "address", lambda engine: next(for_hosts, "127.0.0.1"))
        assert _dispatch(["train", *DDPPO, *RAY, "run_dir=lost"]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("rlrun: learner-1 on node-1: this machine does not reach the first learner's address 255.255.255.255")
    same = cluster.same
    monkeypatch.setattr(cluster, "same", lambda plan: same(plan) | {"PyTorch": "1.0"})
    assert _dispatch(["train", *DDPPO, *RAY, "run_dir=run"]) == 2
    assert re.search(r"rlrun: learner-1 on node-1: its PyTorch is .*, and the learner's is 1\.0\n$", capfd.readouterr().err)


@pytest.mark.parametrize("algo", ["ddppo", "ppo", "impala"])
def test_several_learners_learn_on_cpus_beside_a_gpu(typed, algo):
    """As in the commands of docs/cluster.md, which name no device. One learner uses the GPU, and a GPU that was asked for
    is refused."""
    machine = Machine(cores=8, gpus=("H200",), gpu_free=lambda index: 2**37, nodes=(Node("a", 4), Node("b", 4)), env_step_sec=lambda *_: 1e-3)
    words = [f"algo={algo}", "env=CartPole-v1", "logger=[]", *RAY[:2], "resources.num_learners=2"]
    made = plan(typed(*words), machine).resources
    assert made.device.type == "cpu" and made.learner_nodes == (1, 1)
    assert "device=cpu: several learners on the machines of a cluster learn on CPUs" in made.why
    if algo != "ddppo":
        assert plan(typed(*words[:-1]), machine).resources.device.type == "cuda"
    with pytest.raises(UserError, match=r"resources\.device=cuda: several learners on the machines of resources=ray learn on CPUs"):
        plan(typed(*words, "resources.device=cuda"), machine)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resources.num_learners=1"], "here one process samples and learns"),
        (["resources.ray.samplers_per_node=2"], "say how many with resources.num_learners"),
        (["resources.ray.lost=leave_out", "algo=impala", "resources.num_learners=2"], "several learners make every update together"),
        (["resources.ray.calls_ahead=4"], "and send rows from other machines to one learner"),
        (["resources.ray.compress=false"], "it is for runs with one learner, to which rows come from other machines"),
        (["algo=ppo", "resources.ray.calls_ahead=4"], "it is for runs whose samplers do not wait for new weights"),
        (["algo=es", "resources.ray.compress=false"], "to which rows come from other machines"),
        (["algo=impala", "resources.ray.allow_open=true"], "where resources.ray.address is set"),
        (["record=rows"], "the rows of learners on other machines do not come to this one"),
        (["algo=dqn", "resources.num_learners=2"], "runner=replay there is one learner; several need runner="),
        (["algo=a3c"], "runner=async_gradients works on one machine"),
        (["resources.num_learners=99"], "cores of 2 nodes"),
    ],
)
def test_what_cannot_be_spread_is_a_sentence(words, said, tmp_path):
    with pytest.raises(UserError) as caught:
        _dispatch(["train", "algo=ddppo", "env=CartPole-v1", "logger=[]", *RAY, *words, f"run_dir={tmp_path / 'run'}"])
    assert said in str(caught.value) and not (tmp_path / "run").exists()


def test_the_learners_of_a_machine_that_is_gone_move_to_another():
    class Two:
        def nodes(self):
            return [Node("a", 4), Node("b", 8)]

    def places(lost):
        cfg = RayConfig(address="head:1", nodes="auto", samplers_per_node="auto", simulate=0, lost=lost, calls_ahead=2,
                        compress=True, store_mb=1, join_sec=0.01, allow_open=False)  # fmt: skip
        return LearnerHosts(Two(), cfg, LearnersWanted("", {}, [("b", 2), ("gone", 1), ("a", 2)], 1, 1.0, 1.0), said.append)._places()

    said = []
    assert [(node.name, learners) for node, learners in places("take_over")] == [("b", 3), ("a", 2)]
    assert said == ["b takes over the learners of a machine that is missing"]
    with pytest.raises(RunFailed, match=r"planned for 3 machines, and after 0\.01 s the cluster has 2"):
        places("end")


def test_learners_on_several_machines_stop_when_enough_have_finished(monkeypatch):
    """Three learners, of which two are enough; a look at the store is good for a while."""
    monkeypatch.setattr("rlrun.dataflow.meeting.LOOK_SEC", 0.0)
    store = dist.HashStore()
    cut = StoreCut(store, 3, 0.6)
    sides = [cut.of(rank) for rank in range(3)]
    for _ in range(6):
        sides[0].done()
        assert not sides[2].due(20, 20), "one of three is not enough"
        sides[1].done()
        assert not sides[2].due(4, 20) and sides[2].due(5, 20), "a quarter of the rows is collected in any case"
        assert not sides[0].due(20, 20), "the next round has not begun"
        sides[2].done()
    assert store.num_keys() == 3, "rounds that are over are forgotten"


def test_gloo_uses_the_interface_that_reaches_the_first_learner(monkeypatch):
    monkeypatch.delenv(NAMED, raising=False)
    loopback = interface_to("127.0.0.1")
    with through("127.0.0.1"):
        assert os.environ[NAMED] == loopback
    assert NAMED not in os.environ
    monkeypatch.setenv(NAMED, "eth7")
    with through("127.0.0.1"):
        assert os.environ[NAMED] == "eth7", "what the user names"
    monkeypatch.delenv(NAMED)
    monkeypatch.setattr("psutil.net_if_addrs", dict)
    with pytest.raises(RunFailed, match="no network interface of this machine has the address 127"):
        interface_to("127.0.0.1")
