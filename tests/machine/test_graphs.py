"""Recorded updates give the same weights as plain ones, and errors name what cannot be recorded."""

import threading

import pytest
import torch
from conftest import optimizer_config
from tape import Tapes, Unrecordable
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed
from rlrun.core.optimizer import MAX_SKIPPED, Optimizer
from rlrun.core.schedule import Clock, GraphClock, Schedule
from rlrun.machine.graphs import MOST_SHAPES, RECORDING, WARM_UP, Recorded, map_tensors
from rlrun.machine.machine import Machine
from rlrun.machine.tapes import Tapes as CpuTapes
from rlrun.runtime.plan import plan

ADAM = optimizer_config()
FALLING = Schedule(((0.0, 1.0), (100.0, 0.0)))
ON_POLICY = ["env=CartPole-v1", "algo.fragment_length=5", "algo.batch_size=20", "algo.lr=1e-2 to 0 over 500"]
MINIBATCHES = [*ON_POLICY, "algo.minibatch_size=10"]
REPLAY = ["env=CartPole-v1", "algo.learning_starts=30", "algo.batch_size=16", "algo.fragment_length=5", "algo.num_envs=4", "replay=prioritized",
          "algo.target_update_interval=3"]  # fmt: skip
ACTOR = [
    "env=Pendulum-v1",
    "algo.learning_starts=30",
    "algo.batch_size=16",
    "algo.actor.hidden=[8]",
    "algo.critic.hidden=[8]",
    "algo.actor_lr=1e-2 to 0 over 500",
]
AGENTS = [*ACTOR[1:], "replay=prioritized", "algo.num_envs=2", "algo.fragment_length=5"]
TRANSFORMER = [
    "model=gtrxl",
    "model.memory.size=8",
    "model.memory.layers=2",
    "model.memory.heads=2",
    "model.memory.length=4",
]
SEQUENCES = [
    *REPLAY,
    "algo.fragment_length=6",
    "algo.burn_in=2",
    "algo.sequence_length=4",
    "algo.sequence_stride=3",
    "algo.input_priorities=false",
]
UPDATES = 9
CASES = {
    "impala": [*ON_POLICY, "algo.entropy_coef=0.1 to 0 over 400"],
    "impala rmsprop": [*ON_POLICY, "algo.optimizer.kind=rmsprop", "algo.optimizer.momentum=0.5"],
    "impala rmsprop_tf": [
        *ON_POLICY,
        "algo.optimizer.kind=rmsprop_tf",
        "algo.optimizer.momentum=0.5",
        "algo.optimizer.centered=true",
        "algo.optimizer.max_grad_value=0.01",
    ],
    "impala adamw": [*ON_POLICY, "algo.optimizer.kind=adamw", "algo.optimizer.weight_decay=0.1"],
    "impala sgd": [*ON_POLICY, "algo.optimizer.kind=sgd", "algo.optimizer.momentum=0.5"],
    "impala two optimisers": [*ON_POLICY, "model.share_value=false", "algo.value_lr=1e-2"],
    "appo": [*ON_POLICY, "algo.kl_coef=0.1", "algo.clip=0.4 to 0.1 over 300"],
    "a2c": [*ON_POLICY, "algo.microbatch_size=10"],
    "pg": ON_POLICY,
    "ppo": [
        *MINIBATCHES,
        "algo.kl_coef=0.2",
        "algo.stop_kl=0.5",
        "algo.clip=0.3 to 0.1 over 400",
        "algo.normalize_value=true",
    ],
    "ppo whose lr follows the kl": [*MINIBATCHES, "algo.lr_kl_target=0.01"],
    "pqn": MINIBATCHES,
    "dqn": [*REPLAY, "algo.lr=1e-2 to 0 over 500", "algo.double=true", "algo.n_step=[1,3]"],
    "c51": REPLAY,
    "rainbow": REPLAY,
    "qr_dqn": REPLAY,
    "iqn": REPLAY,
    "ddpg": ACTOR,
    "td3": [*ACTOR, "algo.policy_delay=2"],
    "sac": [*ACTOR, "algo.alpha_lr=1e-2"],
    "tqc": [*ACTOR, "algo.num_critics=2"],
    "cql": [*ACTOR, "runner=replay", "algo.num_actions=2", "algo.lagrangian=true", "algo.bc_iters=4"],
    "implicit_q": [*ACTOR, "runner=replay"],
    "crr": [*ACTOR, "runner=replay"],
    "crr of choices": [*ACTOR, "runner=replay", "env=CartPole-v1", "algo.advantage=max"],
    "td3_bc": [*ACTOR, "runner=replay"],
    "discrete_cql": [*REPLAY, "runner=replay"],
    "bc": ["env=CartPole-v1", "runner=replay", "algo.batch_size=16", "algo.entropy_coef=0.1 to 0 over 400"],
    "marwil": [*ON_POLICY, "runner=on_policy", "algo.learns_from=experience", "algo.squared_advantage_rate=0.1"],
    "maddpg": [*AGENTS, "env=MultiAgentCartPole-v0"],
    "maddpg of numbers": [*AGENTS, "env=MultiAgentPendulum-v0", "algo.share=true"],
    "impala lstm": [*ON_POLICY, "model=lstm", "model.memory.size=8"],
    "impala gru": [*ON_POLICY, "model=gru", "model.memory.size=8", "model.share_value=false"],
    "impala gtrxl": [*ON_POLICY, *TRANSFORMER],
    "ppo lstm": [
        *MINIBATCHES,
        "model=lstm",
        "model.memory.size=8",
        "algo.sequence_length=5",
        "model.memory.prev_reward=true",
    ],
    "r2d2 lstm": [*SEQUENCES, "model=lstm", "model.memory.size=8"],
    "r2d2 gtrxl": [*SEQUENCES, *TRANSFORMER],
}


