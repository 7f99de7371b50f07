"""An environment with two rewards per row: samplers, fragments and replay take the reward's shape from the spec.

Returns are sums over both rewards.
"""

import dataclasses

import numpy as np
import pytest
import torch
from counting import LENGTH, CountingPolicy
from wired import Wired

from rlrun.core.batch import Batch, Field, fragment_layout
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Agents
from rlrun.replay.buffer import Replay
from rlrun.replay.layout import Layout, ReplayConfig
from rlrun.samplers.evaluator import Evaluator
from rlrun.samplers.local import LocalSampler
from rlrun.samplers.processes import SamplerPlan
from rlrun.samplers.serial import SerialSampler

ROWS, COLUMNS = 5, 2
RETURN = 11 * LENGTH * (LENGTH + 1) / 2


class Twice:
    """Counting-v0 that pays the step's number to its first agent and ten times as much to its second."""

    def __init__(self, env, spec):
        self.env, self.spec, self.count = env, spec, env.count

    def reset(self, generation):
        return self.env.reset(generation)

    def step(self, action):
        step = self.env.step(action)
        return step._replace(reward=np.stack((step.reward, 10 * step.reward), 1))

    def close(self):
        self.env.close()


@dataclasses.dataclass(frozen=True)
class MakeTwice:
    make: object
    spec: object

    def __call__(self, worker, count):
        return Twice(self.make(worker, count), self.spec)


@pytest.fixture
def maker(typed):
    wiring = Wired(typed("algo=impala", "env=rlrun/Counting-v0", "logger=[]", "resources=debug"))
    agents = Agents(groups=(("few", ("first",)), ("many", ("second",))))
    return MakeTwice(
        wiring.plan.make_env(),
        dataclasses.replace(wiring.spec, reward_row=Field((2,), torch.float32), agents=agents, joint=True),
    )


def plan(maker, whole_after=None):
    spec, policy = maker.spec, CountingPolicy()
    shape = fragment_layout(
        spec.obs_rows,
        spec.action_row,
        policy.record_spec(("log_prob",)),
        policy.core_spec(),
        ROWS,
        COLUMNS,
        ROWS,
        spec.reward_row,
    )
    return SamplerPlan(
        make_env=maker, make_policy=CountingPolicy, layout=shape, record=("log_prob",), core_every=ROWS, return_discount=0.9, envs=COLUMNS, agents=1, workers=1,
        in_flight=3, seeds=Seeds(0), generation=0, timeout_sec=30.0, whole_after=whole_after,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["serial", "local"])
def test_both_numbers_arrive_and_returns_are_their_sums(maker, kind):
    sampler = SerialSampler(plan(maker), torch.device("cpu")) if kind == "serial" else LocalSampler(plan(maker))
    episodes = []
    try:
        sampler.publish(CountingPolicy(), Clock())
        for _ in range(6):
            (fragment,) = sampler.take(1)
            reward, now = fragment.batch.reward, fragment.batch.obs.observation[1:, :, 1]  # [T, B, 2], [T, B]
            assert reward.shape == (ROWS, COLUMNS, 2)
            assert torch.equal(reward[..., 0], now * fragment.batch.valid) and torch.equal(
                reward[..., 1], 10 * reward[..., 0]
            )
            assert fragment.header.returns.samples == fragment.header.env_steps
            pieces = fragment.batch.sequences(ROWS)
            assert pieces.reward.shape == (ROWS, COLUMNS, 2)
            episodes += fragment.header.episodes
            sampler.free([fragment])
    finally:
        sampler.close()
    assert len(episodes) == 3 * COLUMNS and all(episode.ret == RETURN for episode in episodes)


def test_columns_that_are_over_are_paid_nothing(maker):
    sampler = SerialSampler(plan(maker, whole_after=2), torch.device("cpu"))
    sampler.publish(CountingPolicy(), Clock())
    for _ in range(2):
        (fragment,) = sampler.take(1)
        assert not fragment.batch.reward[~fragment.batch.valid].any()
    sampler.close()


def test_an_evaluation_reports_the_sum(maker):
    evaluator = Evaluator(maker, COLUMNS, Seeds(0))
    assert evaluator.play(CountingPolicy(), 4, "greedy", Clock()) == [(RETURN, LENGTH)] * 4
    evaluator.close()


def test_a_replay_gives_both_numbers_back(maker):
    spec = maker.spec
    cfg = ReplayConfig(name="uniform", capacity=100, compress=False, directory=None, device="cpu", checkpoint="auto", checkpoint_max_gb=1.0)  # fmt: skip
    layout = Layout(obs=spec.obs_rows, action=spec.action_row, record={}, core={}, core_every=1, block=COLUMNS, blocks=1, fragment_rows=ROWS, rows=2,
                    rows_from=2, ends=False, starts_every=1, sequences=False, capacity=100, reward=spec.reward_row)  # fmt: skip
    replay = Replay(cfg, layout, torch.Generator().manual_seed(0), torch.device("cpu"))
    sampler = SerialSampler(plan(maker), torch.device("cpu"))
    sampler.publish(CountingPolicy(), Clock())
    for _ in range(8):
        (fragment,) = sampler.take(1)
        replay.add(fragment)
        sampler.free([fragment])
    sampler.close()
    drawn: Batch = replay.sample(64, Clock())
    assert drawn.reward.shape == (2, 64, 2) and drawn.valid.any()
    assert torch.equal(drawn.reward[..., 0], drawn.obs.observation[1:, :, 1] * drawn.valid)
    assert torch.equal(drawn.reward[..., 1], 10 * drawn.reward[..., 0])


def test_agents_have_names_of_their_own():
    assert Agents(groups=(("red", ("a", "b")), ("blue", ("c",)))).names == ("a", "b", "c")
    for groups in ((), (("red", ("a", "a")),), (("red", ("a",)), ("red", ("b",)))):
        with pytest.raises(ValueError, match="names of their own"):
            Agents(groups=groups)
