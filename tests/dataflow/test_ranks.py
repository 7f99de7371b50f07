"""Several learners together make the same update as one learner, hold the same weights and count every row once.

They never wait for a dead learner.
"""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import replace

import pytest
import torch
from conftest import SMALL, compose, small
from families import ACTORS, fits
from test_actor_learner import kill_at_the_first_row, run_wired
from test_all import CASES, batches, start
from test_samplers import counting
from wired import Wired, checked

from rlrun.cli import _dispatch
from rlrun.config.paths import options
from rlrun.config.run import type_config
from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.learners import OVER, SAVE, FollowingLearner, check_equal, save_rows
from rlrun.core.moments import moments_of
from rlrun.core.ranks import Ranks
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.dataflow.cut import Cut
from rlrun.dataflow.meeting import Disconnected
from rlrun.dataflow.ranks import ProcessRanks, company, learner_process
from rlrun.dataflow.workers import READY
from rlrun.machine.machine import Machine
from rlrun.runtime.plan import plan

# There is one minibatch with all rows, so that their order does not matter, and every option that sums over learners.
WHOLE = {
    "ppo": [
        "algo.minibatch_size=20",
        "algo.num_epochs=2",
        "algo.sequence_length=5",
        "algo.kl_coef=0.1",
        "algo.normalize_reward=true",
        "algo.reward_clip=none",
    ],
    "pg": ["algo.baseline=true", "algo.normalize_advantage=true"],
    "a2c": ["algo.normalize_advantage=true", "algo.microbatch_size=5"],
    "appo": ["algo.kl_coef=0.1", "algo.target_update_interval=1"],
    "impala": ["algo.loss_reduction=mean"],
}
WHOLE["pqn"] = ["algo.minibatch_size=20", "algo.num_epochs=2"]
WHOLE["ddppo"] = [*WHOLE["ppo"], "algo.cut_share=1"]
WHOLE |= {algo: ["algo.actor_lr=0.01", "algo.critic_lr=0.01", "algo.l2=0.01"] for algo in ACTORS}
WHOLE["cql"] += ["algo.lagrangian=true", "algo.num_actions=2"]
WHOLE["implicit_q"] += ["algo.value_lr=0.01"]
WHOLE["marwil"] = ["algo.squared_advantage_rate=0.5"]
WHOLE["maddpg"] = ["algo.actor_lr=0.01", "algo.critic_lr=0.01"]
WHOLE["td3"] += ["algo.policy_delay=1"]
WHOLE["td3_bc"] += ["algo.policy_delay=1", "algo.n_step=1"]
# LaProp moves weights by lr however small their gradients are, and so magnifies rounding.
WHOLE["dreamerv3"] = ["algo.optimizer.kind=sgd"]
WHOLE["dreamer"] = ["algo.model_lr=0.01", "algo.actor_lr=0.01", "algo.value_lr=0.01", "algo.free_nats=0.5", "algo.continuation=true"]
# So does Adam, with its usual epsilon: one weight of 306,225 differed by 2.5e-5 on a CPU with AMX.
WHOLE["icm"] = ["algo.minibatch_size=20", "algo.sequence_length=5", "+algo.max_grad_norm=1.0", "+algo.optimizer.epsilon=1e-4"]
WHOLE["rnd"] = [*WHOLE["icm"], "+algo.update_share=0.5"]
WHOLE["re3"] = WHOLE["icm"][:2]
SPACES = {
    "discrete": CASES["discrete"],
    "lstm": CASES["lstm"],
    "every space": CASES["every space"],
    "every space with memory": [*CASES["every space"], *CASES["lstm"][1:]],
    "box": CASES["box"],
    "agents": CASES["agents"],
    "slates": CASES["slates"],
    "agents' numbers": CASES["agents' numbers"],
    "simulator": CASES["simulator"],
}
BOTH = {algo for algo in options("algo") if fits(algo, "lstm") and fits(algo, "every space")}


def tried(algo: str, case: str) -> bool:
    """Whether a case is tried: memory and every space at once where an algorithm takes both. The processes of a3c do not
    wait for each other, so that each learns alone."""
    if algo == "a3c":
        return False
    if case == "every space with memory":
        return algo in BOTH
    return fits(algo, case) and (case != "box" or algo in ACTORS) and (case not in ("lstm", "every space") or algo not in BOTH)


