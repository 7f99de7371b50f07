"""Tests of batches, checkpoints, schedules, seeds, threads and the optimiser."""

import math
import signal
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from conftest import optimizer_config

from rlrun.core.batch import Batch, Field, allocate, fragment_layout, layout_bytes, stack_columns
from rlrun.core.checkpoint import Checkpoints, load_part
from rlrun.core.errors import RunFailed, UserError, closest
from rlrun.core.optimizer import ADAMS, MAX_SKIPPED, RMSPROPS, Optimizer
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Discrete
from rlrun.core.timing import Every
from rlrun.machine.threads import HelperThread, TunedThreads

ROW = {"observation": Field((3,), torch.uint8)}


def make(columns: int = 2):
    return fragment_layout(
        ROW,
        Field((), torch.int64),
        {"log_prob": Field((), torch.float32)},
        {"hidden": Field((5,), torch.float32)},
        4,
        columns,
        2,
    )


def test_a_fragment_has_the_rows_of_the_house():
    batch = allocate(make())
    assert batch.obs.observation.shape == (5, 2, 3) and batch.is_first.shape == (5, 2)
    assert batch.action.shape == batch.reward.shape == batch.log_prob.shape == (4, 2)
    assert batch.core.hidden.shape == (3, 2, 5)  # rows 0, 2, 4
    assert batch.log_prob.isnan().all(), "fresh rows must be seen as unwritten"


def test_fields_do_not_overlap_in_shared_memory():
    layout = make()
    memory = torch.zeros(layout_bytes(layout), dtype=torch.uint8)
    batch = allocate(layout, memory)
    for number, leaf in enumerate(batch.leaves(), 1):
        leaf.fill_(number % 2 if leaf.dtype == torch.bool else number)
    for number, leaf in enumerate(batch.leaves(), 1):
        assert (leaf == (number % 2 if leaf.dtype == torch.bool else number)).all()


def test_a_batch_is_immutable_and_indexes_every_field():
    batch = Batch(a=torch.arange(6).view(3, 2), inner=Batch(b=torch.arange(3)))
    with pytest.raises(AttributeError):
        batch.a = torch.zeros(1)
    with pytest.raises(AttributeError, match="no field 'c'"):
        batch.c  # noqa: B018
    assert batch[1].a.tolist() == [2, 3] and batch[1].inner.b == 1
    assert batch.replace(a=torch.zeros(1)).a.shape == (1,) and batch.a.shape == (3, 2)


def test_a_batch_is_filled_by_name():
    one, two, three = (torch.full((2,), float(number)) for number in (1, 2, 3))
    into = Batch(steer=torch.zeros(2), inner=Batch(a=torch.zeros(2), b=torch.zeros(2)))
    into.copy_(Batch(inner=Batch(b=three, a=two), steer=one))
    assert (into.steer == 1).all() and (into.inner.a == 2).all() and (into.inner.b == 3).all()
    with pytest.raises(ValueError, match="a Batch of steer, inner cannot be filled from one of inner, brake"):
        into.copy_(Batch(inner=into.inner, brake=one))


def test_stack_columns_keeps_order_with_and_without_memory():
    parts = [
        allocate(make()).map(lambda x, n=n: torch.full_like(x, n % 2 if x.dtype == torch.bool else n))
        for n in (1, 2, 3)
    ]
    stacked = stack_columns(parts)
    assert stacked.reward[0].tolist() == [1, 1, 2, 2, 3, 3] and stacked.core.hidden.shape == (3, 6, 5)
    out = stack_columns(parts, allocate(make(6)))
    assert torch.equal(out.obs.observation, stacked.obs.observation) and torch.equal(out.action, stacked.action)


def test_discount_is_zero_only_at_terminations():
    batch = Batch(terminated=torch.tensor([[True, False]]), truncated=torch.tensor([[False, True]]))
    assert batch.discount(0.9).tolist() == [[0.0, pytest.approx(0.9)]]


