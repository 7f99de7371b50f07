"""How a world model reads and predicts observations: vectors, choices and images, several of them at once.

Source: Hafner et al. 2025, Nature 640 (arXiv:2301.04104v2), in the form of the author's code (danijar/dreamerv3 @
e3f0224, dreamerv3/rssm.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.batch import Batch, at
from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space, leaves
from rlrun.models.encoders import channels_last, flat_size, flatten
from rlrun.models.world_core import activated
from rlrun.models.world_model import (
    FACTORS,
    BlockProduct,
    NormedProduct,
    Product,
    State,
    WorldModelConfig,
    draw,
    stack,
)
from rlrun.ops.symlog import symexp, symlog

SMALLEST, LARGEST = 3, 16  # sides of an image behind the last convolution
KERNEL = 5


class Entry(NamedTuple):
    """An entry of an observation."""

    path: tuple[str, ...]
    space: Any

    @property
    def name(self) -> str:
        return ".".join(self.path) or "observation"


class Entries(NamedTuple):
    """The entries of an observation, those that are images apart."""

    vectors: tuple[Entry, ...]
    images: tuple[Entry, ...]

    @property
    def side(self) -> tuple[int, int]:
        """Height and width of all images."""
        return image_shape(self.images[0].space)[1:]

    @property
    def channels(self) -> tuple[int, ...]:
        return tuple(image_shape(part.space)[0] for part in self.images)


def rows_of(observation: Tensor | Batch, first: int = 0) -> Any:
    """The rows of an observation [T, B, ...] from row `first` on, as [N, ...]."""
    if isinstance(observation, Batch):
        return observation.map(lambda x: x[first:].flatten(0, 1))
    return observation[first:].flatten(0, 1)


def image_shape(space: Box) -> tuple[int, int, int]:
    """Channels, height and width. The channels of stacked frames are those of one image."""
    frames = space.shape[0] if len(space.shape) == 4 else 1
    if channels_last(space):
        height, width, channels = space.shape[-3:]
    else:
        channels, height, width = space.shape[-3:]
    return frames * channels, height, width


def pixels(space: Box, x: Tensor) -> Tensor:
    """Images [N, *shape] -> numbers from 0 to 1 [N, C, H, W]."""
    if channels_last(space):
        x = x.movedim(-1, -3)
    x = x.flatten(1, -3).float()
    if space.dtype == "uint8":
        return x * (1.0 / 255.0)
    low, high = space.low[0], space.high[0]
    return (x - low) * (1.0 / (high - low))


def entries_of(spec: EnvSpec) -> Entries:
    """Raises UserError where an observation cannot be predicted."""
    parts = [Entry(path, space) for path, space in leaves(spec.observation)]
    images = tuple(part for part in parts if isinstance(part.space, Box) and part.space.image)
    for part in images:
        _, height, width = image_shape(part.space)
        small = [side // 2 ** len(FACTORS) for side in (height, width)]
        fits = height % 2 ** len(FACTORS) == 0 == width % 2 ** len(FACTORS)
        if not fits or min(small) < SMALLEST or max(small) > LARGEST:
            raise UserError(
                f"{spec.name} shows images of {height} x {width}, and a world model needs sides that are multiples of"
                f" {2 ** len(FACTORS)} from {SMALLEST * 2 ** len(FACTORS)} to {LARGEST * 2 ** len(FACTORS)}, such as 64"
                " x 64 or 96 x 96: env.size=64 makes them so"
            )
        if part.space.dtype != "uint8" and not part.space.bounded:
            raise UserError(f"{spec.name} shows images without bounds, {part.space}, which no world model can scale")
        if image_shape(part.space)[1:] != image_shape(images[0].space)[1:]:
            raise UserError(f"{spec.name} shows images of several sizes, and a world model needs one size")
    return Entries(tuple(part for part in parts if part not in images), images)


def vectors_of(entries: Entries, observation: Tensor | Batch, squashed: bool) -> Tensor:
    """All entries that are no images [N, D]. squashed: numbers x as symlog(x)."""
    made = []
    for part in entries.vectors:
        flat = flatten(part.space, at(observation, part.path))
        made.append(symlog(flat) if squashed and isinstance(part.space, Box) else flat)
    return torch.cat(made, -1) if len(made) > 1 else made[0]


def images_of(entries: Entries, observation: Tensor | Batch) -> Tensor:
    """All images, their channels one behind the other [N, C, H, W], from 0 to 1."""
    return torch.cat([pixels(part.space, at(observation, part.path)) for part in entries.images], 1)


class WorldEncoder(nn.Module):
    """Makes tokens [N, E] of observations [N, ...]: layers over the vectors, convolutions over the images."""

    def __init__(self, entries: Entries, cfg: WorldModelConfig, compute: torch.dtype):
        super().__init__()
        self.entries, self.symlog, self.compute = entries, cfg.symlog, compute
        wide = cfg.widths
        self.features = 0
        if entries.vectors:
            inputs = sum(flat_size(part.space) for part in entries.vectors)
            self.layers = stack(inputs, wide.units, cfg.encoder_layers, compute)
            self.features += wide.units
        if entries.images:
            depths = [wide.depth * factor for factor in FACTORS]
            channels = [sum(entries.channels), *depths[:-1]]
            self.convolutions = nn.ModuleList(
                Convolution(before, after, compute) for before, after in zip(channels, depths, strict=True)
            )
            height, width = (side // 2 ** len(FACTORS) for side in entries.side)
            self.features += height * width * depths[-1]

    def forward(self, observation: Tensor | Batch) -> Tensor:
        made = []
        if self.entries.vectors:
            made.append(self.layers(self.vector(observation)))
        if self.entries.images:
            x = images_of(self.entries, observation) - 0.5
            x = x.contiguous(memory_format=torch.channels_last)
            for convolution in self.convolutions:
                x = convolution(x, pool=True)
            made.append(x.permute(0, 2, 3, 1).flatten(1))
        return torch.cat(made, -1) if len(made) > 1 else made[0]

    def vector(self, observation: Tensor | Batch) -> Tensor:
        """All entries that are no images [N, D]."""
        return vectors_of(self.entries, observation, self.symlog)


class Convolution(nn.Module):
    """A 5x5 convolution that keeps height and width, with RMSNorm over channels and SiLU behind it."""

    def __init__(self, inputs: int, outputs: int, compute: torch.dtype, plain: bool = False):
        """plain: without norm and activation."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, KERNEL, KERNEL))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.scale = None if plain else nn.Parameter(torch.ones(outputs))
        self.compute = compute
        draw(self.weight, inputs * KERNEL * KERNEL)

    def forward(self, x: Tensor, pool: bool = False) -> Tensor:
        """[N, C, H, W] -> [N, D, H, W], or half of both sides behind a max-pool."""
        low = self.compute
        x = F.conv2d(x.to(low), self.weight.to(low), self.bias.to(low), padding=KERNEL // 2)
        if pool:
            x = F.max_pool2d(x, 2)
        x = x.float()
        if self.scale is None:
            return x
        return activated(x.permute(0, 2, 3, 1), self.scale).permute(0, 3, 1, 2)


class Predictor(nn.Module):
    """Predicts observations from states. Subclasses define forward(state)."""

    entries: Entries
    symlog: bool  # whether numbers are predicted as symlog(x)
    weight = 1.0  # of squared errors

    def __call__(self, state: State) -> dict[str, Tensor]:
        """What the last layers put out for each entry, by its name: for vectors the numbers [N, D] of flatten(), after
        symlog, or logits of choices; for images numbers from 0 to 1 [N, C, H, W]."""
        return super().__call__(state)

    def loss(self, state: State, observation: Tensor | Batch) -> Tensor:
        """The sum [N] over all entries of errors of numbers, or of cross entropies of choices."""
        total = None
        for part, said in self.paired(state):
            true = at(observation, part.path)
            if isinstance(part.space, Box) and part.space.image:
                loss = (said - pixels(part.space, true)).square().flatten(1).sum(1) * self.weight
            elif isinstance(part.space, Box):
                flat = flatten(part.space, true)
                loss = (said - (symlog(flat) if self.symlog else flat)).square().sum(-1) * self.weight
            else:
                loss = choice_loss(part.space, said, flatten(part.space, true))
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def paired(self, state: State) -> list[tuple[Entry, Tensor]]:
        made = self(state)
        return [(part, made[part.name]) for part in (*self.entries.vectors, *self.entries.images)]

    def truth(self, observation: Tensor | Batch) -> dict[str, Tensor]:
        """An observation [N, ...] in the form of predicted()."""
        made = {}
        for part in (*self.entries.vectors, *self.entries.images):
            image = isinstance(part.space, Box) and part.space.image
            made[part.name] = (pixels if image else flatten)(part.space, at(observation, part.path))
        return made

    def predicted(self, state: State) -> dict[str, Tensor]:
        """Predictions in the units of observations: numbers [N, D], probabilities of choices [N, D], and images
        [N, C, H, W] from 0 to 1."""
        made = {}
        for part, said in self.paired(state):
            if isinstance(part.space, Discrete | MultiDiscrete):
                said = torch.cat([each.softmax(-1) for each in said.split(sizes_of(part.space), -1)], -1)
            elif isinstance(part.space, MultiBinary):
                said = said.sigmoid()
            elif not part.space.image and self.symlog:
                said = symexp(said)
            made[part.name] = said
        return made


class WorldDecoder(Predictor):
    """The decoder of DreamerV3."""

    def __init__(self, entries: Entries, cfg: WorldModelConfig, deter: int, size: int, compute: torch.dtype):
        """deter, size: numbers in h and in z."""
        super().__init__()
        self.entries, self.symlog, self.compute = entries, cfg.symlog, compute
        wide = cfg.widths
        if entries.vectors:
            self.layers = stack(deter + size, wide.units, cfg.decoder_layers, compute)
            self.outputs = nn.ModuleList(
                Product(wide.units, flat_size(part.space), compute) for part in entries.vectors
            )
        if entries.images:
            depths = [wide.depth * factor for factor in FACTORS]
            if depths[-1] % cfg.blocks:
                raise UserError(
                    f"a decoder of images makes {FACTORS[-1]} * model.depth = {depths[-1]} channels in model.blocks="
                    f"{cfg.blocks} parts: choose a depth and blocks that divide without a remainder"
                )
            self.small = tuple(side // 2 ** len(FACTORS) for side in entries.side)
            self.groups, cells = cfg.blocks, self.small[0] * self.small[1] * depths[-1]
            self.of_h = BlockProduct(deter, cells, self.groups)
            self.of_z = NormedProduct(size, 2 * wide.units, compute)
            self.of_hidden = Product(2 * wide.units, cells, compute)
            self.scale = nn.Parameter(torch.ones(depths[-1]))
            self.convolutions = nn.ModuleList(
                Convolution(before, after, compute) for before, after in zip(depths[:0:-1], depths[-2::-1], strict=True)
            )
            self.last = Convolution(depths[0], sum(entries.channels), compute, plain=True)

    def forward(self, state: State) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        if self.entries.vectors:
            hidden = self.layers(state.features)
            for part, output in zip(self.entries.vectors, self.outputs, strict=True):
                made[part.name] = output(hidden)
        if self.entries.images:
            images = self.images(state).split(self.entries.channels, 1)
            made |= {part.name: image for part, image in zip(self.entries.images, images, strict=True)}
        return made

    def images(self, state: State) -> Tensor:
        """[N, all channels, H, W], from 0 to 1."""
        (height, width), groups, low = self.small, self.groups, self.compute
        rows = len(state.h)
        spread = torch.bmm(state.h.to(low).view(rows, groups, -1).transpose(0, 1), self.of_h.weight.to(low))
        spread = spread.transpose(0, 1).reshape(rows, -1).float() + self.of_h.bias
        # Each group makes a part of the channels of all places.
        spread = spread.view(rows, groups, height, width, -1).permute(0, 2, 3, 1, 4).flatten(3)
        places = self.of_hidden(self.of_z(state.z)).view(rows, height, width, -1)
        x = activated(spread + places, self.scale).permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = convolution(F.interpolate(x.to(low), scale_factor=2.0))
        return self.last(F.interpolate(x.to(low), scale_factor=2.0)).sigmoid()


def sizes_of(space: Space) -> list[int]:
    return [space.n] if isinstance(space, Discrete) else list(space.sizes)  # type: ignore[union-attr]


def choice_loss(space: Space, logits: Tensor, flat: Tensor) -> Tensor:
    """Cross entropy [N] of choices or switches, flat [N, D] as flatten() makes them."""
    if isinstance(space, MultiBinary):
        return F.binary_cross_entropy_with_logits(logits, flat, reduction="none").sum(-1)
    each = zip(logits.split(sizes_of(space), -1), flat.split(sizes_of(space), -1), strict=True)
    return torch.stack([-(one.log_softmax(-1) * true).sum(-1) for one, true in each]).sum(0)
