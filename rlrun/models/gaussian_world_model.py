"""Networks of Dreamer (2020): a recurrent state-space model whose z is normal, with encoder, decoder and heads.

Source: Hafner et al. 2020, arXiv:1912.01603, appendix A, and 2019, arXiv:1811.04551 (PlaNet), in the form of the
author's code (danijar/dreamer @ 56d4d44). Layers begin as Keras's do (Glorot & Bengio 2010, biases 0).

As in models/world_model.py, the state of the model is h [N, deter], which is computed, and z [N, stoch], which is
drawn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.core.conditions import CONTINUOUS, IMAGES, VECTORS, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.models.encoders import ACTIVATIONS, flat_size
from rlrun.models.observations import Entries, Predictor, images_of, vectors_of
from rlrun.models.world_model import OwnNetworks, Product, State

Activation = Literal["tanh", "relu", "elu", "silu"]
SIDE = 64  # of an image: what the decoder's convolutions make of one place
CHANNELS = (1, 2, 4, 8)  # channels of the encoder's convolutions, in multiples of depth
KERNEL, KERNELS_BACK = 4, (5, 5, 6, 6)
PLACES = 2 * 2  # behind the encoder's last convolution


@dataclass(frozen=True, kw_only=True)
class GaussianWorldModelConfig(OwnNetworks):
    """Options of conf/model/gaussian_world_model.yaml."""

    deter: Annotated[int, Count]
    stoch: Annotated[int, Count]
    hidden: Annotated[int, Count]
    units: Annotated[int, Count]
    depth: Annotated[Annotated[int, Count], OnlyFor(IMAGES)]
    encoder_layers: Annotated[int, Count, OnlyFor(VECTORS)]
    decoder_layers: Annotated[int, Count, OnlyFor(VECTORS)]
    reward_layers: Annotated[int, Count]
    continue_layers: Annotated[int, Count, OnlyWith("algo.continuation")]
    value_layers: Annotated[int, Count]
    policy_layers: Annotated[int, Count]
    activation: Activation
    conv_activation: Annotated[Activation, OnlyFor(IMAGES)]
    min_std: Annotated[float, Positive]
    mean_scale: Annotated[float, Positive, OnlyFor(CONTINUOUS)]
    init_std: Annotated[float, Positive, OnlyFor(CONTINUOUS)]
    action_min_std: Annotated[float, NotNegative, OnlyFor(CONTINUOUS)]


class Dense(Product):
    """A linear layer that begins as Keras's does."""

    def __init__(self, inputs: int, outputs: int, compute: torch.dtype):
        super().__init__(inputs, outputs, compute)
        nn.init.xavier_uniform_(self.weight)


def dense(
    inputs: int, width: int, count: int, outputs: int | None, activation: str, compute: torch.dtype
) -> nn.Sequential:
    """`count` layers of the same width and, unless outputs is None, a linear layer behind them."""
    made: list[nn.Module] = []
    for i in range(count):
        made += [Dense(width if i else inputs, width, compute), ACTIVATIONS[activation]()]
    return nn.Sequential(*made, *([] if outputs is None else [Dense(width, outputs, compute)]))


