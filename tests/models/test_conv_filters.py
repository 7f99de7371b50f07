"""model.conv_filters, conv_padding and conv_hidden: networks for images of any size, against the same ones by hand."""

import pytest
import torch
import torch.nn.functional as F
from conftest import compose
from torch import nn

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core.errors import UserError
from rlrun.core.specs import Box
from rlrun.machine.machine import measured
from rlrun.models.encoders import ConvolutionalNet, ImageConfig, NatureCNN
from rlrun.runtime.plan import plan
from rlrun.runtime.trained import load

IMAGE = ["env=rlrun/IdentityImage-v0", "resources=debug", "logger=[]"]
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


def pixels(*shape):
    return Box(shape=shape, dtype="uint8", low=(0.0,), high=(255.0,))


def made(*words):
    return plan(type_config(compose(*words)), measured()).policy_factory(acting=False)()


def test_the_nature_cnns_filters_make_the_nature_cnn():
    nets = []
    for kind, options in ((NatureCNN, ImageConfig()), (ConvolutionalNet, ImageConfig(filters=NATURE))):
        torch.manual_seed(0)
        nets.append(kind(pixels(4, 84, 84), "fp32", options=options))
    first, second = (dict(net.state_dict()) for net in nets)
    assert list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "shape, filters, padding, hidden, sizes",
    [
        ((84, 84, 3), ((16, 8, 4), (32, 4, 2), (256, 11, 1)), "same_but_last", (), [(21, 21), (11, 11), (1, 1)]),
        ((2, 10, 7), ((5, (3, 2), (2, 1)), (6, 2, 3)), "same", (9, 8), [(5, 7), (2, 3)]),
        ((9, 30, 41), ((4, (5, 4), 3), (3, 3, (1, 2))), "none", None, [(9, 13), (7, 6)]),
    ],
)
def test_convolutions_are_those_that_were_asked_for(shape, filters, padding, hidden, sizes):
    """Borders by hand: an output of size / stride, rounded up, with the odd row of a border below and on the right."""
    torch.manual_seed(0)
    net = ConvolutionalNet(pixels(*shape), "fp32", options=ImageConfig(filters=filters, padding=padding, hidden=hidden))
    x = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    seen = x.float() / 255
    seen = seen.permute(0, 3, 1, 2) if shape[2] == 3 else seen
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    for number, (layer, (channels, kernel, stride)) in enumerate(zip(layers, filters, strict=True)):
        if padding == "same" or (padding == "same_but_last" and number < len(filters) - 1):
            around = []
            for length, k, s in zip(seen.shape[:1:-1], pair(kernel)[::-1], pair(stride)[::-1], strict=True):
                missing = max((-(-length // s) - 1) * s + k - length, 0)
                around += [missing // 2, missing - missing // 2]
            seen = F.pad(seen, around)
        seen = F.relu(F.conv2d(seen, layer.weight, layer.bias, pair(stride)))
        assert seen.shape[1:] == (channels, *sizes[number])
    seen = seen.flatten(1)
    for layer in (layer for layer in net.head.modules() if isinstance(layer, nn.Linear)):
        seen = F.relu(layer(seen))
    assert net.features == seen.shape[1] == ((512,) if hidden is None else hidden or (256,))[-1]
    torch.testing.assert_close(net(x), seen, atol=1e-4, rtol=1e-4)


def pair(one):
    return (one, one) if isinstance(one, int) else one


@pytest.mark.parametrize(
    "words, features, layers",
    [
        (["algo.head.hidden=auto"], 64, [64, 24]),  # the head has the layers behind flat convolutions
        (["algo.head.encoder_layer=true", "algo.head.hidden=auto"], 24, [24]),
        (["algo.head.encoder_layer=true", "model.conv_hidden=[]", "algo.head.hidden=auto"], 64, []),
    ],
)
def test_layers_behind_convolutions_are_the_encoders_or_the_heads(words, features, layers):
    filters = ["model.conv_filters=[[4,[3,4],[3,4]],[4,1,1]]", "model.conv_hidden=[64,24]"]
    policy = made("algo=dqn", *IMAGE, *filters, *words)
    assert policy.trunk.features == features
    widths = [[layer.out_features for layer in part if isinstance(layer, nn.Linear)] for part in policy.head.hidden()]
    assert widths == [layers] * len(widths)


@pytest.mark.parametrize(
    "words, kind",
    [
        (["algo.head.hidden=auto"], nn.ELU),  # the encoder's layers, model.conv_hidden
        (["algo.head.hidden=[32,16]"], nn.SiLU),  # the head's own
        (["algo.head.encoder_layer=true", "algo.head.hidden=auto"], nn.SiLU),  # a layer behind all of the encoder's
    ],
)
def test_the_encoders_layers_in_the_head_have_the_activation_of_convolutions(words, kind):
    layers = ["model.conv_filters=[[4,[3,4],[3,4]]]", "model.conv_hidden=[32,16]"]
    policy = made("algo=dqn", *IMAGE, *layers, "model.conv_activation=elu", "model.activation=silu", *words)
    of_head = {type(layer) for part in policy.head.hidden() for layer in part if not isinstance(layer, nn.Linear)}
    of_encoder = {type(layer) for layer in policy.trunk.modules() if isinstance(layer, nn.ELU | nn.SiLU)}
    assert of_head == {kind} and of_encoder == {nn.ELU}


@pytest.mark.parametrize(
    "words, said",
    [
        ([*IMAGE, "model.conv_filters=[[16,8,4],[32,4,2]]"], r"convolution 2 has a kernel of 4x4 and gets an image of 2x3"),
        ([*IMAGE, "model.conv_filters=[[16,8]]"], r"model.conv_filters\[0\] must be a list of 3"),
        ([*IMAGE, "model.conv_filters=[[[3,3],8,4]]"], r"must be a list of \[channels, kernel, stride\]"),
        ([*IMAGE, "model.conv_filters=[[16,0,4]]"], "conv_filters.* at least 1, not 0"),
        ([*IMAGE, "model.conv_filters=[]"], r"must be a list of \[channels, kernel, stride\]"),
        ([*IMAGE, "model=nature_cnn", "model.conv_filters=[[16,8,4]]"], "conv_filters are for encoder=auto"),
        ([*IMAGE, "model=mlp", "model.conv_hidden=[8]"], "conv_hidden is for encoders with convolutions"),
        ([*IMAGE, "model.conv_padding=same"], "conv_padding=same is for conv_filters"),
        (["env=CartPole-v1", "model.conv_filters=[[16,8,4]]"], "conv_filters is for images"),
        (["env=CartPole-v1", "model.conv_hidden=[16]"], "conv_hidden is for images"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(words, said):
    with pytest.raises(UserError, match=said):
        made("algo=ppo", *words)


def test_ppo_learns_from_small_colour_pictures(tmp_path):
    """Pictures of 12 x 16 x 3."""
    run, words = tmp_path / "run", ["model.conv_filters=[[8,[3,4],[3,4]]]", "model.conv_hidden=[16]"]
    options = [
        "algo.fragment_length=20",
        "algo.batch_size=160",
        "algo.minibatch_size=40",
        "algo.lr=0.003",
        "env_steps=6400",
    ]
    words = [*words, "algo.num_epochs=4", "algo.entropy_coef=0", "stop.return_mean=17", f"run_dir={run}"]
    assert _dispatch(["train", "algo=ppo", *IMAGE, *options, *words]) == 0
    trained = load(run)
    env, wins = trained.make_env(1), 0
    obs, _ = env.reset(seed=1)
    for _ in range(20):
        obs, reward, *_ = env.step(trained.act(obs))
        wins += reward
    assert wins >= 17


def test_the_frames_of_a_stack_are_channels(tmp_path):
    """Atari in colour: 3 frames of 40 x 40 x 3 are an image of 9 channels, frame by frame."""
    words = ["env=Pong", "env.size=40", "env.grayscale=false", "env.stack=3", "resources=debug", "logger=[]"]
    filters = ["model.conv_filters=[[8,8,8],[8,3,1]]", "model.conv_padding=same", "model.conv_hidden=[]"]
    run = tmp_path / "run"
    assert _dispatch(["train", "algo=a2c", *words, *filters, "env_steps=100", f"run_dir={run}"]) == 0
    trained = load(run)
    encoder = trained.policy.trunk.encoder
    assert encoder.image == (9, 40, 40) and encoder.features == 8 * 5 * 5
    obs, _ = trained.make_env(0).reset(seed=0)
    assert obs.shape == (3, 40, 40, 3) and trained.act(obs) in range(6)
    x = torch.from_numpy(obs)[None]
    first = F.conv2d(x[0].permute(0, 3, 1, 2).reshape(1, 9, 40, 40) / 255, encoder.first.weight, encoder.first.bias, 8)
    torch.testing.assert_close(encoder(x), encoder.convolutions(first).flatten(1), atol=1e-4, rtol=1e-4)
    screen = torch.randint(0, 256, (210, 160, 3), dtype=torch.uint8).numpy()
    trained.reset()
    assert trained.act(screen) in range(6) and trained.screens.frames.shape == (3, 40, 40, 3)