TOGETHER = [(algo, case) for algo in options("algo") for case in SPACES if tried(algo, case)] + [("ppo", "whole episodes"), ("pqn", "whole episodes")]


def typed(*words):
    return type_config(compose(*words))


def updates(ranks: Ranks, algo: str, case: str):
    """Returns (algorithm, last metrics) after two updates with this learner's columns of the same two batches."""
    words = [
        *SPACES.get(case, SPACES["discrete"]),
        *WHOLE.get(algo, []),
        *([] if algo in [*ACTORS, "maddpg", "dreamer", "lin_ucb", "lin_ts"] else ["algo.lr=0.01"]),
    ]
    wiring, _, sampler = start(typed, algo, *words)
    data = batches(wiring, sampler, 2)
    wiring.ranks = ranks
    wiring.plan = replace(wiring.plan, whole_after=5 if case == "whole episodes" else None)
    made = wiring.algorithm()
    rounds = 1 if wiring.needs.tasks is None else wiring.needs.tasks.rounds
    columns = torch.arange(wiring.needs.columns).view(rounds, ranks.world, -1)[:, ranks.rank].flatten()
    for number, batch in enumerate(data):
        valid = batch.valid.clone()
        for row, column in ((1, 0), (2, -1), (3, -1)):  # gives learners unequal numbers of live rows
            valid[row : row + 1, column] = False
        mine = part(batch.replace(valid=valid), columns)
        returns = [moments_of(torch.arange(1.0 + 10 * part, 4.0 + 10 * part)) for part in range(2)]
        made.absorb_returns(returns[ranks.rank :: ranks.world])
        metrics = made.update(mine, Clock(100 * number, number)).metrics
        made.absorb_rows([made.policy.moments(mine)])
    return made, {name: float(value) for name, value in metrics.items()}


def part(batch: Batch, columns: torch.Tensor) -> Batch:
    """Returns these columns of a batch. `weight` and `key`, which replay adds, have no row dimension."""
    single = {name: batch[name][columns] for name in ("weight", "key") if name in batch}
    return Batch(
        {**Batch({name: value for name, value in batch.items() if name not in single}).columns(columns), **single}
    )


def flat(made) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in made.state_dict().values()])


def everything(ranks: Ranks) -> None:
    """What the other learner does in the fixture below."""
    for algo, case in TOGETHER:
        made, _ = updates(ranks, algo, case)
        ranks.gather(flat(made))


@pytest.fixture(scope="module")
def two_ranks():
    """{(algo, case): (weights of every rank, metrics)}"""
    results = {}
    with company(2, everything, 60.0, 1) as ranks:
        for algo, case in TOGETHER:
            made, metrics = updates(ranks, algo, case)
            results[algo, case] = (ranks.gather(flat(made)), metrics)
    return results


@pytest.mark.parametrize("algo, case", TOGETHER)
def test_two_learners_make_the_update_of_one_with_the_whole_batch(two_ranks, algo, case):
    weights, metrics = two_ranks[algo, case]
    assert torch.equal(*weights), "learners must hold the same bits"
    alone, whole = updates(Ranks(), algo, case)
    torch.testing.assert_close(weights[0], flat(alone), rtol=1e-4, atol=1e-5)
    assert metrics == {name: pytest.approx(value, rel=1e-3, abs=1e-5) for name, value in whole.items()}


@pytest.mark.parametrize("kind", ["serial", "local"])
@pytest.mark.parametrize("runner", ["actor_learner", "on_policy"])
def test_every_row_is_counted_once(tmp_path, kind, runner):
    """The counting algorithm asserts in both processes that the clock is the sum of all learners' rows."""
    words = ["resources.num_learners=2", "env_steps=600", "log_every_sec=0.001", f"runner={runner}"]
    algorithm, job, rows = run_wired(
        counting(typed, kind, *words, "resources.envs_per_sampler=1" if kind == "serial" else "seed=0"), tmp_path
    )
    assert job.status == "COMPLETED" and 600 <= job.clock.env_steps < 640
    assert job.episodes.mean == 28.0 and job.episodes.count >= 60, "episodes of both learners"
    assert algorithm.updates == job.clock.updates and rows[-1]["env_steps"] == job.clock.env_steps


