"""Networks of DreamerV3: a recurrent state-space model with encoder, decoder and heads.

Source: Hafner et al. 2025, Nature 640 (arXiv:2301.04104v2), in the form of the author's code (danijar/dreamerv3 @
e3f0224). Numbers of parameters equal the author's (tests/models/test_world_model.py).

The state of a world model has two parts. h [N, deter] is the memory, which is computed; z is drawn: `stoch` categorical
variables of `classes` classes each, one-hot. z is flat here, [N, classes * stoch], with the classes first, because sums
over classes are then sums over whole rows of `stoch` numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.conditions import CONTINUOUS, IMAGES, NUMBERS, VECTORS, OnlyFor
from rlrun.core.ranges import Count, NotNegative, Positive, Range, Share
from rlrun.models.encoders import one_hot
from rlrun.models.world_core import Core, Follow, Posterior, Weights, activated, grown

FEW = 128  # rows below which bfloat16 does not pay on a CPU
FACTORS = (2, 3, 4, 4)  # channels of the convolutions, in multiples of depth; each halves height and width


class Widths(NamedTuple):
    """The widths of one of the published sizes."""

    deter: int  # numbers in h
    hidden: int  # width of the layers of the state-space model
    classes: int  # classes of each of the variables of z
    depth: int  # channels of convolutions, before FACTORS
    units: int  # width of the layers of encoder, decoder and heads


# configs.yaml of the author's code. 12m to 200m are the sizes of the paper (extended data, table 3).
SIZES = {
    "size1m": Widths(512, 64, 4, 4, 64),
    "size12m": Widths(2048, 256, 16, 16, 256),
    "size25m": Widths(3072, 384, 24, 24, 384),
    "size50m": Widths(4096, 512, 32, 32, 512),
    "size100m": Widths(6144, 768, 48, 48, 768),
    "size200m": Widths(8192, 1024, 64, 64, 1024),
    "size400m": Widths(12288, 1536, 96, 96, 1536),
}
Size = Literal["size1m", "size12m", "size25m", "size50m", "size100m", "size200m", "size400m"]


@dataclass(frozen=True, kw_only=True)
class NoMemoryAsked:
    """Stands for the options of conf/model/memory where the model has a memory of its own."""

    kind: str = "none"
    previous: ClassVar[tuple[bool, bool]] = (False, False)


class OwnNetworks:
    """Options that stand in place of those of other networks. Here is what is asked of those."""

    encoder: ClassVar[str] = "world_model"
    observation_filter: ClassVar[str] = "none"
    memory: ClassVar[NoMemoryAsked] = NoMemoryAsked()
    central: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class WorldModelConfig(OwnNetworks):
    """Options of conf/model/world_model.yaml."""

    size: Size
    deter: Annotated[int, Count] | None
    hidden: Annotated[int, Count] | None
    classes: Annotated[int, Range(2)] | None
    depth: Annotated[Annotated[int, Count] | None, OnlyFor(IMAGES)]
    units: Annotated[int, Count] | None
    stoch: Annotated[int, Count]
    blocks: Annotated[int, Count]
    prior_layers: Annotated[int, Count]
    encoder_layers: Annotated[int, Count, OnlyFor(VECTORS)]
    decoder_layers: Annotated[int, Count, OnlyFor(VECTORS)]
    reward_layers: Annotated[int, Count]
    continue_layers: Annotated[int, Count]
    policy_layers: Annotated[int, Count]
    value_layers: Annotated[int, Count]
    bins: Annotated[int, Range(3)]
    unimix: Annotated[float, Share]
    min_std: Annotated[float, Positive, OnlyFor(CONTINUOUS)]
    max_std: Annotated[float, Positive, OnlyFor(CONTINUOUS)]
    policy_outscale: Annotated[float, NotNegative]
    symlog: Annotated[bool, OnlyFor(NUMBERS)]

    def __post_init__(self):
        if self.widths.deter % self.blocks:
            raise ValueError(f"deter {self.widths.deter} must be a multiple of blocks {self.blocks}")
        if self.bins % 2 == 0:
            raise ValueError(f"bins {self.bins} must be odd, so that one of them is 0")
        if self.min_std > self.max_std:
            raise ValueError(f"min_std {self.min_std:g} must not be above max_std {self.max_std:g}")

    @property
    def widths(self) -> Widths:
        """The widths of the size, with those that are given in place of its own."""
        own = {name: getattr(self, name) for name in Widths._fields if getattr(self, name) is not None}
        return SIZES[self.size]._replace(**own)


# -- layers ------------------------------------------------------------------------------------------------------------


def draw(weight: Tensor, inputs: int, scale: float = 1.0) -> None:
    """Draws weights from a normal distribution that is cut off at two deviations; the variance is scale^2 / inputs."""
    deviation = scale * 1.1368 / math.sqrt(inputs)
    if deviation == 0.0:
        nn.init.zeros_(weight)
    else:
        nn.init.trunc_normal_(weight, 0.0, deviation, -2.0 * deviation, 2.0 * deviation)


def precision(compute: torch.dtype, x: Tensor) -> torch.dtype:
    """That of products with x [..., K]. On a CPU those of a few rows are float32, because bfloat16 weights are put into
    another order for each product, which takes longer than the product itself."""
    if compute != torch.bfloat16 or x.device.type != "cpu" or torch.compiler.is_exporting():
        return compute
    return compute if x.shape[:-1].numel() >= FEW else torch.float32


class Product(nn.Module):
    """A linear layer whose product is made in `compute` precision, and whose outputs are float32."""

    def __init__(self, inputs: int, outputs: int, compute: torch.dtype, scale: float = 1.0):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(outputs, inputs)), nn.Parameter(torch.zeros(outputs))
        self.compute = compute
        draw(self.weight, inputs, scale)

    def forward(self, x: Tensor) -> Tensor:
        low = precision(self.compute, x)
        return F.linear(x.to(low), self.weight.to(low), self.bias.to(low)).float()


class BlockProduct(nn.Module):
    """A linear layer in blocks: inputs and outputs are cut into `blocks` parts, and each part of the outputs is made
    from one part of the inputs. Initial weights are as small as if all inputs were connected, as the author's are."""

    def __init__(self, inputs: int, outputs: int, blocks: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        draw(self.weight, inputs)


class NormedProduct(Product):
    """A linear layer with RMSNorm and SiLU behind it."""

    def __init__(self, inputs: int, outputs: int, compute: torch.dtype):
        super().__init__(inputs, outputs, compute)
        self.scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return activated(super().forward(x), self.scale)


def stack(inputs: int, width: int, count: int, compute: torch.dtype) -> nn.Sequential:
    """`count` layers of the same width."""
    return nn.Sequential(*(NormedProduct(width if i else inputs, width, compute) for i in range(count)))


class Head(nn.Module):
    """Layers with a linear layer behind them. scale: factor on the initial weights of the last one."""

    def __init__(self, inputs: int, outputs: int, width: int, layers: int, compute: torch.dtype, scale: float = 1.0):
        super().__init__()
        self.layers = stack(inputs, width, layers, compute)
        self.last = Product(width, outputs, compute, scale)

    @property
    def first(self) -> NormedProduct:
        layer = self.layers[0]
        assert isinstance(layer, NormedProduct)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x))

    def behind_first(self, product: Tensor) -> Tensor:
        """What it puts out, given the product of its first layer, before the norm."""
        return self.last(self.layers[1:](activated(product, self.first.scale)))


