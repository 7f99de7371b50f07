"""The probability of given actions under a policy (Policy.log_prob): against what it does, against what it records while it acts, and against formulas."""

import math

import pytest
import torch
from conftest import compose, small
from families import BANDITS, DISCRETE, DREAMING, SAMPLING
from wired import Wired

from rlrun.config.run import type_config
from rlrun.core.batch import Batch, allocate, fragment_layout
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from rlrun.models.model import Model
from rlrun.policies.exploration import Exploration, Uniform, uniform
from rlrun.policies.league import LeaguePolicy
from rlrun.policies.several import SeveralPolicies

SEEN = Box(shape=(3,), dtype="float32", low=(-math.inf,), high=(math.inf,))
FIVE = EnvSpec(name="five", obs={"observation": SEEN, "action_mask": MultiBinary(shape=(5,))}, action=Discrete(n=5))
ONE_NUMBER = EnvSpec(
    name="number",
    obs={"observation": SEEN},
    action=Box(shape=(1,), dtype="float32", low=(-2.0,), high=(2.0,)),
)
CLOCK = Clock(env_steps=300, updates=3)
DRAWN = 20_000


def made(algo, spec, *words, size=30.0):
    """A policy of a spec, whose weights are large enough for unequal probabilities."""
    env = "CartPole-v1" if isinstance(spec.action, Discrete) else "Pendulum-v1"
    config = type_config(compose("resources=debug", "logger=[]", *small(algo, "tiny"), f"env={env}", *words))
    torch.manual_seed(0)
    policy = config.algorithm.make_policy(spec, Model(config.run.model), config.algo)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "head" in name or "linear" in name:
                parameter.mul_(size if parameter.ndim > 1 and "weight" in name else 1.0)
    return policy.requires_grad_(False)


