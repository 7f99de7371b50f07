"""A2C's loss is checked by hand, and so are gradients that are accumulated over parts of a batch."""

import math

import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.metrics import Sums
from rlrun.core.schedule import Clock
from rlrun.ops.distributions import Categorical
from rlrun.policies import Outputs


def wiring(typed, *words):
    return Wired(typed("algo=a2c", "env=CartPole-v1", *SMALL, *words))


def test_loss_by_hand(typed):
    made = wiring(typed, "algo.value_coef=0.25").algorithm()
    logits = torch.tensor([[[math.log(p), math.log(1 - p)]] for p in (0.8, 0.4, 0.5, 0.5)])
    made.policy.unroll = lambda batch: Outputs(Categorical(logits), torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    column = lambda *x: torch.tensor(x)[:, None]  # noqa: E731
    rows = Batch(
        action=column(0, 1, 0),
        valid=column(True, True, False),
        advantage=column(1.0, -2.0, 9.0),
        target=column(3.0, 2.5, 9.0),
    )
    loss = made.loss(rows, 0.1, torch.tensor(2), Sums())
    policy = -(math.log(0.8) * 1.0 + math.log(0.6) * -2.0) / 2
    value = 0.5 * (4.0 + 0.25) / 2
    entropy = sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.8, 0.4)) / 2
    assert loss.item() == pytest.approx(policy + 0.25 * value - 0.1 * entropy, rel=1e-5)


def test_microbatches_equal_the_whole_batch(typed):
    whole = wiring(typed)
    sampler, first = whole.sampler(0), whole.algorithm()
    sampler.publish(first.policy, Clock())
    batch = sampler.take(1)[0].batch
    second = wiring(typed, "algo.microbatch_size=5").algorithm()
    graphs = []
    inner = second.loss
    second.loss = lambda *args: graphs.append(args[0].reward.shape) or inner(*args)
    a, b = first.update(batch, Clock()).metrics, second.update(batch, Clock()).metrics
    assert graphs == [(5, 1)] * 4
    for name in a:
        assert float(a[name]) == pytest.approx(float(b[name]), rel=1e-4, abs=1e-6), name
    for x, y in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)
