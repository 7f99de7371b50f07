"""Tests of networks: shapes, chunks of rows, precision and resets of the memory."""

import gymnasium
import pytest
import torch
from tape import Tape, Unrecordable
from torch import nn
from wired import Wired

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.policy import fix_kernels
from rlrun.core.specs import Box, Discrete, EnvSpec, Nested
from rlrun.models import encoders
from rlrun.models.critic import EnsembleLayerNorm, EnsembleLinear
from rlrun.models.encoders import ImpalaResNet, NatureCNN, channels_last
from rlrun.models.heads import QHead, QHeadConfig
from rlrun.models.model import Model, lower_precision
from rlrun.models.recurrent import Memory
from rlrun.policies import DistributionPolicy

PIXELS = Box(shape=(4, 84, 84), dtype="uint8", low=(0.0,), high=(255.0,))


@pytest.mark.parametrize(
    "kind, size, features",
    [
        (NatureCNN, 84, 512),
        (NatureCNN, 42, 256),
        (NatureCNN, 10, 128),
        (ImpalaResNet, 84, 256),
        (ImpalaResNet, 64, 256),
    ],
)
def test_encoders_read_pixels_in_any_number_of_rows(kind, size, features, monkeypatch):
    torch.manual_seed(0)
    encoder = kind(Box(shape=(4, size, size), dtype="uint8", low=(0.0,), high=(255.0,)), "fp32")
    x = torch.randint(0, 256, (7, 4, size, size), dtype=torch.uint8)
    whole = encoder(x)
    assert whole.shape == (7, features)
    monkeypatch.setattr(encoders, "CHUNK_ROWS", 3)
    torch.testing.assert_close(encoder(x), whole, atol=1e-5, rtol=1e-4)


def test_the_nature_network_is_the_papers():
    encoder = NatureCNN(PIXELS, "fp32")
    assert (
        sum(p.numel() for p in encoder.parameters())
        == 32 * 4 * 64 + 32 + 64 * 32 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 512 + 512
    )
    x = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    plain = torch.nn.Sequential(torch.nn.Conv2d(4, 32, 8, 4), encoder.convolutions, torch.nn.Flatten(), encoder.head)
    plain[0].load_state_dict(encoder.first.state_dict())
    torch.testing.assert_close(encoder(x), plain(x.float() / 255), atol=1e-5, rtol=1e-4)


def test_images_with_channels_last_are_turned():
    encoder = NatureCNN(Box(shape=(84, 84, 3), dtype="uint8", low=(0.0,), high=(255.0,)), "fp32")
    assert encoder.image == (3, 84, 84) and encoder(torch.zeros(2, 84, 84, 3, dtype=torch.uint8)).shape == (2, 512)


@pytest.mark.parametrize(
    "shape, last",
    [
        *(((84, 84, 4), True), ((4, 84, 84), False), ((3, 64, 64), False), ((64, 64, 3), True), ((210, 160, 3), True)),
        *(((3, 210, 160), False), ((10, 10, 7), True), ((10, 10, 10), True), ((12, 8, 6), True), ((6, 8, 12), False)),
        *(((10, 10, 16), True), ((16, 10, 10), False), ((5, 4, 5), True)),
    ],
)
def test_the_side_that_holds_channels_is_found(shape, last):
    """MinAtar's Seaquest is [10, 10, 10]."""
    assert channels_last(Box(shape=shape, dtype="uint8", low=(0.0,), high=(255.0,))) is last
    frames = Box(shape=shape, dtype="uint8", low=(0.0,), high=(255.0,), stacked=True)
    assert not channels_last(frames), "frames without channels"