def test_whole_episodes_give_every_learner_as_many_minibatches(tmp_path):
    """Their learners have different numbers of rows, and one that made another step would wait for ever."""
    words = ["algo=ppo", "env=CartPole-v1", "env.max_episode_steps=60", "logger=[]", "model.hidden=[8]", "resources.num_learners=2", "env_steps=1500",
             "resources.inference=serial", "runner.complete_episodes=true", "algo.fragment_length=20", "algo.batch_size=80", "algo.minibatch_size=16",
             "algo.num_epochs=2"]  # fmt: skip
    _, job, rows = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and job.clock.updates > 5
    assert job.episodes.count > 20 and all(row["learn/skipped_updates"] == 0 for row in rows if row["updates"])


def several(ranks: Ranks, own: int) -> list[list[float]]:
    """Returns the numbers in every minibatch of two epochs over `own` columns."""
    wiring, _, _ = start(typed, "ppo", *SPACES["discrete"], *WHOLE["ppo"])
    wiring.ranks = ranks
    wiring.plan = replace(wiring.plan, whole_after=5)
    rows = Batch(reward=torch.arange(float(own))[None])
    return [part.reward[0].tolist() for part in wiring.algorithm().minibatches(rows, 2, 4)]


def seven(ranks: Ranks) -> None:
    parts = several(ranks, 7)
    ranks.gather(torch.tensor([len(parts), *map(len, parts)], dtype=torch.float64))


def test_columns_are_spread_over_the_minibatches_of_all_learners():
    with company(2, seven, 60.0, 1) as ranks:
        parts = several(ranks, 18)
        other = ranks.gather(torch.tensor([len(parts), *map(len, parts)], dtype=torch.float64))[1].tolist()
    assert [len(part) for part in parts] == [6] * 6 and other == [6] + [2] * 6, "25 columns fill 3 minibatches of 2 x 4"
    assert all(len({number for part in epoch for number in part}) == 18 for epoch in (parts[:3], parts[3:]))


@pytest.mark.parametrize(
    "algo, runner",
    [
        ("ppo", []),
        pytest.param("impala", ["runner.num_sgd_iter=2"], marks=pytest.mark.slow),
        pytest.param("ddppo", [], marks=pytest.mark.slow),
        pytest.param("rainbow", [], marks=pytest.mark.slow),
    ],
)
def test_two_learners_learn_what_one_does(tmp_path, algo, runner):
    words = [
        "env=rlrun/Identity-v0",
        "resources.num_learners=2",
        "resources.inference=serial",
        "logger=[]",
        "env_steps=60000",
        "stop.return_mean=18",
        "episode_window=20",
        *runner,
    ]
    _, job, _ = run_wired(Wired(typed(*small(algo, "quick"), *words)), tmp_path)
    assert job.status == "STOPPED" and job.episodes.mean >= 18


def test_a_killed_learner_ends_the_run(tmp_path, monkeypatch):
    words = ["resources.num_learners=2", "resources.envs_per_sampler=1", f"env_steps={10**7}", "log_every_sec=0.05"]
    killed = kill_at_the_first_row(monkeypatch, "learner-1")
    with pytest.raises(RunFailed, match="learner-1 was killed by SIGKILL"):
        run_wired(counting(typed, "serial", *words), tmp_path)
    assert time.monotonic() - killed[0] < 20


def test_replaced_samplers_of_all_learners_are_counted_in_one_budget(tmp_path):
    """Each dies in the 153rd step of an environment, and so does what takes its place."""
    words = ["resources.num_learners=2", "++env.kwargs.fail_at=153", "++env.kwargs.fault=kill", "env_steps=1500", "log_every_sec=0.05"]
    wiring, told = counting(typed, "local", *words), []
    train = wiring.train

    def with_a_budget(job):
        job.restarts = Restarts(20, 600.0, told.append)
        train(job)

    wiring.train = with_a_budget
    algorithm, job, rows = run_wired(wiring, tmp_path)
    found = [re.fullmatch(r"(sampler-\d) was killed by SIGKILL.* (\d+) env steps .* are lost \((\d) of 20 .*", text) for text in told]
    assert {one[1] for one in found} == {"sampler-0", "sampler-1"} and [int(one[3]) for one in found] == list(range(1, len(found) + 1))
    assert rows[-1]["restarts/processes"] == len(found) and rows[-1]["restarts/lost_env_steps"] == sum(int(one[2]) for one in found)
    assert algorithm.updates == job.clock.updates and rows[-1]["env_steps"] == job.clock.env_steps


