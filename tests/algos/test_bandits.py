"""LinUCB, LinTS and NeuralLinear: the regression in closed form, draws, and what they reach in small worlds."""

import dataclasses
import json
import re

import pytest
import torch
from conftest import small
from test_all import batches, start
from wired import Wired

from rlrun.algos.neural_linear import PullMemory
from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.schedule import Clock
from rlrun.core.specs import MultiBinary
from rlrun.families.bandits import pulls_of
from rlrun.ops.ridge import solve
from rlrun.policies.bandits import arms_of
from rlrun.runtime.rundir import checkpoints_of

ITEMS = ["env=rlrun/ParametricItems-v0", "algo.items=items"]
SLATES = ["env=rlrun/InterestEvolution-v0", "algo.items=candidates", "algo.click=click"]


def closed_form(x, y, ridge):
    gram = x.double().T @ x.double() + ridge * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.double().T @ y.double()), torch.linalg.inv(gram)


@pytest.mark.parametrize("algo", ["lin_ucb", "lin_ts"])
@pytest.mark.parametrize("words", [["env=rlrun/LinearBandit-v0"], [*ITEMS, "algo.intercept=false"], [*ITEMS, "algo.products=true", "++env.kwargs.num_users=3"]], ids=["arms", "items", "products"])  # fmt: skip
def test_after_any_rows_the_policy_holds_the_ridge_in_closed_form(typed, algo, words):
    """Known answer 32."""
    wiring, made, sampler = start(typed, algo, *words, "algo.ridge=0.5")
    data = batches(wiring, sampler, 3)
    for number, batch in enumerate(data):
        made.update(batch, Clock(0, number))
    rows = [pulls_of(made.policy, batch, None) for batch in data]
    x, y, arm, valid = (torch.cat([getattr(one, name) for one in rows]) for name in ("x", "y", "arm", "valid"))
    for k in range(len(made.policy.mean)):
        mine = valid & (arm == k)
        theta, covariance = closed_form(x[mine], y[mine], 0.5)
        torch.testing.assert_close(made.policy.mean[k].double(), theta, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            (made.policy.root[k] @ made.policy.root[k].T).double(), covariance, rtol=1e-4, atol=1e-4
        )
    if "algo.products=true" in words:
        assert made.policy.features.size == 16 + 16 * 3 + 1


def test_the_items_features_and_rewards_are_those_of_the_arm_taken(typed):
    wiring, made, sampler = start(typed, "lin_ucb", *ITEMS, "algo.intercept=false")
    (batch,) = batches(wiring, sampler, 1)
    pulls = pulls_of(made.policy, batch, None)
    rows = len(batch.reward)
    for b in range(batch.reward.shape[1]):
        for t in range(rows):
            item = batch["obs"]["observation"]["items"][t, b, batch.action[t, b]]
            assert torch.equal(pulls.x[b * rows + t], item) and pulls.y[b * rows + t] == batch.reward[t, b]


def test_of_a_slate_the_chosen_item_is_paid_and_the_others_nothing(typed):
    wiring, made, sampler = start(typed, "lin_ucb", *SLATES, "algo.intercept=false")
    (batch,) = batches(wiring, sampler, 1)
    pulls = pulls_of(made.policy, batch, "click")
    rows, places = len(batch.reward), 2
    observation = batch["obs"]["observation"]
    for b in range(batch.reward.shape[1]):
        for t in range(rows):
            for place in range(places):
                at = (b * rows + t) * places + place
                assert torch.equal(pulls.x[at], observation["candidates"][t, b, batch.action[t, b, place]])
                chosen = observation["click"][t + 1, b] == place
                assert pulls.y[at] == (batch.reward[t, b] if chosen else 0.0)
    assert (batch.action[..., 0] != batch.action[..., 1]).all()


