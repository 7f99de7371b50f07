"""Running moments are merged exactly whoever collected them, are part of the policy, and never run ahead of
samplers."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import SMALL
from test_actor_learner import run_wired
from test_samplers import KINDS
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.moments import RunningMoments, masked_moments_of, moments_of
from rlrun.core.ranks import ALONE
from rlrun.core.schedule import Clock
from rlrun.models.normalizer import ObservationFilter, RewardScale, ValueScale

PARTS = [
    "algo=ppo",
    "env=rlrun/Counting-v0",
    "logger=[]",
    "model.hidden=[8]",
    "algo.fragment_length=10",
    "algo.batch_size=40",
    "algo.minibatch_size=20",
]
FILTERS = ["model.observation_filter=mean_std", "algo.normalize_reward=true", "resources.device=cpu"]


def test_moments_merged_in_parts_are_those_of_the_whole():
    torch.manual_seed(0)
    x = 1e4 + torch.randn(1000, 3, dtype=torch.float64)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        running, parts = RunningMoments((3,)), x.split([1, 0, 599, 400])
        for number in order:
            running.merge(moments_of(parts[number]))
        torch.testing.assert_close(running.mean, x.mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(running.variance, x.var(0, unbiased=False), rtol=1e-9, atol=0)
        assert running.count == 1000


@pytest.mark.parametrize("images", [True, False])
def test_moments_of_live_rows_on_a_gpu_are_those_of_a_cpu(images):
    """The form in which no row is picked, here on a CPU. Dead rows hold anything."""
    rng = torch.Generator().manual_seed(0)
    if images:
        x = torch.randint(0, 256, (700, 2, 5), dtype=torch.uint8, generator=rng)
    else:
        x = 50 + 3 * torch.randn(700, 4, generator=rng)
        x[3] = torch.nan
    live = torch.rand(700, generator=rng) < 0.8
    live[3] = False
    made, wanted = (RunningMoments(tuple(x.shape[1:])) for _ in range(2))
    for part, alive in zip(x.split([300, 400]), live.split([300, 400]), strict=True):
        wanted.merge(moments_of(part[alive]))
        made.merge(masked_moments_of(part, alive))
    made.merge(masked_moments_of(x[:5], torch.zeros(5, dtype=torch.bool)))  # a fragment of dead rows
    assert made.count == wanted.count == int(live.sum())
    torch.testing.assert_close(made.mean, wanted.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(made.m2, wanted.m2, rtol=1e-9, atol=0)


def test_a_filter_of_pixels_keeps_its_scale_until_a_row_is_live():
    made, x = ObservationFilter((4,), 10.0, 1 / 255), torch.full((3, 4), 200, dtype=torch.uint8)
    for dead in (moments_of(x[:0]), masked_moments_of(x, torch.zeros(3, dtype=torch.bool))):
        made.merge(dead)
        torch.testing.assert_close(made(x), torch.full((3, 4), 200 / 255))


def test_a_filter_makes_unit_deviation_bounds_it_and_is_the_identity_at_first():
    x = torch.tensor([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    made = ObservationFilter((2,), clip=1.0)
    torch.testing.assert_close(made(x / 10), x / 10)
    made.merge(moments_of(x))
    torch.testing.assert_close(made(x), torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("clip", [2.0, 0.0])
@pytest.mark.parametrize("shape", [(1, 2, 3), (4, 84, 84), (3, 300, 200)])
def test_images_in_blocks_are_filtered_as_a_whole_batch_is(shape, clip):
    images = torch.randint(0, 256, (3, 5, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    made = ObservationFilter(shape, clip)
    made.merge(moments_of(images[0]))
    for part in (images, images[:, ::2], images[0, 0], images[:, :0]):
        assert torch.equal(made(part), made(part.float()))


def test_reward_scale_is_the_deviation_of_the_discounted_return():
    made = RewardScale()
    returns = torch.tensor([1.0, 3.0, 5.0])
    made.merge(moments_of(returns))
    deviation = returns.std(unbiased=False)
    torch.testing.assert_close(made(torch.tensor([[1.0, -100.0]])), torch.tensor([[1.0 / deviation.item(), -10.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_live_row_is_merged_once_whoever_collected_it(typed, tmp_path, kind):
    wiring = Wired(typed(*PARTS, *FILTERS, *KINDS[kind], "resources.envs_per_sampler=2", "env_steps=400"))
    seen: list = []
    returns: list = []
    running: dict = {}  # sums by column, since this runner's batches have the same environments in the same columns
    algorithm = wiring.algorithm

    def watched():
        made = algorithm()
        update = made.update

        def recording(batch, clock):
            seen.append(batch.obs.observation[:-1][batch.valid].clone())
            for t in range(10):
                for b in range(batch.reward.shape[1]):
                    if batch.valid[t, b]:
                        running[b] = running.get(b, 0.0) * 0.99 + float(batch.reward[t, b])
                        returns.append(running[b])
                    if batch.is_first[t + 1, b]:
                        running[b] = 0.0
            return update(batch, clock)

        made.update = recording
        return made

    wiring.algorithm = watched
    made, job, _ = run_wired(wiring, tmp_path)
    everything = torch.cat(seen).double()
    filtered = made.policy.filter.filters[0]
    assert filtered.count == len(everything) == job.clock.env_steps
    torch.testing.assert_close(filtered.mean, everything.mean(0))
    torch.testing.assert_close(filtered.variance, everything.var(0, unbiased=False))
    assert made.reward_scale.count == len(returns) == job.clock.env_steps
    assert float(made.reward_scale.mean) == pytest.approx(np.mean(returns), rel=1e-6)
    assert float(made.reward_scale.variance) == pytest.approx(np.var(returns), rel=1e-6)


def test_returns_of_one_fragment_by_hand(typed):
    wiring = Wired(typed(*PARTS, *SMALL[:1], *FILTERS, "logger=[]", "algo.fragment_length=10"))
    sampler = wiring.sampler(0)
    sampler.publish(wiring.algorithm().policy, Clock())
    fragment = sampler.take(1)[0]
    expected = []
    # Each column: rewards 1..7, a dead row, then 1, 2 of the next episode
    for _ in range(fragment.batch.reward.shape[1]):
        total = 0.0
        for reward in (1, 2, 3, 4, 5, 6, 7):
            total = 0.99 * total + reward
            expected.append(total)
        expected += [1.0, 0.99 * 1.0 + 2.0]
    count, mean, m2 = fragment.header.returns
    assert (
        count == len(expected)
        and mean == pytest.approx(np.mean(expected))
        and m2 == pytest.approx(np.var(expected) * len(expected))
    )


def test_the_filter_that_acted_is_the_filter_that_learns(typed):
    """In the first minibatch of every update, ratios are 1. They would not be if the filter changed between acting and
    learning."""
    wiring = Wired(
        typed(*PARTS, *SMALL[:1], *FILTERS, "logger=[]", "algo.num_epochs=1", "algo.minibatch_size=40", "algo.lr=0.01")
    )
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    for number in range(4):
        sampler.publish(made.policy, Clock(updates=number))
        batch = sampler.take(1)[0].batch.clone()
        metrics = made.update(batch, Clock(updates=number)).metrics
        assert float(metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
        before = made.policy.filter.filters[0].shift.clone()
        made.absorb_rows([made.policy.moments(batch)])
        assert not torch.equal(before, made.policy.filter.filters[0].shift)


@pytest.mark.parametrize("algo, more", [
    ("appo", ["env=CartPole-v1"]), ("dqn", ["env=CartPole-v1"]), ("rnd", ["env=CartPole-v1", "algo@algo.inner=dqn"]),
    ("slateq", ["env=rlrun/InterestEvolution-v0"]),
])  # fmt: skip
def test_a_target_sees_what_the_policy_sees_before_it_moves(typed, algo, more):
    """The weights of a target wait for their turn. Its filter does not, nor that of an inner algorithm's target."""
    words = [f"algo={algo}", *more, "model.observation_filter=mean_std", "logger=[]", "resources=debug"]
    made = Wired(typed(*words)).algorithm()
    target = getattr(made, "inner", made).target
    weights, own = [weight.clone() for weight in target.parameters()], made.policy.filter
    made.absorb_rows([[moments_of(1e5 + torch.rand(9, *one.shift.shape)) for one in own.filters], None])
    assert all(float(one.shift.min()) > 9e4 for one in own.filters)
    assert all(torch.equal(target.filter.state_dict()[name], value) for name, value in own.state_dict().items())
    assert all(map(torch.equal, weights, target.parameters()))