class Belief(NamedTuple):
    """Independent normal variables."""

    mean: Tensor  # [..., stoch]
    std: Tensor  # [..., stoch]

    def drawn(self, noise: Tensor) -> Tensor:
        """z [..., stoch] from standard normal numbers, with gradients to mean and std."""
        return self.mean + self.std * noise

    def divergence(self, other: Belief) -> Tensor:
        """KL(self || other) [...], summed over z."""
        ratio, shift = self.std / other.std, (self.mean - other.mean) / other.std
        return (0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()).sum(-1)

    def entropy(self) -> Tensor:
        """[...], summed over z."""
        return (self.std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014) whose reset gate acts behind the product, as in Keras and PyTorch."""

    def __init__(self, inputs: int, size: int, compute: torch.dtype):
        super().__init__()
        self.of_x, self.of_h = Dense(inputs, 3 * size, compute), Dense(size, 3 * size, compute)
        nn.init.orthogonal_(self.of_h.weight)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """x [N, inputs], h [N, size] -> the next h [N, size]."""
        reset_x, update_x, candidate_x = self.of_x(x).chunk(3, -1)
        reset_h, update_h, candidate_h = self.of_h(h).chunk(3, -1)
        candidate = (candidate_x + (reset_x + reset_h).sigmoid() * candidate_h).tanh()
        return torch.lerp(candidate, h, (update_x + update_h).sigmoid())


class GaussianRSSM(nn.Module):
    """A recurrent state-space model: h is a GRU; z follows from h (prior), or from h and the observation
    (posterior)."""

    def __init__(self, cfg: GaussianWorldModelConfig, actions: int, tokens: int, compute: torch.dtype):
        """actions: numbers in an action. tokens: numbers that the encoder makes of an observation."""
        super().__init__()
        self.deter, self.size, self.min_std, self.actions = cfg.deter, cfg.stoch, cfg.min_std, actions
        kind = cfg.activation
        self.input = dense(cfg.stoch + actions, cfg.hidden, 1, None, kind, compute)
        self.gru = GRU(cfg.hidden, cfg.deter, compute)
        self.prior_net = dense(cfg.deter, cfg.hidden, 1, 2 * cfg.stoch, kind, compute)
        self.posterior_net = dense(cfg.deter + tokens, cfg.hidden, 1, 2 * cfg.stoch, kind, compute)

    @property
    def features(self) -> int:
        return self.deter + self.size

    def step(self, state: State, action: Tensor) -> Tensor:
        """The next h [N, deter], given a flat action [N, A]."""
        return self.gru(self.input(torch.cat((state.z, action), -1)), state.h)

    def _belief(self, made: Tensor) -> Belief:
        mean, raw = made.chunk(2, -1)
        return Belief(mean, F.softplus(raw) + self.min_std)

    def prior(self, h: Tensor) -> Belief:
        """What is believed of z before the observation."""
        return self._belief(self.prior_net(h))

    def posterior(self, h: Tensor, tokens: Tensor) -> Belief:
        """What is believed of z after the observation, which is encoded [N, E]."""
        return self._belief(self.posterior_net(torch.cat((h, tokens), -1)))

    def zeros(self, rows: int) -> tuple[State, Tensor]:
        """A state [rows, ...] and an action [rows, A] of zeros, those before an episode."""
        like = self.gru.of_h.weight
        h, z, action = (like.new_zeros(rows, n) for n in (self.deter, self.size, self.actions))
        return State(h, z), action

    def first(self) -> Tensor:
        """h at the beginning of an episode [1, deter]."""
        return self.step(*self.zeros(1))

    def observe(
        self, state: State, tokens: Tensor, actions: Tensor, is_first: Tensor, noise: Tensor
    ) -> tuple[State, Belief, Belief]:
        """Follows T rows of observations. Returns states, posterior and prior [T, B, ...].

        Where is_first, the row's memory begins anew: state and action before it become 0 by a mask.

        Args: state, that of the row before; tokens [T, B, E]; actions [T, B, A], those before each row; is_first
        [T, B]; noise [T, B, stoch], standard normal."""
        keep = (~is_first).float().unsqueeze(-1)  # [T, B, 1]
        actions = actions * keep
        states: list[State] = []
        beliefs: list[Belief] = []
        for t in range(len(tokens)):
            h = self.step(State(state.h * keep[t], state.z * keep[t]), actions[t])
            belief = self.posterior(h, tokens[t])
            state = State(h, belief.drawn(noise[t]))
            states.append(state)
            beliefs.append(belief)
        made = State(*(torch.stack(parts) for parts in zip(*states, strict=True)))
        posterior = Belief(*(torch.stack(parts) for parts in zip(*beliefs, strict=True)))
        return made, posterior, self.prior(made.h)

    def imagine(self, state: State, act: Callable[[State, int], Tensor], noise: Tensor) -> tuple[State, Tensor]:
        """Dreams H steps from N states by the prior. Returns the states [H + 1, N, ...], of which the first are those
        given, and the flat actions [H, N, A] that act(state, step) chose. Gradients go through actions and states.

        noise: [H, N, stoch], standard normal."""
        states, actions = [state], []
        for step in range(len(noise)):
            actions.append(act(state, step))
            h = self.step(state, actions[-1])
            state = State(h, self.prior(h).drawn(noise[step]))
            states.append(state)
        return State(*(torch.stack(parts) for parts in zip(*states, strict=True))), torch.stack(actions)


# -- observations ------------------------------------------------------------------------------------------------------


class StridedConvolution(nn.Module):
    """A convolution without padding and with stride 2, or a transposed one, in `compute` precision."""

    def __init__(self, inputs: int, outputs: int, kernel: int, compute: torch.dtype, transposed: bool = False):
        super().__init__()
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        self.weight = nn.Parameter(torch.empty(*shape, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.transposed, self.compute = transposed, compute
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, D, about H / 2, about W / 2]; transposed: about twice the size."""
        low = self.compute
        convolve = F.conv_transpose2d if self.transposed else F.conv2d
        return convolve(x.to(low), self.weight.to(low), self.bias.to(low), stride=2)


