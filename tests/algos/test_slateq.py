"""SlateQ: its loss and its targets by hand, and what it is where slates are trivial."""

import pytest
import torch
from test_all import batches, start

from rlrun.algos.slateq import end_row, first_row
from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.ops.returns import fold_n_step
from rlrun.policies.slates import Pairs

EVOLUTION = ["env=rlrun/InterestEvolution-v0"]


def made_and_batch(typed, *words, env=EVOLUTION):
    wiring, made, sampler = start(typed, "slateq", *env, *words)
    noise = torch.Generator().manual_seed(0)
    for parameter in (*made.policy.parameters(), *made.target.parameters()):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=noise)
    return made, batches(wiring, sampler, 1)[0]


def by_hand(made, batch, b, rows):
    """(clicked item or None, target) of column b, written slowly."""
    cfg, policy = made.cfg, made.policy
    places = policy.display.size
    reward, follows, end = 0.0, 1.0, rows
    for t in range(rows):
        if not batch.valid[t, b]:
            end = t
            break
        reward += follows * float(batch.reward[t, b])
        follows *= cfg.discount
        if batch.terminated[t, b]:
            follows, end = 0.0, t + 1
            break
    state = Batch(obs=batch["obs"], is_first=batch["is_first"]).map(lambda x: x[end : end + 1, b : b + 1])
    logits = policy.choice_net(state["obs"], state["is_first"])[0, 0]
    values = made.target.values(state)[0, 0]
    online = policy.values(state)[0, 0]
    best, worth = None, None
    chooser = online if cfg.double else values
    candidates = policy.display.count
    for first in range(candidates):
        for second in range(candidates):
            if first == second:
                continue
            both = [*logits[[first, second]], logits[-1]]
            p = torch.stack(both).softmax(0)

            def of(q, p=p, first=first, second=second):
                return p[0] * q[first] + p[1] * q[second] + p[2] * (q[-1] if cfg.null_value else 0.0)

            if best is None or of(chooser) > best:
                best, worth = of(chooser), of(values)
    click = int(batch["obs"]["observation"]["click"][1, b])
    item = None if click == places else int(batch.action[0, b, click])
    return item, reward + follows * float(worth.detach())


@pytest.mark.parametrize("words", [[], ["algo.null_value=false"], ["algo.double=true", "algo.n_step=1"]])
def test_the_loss_is_about_what_was_chosen_and_the_best_next_slate(typed, words):
    made, batch = made_and_batch(typed, *words)
    click = batch["obs"]["observation"]["click"][1]
    loss, priority, shares = made.loss(batch, click)
    values = made.policy.values(first_row(batch))[0]
    errors, chosen, sizes = [], 0, []
    for b in range(len(click)):
        item, target = by_hand(made, batch, b, made.cfg.n_step)
        chosen += item is not None
        if item is None and not made.cfg.null_value:
            assert priority[b] == priority[click == made.policy.display.size].max(), "as often as the others"
            continue
        error = target - float(values[b, -1 if item is None else item].detach())
        assert float(priority[b]) == pytest.approx(abs(error), rel=1e-3, abs=1e-4)
        errors.append(0.5 * error**2 * float(batch.weight[b]))
        sizes.append(abs(error))
    assert float(priority.mean()) == pytest.approx(sum(sizes) / len(sizes), rel=1e-3)
    assert 0 < chosen < len(click), "both cases are tried"
    assert float(loss) == pytest.approx(sum(errors) / len(errors), rel=1e-3)
    assert float(shares["chosen"]) == pytest.approx(chosen / len(click))
    _, priority, _ = made.loss(batch, torch.full_like(click, made.policy.display.size))
    assert priority.min() > 0, "rows without a choice are drawn again, even if no other row was drawn with them"


def test_the_model_of_choices_learns_by_what_was_chosen(typed):
    made, batch = made_and_batch(typed, "algo.place_factors=true")
    batch = batch.replace(weight=torch.linspace(0.1, 1.0, batch.reward.shape[1]))  # as a prioritized replay gives it
    click = batch["obs"]["observation"]["click"][1]
    logits = made.policy.choice_net(batch["obs"][:1], batch["is_first"][:1])[0]
    factor = made.policy.place_logits
    total = 0.0
    for b, slate in enumerate(batch.action[0].tolist()):
        shown = torch.stack([logits[b, slate[0]], logits[b, slate[1]] + factor[0], logits[b, -1]])
        total -= float(batch.weight[b] * shown.log_softmax(0)[click[b]])
    assert float(made.choice_loss(batch, click)) == pytest.approx(total / len(click), rel=1e-4)


