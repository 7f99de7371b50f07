"""State-dependent deviations, and distributions and last layers from the user's own package (tests/example)."""

from pathlib import Path

import pytest
import torch
from conftest import SMALL, small
from own_parts import OneNumber
from torch import nn
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.runtime.trained import load

LAPLACE, LAYERS = "model.action_distribution=my_rl.distributions:Laplace", "my_rl.models:TwoLayers"
BOX = ["env=rlrun/IdentityBox-v0", "resources=debug", "logger=[]"]
PPO = ["algo=ppo", *SMALL, "algo.minibatch_size=10"]


@pytest.fixture(autouse=True)
def in_the_example(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "example")


def acted(policy, x):
    obs, first = Batch(observation=x), torch.ones(len(x), dtype=torch.bool)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return policy.act(obs, first, policy.initial_state(len(x)), Clock(), "explore", rng, ("log_prob", "dist"))


def test_the_deviation_of_a_gaussian_is_a_parameter_or_depends_on_the_observation(typed):
    x = torch.linspace(-1, 1, 5).unsqueeze(1)
    words = [*PPO, *BOX, "model.log_std=-0.5"]
    free, seen = (Wired(typed(*words, f"model.free_log_std={free}")).algorithm().policy for free in ("true", "false"))
    assert torch.equal(acted(free, x).record.dist.log_std, torch.full((5, 1), -0.5))
    assert "action_head.log_std" in dict(free.named_parameters()) and seen.action_head.linear.out_features == 2
    nn.init.normal_(seen.action_head.linear.weight, generator=torch.Generator().manual_seed(0))
    made = acted(seen, x)
    features, _ = seen.trunk(Batch(observation=x[None]), torch.ones(1, 5, dtype=torch.bool), Batch())
    mean, log_std = seen.action_head.linear(features[0]).chunk(2, -1)
    torch.testing.assert_close(made.record.dist.log_std, log_std - 0.5)
    wanted = torch.distributions.Normal(mean, (log_std - 0.5).exp()).log_prob(made.action).sum(-1)
    torch.testing.assert_close(made.record.log_prob, wanted)


class Misnamed(OneNumber):
    """Its actions have a part that the space does not have, and lack another."""

    def sample(self, rng):
        zeros = torch.zeros(2, dtype=torch.int64)
        return Batch({"0": zeros, "1": torch.zeros(2, 1), "2": Batch(pairs=zeros)})


@pytest.mark.parametrize(
    "words, said",
    [
        ([*PPO, *BOX, "model.action_distribution=gausian"], "or package.module:Name, not 'gausian'"),
        ([*PPO, *BOX, "model.value_head=mlp"], "value_head must be linear or package.module:Name"),
        ([*PPO, "env=CartPole-v1", LAPLACE], "Laplace does not fit the actions .*Laplace variables are numbers"),
        ([*PPO, *BOX, "model.action_distribution=my_rl.broken:Flat"], r"mode\(\) makes actions of shape"),
        (
            [*PPO, "env=rlrun/EverySpace-v0", "model.action_distribution=test_own_heads:Misnamed"],
            r"0 \(2,\), 1 \(2, 1\), 2.pairs \(2,\) for 2 rows, not 0 \(2,\), 1 \(2, 1\), 2.flags \(2, 2\), 2.pair \(2, 2\)",
        ),
        ([*PPO, *BOX, "model.action_distribution=my_rl.models:TwoLayers"], "derives from rlrun.ActionDistribution"),
        ([*PPO, *BOX, "model.value_head=my_rl.broken:Narrow"], r"maps \[..., 8\] to \[..., 1\]"),
        ([*PPO, *BOX, "model.value_head=my_rl.broken:Absent"], "my_rl.broken has no Absent"),
        ([*PPO, *BOX, f"model.value_head={LAYERS}", "algo.normalize_value=true"], "normalize_value rescales a linear last layer"),
        ([*PPO, "env=rlrun/Masked-v0", LAPLACE], "masks its actions"),
        ([*PPO, "env=CartPole-v1", "model.action_distribution=beta"], "beta is for environments with continuous actions"),
        (["algo=sac", *BOX, "model.action_distribution=my_rl.broken:Unmoved"], r"needs a method rsample"),
        (["algo=sac", *BOX, "model.log_std=-7"], "log_std=-7 .* stays between -5 and 2"),
        ([*PPO, *BOX, "model.action_distribution=squashed_gaussian", "model.log_std=3"], "log_std=3 .* stays between"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(typed, words, said):
    with pytest.raises(UserError, match=said):
        Wired(typed(*words)).algorithm()


@pytest.mark.parametrize(
    "algo, words",
    [
        ("ppo", [LAPLACE, f"model.value_head={LAYERS}", "algo.kl_coef=0.1"]),
        ("impala", [LAPLACE, "model.hidden=[8]", "model.memory.size=4", "model/memory=lstm"]),
        ("sac", [LAPLACE, f"model.q_head={LAYERS}"]),
        ("implicit_q", ["model.action_distribution=my_rl.broken:Unmoved"]),
        ("td3", [f"model.q_head={LAYERS}"]),
        ("dqn", [f"model.q_head={LAYERS}", "env=rlrun/Identity-v0"]),
        ("c51", [f"model.q_head={LAYERS}", "env=rlrun/Identity-v0"]),
        ("ppo", ["model.free_log_std=false", "env=rlrun/EverySpace-v0"]),
    ],
)
def test_they_learn_and_are_saved(tmp_path, algo, words):
    run = tmp_path / "run"
    env = [] if any(word.startswith("env=") for word in words) else BOX[:1]
    tiny = [word for word in small(algo, "tiny") if "sequence_length" not in word or "model/memory=lstm" in words]
    assert _dispatch(["train", *tiny, *BOX[1:], *env, *words, "env_steps=200", f"run_dir={run}"]) == 0
    trained = load(run)
    env = trained.make_env(0)
    obs, _ = env.reset(seed=0)
    for mode in ("greedy", "explore"):
        trained.reset()
        assert env.action_space.contains(trained.act(obs, mode=mode))


def test_the_users_distribution_learns(tmp_path):
    """The identity of numbers: minus 0.05 on average is out of reach for a policy that does not look."""
    run = tmp_path / "run"
    options = [
        "algo.fragment_length=20",
        "algo.batch_size=320",
        "algo.minibatch_size=64",
        "algo.lr=0.003",
        "env_steps=60000",
    ]
    words = [
        *options,
        "algo.num_epochs=4",
        "algo.entropy_coef=0",
        "algo.discount=0",
        "model.hidden=[32]",
        "stop.return_mean=-3",
        "episode_window=20",
    ]
    assert _dispatch(["train", "algo=ppo", *BOX, *words, LAPLACE, f"model.value_head={LAYERS}", f"run_dir={run}"]) == 0
    assert '"STOPPED"' in (run / "summary.json").read_text()
