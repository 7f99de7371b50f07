"""Asynchronous gradients: shared steps equal ordinary steps, every row is counted, and a dead process ends the run."""

import json
import re
import time
import types

import pytest
import torch
from conftest import SMALL, optimizer_config
from test_actor_learner import kill_at_the_first_row, run_wired
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.errors import ProcessLost, RunFailed, UserError
from rlrun.core.learners import exchange
from rlrun.core.optimizer import Optimizer
from rlrun.core.ranks import ALONE
from rlrun.core.schedule import Clock, Schedule
from rlrun.dataflow.shared import SharedLearner
from rlrun.machine.machine import cores
from rlrun.runners.async_gradients import _aged
from rlrun.runners.gradient_process import ReplayPart, learn, learn_from_replay, worker_process
from rlrun.runtime.build import factories_elsewhere
from rlrun.samplers.processes import RESTART_BITS

ASYNC = ["algo=a3c", "resources.num_learners=2", "logger=[]", "model.hidden=[64]"]
REPLAYED = [
    "runner=async_gradients",
    "resources.num_learners=2",
    "logger=[]",
    "model.hidden=[64]",
    "replay.capacity=4000",
    "log_every_sec=0.05",
]


def optimizer(parameter, kind="rmsprop"):
    more = {"momentum": 0.5, "centered": True} if kind.startswith("rmsprop") else {"weight_decay": 0.1}
    more |= {"warmup_updates": 6} if kind == "adamw" else {}  # all count the same steps
    cfg = optimizer_config(kind=kind, epsilon=1e-3, decay=0.9, beta2=0.99, **more)
    return Optimizer([parameter], cfg, Schedule.parse(0.1), 1.0)


@pytest.mark.parametrize("kind", ["adam", "adamw", "radam", "rmsprop", "rmsprop_tf"])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_shared_step_is_an_ordinary_step(kind, steps_before):
    """Two copies that take turns on shared weights do the same as a single optimiser, also after a restart."""
    start = torch.tensor([1.0, -2.0, 3.0])
    alone, shared = (torch.nn.Parameter(start.clone()) for _ in range(2))
    one, main = optimizer(alone, kind), optimizer(shared, kind)
    for _ in range(steps_before):
        one.step(alone.square().sum(), Clock())
        main.step(shared.square().sum(), Clock())
    shared.data.share_memory_()
    state = main.share()
    assert torch.equal(shared, alone), "sharing changes no weight"
    copies = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizers = [optimizer(copy, kind) for copy in copies]
    for copy, each in zip(copies, optimizers, strict=True):
        each.attach(state)
        before = copy.detach().clone()
        with torch.no_grad():
            copy.copy_(shared)
        one.step(alone.square().sum(), Clock())
        each.step(copy.square().sum(), Clock())
        torch.testing.assert_close(shared, alone)
        assert not torch.equal(copy, shared) or (steps_before == 0 and torch.equal(copy, before)), (
            "the copy waits for its refresh"
        )
    restored = optimizer(torch.nn.Parameter(shared.detach().clone()), kind)
    restored.load_state_dict(main.state_dict())
    one.step(alone.square().sum(), Clock())
    restored.step(restored.parameters[0].square().sum(), Clock())
    torch.testing.assert_close(restored.parameters[0], alone)


def test_refresh_copies_weights_and_buffers(typed):
    words = [*ASYNC, "env=CartPole-v1", "model.observation_filter=mean_std", "algo.lr=0.01"]
    main, worker = Wired(typed(*words)).algorithm(), Wired(typed(*words, "seed=5")).algorithm()
    shared = SharedLearner(main, Clock(30, 4))
    shared.attach(worker)
    with torch.no_grad():
        main.policy.filter.filters[0].shift.fill_(7.0)
    shared.refresh(worker)
    assert all(torch.equal(a, b) for a, b in zip(main.state_dict().values(), worker.state_dict().values(), strict=True))
    worker.optimizer.step(worker.policy.value_head.weight.sum(), Clock())
    assert not torch.equal(main.policy.value_head.weight, worker.policy.value_head.weight)
    assert shared.clock == Clock(30, 4)


