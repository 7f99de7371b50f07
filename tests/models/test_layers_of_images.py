"""Hidden layers and activation functions of networks that read images: by default, changed, and of old runs."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from conftest import compose
from torch import nn

from rlrun.cli import _dispatch
from rlrun.config.automatic import settled
from rlrun.config.saved import saved_config
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.machine.machine import measured
from rlrun.models.encoders import ImageEncoder
from rlrun.runtime.plan import plan
from rlrun.runtime.trained import load


@pytest.fixture(autouse=True)
def in_the_example(monkeypatch):
    """The user's own encoder is in tests/example."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "example")


SMALL_PONG = ["env=Pong", "env.size=42", "resources=debug", "logger=[]"]
MIXED = ["env=rlrun/EverySpace-v0", "++env.kwargs.image=true"]
OWN = "model.encoder=my_rl.models:Positions"


def made(typed, *words):
    algo = [] if any(word.startswith("algo=") for word in words) else ["algo=ppo"]
    return plan(typed(*algo, "resources=debug", *words), measured()).policy_factory(acting=False)()


@pytest.mark.parametrize(
    "words, hidden, activation, convolutions",
    [
        (["env=CartPole-v1"], [256, 256], "tanh", "auto"),
        (["env=Pong"], [], "relu", "auto"),
        (["env=Pong", "model=mlp"], [256, 256], "tanh", "auto"),
        (["env=Pong", "model.encoder=mlp"], [256, 256], "tanh", "auto"),
        (MIXED, [256, 256], "tanh", "auto"),
        ([*MIXED, OWN], [], "tanh", "auto"),
        (["env=Pong", "model.hidden=[64]", "model.activation=silu"], [64], "silu", "auto"),
        ([*MIXED, "model.conv_activation=elu"], [256, 256], "tanh", "elu"),
    ],
)
def test_the_defaults_follow_from_observations_and_encoder(words, hidden, activation, convolutions):
    model = settled(compose("algo=ppo", *words))[0]["model"]
    assert [model[name] for name in ("hidden", "activation", "conv_activation")] == [hidden, activation, convolutions]


@pytest.mark.parametrize(
    "said, convolutions, dense",
    [("model.activation=elu", F.elu, F.elu), ("model.conv_activation=silu", F.silu, F.relu)],
)
def test_an_image_goes_through_the_activation_that_was_chosen(typed, said, convolutions, dense):
    """The whole network by hand: two convolutions, the layer of 256, and one of 8 behind it."""
    policy = made(typed, *SMALL_PONG, said, "model.hidden=[8]")
    image, behind = policy.trunk.encoder.encoder, policy.trunk.encoder.net
    assert isinstance(image, ImageEncoder) and policy.trunk.features == 8 == policy.action_head.linear.in_features
    x = torch.randint(0, 256, (5, 4, 42, 42), dtype=torch.uint8)
    first, second = [layer for layer in image.modules() if isinstance(layer, nn.Conv2d)]
    with torch.no_grad():
        seen = convolutions(second(convolutions(first(x.float() / 255)))).flatten(1)
        wanted = dense(behind[0](convolutions(image.head[0](seen))))
        torch.testing.assert_close(policy.trunk.encoder(x), wanted, atol=1e-4, rtol=1e-4)
        got = policy.trunk(Batch(observation=x[None]), torch.zeros(1, 5, dtype=torch.bool), Batch())[0]
    torch.testing.assert_close(got[0], wanted, atol=1e-4, rtol=1e-4)


def test_residual_blocks_and_values_of_actions_have_it_too(typed):
    kinds = {}
    for activation, kind in (("relu", nn.ReLU), ("tanh", nn.Tanh)):
        policy = made(typed, *SMALL_PONG, "model=impala_resnet", f"model.activation={activation}")
        kinds[activation] = [type(layer) for layer in policy.trunk.modules() if isinstance(layer, nn.ReLU | nn.Tanh)]
        assert set(kinds[activation]) == {kind}
        layers = made(typed, *SMALL_PONG, "algo=dqn", f"model.activation={activation}").modules()
        assert {type(layer) for layer in layers if isinstance(layer, nn.ReLU | nn.Tanh)} == {kind}
    assert len(kinds["relu"]) == len(kinds["tanh"]) == 3 * 2 + 2


def test_hidden_layers_come_between_image_and_values(typed):
    """Without them the convolutions are flat, and the head has the layer of 256."""
    policy = made(typed, *SMALL_PONG, "algo=dqn")
    assert policy.trunk.encoder.ends_flat and [part[0].out_features for part in policy.head.hidden()] == [256, 256]
    policy = made(typed, *SMALL_PONG, "algo=dqn", "model.hidden=[32]")
    assert policy.trunk.features == 32 and [len(part) for part in policy.head.hidden()] == [0, 0]
    assert policy.trunk.encoder.encoder.features == 256


def test_a_users_encoder_has_hidden_layers_behind_it(typed):
    policy = made(typed, "env=FrozenLake-v1", OWN, "model.hidden=[6]", "model.activation=elu")
    own, net = policy.trunk.encoder.encoder, policy.trunk.encoder.net
    cells = torch.arange(16)
    torch.testing.assert_close(policy.trunk.encoder(cells), F.elu(net[0](own.table(cells))))
    weight = net[0].weight.detach()
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(6), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("words", [["model=mlp"], [OWN]])
def test_an_activation_of_convolutions_needs_some(typed, words):
    with pytest.raises(UserError, match="conv_activation is for encoders with convolutions"):
        typed("algo=ppo", "env=FrozenLake-v1", *words, "model.conv_activation=relu")
    with pytest.raises(UserError, match=r"model.conv_activation is for images"):
        made(typed, "env=CartPole-v1", "model.conv_activation=elu")


@pytest.mark.parametrize(
    "words",
    [SMALL_PONG, [*MIXED, *SMALL_PONG[2:]], ["env=FrozenLake-v1", OWN, *SMALL_PONG[2:]], [*SMALL_PONG, "model=mlp"]],
)
def test_runs_from_before_have_the_same_networks(words, tmp_path):
    """Their configs held two layers of 256 and tanh, which networks of single images and users' encoders ignored."""
    run = tmp_path / "run"
    tiny = ["algo.fragment_length=4", "algo.batch_size=8", "env_steps=8", f"run_dir={run}"]
    assert _dispatch(["train", "algo=a2c", *words, *tiny]) == 0
    now, file = saved_config(run), run / "config.yaml"
    values = yaml.safe_load(file.read_text())
    values["model"] |= {"hidden": [256, 256], "activation": "tanh"}
    del values["model"]["conv_activation"], values["env"]["grayscale" if "env=Pong" in words else "stack"]
    file.write_text(yaml.safe_dump(values))
    before = saved_config(run, trusted=True)
    assert {**before["model"], "activation": ""} == {**now["model"], "activation": ""}
    load(run, trust=True)  # the checkpoint fits