def rows(spec, count, columns, seed=0):
    """A batch with obs and is_first [T, B], of which one column begins an episode in the middle."""
    rng = torch.Generator().manual_seed(seed)
    obs = {"observation": torch.randn(count, columns, 3, generator=rng)}
    if "action_mask" in spec.obs:
        obs["action_mask"] = torch.tensor([1, 0, 1, 1, 0]).expand(count, columns, 5)
    first = torch.zeros(count, columns, dtype=torch.bool)
    first[0] = True
    first[count // 2, 0] = True
    return Batch(obs=Batch(obs), is_first=first)


def acted(policy, batch, mode, clock=CLOCK, place=None):
    """The batch with what act() does, row after row, and records."""
    state, rng = policy.initial_state(batch["is_first"].shape[1], place), torch.Generator().manual_seed(1)
    actions, told = [], []
    for t in range(len(batch["is_first"])):
        act = policy.act(batch["obs"][t], batch["is_first"][t], state, clock, mode, rng, ("log_prob",))
        actions.append(act.action)
        told.append(act.record["log_prob"])
        state = act.state
    return batch.replace(action=torch.stack(actions)), torch.stack(told)


@pytest.mark.parametrize("mode", ["explore", "greedy"])
@pytest.mark.parametrize("algo", sorted({*DISCRETE} - {"self_play", *DREAMING, *BANDITS}))
def test_choices_have_the_probabilities_with_which_they_are_drawn(algo, mode):
    words = [] if algo != "r2d2" else ["model=lstm"]
    policy = made(
        algo, FIVE, *words, *(["algo.head.noisy=false", "algo.exploration.epsilon=0.2"] if algo == "rainbow" else [])
    )
    batch = rows(FIVE, 1, 1)
    chances = policy.log_probs(batch, mode, CLOCK)[0, 0].exp()
    assert float(chances.sum()) == pytest.approx(1, abs=1e-5) and chances[1] == chances[4] == 0
    many = batch.map(lambda x: x.expand(1, DRAWN, *x.shape[2:]))
    held, told = acted(policy, many, mode)
    share = torch.bincount(held["action"][0], minlength=5) / DRAWN
    assert float((share - chances).abs().max()) < 4 * math.sqrt(0.25 / DRAWN)
    torch.testing.assert_close(told, policy.log_prob(held, mode, CLOCK), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(told[0].exp(), chances[held["action"][0]], atol=1e-5, rtol=1e-4)
    assert (float(chances.max()) == 1.0) == (mode == "greedy" and policy_epsilon(policy) == 0)


def policy_epsilon(policy):
    return getattr(getattr(policy, "explore", None), "eval_epsilon", 0)


def test_the_formulas_of_action_values():
    for kind, mode in (("epsilon_greedy", "explore"), ("epsilon_greedy", "greedy"), ("soft_q", "explore")):
        policy = made(
            "dqn", FIVE, f"algo.exploration.kind={kind}", "algo.exploration.epsilon=0.3", "algo.exploration.eval_epsilon=0.1",
            *(["algo.exploration.temperature=0.5"] if kind == "soft_q" else []),
        )  # fmt: skip
        batch = rows(FIVE, 4, 3)
        q, legal = policy.values(batch), batch["obs"]["action_mask"].bool()
        epsilon = 0.3 if mode == "explore" else 0.1
        best = torch.nn.functional.one_hot(q.argmax(-1), 5).float()
        if kind == "soft_q":
            best = torch.softmax(q.masked_fill(~legal, -math.inf) / 0.5, -1)
        torch.testing.assert_close(
            policy.log_probs(batch, mode, CLOCK).exp(), epsilon * legal / 3 + (1 - epsilon) * best
        )


def test_every_column_has_the_epsilon_with_which_it_acts():
    policy = made("dqn", FIVE, "algo.exploration.epsilon=0.4", "algo.exploration.epsilon_min=0.01")
    held, told = acted(policy, rows(FIVE, 50, 2), "explore", place=torch.tensor([0.0, 1.0]))
    q = policy.values(held)
    for column, epsilon in ((0, 0.4), (1, 0.01)):
        best = torch.nn.functional.one_hot(q[:, column].argmax(-1), 5)
        chance = epsilon * held["obs"]["action_mask"][:, column] / 3 + (1 - epsilon) * best
        torch.testing.assert_close(
            told[:, column].exp(), chance.gather(-1, held["action"][:, column : column + 1]).squeeze(-1)
        )
    # Nobody knows later which column it was: it is that of a column outside of training.
    assert (policy.log_prob(held, "explore", CLOCK)[:, 0] - told[:, 0]).abs().max() < 1e-5


@pytest.mark.parametrize("model", ["lstm", "gru", "gtrxl"])
@pytest.mark.parametrize("algo", ["r2d2", "ppo", "sac"])
def test_memory_begins_where_an_episode_does(algo, model):
    """Rows that were played one by one have the same probabilities at once, and from the middle on with the state that was stored there."""
    words = ["algo.sequence_length=4", "algo.burn_in=2", "algo.n_step=1"] if algo in SAMPLING else []
    policy = made(algo, FIVE if algo not in SAMPLING else ONE_NUMBER, f"model={model}", *words)
    spec = policy.spec
    held, told = acted(policy, rows(spec, 12, 3), "explore")
    torch.testing.assert_close(told, policy.log_prob(held, "explore", CLOCK), atol=1e-4, rtol=1e-3)
    changed = held.replace(is_first=torch.zeros_like(held["is_first"]).index_fill(0, torch.tensor(0), True))
    other = policy.log_prob(changed, "explore", CLOCK)
    torch.testing.assert_close(other[:6], told[:6], atol=1e-4, rtol=1e-3)
    assert algo == "r2d2" or (other[6:, 0] - told[6:, 0]).abs().max() > 1e-6, "the episode that begins there forgets"


@pytest.mark.parametrize("kind", ["squashed_gaussian", "beta"])
@pytest.mark.parametrize("algo", SAMPLING)
def test_numbers_have_the_density_with_which_they_are_drawn(algo, kind):
    policy = made(
        algo, ONE_NUMBER, f"model.action_distribution={kind}", *(["model.log_std=0"] if kind != "beta" else []), size=1
    )
    batch = rows(ONE_NUMBER, 1, 1)
    edges = torch.linspace(-1, 1, 20_001)
    middles = (edges[1:] + edges[:-1]) / 2
    grid = batch.map(lambda x: x.expand(1, len(middles), *x.shape[2:])).replace(action=middles.view(1, -1, 1))
    density = policy.log_prob(grid, "explore", CLOCK)[0].exp()
    below = density.cumsum(0) * (edges[1] - edges[0])
    assert float(below[-1]) == pytest.approx(1, abs=0.005)
    held, told = acted(policy, batch.map(lambda x: x.expand(1, DRAWN, *x.shape[2:])), "explore")
    torch.testing.assert_close(told, policy.log_prob(held, "explore", CLOCK), atol=2e-3, rtol=1e-3)
    for at in (-0.5, 0.0, 0.5):
        share = float((held["action"] < at).float().mean())
        assert share == pytest.approx(float(below[middles < at][-1]), abs=4 * math.sqrt(0.25 / DRAWN) + 0.002)
    with pytest.raises(UserError, match="greedy choice"):
        policy.log_prob(held, "greedy", CLOCK)
    assert acted(policy, batch, "greedy")[1].isnan().all(), "no density is recorded for certain numbers"


def test_a_gaussian_policy_gives_its_density_and_none_for_greedy_numbers():
    policy = made("ppo", ONE_NUMBER)
    batch = rows(ONE_NUMBER, 3, 2)
    held, told = acted(policy, batch, "explore")
    out = policy.unroll(batch).dist
    expected = torch.distributions.Normal(out.mean, out.log_std.exp()).log_prob(held["action"]).sum(-1)
    torch.testing.assert_close(policy.log_prob(held, "explore", CLOCK), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(told, expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="greedy choice"):
        policy.log_prob(held, "greedy", CLOCK)
    assert acted(policy, batch, "greedy")[1].isnan().all()


def test_uniform_exploration_has_its_probabilities_for_every_space():
    spaces = [
        Discrete(n=4),
        MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,)),
        MultiBinary(shape=(3,)),
        Box(shape=(2,), dtype="float32", low=(-1.0, 0.0), high=(1.0, 5.0)),
        Box(shape=(2,), dtype="float32", low=(-math.inf,) * 2, high=(math.inf,) * 2),
    ]
    for space in spaces:
        spec = EnvSpec(name="x", obs={"observation": SEEN}, action=space)
        action, told = uniform(space, 6, None, torch.Generator().manual_seed(0), torch.device("cpu"))
        again = Uniform(spec).log_prob(None, Batch(observation=torch.zeros(6, 3)), action, CLOCK)
        torch.testing.assert_close(again, told)
    early = Clock(env_steps=10)
    for algo, spec, words in (("dqn", FIVE, []), ("sac", ONE_NUMBER, []), ("ppo", FIVE, [])):
        policy = made(algo, spec, *words, "algo.random_steps=100")
        held, told = acted(policy, rows(spec, 4, 2), "explore", early)
        expected = -math.log(3) if spec is FIVE else -math.log(2)
        assert told.flatten().tolist() == pytest.approx([expected] * 8)
        torch.testing.assert_close(policy.log_prob(held, "explore", early), told)


class Third(Exploration):
    def choose(self, wanted, obs, is_first, state, clock, rng):
        from rlrun.policies.exploration import Chosen

        return Chosen(torch.full(is_first.shape, 2))


def test_policies_without_probabilities_say_so():
    batch = rows(FIVE, 2, 2).replace(action=torch.zeros(2, 2, dtype=torch.int64))
    for words, said in (
        (["algo.exploration.kind=parameter_noise"], "noise in parameters"),
        (["algo.head.noisy=true", "algo.exploration.epsilon=0"], "noisy layers"),
    ):
        policy = made("dqn", FIVE, *words)
        with pytest.raises(UserError, match=said):
            policy.log_prob(batch, "explore", CLOCK)
        assert acted(policy, rows(FIVE, 2, 2), "explore")[1].isnan().all()
        assert float(policy.log_probs(batch, "greedy", CLOCK).exp().sum()) == pytest.approx(4), (
            "greedy choices have them"
        )
    policy = made("dqn", FIVE)
    policy.explorer.other = Third(FIVE)
    with pytest.raises(UserError, match="Third gives no probabilities"):
        policy.log_prob(batch, "explore", CLOCK)
    assert acted(policy, rows(FIVE, 2, 2), "explore")[1].isnan().all()
    for algo, said in (("ddpg", "clipped to their bounds"), ("td3", "clipped to their bounds"), ("dreamerv3", "mean")):
        policy = made(algo, ONE_NUMBER)
        held = rows(ONE_NUMBER, 2, 2).replace(action=torch.zeros(2, 2, 1))
        for mode in ("explore", "greedy"):
            with pytest.raises(UserError, match=said):
                policy.log_prob(held, mode, CLOCK)
        with pytest.raises(KeyError):
            policy.record_spec(("log_prob",))


@pytest.mark.parametrize("algo", ["es", "ars"])
def test_policies_of_evolution_are_certain(algo):
    plain = EnvSpec(name="plain", obs={"observation": SEEN}, action=Discrete(n=5))
    policy = made(algo, plain)
    batch = rows(plain, 3, 2)
    best, _ = policy.greedy(batch["obs"].map(lambda x: x.flatten(0, 1)), torch.zeros(6, dtype=torch.bool), Batch())
    held = batch.replace(action=best.view(3, 2))
    assert policy.log_prob(held, "explore", CLOCK).abs().max() == 0
    assert (policy.log_prob(held.replace(action=(held["action"] + 1) % 5), "explore", CLOCK) == -math.inf).all()


@pytest.mark.parametrize("mode", ["explore", "greedy"])
@pytest.mark.parametrize("algo", ["qmix", "maddpg"])
def test_agents_that_act_together_have_the_product_of_their_probabilities(algo, mode):
    """The last agent is not there in odd columns, and its choice counts for nothing in them."""
    words = [word for word in small(algo, "tiny") if not word.startswith("env=")]
    wiring = Wired(
        type_config(
            compose("resources=debug", "logger=[]", *words, "env=MultiAgentCartPole-v0", "algo.exploration.epsilon=0.3")
        )
    )
    policy, spec = wiring.policy_factory(acting=False)().requires_grad_(False), wiring.spec
    agents, rng = len(spec.agents.names), torch.Generator().manual_seed(0)
    obs = allocate(fragment_layout(spec.obs_rows, spec.action_row, {}, {}, 1, DRAWN, 0)).map(torch.zeros_like)["obs"]
    seen = torch.randn(1, 1, *spec.observation.shape, generator=rng).expand(1, DRAWN, *spec.observation.shape)
    alive = torch.ones(1, DRAWN, agents, dtype=obs["alive"].dtype)
    alive[:, 1::2, -1] = 0
    obs = obs.map(lambda x: x[:1]).replace(observation=seen, alive=alive)
    batch = Batch(obs=obs, is_first=torch.ones(1, DRAWN, dtype=torch.bool))
    act = policy.act(obs[0], batch["is_first"][0], policy.initial_state(DRAWN), CLOCK, mode, rng)
    told = policy.log_prob(batch.replace(action=act.action.unsqueeze(0)), mode, CLOCK)[0].exp()
    assert told.shape == (DRAWN,)
    for columns, among in ((slice(0, None, 2), agents), (slice(1, None, 2), agents - 1)):
        played, chance = act.action[columns, :among], told[columns]
        number = (played * 2 ** torch.arange(among)).sum(1)
        for one in number.unique().tolist():
            share, said = float((number == one).float().mean()), chance[number == one]
            assert float(said.max() - said.min()) < 1e-6
            assert share == pytest.approx(float(said[0]), abs=4 * math.sqrt(0.25 / (DRAWN / 2)))
    assert (float(told.min()) == 1.0) == (mode == "greedy" and policy_epsilon(policy) == 0)


def test_several_policies_have_those_of_each_column():
    one, other = made("ppo", FIVE), made("dqn", FIVE, "algo.exploration.epsilon=0.3")
    both = SeveralPolicies(
        2, {"a": [1], "b": [0]}, {"a": one, "b": other}, {}, {"a": ("log_prob",), "b": ("log_prob",)}
    )
    held, told = acted(both, rows(FIVE, 5, 4), "explore")
    made_of = both.log_prob(held, "explore", CLOCK)
    torch.testing.assert_close(made_of, told, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(made_of[:, 1::2], one.log_prob(held.columns(torch.tensor([1, 3])), "explore", CLOCK))
    league = LeaguePolicy(one, agents=2, slots=1, self_share=1.0)
    torch.testing.assert_close(league.log_prob(held, "explore", CLOCK), one.log_prob(held, "explore", CLOCK))
    with pytest.raises(UserError, match="the policy rule gives no probabilities"):
        SeveralPolicies(2, {"a": [1], "rule": [0]}, {"a": one}, {"rule": Third(FIVE)}, {}).log_prob(
            held, "explore", CLOCK
        )
