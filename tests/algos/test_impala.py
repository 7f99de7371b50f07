"""Checks IMPALA's loss on three rows by hand, and which parameters its gradient reaches."""

import math

import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.ops.distributions import Categorical
from rlrun.policies import Outputs


def algorithm(typed, *words):
    return Wired(typed("algo=impala", "env=CartPole-v1", *SMALL, *words)).algorithm()


def three_rows(terminated=(False, False, False), valid=(True, True, True)) -> Batch:
    column = lambda *x: torch.tensor(x)[:, None]  # noqa: E731
    return Batch(
        obs=Batch(observation=torch.zeros(4, 1, 4)), is_first=torch.zeros(4, 1, dtype=torch.bool), action=column(0, 1, 0), reward=column(1.0, 2.0, 3.0),
        terminated=column(*terminated), truncated=column(False, False, False), valid=column(*valid), log_prob=column(*[math.log(0.5)] * 3),
    )  # fmt: skip


def with_outputs(made, probabilities, values):
    """Replaces the network by fixed outputs that still carry a gradient."""
    logits = torch.tensor([[[math.log(p), math.log(1 - p)]] for p in probabilities], requires_grad=True)
    value = torch.tensor(values)[:, None].requires_grad_()
    made.policy.unroll = lambda batch: Outputs(Categorical(logits), value)
    return logits, value


def test_loss_by_hand(typed):
    made = algorithm(typed, "algo.discount=0.5", "algo.loss_reduction=sum")
    probabilities, values = [0.8, 0.4, 0.5, 0.5], [1.0, 2.0, 3.0, 4.0]
    with_outputs(made, probabilities, values)
    policy_loss, value_loss, metrics = made.loss(three_rows(), 0.1)
    pi = [0.8, 0.6, 0.5]  # pi of the actions taken; mu is 0.5
    rho = [min(1.0, p / 0.5) for p in pi]
    target = [0.0, 0.0, 0.0, 4.0]
    for t in (2, 1, 0):
        delta = rho[t] * ([1, 2, 3][t] + 0.5 * values[t + 1] - values[t])
        target[t] = values[t] + delta + 0.5 * rho[t] * (target[t + 1] - values[t + 1])
    advantage = [rho[t] * ([1, 2, 3][t] + 0.5 * target[t + 1] - values[t]) for t in range(3)]
    entropy = sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in probabilities[:3])
    expected = -sum(math.log(p) * a for p, a in zip(pi, advantage, strict=True))
    assert policy_loss.item() == pytest.approx(expected - 0.1 * entropy, rel=1e-5)
    assert value_loss.item() == pytest.approx(sum(0.5 * (target[t] - values[t]) ** 2 for t in range(3)), rel=1e-5)
    assert metrics["rho_clipped"].item() == pytest.approx(2 / 3)
    unclipped = algorithm(typed, "algo.rho_clip=0")
    with_outputs(unclipped, probabilities, values)
    assert "rho_clipped" not in unclipped.loss(three_rows(), 0.1)[2]


def test_a_mean_is_the_sum_over_live_rows(typed):
    losses = {}
    for reduction in ("sum", "mean"):
        made = algorithm(typed, f"algo.loss_reduction={reduction}")
        with_outputs(made, [0.8, 0.4, 0.5, 0.5], [1.0, 2.0, 3.0, 4.0])
        losses[reduction] = made.loss(three_rows(valid=(True, False, True)), 0.1)
    assert losses["sum"][0].item() == pytest.approx(2 * losses["mean"][0].item(), rel=1e-5)
    assert losses["sum"][1].item() == pytest.approx(2 * losses["mean"][1].item(), rel=1e-5)


def test_targets_carry_no_gradient(typed):
    made = algorithm(typed)
    logits, value = with_outputs(made, [0.8, 0.4, 0.5, 0.5], [1.0, 2.0, 3.0, 4.0])
    policy_loss, _, _ = made.loss(three_rows(), 0.0)
    policy_loss.backward()
    assert value.grad is None and logits.grad[:3].abs().sum() > 0 and logits.grad[3].abs().sum() == 0
    logits, value = with_outputs(made, [0.8, 0.4, 0.5, 0.5], [1.0, 2.0, 3.0, 4.0])
    _, value_loss, _ = made.loss(three_rows(), 0.0)
    value_loss.backward()
    assert logits.grad is None and value.grad[3] == 0 and value.grad[:3].abs().sum() > 0


def test_without_vtrace_the_behaviour_policy_does_not_matter(typed):
    made = algorithm(typed, "algo.vtrace=false")
    with_outputs(made, [0.8, 0.4, 0.5, 0.5], [1.0, 2.0, 3.0, 4.0])
    first = made.loss(three_rows(), 0.0)[0]
    other = made.loss(three_rows().replace(log_prob=torch.full((3, 1), -3.0)), 0.0)[0]
    assert torch.equal(first, other)


def test_rewards_are_clipped_in_learning_only(typed):
    made = algorithm(typed, "algo.reward_clip=sign", "algo.discount=0.0", "algo.loss_reduction=sum")
    with_outputs(made, [0.5] * 4, [0.0] * 4)
    batch = three_rows()
    _, value_loss, _ = made.loss(batch, 0.0)
    assert value_loss.item() == pytest.approx(1.5) and batch.reward[2, 0] == 3.0


def value_losses(made) -> list[float]:
    """The losses that the value's own optimiser will be given. Adam's steps hardly depend on their size."""
    given, step = [], made.value_optimizer.step
    made.value_optimizer.step = lambda loss, clock: given.append(float(loss.detach())) or step(loss, clock)
    return given


def test_a_separate_value_optimizer_has_its_own_parameters(typed):
    made = algorithm(typed, "model.share_value=false", "algo.value_lr=0.001")
    own, value = ({id(p) for p in o.parameters} for o in (made.optimizer, made.value_optimizer))
    assert not own & value and len(own | value) == len(list(made.policy.parameters()))
    before = {name: p.detach().clone() for name, p in made.policy.named_parameters()}
    batch = three_rows().replace(obs=Batch(observation=torch.randn(4, 1, 4)))
    with torch.no_grad():
        _, value_loss, _ = made.loss(batch, 0.0)
    given = value_losses(made)
    metrics = made.update(batch, Clock()).metrics
    assert given == [pytest.approx(made.cfg.value_coef * float(value_loss), rel=1e-5)]
    assert {"grad_norm", "value_grad_norm"} <= set(metrics)
    assert any(not torch.equal(before[n], p) for n, p in made.policy.named_parameters() if n.startswith("value"))


def test_a_value_lr_without_separate_trunks_is_refused(typed):
    from rlrun.core.errors import UserError

    with pytest.raises(UserError, match="shares its trunk"):
        algorithm(typed, "algo.value_lr=0.001", "model.share_value=true")