def test_pixels_are_filtered_one_by_one(typed):
    """Before there are moments, a filter passes the same pixels to the network as no filter; afterwards every pixel has
    mean 0."""
    words = ["algo=ppo", "env=Pong", "env.size=42", "resources.device=cpu", "resources.precision=fp32"]
    plain, made = (
        Wired(typed(*words, *more)).algorithm().policy
        for more in (["model.observation_filter=none"], ["model.observation_clip=5"])
    )
    one = made.filter.filters[0]
    own = {name: value for name, value in made.state_dict().items() if not name.startswith("filter")}
    plain.load_state_dict(own)
    pixels = torch.randint(0, 256, (150, 2, 4, 42, 42), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    # One constant pixel, one that is another value once
    pixels[..., 0, 0], pixels[..., 0, 1] = 7, 8 + (torch.arange(150) == 3).byte()[:, None, None]
    batch = Batch(
        obs=Batch(observation=pixels),
        is_first=torch.zeros(150, 2, dtype=torch.bool),
        valid=torch.ones(149, 2, dtype=torch.bool),
    )
    with torch.no_grad():
        torch.testing.assert_close(made.unroll(batch).value, plain.unroll(batch).value, atol=1e-4, rtol=1e-4)
    made.absorb([made.moments(batch)], ALONE)
    seen = pixels[:149].double().flatten(0, 1)
    torch.testing.assert_close(one.variance, seen.var(0, unbiased=False), rtol=1e-9, atol=1e-9)
    filtered = one(pixels)
    assert (filtered[..., 0, 0] == 0).all() and (filtered[3, ..., 0, 1] == 5).all(), (
        "what is hardly ever there stands out"
    )
    torch.testing.assert_close(filtered[:149, ..., 5:, :].mean((0, 1)), torch.zeros(4, 37, 42), atol=1e-4, rtol=0)


def test_choices_have_no_filter(typed):
    with pytest.raises(UserError, match="for numbers and pixels"):
        Wired(typed("algo=ppo", "env=FrozenLake-v1", "model.observation_filter=mean_std")).algorithm()


def test_a_value_head_keeps_what_it_says_while_returns_grow():
    """PopArt: after every change of scale the denormalised outputs are the same, and new returns have mean 0 and
    deviation 1."""
    scale, head = ValueScale(), torch.nn.Linear(3, 1)
    x = torch.randn(20, 3)
    before = scale.denormalize(head(x))
    returns = torch.tensor([100.0, 300.0, 500.0])
    scale.follow(moments_of(returns), head)
    torch.testing.assert_close(scale.denormalize(head(x)), before, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(scale.normalize(returns), (returns - 300) / returns.std(unbiased=False))
    scale.follow(moments_of(torch.tensor([-1000.0])), head)
    torch.testing.assert_close(scale.denormalize(head(x)), before, atol=1e-2, rtol=1e-4)
    assert scale.deviation == pytest.approx(np.std([100, 300, 500, -1000]))


def test_async_runners_merge_too(typed, tmp_path):
    config = typed(
        "algo=impala",
        "env=rlrun/Counting-v0",
        *SMALL,
        "model.observation_filter=mean_std",
        "runner.num_sgd_iter=2",
        "env_steps=300",
    )
    made, job, _ = run_wired(Wired(dataclasses.replace(config)), tmp_path)
    assert made.policy.filter.filters[0].count == job.clock.env_steps, "passes over one batch count once"
