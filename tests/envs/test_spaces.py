"""Every kind of space in sampling, learning, evaluation, resume and rlrun.load."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from conftest import SMALL
from test_actor_learner import run_wired
from test_samplers import KINDS
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.errors import EnvError, UserError
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, Nested
from rlrun.envs.batched import Batched, Consequence
from rlrun.envs.gym_env import GymEnv
from rlrun.models.heads import action_head

LEARN = ["algo=ppo", "logger=[]", "model.hidden=[64]", "algo.fragment_length=20", "algo.batch_size=320", "algo.minibatch_size=64", "algo.lr=3e-3",
         "algo.discount=0", "resources.device=cpu"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_action_reaches_the_env_as_its_space_says(typed, tmp_path, kind):
    """The environment itself refuses any other action."""
    words = ["algo=ppo", "env=rlrun/EverySpace-v0", "logger=[]", "model.hidden=[8]", "algo.fragment_length=5", "algo.batch_size=20",
             "algo.minibatch_size=10", "algo.num_epochs=2", "resources.device=cpu", "resources.envs_per_sampler=2", "env_steps=400", "algo.kl_coef=0.2"]  # fmt: skip
    _, job, rows = run_wired(Wired(typed(*words, *KINDS[kind])), tmp_path)
    assert job.status == "COMPLETED" and rows[-1]["sample/episode_length_mean"] == 20


@pytest.mark.parametrize(
    "more", [[], ["model.action_distribution=beta"], ["model.action_distribution=squashed_gaussian"]]
)
def test_all_parts_of_an_action_are_learnt_together(typed, tmp_path, more):
    """The best return is 60; a random policy gets about 12."""
    words = ["env=rlrun/EverySpace-v0", "resources=debug", "env_steps=200000", "stop.return_mean=48", "episode_window=20"]
    _, job, _ = run_wired(Wired(typed(*LEARN, *words, *more)), tmp_path)
    assert job.status == "STOPPED", job.episodes.mean


def test_masks_are_obeyed_and_used(typed, tmp_path):
    """The environment raises on an illegal action. The best return is 10; a random legal policy gets 5."""
    _, job, _ = run_wired(
        Wired(typed(*LEARN, "env=rlrun/Masked-v0", "resources=debug", "env_steps=60000", "stop.return_mean=6.5", "episode_window=40")),
        tmp_path,
    )
    assert job.status == "STOPPED", job.episodes.mean


def test_a_mask_without_legal_actions_ends_the_run_with_a_sentence(typed, tmp_path):
    with pytest.raises(EnvError, match=r"Masked-v0, env \d \(seed \d+\).*no legal action"):
        run_wired(Wired(typed(*LEARN, "env=rlrun/Masked-v0", "resources=debug", "++env.kwargs.stuck=later")), tmp_path)


@pytest.mark.parametrize("env", ["rlrun/EverySpace-v0", "rlrun/Masked-v0", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"])
def test_trained_policies_resume_evaluate_and_load(tmp_path, env, capsys):
    import gymnasium
    from test_session import resume, train

    import rlrun.envs.debug  # noqa: F401
    from rlrun.commands.evaluate import main as evaluate
    from rlrun.runtime.trained import load

    if env not in gymnasium.registry:
        env = env.replace("-v4", "-v3")
    path = tmp_path / "run"
    assert train(path, f"env={env}", "env_steps=300", "env.max_episode_steps=30") == 0
    assert resume(path, "env_steps=600") == 0
    assert evaluate([str(path), "episodes=3"]) == 0 and "over 3 full games" in capsys.readouterr().out
    trained = load(path)
    game = trained.make_env()
    obs, _ = game.reset(seed=0)
    for _ in range(5):
        action = trained.act(obs)
        assert game.action_space.contains(action)
        obs, _, terminated, truncated, _ = game.step(action)
        if terminated or truncated:
            obs, _ = game.reset()
            trained.reset()
    game.close()


def test_flattening_keeps_every_number(typed):
    from rlrun.models.encoders import flat_size, flatten
    from rlrun.samplers.evaluator import to_torch

    wiring = Wired(typed("algo=ppo", "env=rlrun/EverySpace-v0", *SMALL, "algo.minibatch_size=10"))
    env = wiring.plan.make_env()(0, 3)
    rows = env.reset(0)
    space = wiring.spec.observation
    flat = flatten(space, to_torch(rows)["observation"])
    assert flat.shape == (3, flat_size(space)) == (3, 3 + 5 + 1 + 2)
    seen = rows["observation"]
    for b in range(3):
        expected = [*np.eye(3)[seen["0"][b]], *np.eye(2)[seen["1"][b][0]], *np.eye(3)[seen["1"][b][1]]]
        expected += [float(x) for name in ("flags", "number") for x in np.atleast_1d(seen["2"][name][b])]
        np.testing.assert_allclose(flat[b].numpy(), expected, rtol=1e-6)
    env.close()


class OneNumber(gymnasium.Env):
    """Observes a number that has no axis, alone or in a Dict, and pays for the action that says whether it is positive."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, inside: bool = False):
        self.number, self.inside = gymnasium.spaces.Box(-1.0, 1.0, (), np.float32), inside
        self.observation_space = gymnasium.spaces.Dict(temperature=self.number) if inside else self.number

    def show(self):
        self.seen = self.number.sample()
        return {"temperature": self.seen} if self.inside else self.seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number.seed(seed)
        self.steps = 0
        return self.show(), {}

    def step(self, action):
        right, self.steps = float(action == (self.seen > 0)), self.steps + 1
        return self.show(), right, False, self.steps == 20, {}


