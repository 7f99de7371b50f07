"""Checkpoints hold optimisers, generators and modules wherever an algorithm keeps them, and a restored algorithm
continues with the same bits."""

from types import SimpleNamespace

import pytest
import torch
from conftest import optimizer_config
from torch import nn

from rlrun.core.algorithm import Algorithm, LearnerContext, Update
from rlrun.core.errors import RunFailed
from rlrun.core.found_state import find_state
from rlrun.core.optimizer import Optimizer
from rlrun.core.schedule import Clock, Schedule

ADAM = optimizer_config(epsilon=1e-3, beta2=0.99)


def optimizer(net: nn.Module) -> Optimizer:
    return Optimizer(net.parameters(), ADAM, Schedule.parse(0.1), 1.0)


class Plain(Algorithm):
    """An algorithm with a net and an optimiser, which keeps nothing in unusual places."""

    def __init__(self, keep, ctx):
        super().__init__(nn.Linear(2, 1), None, None, ctx)
        keep(self)

    def update(self, batch, clock):
        found, loss = find_state(self), torch.zeros(())
        for rng in found.rngs.values():
            loss = loss + self.policy(torch.randn(2, generator=rng)).square().sum()
        for module in found.modules.values():
            loss = loss + sum(p.sin().sum() for p in module.parameters())
        loss = loss + sum((p - 1).square().sum() for p in self.parameters())
        for each in found.optimizers.values():
            loss = loss + 0 * sum(p.sum() for p in each.parameters)
        for each in found.optimizers.values():
            total = sum((p - 1).square().sum() for p in each.parameters)
            each.step(total if len(found.optimizers) > 1 else loss, clock)
        return Update({})


def inner(made):
    def keep(algorithm):
        algorithm.optimizer = optimizer(algorithm.policy)

    return Plain(keep, made.ctx)


def keep_dict(made):
    made.optimizers_by_name = {"actor": optimizer(made.policy)}


def keep_list(made):
    made.kept = [optimizer(made.policy)]


def keep_tuple(made):
    made.kept = (7, optimizer(made.policy))


def keep_module_dict(made):
    made.nets = nn.ModuleDict({"a": inner(made), "b": inner(made)})


def keep_module_list(made):
    made.nets = nn.ModuleList([inner(made), inner(made)])


def keep_dict_of_inner(made):
    made.groups = {"prey": inner(made), "predator": inner(made)}


def keep_generator(made):
    made.optimizer = optimizer(made.policy)
    made.streams = {"noise": made.ctx.another_rng(), "again": [made.ctx.rng]}


def keep_helper(made):
    net = nn.Linear(2, 2)
    made.helper = SimpleNamespace(net=net, step=[optimizer(net)], ctx=made.ctx, back=made)


def keep_nested(made):
    net = nn.Sequential(nn.Linear(2, 2))
    net.optimizer = optimizer(net)
    made.outer = nn.Sequential(net)


def keep_both(made):
    made.inner = inner(made)
    made.also = [made.inner.optimizer]
    made.optimizer = optimizer(made.policy)


CASES = {
    keep_dict: ({"optimizers_by_name.actor"}, set(), set()),
    keep_list: ({"kept.0"}, set(), set()),
    keep_tuple: ({"kept.1"}, set(), set()),
    keep_module_dict: ({"nets.a.optimizer", "nets.b.optimizer"}, set(), set()),
    keep_module_list: ({"nets.0.optimizer", "nets.1.optimizer"}, set(), set()),
    keep_dict_of_inner: ({"groups.prey.optimizer", "groups.predator.optimizer"}, set(), {"groups.prey", "groups.predator"}),
    keep_generator: ({"optimizer"}, {"streams.noise"}, set()),
    keep_helper: ({"helper.step.0"}, set(), {"helper.net"}),
    keep_nested: ({"outer.0.optimizer"}, set(), set()),
    keep_both: ({"optimizer", "inner.optimizer"}, set(), set()),
}  # fmt: skip


def start(keep, seed: int) -> Plain:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Plain(keep, LearnerContext(torch.device("cpu"), torch.Generator().manual_seed(seed)))


def equal(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("keep", CASES)
def test_what_is_hidden_is_resumed_to_the_bit(keep, tmp_path):
    made, fresh = start(keep, 0), start(keep, 1)
    assert tuple(map(set, find_state(made))) == CASES[keep]
    for updates in range(3):
        made.update(None, Clock(updates, updates))
    torch.save(made.state(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    assert ("modules" in saved) == bool(CASES[keep][2])
    assert not equal(fresh.state(), saved)
    fresh.load_state(saved)
    assert equal(fresh.state(), saved)
    for updates in range(3, 6):
        made.update(None, Clock(updates, updates))
        fresh.update(None, Clock(updates, updates))
    assert equal(fresh.state(), made.state()) and not equal(made.state(), saved)


@pytest.mark.parametrize("keep, part", [(keep_dict, "optimizers"), (keep_generator, "rngs"), (keep_helper, "modules")])
def test_a_checkpoint_that_lacks_one_is_refused(keep, part):
    made = start(keep, 0)
    with pytest.raises(RunFailed, match="does not fit"):
        made.load_state({**made.state(), part: {}})


def test_two_parts_of_one_name_are_refused():
    made = start(keep_dict, 0)
    made.streams = {"a.b": torch.Generator(), "a": {"b": torch.Generator()}}
    with pytest.raises(ValueError, match=r"both called streams\.a\.b"):
        find_state(made)