def test_two_processes_learn_and_count_every_row(typed, tmp_path):
    words = ["env=rlrun/Identity-v0", "algo.fragment_length=20", "algo.batch_size=20", "algo.lr=3e-3", "algo.optimizer.kind=adam",
             "algo.optimizer.epsilon=1e-5", "algo.discount=0", "algo.entropy_coef=0", "env_steps=100000", "stop.return_mean=18"]  # fmt: skip
    made, job, rows = run_wired(Wired(typed(*ASYNC, *words, "log_every_sec=0.05")), tmp_path)
    assert job.status == "STOPPED" and job.episodes.mean >= 18
    assert job.clock.updates >= job.clock.env_steps // 20 > 50
    assert any(row["sample/policy_lag"] for row in rows if row.get("sample/policy_lag") is not None), (
        "others' gradients come in between"
    )
    statistics = made.state()["optimizers"]["optimizer"]["inner"]["state"]
    assert all(value["exp_avg_sq"].abs().sum() > 0 for value in statistics.values()), (
        "shared statistics are what is saved"
    )


@pytest.mark.parametrize("words", [ASYNC, ["algo=dqn", *REPLAYED, "algo.learning_starts=1000"]], ids=["a3c", "dqn"])
def test_the_policy_lag_counts_the_gradients_that_others_applied_meanwhile(typed, words):
    """Neither its own ones, nor those that the first process has only now counted."""
    made = factories_elsewhere(Wired(typed(*words, "env=CartPole-v1")).plan, 1, 0)
    algorithm, sampler, sent = made.algorithm(), made.sampler(0), []
    shared = SharedLearner(Wired(typed(*words, "env=CartPole-v1")).algorithm(), Clock(0, 100), 3)
    shared.attach(algorithm, 1)
    shared.gradients += 50
    take = sampler.take

    def others_go_on(count):
        shared.gradients += torch.tensor([2, 0, 1])
        shared.clock = Clock(0, shared.clock.updates + 7)
        return take(count)

    def send(report):
        sent.append(report)
        if len(sent) == 3:
            raise InterruptedError

    sampler.take, pipe = others_go_on, types.SimpleNamespace(send=send)
    with pytest.raises(InterruptedError):
        if made.learns_from_replay:
            part = ReplayPart(made, algorithm, 1, 0)
            learn_from_replay(pipe, made, algorithm, sampler, part, shared, lambda told: False)
        else:
            learn(pipe, made, algorithm, sampler, shared, lambda: False)
    sampler.close()
    headers = _aged(sent, shared.clock)
    assert {report.lag for report in exchange(headers, shared.clock, ALONE)} == {3} and len(headers) >= 3
    assert shared.gradients.tolist() == [56, 50 if made.learns_from_replay else 53, 53]


def test_what_is_saved_is_what_was_counted_and_evaluated(typed, tmp_path):
    """All processes are held while the run evaluates, saves and ends, so that no update is missing from the clock."""
    seen = []

    def evaluate(algorithm, clock, round_, stop):
        before = {name: value.clone() for name, value in algorithm.state_dict().items()}
        time.sleep(0.1)
        seen.append(all(torch.equal(value, before[name]) for name, value in algorithm.state_dict().items()))
        return [1.0]

    words = [
        "env=CartPole-v1",
        "env_steps=3000",
        "eval.every=500",
        "checkpoint.every=1000",
        "algo.optimizer.kind=adam",
        "algo.optimizer.epsilon=1e-5",
    ]
    (tmp_path / "checkpoints").mkdir()
    made, job, _ = run_wired(Wired(typed(*ASYNC, *words)), tmp_path, evaluate)
    assert len(seen) >= 5 and all(seen)
    tensors, run = Checkpoints(tmp_path / "checkpoints", 3).load()
    assert run["env_steps"] == job.clock.env_steps and run["updates"] == job.clock.updates
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in tensors["algorithm"]["module"].items())
    steps = float(next(iter(tensors["algorithm"]["optimizers"]["optimizer"]["inner"]["state"].values()))["step"])
    assert 0.95 * run["updates"] <= steps <= run["updates"], (
        "every gradient was reported (two at once may count as one step: there is no lock)"
    )