def test_a_broken_environment_of_another_learner_ends_the_run(tmp_path):
    """The environments of both learners fail, and the run names the one that failed first."""
    with pytest.raises(RunFailed, match=r"env \d .* failed in step 60 .*told to fail"):
        run_wired(
            counting(typed, "local", "resources.num_learners=2", "++env.kwargs.fail_at=60", "++env.kwargs.fault=raise"),
            tmp_path,
        )


def test_a_cut_learner_stops_short_and_its_episodes_go_on(tmp_path):
    """When two of three learners have finished, the third stops after a quarter of its rows."""
    cut = Cut(3, 0.6)
    assert cut.enough == 2
    wiring = Wired(typed("algo=ddppo", "env=rlrun/Counting-v0", *SMALL, "algo.fragment_length=20", "algo.batch_size=40", "algo.minibatch_size=40",
                          "algo.sequence_length=20"))  # fmt: skip
    wiring.cut, wiring.ranks = cut, Ranks(2, 3)
    sampler = wiring.sampler(0)
    sampler.publish(wiring.policy_factory(acting=True)(), Clock())
    fragments = []
    for others in (0, 1, 2):
        cut.finished[:2] = torch.tensor([len(fragments) + (others > 0), len(fragments) + (others > 1)])
        fragments.append(sampler.take(1)[0].batch.clone())
    whole, almost, short = fragments
    for batch in (whole, almost):
        assert batch.valid[6:].any(0).all()
    assert short.valid[:5].sum() >= 8 and not short.valid[5:].any()
    assert torch.equal(short.obs.observation[5], short.obs.observation[20]), "what waits to be acted on is row T"
    values = wiring.policy_factory(acting=True)().unroll(short)[1]
    torch.testing.assert_close(short.value[5], values[5])  # row 4 bootstraps from this value
    cut.finished[:2] = 3
    after = sampler.take(1)[0].batch
    check_rows_follow = after.obs.observation[0]
    assert (
        torch.equal(check_rows_follow, short.obs.observation[20])
        and not after.is_first[0].any() | short.is_first[20].any()
    )
    assert int(cut.finished[2]) == 4


def test_the_first_learner_says_which_generation_of_seeds_begins():
    """Its checkpoint does not know of sessions that ended before they saved anything."""

    class Second(Ranks):
        def first(self, x):
            return 7

    learner = FollowingLearner(Second(1, 1), ({"algorithm": {}}, {"env_steps": 20, "updates": 1, "generation": 2}))
    algorithm = types.SimpleNamespace(load_state=lambda state: None)
    assert learner.begin(algorithm) == (20, 1) and learner.generation == 7


def test_learners_with_different_weights_do_not_begin():
    class Two(Ranks):
        def gather(self, x):
            return [x, x + self.off]

    made = Wired(typed("algo=impala", "env=CartPole-v1", *SMALL)).algorithm()
    ranks = Two(0, 2)
    ranks.off = 0.0
    check_equal(made, ranks)
    ranks.off = 1e-9
    with pytest.raises(RunFailed, match="different weights"):
        check_equal(made, ranks)


@pytest.mark.parametrize("broken", [False, True])
def test_an_exchange_that_ends_just_after_a_look_is_no_broken_connection(monkeypatch, broken):
    """wait() then says that its time was over, although the exchange has been completed meanwhile."""
    done, looks = [], []

    class Work:
        def wait(self, limit=None):
            done.append(limit)
            if limit is not None or broken:
                raise RuntimeError("Operation timed out!" if limit is not None else "Connection closed by peer")

        def is_completed(self):
            return len(done) >= 2

    monkeypatch.setattr("rlrun.dataflow.ranks.LOOK_SEC", 0.0)
    ranks = ProcessRanks.__new__(ProcessRanks)
    ranks.look, ranks.waiting = looks.append, False
    if broken:
        with pytest.raises(Disconnected, match="closed by peer"):
            ranks._exchange(lambda async_op: Work())
    else:
        ranks._exchange(lambda async_op: Work())
    assert len(looks) == 1 and ranks.waiting is broken


