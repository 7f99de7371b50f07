"""Checks IMPACT's surrogate by hand, and its target policy."""

import dataclasses
import math

import pytest
import torch
from conftest import SMALL
from test_impala import value_losses
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.follower import Follower
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
    policy_loss, value_loss, metrics = made.loss(batch, 0.2, 0.1)
    loss = policy_loss + 0.25 * value_loss
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
    # The penalty is KL(target || current), and what adapts its weight is the same over the live rows alone.
    made.cfg = dataclasses.replace(made.cfg, kl_coef=0.3)
    made.kl_coef.fill_(0.3)
    kl = [t * math.log(t / n) + (1 - t) * math.log((1 - t) / (1 - n)) for t, n in zip(target, now, strict=True)]
    penalised, _, metrics = made.loss(batch, 0.2, 0.1)
    assert (penalised - policy_loss).item() == pytest.approx(0.3 * sum(kl[:3]) / 3, rel=1e-4)
    assert metrics["kl"].item() == pytest.approx(sum(kl[:3]) / 3, rel=1e-4)
    short = batch.replace(valid=column(True, False, False))
    assert made.moved(short).item() == pytest.approx(kl[0], rel=1e-4)


@pytest.mark.parametrize("traced", [True, False])
def test_a_row_whose_ratio_would_be_infinite_spoils_no_gradient(typed, traced):
    """The ratio is pi / pi_target, however small pi_worker was. It is infinite where pi_target is tiny too."""
    made = wiring(typed, f"algo.vtrace={str(traced).lower()}").algorithm()
    column = lambda *x: torch.tensor(x)[:, None]  # noqa: E731
    gradients = []
    for worker, target in ((30.0, 0.0), (50.0, 0.0), (100.0, 0.0), (50.0, 50.0), (100.0, 100.0)):
        now, old = outputs([0.75, 0.4, 0.5, 0.5], [0.0] * 4), outputs([0.6, 0.3, 0.5, 0.5], [1.0] * 4)
        old.dist.log_probs[1, 0, 0] -= target
        made.policy.unroll, made.target.unroll = lambda _, now=now: now, lambda _, old=old: old
        log_prob = column(*[math.log(0.5)] * 3)
        log_prob[1] -= worker
        batch = Batch(
            action=column(0, 0, 0), reward=column(1.0, 2.0, 3.0), terminated=column(False, False, False), valid=column(True, True, True),
            log_prob=log_prob,
        )  # fmt: skip
        loss, _, metrics = made.loss(batch, 10.0, 0.0)
        gradients.append(torch.autograd.grad(loss, now.dist.log_probs)[0][:3, 0, 0])
        assert gradients[-1].isfinite().all() and all(value.isfinite() for value in metrics.values())
    assert gradients[0].abs().min() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=0.0)
    assert torch.equal(gradients[1], gradients[2]) and torch.equal(gradients[3], gradients[4])
    assert gradients[3][1] == 0


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


def test_without_a_critic_advantages_are_discounted_rewards_to_go(typed):
    """By brute force, over an episode that ends, one that is cut off, and the fragment's end."""
    words = ["algo.vtrace=false", "algo.use_critic=false", "algo.discount=0.5", "algo.lambda_=0.3"]
    made = wiring(typed, *words).algorithm()
    made.policy.unroll = lambda batch: outputs(now, [9.0] * 7)
    made.target.unroll = lambda batch: outputs([0.5] * 7, [7.0] * 7)
    now, reward = [0.6, 0.5, 0.7, 0.5, 0.4, 0.5, 0.5], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    terminated, valid = [False, True, False, False, False, False], [True, True, True, False, True, True]
    column = lambda x: torch.tensor(x)[:, None]  # noqa: E731
    batch = Batch(
        action=column([0] * 6), reward=column(reward), terminated=column(terminated), valid=column(valid),
        log_prob=column([math.log(0.5)] * 6),
    )  # fmt: skip
    policy_loss, value_loss, metrics = made.loss(batch, 10.0, 0.0)
    to_go = [1 + 0.5 * 2, 2.0, 4.0, None, 16 + 0.5 * 32, 32.0]
    ratios = [p / 0.5 for p in now[:6]]
    expected = -sum(r * a for r, a in zip(ratios, to_go, strict=True) if a is not None) / 5
    assert policy_loss.item() == pytest.approx(expected, rel=1e-5)
    assert value_loss == 0 and not {"value_loss", "explained_variance"} & metrics.keys()


def test_a_value_of_its_own_has_an_optimiser_of_its_own(typed):
    """Two optimisers make the steps of one, if both have its lr and no bound makes their gradients depend on each other."""
    made, other = (
        wiring(typed, "model.share_value=false", "algo.max_grad_norm=0", "algo.lr=0.01", f"algo.value_lr={lr}")
        for lr in ("0.01", "null")
    )
    (two, sampler), one = (made.algorithm(), made.sampler(0)), other.algorithm()
    value = {id(p) for p in two.policy.value_parameters()}
    assert {id(p) for p in two.value_optimizer.parameters} == value
    assert {id(p) for p in two.optimizer.parameters} == {id(p) for p in two.policy.parameters()} - value
    sampler.publish(two.policy, Clock())
    batch = sampler.take(1)[0].batch
    given = value_losses(two)
    metrics = two.update(batch, Clock()).metrics
    assert given == [pytest.approx(two.cfg.value_coef * float(metrics["value_loss"]), rel=1e-5)]
    one.update(batch, Clock())
    assert {"grad_norm", "lr", "value_grad_norm", "value_lr"} <= metrics.keys()
    for a, b in zip(one.policy.parameters(), two.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    slow = wiring(typed, "model.share_value=false", "algo.value_lr=0").algorithm()
    before = [p.clone() for p in slow.policy.value_parameters()]
    slow.update(batch, Clock())
    assert all(torch.equal(a, b) for a, b in zip(before, slow.policy.value_parameters(), strict=True))


@pytest.mark.parametrize("words, said", [
    (["algo.use_critic=false"], "goes with vtrace=false"),
    (["algo.use_critic=false", "algo.vtrace=false", "algo.value_lr=0.1"], "value_lr is for values"),
])  # fmt: skip
def test_what_is_about_values_needs_a_critic(typed, words, said):
    with pytest.raises(UserError, match=said):
        wiring(typed, *words)