def test_other_algorithms_can_share_weights_too_and_filters_of_all_processes_are_merged(typed, tmp_path):
    words = [
        "algo=pg",
        "env=Acrobot-v1",
        "logger=[]",
        "runner=async_gradients",
        "algo.fragment_length=20",
        "algo.batch_size=20",
        "model.observation_filter=mean_std",
        "env_steps=400",
    ]
    wiring = Wired(typed(*words))
    assert wiring.resources.inference == "serial" and wiring.resources.num_learners == cores()
    made, job, _ = run_wired(wiring, tmp_path)
    assert job.status == "COMPLETED"
    assert int(made.policy.filter.filters[0].count) == job.clock.env_steps


def test_processes_have_replays_of_their_own_and_resume_with_all_rows(tmp_path, capfd):
    path = tmp_path / "run"
    words = ["algo=dqn", "env=CartPole-v1", *REPLAYED, "algo.learning_starts=100", "algo.batch_size=16", "algo.replay_ratio=4",
             "replay=prioritized", "algo.input_priorities=true"]  # fmt: skip
    assert _dispatch(["train", *words, "env_steps=400", f"run_dir={path}"]) == 0
    summary = json.loads((path / "summary.json").read_text())
    assert 40 < summary["updates"] <= 4 * summary["env_steps"] / 16, "no more is learnt than the ratio says"
    last = sorted((path / "checkpoints").glob("0*"))[-1]
    first = torch.load(last / "replay.pt", weights_only=True)["replay"]
    states = [first, torch.load(last / "replay-1.pt", weights_only=True)["replay"]]
    came = [state["limiter"]["came"] for state in states]
    assert min(came) > 0 and sum(came) == summary["env_steps"]
    assert all((last / f"replay-{number}.bin").stat().st_size > 1000 for number in range(2))
    capfd.readouterr()
    assert _dispatch(["resume", str(path), "env_steps=500"]) == 0
    assert "holds no replayed rows" not in capfd.readouterr().out
    after = json.loads((path / "summary.json").read_text())
    assert after["updates"] > summary["updates"] + 10, "it learns at once"


@pytest.mark.parametrize("before, after", [(1, 2), (2, 1)])
def test_one_learner_and_several_do_not_go_on_as_each_other(before, after, tmp_path):
    words = ["algo=dqn", "env=CartPole-v1", *REPLAYED, "algo.learning_starts=100", "replay.checkpoint=false", "env_steps=200"]
    run, learners = tmp_path / "run", "resources.num_learners={}".format
    assert _dispatch(["train", *words, learners(before), f"run_dir={run}"]) == 0
    with pytest.raises(UserError, match=r"resume with the same resources\.num_learners"):
        _dispatch(["resume", str(run), "env_steps=400", learners(after), f"resources.envs_per_sampler={4 // after}"])
    assert _dispatch(["resume", str(run), "env_steps=400"]) == 0, "and config.yaml is as it was"


