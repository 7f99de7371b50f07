"""Checks CRR: losses by hand for continuous and discrete actions, and what its options must agree with."""

import math

import pytest
import torch
from test_actor_critics import Losses, folded, manual_critic, rows, transitions
from test_offline import CLOCK, NETS, STILL, algorithm, gradients

from rlrun.core.algorithm import LearnerContext
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock

WORDS = [*NETS, *STILL, "algo.discount=0.5", "algo.temperature=0.05", "algo.weight_clip=1.1"]


def q_by_hand(critic, now, action, member):
    """A critic's value [N] of actions [N, 1] that are numbers, or [N] that are choices."""
    if action.dtype == torch.long:
        return manual_critic(critic, now, member)[torch.arange(len(now)), action]
    return manual_critic(critic, torch.cat([now, action], -1), member)[:, 0]


def least(critic, now, action):
    return torch.minimum(*(q_by_hand(critic, now, action, member) for member in range(2)))


@pytest.mark.parametrize("weight", ["exp", "binary"])
@pytest.mark.parametrize("advantage", ["mean", "max"])
def test_crr_of_numbers_by_hand(monkeypatch, weight, advantage):
    made = algorithm("crr", *WORDS, f"algo.weight={weight}", f"algo.advantage={advantage}", "algo.num_actions=3")
    batch, losses = transitions(width=3, discrete=False), Losses(monkeypatch)
    now, then = batch.obs.observation
    drawn, draw = [], LearnerContext.rsample
    monkeypatch.setattr(LearnerContext, "rsample", lambda *given: drawn.append(draw(*given)) or drawn[-1])
    update = made.update(batch, CLOCK)
    assert [one for one, _ in losses.seen] == [made.critic_optimizer, made.actor_optimizer]
    (following, _), (own, _) = drawn
    with torch.no_grad():
        target = folded(least(made.target_critic, then, following), 1)
        errors = sum(0.5 * (target - q_by_hand(made.critic, now, batch.action[0], member)) ** 2 for member in range(2))
        others = torch.stack([least(made.critic, now, own.view(3, 3, 1)[:, k]) for k in range(3)], -1)  # [N, K]
        value = others.mean(-1) if advantage == "mean" else others.max(-1).values
        gain = (least(made.critic, now, batch.action[0]) - value).tolist()
        counts = torch.tensor([min(math.exp(a / 0.05), 1.1) if weight == "exp" else float(a > 0) for a in gain])
        clone = made.policy.net.of(rows(batch, 0)).log_prob(batch.action[0])
    assert weight == "binary" or counts.min() < 1.1 <= counts.max() + 1e-6
    (_, critic_loss), (_, actor_loss) = losses.seen
    torch.testing.assert_close(critic_loss, (batch.weight * errors).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actor_loss, -(batch.weight * counts * clone).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(update.metrics["weight"], counts.mean())


def test_crr_of_choices_by_hand(monkeypatch):
    made = algorithm("crr", *WORDS, "algo.advantage=expectation", env="CartPole-v1")
    batch, losses = transitions(width=4, discrete=True), Losses(monkeypatch)
    now, then = batch.obs.observation
    made.update(batch, CLOCK)

    def expected(net, critic, seen, observation):
        chances = net.of(seen).log_probs.exp()
        every = torch.stack([least(critic, observation, torch.full((3,), action)) for action in range(2)], -1)
        return (chances * every).sum(-1)

    with torch.no_grad():
        target = folded(expected(made.target_actor, made.target_critic, rows(batch, 1), then), 1)
        errors = sum(0.5 * (target - q_by_hand(made.critic, now, batch.action[0], member)) ** 2 for member in range(2))
        gain = least(made.critic, now, batch.action[0]) - expected(made.policy.net, made.critic, rows(batch, 0), now)
        counts = torch.tensor([min(math.exp(a / 0.05), 1.1) for a in gain.tolist()])
        clone = made.policy.net.of(rows(batch, 0)).log_prob(batch.action[0])
    (_, critic_loss), (_, actor_loss) = losses.seen
    torch.testing.assert_close(critic_loss, (batch.weight * errors).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actor_loss, -(batch.weight * counts * clone).mean(), rtol=1e-4, atol=1e-5)


def test_choices_are_drawn_by_their_probabilities():
    made = algorithm("crr", *NETS, env="CartPole-v1")
    logits = torch.tensor([[0.2, 0.0, 0.5, 0.3], [0.0, 1.0, 0.0, 0.0]]).log()
    drawn = made.choices(type(made.policy.net.of(rows(transitions(width=4, discrete=True), 0)))(logits), 20_000)
    shares = torch.stack([(drawn == action).float().mean(1) for action in range(4)], 1)
    torch.testing.assert_close(shares, logits.exp(), rtol=0, atol=0.015)
    assert (shares[logits.isinf()] == 0).all()


def test_where_every_weight_is_1_the_actor_is_that_of_behaviour_cloning(monkeypatch):
    made = algorithm("crr", *NETS, "algo.temperature=1e9")
    batch, losses = transitions(width=3, discrete=False), Losses(monkeypatch)
    made.update(batch.replace(weight=torch.ones(3)), CLOCK)
    clone = -made.policy.net.of(rows(batch, 0)).log_prob(batch.action[0]).mean()
    torch.testing.assert_close(losses.seen[1][1], clone, rtol=1e-4, atol=1e-5)
    assert all(gradient is not None for gradient in gradients(made, clone, made.policy.net.parameters()))


def test_targets_follow_actor_and_critic():
    made = algorithm("crr", *NETS, "algo.target_tau=0.25")
    batch = transitions(width=3, discrete=False)
    for net, target in ((made.policy.net, made.target_actor), (made.critic, made.target_critic)):
        before = [p.clone() for p in target.parameters()]
        made.update(batch, Clock(0, 3))
        for new, old, leader in zip(target.parameters(), before, net.parameters(), strict=True):
            torch.testing.assert_close(new, old + 0.25 * (leader - old))


def test_an_expectation_needs_discrete_actions():
    with pytest.raises(UserError, match="expectation is for discrete actions"):
        algorithm("crr", *NETS, "algo.advantage=expectation")