def test_schedules():
    assert Schedule.parse(0.5)(Clock(10)) == 0.5
    linear = Schedule.parse({"start": 1.0, "end": 0.0, "steps": 100})
    assert [linear(Clock(s)) for s in (0, 25, 100, 1000)] == [1.0, 0.75, 0.0, 0.0]
    assert Schedule.parse("1.0 to 0.0 over 1e2") == linear
    points = Schedule.parse([[10, 1.0], [20, 3.0], [40, 3.0]])
    assert [points(Clock(s)) for s in (0, 10, 15, 30, 50)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    cosine = Schedule.parse("1.0 to 0.2 over 100 cosine")
    assert cosine == Schedule.parse({"start": 1.0, "end": 0.2, "steps": 100, "curve": "cosine"})
    falling = Schedule.parse("1.0 to 0.01 over 100 exponential")
    assert [falling(Clock(s)) for s in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.1, 0.01, 0.01])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100, eta_min=0.2)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    exponential = torch.optim.lr_scheduler.ExponentialLR(other, gamma=0.01 ** (1 / 100))
    for step in range(101):
        assert cosine(Clock(step)) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        assert falling(Clock(step)) == pytest.approx(other.param_groups[0]["lr"], rel=1e-6)
        for one, its in ((optimizer, annealing), (other, exponential)):
            one.step()
            its.step()
    assert cosine(Clock(1000)) == 0.2, "after its last point it stays, where CosineAnnealingLR would rise again"
    for bad in (
        "1 to 0 over 100 exponential",
        "1 to 0.5 over 100 square",
        {"start": 1, "end": 0, "steps": 10, "curve": 3},
        {"start": 1, "end": True, "steps": 10},
        "x",
        None,
        True,
        {"start": 1},
        [[5, 1], [5, 2]],
        [],
        {"start": 1, "end": 0, "steps": 0},
        "1 to 2",
        "a to b over c",
        "1 to 0 over 0",
        "1e999 to 0 over 100",
        [[0, "1e999"]],
        [[0, None]],
        [[0, True]],
        [[0, "3Q"]],
    ):
        with pytest.raises(ValueError):
            Schedule.parse(bad)


def test_seed_streams_do_not_meet():
    drawn = {
        Seeds(seed).integer(name, *ids)
        for seed in (0, 1, 2)
        for name in ("env", "eval")
        for ids in ((0, 0), (0, 1), (1, 0), (0, 0, 1))
    }
    assert len(drawn) == 24
    assert Seeds(1).integer("env", 2) == Seeds(1).integer("env", 2) < 2**31 - 2**16


def test_actions_outside_the_space_are_refused():
    with pytest.raises(ValueError, match="outside Discrete"):
        Discrete(n=3).to_env(np.array([0, 3]))
    box = Box(shape=(1,), dtype="float32", low=(-2.0,), high=(4.0,))
    np.testing.assert_allclose(box.to_env(np.array([[-1.0], [0.0], [1.0], [9.0]])), [[-2.0], [1.0], [4.0], [4.0]])
    with pytest.raises(ValueError, match="non-finite"):
        box.to_env(np.array([[math.nan]]))
    inside = np.array([[-2.0], [0.5], [4.0]])
    np.testing.assert_allclose(box.to_env(box.from_env(inside)), inside, atol=1e-6)
    assert Discrete(n=3, start=5).from_env(np.array([5, 7])).tolist() == [0, 2]
    assert Discrete(n=3, start=5).to_env(np.array([0, 2])).tolist() == [5, 7]
    widest = Box(shape=(1,), dtype="float64", low=(-1.7e308,), high=(1.7e308,))  # no number holds the difference
    ends = np.array([[-1.0], [0.0], [1.0]], np.float32)
    assert widest.to_env(ends).ravel().tolist() == [-1.7e308, 0.0, 1.7e308]
    assert (widest.from_env(widest.to_env(ends)) == ends).all()


