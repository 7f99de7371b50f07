"""Checks PQN's targets by the definition of Q(lambda)."""

import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.core.batch import Batch


@pytest.mark.parametrize("lambda_", [0.0, 0.65, 1.0])
def test_targets_are_mixtures_of_what_follows(typed, lambda_):
    made = Wired(
        typed(
            "algo=pqn",
            "env=CartPole-v1",
            *SMALL,
            "algo.minibatch_size=10",
            f"algo.lambda_={lambda_}",
            "algo.discount=0.9",
        )
    ).algorithm()
    g = torch.Generator().manual_seed(0)
    reward, q_max = torch.rand(6, 4, generator=g) - 0.5, torch.randn(6, 4, generator=g)
    terminated, valid = torch.rand(6, 4, generator=g) < 0.2, torch.rand(6, 4, generator=g) < 0.8
    obs = Batch(observation=torch.randn(7, 4, 4, generator=g))
    batch = Batch(obs=obs, is_first=torch.zeros(7, 4, dtype=torch.bool), action=torch.zeros(6, 4, dtype=torch.int64), reward=reward, terminated=terminated,
                  truncated=torch.zeros(6, 4, dtype=torch.bool), valid=valid, q_max=q_max)  # fmt: skip
    with torch.no_grad():
        end = made.policy(obs[-1:], batch.is_first[-1:], Batch())[0].max(-1).values
        value = torch.cat([q_max, end])
        got = made.target(batch)
    for b in range(4):
        following = value[6, b]  # G of the next row; for a dead row it is the value of its observation
        for t in range(5, -1, -1):
            if not valid[t, b]:
                following = value[t, b]
                continue
            mixture = (1 - lambda_) * value[t + 1, b] + lambda_ * following
            following = reward[t, b] + 0.9 * (0.0 if terminated[t, b] else mixture)
            assert got[t, b].item() == pytest.approx(float(following), abs=1e-5)
    # The loss of a minibatch is half the squared error, over live rows.
    rows = batch.replace(target=got).sequences(1)
    with torch.no_grad():
        loss = made.loss(rows)[0]
        q = made.policy(obs, batch.is_first, Batch())[0][:-1, :, 0]
    assert loss.item() == pytest.approx(float(0.5 * (got - q)[valid].square().sum() / valid.sum()), rel=1e-4)
