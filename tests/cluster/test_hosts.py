"""Samplers on several machines, without Ray: what they collect, what they learn, and machines that are lost and join."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from counting import LENGTH, CountingAlgorithm, check_rows
from test_actor_learner import run_wired
from together import Together
from wired import Wired

import rlrun.runtime.cluster as cluster
from rlrun.cli import _dispatch
from rlrun.cluster.engine import places
from rlrun.cluster.hosts import Hosts, HostsWanted
from rlrun.cluster.packing import Form, pack, unpack
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.machine.machine import measured
from rlrun.machine.nodes import Node, sampler_shares, shares
from rlrun.runtime.host import PlayerHost, SamplerHost
from rlrun.runtime.room import REST, check_host, check_shared, host_parts, shared_parts

RAY = ["resources=ray", "resources.ray.simulate=2", "resources.device=cpu"]


@pytest.fixture(autouse=True)
def engines(monkeypatch):
    Together.made = []
    monkeypatch.setattr(cluster, "RayEngine", Together)
    monkeypatch.setattr(cluster, "check_installed", lambda: None)
    yield Together.made
    assert all(engine.closed for engine in Together.made), "every engine is closed with its run"


def counting(typed, monkeypatch, *words, samplers=2, nodes=("a", "b")):
    """A wired run of the counting algorithm, whose hosts make it too."""
    config = typed(
        "algo=impala", "env=rlrun/Counting-v0", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20",
        "resources.envs_per_sampler=2", *RAY, f"resources.num_samplers={samplers}", "log_every_sec=0.001", *words,
    )  # fmt: skip
    again = cluster.type_config
    monkeypatch.setattr(
        cluster, "type_config", lambda values: dataclasses.replace(again(values), algorithm=CountingAlgorithm)
    )
    machine = dataclasses.replace(measured(), nodes=tuple(Node(name, 1) for name in nodes))
    return Wired(dataclasses.replace(config, algorithm=CountingAlgorithm), machine)


def test_shares_follow_the_cores():
    assert shares(8, [Node("a", 2), Node("b", 6)]) == (2, 6)
    assert shares(3, [Node("a", 1), Node("b", 1)]) == (2, 1)
    assert shares(1, [Node("a", 1), Node("b", 8)]) == (0, 1)
    assert shares(8, [Node("a", 1), Node("b", 64)]) == (1, 7), "no node is idle while another has several"


@pytest.mark.parametrize(
    ("samplers", "cores", "made"),
    [(31, (16, 16), (15, 16)), (32, (16, 16), (16, 16)), (2, (1, 1), (1, 1)), (2, (1, 8), (1, 1)), (3, (2, 2), (1, 2)), (6, (4, 4), (3, 3)), (1, (2,), (1,))],
)  # fmt: skip
def test_the_learner_keeps_a_core_of_its_machine(samplers, cores, made):
    """Where samplers leave one."""
    assert sampler_shares(samplers, [Node(name, count) for name, count in zip("ab", cores)]) == made


def test_machines_without_cores_step_no_environments(monkeypatch, engines):
    """As a head of the cluster that others share. They take over no samplers either."""
    monkeypatch.setattr("rlrun.cluster.hosts.LOOK_SEC", 0.0)
    cfg = SimpleNamespace(address="head:6379", nodes="auto", join_sec=0.1, lost="take_over")
    engine = Together(cfg, [Node("head", 0)])
    engine.closed = True
    with pytest.raises(UserError, match=r"after 0\.1 s the cluster at head:6379 has no machine with cores; start Ray on one"):
        cluster._joined(engine, cfg)
    engine.join("a", 2)
    assert cluster._joined(engine, cfg) == (Node("a", 2),)
    cfg.nodes = 2
    with pytest.raises(UserError, match=r"resources\.ray\.nodes=2: after 0\.1 s the cluster at head:6379 has 1 with cores"):
        cluster._joined(engine, cfg)
    engine.join("b", 2)
    monkeypatch.setattr(Hosts, "_start", lambda hosts, part, node, spare=False: setattr(part, "host", SimpleNamespace(node=node)))
    hosts = Hosts(engine, cfg, HostsWanted("kind", {}, [("a", 1), ("b", 1)], 0, 1.0, 1.0), None, int)
    monkeypatch.setattr(hosts, "receive", lambda timeout: [setattr(part, "ready", True) for part in hosts.parts])
    hosts.begin()
    hosts.parts[0].host = None
    hosts._replace(hosts.parts[0], None)
    assert [part.node for part in hosts.parts] == ["a", "b"]
    del engine.there["a"]
    hosts._replace(hosts.parts[0], "a")
    hosts._look_at_machines()
    assert [part.node for part in hosts.parts] == ["b", "b"]


def test_samplers_per_node_is_the_same_for_small_and_large_nodes(typed):
    config = typed(
        "algo=impala", "env=CartPole-v1", "logger=[]", *RAY[:1], "resources.device=cpu", "resources.ray.address=auto",
        "resources.ray.samplers_per_node=3",
    )  # fmt: skip
    machine = dataclasses.replace(measured(), nodes=(Node("a", 2), Node("b", 6)))
    assert Wired(config, machine).plan.resources.nodes == (3, 3)


def test_a_run_with_samplers_per_node_is_resumed_and_evaluated(tmp_path):
    """Runs once saved the number of all samplers beside it."""
    words = ["algo=impala", "env=CartPole-v1", "logger=[]", "model.hidden=[8]", "resources.ray.samplers_per_node=1", *RAY]
    assert _dispatch(["train", *words, "env_steps=600", f"run_dir={tmp_path / 'today'}"]) == 0
    file = shutil.copytree(tmp_path / "today", tmp_path / "once") / "config.yaml"
    file.write_text(file.read_text().replace("num_samplers: auto", "num_samplers: 2"))
    assert "num_samplers: 2" in file.read_text()
    for saved in ("today", "once"):
        assert _dispatch(["resume", str(tmp_path / saved), "env_steps=1200"]) == 0
        assert _dispatch(["evaluate", str(tmp_path / saved), "episodes=1"]) == 0
        assert {node for _, node, _ in Together.made[-1].started} == {"node-0", "node-1"}


def test_every_row_is_what_the_env_produced(typed, monkeypatch, engines):
    wiring = counting(typed, monkeypatch)
    algorithm = wiring.algorithm()
    sampler = wiring.sampler(0)
    try:
        sampler.publish(algorithm.policy, Clock())
        last, row, episodes = {}, {}, []
        for updates in range(12):
            fragments = sampler.take(2)
            for fragment in fragments:
                header, batch = fragment.header, fragment.batch
                check_rows(batch)
                assert header.first_row == row.get(header.worker, 0), "rows of a column are numbered without a gap"
                row[header.worker] = header.first_row + 5
                if header.worker in last:
                    assert torch.equal(batch.obs.observation[0], last[header.worker])
                last[header.worker] = batch.obs.observation[5].clone()
                assert header.env_steps == int(batch.valid.sum())
                episodes += header.episodes
            sampler.free(fragments)
            sampler.publish(algorithm.policy, Clock(env_steps=updates, updates=updates + 1))
        assert set(last) == {0, 1} and {e.env for e in episodes} == {0, 1, 2, 3}
        assert all(e.length == LENGTH and e.ret == LENGTH * (LENGTH + 1) / 2 for e in episodes)
        assert fragments[-1].header.updates > 0, "newer weights arrive"
        assert [(name, node) for name, node, _ in engines[0].started] == [("host-0", "a"), ("host-1", "b")]
    finally:
        sampler.close()


def test_a_batch_may_hold_more_fragments_than_answers_bring(typed, monkeypatch):
    """As those of images do, of which one answer brings one fragment."""
    monkeypatch.setattr("rlrun.cluster.sampler.ANSWER_BYTES", 1)
    wiring = counting(typed, monkeypatch, "runner.queue_timeout_sec=5")
    sampler = wiring.sampler(0)
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        for _ in range(3):
            sampler.free(fragments := sampler.take(24))
            assert len(fragments) == 24
    finally:
        sampler.close()


def test_rows_that_wait_for_a_slow_learner_are_few(typed, monkeypatch):
    """A batch is one fragment of each machine: one waits here, and each machine's sampler has room for two."""
    wiring = counting(typed, monkeypatch)
    algorithm, sampler = wiring.algorithm(), wiring.sampler(0)
    try:
        for updates in range(8):
            sampler.publish(algorithm.policy, Clock(updates=updates))
            for _ in range(10):
                sampler._receive(0.05)  # the learner is busy
            assert len(sampler.arrived) <= 2
            fragments = sampler.take(2)
            assert all(updates - fragment.header.updates <= 3 for fragment in fragments)
            sampler.free(fragments)
        assert updates - fragments[-1].header.updates >= 1, "samplers were ahead, so that the bound was tried"
    finally:
        sampler.close()