def test_bf16_is_close_in_learning_and_acting_and_leaves_heads_alone():
    spec = EnvSpec(name="x", obs={"observation": PIXELS}, action=Discrete(n=6))
    torch.manual_seed(0)
    from rlrun.models.config import DistributionAndValueConfig, MemoryConfig

    cfg = DistributionAndValueConfig(
        encoder="auto", value_sees="observation", hidden=(), activation="relu", conv_filters=None, conv_padding="none", conv_hidden="auto", conv_activation="auto", free_log_std=True, value_head="linear", init="orthogonal", share_value=True, action_distribution="gaussian", log_std=0.0,
        temperature=1.0,
        observation_filter="none", observation_clip=0.0, encoder_kwargs={}, autoregressive=False, layer_norm=False, action_embedding=None,
        memory=MemoryConfig(kind="none"),
    )  # fmt: skip
    policy = DistributionPolicy(spec, Model(cfg, "bf16"))
    exact = DistributionPolicy(spec, Model(cfg, "fp32"))
    exact.load_state_dict(policy.state_dict())
    x = Batch(observation=torch.randint(0, 256, (1, 5, 4, 84, 84), dtype=torch.uint8))
    first = torch.zeros(1, 5, dtype=torch.bool)
    expected = exact._forward(x, first, Batch())[0]
    learning = policy._forward(x, first, Batch())[0]
    lower_precision(policy)
    acting = policy._forward(x, first, Batch())[0]
    assert (
        policy.trunk.encoder.first.weight.dtype == torch.bfloat16
        and policy.action_head.linear.weight.dtype == torch.float32
    )
    for got in (learning, acting):
        assert got.value.dtype == torch.float32
        torch.testing.assert_close(got.value, expected.value, atol=0.1, rtol=0.1)
    # Both round the same weights: a difference would be in every ratio of probabilities.
    assert torch.equal(acting.value, learning.value)


@pytest.mark.parametrize("noisy", [False, True])
def test_wide_layers_of_action_values_are_bf16_too(noisy):
    torch.manual_seed(0)
    cfg = QHeadConfig(hidden="auto", dueling=True, encoder_layer=False, noisy=noisy, sigma0=0.5, gradient_scale=0.7)

    def head(precision):
        return QHead(
            3136,
            6,
            1,
            (512,),
            "relu",
            cfg,
            lambda inputs, outputs, gain: nn.Linear(inputs, outputs),
            precision=precision,
        )

    low, exact = head("bf16"), head("fp32")
    exact.load_state_dict(low.state_dict())
    few, many = torch.rand(1, 1, 3136), torch.rand(1, 32, 3136)
    assert torch.equal(low(few), exact(few)), "a weight is not converted for a single row"
    assert not torch.equal(low(many), exact(many))
    torch.testing.assert_close(low(many), exact(many), atol=0.05, rtol=0.05)
    low(many).sum().backward()
    exact(many).sum().backward()
    for got, wanted in zip(low.parameters(), exact.parameters(), strict=True):
        assert got.grad.dtype == torch.float32
        torch.testing.assert_close(got.grad, wanted.grad, atol=0.5, rtol=0.1)
    lower_precision(low)
    assert [low.value[0].weight.dtype, low.value[-1].weight.dtype] == [torch.bfloat16, torch.float32]
    assert low(few).dtype == torch.float32
    torch.testing.assert_close(low(few), exact(few), atol=0.05, rtol=0.05)