def check_images(name: str, entries: Entries) -> None:
    """Raises UserError if the environment `name` shows images of a size that the convolutions do not fit."""
    if entries.images and entries.side != (SIDE, SIDE):
        height, width = entries.side
        raise UserError(
            f"{name} shows images of {height} x {width}, and dreamer's convolutions are those of the paper, for images"
            f" of {SIDE} x {SIDE}: env.size={SIDE} makes them so"
        )


class GaussianEncoder(nn.Module):
    """Makes tokens [N, E] of observations [N, ...]: layers over the vectors, convolutions over the images."""

    def __init__(self, entries: Entries, cfg: GaussianWorldModelConfig, compute: torch.dtype):
        super().__init__()
        self.entries = entries
        self.features = 0
        if entries.vectors:
            inputs = sum(flat_size(part.space) for part in entries.vectors)
            self.layers = dense(inputs, cfg.units, cfg.encoder_layers, None, cfg.activation, compute)
            self.features += cfg.units
        if entries.images:
            channels = [sum(entries.channels), *(cfg.depth * factor for factor in CHANNELS)]
            made = [
                (StridedConvolution(before, after, KERNEL, compute), ACTIVATIONS[cfg.conv_activation]())
                for before, after in itertools.pairwise(channels)
            ]
            self.convolutions = nn.Sequential(*itertools.chain(*made))
            self.features += PLACES * channels[-1]

    def forward(self, observation: Tensor | Batch) -> Tensor:
        made = []
        if self.entries.vectors:
            made.append(self.layers(vectors_of(self.entries, observation, False)))
        if self.entries.images:
            x = (images_of(self.entries, observation) - 0.5).contiguous(memory_format=torch.channels_last)
            made.append(self.convolutions(x).float().flatten(1))
        return torch.cat(made, -1) if len(made) > 1 else made[0]


class GaussianDecoder(Predictor):
    """Predicts every number as the mean of a normal distribution of variance 1: its loss is half the squared error."""

    symlog = False
    weight = 0.5

    def __init__(self, entries: Entries, cfg: GaussianWorldModelConfig, compute: torch.dtype):
        super().__init__()
        self.entries = entries
        features = cfg.deter + cfg.stoch
        if entries.vectors:
            self.sizes = [flat_size(part.space) for part in entries.vectors]
            self.layers = dense(features, cfg.units, cfg.decoder_layers, sum(self.sizes), cfg.activation, compute)
        if entries.images:
            channels = [PLACES * cfg.depth * CHANNELS[-1]]
            channels += [*(cfg.depth * factor for factor in CHANNELS[-2::-1]), sum(entries.channels)]
            self.spread = Dense(features, channels[0], compute)
            made: list[nn.Module] = []
            for (before, after), kernel in zip(itertools.pairwise(channels), KERNELS_BACK, strict=True):
                made += [StridedConvolution(before, after, kernel, compute, True), ACTIVATIONS[cfg.conv_activation]()]
            self.convolutions = nn.Sequential(*made[:-1])  # the last one is linear

    def forward(self, state: State) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        if self.entries.vectors:
            parts = self.layers(state.features).split(self.sizes, -1)
            made |= {part.name: said for part, said in zip(self.entries.vectors, parts, strict=True)}
        if self.entries.images:
            x = self.spread(state.features).unflatten(-1, (-1, 1, 1))
            x = x.contiguous(memory_format=torch.channels_last)
            # The last convolution's outputs are centred at 0.
            images = (self.convolutions(x).float() + 0.5).split(self.entries.channels, 1)
            made |= {part.name: image for part, image in zip(self.entries.images, images, strict=True)}
        return made