def weights(path):
    checkpoints = Checkpoints(path / "checkpoints", keep=1)
    return checkpoints.load(parts=("policy",))[0]["policy"]


def test_an_on_policy_run_is_the_same_as_on_one_machine(tmp_path):
    words = ["train", "algo=ppo", "env=CartPole-v1", "logger=[]", "algo.fragment_length=16", "algo.batch_size=128",
             "algo.minibatch_size=32", "env_steps=600", "resources.num_samplers=2", "resources.device=cpu"]  # fmt: skip
    assert _dispatch([*words, "resources.inference=local", f"run_dir={tmp_path / 'one'}"]) == 0
    assert _dispatch([*words, *RAY, f"run_dir={tmp_path / 'two'}"]) == 0
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("runner", ["actor_learner", "on_policy"])
def test_a_lost_machine_loses_and_doubles_no_row(typed, monkeypatch, engines, tmp_path, runner):
    """Its samplers go on with another machine and, once a third has joined, there."""
    monkeypatch.setattr("rlrun.cluster.hosts.LOOK_SEC", 0.0)
    wiring = counting(typed, monkeypatch, f"runner={runner}", "env_steps=3000")
    original, seen, budget = wiring.sampler, [], Restarts(100, 600.0, tell=lambda text: None)

    def sampler(generation):
        made = original(generation)
        made.hosts.restarts = budget
        take = made.take

        def taken(count):
            seen.append(count)
            if len(seen) == 20:
                engines[0].kill("b")
            if len(seen) == 60:
                engines[0].join("c")
            return take(count)

        made.take = taken
        return made

    wiring.sampler = sampler
    algorithm, job, _ = run_wired(wiring, tmp_path / "run")
    assert job.status == "COMPLETED", job.reason
    assert algorithm.rows == job.clock.env_steps, "what is counted is what was learnt from"
    assert budget.processes == 1 and 0 < budget.lost_env_steps <= (2 + 2 * 2) * 2 * 5 * 2
    assert [(name, node, spare) for name, node, spare in engines[0].started[2:]] == [
        ("host-1", "a", True), ("host-1", "c", False),
    ]  # fmt: skip


