"""Checks REINFORCE by hand: log-probabilities are weighted by the return from there on."""

import math

import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.ops.distributions import Categorical
from rlrun.policies import Outputs


@pytest.mark.parametrize("terminated", [True, False])
def test_loss_by_hand(typed, terminated):
    made = Wired(
        typed("algo=pg", "env=CartPole-v1", *SMALL, "algo.normalize_advantage=false", "algo.discount=0.5")
    ).algorithm()
    logits = torch.tensor([[[math.log(p), math.log(1 - p)]] for p in (0.8, 0.4, 0.5, 0.5)], requires_grad=True)
    made.policy.unroll = lambda batch: Outputs(Categorical(logits), torch.zeros(4, 1))
    made.optimizer.step = lambda loss, clock: {"loss": loss}
    column = lambda *x: torch.tensor(x)[:, None]  # noqa: E731
    batch = Batch(
        action=column(0, 1, 0),
        reward=column(1.0, 2.0, 3.0),
        terminated=column(False, terminated, False),
        valid=column(True, True, True),
    )
    to_go = [1 + 0.5 * 2, 2.0, 3.0] if terminated else [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3.0]
    metrics = made.update(batch, Clock()).metrics
    expected = -sum(math.log(p) * g for p, g in zip((0.8, 0.6, 0.5), to_go, strict=True)) / 3
    assert metrics["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert metrics["return_to_go"].item() == pytest.approx(sum(to_go) / 3)


@pytest.mark.parametrize("algo, option, words", [
    ("pg", "batch_size", ["algo.batch_size=1", "algo.fragment_length=1", "algo.normalize_advantage=true"]),
    ("a2c", "batch_size", ["algo.batch_size=1", "algo.fragment_length=1", "algo.normalize_advantage=true"]),
    ("ppo", "minibatch_size", ["algo.minibatch_size=1", "algo.normalize_advantage=minibatch"]),
    ("ppo", "batch_size", ["algo.batch_size=1", "algo.fragment_length=1", "algo.minibatch_size=1", "algo.normalize_advantage=batch"]),
])  # fmt: skip
def test_a_single_row_is_not_normalised(typed, algo, option, words):
    given = [f"algo={algo}", "env=CartPole-v1", *SMALL]
    with pytest.raises((UserError, ValueError), match=f"{option} 1 is one row"):
        Wired(typed(*given, *words)).algorithm()
    plain = "none" if algo == "ppo" else "false"
    Wired(typed(*given, *words, f"algo.normalize_advantage={plain}")).algorithm()
