"""Checks IMPACT's surrogate by hand, and its target policy."""

import math

import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.core.algorithm import Follower
from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.ops.distributions import Categorical
from rlrun.policies import Outputs


def wiring(typed, *words):
    return Wired(typed("algo=appo", "env=CartPole-v1", *SMALL, *words))


def outputs(probabilities, values):
    logits = torch.tensor([[[math.log(p), math.log(1 - p)]] for p in probabilities], requires_grad=True)
    return Outputs(Categorical(logits), torch.tensor(values)[:, None].requires_grad_())


@pytest.mark.parametrize("traced", [True, False])
def test_loss_by_hand(typed, traced):
    made = wiring(
        typed, "algo.discount=0.5", "algo.value_coef=0.25", f"algo.vtrace={str(traced).lower()}", "algo.is_clip=1.5"
    ).algorithm()
    # probabilities of action 0, which is always taken
    worker, target, now = [0.5, 0.9, 0.5], [0.6, 0.3, 0.5, 0.5], [0.75, 0.4, 0.5, 0.5]
    old_value, value = [1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 4.5]
    made.target.unroll = lambda batch: outputs(target, old_value)
    made.policy.unroll = lambda batch: outputs(now, value)
    column = lambda *x: torch.tensor(x)[:, None]  # noqa: E731
    batch = Batch(
        action=column(0, 0, 0), reward=column(1.0, 2.0, 3.0), terminated=column(False, False, False), valid=column(True, True, True),
        log_prob=column(*[math.log(p) for p in worker]),
    )  # fmt: skip
    loss, metrics = made.loss(batch, 0.2, 0.1)
    rho = [min(1.0, t / w) if traced else 1.0 for t, w in zip(target, worker, strict=False)]
    goal = [0.0, 0.0, 0.0, 4.0]
    for t in (2, 1, 0):
        goal[t] = (
            old_value[t]
            + rho[t] * ([1, 2, 3][t] + 0.5 * old_value[t + 1] - old_value[t])
            + 0.5 * rho[t] * (goal[t + 1] - old_value[t + 1])
        )
    advantage = [rho[t] * ([1, 2, 3][t] + 0.5 * goal[t + 1] - old_value[t]) for t in range(3)]
    ratio = [min(w / t, 1.5) * n / w for w, t, n in zip(worker, target, now, strict=False)]
    assert ratio[1] == pytest.approx(1.5 * 0.4 / 0.9)  # the row whose worker-to-target ratio is clipped
    policy = -sum(min(r * a, min(max(r, 0.8), 1.2) * a) for r, a in zip(ratio, advantage, strict=True)) / 3
    squares = sum(0.5 * (g - v) ** 2 for g, v in zip(goal, value[:3], strict=False)) / 3
    entropy = sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in now[:3]) / 3
    assert metrics["policy_loss"].item() == pytest.approx(policy, rel=1e-5)
    assert loss.item() == pytest.approx(policy + 0.25 * squares - 0.1 * entropy, rel=1e-5)
    assert metrics["is_clipped"].item() == pytest.approx(1 / 3)


def test_the_target_follows_at_its_interval(typed):
    for words, moved in (
        (["algo.target_update_interval=3"], [False, False, True, False]),
        (["algo.target_update_interval=1"], [True] * 4),
    ):
        whole = wiring(typed, *words)
        made, sampler = whole.algorithm(), whole.sampler(0)
        sampler.publish(made.policy, Clock())
        batch = sampler.take(1)[0].batch
        seen = []
        for updates in range(4):
            before = [p.clone() for p in made.target.parameters()]
            made.update(batch, Clock(updates=updates))
            seen.append(any(not torch.equal(a, b) for a, b in zip(before, made.target.parameters(), strict=True)))
            same = all(
                torch.equal(a, b) for a, b in zip(made.policy.parameters(), made.target.parameters(), strict=True)
            )
            assert same == seen[-1]
        assert seen == moved


def test_a_target_moves_its_parameters_and_copies_buffers():
    a, b = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    with torch.no_grad():
        b.weight.fill_(3.0)
        b.running_mean.fill_(7.0)
    Follower(a, b).move(0.25)
    assert a.weight.tolist() == [1.5, 1.5] and a.running_mean.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("interval, changes", [(1, 4), (2, 2)])
def test_the_penalty_is_adapted_once_per_target(typed, interval, changes):
    """Any movement exceeds this target, so the weight grows. With the KL from before the step it would shrink."""
    whole = wiring(
        typed, f"algo.target_update_interval={interval}", "algo.kl_coef=0.2", "algo.kl_target=1e-12", "algo.lr=0.05"
    )
    made, sampler = whole.algorithm(), whole.sampler(0)
    sampler.publish(made.policy, Clock())
    batch = sampler.take(1)[0].batch
    for updates in range(4):
        made.update(batch, Clock(updates=updates))
    assert made.kl_coef.item() == pytest.approx(0.2 * 1.5**changes)