@pytest.mark.parametrize("more", [["++env.kwargs.inside=true"], ["model.observation_filter=mean_std"]])
def test_a_number_without_an_axis_can_be_observed(typed, tmp_path, more):
    """The best return is 20; a random policy gets 10."""
    words = [f"env={__name__}:OneNumber", "resources=debug", "env_steps=40000", "stop.return_mean=16", "episode_window=20"]
    _, job, _ = run_wired(Wired(typed(*LEARN, *words, *more)), tmp_path)
    assert job.status == "STOPPED", job.episodes.mean


class Growing(Batched):
    """Observes 10 to the power of the step, in float64."""

    length = 100

    def spaces(self):
        return gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64), gymnasium.spaces.Discrete(2)

    def begin(self, new):
        pass

    def observe(self):
        return 10.0 ** self.steps[:, None]

    def act(self, action, live):
        return Consequence(np.ones(len(live)), ~live, {})


@pytest.mark.filterwarnings("error:overflow")
def test_numbers_are_checked_as_rows_hold_them(typed):
    """What float32 cannot hold ends a run of environments that step many episodes at once, too, and NumPy warns of nothing."""
    gymnasium.register("tests/Growing-v0", vector_entry_point=Growing, entry_point=lambda: None)
    try:
        cfg = typed("algo=ppo", "env=CartPole-v1").env
        cfg = replace(cfg, name="tests/Growing-v0")
        spec = EnvSpec(name=cfg.name, obs={"observation": Box(shape=(1,), dtype="float32", low=(-np.inf,), high=(np.inf,))}, action=Discrete(n=2))
        env = GymEnv(cfg, spec, Seeds(0), "env", 0, 2)
        assert env.reset(0)["observation"].dtype == np.float32
        for power in range(1, 39):
            assert env.step(np.zeros(2, dtype=np.int64)).obs["observation"][0, 0] == np.float32(10.0**power)
        with pytest.raises(EnvError, match="an observation that is not finite"):
            env.step(np.zeros(2, dtype=np.int64))
        env.close()
    finally:
        del gymnasium.registry["tests/Growing-v0"]


def autoregressive(width: int = 6):
    """A head for a Tuple of a choice of 3, two numbers and a Dict of switches, whose weights make parts dependent."""
    space = Nested(spaces=(
        ("0", Discrete(n=3)), ("1", Box(shape=(2,), low=(-1.0,) * 2, high=(1.0,) * 2, dtype="float32")),
        ("2", Nested(spaces=(("switches", MultiBinary(shape=(2,))), ("pick", Discrete(n=2))), ordered=False)),
    ), ordered=True)  # fmt: skip
    torch.manual_seed(0)
    head = action_head(space, width, lambda i, o, gain: torch.nn.Linear(i, o), "gaussian", 0.0, autoregressive=True)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.7)
    return head, head(torch.randn(4, 5, width), None)


