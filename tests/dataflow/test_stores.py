"""Samplers and shards use the protocols FragmentStore and WeightStore only, so that other implementations work too."""

import dataclasses
import time

import pytest
import torch
from counting import CountingPolicy, check_rows
from wired import Wired

from rlrun.core.batch import fragment_layout
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.slots import Slots
from rlrun.dataflow.stores import FragmentStore, WeightStore
from rlrun.dataflow.weights import WeightBus
from rlrun.replay.layout import Layout, ReplayConfig
from rlrun.replay.service import ShardedReplay
from rlrun.samplers.batched import BatchedSampler
from rlrun.samplers.local import LocalSampler
from rlrun.samplers.processes import SamplerPlan

ROWS, COLUMNS = 5, 2


class Named:
    """Another FragmentStore, whose keys are words."""

    def __init__(self, layout, count):
        self.inside = Slots(layout, count)

    @property
    def keys(self):
        return [f"place {i}" for i in range(self.inside.count)]

    def view(self, key):
        return self.inside.view(self.keys.index(key))

    def pin(self):
        raise NotImplementedError

    def unpin(self):
        pass


class Post:
    """Another WeightStore, which has no base class in common with WeightBus."""

    def __init__(self, module):
        self.bus = WeightBus(module)

    @property
    def version(self):
        return self.bus.version

    def publish(self, module, clock):
        return self.bus.publish(module, clock)

    def read(self, module, seen):
        return self.bus.read(module, seen)


@dataclasses.dataclass(frozen=True)
class Source:
    plan: SamplerPlan
    spec: object


@pytest.fixture
def source(typed):
    wiring = Wired(typed("algo=impala", "env=rlrun/Counting-v0", "logger=[]", "resources=debug"))
    spec, policy = wiring.spec, CountingPolicy()
    shape = fragment_layout(
        spec.obs_rows, spec.action_row, policy.record_spec(("log_prob",)), policy.core_spec(), ROWS, COLUMNS, ROWS
    )
    return Source(SamplerPlan(
        make_env=wiring.plan.make_env(), make_policy=CountingPolicy, layout=shape, record=("log_prob",), core_every=ROWS, return_discount=None, envs=COLUMNS, agents=1,
        workers=2, in_flight=2, seeds=Seeds(0), generation=0, timeout_sec=60.0,
    ), spec)  # fmt: skip


def test_shared_memory_implements_both_protocols(source):
    slots: FragmentStore = Slots(source.plan.layout, 3)
    bus: WeightStore = WeightBus(CountingPolicy())
    assert list(slots.keys) == [0, 1, 2] and bus.version == 0
    slots.unpin()  # nothing was pinned
    slots.view(2).reward.fill_(4.0)
    assert slots.view(2).reward.eq(4.0).all() and not slots.view(1).reward.eq(4.0).any()


@pytest.mark.parametrize("kind", ["local", "batched"])
def test_samplers_work_with_stores_of_any_keys(source, kind):
    sampler: LocalSampler | BatchedSampler
    if kind == "local":
        sampler = LocalSampler(source.plan, Named, Post)
    else:
        sampler = BatchedSampler(source.plan, torch.device("cpu"), make_store=Named)
    used = set()
    try:
        sampler.publish(CountingPolicy(), Clock(env_steps=7))
        for _ in range(20):
            (fragment,) = sampler.take(1)
            check_rows(fragment.batch)
            used.add(fragment.header.slot)
            sampler.free([fragment])
    finally:
        sampler.close()
    assert used <= set(sampler.slots.keys) and len(used) > 2 and all(key.startswith("place ") for key in used)


def test_shards_read_fragments_from_any_store(source):
    spec = source.spec
    cfg = ReplayConfig(name="uniform", capacity=200, compress=False, directory=None, device="cpu", checkpoint="auto", checkpoint_max_gb=1.0)  # fmt: skip
    layout = Layout(obs=spec.obs_rows, action=spec.action_row, record={}, core={}, core_every=1, block=COLUMNS, blocks=2, fragment_rows=ROWS, rows=1,
                    rows_from=1, ends=True, starts_every=1, sequences=False, capacity=200)  # fmt: skip
    sampler = LocalSampler(source.plan, Named)
    try:
        replay = ShardedReplay(cfg, layout, 1, sampler.slots, 16, Seeds(0), 0, 60.0)
        try:
            sampler.publish(CountingPolicy(), Clock())
            for _ in range(4):
                (fragment,) = sampler.take(1)
                replay.add(fragment.header)
                while not replay.added:
                    replay.poll(1.0)
                assert replay.added == [fragment.header.slot]
                replay.added.clear()
                sampler.free([fragment])
            replay.draw(Clock())
            drawn, deadline = None, time.monotonic() + 60
            while drawn is None and time.monotonic() < deadline:
                replay.poll(0.1)
                drawn = replay.take()
            assert torch.equal(drawn.batch.reward[0], drawn.batch.obs.observation[1, :, 1])
            replay.workers.send(replay.members[0], ("save", replay.question, None))  # whose answer comes too late
            assert len(replay.state()["shards"]) == 1, "one of the two answers was to another question"
        finally:
            replay.close()
    finally:
        sampler.close()
