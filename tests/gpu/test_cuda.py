"""What needs a GPU. Run by scripts/gpu_check (pytest -m gpu); skipped cleanly without one."""

import pytest
import torch
from conftest import optimizer_config, small
from machine.test_graphs import CASES, batches, clocks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def wiring(typed, *words):
    from wired import Wired

    return Wired(
        typed("algo=impala", "env=CartPole-v1", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20", "resources.device=cuda",
              "resources.num_samplers=1", "resources.envs_per_sampler=2", *words)
    )  # fmt: skip


def test_an_update_on_the_gpu_equals_the_cpus(typed):
    from wired import Wired

    from rlrun.core.schedule import Clock

    smooth = "algo.optimizer.epsilon=0.001"  # else Adam's first step is lr whatever the size of a gradient, and a sign decides
    words = [
        "algo=impala",
        "env=CartPole-v1",
        "resources=debug",
        "logger=[]",
        "algo.fragment_length=5",
        "algo.batch_size=20",
        smooth,
    ]
    cpu = Wired(typed(*words))
    made, sampler = cpu.algorithm(), cpu.sampler(0)
    sampler.publish(made.policy, Clock())
    batch = sampler.take(1)[0].batch.clone()
    gpu = wiring(typed, smooth).algorithm()
    gpu.load_state(made.state())
    made.update(batch, Clock())
    gpu.update(batch.to("cuda"), Clock())
    for a, b in zip(made.state_dict().values(), gpu.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b.cpu(), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["local", "batched"])
def test_training_runs_with_the_learner_on_the_gpu(typed, tmp_path, kind):
    from test_actor_learner import run_wired

    algorithm, job, rows = run_wired(
        wiring(typed, f"resources.inference={kind}", "env_steps=600", "log_every_sec=0.01"), tmp_path
    )
    assert job.status == "COMPLETED" and next(algorithm.parameters()).is_cuda
    assert rows[-1]["learn/skipped_updates"] in (0.0, None)


def test_a_gpu_checkpoint_loads_on_the_cpu(typed, tmp_path):
    from test_actor_learner import run_wired

    from rlrun.core.checkpoint import Checkpoints

    run_wired(wiring(typed, "resources.inference=batched", "env_steps=200"), tmp_path)
    tensors, _ = Checkpoints(tmp_path / "checkpoints", 3).load()
    assert all(not t.is_cuda for t in tensors["policy"].values())


def test_only_new_rows_are_counted_by_a_filter(typed, tmp_path):
    """IMPALA replays a fragment beside every new one; the filter must have seen each env step once."""
    from test_actor_learner import run_wired

    words = ["model.observation_filter=mean_std", "runner.replay_proportion=1", "runner.replay_slots=4", "algo.batch_size=40"]
    algorithm, job, _ = run_wired(wiring(typed, "resources.inference=batched", "env_steps=400", *words), tmp_path)
    count = float(algorithm.policy.filter.filters[0].count)
    assert job.status == "COMPLETED" and abs(count - job.clock.env_steps) <= 40


EVERY_KERNEL = {
    "ppo": ["algo.kl_coef=0.1", "algo.normalize_reward=true", "algo.reward_clip=none"],
    "appo": ["algo.kl_coef=0.1"],
    "ddppo": ["algo.cut_share=1"],
}
PLAIN = ["resources.num_samplers=1", "resources.envs_per_sampler=2"]


@pytest.mark.parametrize("algo", ["ppo", "a2c", "pg", "appo", "ddppo"])
@pytest.mark.parametrize("kind", ["local", "batched"])
def test_the_policy_gradient_family_on_the_gpu(typed, tmp_path, algo, kind):
    from test_actor_learner import run_wired
    from wired import Wired

    words = [*small(algo, "tiny"), "env=rlrun/EverySpace-v0", "logger=[]", "resources.device=cuda", f"resources.inference={kind}",
             "model.observation_filter=mean_std",
             "env_steps=200", *PLAIN, *EVERY_KERNEL.get(algo, [])]  # fmt: skip
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and all(p.is_cuda for p in made.parameters())


@pytest.mark.parametrize("model", [["model=lstm"], ["model=gtrxl"], []])
def test_a_process_that_samples_and_learns_on_its_gpu(typed, tmp_path, model):
    from test_actor_learner import run_wired
    from wired import Wired

    words = ["algo=ddppo", "env=CartPole-v1", "logger=[]", "resources.device=cuda", "resources.num_learners=1", "env_steps=200", "algo.fragment_length=5",
             "algo.batch_size=20", "algo.minibatch_size=10", "algo.sequence_length=5", *model]  # fmt: skip
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and next(made.parameters()).is_cuda