def clocks():
    return [Clock(env_steps=60 * i, updates=i) for i in range(UPDATES)]


def batches(wiring):
    """Makes one train batch per clock, from rows of a policy."""
    sampler, policy = wiring.sampler(0), wiring.policy_factory(acting=False)()
    try:
        sampler.publish(policy, Clock())
        replay = None if wiring.needs.replay is None else wiring.replay(0)
        for _ in range(20 if replay is not None else 0):
            (fragment,) = sampler.take(1)
            replay.add(fragment)
            sampler.free([fragment])
        made = []
        for clock in clocks():
            if replay is not None:
                made.append(replay.sample(wiring.needs.columns, clock))
            else:
                (fragment,) = sampler.take(1)
                made.append(fragment.batch.clone())
                sampler.free([fragment])
        return made
    finally:
        sampler.close()


@pytest.mark.parametrize("case", CASES)
def test_recorded_updates_make_the_weights_of_plain_ones(typed, case):
    """A CUDA graph's stand-in comes close to the weights of plain updates, and a tape has its weights to the bit."""
    words = [f"algo={case.split()[0]}", "resources=debug", "model.hidden=[8]", "logger=[]", *CASES[case]]
    plain, recorded, taped, tapes = *(Wired(typed(*words)) for _ in range(3)), Tapes()
    recorded.recorder, taped.recorder = tapes, CpuTapes()
    rows = batches(plain)
    one, other, third = plain.algorithm(), recorded.algorithm(), taped.algorithm()
    other.load_state(one.state())
    third.load_state(one.state())
    for batch, clock in zip(rows, clocks(), strict=True):
        wanted, got, again = (made.update(batch, clock) for made in (one, other, third))
        for name, value in (again.metrics | (again.writes or {})).items():
            torch.testing.assert_close(
                torch.as_tensor(value),
                torch.as_tensor((got.metrics | (got.writes or {}))[name]),
                atol=0.0,
                rtol=0.0,
                equal_nan=True,
                msg=name,
            )
        assert wanted.metrics.keys() == got.metrics.keys()
        for name, value in wanted.metrics.items():
            torch.testing.assert_close(
                torch.as_tensor(got.metrics[name]).float(),
                torch.as_tensor(value).float(),
                atol=1e-4,
                rtol=1e-3,
                msg=name,
            )
        for name, value in (wanted.writes or {}).items():
            torch.testing.assert_close(got.writes[name], value, atol=1e-4, rtol=1e-3)
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, msg=name)
    assert tapes.recordings >= 1 and tapes.replayed >= UPDATES // 2 - WARM_UP
    for (name, a), b in zip(other.state_dict().items(), third.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    a, b, c = one.state(), other.state(), third.state()
    assert torch.equal(a["rng"], b["rng"])  # both drew the same number of random numbers
    assert torch.equal(a["rng"], c["rng"])


def test_a_filter_that_learns_between_replays(typed):
    words = [
        "algo=impala",
        "resources=debug",
        "model.hidden=[8]",
        "logger=[]",
        "model.observation_filter=mean_std",
        *ON_POLICY,
    ]
    plain, recorded = Wired(typed(*words)), Wired(typed(*words))
    recorded.recorder = Tapes()
    rows, one, other = batches(plain), plain.algorithm(), recorded.algorithm()
    for batch, clock in zip(rows, clocks(), strict=True):
        for algorithm in (one, other):
            algorithm.update(batch, clock)
            algorithm.absorb_rows([algorithm.policy.moments(batch)])
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_policy_says_what_of_it_can_be_recorded(typed):
    """The learner asks the policy, and nothing else."""
    words = ["resources=debug", "model.hidden=[8]", "logger=[]"]
    said = {}
    for name, more in {
        "impala": [*ON_POLICY, "model=lstm"],
        "dqn": REPLAY,
        "dqn noise": [*REPLAY, "algo.exploration.kind=parameter_noise"],
        "ddpg": ACTOR,
    }.items():
        wiring = Wired(typed(f"algo={name.split()[0]}", *words, *more))
        policy = wiring.policy_factory(acting=False)()
        said[name] = policy.recordable("acting"), policy.recordable("learning")
        wiring.recorder = Tapes()
        made = wiring.algorithm()
        assert isinstance(made.recorded(lambda batch, clock: batch), Recorded)
        made.policy.recordable = lambda what: False
        assert not isinstance(made.recorded(lambda batch, clock: batch), Recorded)
    assert said == {"impala": (True, True), "dqn": (True, True), "dqn noise": (False, True), "ddpg": (False, True)}


def once(function, *rows, tapes=None):
    recorded = Recorded(function, tapes or Tapes(), list)
    return [recorded(Batch(x=torch.tensor(row)), Clock(env_steps=10 * i)) for i, row in enumerate(rows)]


def test_results_are_copies_and_schedules_are_renewed():
    made = once(
        lambda batch, clock: ({"sum": batch.x.sum() * FALLING(clock)}, batch.x * 2, 3.0),
        *[[float(i), 1.0] for i in range(8)],
    )
    for i, (metrics, doubled, number) in enumerate(made):
        assert (
            metrics["sum"].item() == pytest.approx((i + 1) * (1 - 0.1 * i))
            and doubled.tolist() == [2.0 * i, 2.0]
            and number == 3.0
        )


def test_no_other_thread_does_for_the_first_times_what_it_records():
    """A library that initialises itself in one thread would break the recording of another thread."""
    tapes, free = Tapes(), []

    def function(batch, clock):
        def asks():
            if RECORDING.acquire(blocking=False):
                RECORDING.release()
                free.append(len(batch.x))

        other = threading.Thread(target=asks)
        other.start()
        other.join()
        return batch.x.sum()

    many = [[1.0] * (2 + i) for i in range(MOST_SHAPES)]  # the last shape is never recorded
    once(function, *[[1.0]] * (WARM_UP + 1), *many, tapes=tapes)
    assert free == [] and tapes.recordings == 1
    assert RECORDING.acquire(blocking=False)
    RECORDING.release()


def test_every_shape_is_recorded_once():
    tapes = Tapes()
    rows = [[1.0], [1.0, 2.0]] * (WARM_UP + 3)
    made = once(lambda batch, clock: batch.x.sum(), *rows, tapes=tapes)
    assert [float(x) for x in made] == [1.0, 3.0] * (WARM_UP + 3) and tapes.recordings == 2 and tapes.replayed == 6


def test_batches_that_are_never_alike_do_not_fill_the_memory():
    tapes = Tapes()
    recorded = Recorded(lambda batch, clock: batch.x.sum(), tapes, list)
    for _ in range(WARM_UP + 1):
        for size in range(1, 2 * MOST_SHAPES):
            assert float(recorded(Batch(x=torch.ones(size)), Clock())) == size
    assert tapes.recordings == MOST_SHAPES == len(recorded.ways)


@pytest.mark.parametrize("function", [
    lambda batch, clock: batch.x * float(batch.x.sum()),
    lambda batch, clock: batch.x[batch.x > 0],
    lambda batch, clock: batch.x if (batch.x > 0).all() else -batch.x,
])  # fmt: skip
def test_the_tape_refuses_what_a_gpu_would(function):
    with pytest.raises(Unrecordable):
        once(function, *[[1.0]] * (WARM_UP + 1))


def test_a_recorded_function_cannot_look_at_the_clock():
    for word in ("env_steps", "updates"):
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            getattr(GraphClock(torch.device("cpu")), word)
    assert GraphClock(torch.device("cpu")).value_of(Schedule(((0.0, 0.5),))) == 0.5  # a constant schedule is a number


def test_map_tensors_keeps_the_tree():
    tree = (Batch(a=torch.ones(1)), {"b": torch.ones(2), "c": None}, 4)
    batch, names, number = map_tensors(lambda x: x + 1, tree)
    assert batch.a.item() == 2 and names["b"].tolist() == [2, 2] and names["c"] is None and number == 4


@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.1, "max_grad_value": 0.4}])
@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "rmsprop_tf", "radam", "laprop", "sgd"])
def test_a_deferred_optimiser_steps_as_the_other_does(kind, more):
    if kind in ("rmsprop", "rmsprop_tf", "sgd"):
        more = more | {"momentum": 0.9, "centered": kind != "sgd"}
    cfg = optimizer_config(kind=kind, **more)
    made = []
    for deferred in (False, True):
        parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        optimizer = Optimizer([parameter], cfg, Schedule(((0.0, 0.1), (9.0, 0.0))), 0.5, deferred=deferred)
        told = []
        for factor in (1.0, 0.01, float("nan"), 2.0, float("inf"), 1.0):
            told.append(optimizer.step((parameter * factor).square().sum(), Clock(len(told))))
        made.append(
            (parameter.detach().clone(), [float(one["skipped_updates"]) for one in told], optimizer.state_dict())
        )
    torch.testing.assert_close(made[0][0], made[1][0])
    assert made[0][1] == made[1][1] == [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    for name, value in made[0][2]["inner"]["state"][0].items():
        torch.testing.assert_close(value, made[1][2]["inner"]["state"][0][name])


def test_a_deferred_optimiser_ends_the_run_when_asked():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = Optimizer([parameter], ADAM, Schedule(((0.0, 0.1),)), 0.5, deferred=True)
    for _ in range(MAX_SKIPPED - 1):
        optimizer.step((parameter * float("nan")).sum(), Clock())
    optimizer.check()
    optimizer.step((parameter * float("nan")).sum(), Clock())
    with pytest.raises(RunFailed, match="non-finite"):
        optimizer.check()
    assert torch.equal(parameter.detach(), torch.ones(2))


class Counts(torch.nn.Module):
    """An encoder that counts its calls in updates, and chooses by a number that it computed."""

    calls = 0

    def __init__(self, space):
        super().__init__()
        self.features, self.layer = 8, torch.nn.Linear(space.shape[0], 8)

    def forward(self, x):
        Counts.calls += torch.is_grad_enabled()
        out = self.layer(x)
        return out / 2 if out.abs().max() > 10 else out


@pytest.mark.parametrize("algo, words", [("impala", ON_POLICY), ("dqn", REPLAY)])
def test_the_users_networks_are_not_recorded(typed, algo, words):
    """With the tests' stand-in for CUDA graphs in place of those of a GPU."""
    words = [f"algo={algo}", "resources=debug", "logger=[]", *words, f"model.encoder={__name__}:Counts"]
    wired = Wired(typed(*words), recorder=Tapes())
    made, rows = wired.algorithm(), batches(wired)
    assert wired.make_recorder(first=True) is None and isinstance(wired.recorder, Tapes)
    before = Counts.calls
    for batch, clock in zip(rows, clocks(), strict=True):
        made.update(batch, clock)
    assert Counts.calls - before >= len(rows) > WARM_UP


def test_the_plan_says_that_the_users_networks_are_not_recorded(typed):
    words = ["algo=impala", "env=CartPole-v1", "logger=[]", "resources.device=cuda"]
    gpu = Machine(cores=4, env_step_sec=lambda make_env, count: 1e-4, gpus=("H200",), gpu_free=lambda index: 2**36)
    ours, own = (plan(typed(*words, *more), gpu).resources for more in ([], [f"model.encoder={__name__}:Counts"]))
    assert ours.cuda_graphs and not own.cuda_graphs
    assert any(why.startswith("cuda_graphs=false: a recording leaves out") for why in own.why)