@pytest.mark.parametrize(
    "dtype, low, high", [("int32", -1, 1), ("uint8", 0, 255), ("bool", 0, 1), ("int16", -32768, 32767), ("int64", 5, 12)]
)
def test_every_whole_number_of_a_box_is_as_likely_as_the_others(dtype, low, high):
    """Each has an equal part of [-1, 1], from whose middle it comes back."""
    box = Box(shape=(1,), dtype=dtype, low=(float(low),), high=(float(high),))
    numbers = np.arange(low, high + 1)[:, None]
    parts = 4 * len(numbers)
    even = (2.0 * np.arange(parts)[:, None] + 1.0) / parts - 1.0
    taken = box.to_env(even)
    assert taken.dtype == dtype and (taken == numbers.repeat(4, 0)).all()
    assert (box.to_env(box.from_env(numbers)) == numbers).all()
    assert box.to_env(np.array([[-9.0], [-1.0], [1.0], [9.0]], np.float32)).tolist() == [[low], [low], [high], [high]]


def test_whole_numbers_without_a_bound_are_rounded():
    box = Box(shape=(1,), dtype="int32", low=(-2.0,), high=(math.inf,))
    assert box.to_env(np.array([[-7.0], [-0.9], [0.6], [7.4]])).tolist() == [[-2], [-1], [1], [7]]


def adam(parameters, lr=0.1, bound=1.0):
    return Optimizer(parameters, optimizer_config(), Schedule.parse(lr), bound)


def test_optimizer_clips_schedules_and_survives_nan():
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = adam([parameter], lr={"start": 0.1, "end": 0.0, "steps": 10})
    metrics = optimizer.step((parameter * 100).sum(), Clock(5))
    assert metrics["lr"] == pytest.approx(0.05) and float(metrics["grad_norm"]) == pytest.approx(200.0)
    assert parameter.grad.norm() == pytest.approx(1.0, rel=1e-4)
    before = parameter.detach().clone()
    assert optimizer.step((parameter * math.nan).sum(), Clock())["skipped_updates"] == 1.0
    assert torch.equal(parameter, before)
    with pytest.raises(RunFailed, match="non-finite"):
        for _ in range(MAX_SKIPPED):
            optimizer.step((parameter * math.nan).sum(), Clock())


KINDS = {
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "radam": (torch.optim.RAdam, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.5}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5}),
    "rmsprop_tf": (None, {"momentum": 0.5}),
}


class TensorFlows:
    """tf.compat.v1.train.RMSPropOptimizer by its documentation, in NumPy and float64. The kernel's names are kept:
    ms, mg, mom, rho."""

    def __init__(self, parameters, lr, alpha, eps, momentum=0.0, centered=False, weight_decay=0.0):
        self.parameters, self.lr, self.rho, self.epsilon = parameters, lr, alpha, eps
        self.momentum, self.centered, self.weight_decay = momentum, centered, weight_decay
        self.var = [p.detach().numpy().astype(np.float64) for p in parameters]
        self.ms, self.mg, self.mom = ([np.full(v.shape, begin) for v in self.var] for begin in (1.0, 0.0, 0.0))

    def step(self):
        for i, parameter in enumerate(self.parameters):
            grad = parameter.grad.numpy().astype(np.float64) + self.weight_decay * self.var[i]
            self.ms[i] = self.rho * self.ms[i] + (1 - self.rho) * grad**2
            self.mg[i] = self.rho * self.mg[i] + (1 - self.rho) * grad
            mean_square = self.ms[i] - self.mg[i] ** 2 if self.centered else self.ms[i]
            self.mom[i] = self.momentum * self.mom[i] + self.lr * grad / np.sqrt(mean_square + self.epsilon)
            self.var[i] = self.var[i] - self.mom[i]
            parameter.data = torch.from_numpy(np.asarray(self.var[i])).float()


