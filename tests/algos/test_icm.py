"""Checks ICM: rewards and losses by hand, the inner algorithm's input, and which parameters each loss reaches."""

import dataclasses

import pytest
import torch
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.families.intrinsic import column_parts

WORDS = ["algo=icm", "env=rlrun/Identity-v0", "resources=debug", "logger=[]", "model.hidden=[8]", "algo.inner.fragment_length=5", "algo.inner.batch_size=20",
         "algo.inner.minibatch_size=20", "algo.feature_size=6", "algo.forward_hidden=[7]", "algo.inverse_hidden=[9]"]  # fmt: skip


def wired(typed, *words):
    wiring = Wired(typed(*WORDS, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    return made, sampler.take(1)[0].batch.clone()


def by_hand(made, batch: Batch, t: int, b: int) -> tuple[float, float]:
    """Returns half the squared error of the next features and -log p(action), computed one row at a time."""
    phi, after = (made.model.features[1](batch.obs.observation[row, b]) for row in (t, t + 1))
    action = batch.action[t, b]
    predicted = made.model.forward_net(torch.cat([phi, torch.eye(4)[action]]))
    logits = made.model.inverse_head.linear(made.model.inverse_net(torch.cat([phi, after])))
    return 0.5 * float((predicted - after).square().sum()), -float(logits.log_softmax(-1)[action])


def test_losses_of_every_row_are_those_of_the_paper(typed):
    made, batch = wired(typed)
    forward, inverse = made.model(batch)
    for t in range(5):
        for b in range(4):
            expected = by_hand(made, batch, t, b)
            assert (float(forward[t, b]), float(inverse[t, b])) == pytest.approx(expected, rel=1e-4)
    valid = batch.valid.clone()
    valid[3, 1] = False
    loss, metrics = made.loss(batch.replace(valid=valid))
    means = forward[valid].mean(), inverse[valid].mean()
    assert float(loss) == pytest.approx(0.8 * float(means[1]) + 0.2 * float(means[0]), rel=1e-5)
    assert float(metrics["forward_loss"]) == pytest.approx(float(means[0]), rel=1e-5)


def test_the_forward_model_is_given_executed_actions_and_the_inverse_model_predicts_drawn_ones(typed):
    """PPO's Gaussian draws numbers beyond the bounds, which the environment clips."""
    made, batch = wired(typed, "env=Pendulum-v1")
    drawn = batch.replace(action=batch.action * 3)
    clipped = drawn.replace(action=drawn.action.clamp(-1, 1))
    beyond = (drawn.action != clipped.action).squeeze(-1)
    (forward, inverse), (expected, other) = made.model(drawn), made.model(clipped)
    assert torch.equal(forward, expected) and beyond.any()
    assert (inverse != other)[beyond].all(), "the density is that of what was drawn"


def test_the_inner_algorithm_learns_from_both_rewards(typed):
    """They are the environment's, bounded by reward_clip, plus eta / 2 times the squared error before learning."""
    made, batch = wired(typed, "algo.eta=[[0,3.0],[100,1.0]]", "algo.inner.reward_clip=0.5")
    valid = batch.valid.clone()
    valid[2, 0] = False
    batch = batch.replace(valid=valid, reward=torch.where(valid, batch.reward * 4, torch.nan))
    before = made.model(batch)[0].detach()
    given = []
    inner = made.inner.update
    made.inner.update = lambda batch, clock: given.append(batch) or inner(batch, clock)
    metrics = made.update(batch, Clock(50, 1)).metrics
    expected = batch.reward.clamp(-0.5, 0.5) + 2.0 * before
    torch.testing.assert_close(given[0].reward[valid], expected[valid])
    assert float(metrics["intrinsic_reward"]) == pytest.approx(2.0 * float(before[valid].mean()), rel=1e-5)
    assert made.inner.cfg.reward_clip == "none", "or the sum would be clipped again"
    assert not torch.allclose(made.model(batch)[0], before), "the nets have learnt"


def test_each_loss_reaches_its_parameters(typed):
    made, batch = wired(typed)
    for beta, untouched in ((1.0, "inverse"), (0.0, "forward_net")):
        made.cfg = dataclasses.replace(made.cfg, beta=beta)
        made.zero_grad()
        made.loss(batch)[0].backward()
        still = {name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()}
        assert all(name.startswith(("policy.", "inner.", f"model.{untouched}")) for name in still)
        assert any(name.startswith(f"model.{untouched}") for name in still) and not any(
            "features" in name for name in still
        )
    frozen = [p.clone() for p in made.model.parameters()]
    made.inner.update(batch, Clock())
    assert all(torch.equal(a, b) for a, b in zip(frozen, made.model.parameters(), strict=True)), (
        "the policy's loss does not reach the nets"
    )


def test_minibatches_share_the_columns(typed):
    made, batch = wired(typed, "algo.num_minibatches=3")
    parts = column_parts(batch, 3, made.ctx.rng)
    assert [part.reward.shape[1] for part in parts] == [2, 1, 1]
    seen = torch.cat([part.log_prob for part in parts], 1)
    assert sorted(map(tuple, seen.T.tolist())) == sorted(map(tuple, batch.log_prob.T.tolist()))


@pytest.mark.parametrize("inner", ["a2c", "impala", "pg"])
def test_any_algorithm_can_be_inside(typed, inner):
    words = [word for word in WORDS if "minibatch_size" not in word]
    wiring = Wired(typed(*words, f"algo@algo.inner={inner}"))
    assert type(wiring.algorithm().inner).__module__ == f"rlrun.algos.{inner}"
    assert wiring.config.runner.name == ("actor_learner" if inner == "impala" else "on_policy")


def test_sentences(typed):
    with pytest.raises(UserError, match="weight that with eta"):
        Wired(typed(*WORDS, "algo.inner.normalize_reward=true")).algorithm()
    with pytest.raises(UserError, match=r"algo\.inner\.minibatch_sizee.*Did you mean algo.inner.minibatch_size"):
        typed(*WORDS, "++algo.inner.minibatch_sizee=3")
    with pytest.raises(UserError, match="more than the 4 columns"):
        Wired(typed(*WORDS, "algo.num_minibatches=5")).algorithm()
    with pytest.raises(UserError, match="beta must be between 0 and 1"):
        typed(*WORDS, "algo.beta=2")