def test_a_learner_that_loses_another_leaves_the_last_words_to_it(monkeypatch):
    """However late the first learner reads them: this one waits without a word until its pipe is closed."""
    ours, theirs = multiprocessing.Pipe()
    monkeypatch.setattr("rlrun.dataflow.ranks._on_this_machine", lambda *facts: types.SimpleNamespace(close=lambda: None))

    def learn(ranks):
        raise Disconnected("another learner has ended")

    waits = threading.Thread(target=learner_process, args=(theirs, learn, 1, 3, "", 60.0, 1))
    waits.start()
    assert ours.recv() == READY
    waits.join(0.3)
    assert waits.is_alive() and not ours.poll()
    ours.close()
    waits.join(10.0)
    assert not waits.is_alive()


def test_a_learner_that_is_gone_before_all_are_connected_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.dataflow.ranks.start_sec", lambda: 1.0)
    began = time.monotonic()
    with pytest.raises(Disconnected):
        ProcessRanks(0, 2, torch.distributed.FileStore(str(tmp_path / "store"), 2), 900.0)
    assert time.monotonic() - began < 60.0


def test_only_broken_connections_are_blamed_on_other_learners():
    with pytest.raises(RuntimeError, match="my own mistake"), company(2, everything, 60.0, 1):
        raise RuntimeError("my own mistake")


def test_a_named_gpu_is_the_only_one():
    gpus = Machine(cores=8, gpus=("a GPU",) * 4, gpu_free=lambda index: 2**36)
    for device, learners in (("auto", 4), ("cuda", 4), ("cuda:1", 1), ("cpu", 8)):
        batch = ("algo.fragment_length=128", "algo.batch_size=1024", "algo.minibatch_size=256")
        config = typed("algo=ddppo", "env=CartPole-v1", *batch, f"resources.device={device}")
        assert plan(config, gpus).resources.num_learners == learners


def test_resumed_learners_begin_with_the_same_weights(tmp_path, capfd):
    path = tmp_path / "run"
    words = ["algo=ppo", "env=CartPole-v1", "resources.num_learners=2", "resources.inference=serial", "algo.batch_size=256", "algo.minibatch_size=64",
             "algo.num_epochs=2", "model.hidden=[8]", "algo.fragment_length=32", "model.observation_filter=mean_std", "logger=[]", "env_steps=600"]  # fmt: skip
    assert _dispatch(["train", *words, f"run_dir={path}"]) == 0
    assert _dispatch(["resume", str(path), "env_steps=1200"]) == 0
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "COMPLETED" and 1200 <= summary["env_steps"] < 1500


def test_every_learners_replay_is_saved_and_goes_on(tmp_path):
    path = tmp_path / "run"
    words = ["algo=dqn", "env=CartPole-v1", "resources.num_learners=2", "replay=prioritized", "replay.capacity=5000", "logger=[]", "env_steps=1500",
             "algo.num_envs=2", "model.hidden=[8]"]  # fmt: skip
    assert _dispatch(["train", *words, f"run_dir={path}"]) == 0
    (first,) = (path / "checkpoints").glob("0*")
    rows = [len((first / f"replay-{rank}.bin").read_bytes()) for rank in range(2)]
    assert _dispatch(["resume", str(path), "env_steps=1900"]) == 0
    last = max((path / "checkpoints").glob("0*"))
    for rank, part in enumerate(("replay.pt", "replay-1.pt")):
        before, after = (torch.load(folder / part, weights_only=True)["replay"] for folder in (first, last))
        assert 700 < before["head"][0] < after["head"][0] < before["head"][0] + 300, (
            "this learner's rows, and new ones behind them"
        )
        assert len((last / f"replay-{rank}.bin").read_bytes()) > rows[rank]
    updates = [json.loads((folder / "run.json").read_text())["updates"] for folder in (first, last)]
    assert updates[1] - updates[0] == pytest.approx(100, abs=4), "an update every 4 env steps, from the first on"
    before = (path / "config.yaml").read_text()
    with pytest.raises(UserError, match="another capacity, runner, num_shards, num_learners"):
        _dispatch(
            [
                "resume",
                str(path),
                "env_steps=3000",
                "resources.num_learners=1",
                "resources.num_samplers=1",
                "resources.envs_per_sampler=1",
            ]
        )
    assert (path / "config.yaml").read_text() == before


class FullDisk:
    def save_rows(self, folder) -> None:
        if folder.name == "full":
            raise OSError("no space left on device")

    def state(self) -> dict:
        return {}