@pytest.mark.parametrize(
    "kind, more",
    [
        *((kind, more) for kind in KINDS for more in ({}, {"weight_decay": 0.1})),
        *((kind, {"centered": True}) for kind in ("rmsprop", "rmsprop_tf")),
        *((kind, {"centered": True, "momentum": 0.0}) for kind in ("rmsprop", "rmsprop_tf")),
    ],
)
def test_steps_are_those_of_the_original_optimisers_over_single_parameters(kind, more):
    """Parameters of which some end in the middle of a cache line and one has an unusual dimension order, with
    clipping."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(), (3,), (5, 7), (2, 3, 4, 5)]
    mine = [torch.nn.Parameter(torch.randn(shape, generator=rng)) for shape in shapes]
    mine[-1] = torch.nn.Parameter(mine[-1].detach().contiguous(memory_format=torch.channels_last))
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    original, momentum = KINDS[kind]
    epsilon = 1e-2 if kind.startswith("rmsprop") else 1e-8
    options = momentum | more
    optimizer = Optimizer(mine, optimizer_config(kind=kind, epsilon=epsilon, **options), Schedule.parse(0.1), 1.0)
    assert mine[-1].is_contiguous(memory_format=torch.channels_last)
    if kind == "rmsprop_tf":
        other = TensorFlows(theirs, lr=0.1, alpha=0.99, eps=epsilon, **options)
    else:
        if kind != "sgd":
            options = options | {"eps": epsilon}
        other = original(theirs, lr=0.1, **({"weight_decay": 0.0} | options))
    for index in range(4):
        scale = [torch.randn(p.shape, generator=rng) * 10**-index for p in mine]
        metrics = optimizer.step(sum((p * s).sum() for p, s in zip(mine, scale, strict=True)), Clock())
        for p, s in zip(theirs, scale, strict=True):
            p.grad = s.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        other.step()
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q)


def test_tensorflow_s_rmsprop_takes_a_small_first_step_and_continues_where_it_was_saved():
    """PyTorch's first step is 10 lr for gradients of any size; TensorFlow's is about lr times the gradient."""
    gradients = torch.tensor([1e-3, 1.0, -100.0])
    made = of("rmsprop_tf", 0.9, torch.nn.Parameter(torch.zeros(3)))
    made.step((made.parameters[0] * gradients).sum(), Clock())
    wanted = -0.1 * gradients / (0.99 + 0.01 * gradients.square() + 1e-8).sqrt()
    torch.testing.assert_close(made.parameters[0].detach(), wanted)
    again = of("rmsprop_tf", 0.9, torch.nn.Parameter(made.parameters[0].detach().clone()))
    again.load_state_dict(made.state_dict())
    for one in (made, again):
        one.step((one.parameters[0] * gradients).sum(), Clock())
    assert torch.equal(made.parameters[0], again.parameters[0])
    fresh = of("rmsprop_tf", 0.9, torch.nn.Parameter(torch.zeros(3)))
    fresh._begin()
    assert fresh.state_dict()["inner"]["state"][0]["square_avg"].tolist() == [1.0, 1.0, 1.0]


def test_gradients_are_clipped_by_value_before_the_norm_is_bounded():
    """[3, -0.1, 0.4] clipped to 0.5 is [0.5, -0.1, 0.4], of norm 0.6481; the bound 0.3 then scales that."""
    gradient = torch.tensor([3.0, -0.1, 0.4])
    clipped = torch.tensor([0.5, -0.1, 0.4])
    for bound, wanted in ((0.0, clipped), (0.3, clipped * 0.3 / clipped.norm()), (1.0, clipped)):
        for deferred in (False, True):
            parameter = torch.nn.Parameter(torch.zeros(3))
            cfg = optimizer_config(kind="sgd", max_grad_value=0.5)
            made = Optimizer([parameter], cfg, Schedule.parse(1.0), bound, deferred=deferred)
            metrics = made.step((parameter * gradient).sum(), Clock())
            torch.testing.assert_close(parameter.detach(), -wanted)
            assert float(metrics["grad_norm"]) == pytest.approx(float(gradient.norm())), "the norm before any clipping"


def test_options_of_another_kind_of_optimiser_are_refused():
    with pytest.raises(ValueError, match="centered is for kind=rmsprop"):
        optimizer_config(centered=True)
    with pytest.raises(ValueError, match="momentum is for kind=rmsprop"):
        optimizer_config(kind="radam", momentum=0.5)


@pytest.mark.parametrize("kind", [*ADAMS, *RMSPROPS])
def test_an_epsilon_of_0_is_refused(typed, kind):
    """Else a weight whose gradient was always 0 would become NaN."""
    with pytest.raises(UserError, match=r"algo\.optimizer\.epsilon must be positive, not 0"):
        typed("algo=pg", "env=CartPole-v1", f"algo.optimizer.kind={kind}", "algo.optimizer.epsilon=0")


def test_an_optimizer_s_state_is_by_parameter_and_another_one_s_is_refused():
    first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))
    optimizer = adam([first, second])
    assert optimizer.state_dict()["inner"]["state"] == {}
    optimizer.step((first * torch.tensor([1.0, 2.0, 3.0])).sum(), Clock())  # the loss does not reach the second
    assert torch.equal(second, torch.ones(2, 2)) and not torch.equal(first, torch.ones(3))
    state = optimizer.state_dict()
    assert {index: one["exp_avg"].shape for index, one in state["inner"]["state"].items()} == {0: (3,), 1: (2, 2)}
    again = adam([torch.nn.Parameter(p.detach().clone()) for p in (first, second)])
    again.load_state_dict(state)
    for one in (optimizer, again):
        one.step((one.parameters[0].square().sum() + one.parameters[1].square().sum()), Clock())
    assert all(torch.equal(p, q) for p, q in zip(optimizer.parameters, again.parameters, strict=True))
    with pytest.raises(ValueError, match="has 2 parameters, this one 1"):
        adam([torch.nn.Parameter(torch.ones(3))]).load_state_dict(state)
    with pytest.raises(ValueError, match="is adam, this one radam"):
        of("radam").load_state_dict(state)
    with pytest.raises(AssertionError, match="one optimiser"):
        adam([first])


def test_frozen_parameters_are_left_alone_and_are_no_part_of_the_state():
    frozen, free = (torch.nn.Parameter(torch.ones(3), requires_grad=grad) for grad in (False, True))
    cfg = optimizer_config(kind="adamw", weight_decay=0.5)
    optimizer = Optimizer([frozen, free], cfg, Schedule.parse(0.1), 0.0)
    optimizer.step((frozen * free).sum(), Clock())
    assert torch.equal(frozen, torch.ones(3)) and not torch.equal(free, torch.ones(3))
    assert list(optimizer.state_dict()["inner"]["state"]) == [0]
    with pytest.raises(ValueError, match="there is nothing to learn"):
        adam([frozen])


def of(kind, momentum=0.0, parameter=None):
    cfg = optimizer_config(kind=kind, momentum=momentum)
    return Optimizer(
        [torch.nn.Parameter(torch.ones(3)) if parameter is None else parameter], cfg, Schedule.parse(0.1), 0.0
    )


@pytest.mark.parametrize("kind", ["sgd", "rmsprop", "rmsprop_tf"])
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.9), (0.9, 0.0), (0.9, 0.5)])
def test_momentum_may_change_between_two_parts_of_a_run(kind, before, after):
    first, second = of(kind, before), of(kind, after)
    for _ in range(3):
        first.step(first.parameters[0].square().sum(), Clock())
    second.load_state_dict(first.state_dict())
    statistics = [one.state_dict()["inner"]["state"].get(0, {}) for one in (first, second)]
    for name, value in statistics[1].items():
        known = statistics[0].get(name)
        assert torch.equal(value, torch.zeros_like(value) if known is None else known)


def test_a_parameter_that_had_no_gradient_yet_has_no_statistics_in_old_checkpoints():
    made = adam([torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))])
    made.step(made.parameters[0].sum(), Clock())
    state = made.state_dict()
    del state["inner"]["state"][1], state["kind"]
    again = adam([torch.nn.Parameter(p.detach().clone()) for p in made.parameters])
    again.load_state_dict(state)
    for one in (made, again):
        one.step(sum(p.sum() for p in one.parameters), Clock())
    assert all(torch.equal(p, q) for p, q in zip(made.parameters, again.parameters, strict=True))


def test_a_gradient_taken_away_comes_back():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = adam([parameter])
    parameter.grad = None
    optimizer.step(parameter.sum(), Clock())
    assert torch.allclose(parameter, torch.full((3,), 0.9))


def test_a_parameter_that_was_moved_is_noticed():
    first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = adam([first, second])
    second.data = second.data.clone()
    with pytest.raises(AssertionError, match="was moved"):
        optimizer.step((first + second).sum(), Clock())


def test_a_checkpoint_holds_no_more_than_its_tensors(tmp_path):
    net, other = torch.nn.Linear(10, 10), torch.nn.Linear(300, 300)
    adam([*net.parameters(), *other.parameters()])
    path = Checkpoints(tmp_path, keep=1).save(
        5, {"policy": {"state": net.state_dict(), "more": [net.weight.detach()]}}, {}, False
    )
    assert path is not None and (path / "policy.pt").stat().st_size < 5000
    saved = load_part(path, "policy")
    assert torch.equal(saved["state"]["weight"], net.weight) and torch.equal(saved["more"][0], net.weight)


def test_every_fires_once_per_multiple():
    every = Every(100, start=100)
    assert [every(x) for x in (100, 150, 205, 210, 299, 500)] == [False, False, True, False, False, True]
    assert not Every(None)(10**9)


def test_closest_suggests():
    assert "discount" in closest("discunt", ["discount", "lr"]) and closest("zzzz", ["discount"]) == ""


class Machine:
    """A machine on which an update takes as many seconds as `of` says for the given threads."""

    def __init__(self, choices, of):
        self.time, self.of, self.used = 0.0, of, []
        self.threads = TunedThreads(choices, lambda: self.time)

    def updates(self, count):
        for _ in range(count):
            with self.threads:
                assert torch.get_num_threads() == self.threads.threads
                self.used.append(self.threads.threads)
                self.time += self.of(self.threads.threads)
            assert torch.get_num_threads() == 1
        return self.threads.chosen


def test_the_quickest_number_of_threads_is_found_and_left_when_the_machine_gets_busy():
    machine = Machine((1, 2, 4), {1: 0.1, 2: 0.06, 4: 0.3}.get)
    assert machine.updates(30) == 2
    assert machine.used.count(1) == 6 and machine.used.count(4) == 1, "what is hopeless is not tried to the end"
    machine.of = {1: 0.12, 2: 1.0, 4: 2.0}.get
    before = machine.time
    assert machine.updates(20) == 1
    assert machine.time - before < 14, "noticed after a few updates"
    machine.of = {1: 0.1, 2: 0.06, 4: 0.3}.get
    machine.updates(800)
    assert machine.threads.chosen == 2, "and tried again when there is room"
    assert machine.used[-100:].count(2) > 80


def test_an_update_of_many_minibatches_is_not_finished_with_a_hopeless_number_of_threads():
    """On a busy machine, PPO's update of 24 minibatches took about 6 s with one thread and 150 s with two."""
    time, each = 0.0, {1: 0.2, 2: 6.0}
    threads = TunedThreads((1, 2), lambda: time)

    def update():
        nonlocal time
        began, used = time, []
        with threads:
            for _ in range(24):
                used.append(torch.get_num_threads())
                time += each[used[-1]]
                threads.minibatch_done()
        return time - began, used

    assert update()[1] == [1] * 24
    spent, used = update()
    assert used == [2, 2] + [1] * 22 and spent < 17, "two minibatches show it"
    each[2] = 0.12
    while threads.chosen == 1:
        update()
    each[2] = 6.0  # another process has begun
    while threads.trials:
        update()
    spent, used = update()
    assert used == [2, 2] + [1] * 22 and spent < 17, "the chosen number is left as well"
    update()
    assert threads.trials or threads.chosen == 1, "and all are tried again"
    threads.minibatch_done()  # outside of an update there is nothing to do


