"""Checks RE3 against a search for neighbours by brute force, and what the inner algorithm is given."""

import math

import pytest
import torch
from wired import Wired

from rlrun.algos import re3
from rlrun.algos.re3 import distance_to_nearest
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock

WORDS = ["algo=re3", "env=CartPole-v1", "resources=debug", "logger=[]", "model.hidden=[8]", "algo.inner.fragment_length=5", "algo.inner.batch_size=20",
         "algo.inner.minibatch_size=20", "algo.embedding_size=6", "algo.encoder_hidden=[7]"]  # fmt: skip
R2D2 = ["algo.inner.batch_size=3", "algo.inner.sequence_length=6", "algo.inner.burn_in=2", "model.memory.size=8"]


def wired(typed, *words):
    wiring = Wired(typed(*WORDS, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    return made, sampler.take(1)[0].batch.clone()


def by_hand(points: list[list[float]], number: int, k: int) -> float:
    """Returns the distance of a point to the k-th nearest of the others, or to the farthest if there are fewer."""
    distances = sorted(math.dist(points[number], other) for index, other in enumerate(points) if index != number)
    return distances[min(k, len(distances)) - 1] if distances else 0.0


@pytest.mark.parametrize("k", [1, 3, 50])
def test_rewards_are_those_of_a_search_by_brute_force(typed, k):
    made, batch = wired(typed, "algo.beta=[[0,0.0],[100,4.0]]", "algo.k_nearest=3", "algo.inner.reward_clip=0.5")
    object.__setattr__(made.cfg, "k_nearest", k)  # 50 is more than there are rows, as where many rows are dead
    valid = batch.valid.clone()
    valid[1, 2] = valid[4, 0] = False
    batch = batch.replace(valid=valid, reward=torch.where(valid, batch.reward, torch.nan))
    given, inner = [], made.inner.update
    made.inner.update = lambda batch, clock: given.append(batch) or inner(batch, clock)
    metrics = made.update(batch, Clock(50, 1)).metrics
    live = [(t, b) for t in range(5) for b in range(4) if valid[t, b]]
    points = [made.encoder(batch.obs.observation[t, b][None])[0].double().tolist() for t, b in live]
    entropy = [math.log(by_hand(points, number, k) + 1) for number in range(len(live))]
    for (t, b), one in zip(live, entropy, strict=True):
        assert float(given[0].reward[t, b]) == pytest.approx(0.5 + 2.0 * one, rel=1e-4), "the raw reward is 1"
    assert float(metrics["state_entropy"]) == pytest.approx(sum(entropy) / len(live), rel=1e-4)
    assert float(metrics["intrinsic_reward"]) == pytest.approx(2.0 * sum(entropy) / len(live), rel=1e-4)
    assert float(metrics["beta"]) == 2.0 and made.inner.cfg.reward_clip == "none"


def test_equal_points_have_no_distance_and_parts_do_not_matter(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(40, 5, generator=generator) * 100
    points[7] = points[3]
    live = torch.rand(40, generator=generator) < 0.8
    live[[3, 7]] = True
    whole = distance_to_nearest(points, points, live, 1)
    assert whole[3] == 0 and whole[7] == 0 and (whole[live].sort().values[2:] > 0).all()
    monkeypatch.setattr(re3, "PAIRS", 120)  # three points at a time
    assert torch.equal(distance_to_nearest(points, points, live, 1), whole)
    alone = torch.zeros(40, dtype=torch.bool)
    alone[5] = True
    assert distance_to_nearest(points, points, alone, 3)[5] == 0, "the only live point has no neighbour"


def test_the_encoder_never_learns(typed):
    made, batch = wired(typed)
    before = [p.clone() for p in made.encoder.parameters()]
    for number in range(3):
        made.update(batch, Clock(20 * number, number))
    assert all(torch.equal(a, b) for a, b in zip(before, made.encoder.parameters(), strict=True))
    assert all(name.startswith("inner") for name, _ in made.optimizers())


def test_sequences_from_a_replay_have_as_many_neighbours_as_rows(typed):
    words = ["algo=re3", "algo@algo.inner=r2d2", "env=CartPole-v1", "resources=debug", "logger=[]", *R2D2]
    assert Wired(typed(*words, "algo.k_nearest=23")).algorithm()
    with pytest.raises(UserError, match="k_nearest 24 must be below the 24 rows of a batch"):
        Wired(typed(*words, "algo.k_nearest=24")).algorithm()


def test_too_many_neighbours_are_refused(typed):
    with pytest.raises(UserError, match="k_nearest 20 must be below the 20 rows of a batch"):
        Wired(typed(*WORDS, "algo.k_nearest=20")).algorithm()
    with pytest.raises(UserError, match="weight that with beta"):
        Wired(typed(*WORDS, "algo.inner.normalize_reward=true")).algorithm()