def test_draws_have_the_covariance_of_the_weights_and_alpha_0_is_greedy(typed):
    """Known answer 32: the covariance of 10^5 draws is A^-1 within 2% of its largest entry."""
    wiring, made, sampler = start(typed, "lin_ts", "env=rlrun/LinearBandit-v0", "algo.scale=2")
    made.update(batches(wiring, sampler, 1)[0], Clock())
    policy = made.policy
    drawn = policy.drawn(100_000, torch.Generator().manual_seed(0)).detach().double()
    for k in range(len(policy.mean)):
        wanted = 4 * (policy.root[k] @ policy.root[k].T).double()
        off = (torch.cov(drawn[:, k].T) - wanted).abs().max() / wanted.abs().max()
        assert off < 0.02
        assert (drawn[:, k].mean(0) - policy.mean[k]).abs().max() < 0.02 * wanted.max().sqrt()
    wiring, made, sampler = start(typed, "lin_ucb", "env=rlrun/LinearBandit-v0", "algo.alpha=0")
    (batch,) = batches(wiring, sampler, 1)
    made.update(batch, Clock())
    row = (batch["obs"][0], batch["is_first"][0], Batch())
    acted = made.policy.act(*row, Clock(), "explore", torch.Generator().manual_seed(0))
    assert torch.equal(acted.action, made.policy.greedy(*row)[0])