def test_curiosity_on_the_gpu(typed, tmp_path):
    from test_actor_learner import run_wired
    from wired import Wired

    words = ["algo=icm", "env=rlrun/EverySpace-v0", "logger=[]", "resources.device=cuda", "resources.inference=local", "env_steps=200",
             "algo.num_minibatches=2",
             "resources.num_samplers=1", "resources.envs_per_sampler=2", "algo.inner.fragment_length=5", "algo.inner.batch_size=20",
             "algo.inner.minibatch_size=10"]  # fmt: skip
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and all(p.is_cuda for p in made.parameters())


def test_policies_with_filters_of_their_own_on_the_gpu(typed, tmp_path):
    from test_actor_learner import run_wired
    from wired import Wired

    words = ["algo=multi", "env=MultiAgentCartPole-v0", "logger=[]", "resources.device=cuda", "resources.inference=local", "env_steps=200",
             "resources.num_samplers=1", "algo.inner.fragment_length=5", "algo.inner.batch_size=40", "algo.inner.minibatch_size=20",
             "model.observation_filter=mean_std"]  # fmt: skip
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and all(p.is_cuda for p in made.parameters())


REPLAYING = [
    "algo.learning_starts=30",
    "replay.capacity=400",
    "algo.batch_size=16",
    "algo.fragment_length=5",
    "algo.num_envs=4",
]
SEQUENCES = ["algo.learning_starts=30", "replay.capacity=400", "algo.batch_size=8", "algo.fragment_length=5", "algo.num_envs=4", "algo.burn_in=5",
             "algo.sequence_length=5", "algo.sequence_stride=5", "model.memory.size=8", "model.memory.prev_action=true"]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "learner"])
@pytest.mark.parametrize("kind", ["local", "batched"])
@pytest.mark.parametrize("algo", ["dqn", "c51", "rainbow", "qr_dqn", "iqn", "r2d2"])
def test_the_q_family_on_the_gpu(typed, tmp_path, algo, kind, device):
    """With rows of the replay on either side."""
    from test_actor_learner import run_wired
    from wired import Wired

    words = [f"algo={algo}", "env=CartPole-v1", "logger=[]", "resources.device=cuda", f"resources.inference={kind}", "resources.num_samplers=2",
             "replay=prioritized", f"replay.device={device}", "env_steps=300", *(SEQUENCES if algo == "r2d2" else REPLAYING)]  # fmt: skip
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and job.clock.updates > 10 and all(p.is_cuda for p in made.parameters())


@pytest.mark.parametrize("explore", ["soft_q", "parameter_noise"])
def test_exploration_on_the_gpu(typed, tmp_path, explore):
    from test_actor_learner import run_wired
    from wired import Wired

    words = ["algo=dqn", "env=CartPole-v1", "logger=[]", "resources.device=cuda", "resources.inference=batched", "resources.num_samplers=2", "env_steps=200",
             f"algo.exploration.kind={explore}", *REPLAYING]  # fmt: skip
    _, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and job.clock.updates > 5


@pytest.mark.parametrize("kind", ["local", "batched"])
def test_apex_on_the_gpu(typed, tmp_path, kind):
    from test_actor_learner import run_wired
    from wired import Wired

    inner = [word.replace("algo.", "algo.inner.") for word in REPLAYING]
    words = ["algo=apex", "env=CartPole-v1", "logger=[]", "resources.device=cuda", f"resources.inference={kind}", "resources.num_samplers=2",
             "runner.num_shards=2", "env_steps=2000", *inner]  # fmt: skip
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and job.clock.updates > 10 and all(p.is_cuda for p in made.parameters())


