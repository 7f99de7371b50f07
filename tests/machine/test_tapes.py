"""Tapes: taped updates equal plain ones to the bit, and what cannot be taped is called plainly."""

import pytest
import torch
from conftest import small
from families import EVERY, simple
from wired import Wired

from rlrun.core.batch import Batch, stack_columns
from rlrun.core.policy import fix_kernels
from rlrun.core.schedule import Clock
from rlrun.machine import tapes
from rlrun.machine.graphs import WARM_UP, Recorded
from rlrun.machine.tapes import Tapes

UPDATES = WARM_UP + 4
# Learn from rows, in one process, on a small environment of families.simple.
TAPED = [algo for algo, needs in EVERY.items() if needs.population is None and algo not in ("maml", "mbmpo")]
ON_POLICY = ["algo.entropy_coef=0.1 to 0 over 100", "algo.lr=1e-2 to 1e-3 over 100"]
# What a tape reads from a tensor, or computes as one, where a plain update has one of Python's numbers.
NUMBERS = [
    ("dqn", ["algo.max_grad_norm=0.3"]),
    ("dqn", ["algo.lr=1e-2 to 1e-3 over 100", "algo.optimizer.warmup_updates=7"]),
    ("dqn", ["algo.lr=1e-2 to 1e-3 over 100", "algo.optimizer.kind=laprop"]),
    ("impala", [*ON_POLICY, "algo.max_grad_norm=0.01", "algo.optimizer.kind=rmsprop_tf"]),
    ("impala", ["algo.lr=3e-3", "algo.optimizer.kind=rmsprop"]),
    ("impala", ["algo.lr=3e-3", "algo.optimizer.kind=sgd", "algo.optimizer.momentum=0.9"]),
    ("ppo", [*ON_POLICY, "algo.clip=0.3 to 0.1 over 100"]),
    ("ppo", ["algo.lr=3e-3", "algo.lr_kl_target=0.01"]),
]
# Their optimisers work outside of what is recorded, or their update is one formula.
PLAIN = ["lin_ts", "lin_ucb", "neural_linear"]


class Counting(Tapes):
    """Tapes, with the number of functions that are played again."""

    def __init__(self):
        self.taped = 0

    def record(self, run, rngs):
        made, replay = super().record(run, rngs)
        self.taped += replay is not None
        return made, replay


@pytest.mark.parametrize("algo, more", [*((algo, []) for algo in TAPED), *NUMBERS])
def test_taped_updates_equal_plain_ones_to_the_bit(typed, monkeypatch, algo, more):
    monkeypatch.setattr(tapes, "LARGEST", 2**30)
    words = [*small(algo, "tiny"), f"env={simple(algo)}", "resources=debug", "logger=[]", *more]
    recorder = Counting()
    wired = Wired(typed(*words)), Wired(typed(*words), recorder=recorder)
    one, other = (parts.algorithm() for parts in wired)
    other.load_state(one.state())
    memories = [part for part in other.modules() if hasattr(part, "fixed_kernels")]
    for number, batch in enumerate(batches(wired[0], one)):
        clock = Clock(env_steps=20 * number, updates=number)
        got = other.update(batch.map(torch.clone), clock)
        if any(part.fixed_kernels for part in memories):  # a memory has other kernels where it is recorded
            fix_kernels(one)
        wanted = one.update(batch, clock)
        for name, value in (wanted.writes or {}).items():
            assert same(value, got.writes[name]), name
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert recorder.taped or algo in PLAIN or memories


def batches(parts, made):
    """Batches of rows that the policy of an algorithm sampled."""
    sampler = parts.sampler(0)
    try:
        sampler.publish(made.policy, Clock())
        if parts.needs.replay is None:
            taken = []
            for _ in range(UPDATES):
                fragments = sampler.take(parts.needs.columns // sampler.columns)
                taken.append(stack_columns([one.batch for one in fragments]).clone())
                sampler.free(fragments)
            return taken
        replay = parts.replay(0)
        for _ in range(40):
            (fragment,) = sampler.take(1)
            replay.add(fragment)
            sampler.free([fragment])
        return [replay.sample(parts.needs.columns, Clock(updates=number)) for number in range(UPDATES)]
    finally:
        sampler.close()


def same(a, b):
    parts = zip(a.leaves(), b.leaves(), strict=True) if isinstance(a, Batch) else [(a, b)]
    return all(torch.equal(x, y) for x, y in parts)


def played(function, calls):
    """The results of a recorded function, and its recorder."""
    recorder = Counting()
    recorded = Recorded(lambda batch, clock: function(batch["x"]), recorder, list)
    return [recorded(Batch({"x": x}), Clock()) for x in calls], recorder


CALLS = [torch.full((3,), float(value)) for value in range(WARM_UP + 3)]


def test_constants_are_computed_once_and_random_numbers_are_drawn_each_time():
    rng = torch.Generator().manual_seed(1)
    kept = torch.zeros(3)

    def function(x):
        kept.add_(torch.ones(3) * 2)  # memory from outside is written, from constants
        unused = x.exp()  # nobody reads it
        assert unused is not None
        return x + torch.eye(3)[1], torch.rand(3, generator=rng)

    made, recorder = played(function, CALLS)
    assert recorder.taped == 1
    wanted = torch.Generator().manual_seed(1)
    for x, (added, drawn) in zip(CALLS, made, strict=True):
        assert torch.equal(added, x + torch.eye(3)[1]) and torch.equal(drawn, torch.rand(3, generator=wanted))
    assert torch.equal(kept, torch.full((3,), 2.0 * len(CALLS)))


def test_kernels_that_nobody_needs_are_left_out():
    tape = tapes._Tape()
    x = torch.ones(3)
    with tape:
        unused = x.exp().log()
        made = x * torch.ones(3)
    names = [kernel.function._schema.name for kernel in tapes.needed(tape.kernels, {tapes.address(made)})]
    assert unused is not None and names == ["aten::mul"]


@pytest.mark.parametrize("read", [lambda x: x.sum().item(), lambda x: x.numpy().sum(), lambda x: float(sum(x.tolist())), lambda x: float(x[x > 1].sum())])  # fmt: skip
def test_a_function_that_reads_numbers_back_is_called_plainly(read):
    made, recorder = played(lambda x: x * (2.0 if read(x) > 6 else 1.0), CALLS)
    assert recorder.taped == 0
    assert [float(one[0]) for one in made] == [2.0 * i if 3 * i > 6 else float(i) for i in range(len(CALLS))]


def test_a_function_with_large_results_is_called_plainly(monkeypatch):
    monkeypatch.setattr(tapes, "LARGEST", 8)
    made, recorder = played(lambda x: x * 2, CALLS)
    assert recorder.taped == 0 and torch.equal(made[-1], CALLS[-1] * 2)


@pytest.mark.parametrize(
    "words, there",
    [
        (["algo=dqn", "env=CartPole-v1"], True),
        (["algo=dqn", "env=CartPole-v1", "resources.tapes=false"], False),
        (["algo=dqn", "env=Pong", "replay.capacity=1000", "algo.learning_starts=500"], False),
        (["algo=impala", "env=CartPole-v1", "model=lstm"], False),
        (["algo=sac", "env=Pendulum-v1"], False),
    ],
)
def test_runs_tape_small_updates_alone(typed, words, there):
    made = Wired(typed(*words, "resources.inference=serial", "resources.device=cpu", "logger=[]")).algorithm()
    assert isinstance(made.ctx.recorder, Tapes) is there