@pytest.mark.parametrize("algo", ["ddpg", "iqn"])  # iqn draws from ctx in its update
def test_variants_share_weights_and_targets_too(typed, tmp_path, algo):
    words = (
        ["env=Pendulum-v1", "algo.actor.hidden=[8]"] if algo == "ddpg" else ["env=CartPole-v1", "algo.target_tau=0.1"]
    )
    words += ["algo.learning_starts=50", "algo.batch_size=16", "algo.replay_ratio=4", "algo.target_update_interval=2"]
    made, job, _ = run_wired(Wired(typed(f"algo={algo}", *REPLAYED, *words, "env_steps=300")), tmp_path)
    assert job.status == "COMPLETED" and job.clock.updates > 30
    pairs = [(f.olds, f.news) for f in made.followers()]
    apart = [
        float((old - new.detach()).abs().max()) for olds, news in pairs for old, new in zip(olds, news, strict=True)
    ]
    assert max(apart) > 0, "targets follow slowly"
    one = Wired(typed(f"algo={algo}", *REPLAYED, *words)).algorithm()
    first = [old for f in one.followers() for old in f.olds]
    assert any(not torch.equal(a, b) for a, b in zip(first, [old for olds, _ in pairs for old in olds], strict=True))


def test_a_process_draws_other_numbers_after_a_resume_and_in_place_of_one_that_died(typed):
    """No checkpoint holds what the processes draw from."""
    made = Wired(typed("algo=iqn", *REPLAYED, "env=CartPole-v1")).plan
    generations = (0, 1, 1 + (1 << RESTART_BITS))
    learners = [factories_elsewhere(made, number, one).algorithm() for number in (0, 1) for one in generations]
    assert len({float(torch.rand((), generator=learner.ctx.rng)) for learner in learners}) == 6
    told = []

    def make(*facts):
        told.append(facts)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        worker_process(None, make, 1, None, 7, None)
    assert told == [(1, 7)]


def test_targets_move_by_the_updates_of_all_processes(typed):
    words = ["algo=dqn", *REPLAYED, "env=CartPole-v1", "algo.target_update_interval=4", "algo.target_tau=0.5"]
    made, worker = (Wired(typed(*words)).algorithm() for _ in range(2))
    SharedLearner(made, Clock()).attach(worker)
    with torch.no_grad():
        for parameter in (*made.policy.parameters(), *worker.policy.parameters()):
            parameter.add_(1.0)
    before = [old.clone() for old in made.following.olds]
    worker.following.move(1.0)
    assert all(torch.equal(a, b) for a, b in zip(worker.following.olds, before, strict=True))
    counted = 0
    for updates, share in ((3, 0.0), (4, 0.5), (7, 0.5), (12, 0.875)):
        made.move_targets(counted, updates)
        counted = updates
        for old, now, new in zip(before, made.following.olds, made.following.news, strict=True):
            torch.testing.assert_close(now, old + share * (new - old))


def test_a_killed_process_ends_the_run(typed, tmp_path, monkeypatch):
    kill_at_the_first_row(monkeypatch, "worker-1")
    with pytest.raises(RunFailed, match="worker-1 was killed by SIGKILL"):
        run_wired(Wired(typed(*ASYNC, "env=CartPole-v1", "env_steps=10000000", "log_every_sec=0.05")), tmp_path)


def test_a_failing_environment_is_named(typed, tmp_path):
    with pytest.raises(RunFailed, match=r"env \d .* failed in step 60 .*told to fail"):
        run_wired(
            Wired(typed(*ASYNC, "env=rlrun/Counting-v0", "++env.kwargs.fail_at=60", "++env.kwargs.fault=raise")),
            tmp_path,
        )