@pytest.mark.parametrize("algo", ["dqn", "c51", "qr_dqn"])
def test_an_update_from_replay_on_the_gpu_equals_the_cpus(typed, algo):
    from wired import Wired

    from rlrun.core.schedule import Clock

    words = [
        f"algo={algo}",
        "env=CartPole-v1",
        "logger=[]",
        "replay=prioritized",
        "algo.optimizer.epsilon=0.001",
        *REPLAYING,
    ]  # as above
    cpu = Wired(typed(*words, "resources=debug"))
    made, sampler, replay = cpu.algorithm(), cpu.sampler(0), cpu.replay(0)
    sampler.publish(made.policy, Clock())
    for _ in range(20):
        (fragment,) = sampler.take(1)
        replay.add(fragment)
        sampler.free([fragment])
    batch = replay.sample(16, Clock())
    gpu = Wired(
        typed(*words, "resources.device=cuda", "resources.inference=local", "resources.num_samplers=1")
    ).algorithm()
    gpu.load_state(made.state())
    priorities = [
        made.update(batch, Clock()).writes["priority"],
        gpu.update(batch.to("cuda"), Clock()).writes["priority"].cpu(),
    ]
    torch.testing.assert_close(*priorities, atol=1e-4, rtol=1e-3)
    for a, b in zip(made.state_dict().values(), gpu.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b.cpu(), atol=1e-4, rtol=1e-3)


def learn_alike(plain, recorded, rows, atol, rtol):
    """Both learn from the same rows: their metrics and at the end their weights are the same."""
    recorded.load_state(plain.state())
    for batch, clock in zip(rows, clocks(), strict=True):
        wanted, got = (algorithm.update(batch.to("cuda"), clock) for algorithm in (plain, recorded))
        for name, value in wanted.metrics.items():
            torch.testing.assert_close(float(got.metrics[name]), float(value), atol=1e-3, rtol=1e-2, msg=name)
    for (name, a), b in zip(plain.state_dict().items(), recorded.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_recorded_updates_make_the_weights_of_plain_ones(typed, case):
    from wired import Wired

    words, gpu = (
        [f"algo={case.split()[0]}", "model.hidden=[8]", "logger=[]", *CASES[case]],
        ["resources.inference=local", "resources.num_samplers=1"],
    )
    rows = batches(Wired(typed(*words, "resources=debug")))
    plain, recorded = (
        Wired(typed(*words, *gpu, "resources.device=cuda", f"resources.cuda_graphs={graphs}")).algorithm()
        for graphs in ("false", "true")
    )
    assert plain.ctx.recorder is None and recorded.ctx.recorder is not None
    learn_alike(plain, recorded, rows, atol=1e-4, rtol=1e-3)


WORLDS = ["dreamer", "dreamerv3"]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algo", WORLDS)
def test_recorded_updates_of_world_models_make_the_weights_of_plain_ones(typed, algo, env):
    from algos.test_all import batches as train_batches
    from wired import Wired

    words = [*small(algo, "tiny"), f"env={env}", "logger=[]", "algo.optimizer.epsilon=0.001", "resources.precision=fp32"]
    cpu = Wired(typed(*words, "resources=debug"))
    sampler = cpu.sampler(0)
    sampler.publish(cpu.policy_factory(acting=False)(), clocks()[0])
    rows = train_batches(cpu, sampler, len(clocks()))
    gpu = ["resources.device=cuda", "resources.inference=local", "resources.num_samplers=1"]
    plain, recorded = (
        Wired(typed(*words, *gpu, f"resources.cuda_graphs={graphs}")).algorithm() for graphs in ("false", "true")
    )
    learn_alike(plain, recorded, rows, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("kind", ["local", "batched"])
@pytest.mark.parametrize("algo", WORLDS)
def test_world_models_train_on_the_gpu(typed, tmp_path, algo, kind):
    """In bf16, as such runs are on a GPU."""
    from test_actor_learner import run_wired
    from wired import Wired

    words = [*small(algo, "tiny"), "env=Pendulum-v1", "logger=[]", "resources.device=cuda", f"resources.inference={kind}", "env_steps=200",
             "resources.num_samplers=1"]  # fmt: skip
    made, job, _ = run_wired(Wired(typed(*words)), tmp_path)
    assert job.status == "COMPLETED" and job.clock.updates > 10 and all(p.is_cuda for p in made.parameters())


@pytest.mark.parametrize("algo", ["cql", "bc", "implicit_q"])
def test_learning_from_data_on_the_gpu(tmp_path, algo):
    from datasets_of_tests import data_of

    from rlrun.cli import _dispatch

    data, run = data_of("Pendulum-v1", tmp_path / "data"), tmp_path / "run"
    words = [f"algo={algo}", "env=Pendulum-v1", f"data.path={data}", "logger=[]", "resources.device=cuda"]
    assert _dispatch(["train", *words, "algo.batch_size=256", "env_steps=10240", f"run_dir={run}"]) == 0
    assert "COMPLETED" in (run / "summary.json").read_text()


@pytest.mark.parametrize("kind", ["adam", "adamw", "radam", "rmsprop", "rmsprop_tf", "sgd"])
def test_every_optimiser_is_recorded(kind):
    """With a schedule, and with a gradient that is not finite in between."""
    from rlrun.core.batch import Batch
    from rlrun.core.optimizer import Optimizer
    from rlrun.core.schedule import Clock, Schedule
    from rlrun.machine.graphs import CudaGraphs, Recorded

    more = {"momentum": 0.9} if kind in ("rmsprop", "rmsprop_tf", "sgd") else {}
    centered = kind.startswith("rmsprop")
    cfg = optimizer_config(kind=kind, centered=centered, weight_decay=0.1, max_grad_value=0.4, **more)
    made = []
    for recorder in (None, CudaGraphs(torch.device("cuda"))):
        parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], device="cuda"))
        optimizer = Optimizer([parameter], cfg, Schedule(((0.0, 0.1), (100.0, 0.0))), 0.5)

        def step(batch, clock, parameter=parameter, optimizer=optimizer):
            return optimizer.step((parameter * batch.x).square().sum(), clock)

        function = step if recorder is None else Recorded(step, recorder, list)
        told = []
        for i, factor in enumerate([1.0, 0.01, float("nan"), 2.0, 1.0, float("inf"), 1.0, float("nan"), 3.0]):
            told.append(
                float(
                    function(Batch(x=torch.full((3,), factor, device="cuda")), Clock(env_steps=10 * i))[
                        "skipped_updates"
                    ]
                )
            )
        made.append((parameter.detach(), told))
    torch.testing.assert_close(made[0][0], made[1][0])
    assert made[0][1] == made[1][1] == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("words", [
    ["algo=impala", "algo.fragment_length=5", "algo.batch_size=40"], ["algo=appo", "algo.fragment_length=5", "algo.batch_size=40"],
    ["algo=ppo", "algo.fragment_length=5", "algo.batch_size=40", "algo.minibatch_size=20"],
    ["algo=dqn", "algo.learning_starts=100", "replay.capacity=1000", "algo.batch_size=16", "algo.num_envs=4"],
    ["algo=rainbow", "algo.learning_starts=100", "replay.capacity=1000", "algo.batch_size=16", "algo.num_envs=4"],
])  # fmt: skip
@pytest.mark.parametrize("graphs", ["true", "false"])
def test_pong_in_bf16_with_everything_that_a_gpu_uses(typed, tmp_path, words, graphs):
    from test_actor_learner import run_wired
    from wired import Wired

    made = Wired(typed(*words, "env=Pong", "logger=[]", "resources.device=cuda", f"resources.cuda_graphs={graphs}", "resources.num_samplers=2",
                        "resources.envs_per_sampler=1", "env_steps=1500", "log_every_sec=0.1"))  # fmt: skip
    assert (made.resources.inference, made.resources.precision, made.resources.cuda_graphs) == (
        "batched",
        "bf16",
        graphs == "true",
    )
    algorithm, job, rows = run_wired(made, tmp_path)
    assert (
        job.status == "COMPLETED" and job.clock.updates > 5 and all(p.isfinite().all() for p in algorithm.parameters())
    )
    assert rows[-1].get("learn/skipped_updates") in (0.0, None)