def test_lost_machines_may_be_left_out_or_end_the_run(typed, monkeypatch, engines):
    for lost in ("leave_out", "end"):
        wiring = counting(typed, monkeypatch, f"resources.ray.lost={lost}", "resources.restarts=9")
        sampler = wiring.sampler(0)
        try:
            sampler.publish(wiring.algorithm().policy, Clock())
            sampler.free(sampler.take(4))
            engines[-1].kill("b")
            if lost == "end":
                with pytest.raises(RunFailed, match=r"host-1 on b: the machine is gone; resources\.ray\.lost=end"):
                    for _ in range(20):
                        sampler.free(sampler.take(2))
                continue
            for _ in range(10):
                sampler.free(fragments := sampler.take(4))
            assert {fragment.header.worker for fragment in fragments} == {0}
            engines[-1].kill("a")
            with pytest.raises(RunFailed, match="no machine is left that steps environments"):
                for _ in range(20):
                    sampler.free(sampler.take(2))
        finally:
            sampler.close()


def test_machines_are_found_again_by_their_names():
    assert places(["a", "b", "c"], ["c", "x", "a"]) == ["a", "x", "c"]
    assert places(["node-0", "node-1"], ["127.0.0.1", "127.0.0.1#2"]) == ["127.0.0.1", "127.0.0.1#2"]
    assert places(["a", "b", "c"], ["b", "new"]) == ["new", "b", None]


@pytest.mark.parametrize("lost", ["take_over", "leave_out", "end"])
def test_a_run_that_begins_again_without_a_machine_goes_on_as_it_was_told(typed, monkeypatch, engines, capfd, lost):
    """The machine is gone before the hosts start."""
    monkeypatch.setattr("rlrun.runtime.build.engine_of", lambda cfg, planned: Together(cfg, planned[1:]))
    wiring = counting(typed, monkeypatch, f"resources.ray.lost={lost}", "resources.ray.join_sec=0.5")
    if lost == "end":
        with pytest.raises(RunFailed, match=r"planned for 2 machines, and after 0\.5 s the cluster has 1 \(b\); resources"):
            wiring.sampler(0)
        return
    sampler = wiring.sampler(0)
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        workers = set()
        for _ in range(10):
            sampler.free(fragments := sampler.take(2))
            workers |= {fragment.header.worker for fragment in fragments}
        assert workers == ({0, 1} if lost == "take_over" else {1})
        assert engines[0].started[0][:2] == ("host-1", "b"), "a machine keeps the samplers that it was planned to have"
        assert "planned for 2 machines" in (said := capfd.readouterr().out)
        assert ("b takes over the samplers of host-0" if lost == "take_over" else "the samplers of host-0 are left out") in said
    finally:
        sampler.close()


