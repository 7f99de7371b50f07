"""Checks PPO's losses by hand, its passes, and its KL penalty."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL
from wired import Wired

from rlrun.algos.ddppo import DDPPO
from rlrun.core.algorithm import LearnerContext
from rlrun.core.batch import Batch, stack_columns
from rlrun.core.errors import UserError
from rlrun.core.masked import masked_mean
from rlrun.core.schedule import Clock
from rlrun.machine.machine import Machine
from rlrun.ops.distributions import Categorical
from rlrun.ops.policy_loss import adapt_kl_coef_
from rlrun.policies import Outputs

FIT = ["algo.minibatch_size=10", "algo.sequence_length=5"]


def algorithm(typed, *words):
    return Wired(typed("algo=ppo", "env=CartPole-v1", *SMALL, *FIT, *words)).algorithm()


def rows(valid=(True, True, True)) -> Batch:
    """One sequence of three rows whose old policy gave every action 0.5."""
    column = lambda *x: torch.tensor(x)[None]  # noqa: E731  [1, 3]
    return Batch(
        action=column(0, 1, 0), valid=column(*valid), log_prob=column(*[math.log(0.5)] * 3), value=column(1.0, 2.0, 3.0),
        advantage=column(1.0, -1.0, 2.0), target=column(2.0, 2.0, 0.0), dist=Batch(log_probs=torch.full((1, 3, 2), math.log(0.5))),
    )  # fmt: skip


def with_outputs(made, probabilities, values):
    """Replaces the network by fixed outputs: probabilities of action 0, and values."""
    logits = torch.tensor([[[math.log(p), math.log(1 - p)] for p in probabilities]], requires_grad=True)
    value = torch.tensor([values], requires_grad=True)
    made.policy.unroll = lambda batch: Outputs(Categorical(logits), value)
    return logits, value


def test_losses_by_hand(typed):
    made = algorithm(typed, "algo.normalize_advantage=none", "algo.value_coef=0.25")
    with_outputs(made, [0.8, 0.2, 0.5], [1.5, 2.0, 1.0])
    loss, metrics = made.loss(rows(), 0.2, 0.1)
    ratio = [1.6, 1.6, 1.0]  # ratios of the actions taken
    # A bad action that became likelier is not clipped.
    policy = -(min(1.6 * 1, 1.2 * 1) + min(1.6 * -1, 1.2 * -1) + 2.0) / 3
    value = 0.5 * (0.25 + 0.0 + 1.0) / 3
    entropy = sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.8, 0.2, 0.5)) / 3
    assert metrics["policy_loss"].item() == pytest.approx(policy, rel=1e-5)
    assert metrics["value_loss"].item() == pytest.approx(value, rel=1e-5)
    assert loss.item() == pytest.approx(policy + 0.25 * value - 0.1 * entropy, rel=1e-5)
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    assert metrics["approx_kl"].item() == pytest.approx(sum(r - 1 - math.log(r) for r in ratio) / 3, rel=1e-4)


def test_value_clips_by_hand(typed):
    made = algorithm(typed, "algo.normalize_advantage=none", "algo.value_clip=0.1")
    with_outputs(made, [0.5] * 3, [1.5, 2.05, 1.0])
    # clipped values 1.1, 2.05, 2.9; the larger error of clipped and unclipped counts
    assert made.loss(rows(), 0.2, 0.0)[1]["value_loss"].item() == pytest.approx(
        0.5 * (0.9**2 + 0.05**2 + 2.9**2) / 3, rel=1e-5
    )
    made = algorithm(typed, "algo.normalize_advantage=none", "algo.value_loss_clip=0.2")
    with_outputs(made, [0.5] * 3, [1.5, 2.3, 1.0])
    assert made.loss(rows(), 0.2, 0.0)[1]["value_loss"].item() == pytest.approx(0.5 * (0.2 + 0.09 + 0.2) / 3, rel=1e-5)


def test_a_clipped_row_has_no_gradient_and_a_dead_one_neither(typed):
    made = algorithm(typed, "algo.normalize_advantage=none", "algo.value_coef=0")
    logits, _ = with_outputs(made, [0.8, 0.2, 0.5], [0.0, 0.0, 0.0])
    made.loss(rows(valid=(True, True, False)), 0.2, 0.0)[0].backward()
    assert logits.grad[0, 0].abs().max() == 0 and logits.grad[0, 2].abs().max() == 0
    assert logits.grad[0, 1].abs().max() > 0


@pytest.mark.parametrize("row", [0, 1])  # a good action and a bad one
def test_a_row_whose_ratio_would_be_infinite_spoils_no_gradient(typed, row):
    gradients = []
    for lowered in (50.0, 100.0, 1e6):
        made = algorithm(typed, "algo.normalize_advantage=none", "algo.value_coef=0")
        logits, _ = with_outputs(made, [0.8, 0.2, 0.5], [0.0, 0.0, 0.0])
        changed = rows()
        changed.log_prob[0, row] -= lowered
        loss, metrics = made.loss(changed, 0.2, 0.0)
        loss.backward()
        gradients.append(logits.grad)
        assert all(value.isfinite() for value in metrics.values())
    assert gradients[0].isfinite().all() and gradients[0][0, 2].abs().max() > 0
    assert gradients[0][0, row].abs().max() == 0
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


def test_advantages_are_normalised_over_live_rows(typed):
    made = algorithm(typed, "algo.normalize_advantage=minibatch", "algo.value_coef=0")
    with_outputs(made, [0.5] * 3, [0.0] * 3)
    changed = rows(valid=(True, True, False))
    loss = made.loss(changed, 0.2, 0.0)[0]
    assert loss.item() == pytest.approx(0.0, abs=1e-6)  # +1 and -1 at ratio 1
    with_outputs(made, [0.6, 0.5, 0.5], [0.0] * 3)
    assert made.loss(changed, 0.3, 0.0)[0].item() == pytest.approx(-(1.2 - 1.0) / 2, rel=1e-4)


def test_the_kl_penalty_is_the_exact_kl_and_adapts(typed):
    made = algorithm(
        typed, "algo.normalize_advantage=none", "algo.value_coef=0", "algo.kl_coef=0.4", "algo.kl_target=0.05"
    )
    with_outputs(made, [0.8, 0.2, 0.5], [0.0] * 3)
    loss, metrics = made.loss(rows(), 0.2, 0.0)
    kl = (2 * (0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)) + 0.0) / 3
    assert loss.item() == pytest.approx(metrics["policy_loss"].item() + 0.4 * kl, rel=1e-5)
    for measured, expected in ((0.11, 0.6), (0.06, 0.6), (0.02, 0.3)):
        adapt_kl_coef_(made.kl_coef, measured, 0.05)
        assert made.kl_coef.item() == pytest.approx(expected)
    assert "kl_coef" in made.state_dict()
    for measured in (0.0, 1.0, 0.0):  # long stretches of one kind leave a weight that can still change
        for _ in range(400):
            adapt_kl_coef_(made.kl_coef, measured, 0.05)
        assert made.kl_coef.item() == pytest.approx(1e10 if measured else 1e-10)
    adapt_kl_coef_(none := torch.zeros(()), 1.0, 0.05)
    assert none == 0.0


@pytest.mark.parametrize("kind", ["gaussian", "beta"])
def test_a_row_on_which_nobody_acted_has_no_part_in_the_gradient_of_the_penalty(typed, kind):
    """Its recorded numbers are zeros, of which a Beta distribution's KL has no gradient."""
    made, batch = collected(typed, "env=Pendulum-v1", f"model.action_distribution={kind}", "algo.kl_coef=0.2")
    batch.valid[2:4] = False
    for leaf in batch.dist.leaves():
        leaf[2:4] = 0.0
    with torch.no_grad():
        made.policy.action_head.linear.bias += 0.1
    new = made.policy.unroll(batch)[0][:-1]
    penalty = masked_mean(made._kl(batch, new), batch.valid)
    penalty.backward()
    gradients = [p.grad for p in made.policy.parameters() if p.grad is not None]
    assert float(penalty) > 0 and all(torch.isfinite(one).all() for one in gradients)
    assert any(one.abs().max() > 0 for one in gradients)