def test_a_wrong_choice_is_soon_seen_and_a_right_one_is_seldom_asked_again():
    misled = {"on one core": True}
    machine = Machine((1, 2), lambda threads: 0.015 if threads == 1 else 0.016 if misled["on one core"] else 0.01)
    assert machine.updates(12) == 1
    misled["on one core"] = False
    machine.updates(190)
    assert machine.threads.chosen == 2 and machine.time < 3.0, "seconds"
    machine.used.clear()
    machine.updates(30_000)  # five minutes
    assert machine.threads.chosen == 2 and 6 * 6 <= machine.used.count(1) <= 6 * 10, (
        "after 2, 4, 8, 16, 32 and 60 seconds"
    )


def test_trying_costs_little_where_updates_are_long():
    machine = Machine((1, 2), {1: 2.0, 2: 1.0}.get)
    machine.updates(1000)
    assert machine.threads.chosen == 2 and machine.used[0] == 1 and machine.used[1] == 2, "one such update says enough"
    assert 10 < machine.used.count(1) < 25
    bad = Machine((1, 2), {1: 1.0, 2: 40.0}.get)
    bad.updates(1000)
    assert bad.threads.chosen == 1 and bad.time < 1150, "what costs much is seldom tried"


def test_two_things_are_done_beside_each_other():
    beside = HelperThread()
    here, meeting = threading.get_ident(), threading.Barrier(2, timeout=10.0)
    assert beside(threading.get_ident, lambda: threading.get_ident()) == (here, here), (
        "with one thread one after the other"
    )
    beside.threads = 4
    _, second = beside(
        lambda: (meeting.wait(), torch.get_num_threads()),
        lambda: (meeting.wait(), threading.get_ident(), torch.get_num_threads()),
    )
    assert second[1] != here and second[2] == 2, (
        "at the same time, or the barrier would break; with half of the threads"
    )
    assert beside(threading.get_ident, threading.get_ident) == (here, second[1]), "by the same helper"
    helper = beside.helper
    beside.close()
    assert not helper.is_alive()
    assert beside(lambda: 1, threading.get_ident)[1] != here, "by a new one"
    beside.close()