class Divides(torch.nn.Module):
    """An encoder that fails in the fifth update."""

    def __init__(self, spec):
        super().__init__()
        self.layer, self.features, self.updates = torch.nn.Linear(4, 8), 8, 0

    def forward(self, obs):
        self.updates += torch.is_grad_enabled()
        return self.layer(obs) if self.updates < 5 else self.layer(obs) * (1 // 0)


@pytest.mark.parametrize("words, said", [
    (["algo=a3c", "algo.lr=1e30", "algo.fragment_length=5", "algo.batch_size=5"], "updates in a row had a non-finite gradient"),
    (["algo=dqn", *REPLAYED, "algo.learning_starts=100", f"model.encoder={__name__}:Divides"], r"ZeroDivisionError.*test_async_gradients\.py"),
])  # fmt: skip
def test_an_error_of_the_learner_itself_ends_the_run(words, said, tmp_path, capfd):
    """No new process takes its place, as where all learners wait for each other."""
    words = [*words, "env=CartPole-v1", "resources.num_learners=2", "logger=[]", "env_steps=20000", "checkpoint.every=null"]
    assert _dispatch(["train", *words, f"run_dir={tmp_path / 'run'}"]) == 1
    out, errors = capfd.readouterr()
    assert re.search(rf"worker-\d failed: .*{said}", errors) and "takes its place" not in out
    assert "what it had learnt" not in out


@pytest.mark.parametrize("words, said", [
    (["algo=ppo", "runner=async_gradients"], "it is for a3c, a2c, pg, dqn, c51, rainbow, qr_dqn, iqn, ddpg and slateq"),
    (["algo=a3c", "resources.inference=local"], "in their own process"),
    (["algo=a3c", "resources.device=cuda"], "CUDA devices are visible|learn on the CPU"),
    (["algo=a3c", "resources.num_samplers=2"], "resources.num_learners"),
    (["algo=a3c", "runner=actor_learner"], "newest policy's rows alone"),
])  # fmt: skip
def test_what_cannot_be_asynchronous_gets_a_sentence(typed, words, said):
    with pytest.raises(UserError, match=said):
        Wired(typed("env=CartPole-v1", "logger=[]", *words))


def test_alone_it_is_a2c(typed, tmp_path):
    words = ["env=CartPole-v1", *SMALL, "env_steps=200"]
    one, _, _ = run_wired(Wired(typed("algo=a3c", *words)), tmp_path)
    two, _, _ = run_wired(
        Wired(typed("algo=a2c", *words)),
        tmp_path,
    )
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


class Named:
    def __init__(self, name):
        self.name = name


class Stub:
    """In place of Supervised and Workers: the calls of messages() and receive() say what is listed."""

    def __init__(self, members, script):
        self.members, self.names, self.script, self.workers, self.sent = members, [], script, self, []

    def messages(self, timeout, replaced):
        step = self.script.pop(0)
        return step(replaced) or [] if callable(step) else step

    def receive(self, timeout):
        return self.script.pop(0)

    def beats(self):
        return None

    def at_work(self, before):
        return False

    def send(self, worker, message):
        self.sent.append((worker.name, message))


def crew_of(members, script):
    from rlrun.runners.async_gradients import _Crew

    crew = _Crew.__new__(_Crew)
    crew.timeout_sec, crew.holding, crew.waiting, crew.held, crew.replays = 0.1, False, [], set(), False
    crew.shared = types.SimpleNamespace(hold=torch.zeros(()))
    crew.supervised = crew.workers = Stub(members, script)
    return crew


def test_processes_that_are_replaced_while_all_are_to_wait_are_waited_for():
    """The last one dies before it waits, and its successor says nothing, because it waits from its beginning."""
    first, last, new = (Named(name) for name in ("worker-0", "worker-1", "worker-1"))

    def replace(replaced):
        stub.members[1] = new
        replaced(1, last, new)

    crew = crew_of([first, last], [[(first, "held")], replace])
    stub = crew.supervised
    assert crew.hold() == [] and crew.holding and not stub.sent
    stub.script += [[(new, "ready")], [(new, "two"), (first, "one")]]
    assert crew.ask([first, new], "state") == ["one", "two"], "its first word is no answer"
    stub.members.remove(new)
    with pytest.raises(ProcessLost, match="is gone"):
        crew.ask([first, new], "state")
    crew = crew_of([first, last], [lambda replaced: time.sleep(0.06)] * 3)
    with pytest.raises(RunFailed, match="no word"):
        crew.hold()