def test_a_replay_lives_where_there_is_room(typed):
    from wired import Wired

    words = [
        "algo=dqn",
        "env=Pong",
        "logger=[]",
        "resources.device=cuda",
        "replay.capacity=2000",
        "algo.learning_starts=100",
    ]
    assert Wired(typed(*words)).plan.replay.cfg.device == "learner"
    assert Wired(typed(*words, "replay.compress=true")).plan.replay.cfg.device == "cpu"


def test_slots_are_page_locked(typed):
    made = wiring(typed, "resources.inference=local")
    sampler = made.sampler(0)
    try:
        assert sampler.slots.pinned and sampler.views[0].reward.is_pinned()
    finally:
        sampler.close()
    assert not sampler.slots.pinned


@pytest.mark.slow
def test_a_compiled_encoder_learns(typed):
    from wired import Wired

    from rlrun.core.schedule import Clock

    words = [
        "algo=impala",
        "env=Pong",
        "logger=[]",
        "algo.fragment_length=5",
        "algo.batch_size=20",
        "resources.num_samplers=1",
        "resources.envs_per_sampler=2",
    ]
    plain = Wired(typed(*words, "resources.device=cpu", "resources.inference=local"))
    sampler = plain.sampler(0)
    try:
        sampler.publish(plain.algorithm().policy, Clock())
        rows = sampler.take(1)[0].batch.clone().to("cuda")
    finally:
        sampler.close()
    losses = []
    for compiled in ("false", "true"):
        made = Wired(typed(*words, "resources.device=cuda", f"resources.compile={compiled}")).algorithm()
        losses.append([float(made.update(rows, Clock()).metrics["policy_loss"]) for _ in range(5)])
    torch.testing.assert_close(losses[0], losses[1], atol=0.05, rtol=0.05)  # bf16