def test_with_slates_of_one_that_are_always_chosen_it_is_dqn_on_documents(typed):
    """Known answer 29: without a chance of choosing nothing, targets are r + discount * max_i Qbar(s', i)."""
    env = ["env=rlrun/LongTermSatisfaction-v0", "++env.kwargs.slate_size=1", "++env.kwargs.num_candidates=6"]
    made, batch = made_and_batch(typed, "algo.n_step=1", env=env)
    bias = torch.zeros(7)
    bias[-1] = -1e4  # of choosing nothing

    class Certain(torch.nn.Module):
        def forward(self, obs, is_first):
            return bias.expand(*is_first.shape, 7)

    made.policy.choice_net = Certain()
    click = batch["obs"]["observation"]["click"][1]
    assert (click == 0).all()
    reward, discount = fold_n_step(batch.reward, batch.terminated, batch.valid, made.cfg.discount)
    best = made.target.values(end_row(batch, 1))[0, :, :-1].max(-1).values
    torch.testing.assert_close(made.targets(batch), reward + discount * best)
    loss, _, _ = made.loss(batch, click)
    q = made.policy.values(first_row(batch))[0].gather(1, batch.action[0]).squeeze(1)
    torch.testing.assert_close(loss, (0.5 * (reward + discount * best - q).square() * batch.weight).mean())


def test_sarsa_takes_the_slate_that_was_shown_and_behind_an_end_the_best(typed):
    made, batch = made_and_batch(typed, "algo.train_slates=taken", "algo.n_step=2", "algo.fragment_length=4")
    assert len(batch.reward) == 3 and made.needs(made.cfg).rows == 3
    batch = batch.replace(terminated=torch.zeros_like(batch.terminated), valid=torch.ones_like(batch.valid))
    cut = batch.valid.clone()
    cut[2, 0] = False  # truncated: the row behind is dead
    batch = batch.replace(valid=cut)
    end = Batch(obs=batch["obs"][2:3], is_first=batch["is_first"][2:3])
    pairs = made.policy.pairs(end, made.target.values(end))
    reward = batch.reward[0] + made.cfg.discount * batch.reward[1]
    wanted = reward + made.cfg.discount**2 * pairs.worth(batch.action[2:3])[0]
    best = reward + made.cfg.discount**2 * pairs.worth(pairs.best("optimal"))[0]
    torch.testing.assert_close(made.targets(batch)[1:], wanted[1:])
    torch.testing.assert_close(made.targets(batch)[0], best[0])


def test_a_slate_without_a_far_more_attractive_document_has_a_value(typed):
    """As where documents have large numbers. exp() of the difference is 0 in single precision."""
    made, batch = made_and_batch(typed)
    logits = torch.full((made.policy.display.count + 1,), -200.0)
    logits[0] = 0.0
    made.policy.choice_net.forward = lambda obs, is_first: logits.expand(*is_first.shape, -1)
    values = torch.cat([torch.tensor([-1.0]), torch.arange(1.0, len(logits))]).expand(1, batch.reward.shape[1], -1)
    pairs = made.policy.pairs(first_row(batch), values)
    slate = pairs.best("optimal")
    size, best = slate.shape[-1], made.policy.display.count
    null = best if made.policy.null_value else 0
    assert (slate.sort(-1).values == torch.arange(best - size, best)).all()
    want = (sum(range(best - size, best)) + null) / (size + 1)
    torch.testing.assert_close(pairs.worth(slate), torch.full_like(pairs.worth(slate), want))


def test_gains_are_derivatives_of_the_slates_value_by_the_factor_of_a_further_place():
    random = torch.Generator().manual_seed(0)
    weight, value = torch.rand(6, generator=random), torch.randn(6, generator=random)
    nothing, null, places = torch.tensor(0.4), torch.tensor(0.7), torch.tensor([1.0, 0.5])
    slate = torch.tensor([4, 1])
    gains = Pairs(weight, nothing, value, null, places).gains(slate)
    for further in range(6):
        factor = torch.zeros((), requires_grad=True)
        v = torch.cat([weight[slate] * places, (factor * weight[further]).unsqueeze(0)])
        worth = (nothing * null + (v * value[[4, 1, further]]).sum()) / (nothing + v.sum())
        torch.testing.assert_close(gains[further], torch.autograd.grad(worth, factor)[0])


def test_exploring_draws_different_documents_and_records_their_chances(typed):
    for words in (["algo.exploration.kind=soft_q", "algo.exploration.epsilon=0.2"], ["algo.exploration.epsilon=0.5"]):
        _, made, sampler = start(typed, "slateq", *EVOLUTION, *words, also=("log_prob",))
        (fragment,) = sampler.take(1)
        batch = fragment.batch.clone()
        assert (batch.action[..., 0] != batch.action[..., 1]).all()
        told = made.policy.log_prob(batch, "explore", Clock())
        torch.testing.assert_close(told, batch.log_prob, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_ten_candidates_beat_the_myopic_choice(tmp_path):
    import json

    from rlrun.cli import _dispatch

    run = tmp_path / "run"
    words = ["seed=1", "env_steps=40000", "algo.lr=1e-3", "logger=[]", "eval.every=40000", "eval.episodes=200"]
    assert _dispatch(["train", "tuned=slateq/interest_evolution", *words, f"run_dir={run}"]) == 0
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    assert max(row["eval/return_mean"] for row in rows if row.get("eval/return_mean")) > 165.8 + 3 * 26 / 200**0.5