def collected(typed, *words):
    wiring = Wired(typed("algo=ppo", "env=CartPole-v1", *SMALL, *FIT, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    return made, sampler.take(1)[0].batch.clone()


def test_the_penalty_is_adapted_by_how_far_the_whole_update_moved(typed):
    """With one pass over one minibatch, every KL measured before a step would be 0."""
    words = ("algo.num_epochs=1", "algo.minibatch_size=20", "algo.kl_coef=0.2", "algo.lr=0.05", "algo.kl_target=1e-9")
    made, batch = collected(typed, *words)
    old = made.policy.unroll(batch)[0][:-1]
    metrics = made.update(batch, Clock()).metrics
    expected = masked_mean(old.kl(made.policy.unroll(batch)[0][:-1]), batch.valid)
    assert float(metrics["kl"]) == pytest.approx(float(expected), rel=1e-3) and float(expected) > 1e-6
    assert made.kl_coef.item() == pytest.approx(0.3)


def test_every_row_is_used_once_per_epoch(typed):
    made, batch = collected(typed, "algo.num_epochs=3")
    seen = []
    inner = made.loss

    def loss(rows, clip, entropy_coef):
        seen.append(rows.obs.observation.reshape(-1, 4).clone())
        return inner(rows, clip, entropy_coef)

    made.loss = loss
    metrics = made.update(batch, Clock()).metrics
    assert len(seen) == 6 and metrics["epochs"] == 3
    whole = {tuple(row) for row in batch.obs.observation[:5].reshape(-1, 4).tolist()}
    for epoch in range(3):
        assert {tuple(row) for part in seen[2 * epoch : 2 * epoch + 2] for row in part.tolist()} == whole
    assert not torch.equal(torch.cat(seen[:2]), torch.cat(seen[2:4])), "each pass has an order of its own"


def test_stop_kl_ends_the_passes(typed):
    made, batch = collected(typed, "algo.num_epochs=8", "algo.stop_kl=1e-9", "algo.lr=0.1")
    assert made.update(batch, Clock()).metrics["epochs"] < 8


def test_what_acted_has_ratio_one_and_its_own_values(typed):
    """Before any step the learner's policy is the sampler's: a wrong alignment or recurrent state would show here."""
    for model in (["model=auto"], ["model=lstm", "model.memory.size=4"], ["model=gtrxl", "model.memory.size=4"]):
        made, batch = collected(typed, *model)
        length = 5 if len(model) > 1 else 1
        part = batch.replace(advantage=torch.ones_like(batch.reward), target=batch.value).sequences(length)
        _, metrics = made.loss(part, 0.2, 0.0)
        assert metrics["approx_kl"].item() == pytest.approx(0.0, abs=1e-6) and metrics["clip_fraction"].item() == 0
        assert metrics["value_loss"].item() == pytest.approx(0.0, abs=1e-6)
        outputs = made.policy.unroll(batch)
        torch.testing.assert_close(made.policy.last_value(batch), outputs.value[-1].detach(), atol=1e-5, rtol=1e-5)


def test_sequences_cut_columns_and_keep_their_state():
    rows, columns = 6, 2
    number = torch.arange(rows * columns).view(rows, columns)
    more = torch.arange((rows + 1) * columns).view(rows + 1, columns)
    batch = Batch(
        reward=number,
        is_first=more,
        obs=Batch(observation=more),
        core=Batch(hidden=torch.arange(3 * columns).view(3, columns, 1)),
    )
    cut = batch.sequences(3)
    assert (
        cut.reward.shape == (3, 4)
        and cut.reward[:, 0].tolist() == [0, 2, 4]
        and cut.reward[:, 2].tolist() == [6, 8, 10]
    )
    assert torch.equal(cut.reward, cut.obs.observation) and cut.core.hidden.flatten().tolist() == [0, 1, 2, 3]
    flat = Batch({name: batch[name] for name in batch if name != "core"}).sequences(1)
    assert flat.reward.flatten().tolist() == list(range(12))


def test_normalized_values_are_trained_in_their_own_units_and_read_in_those_of_returns(typed):
    """With lr 0, the first advantages are the same as without, and errors are in standard deviations of the return.

    The correction of the head leaves the values unchanged in units of returns."""
    plain, batch = collected(typed, "algo.lr=0", "algo.num_epochs=1")
    scaled, same = collected(typed, "algo.lr=0", "algo.num_epochs=1", "algo.normalize_value=true")
    torch.testing.assert_close(batch.value, same.value)
    of_plain = plain.update(batch, Clock()).metrics
    of_scaled = scaled.update(same, Clock()).metrics
    scale = scaled.value_scale
    assert scale.deviation > 1.0
    for name in ("policy_loss", "explained_variance"):
        torch.testing.assert_close(of_scaled[name], of_plain[name])
    torch.testing.assert_close(
        of_scaled["value_loss"].double(), of_plain["value_loss"] / scale.deviation**2, rtol=1e-3, atol=0
    )
    with torch.no_grad():
        torch.testing.assert_close(
            scale.denormalize(scaled.policy.unroll(same).value), plain.policy.unroll(batch).value, rtol=1e-3, atol=1e-3
        )
    fresh = algorithm(typed, "algo.normalize_value=true")
    fresh.load_state(scaled.state())
    assert fresh.value_scale.count == batch.valid.sum()


def test_lr_follows_the_kl_within_its_bounds(typed):
    # The KL is always far below this target.
    made, batch = collected(
        typed, "algo.lr=1e-5", "algo.lr_kl_target=1e3", "algo.num_epochs=1", "algo.lr_kl_bounds=[1e-6, 2e-5]"
    )
    assert float(made.update(batch, Clock()).metrics["lr"]) == pytest.approx((1e-5 + 1.5e-5) / 2)
    assert float(made.update(batch, Clock()).metrics["lr"]) == pytest.approx(2e-5)
    fresh = algorithm(typed, "algo.lr=1e-5", "algo.lr_kl_target=1e3")
    fresh.load_state(made.state())
    assert fresh.optimizer.lr_scale == pytest.approx(2.0)
    made.optimizer.follow_kl(Clock(), 0.021, 0.01, (1e-6, 1.0))
    assert made.optimizer.lr_scale == pytest.approx(2.0 / 1.5)
    made.optimizer.follow_kl(Clock(), 0.01, 0.01, (1e-6, 1.0))
    assert made.optimizer.lr_scale == pytest.approx(2.0 / 1.5)


def test_without_a_critic_advantages_are_discounted_rewards_to_go(typed):
    """By brute force on rows that were sampled, in which some die and some terminate."""
    words = ["algo.use_critic=false", "algo.lambda_=0.3", "algo.discount=0.5", "algo.num_epochs=1"]
    wiring = Wired(typed("algo=ppo", "env=CartPole-v1", *SMALL, *FIT, *words, "algo.normalize_advantage=none"))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    assert wiring.needs.record == ("log_prob",)
    sampler.publish(made.policy, Clock())
    batch = stack_columns([fragment.batch for fragment in sampler.take(4 // sampler.columns)]).clone()
    valid, terminated = torch.ones_like(batch.valid), torch.zeros_like(batch.terminated)
    valid[3, 1], terminated[2, 1], valid[2, 2] = False, True, False
    reward = torch.arange(20.0).view(5, 4).exp2() % 7
    batch = batch.replace(valid=valid, terminated=terminated, reward=reward)
    seen, loss = [], made.loss
    made.loss = lambda rows, *more: seen.append(rows) or loss(rows, *more)
    before = {name: parameter.clone() for name, parameter in made.policy.named_parameters()}
    metrics = made.update(batch, Clock()).metrics
    expected = torch.zeros(5, 4)
    for t, b in valid.nonzero().tolist():
        ahead = t
        while ahead < 5 and valid[ahead, b]:
            expected[t, b] += 0.5 ** (ahead - t) * reward[ahead, b]
            ahead = 5 if terminated[ahead, b] else ahead + 1
    got = torch.cat([part.advantage[part.valid] for part in seen])
    assert sorted(got.tolist()) == pytest.approx(sorted(expected[valid].tolist()))
    assert not {"value_loss", "explained_variance"} & metrics.keys()
    for name, parameter in made.policy.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("value"), name


def test_what_is_about_values_needs_a_critic(typed):
    with pytest.raises(UserError, match="value_clip is about values"):
        algorithm(typed, "algo.use_critic=false", "algo.value_clip=0.1")


@pytest.mark.parametrize("memory", [[], ["model/memory=lstm", "model.memory.size=4"]], ids=["plain", "lstm"])
@pytest.mark.parametrize("cores, rows, batch, minibatch, wanted", [
    (6, 100, 9600, 100, 4),  # of 96 columns; 100 rows fill no whole number of sequences
    (16, 96, 1536, 8, 8),  # less than a sequence
    (16, 96, 1536, 64, 4),  # 4 sequences
    (8, 96, 1536, 192, 4),  # 12 sequences
])  # fmt: skip
def test_as_many_processes_as_ddppo_takes(typed, cores, rows, batch, minibatch, wanted, memory):
    """num_learners=auto is a number that DD-PPO itself accepts, if it accepts any."""
    sizes = [f"algo.fragment_length={rows}", f"algo.batch_size={batch}", f"algo.minibatch_size={minibatch}"]
    config = typed("algo=ddppo", "env=CartPole-v1", "logger=[]", "model.hidden=[8]", *sizes, *memory)
    if memory and minibatch % 16:
        with pytest.raises(UserError, match="must be a multiple of sequence_length 16"):
            Wired(config, Machine(cores=1)).algorithm()
        return
    wiring = Wired(config, Machine(cores=cores))
    assert wiring.plan.resources.num_learners == wanted
    ranks = SimpleNamespace(world=wanted, rank=0)
    ctx = LearnerContext(torch.device("cpu"), torch.Generator(), ranks=ranks)
    policy = wiring.plan.policy_factory(acting=False)()
    DDPPO(policy, wiring.plan.spec, config.algo, ctx)