def test_layers_of_an_ensemble_are_those_of_single_nets():
    torch.manual_seed(0)
    linear, norm, x = EnsembleLinear(3, 5, 4, None), EnsembleLayerNorm(3, 5), torch.randn(3, 7, 5)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    for net in range(3):
        one = torch.nn.functional.layer_norm(x[net], (5,), norm.weight[net, 0], norm.bias[net, 0])
        torch.testing.assert_close(norm(x)[net], one)
        torch.testing.assert_close(linear(x)[net], x[net] @ linear.weight[net] + linear.bias[net, 0])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_memory_resets_at_is_first_and_equals_row_by_row(kind):
    torch.manual_seed(0)
    memory = Memory(kind, 3, 5)
    x = torch.randn(6, 2, 3)
    first = torch.zeros(6, 2, dtype=torch.bool)
    first[2, 0] = first[4, 1] = first[5, 0] = True
    state = Batch({name: torch.randn(2, 5) for name in memory.spec()})
    out, after = memory(x, first, state)
    rows, running = [], state
    for t in range(6):
        row, running = memory(x[t : t + 1], first[t : t + 1], running)
        rows.append(row)
    torch.testing.assert_close(torch.cat(rows), out)
    for name in after:
        torch.testing.assert_close(after[name], running[name])
    fresh, _ = memory(
        x[2:], torch.zeros(4, 2, dtype=torch.bool), Batch({name: torch.zeros(2, 5) for name in memory.spec()})
    )
    torch.testing.assert_close(out[2:5, 0], fresh[:3, 0]), "column 0 began anew at row 2"


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_both_ways_of_a_memory_agree_and_the_fixed_one_reads_nothing_back(kind):
    torch.manual_seed(0)
    memory = Memory(kind, 3, 5)
    x, is_first = torch.randn(9, 4, 3), torch.rand(9, 4) < 0.3
    state = Batch({name: torch.randn(4, 5) for name in memory.spec()})
    made = []
    for fixed in (False, True):
        if fixed:
            fix_kernels(nn.Sequential(memory))
        inputs = x.clone().requires_grad_()
        out, after = memory(inputs, is_first, state)
        loss = out.square().sum() + sum(leaf.sum() for leaf in after.leaves())
        made.append([out, *after.leaves(), *torch.autograd.grad(loss, [inputs, *memory.parameters()])])
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    with Tape():
        memory(x, is_first, state)
    memory.fixed_kernels = False
    with pytest.raises(Unrecordable), Tape():
        memory(x, is_first, state)


class Places(gymnasium.Env):
    """Observes one of so many places that no layer can have an input for each."""

    observation_space, action_space = gymnasium.spaces.Discrete(2**31), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 2**31 - 1, {}

    def step(self, action):
        return 2**31 - 1, 1.0, False, True, {}


class Embedded(nn.Module):
    """Reads the last three digits of a place."""

    def __init__(self, space):
        super().__init__()
        self.features, self.table = 4, nn.Embedding(1000, 4)

    def forward(self, x):
        return self.table(x % 1000)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_an_observation_that_is_too_wide_is_refused_with_a_sentence(typed, algo):
    words = [f"algo={algo}", f"env={__name__}:Places", "resources=debug", "logger=[]"]
    with pytest.raises(UserError, match=r"Places observes Discrete\(2147483648\).*env\.wrappers.*model\.encoder"):
        Wired(typed(*words)).policy_factory(acting=True)()
    Wired(typed(*words, f"model.encoder={__name__}:Embedded")).policy_factory(acting=True)()


def test_a_value_of_the_state_goes_with_descriptions_of_actions(typed):
    """The state has no part that describes the actions, and is seen and filtered as a whole."""
    numbers = {"dtype": "float32", "low": (-1.0,), "high": (1.0,)}
    parts = (("v", Box(shape=(3,), **numbers)), ("e", Box(shape=(4, 2), **numbers)))
    obs = {"observation": Nested(spaces=parts, ordered=False), "state": Box(shape=(9,), **numbers)}
    words = ["model.action_embedding=e", "model.value_sees=state", "model.observation_filter=mean_std"]
    cfg = typed("algo=ppo", "env=CartPole-v1", *words).run.model
    policy = DistributionPolicy(EnvSpec(name="x", obs=obs, action=Discrete(n=4)), Model(cfg))
    seen = Batch(observation=Batch(v=torch.rand(1, 5, 3), e=torch.rand(1, 5, 4, 2)), state=torch.rand(1, 5, 9))
    first, state = torch.ones(1, 5, dtype=torch.bool), policy.initial_state(5)
    (dist, value), _ = policy._forward(seen, first, state)
    (same, other), _ = policy._forward(seen.replace(state=torch.rand(1, 5, 9)), first, state)
    assert value.shape == (1, 5) and (value != other).all() and torch.equal(dist.log_probs, same.log_probs)