def test_every_machine_checks_its_own_shared_memory(typed):
    """The learner's machine needs none for samplers that are on a cluster's machines; simulated nodes are on it."""
    words = ["env=CartPole-v1", "logger=[]", "resources=ray", "resources.device=cpu"]
    machine = dataclasses.replace(measured(), nodes=(Node("a", 1), Node("b", 3)))
    for algo in ("impala", "apex", "es"):
        here = Wired(typed(f"algo={algo}", *words, "resources.ray.simulate=2"), machine).plan
        away = Wired(typed(f"algo={algo}", *words, "resources.ray.address=auto"), machine).plan
        hosts = [host_parts(away, workers) for _, workers in away.shares]
        total = sum(size for parts in hosts for size in parts.values())
        assert total > 0 and sum(shared_parts(here).values()) - sum(shared_parts(away).values()) == total
        check_shared(away, REST + sum(shared_parts(away).values()))
        check_host(away, away.shares[1][1], REST + sum(hosts[1].values()))
        with pytest.raises(UserError, match=r"MB of shared memory \(.*\), and .* MB of /dev/shm are free"):
            check_host(away, away.shares[1][1], REST + sum(hosts[1].values()) - 1)


@pytest.mark.parametrize(
    ("begins_sec", "plans_sec", "answers_sec", "said", "after_sec"),
    [
        (0, 90, 2, None, 445),  # then four processes, which become ready one after another
        (0, 1e9, 2, r"silent for 100 s while it started: its environment.*start_timeout_sec allows more", 102),
        (0, 5, 1e9, r"silent for 100 s while it started: its environment.*start_timeout_sec allows more", 108),
        (150, 1, 2, None, 506),
        (1e9, 1, 2, r"did not start within 160 s: it waits for free cores.* the cluster has a \(2 cores\)", 161),
    ],
)
def test_a_host_has_the_time_that_its_processes_have(monkeypatch, begins_sec, plans_sec, answers_sec, said, after_sec):
    """One that is silent is lost soon, however many processes it has, and the reason is the true one."""
    now, due, ready = [0.0], {}, [0.0]
    monkeypatch.setattr("rlrun.cluster.hosts.awake", lambda: now[0])
    monkeypatch.setattr("rlrun.cluster.hosts.time", SimpleNamespace(sleep=lambda sec: None))

    class SlowHost:
        node = "a"

        def call(self, method, *args):
            due[method] = now[0] + {"here": begins_sec, "start": plans_sec, "ready": answers_sec}[method]
            return method

    class SlowEngine:
        def nodes(self):
            return [Node("a", 2)]

        def start(self, *told):
            return SlowHost()

        def wait(self, answers, timeout):
            now[0] += timeout
            return [answer for answer in answers if due[answer] <= now[0]]

        def get(self, answer):
            if answer == "start":
                ready[:] = [now[0] + 88 * number for number in range(1, 5)]  # when each process is ready
            starting = sum(sec > now[0] for sec in ready)
            return pack(Form({}, 1, False), [], {"failed": None, "news": [], "starting": starting})

    wanted = HostsWanted("kind", {}, [("a", 4)], 0, 100.0, 30.0)
    hosts = Hosts(SlowEngine(), SimpleNamespace(join_sec=60.0, lost="end"), wanted, None, int)
    if said is None:
        hosts.begin()
        assert hosts.parts[0].ready
    else:
        with pytest.raises(RunFailed, match=f"host-0 on a .*{said}"):
            hosts.begin()
    assert now[0] == pytest.approx(after_sec, abs=3.0)