def test_the_bound_of_lin_ucb_is_the_papers(typed):
    wiring, made, sampler = start(typed, "lin_ucb", "env=rlrun/LinearBandit-v0", "algo.alpha=1.5")
    (batch,) = batches(wiring, sampler, 1)
    made.update(batch, Clock())
    policy, x = made.policy, made.policy.of(batch[:1].replace(obs=batch["obs"][:1], is_first=batch["is_first"][:1]))[0]
    score = policy.scores(x, "explore", torch.Generator())
    for k in range(4):
        covariance = policy.root[k] @ policy.root[k].T
        wanted = x[:, 0] @ policy.mean[k] + 1.5 * (x[:, 0] * (x[:, 0] @ covariance)).sum(-1).sqrt()
        torch.testing.assert_close(score[:, k], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", ["lin_ucb", "lin_ts"])
def test_rllibs_simple_bandit_is_solved_exactly(algo, tmp_path):
    """RLlib's test asks for exactly 10.0 after 500 rows with one row in an update."""
    run = tmp_path / "run"
    words = ["env=rlrun/SimpleBandit-v0", "env_steps=500", "resources.inference=serial", "logger=[]", "seed=3"]
    assert _dispatch(["train", f"algo={algo}", *words, f"run_dir={run}"]) == 0
    last = json.loads((run / "progress.jsonl").read_text().splitlines()[-1])
    assert last["sample/return_mean"] == 10.0 and last["sample/info/regret"] == 0.0
    assert 0 < last["sample/regret"] < 0.05 * last["sample/regret_uniform"]


def test_neural_linears_regression_is_about_its_own_features_of_all_rows(typed):
    """After a training, and with the oldest rows forgotten."""
    wiring, made, sampler = start(
        typed,
        "neural_linear",
        "env=rlrun/LinearBandit-v0",
        "++env.kwargs.length=50",
        "algo.net.hidden=[6]",
        "algo.memory=45",
        "algo.ridge=0.5",
    )
    data = batches(wiring, sampler, 4)
    rows = [pulls_of(made.policy, batch, None, raw=True) for batch in data]
    before = [p.clone() for p in made.policy.features.parameters()]
    for number, batch in enumerate(data):
        told = made.update(batch, Clock(0, number)).metrics
    assert "loss" in told and any(not torch.equal(a, b) for a, b in zip(before, made.policy.features.parameters()))
    x, y, arm, valid = (torch.cat([getattr(one, name) for one in rows]) for name in ("x", "y", "arm", "valid"))
    x, y, arm = x[valid][-45:], y[valid][-45:], arm[valid][-45:]
    features = made.policy.features.of(x).detach()
    for k in range(4):
        theta, _ = closed_form(features[arm == k], y[arm == k], 0.5)
        torch.testing.assert_close(made.policy.mean[k].double(), theta, rtol=1e-3, atol=1e-3)
    assert float(told["pulls"]) == 45


def test_a_run_that_begins_with_anothers_weights_keeps_its_pulls(typed, tmp_path):
    """The regression is made of them again after the first training. Checkpoints of earlier versions named them differently."""
    path = tmp_path / "run"
    words = [*small("neural_linear", "tiny"), "env=rlrun/LinearBandit-v0", "logger=[]", "resources.inference=serial"]
    assert _dispatch(["train", *words, "env_steps=40", f"run_dir={path}"]) == 0
    saved = checkpoints_of(path).load(None, parts=("algorithm",))[0]["algorithm"]["module"]
    wiring = Wired(typed(*words, f"init={path}"))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    kept = ("memory.inputs", "memory.rewards", "memory.taken", "memory.seen")
    assert made.memory.filled == 40 and all(torch.equal(made.state_dict()[name], saved[name]) for name in kept)
    (batch,) = batches(wiring, sampler, 1)
    told = made.update(batch, Clock(0, 1)).metrics  # which trains
    assert "loss" in told and float(told["pulls"]) == 40 + int(batch.valid.sum())
    earlier = {name.removeprefix("memory."): value for name, value in saved.items()}
    made.load_state_dict(earlier)
    assert all(torch.equal(made.state_dict()[name], saved[name]) for name in saved)


@pytest.mark.parametrize("size", (45, 30, 70))
def test_a_memory_of_another_size_takes_the_newest_pulls(size, typed):
    """Whether it is as large, smaller or larger. The other memory has overwritten its oldest pulls."""
    words = ("neural_linear", "env=rlrun/LinearBandit-v0", "++env.kwargs.length=50")
    wiring, theirs, sampler = start(typed, *words, "algo.memory=45")
    data = batches(wiring, sampler, 4)
    for number, batch in enumerate(data[:3]):
        theirs.update(batch, Clock(0, number))
    assert int(theirs.memory.seen) > 45 and int(theirs.memory.seen) % 45
    _, made, _ = start(typed, *words, f"algo.memory={size}")
    made.load_state_dict(theirs.state_dict())
    memory = made.memory

    def check(known: list[Batch], count: int) -> None:
        pulls = [pulls_of(made.policy, batch, None, raw=True) for batch in known]
        x, y, arm, valid = (torch.cat([getattr(one, name) for one in pulls]) for name in ("x", "y", "arm", "valid"))
        newest = torch.cat((x, y[:, None], arm[:, None]), 1)[valid][-count:]
        held = torch.cat((memory.inputs, memory.rewards[:, None], memory.taken[:, None]), 1)[: memory.filled]
        assert memory.filled == count and sorted(held.tolist()) == sorted(newest.tolist())

    check(data[:3], min(size, 45))
    made.update(data[3], Clock(0, 3))
    check(data, min(size, 45 + int(data[3].valid.sum())))


@pytest.mark.parametrize("count", (3, 4, 5, 11))
def test_a_memory_keeps_the_last_pulls_of_an_update_that_has_more(count):
    """As an update of several agents may. Each pull is told by its number in all its parts."""
    memory = PullMemory(4, 2, torch.device("cpu"))
    for first in (0, count):
        numbers = torch.arange(first, first + count)
        memory.add(numbers.float()[:, None].expand(-1, 2), numbers.float(), numbers)
    held = range(2 * count - 4, 2 * count)
    assert int(memory.seen) == 2 * count and memory.filled == 4
    assert sorted(memory.taken.tolist()) == list(held)
    assert all(memory.taken[number % 4] == number for number in held), "the oldest pull is the next to be overwritten"
    assert torch.equal(memory.rewards, memory.taken.float())
    assert torch.equal(memory.inputs, memory.rewards[:, None].expand(-1, 2))


def test_of_arms_that_were_taken_too_rarely_the_rarest_is_first(typed):
    """Also where its number is not the lowest, and another arm's score is as high as rewards can be."""
    wiring, made, sampler = start(typed, "lin_ts", "env=rlrun/LinearBandit-v0", "algo.initial_pulls=3")
    (batch,) = batches(wiring, sampler, 1)
    row = (batch["obs"][0], batch["is_first"][0], Batch())
    made.policy.mean.fill_(1e6)
    for counts, first in (([2, 1, 2, 2], 1), ([2, 2, 9, 1], 3), ([1, 2, 0, 9], 2), ([9, 9, 9, 2], 3)):
        made.policy.count.copy_(torch.tensor(counts))
        acted = made.policy.act(*row, Clock(), "explore", torch.Generator().manual_seed(0))
        assert (acted.action == first).all()


def test_each_arm_is_taken_first_as_often_as_asked(typed):
    wiring, made, sampler = start(
        typed,
        "lin_ts",
        "env=rlrun/LinearBandit-v0",
        "algo.initial_pulls=3",
        "algo.batch_size=1",
        "algo.fragment_length=1",
    )
    taken = []
    for number in range(30):
        (batch,) = batches(wiring, sampler, 1)
        taken += batch.action[batch.valid].tolist()
        made.update(batch, Clock(number, number))
        sampler.publish(made.policy, Clock(number, number))
        if len(taken) == 12:
            break
    assert sorted(taken) == sorted([0, 1, 2, 3] * 3)


@pytest.mark.parametrize("words", [["algo.random_steps=100"], ["algo.exploration.kind=random"]], ids=["first", "all"])
def test_random_slates_are_of_different_items_and_have_their_chances(typed, words):
    _, made, sampler = start(typed, "lin_ucb", *SLATES, *words, also=("log_prob",))
    batch = sampler.take(1)[0].batch.clone()
    assert (batch.action[..., 0] != batch.action[..., 1]).all()
    live = batch.valid
    torch.testing.assert_close(batch["log_prob"][live].exp(), torch.full((int(live.sum()),), 1 / 90))
    torch.testing.assert_close(made.policy.log_prob(batch, "explore", Clock()), batch["log_prob"])
    twice = batch.replace(action=torch.zeros_like(batch.action))
    assert (made.policy.log_prob(twice, "explore", Clock()) == -torch.inf).all()


def test_slates_with_a_mask_are_refused(typed):
    spec = start(typed, "lin_ucb", *SLATES)[0].plan.spec
    masked = dataclasses.replace(spec, obs={**spec.obs, "action_mask": MultiBinary(shape=(20,))})
    with pytest.raises(UserError, match="masks its actions, and slates are made of all candidates"):
        arms_of(masked, "candidates", "click")
    assert arms_of(spec, "candidates", "click").places == 2


@pytest.mark.parametrize("algo", ["lin_ucb", "lin_ts"])
def test_what_is_certain_has_probability_1_and_what_is_drawn_has_no_formula(typed, algo):
    wiring, made, sampler = start(typed, algo, "env=rlrun/LinearBandit-v0", also=("log_prob",))
    (batch,) = batches(wiring, sampler, 1)
    made.update(batch, Clock())
    with torch.no_grad():
        told = made.policy.log_probs(batch[:3], "greedy", Clock()).exp()
        x = made.policy.of(batch[:3])
    assert (told.sum(-1) == 1).all() and torch.equal(told.argmax(-1), made.policy.means(x).argmax(-1))
    if algo == "lin_ts":
        assert batch["log_prob"].isnan().all()
        with pytest.raises(UserError, match="cannot be computed where weights are drawn"):
            made.policy.log_prob(batch, "explore", Clock())
    else:
        assert (batch["log_prob"] == 0).all()
        wiring, made, _ = start(typed, algo, "env=rlrun/LinearBandit-v0")  # as it acted
        assert (made.policy.log_prob(batch, "explore", Clock()) == 0).all()


def test_features_that_no_regression_can_tell_apart_are_a_sentence():
    rounded = torch.tensor([[[4e18, 4e18], [4e18, 3.9e18]]]).double()  # of two large features that hardly differ
    with pytest.raises(RunFailed, match=r"differ too much in size for a regression .* scale them to about 1"):
        solve(rounded, torch.zeros(1, 2).double())


def test_what_explores_is_refused_where_nothing_does(typed, tmp_path):
    env = "env=rlrun/SimpleBandit-v0"
    for words, said in (
        (["algo=lin_ucb", "algo.explore=false", "algo.alpha=5"], "algo.alpha=5"),
        (["algo=lin_ts", "algo.explore=false", "algo.initial_pulls=3"], "algo.initial_pulls=3"),
        (["algo=lin_ucb", "algo.exploration.kind=random", "algo.alpha=5"], "where algo.exploration.kind=uncertainty"),
        (["algo=lin_ts", "algo.exploration.kind=random", "algo.scale=5"], "where algo.exploration.kind=uncertainty"),
        (["algo=neural_linear", "algo.exploration.kind=random", "algo.initial_pulls=7"], "algo.initial_pulls=7"),
        (["algo=neural_linear", "algo.net.hidden=[]"], "no layer would be trained: algo=lin_ts"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            _dispatch(["train", *words, env, "logger=[]", "--plan"])