def side_by_side(heads: Sequence[Head], x: Tensor) -> list[Tensor]:
    """What each head puts out for x. Their first layers are one product."""
    firsts = [head.first for head in heads]
    low = precision(firsts[0].compute, x)
    weight, bias = (torch.cat([getattr(layer, name) for layer in firsts]).to(low) for name in ("weight", "bias"))
    products = F.linear(x.to(low), weight, bias).float().split([len(layer.bias) for layer in firsts], -1)
    return [head.behind_first(product) for head, product in zip(heads, products, strict=True)]


# -- the state-space model ---------------------------------------------------------------------------------------------


class State(NamedTuple):
    h: Tensor  # [N, deter]
    z: Tensor  # [N, classes * stoch]

    @property
    def features(self) -> Tensor:
        """What heads see [N, deter + classes * stoch]."""
        return torch.cat((self.h, self.z), -1)

    @classmethod
    def of(cls, features: Tensor, deter: int) -> State:
        """The state whose features [..., F] these are; deter: numbers in h."""
        return cls(features[..., :deter], features[..., deter:])


class RSSM(nn.Module):
    """A recurrent state-space model: h is a GRU in blocks, z follows from h (prior), or from h and the observation
    (posterior)."""

    def __init__(self, cfg: WorldModelConfig, actions: int, tokens: int, compute: torch.dtype):
        """actions: numbers in an action. tokens: numbers that the encoder makes of an observation."""
        super().__init__()
        wide = cfg.widths
        self.deter, self.classes, self.stoch = wide.deter, wide.classes, cfg.stoch
        self.blocks, self.unimix, self.compute = cfg.blocks, cfg.unimix, compute
        self.size = self.classes * self.stoch  # numbers in z
        self.of_h = NormedProduct(self.deter, wide.hidden, compute)
        self.of_z = NormedProduct(self.size, wide.hidden, compute)
        self.of_action = NormedProduct(actions, wide.hidden, compute)
        self.mixed = BlockProduct(self.deter + self.blocks * 3 * wide.hidden, self.deter, self.blocks)
        self.mixed_scale = nn.Parameter(torch.ones(self.deter))
        self.gates = BlockProduct(self.deter, 3 * self.deter, self.blocks)
        self.prior = Head(self.deter, self.size, wide.hidden, cfg.prior_layers, compute)
        self.posterior = Head(self.deter + tokens, self.size, wide.hidden, 1, compute)

    @property
    def features(self) -> int:
        return self.deter + self.size

    def embedded(self, action: Tensor) -> Tensor:
        """Flat actions [N, A] as the core sees them [N, hidden]. Numbers beyond [-1, 1] count as -1 or 1."""
        return self.of_action(action / action.detach().abs().clamp(min=1.0))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Those of all classes [N, classes, stoch], mixed with unimix of a uniform distribution."""
        soft = logits.view(-1, self.classes, self.stoch).softmax(1)
        if self.unimix == 0.0:  # a probability may underflow then, and its logarithm must be finite
            return soft.clamp(min=torch.finfo(soft.dtype).tiny)
        return torch.add(self.unimix / self.classes, soft, alpha=1.0 - self.unimix)

    def draw(self, probabilities: Tensor, uniform: Tensor) -> Tensor:
        """One-hot z [N, S] from probabilities [N, classes, stoch] and uniform numbers [N, stoch] in [0, 1). Its
        gradient is that of the probabilities (straight-through, Bengio et al. 2013, arXiv:1308.3432)."""
        known = probabilities.detach()
        ends = known.cumsum(1)
        # Rounding must not put a number behind the last end.
        place = (uniform * (1.0 - 1e-6)).unsqueeze(1) * ends[:, -1:]
        above = ends.gt_(place)  # 0.0 for the classes before the one that is drawn, and 1.0 from there on
        hard = torch.cat((above[:, :1], above[:, 1:] - above[:, :-1]), 1)
        return (hard + (probabilities - known) if probabilities.requires_grad else hard).flatten(1)

    def best(self, probabilities: Tensor) -> Tensor:
        """One-hot z [N, S] of the most probable classes."""
        return one_hot(probabilities.argmax(1), self.classes).transpose(1, 2).flatten(1)

    def believed(self, h: Tensor, tokens: Tensor) -> Tensor:
        """Logits [N, S] of the posterior, from h [N, deter] and an encoded observation [N, E]."""
        return self.posterior(torch.cat((h, tokens), -1))

    def core(self, like: Tensor) -> Core:
        """For states whose h is `like` [N, deter]."""
        return Core(self.weights(precision(self.compute, like)))

    def weights(self, low: torch.dtype) -> Weights:
        """low: the precision of products."""
        part = self.deter // self.blocks
        mixed, gates = self.mixed.weight.to(low), self.gates  # [blocks, part + 3 hidden, part]
        of_h, of_z = self.of_h, self.of_z
        return Weights(
            *(of_h.weight.to(low), of_h.bias.to(low), grown(of_h.scale)),
            *(of_z.weight.to(low), of_z.bias.to(low), grown(of_z.scale)),
            of_inputs=mixed[:, part:].transpose(0, 1).reshape(-1, self.deter),
            mixed_bias=self.mixed.bias.to(low),
            of_blocks=mixed[:, :part],
            mixed_scale=grown(self.mixed_scale),
            gates=gates.weight.to(low),
            gates_bias=gates.bias.to(low).view(self.blocks, 1, 3 * part),
        )

    def first(self) -> Tensor:
        """h at the beginning of an episode [1, deter]: one step from zeros, without an action."""
        like = self.mixed_scale
        h, z, action = (like.new_zeros(1, n) for n in (self.deter, self.size, self.of_action.weight.shape[1]))
        return self.core(h)(h, z, self.embedded(action))

    def observe(
        self, state: State, tokens: Tensor, actions: Tensor, is_first: Tensor, uniform: Tensor
    ) -> tuple[State, Tensor]:
        """Follows T rows of observations. Returns the states [T, B, ...] and the logits [T, B, S] of the posterior.

        Where is_first, the row's memory begins anew: state and action before it become 0 by a mask.

        Args: state, that of the row before, which gets no gradient; tokens [T, B, E]; actions [T, B, A], those before
        each row; is_first [T, B]; uniform [T, B, stoch]."""
        keep, rows = (~is_first).float().unsqueeze(-1), is_first.shape  # [T, B, 1]
        low = precision(self.compute, state.h)
        action = self.embedded((actions * keep).flatten(0, 1)).unflatten(0, rows)
        # The part of the posterior's first layer that does not depend on h is made for all rows at once.
        layer, last = self.posterior.first, self.posterior.last
        seen = F.linear(tokens.to(self.compute), layer.weight[:, self.deter :].to(self.compute)).float() + layer.bias
        posterior = Posterior(layer.weight[:, : self.deter], grown(layer.scale), last.weight, last.bias)
        made = Follow.apply(  # type: ignore[no-untyped-call]
            self.draw, self.unimix, keep, uniform, *state, action, seen, *self.weights(low), *posterior
        )
        return State(*made[:2]), made[2]

    @torch.no_grad()
    def imagine(self, state: State, act: Callable[[Tensor, int], Tensor], uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Dreams H steps from N states by the prior. Returns the features [H + 1, N, F] of all states, of which the
        first is the one given, in the precision of products, and the flat actions [H, N, A] that act(features, step)
        chose.

        uniform: [H, N, stoch]."""
        core, actions = self.core(state.h), []
        features = state.h.new_empty(len(uniform) + 1, len(state.h), self.features, dtype=core.low)
        all_h, all_z = features.split((self.deter, self.size), -1)
        all_h[0], all_z[0] = state
        h = core.cut(state.h).contiguous()
        for step in range(len(uniform)):
            actions.append(act(features[step], step))
            h, _ = core.step(h, all_h[step], all_z[step], self.embedded(actions[-1]))
            core.cut(all_h[step + 1]).copy_(h)
            all_z[step + 1] = self.draw(self.probabilities(self.prior(all_h[step + 1])), uniform[step])
        return features, torch.stack(actions)