@pytest.mark.parametrize("algo", ["impala", "es"])
def test_a_host_says_which_of_its_processes_hangs_while_it_starts(typed, monkeypatch, algo):
    """After the time that one process has, while it answers."""
    monkeypatch.setattr("rlrun.runtime.host.ANSWER_SEC", 0.1)
    monkeypatch.setattr("rlrun.samplers.local.sampler_process", hangs)
    monkeypatch.setattr("rlrun.samplers.players.player_process", hangs)
    config = typed(f"algo={algo}", "env=CartPole-v1", "logger=[]", "resources.start_timeout_sec=2", *RAY)
    machine = dataclasses.replace(measured(), nodes=(Node("a", 1), Node("b", 1)))
    plan = Wired(config, machine).plan
    told = {"first": 0, "workers": 2, "restart": 0, "generation": 0, "synchronous": False, "compress": False}
    host = {"impala": SamplerHost, "es": PlayerHost}[algo](json.dumps(cluster.brief(plan) | told).encode())
    try:
        answers = [unpack(host.start())[1]]
        while answers[-1]["failed"] is None:
            answers.append(unpack(host.ready())[1])
        assert len(answers) > 5 and all(one["starting"] == 2 for one in answers[:-1])
        assert "sampler-0 did not start within 2 s (nor did 1 other): its environment" in answers[-1]["failed"]
    finally:
        host.close()


def hangs(pipe, *job):
    pipe.recv()


def test_a_host_that_is_not_the_same_is_named(typed, monkeypatch):
    wiring = counting(typed, monkeypatch)
    same = cluster.same
    monkeypatch.setattr("rlrun.runtime.host.same", lambda plan: same(plan) | {"PyTorch": "1.0"})
    with pytest.raises(UserError, match=r"host-0 on a: its PyTorch is 1\.0, and the learner's is"):
        wiring.sampler(0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resources.inference=serial"], "resources.inference=serial: the samplers of resources=ray act with copies"),
        (["resources.num_samplers=1"], "1 samplers are fewer than the 2 nodes"),
        (["resources.ray.nodes=3", "resources.ray.simulate=0"], "without resources.ray.address there is this machine alone"),
        (["resources.ray.address=auto"], "simulate starts nodes on this machine, and address joins a cluster"),
        (["resources.num_samplers=4", "resources.ray.samplers_per_node=2"], "ray.samplers_per_node those of each: set one"),
        (["resources.ray.store_mb=74"], "resources.ray.store_mb must be at least 75"),
        (["algo=a3c"], "runner=async_gradients works on one machine"),
        (["resources.ray.lost=leave_out"], "runner=on_policy waits for the rows of all samplers"),
    ],
)  # fmt: skip
def test_what_cannot_be_spread_is_a_sentence(words, said, tmp_path):
    with pytest.raises(UserError) as caught:
        _dispatch(["train", "algo=ppo", "env=CartPole-v1", "logger=[]", *RAY, *words, f"run_dir={tmp_path / 'run'}"])
    assert said in str(caught.value) and not (tmp_path / "run").exists()


def test_what_a_host_is_told_is_text(typed, monkeypatch):
    wiring = counting(typed, monkeypatch, "logger=[mlflow]")
    told = json.dumps(cluster.brief(wiring.plan))
    assert "mlflow" not in json.loads(told)["config"]["logger"], "addresses with passwords stay where they are"
    assert cluster.plan_again(json.loads(told)).fragment == wiring.plan.fragment


def test_an_evolution_on_two_machines_plays_again_what_one_had(tmp_path, monkeypatch, engines):
    """The same rollouts as without the loss, because a report depends on its order alone, and when a third machine joins
    while the second one's players have an answer ready."""
    from rlrun.cluster.population import HostPopulation

    monkeypatch.setattr("rlrun.cluster.hosts.LOOK_SEC", 0.0)
    words = ["train", "algo=es", "env=CartPole-v1", "logger=[]", "algo.noise_size=100000", "model.hidden=[8]", "env_steps=100",
             "algo.env_steps_per_batch=1", "algo.episodes_per_batch=40", "resources.envs_per_sampler=4", *RAY]  # fmt: skip
    take, calls = HostPopulation.take, []

    def taken(population):
        calls.append(population)
        if len(calls) == 2 and len(engines) == 2:
            engines[-1].kill("node-1")
        if len(calls) == 4 and len(engines) == 2:  # the players' new host has started and was told what to play
            engines[-1].join("node-2")
        return take(population)

    monkeypatch.setattr(HostPopulation, "take", taken)
    found = []
    for name in ("whole", "lost"):
        calls.clear()
        assert _dispatch([*words, f"run_dir={tmp_path / name}"]) == 0
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        found.append((weights(tmp_path / name), summary["env_steps"]))
    assert engines[-1].started[2:] == [("host-1", "node-0", True), ("host-1", "node-2", False)]
    assert found[0][1] == found[1][1] and all(torch.equal(found[0][0][key], found[1][0][key]) for key in found[0][0])