def test_what_fails_beside_something_else_is_heard_after_both_are_over():
    beside, done = HelperThread(), []
    beside.threads = 2

    def fails(what):
        time.sleep(0.05)
        raise ValueError(what)

    with pytest.raises(ValueError, match="second"):
        beside(lambda: done.append("first"), lambda: fails("second"))
    with pytest.raises(ValueError, match="first"):
        beside(lambda: fails("first"), lambda: (time.sleep(0.2), done.append("second")))
    assert done == ["first", "second"]
    assert beside(lambda: 1, lambda: 2) == (1, 2), "nothing of what failed is left over"


def test_what_was_done_beside_something_is_not_kept():
    beside, held = HelperThread(), torch.zeros(3)
    beside.threads = 2
    seen = weakref.ref(held)
    beside(lambda: 0, lambda held=held: held.sum())
    del held
    deadline = time.monotonic() + 10.0
    while seen() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen() is None


def test_threads_of_an_algorithm_that_does_two_things_at_once_are_shared_between_them():
    beside = HelperThread()
    threads = TunedThreads((4,), beside=beside)
    threads.take(4)
    assert beside.threads == 4 and torch.get_num_threads() == 2
    threads.take(1)
    assert beside.threads == 1 and torch.get_num_threads() == 1


def test_one_choice_changes_nothing():
    torch.set_num_threads(1)
    with TunedThreads((4,)):
        assert torch.get_num_threads() == 1