@pytest.mark.parametrize("newest_only", [True, False])
def test_published_weights_act_in_bf16_too(typed, newest_only):
    """Through the letter box, while the GPU is busy and when it is not."""
    from wired import Wired

    from rlrun.core.schedule import Clock
    from rlrun.samplers.acting import ActingCopy

    made = Wired(
        typed(
            "algo=impala",
            "env=Pong",
            "logger=[]",
            "resources.device=cuda",
            "resources.inference=batched",
            "resources.num_samplers=1",
        )
    )
    learner = made.algorithm().policy
    copy = ActingCopy(
        made.policy_factory(acting=True)(),
        torch.device("cuda"),
        torch.Generator("cuda"),
        (),
        2,
        2,
        made.make_recorder(),
        newest_only,
    )
    busy = torch.randn(4096, 4096, device="cuda")
    for i in range(4):
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
            for _ in range(50):
                busy = (busy @ busy).clamp(-1, 1)
        copy.publish(learner, Clock(updates=i))
        with torch.no_grad():
            copy.refresh()
        if not newest_only:
            torch.cuda.synchronize()
            copy.refresh()
        assert copy.clock.updates == i
        torch.cuda.synchronize()
        for mine, theirs in zip(copy.policy.parameters(), learner.parameters(), strict=True):
            assert torch.equal(mine, theirs.to(mine.dtype))


SCREENS = ["algo=dqn", "env=Pong", "algo.n_step=[1,3]", "algo.learning_starts=100", "replay.capacity=400", "algo.batch_size=64"]  # fmt: skip


@pytest.mark.parametrize("words", [SCREENS, ["algo=r2d2", "env=CartPole-v1", *SEQUENCES]], ids=["frames", "sequences"])
def test_rows_on_a_gpu_are_the_rows_on_a_cpu(typed, words):
    """The same fragments into replays on either side, in one piece or field by field: the same draws, frames, ends and
    recurrent states, written and read by recorded graphs too."""
    from dataclasses import replace

    from wired import Wired

    from rlrun.core.schedule import Clock

    words = [*words, "logger=[]", "resources.inference=local", "resources.num_samplers=1"]
    cpu = Wired(typed(*words, "resources.device=cpu"))
    gpu = Wired(typed(*words, "resources.device=cuda", "replay.device=learner"))
    sampler, replays = gpu.sampler(0), [cpu.replay(0), gpu.replay(0)]
    try:
        sampler.publish(gpu.algorithm().policy, Clock())
        for number in range(150):
            (fragment,) = sampler.take(1)
            assert fragment.whole is not None
            replays[0].add(fragment)
            replays[1].add(fragment if number % 4 else replace(fragment, whole=None))
            sampler.free([fragment])
    finally:
        sampler.close()
    for _ in range(6):
        one, other = (replay.sample(64, Clock()) for replay in replays)
        assert other.reward.is_cuda
        for a, b in zip(one.leaves(), other.leaves(), strict=True):
            assert torch.equal(a, b.cpu())


@pytest.mark.parametrize("words", [
    ["algo=impala", "algo.fragment_length=5", "algo.batch_size=40", "runner.num_sgd_iter=2"],
    ["algo=ppo", "algo.fragment_length=5", "algo.batch_size=40", "algo.minibatch_size=20"],
    ["algo=dqn", "algo.learning_starts=100", "replay.capacity=2000", "algo.batch_size=16", "algo.num_envs=4"],
])  # fmt: skip
@pytest.mark.parametrize("inference", ["batched", "local"])
def test_speed_is_measured(typed, words, inference):
    from rlrun.bench.throughput import measure

    made = measure(typed(*words, "env=Pong", "logger=[]", "resources.device=cuda", f"resources.inference={inference}", "resources.num_samplers=2",
                         "resources.envs_per_sampler=1" if inference == "batched" else "resources.envs_per_sampler=2"), 2.0)  # fmt: skip
    assert made["reached"] > 0 and {"env", "inference", "learning"} <= set(made["parts"])