def save_twice(ranks: Ranks) -> None:
    """What the other learner does in the test below. Its disk is full the first time."""
    follower = FollowingLearner(ranks, None)
    follower.kept["replay"] = FullDisk()
    assert not follower.tick(Clock(), None), "two saves, and it is over"


def test_a_learner_that_cannot_write_its_replay_leaves_a_checkpoint_out(tmp_path):
    (tmp_path / "full").mkdir()
    with company(2, save_twice, 60.0, 1) as ranks:
        ranks.first(SAVE)
        with pytest.raises(OSError, match="another learner"):
            save_rows({"replay": Healthy()}, ranks, tmp_path / "full")
        ranks.first(SAVE)
        save_rows({"replay": Healthy()}, ranks, tmp_path)
        ranks.first(OVER)
    assert (tmp_path / "replay-1.pt").is_file() and not (tmp_path / "full" / "replay-1.pt").exists()


class Healthy:
    def save_rows(self, folder) -> None:
        (folder / "replay-0.bin").write_bytes(b"rows")


@pytest.mark.parametrize("words, said", [
    (["resources.num_learners=99"], r"there (is|are) \d+ cores?; .*1.* would fit"),
    (["resources.num_learners=2", "algo.batch_size=384", "algo.minibatch_size=384", "algo.fragment_length=128"], "must divide the 3 columns"),
    (["resources.num_learners=2", "resources.num_samplers=3"], "multiple of num_learners"),
    (["resources=debug", "resources.num_learners=2"], "set num_learners=1"),
    (["resources.num_learners=0"], "at least 1"),
    (["resources.num_learners=2", "algo.minibatch_size=1", "algo.batch_size=1536"], "num_learners 2"),
])  # fmt: skip
def test_what_cannot_be_shared_gets_a_sentence(words, said):
    with pytest.raises(UserError, match=said):
        checked(typed("algo=ppo", "env=CartPole-v1", *words))


def test_a_cut_needs_samplers_that_learn():
    with pytest.raises(UserError, match="cut_share=1"):
        Wired(typed("algo=ddppo", "env=CartPole-v1", "resources.inference=local", "resources.num_samplers=2"))


@pytest.mark.parametrize("words", [["algo=ppo", "resources.num_learners=2", "resources.inference=local"],
    pytest.param(["algo=a3c"], marks=pytest.mark.slow)])  # fmt: skip
def test_a_signal_to_the_whole_group_saves_and_exits(tmp_path, words):
    """Schedulers signal the whole process group; samplers and other learners leave the decision to the run."""
    path = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "rlrun",
        "train",
        "env=CartPole-v1",
        "env_steps=1e9",
        "logger=[]",
        "log_every_sec=0.2",
        f"run_dir={path}",
        *words,
    ]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 90
        while not (path / "progress.jsonl").exists() or not (path / "progress.jsonl").read_text():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, said
    summary = json.loads((path / "summary.json").read_text())
    assert summary["status"] == "INTERRUPTED" and list((path / "checkpoints").glob("0*"))


@pytest.mark.parametrize("words, inference, device", [
    (["env=Pong", "algo.num_envs=1"], "local", "cuda"),  # one environment makes no two groups
    (["env=Pong"], "batched", "cuda"),
    (["env=Pong", "algo.num_envs=8"], "batched", "cuda"),
    (["env=Pong", "resources.device=cpu"], "serial", "cpu"),
])  # fmt: skip
def test_a_replays_defaults_fit_beside_a_gpu(words, inference, device):
    machine = Machine(cores=2, gpus=("a GPU",), gpu_free=lambda index: 2**36)
    made = plan(typed("algo=dqn", *words), machine).resources
    assert (made.inference, made.device.type) == (inference, device)


@pytest.mark.parametrize("name", ["set_timeout", "distributed_c10d._set_pg_timeout"])
def test_the_patience_is_set_by_the_function_that_this_pytorch_has(name, monkeypatch):
    """PyTorch 2.14 has a public function for it, and warns of the private one that older ones have."""
    import torch.distributed as dist

    from rlrun.dataflow import ranks

    said = []
    monkeypatch.delattr(dist, "set_timeout", raising=False)
    monkeypatch.setattr(dist.distributed_c10d, "_set_pg_timeout", lambda *_: said.append("another"))
    monkeypatch.setattr(f"torch.distributed.{name}", lambda patience, group: said.append(patience), raising=False)
    ranks._be_patient(ranks.FOREVER)
    assert said == [ranks.FOREVER]
