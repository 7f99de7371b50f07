"""Who chooses the actions of training: the policy, nobody (explore=false), chance, or a class of the user's own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from families import ADAPTING, ANY_ACTION, BOX, DISCRETE, EXPLORING, SLATES, simple
from test_all import batches, start
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, MultiBinary, MultiDiscrete, Nested
from rlrun.models.model import Seen
from rlrun.ops.distributions import Categorical
from rlrun.policies.exploration import uniform, uniform_log_prob
from rlrun.policies.noise import NoisyEpisodes
from rlrun.runtime.rundir import checkpoints_of

EXAMPLE = Path(__file__).parents[1] / "example"
COUNT = 40_000
SPACES = {  # a space, its legal choices, and how likely or dense every action is
    "choice": (Discrete(n=4), None, 1 / 4),
    "masked": (Discrete(n=4), [True, False, True, True], 1 / 3),
    "choices": (MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,)), [True, True, True, False, True], 1 / 4),
    "switches": (MultiBinary(shape=(2, 1)), None, 1 / 4),
    "bounded": (Box(shape=(3,), dtype="float32", low=(-2.0,) * 3, high=(5.0,) * 3), None, 1 / 8),
}


@pytest.mark.parametrize("name", SPACES)
def test_uniform_actions_are_uniform_and_know_their_probability(name):
    space, legal, probability = SPACES[name]
    mask = None if legal is None else torch.tensor(legal).expand(COUNT, -1)
    rng = torch.Generator().manual_seed(1)
    action, log_prob = uniform(space, COUNT, mask, rng, torch.device("cpu"))
    assert action.shape == (COUNT, *space.shape) if name != "choice" and name != "masked" else action.shape == (COUNT,)
    torch.testing.assert_close(log_prob, torch.full((COUNT,), math.log(probability)))
    if isinstance(space, Box):
        assert action.abs().max() < 1 and action.std() == pytest.approx(1 / math.sqrt(3), rel=0.02)
        return
    kinds, counts = action.reshape(COUNT, -1).unique(dim=0, return_counts=True)
    assert len(kinds) == round(1 / probability), "all legal actions, and no other"
    error = math.sqrt(probability * (1 - probability) / COUNT)
    assert (counts / COUNT - probability).abs().max() < 5 * error


def test_numbers_without_bounds_are_standard_normal_and_parts_are_independent():
    free = Box(shape=(), dtype="float32", low=(-math.inf,), high=(math.inf,))
    space = Nested(spaces=(("a", Discrete(n=5)), ("b", free)), ordered=False)
    action, log_prob = uniform(space, COUNT, None, torch.Generator().manual_seed(1), torch.device("cpu"))
    assert action["b"].shape == (COUNT,) and action["b"].std() == pytest.approx(1, rel=0.02)
    density = torch.distributions.Normal(0.0, 1.0).log_prob(action["b"])
    torch.testing.assert_close(log_prob, density - math.log(5))


def test_random_numbers_use_every_side_of_a_box_that_lacks_some_bounds():
    """Otherwise all of them would be the only bound, where it is far from 0."""
    inf = math.inf
    space = Box(shape=(4,), dtype="float32", low=(5.0, -inf, -inf, 0.0), high=(inf, 3.0, inf, 10.0))
    action, log_prob = uniform(space, COUNT, None, torch.Generator().manual_seed(1), torch.device("cpu"))
    half, normal = torch.distributions.HalfNormal(1.0), torch.distributions.Normal(0.0, 1.0)
    density = half.log_prob(action[:, 0] - 5) + half.log_prob(3 - action[:, 1]) + normal.log_prob(action[:, 2])
    torch.testing.assert_close(log_prob, density - math.log(10.0))
    torch.testing.assert_close(uniform_log_prob(space, action, None), log_prob)
    assert (action[:, 0] >= 5).all() and (action[:, 1] <= 3).all()
    assert (action[:, 0] - 5).mean() == pytest.approx(math.sqrt(2 / math.pi), rel=0.02)
    assert action[:, 3].mean() == pytest.approx(5, rel=0.02) and action[:, 3].std() == pytest.approx(10 / math.sqrt(12), rel=0.02)
    drawn = space.sample(np.random.default_rng(1), COUNT)
    assert (drawn == space.to_env(drawn)).all() and len(np.unique(drawn[:, 0])) > 0.9 * COUNT


@pytest.mark.parametrize("algo", EXPLORING)
def test_random_actions_do_not_depend_on_the_policy(typed, algo):
    """The recorded probability is that of a uniform choice, with which importance weights are those of the rows."""
    words = [f"env={simple(algo)}", "algo.exploration.kind=random"]
    also = ("log_prob",) if algo in ANY_ACTION else ()
    taken = []
    for change in (0.0, 3.0):
        wiring, made, sampler = start(typed, algo, *words, also=also)
        for parameter in made.policy.parameters():
            parameter.data += change
        (fragment,) = sampler.take(1)
        taken.append(fragment.batch.clone())
        sampler.free([fragment])
        assert "epsilon" not in made.update(batches(wiring, sampler, 1)[0], Clock()).metrics
    assert torch.equal(taken[0].action, taken[1].action)
    if algo in DISCRETE:
        assert 0.2 < taken[0].action[taken[0].valid].float().mean() < 0.8
        assert not also or torch.allclose(taken[0].log_prob, torch.tensor(-math.log(2.0)))
    elif algo in SLATES:
        assert (taken[0].action[..., 0] != taken[0].action[..., 1]).all()
    else:
        assert 0 < taken[0].action.abs().max() < 1


@pytest.mark.parametrize("algo", EXPLORING)
def test_without_exploration_training_takes_the_greedy_actions(typed, algo):
    words = [f"env={simple(algo)}", "algo.explore=false"]
    also = ("log_prob",) if algo in ANY_ACTION else ()
    wiring, made, sampler = start(typed, algo, *words, also=also)
    for parameter in made.policy.parameters():  # so that the best action is not the same everywhere
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    if algo in ADAPTING:
        made.adapt(None)
    batch = batches(wiring, sampler, 1)[0]
    state = made.policy.initial_state(batch.action.shape[1])
    state = batch["core"][0] if "core" in batch else state
    rows = {"obs": batch.obs, "is_first": batch.is_first}
    with torch.inference_mode():
        best, _ = made.policy.greedy(rows["obs"][0], rows["is_first"][0], state)
    live = batch.valid[0]
    torch.testing.assert_close(batch.action[0][live].float(), best[live].float(), atol=1e-4, rtol=1e-4)
    assert not also or (batch.log_prob == 0).all(), "what is certain has the probability 1"


@pytest.mark.parametrize("algo", ["ppo", "impala", "dqn", "sac", "td3"])
def test_random_steps_end(typed, algo):
    wiring, made, sampler = start(typed, algo, f"env={simple(algo)}", "algo.random_steps=200", "algo.explore=true")
    rows = [made.policy.initial_state(64)]
    obs = batches(wiring, sampler, 1)[0].obs[0][:1].map(lambda x: x.repeat(64, *[1] * (x.ndim - 1)))

    def act(env_steps):
        rng = torch.Generator().manual_seed(3)
        with torch.inference_mode():
            return made.policy.act(obs, torch.ones(64, dtype=torch.bool), rows[0], Clock(env_steps), "explore", rng)

    expected, _ = uniform(wiring.spec.action, 64, None, torch.Generator().manual_seed(3), torch.device("cpu"))
    if algo != "td3":  # whose noise is drawn first
        assert torch.equal(act(199).action, expected)
    before, after = (act(steps).action.float() for steps in (199, 200))
    assert not torch.equal(before, after)
    if algo in BOX and algo not in DISCRETE:
        assert before.std() > 0.5


def test_importance_weights_of_random_rows_are_those_of_the_policy(typed):
    """pi / mu of uniform actions is 2 pi, whose mean over uniform actions is 1."""
    wiring, made, sampler = start(typed, "impala", "env=CartPole-v1", "algo.random_steps=1000")
    batch = batches(wiring, sampler, 1)[0]
    dist, _ = made.policy.unroll(batch)
    rho = 2 * dist[:-1].log_prob(batch.action).exp()
    expected = rho[batch.valid].mean()
    assert float(made.update(batch, Clock()).metrics["rho_mean"]) == pytest.approx(expected.item(), rel=1e-5)


@pytest.fixture
def in_the_example(monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.parametrize("words, said", [
    *(([f"algo={algo}", "env=Pendulum-v1", "algo.explore=false"], "a greedy choice of") for algo in ("ppo", "a2c", "pg")),
    (["algo=ppo", "algo.exploration.kind=randon"], "Did you mean random"),
    (["algo=dqn", "algo.exploration.kind=sampled"], "kind must be epsilon_greedy"),
    (["algo=sac", "env=Pendulum-v1", "algo.exploration.kind=ou"], "kind must be sampled, random or"),
    (["algo=ppo", "algo.exploration.kwargs.stay=1"], "kwargs are for an exploration of your own, not for sampled"),
    (["algo=ppo", "algo.random_steps=-1"], "algo.random_steps must be"),
    (["algo=ppo", "algo.exploration.kind=my_rl.exploration:Sticki"], "has no Sticki. Did you mean Sticky"),
    (["algo=ppo", "algo.exploration.kind=my_rl.envs:Corridor"], "is no subclass of rlrun.Exploration"),
    (["algo=ppo", "algo.exploration.kind=my_rl.exploration:Sticky", "algo.exploration.kwargs.sty=1"], "argument 'sty'"),
    (["algo=ppo", "algo.exploration.kind=my_rl.broken:Silent"], "Silent gives no log_prob"),
    (["algo=ppo", "algo.exploration.kind=my_rl.broken:Wide"], "chooses {'action': '[2, 2] whole numbers'} for 2"),
    (["algo=ppo", "algo.exploration.kind=my_rl.broken:Growing"], "begins with no state"),
    (["algo=dqn", "algo.exploration.kind=my_rl.exploration:Sticky"], "fails for CartPole-v1: AttributeError"),
    (["algo=es", "algo.explore=false"], "no option algo.explore"),
])  # fmt: skip
def test_what_does_not_fit_gets_a_sentence(words, said, tmp_path, in_the_example):
    env = [] if any(word.startswith("env=") for word in words) else ["env=CartPole-v1"]
    with pytest.raises(UserError) as caught:
        _dispatch(["train", *env, *words, "logger=[]", f"run_dir={tmp_path / 'run'}"])
    assert said in str(caught.value) and not (tmp_path / "run").exists()


STICKY = ["env=CartPole-v1", "logger=[]", "algo.exploration.kind=my_rl.exploration:Sticky", "model.hidden=[8]"]
TINY = ["algo.fragment_length=5", "algo.batch_size=20", "algo.exploration.kwargs.patience=100"]


def test_an_exploration_of_ones_own_is_resumed_to_the_bit(tmp_path, in_the_example):
    words = ["train", "algo=impala", *STICKY, *TINY, "resources=debug", "checkpoint.every=200", "algo.random_steps=50"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert _dispatch([*words, "env_steps=400", f"run_dir={whole}"]) == 0
    assert _dispatch([*words, "env_steps=200", f"run_dir={parts}"]) == 0
    held = checkpoints_of(parts).load(parts=("sampler",))[0]["sampler"]["collectors"][0]["state"]
    assert (held["exploration_decisions"] > 30).all(), "the first fragments were random"
    assert _dispatch(["resume", str(parts), "env_steps=400"]) == 0
    one, two = (checkpoints_of(path).load(parts=("policy",))[0]["policy"] for path in (whole, parts))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("algo, words", [
    ("ppo", ["resources.inference=local", "algo.minibatch_size=20"]),
    ("appo", ["resources.inference=batched"]),
    ("impala", ["resources.inference=serial"]),
])  # fmt: skip
def test_an_exploration_of_ones_own_in_every_sampler(tmp_path, in_the_example, algo, words):
    """With stay=1 and endless patience an episode repeats its first action, so that CartPole falls after 8 to 11 steps."""
    run = ["env_steps=600", f"run_dir={tmp_path / 'run'}", "algo.exploration.kwargs.stay=1"]
    words = ["train", f"algo={algo}", *STICKY, *TINY, "algo.exploration.kwargs.patience=1e12", *words, *run]
    assert _dispatch(words) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert 8 <= rows[-1]["sample/episode_length_mean"] <= 11


@pytest.mark.parametrize("algo, env", [
    ("impala", "CartPole-v1"), ("sac", "CartPole-v1"), ("ppo", "rlrun/Masked-v0"), ("impala", "rlrun/EverySpace-v0"),
    ("impala", "ParametricActionsCartPole-v0"),
])  # fmt: skip
def test_a_temperature_flattens_what_acts_and_what_is_learnt(typed, algo, env):
    """p^(1/T), normalised: in samples, log-probabilities, entropy and divergence, for all choices among actions."""
    words = [f"env={env}", *(["model.action_embedding=avail_actions"] if "Parametric" in env else [])]
    also = ("log_prob",) if algo != "sac" else ()
    wiring, made, sampler = start(typed, algo, *words, "model.temperature=4", also=also)
    _, plain, _ = start(typed, algo, *words)
    for policy in (made.policy, plain.policy):
        for parameter in policy.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    batch = batches(wiring, sampler, 1)[0]

    def choices(policy):
        if algo == "sac":
            dist = policy.net.of(Seen(policy.seen(batch.obs), batch.is_first, Batch()))
        else:
            dist = policy.unroll(batch).dist
        found, left = [], [dist]
        while left:
            part = left.pop()
            parts = getattr(part, "parts", [])
            left += parts.values() if isinstance(parts, dict) else parts
            found += [part] if isinstance(part, Categorical) else []
        return dist, found

    (hot, tempered), (_, sharp) = choices(made.policy), choices(plain.policy)
    assert len(tempered) == len(sharp) > 0
    for one, other in zip(tempered, sharp, strict=True):
        legal = other.log_probs > -1e6
        expected = torch.log_softmax((other.log_probs / 4).masked_fill(~legal, -1e9), -1)
        torch.testing.assert_close(one.log_probs[legal], expected[legal], atol=1e-4, rtol=1e-4)
        entropy = -(expected.exp() * expected).masked_fill(~legal, 0).sum(-1)
        torch.testing.assert_close(one.entropy(), entropy, atol=1e-4, rtol=1e-4)
        kl = (expected.exp() * (expected - other.log_probs)).masked_fill(~legal, 0).sum(-1)
        torch.testing.assert_close(one.kl(other), kl, atol=1e-4, rtol=1e-4)
    if also:
        recorded = hot[:-1].given(batch.action).log_prob(batch.action)
        torch.testing.assert_close(recorded[batch.valid], batch.log_prob[batch.valid], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("words, said", [
    (["algo=ppo", "env=Pendulum-v1"], "is for choices among actions, and there are none here"),
])  # fmt: skip
def test_a_temperature_without_choices_is_refused(typed, words, said):
    env = [] if any(word.startswith("env=") for word in words) else ["env=CartPole-v1"]
    with pytest.raises(UserError, match=said):
        Wired(typed(*env, *words, "resources=debug", "model.temperature=2"))


@pytest.mark.parametrize("near, said", [(math.inf, 1e3), (0.0, 1e-6)])
def test_parameter_noise_stays_finite_and_above_0_however_long_it_is_adapted(near, said):
    class Net(torch.nn.Linear):
        def forward(self, obs, is_first, state):
            return torch.tanh(super().forward(obs["observation"])), state

    episodes, first, obs = NoisyEpisodes(Net(2, 1), 0.2), torch.ones(1, dtype=torch.bool), Batch(observation=torch.ones(1, 2))
    state, rng = Batch(episodes.state(1, torch.device("cpu"))), torch.Generator().manual_seed(0)
    for _ in range(12_000):
        _, deviation = episodes.begin(state.replace(rows=torch.ones(1)), first, near, torch.sqrt, rng)
        state = state.replace(deviation=deviation)
    assert float(deviation) == pytest.approx(said)
    noise, deviation = episodes.begin(state, first, near, torch.sqrt, rng)
    assert episodes.outputs(obs, first, noise * deviation.unsqueeze(1)).isfinite().all()
