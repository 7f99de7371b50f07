"""The world model's networks: sizes, resets, samples, images, and the block GRU against its formulas."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from conftest import compose

from rlrun.config.run import type_config
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested
from rlrun.models.model import Model
from rlrun.models.observations import WorldDecoder, WorldEncoder, entries_of, pixels
from rlrun.models.world_model import RSSM, SIZES, Head, State, side_by_side
from rlrun.ops.symlog import symexp, symlog
from rlrun.policies.dreamer import DreamerPolicy, Explorer
from rlrun.policies.exploration import ExplorationConfig

TINY = {"deter": 16, "hidden": 8, "classes": 3, "stoch": 4, "blocks": 2, "units": 8, "depth": 2, "bins": 15}


def options(**changes):
    return dataclasses.replace(type_config(compose("algo=dreamerv3", "env=CartPole-v1")).run.model, **changes)


def numbers(*shape, low=-math.inf, high=math.inf, dtype="float32"):
    return Box(shape=shape, dtype=dtype, low=(low,), high=(high,))


def env(observation, action=None):
    return EnvSpec(name="an env", obs={"observation": observation}, action=action or Discrete(n=6))


def torques(size):
    return Box(shape=(size,), dtype="float32", low=(-1.0,) * size, high=(1.0,) * size)


WALKER = env(
    Nested(
        spaces=(("orientations", numbers(14)), ("height", numbers()), ("velocity", numbers(9))), ordered=False
    ),
    torques(6),
)
SCREEN = env(numbers(64, 64, 3, low=0.0, high=255.0, dtype="uint8"))


def networks(spec, cfg):
    policy = DreamerPolicy(spec, Model(cfg), Explorer(spec, ExplorationConfig(kind="sampled", kwargs={})))
    rssm, units = policy.rssm, cfg.widths.units
    return {
        "encoder": policy.encoder,
        "rssm": rssm,
        "policy": policy.actor,
        "decoder": WorldDecoder(policy.encoder.entries, cfg, rssm.deter, rssm.size, policy.compute),
        "reward": Head(rssm.features, cfg.bins, units, cfg.reward_layers, policy.compute, 0.0),
        "continue": Head(rssm.features, 1, units, cfg.continue_layers, policy.compute),
        "value": Head(rssm.features, cfg.bins, units, cfg.value_layers, policy.compute, 0.0),
    }


def counted(spec, cfg):
    with torch.device("meta"):
        return {name: sum(p.numel() for p in net.parameters()) for name, net in networks(spec, cfg).items()}


def formula(size, image):
    """The number of parameters of the author's networks for walker_walk's vectors, or for 64 x 64 x 3 and 6 choices."""
    deter, hidden, classes, depth, units = SIZES[size]
    z, actions = 32 * classes, 6
    depths = [2 * depth, 3 * depth, 4 * depth, 4 * depth]

    def layer(inputs, outputs):
        return inputs * outputs + outputs + outputs

    def head(inputs, layers, outputs):
        return layer(inputs, units) + (layers - 1) * layer(units, units) + units * outputs + outputs

    def convolution(inputs, outputs):
        return 25 * inputs * outputs + outputs + outputs

    tokens = 4 * 4 * depths[3] if image else units
    rssm = layer(deter, hidden) + layer(z, hidden) + layer(actions, hidden)
    rssm += 8 * (deter // 8 + 3 * hidden) * (deter // 8) + deter + deter  # the layer before the gates, and its norm
    rssm += 8 * (deter // 8) * (3 * deter // 8) + 3 * deter
    rssm += layer(deter, hidden) + layer(hidden, hidden) + hidden * z + z
    rssm += layer(deter + tokens, hidden) + hidden * z + z
    if image:
        cells = 4 * 4 * depths[3]
        encoder = sum(convolution(i, o) for i, o in zip([3, *depths], depths, strict=False))
        decoder = deter * cells // 8 + cells + layer(z, 2 * units) + 2 * units * cells + cells + depths[3]
        decoder += sum(convolution(i, o) for i, o in zip(depths[:0:-1], depths[-2::-1], strict=True))
        decoder += 25 * depths[0] * 3 + 3
    else:
        encoder = layer(24, units) + 2 * layer(units, units)
        decoder = layer(deter + z, units) + 2 * layer(units, units) + units * 24 + 24
    outputs = actions if image else 2 * actions  # means and deviations of torques
    return encoder + rssm + decoder + sum(head(deter + z, *one) for one in ((1, 255), (1, 1), (3, 255), (3, outputs)))


PUBLISHED = {  # in millions, vectors and images
    "size12m": (9.74, 10.49), "size25m": (21.8, 23.5), "size50m": (38.6, 41.6), "size100m": (86.6, 93.5),
    "size200m": (153.8, 165.9), "size400m": (345.5, 372.9),
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_numbers_of_parameters_are_the_authors(size):
    cfg = options(size=size)
    made = [sum(counted(spec, cfg).values()) for spec in (WALKER, SCREEN)]
    assert made == [formula(size, image) for image in (False, True)]
    if size == "size1m":
        assert made == [640_867, 686_456]
        assert counted(WALKER, cfg) == {
            "encoder": 10_112, "rssm": 364_416, "policy": 50_316, "decoder": 51_096, "reward": 57_663,
            "continue": 41_153, "value": 66_111,
        }  # fmt: skip
    else:
        assert made == [pytest.approx(1e6 * millions, rel=1e-2) for millions in PUBLISHED[size]]


def test_initial_weights_have_the_authors_deviation():
    torch.manual_seed(0)
    nets = networks(WALKER, options())
    rssm = nets["rssm"]
    # All 2048 inputs of a layer in blocks count, not the 256 of one block.
    assert rssm.mixed.weight.std().item() == pytest.approx(1 / math.sqrt(512 + 8 * 192), rel=0.02)
    assert rssm.of_h.weight.std().item() == pytest.approx(1 / math.sqrt(512), rel=0.02)
    assert rssm.of_h.weight.abs().max().item() <= 2.0001 * 1.1368 / math.sqrt(512)
    assert nets["policy"].last.weight.std().item() == pytest.approx(0.01 / 8, rel=0.1)
    features = torch.randn(3, rssm.features)
    assert nets["reward"](features).abs().max() == 0.0 == nets["value"](features).abs().max()


def rssm_of(seed=0, actions=3, tokens=5, **changes):
    torch.manual_seed(seed)
    made = RSSM(options(**(TINY | changes)), actions, tokens, torch.float32)
    for name, parameter in made.named_parameters():
        if name.endswith(("bias", "scale")):  # so that they matter
            torch.nn.init.normal_(parameter, float(name.endswith("scale")), 0.3)
    return made


def test_the_memory_is_the_papers_gru_in_blocks():
    rssm = rssm_of()
    rng = np.random.default_rng(0)
    h, z = np.tanh(rng.normal(size=(4, 16))), np.eye(12)[rng.integers(12, size=4)]
    action = np.array([[0.5, -3.0, 1.0]] * 4)

    def f(x, scale):
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-4) * scale.detach().numpy()
        return x / (1 + np.exp(-x))

    def layer(x, net):
        return f(x @ net.weight.detach().numpy().T + net.bias.detach().numpy(), net.scale)

    def blocks(parts, net):
        made = [part @ weight for part, weight in zip(parts, net.weight.detach().numpy(), strict=True)]
        return np.concatenate(made, -1) + net.bias.detach().numpy()

    clipped = action / np.maximum(1.0, np.abs(action))
    x = np.concatenate([layer(h, rssm.of_h), layer(z, rssm.of_z), layer(clipped, rssm.of_action)], -1)
    mixed = f(blocks([np.concatenate([part, x], -1) for part in np.split(h, 2, -1)], rssm.mixed), rssm.mixed_scale)
    gates = [np.split(part @ weight + bias, 3, -1) for part, weight, bias in zip(
        np.split(mixed, 2, -1), rssm.gates.weight.detach().numpy(), np.split(rssm.gates.bias.detach().numpy(), 2), strict=True)]  # fmt: skip

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    wanted = []
    for old, (reset, candidate, update) in zip(np.split(h, 2, -1), gates, strict=True):
        u = sigmoid(update - 1)
        wanted.append(u * np.tanh(sigmoid(reset) * candidate) + (1 - u) * old)
    as_float = [torch.from_numpy(each).float() for each in (h, z, action)]
    made = rssm.core(as_float[0])(*as_float[:2], rssm.embedded(as_float[2]))
    np.testing.assert_allclose(made.detach().numpy(), np.concatenate(wanted, -1), atol=1e-5)


def test_z_is_drawn_with_its_probabilities_and_straight_through_gradients():
    rssm = rssm_of(unimix=0.1)
    logits = torch.tensor([3.0, -1.0, 0.0]).repeat_interleave(4).repeat(20_000, 1).requires_grad_()
    chances = rssm.probabilities(logits)
    soft = np.exp([3.0, -1.0, 0.0]) / np.exp([3.0, -1.0, 0.0]).sum()
    wanted = torch.tensor(0.9 * soft + 0.1 / 3).float()
    torch.testing.assert_close(chances[0], wanted.view(3, 1).expand(3, 4))
    z = rssm.draw(chances, torch.rand(20_000, 4, generator=torch.Generator().manual_seed(0)))
    one_hot = z.view(-1, 3, 4)
    assert torch.equal(one_hot.detach().sum(1), torch.ones(20_000, 4)) and set(z.detach().unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(one_hot.detach().mean((0, 2)), wanted, atol=0.01, rtol=0)
    weight = torch.randn(12, generator=torch.Generator().manual_seed(1))
    (given,) = torch.autograd.grad((z * weight).sum(), logits, retain_graph=True)
    (of_chances,) = torch.autograd.grad((chances.flatten(1) * weight).sum(), logits)
    torch.testing.assert_close(given, of_chances)
    assert rssm.draw(chances.detach(), torch.full((20_000, 4), 1.0 - 2**-24)).sum() == 4 * 20_000
    best = rssm.best(chances.detach())[0].view(3, 4)
    assert best.argmax(0).tolist() == [0, 0, 0, 0] and best.sum() == 4


def followed(rssm, state, tokens, actions, is_first, uniform):
    with torch.no_grad():
        return rssm.observe(state, tokens, actions, is_first, uniform)


def rows(rssm, count, columns=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    start = State(torch.rand(columns, 16, generator=rng) - 0.5, rssm.draw(
        torch.full((columns, 3, 4), 1 / 3), torch.rand(columns, 4, generator=rng)))  # fmt: skip
    tokens, actions = (torch.randn(count, columns, size, generator=rng) for size in (5, 3))
    return start, tokens, actions, torch.rand(count, columns, 4, generator=rng)


def test_a_reset_in_the_middle_of_rows_is_a_new_beginning():
    rssm = rssm_of()
    start, tokens, actions, uniform = rows(rssm, 6)
    is_first = torch.zeros(6, 3, dtype=torch.bool)
    is_first[4, 1] = True
    whole, logits = followed(rssm, start, tokens, actions, is_first, uniform)
    # The column that is reset, from the row on where it is, as rows of their own with other things before them.
    other = State(torch.full((1, 16), 0.7), torch.zeros(1, 12))
    alone, own = followed(
        rssm, other, tokens[4:, 1:2], actions[4:, 1:2] * 9.0 + 1.0 * is_first[4:, 1:2, None], is_first[4:, 1:2], uniform[4:, 1:2])  # fmt: skip
    torch.testing.assert_close(whole.h[4, 1:2], rssm.first())
    torch.testing.assert_close(whole.h[4, 1:2], alone.h[0])
    torch.testing.assert_close(logits[4, 1:2], own[0])
    # Nothing changes in the other columns, nor before.
    never, _ = followed(rssm, start, tokens, actions, torch.zeros_like(is_first), uniform)
    torch.testing.assert_close(whole.h[:, [0, 2]], never.h[:, [0, 2]])
    torch.testing.assert_close(whole.h[:4], never.h[:4])
    assert (whole.h[4:, 1] - never.h[4:, 1]).abs().max() > 1e-3


def test_rows_in_two_halves_are_the_whole_rows():
    rssm = rssm_of()
    start, tokens, actions, uniform = rows(rssm, 8)
    is_first = torch.zeros(8, 3, dtype=torch.bool)
    whole, logits = followed(rssm, start, tokens, actions, is_first, uniform)
    half, _ = followed(rssm, start, tokens[:5], actions[:5], is_first[:5], uniform[:5])
    rest, own = followed(
        rssm, State(half.h[-1], half.z[-1]), tokens[5:], actions[5:], is_first[5:], uniform[5:])  # fmt: skip
    torch.testing.assert_close(torch.cat((half.h, rest.h)), whole.h)
    torch.testing.assert_close(own, logits[5:])


def test_dreams_from_a_posterior_are_the_priors_rollout():
    rssm = rssm_of()
    start, _, actions, uniform = rows(rssm, 5)
    features, taken = rssm.imagine(start, lambda seen, step: actions[step], uniform)
    assert torch.equal(taken, actions) and torch.equal(features[0], start.features) and len(features) == 6
    h, z = start
    with torch.no_grad():
        for step in range(5):
            h = rssm.core(h)(h, z, rssm.embedded(actions[step]))
            z = rssm.draw(rssm.probabilities(rssm.prior(h)), uniform[step])
            state = State.of(features[step + 1], 16)
            torch.testing.assert_close(state.h, h)
            assert torch.equal(state.z, z)


def slowly(rssm, state, tokens, actions, is_first, uniform):
    """RSSM.observe, with the gradients that autograd makes of it."""

    def f(x, scale):
        return torch.nn.functional.silu(x * (x.square().mean(-1, keepdim=True) + 1e-4).rsqrt() * scale)

    def layer(x, net):
        return f(torch.nn.functional.linear(x, net.weight, net.bias), net.scale)

    def blocks(parts, net):
        made = [part @ weight for part, weight in zip(parts, net.weight, strict=True)]
        return torch.cat(made, -1) + net.bias

    (h, z), made = state, []
    for t in range(len(tokens)):
        keep = (~is_first[t]).float().unsqueeze(-1)
        old = h * keep
        clipped = actions[t] * keep / (actions[t] * keep).detach().abs().clamp(min=1.0)
        x = torch.cat([layer(old, rssm.of_h), layer(z * keep, rssm.of_z), layer(clipped, rssm.of_action)], -1)
        mixed = f(blocks([torch.cat([part, x], -1) for part in old.chunk(2, -1)], rssm.mixed), rssm.mixed_scale)
        gates = zip(mixed.chunk(2, -1), rssm.gates.weight, rssm.gates.bias.chunk(2), strict=True)
        reset, candidate, update = (
            torch.cat(parts, -1)
            for parts in zip(*((part @ weight + bias).chunk(3, -1) for part, weight, bias in gates), strict=True)
        )
        update = (update - 1).sigmoid()
        h = update * (reset.sigmoid() * candidate).tanh() + (1 - update) * old
        logits = rssm.posterior.last(layer(torch.cat([h, tokens[t]], -1), rssm.posterior.first))
        z = rssm.draw(rssm.probabilities(logits), uniform[t])
        made.append((h, z, logits))
    h, z, logits = (torch.stack(parts) for parts in zip(*made, strict=True))
    return State(h, z), logits


def test_gradients_of_following_rows_are_those_of_autograd():
    rssm = rssm_of()
    start, tokens, actions, uniform = rows(rssm, 7)
    is_first = torch.zeros(7, 3, dtype=torch.bool)
    is_first[3, 1] = is_first[0, 2] = True
    rng, found = torch.Generator().manual_seed(4), []
    weights = [torch.randn(7, 3, size, generator=rng) for size in (16, 12, 12)]
    for follow in (rssm.observe, slowly):
        given = [x.clone().requires_grad_() for x in (tokens, actions)]
        follow = follow if follow == rssm.observe else lambda *args: slowly(rssm, *args)
        states, logits = follow(start, *given, is_first, uniform)
        rssm.zero_grad()
        sum((x * weight).sum() for x, weight in zip((*states, logits), weights, strict=True)).backward()
        learnt = {name: p.grad for name, p in rssm.named_parameters() if not name.startswith("prior")}
        found.append((states.h, states.z, logits, learnt, {"tokens": given[0].grad, "actions": given[1].grad}))
    assert all(gradient is not None and gradient.abs().max() > 1e-3 for gradient in found[0][3].values())
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, atol=2e-5, rtol=1e-4)


def test_heads_side_by_side_put_out_what_each_does_alone():
    heads = [Head(6, outputs, 4, layers, torch.float32) for outputs, layers in ((3, 1), (1, 2), (5, 3))]
    x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(0))
    for made, head in zip(side_by_side(heads, x), heads, strict=True):
        torch.testing.assert_close(made, head(x))


PARTS = Nested(
    spaces=(
        ("camera", numbers(48, 64, 3, low=0.0, high=255.0, dtype="uint8")),
        ("deep", Nested(spaces=(("depth", numbers(2, 48, 64, low=-1.0, high=1.0)),), ordered=False)),
        ("kind", Discrete(n=4)),
        ("pair", MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,))),
        ("speed", numbers(2, 2)),
        ("switches", MultiBinary(shape=(3,))),
    ),
    ordered=False,
)


def seen(count):
    rng = torch.Generator().manual_seed(0)
    return Batch(
        camera=torch.randint(256, (count, 48, 64, 3), generator=rng).to(torch.uint8),
        deep=Batch(depth=torch.rand(count, 2, 48, 64, generator=rng) * 2 - 1),
        kind=torch.randint(4, (count,), generator=rng),
        pair=torch.stack([torch.randint(n, (count,), generator=rng) for n in (2, 3)], 1),
        speed=torch.randn(count, 2, 2, generator=rng) * 100.0,
        switches=torch.randint(2, (count, 3), generator=rng),
    )


def test_several_entries_are_read_and_predicted_together():
    torch.manual_seed(0)
    cfg, entries = options(**TINY), entries_of(env(PARTS))
    encoder = WorldEncoder(entries, cfg, torch.float32)
    decoder = WorldDecoder(entries, cfg, 16, 12, torch.float32)
    obs, state = seen(5), State(torch.rand(5, 16), torch.rand(5, 12))
    tokens = encoder(obs)
    assert tokens.shape == (5, encoder.features) == (5, 8 + 3 * 4 * 8)
    for name in obs:  # every entry is read
        other = seen(6)[1:][name]
        assert not torch.equal(encoder(obs.replace(**{name: other})), tokens), name
    with torch.no_grad():
        told, said = decoder.predicted(state), decoder(state)
        wanted = torch.zeros(5)
        for name, true in (("camera", pixels(PARTS.parts["camera"], obs.camera)), ("deep.depth", (obs.deep.depth + 1) / 2)):
            assert said[name].shape == true.shape and true.min() >= 0 and true.max() <= 1
            wanted += (said[name] - true).square().flatten(1).sum(1)
        wanted += (said["speed"] - symlog(obs.speed.flatten(1))).square().sum(1)
        row = torch.arange(5)
        wanted -= told["kind"].log()[row, obs.kind] + told["pair"].log()[row, obs.pair[:, 0]]
        wanted -= told["pair"].log()[row, 2 + obs.pair[:, 1]]
        right = torch.where(obs.switches.bool(), told["switches"], 1 - told["switches"])
        wanted -= right.log().sum(1)
    torch.testing.assert_close(decoder.loss(state, obs).detach(), wanted)
    torch.testing.assert_close(told["speed"], symexp(said["speed"]))


@pytest.mark.parametrize("space, said", [
    (numbers(84, 84, 4, low=0.0, high=255.0, dtype="uint8"), "images of 84 x 84"),
    (numbers(32, 32, 3, low=0.0, high=255.0, dtype="uint8"), "images of 32 x 32"),
    (numbers(64, 64, 3), "without bounds"),
])  # fmt: skip
def test_images_that_no_world_model_reads_are_refused(space, said):
    with pytest.raises(UserError, match=said):
        entries_of(env(space))