def test_a_second_sigterm_at_once_is_the_same_one(monkeypatch):
    """A dying parent with several threads sends several, and the run must still be saved."""
    from rlrun.core import signals

    heard, now = signals.Signals(), [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    for _ in range(3):
        heard._on_stop(signal.SIGTERM, None)
    assert heard.stop == signal.SIGTERM
    now[0] += signals.SAME_SEC + 0.1
    with pytest.raises(KeyboardInterrupt):
        heard._on_stop(signal.SIGTERM, None)
    other = signals.Signals()
    other._on_stop(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        other._on_stop(signal.SIGINT, None)


def test_the_first_ctrl_c_answers_at_once_on_a_terminal(monkeypatch):
    """An update of a slow environment takes minutes, in which the run would seem to have heard nothing."""
    from rlrun.core import signals

    said, terminal = [], [True]
    monkeypatch.setattr(signals.os, "isatty", lambda output: terminal[0])
    monkeypatch.setattr(signals.os, "write", lambda output, text: said.append((output, text.decode())))
    signals.Signals()._on_stop(signal.SIGINT, None)
    assert [output for output, _ in said] == [2] and "ends after this update; Ctrl-C again ends it" in said[0][1]
    signals.Signals()._on_stop(signal.SIGTERM, None)
    terminal[0] = False
    signals.Signals()._on_stop(signal.SIGINT, None)
    assert len(said) == 1