def test_autoregressive_parts_know_those_before_them():
    head, dist = autoregressive()
    action = dist.sample(torch.Generator().manual_seed(1))
    joint = dist.given(action)
    by_hand = torch.zeros(4, 5)
    for t in range(4):
        for b in range(5):
            features, before = dist.features[t, b], torch.zeros(0)
            for index, name in enumerate(("0", "1", "2")):
                own = action[name][t, b]
                inputs = torch.cat([features, before])
                part = head.heads[index](torch.tanh(head.mixers[index][0](inputs)) if index else inputs, None)
                by_hand[t, b] += part.log_prob(own)
                one_hot = torch.eye(3)[own] if name == "0" else own
                before = torch.cat([before, one_hot]) if index < 2 else before
    torch.testing.assert_close(dist.log_prob(action), by_hand)
    torch.testing.assert_close(joint.log_prob(action), by_hand)
    torch.testing.assert_close(dist[1:3].log_prob(action[1:3]), by_hand[1:3])
    first = dist.given(action.replace(**{"0": (action["0"] + 1) % 3}))
    assert torch.equal(first.parts["0"].log_probs, joint.parts["0"].log_probs), "the first part depends on nothing"
    assert not torch.allclose(first.parts["1"].mean, joint.parts["1"].mean), "the second depends on the first"
    restored = joint.from_record(joint.record())
    torch.testing.assert_close(restored.kl(joint), torch.zeros(4, 5))


def test_autoregressive_entropy_is_the_expectation_over_earlier_parts():
    """The entropy of two choices, H(a1) + sum p(a1) H(a2 | a1) by enumeration, is the mean of given(action)'s."""
    torch.manual_seed(2)
    space = Nested(spaces=(("0", Discrete(n=3)), ("1", Discrete(n=2))), ordered=True)
    head = action_head(space, 4, lambda i, o, gain: torch.nn.Linear(i, o), "gaussian", 0.0, autoregressive=True)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, 0.0, 1.0)
    features = torch.randn(4)
    pairs = [(a, b) for a in range(3) for b in range(2)]
    dist = head(features.expand(6, 4), None)
    action = Batch({"0": torch.tensor([a for a, _ in pairs]), "1": torch.tensor([b for _, b in pairs])})
    probability = dist.log_prob(action).exp()
    assert float(probability.sum()) == pytest.approx(1.0)
    exact = -(probability * probability.log()).sum()
    estimate = (probability * dist.given(action).entropy()).sum()
    assert float(estimate) == pytest.approx(float(exact), rel=1e-5)
    many = head(features.expand(40000, 4), None).sample(torch.Generator().manual_seed(3))
    for (a, b), p in zip(pairs, probability.tolist(), strict=True):
        assert float(((many["0"] == a) & (many["1"] == b)).float().mean()) == pytest.approx(p, abs=0.01)


def test_autoregression_needs_parts(typed):
    with pytest.raises(UserError, match="has no such parts"):
        Wired(typed("algo=ppo", "env=CartPole-v1", "model.autoregressive=true")).algorithm()


def test_only_an_autoregressive_policy_learns_correlated_actions(typed, tmp_path):
    """With this entropy bonus the best independent choices are both random, which pays half of the 20.

    The best of all policies repeats the first choice with probability sigmoid(1 / 0.6) = 0.84.
    """
    means = {}
    for value in ("true", "false"):
        words = ["algo=ppo", "env=rlrun/CorrelatedActions-v0", *SMALL[:1], "logger=[]", f"model.autoregressive={value}", "model.hidden=[32]", "env_steps=6400",
                 "algo.fragment_length=20", "algo.batch_size=320", "algo.minibatch_size=160", "algo.num_epochs=4", "algo.lr=0.02", "algo.discount=0",
                 "algo.entropy_coef=0.6", "algo.normalize_advantage=none"]  # fmt: skip
        _, job, _ = run_wired(Wired(typed(*words)), tmp_path / value)
        means[value] = job.episodes.mean
    assert 15.5 < means["true"] < 18 and 8.5 < means["false"] < 12.5
