"""Encoders: an observation [N, ...] -> features [N, F]."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.batch import Batch, at
from rlrun.core.errors import UserError
from rlrun.core.ranges import Count
from rlrun.core.specs import Box, Discrete, MultiDiscrete, Nested, Space, leaves

# relu writes over what the layer before it made, which no gradient needs
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": lambda: nn.ReLU(inplace=True), "elu": nn.ELU, "silu": nn.SiLU}
# Rows of images that pass through the convolutions together. 64 rows of float 84x84x4 and their activations stay in a last-level cache;
# 336 at once cost 1.3x as much on a 2.4 GHz Zen 3 core. Irrelevant on a GPU, where all rows go at once.
CHUNK_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """Hidden layers of an actor or a critic, behind the encoder."""

    hidden: tuple[Annotated[int, Count], ...]
    activation: Literal["tanh", "relu", "elu", "silu"]
    layer_norm: bool


def mlp(sizes: tuple[int, ...], activation: str, layer_norm: bool = False) -> nn.Sequential:
    """Linear layers with an activation after each, and layer normalisation (Ba et al. 2016) in between if so."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), *([nn.LayerNorm(after)] if layer_norm else []), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def flat_size(space: Space) -> int:
    """How many numbers flatten() makes of it."""
    if isinstance(space, Nested):
        return sum(flat_size(part) for _, part in space.spaces)
    return space.n if isinstance(space, Discrete) else sum(space.sizes) if isinstance(space, MultiDiscrete) else space.size


def flatten(space: Space, x: Tensor | Batch) -> Tensor:
    """[N, ...] -> [N, D] float32: numbers and switches as they are, choices one-hot, the parts of nested spaces side by side."""
    if isinstance(space, Nested):
        assert isinstance(x, Batch)
        return torch.cat([flatten(part, x[name]) for name, part in space.spaces], -1)
    assert isinstance(x, Tensor)
    if isinstance(space, Discrete):
        return F.one_hot(x, space.n).float()
    if isinstance(space, MultiDiscrete):
        flat = x.flatten(1)
        return torch.cat([F.one_hot(flat[:, i], n) for i, n in enumerate(space.sizes)], -1).float()
    return x.flatten(1).float()


class MLP(nn.Module):
    """A flattened observation through hidden layers."""

    def __init__(self, space: Space, hidden: tuple[int, ...], activation: str, layer_norm: bool = False):
        super().__init__()
        self.space = space
        self.net = mlp((flat_size(space), *hidden), activation, layer_norm)
        self.features = hidden[-1] if hidden else flat_size(space)

    def forward(self, x: Tensor | Batch) -> Tensor:
        """[N, ...] -> [N, F]."""
        return self.net(flatten(self.space, x))


class Parts(nn.Module):
    """Images through convolutions, everything else flattened, all of it side by side through hidden layers."""

    def __init__(self, space: Space, images: list[tuple[tuple[str, ...], ImageEncoder]], hidden: tuple[int, ...], activation: str, layer_norm: bool = False):
        super().__init__()
        self.paths = [path for path, _ in images]
        self.images = nn.ModuleList(encoder for _, encoder in images)
        self.others = [(path, part) for path, part in leaves(space) if path not in self.paths]
        width = sum(encoder.features for _, encoder in images) + sum(flat_size(part) for _, part in self.others)
        self.net = mlp((width, *hidden), activation, layer_norm)
        self.features = hidden[-1] if hidden else width

    def forward(self, x: Batch) -> Tensor:
        """[N, ...] -> [N, F]."""
        features = [encoder(at(x, path)) for path, encoder in zip(self.paths, self.images, strict=True)]
        return self.net(torch.cat([*features, *(flatten(part, at(x, path)) for path, part in self.others)], -1))


class ImageEncoder(nn.Module):
    """Convolutions over images, in chunks of rows; subclasses set `first` and `convolutions` and call finish().

    uint8 pixels are used as they are: the division by 255 is folded into the first layer's weights; filtered ones come as floats. With `precision="bf16"` the
    convolutions and the layer after them run in bfloat16 (0..255 is exact in it); features come out in float32."""

    features: int
    first: nn.Conv2d
    convolutions: nn.Module
    head: nn.Module

    def __init__(self, space: Box, precision: str, flat: bool = False, layer_norm: bool = False):
        """flat: the convolutions' numbers are the features, without a layer behind them. layer_norm: normalises what every layer makes of an image."""
        super().__init__()
        self.ends_flat, self.layer_norm = flat, layer_norm
        height, width, channels = space.shape
        self.channels_last = channels <= 4 and height > 4  # [H, W, C], as most image envs have it; Atari's stack is [C, H, W]
        if not self.channels_last:
            channels, height, width = space.shape
        self.image = (channels, height, width)
        self.scale = 1.0 / 255.0 if space.dtype == "uint8" else 1.0
        self.precision = precision

    def finish(self, size: int) -> None:
        """Adds the layer of `size` behind the convolutions."""
        self.size = size
        numbers = self.spatial(nn.Sequential(self.first, self.convolutions))
        self.features = numbers if self.ends_flat else size
        self.head = nn.Identity() if self.ends_flat else mlp((numbers, size), "relu", self.layer_norm)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def then_relu(self, channels: int) -> list[nn.Module]:
        """What follows a convolution."""
        return [*([nn.GroupNorm(1, channels)] if self.layer_norm else []), nn.ReLU()]  # one group: all numbers of an image together

    def spatial(self, module: nn.Module) -> int:
        """How many numbers `module` makes of one image."""
        with torch.no_grad():
            return module(torch.zeros(1, *self.image)).numel()

    def forward(self, x: Tensor) -> Tensor:
        """[N, *shape] -> [N, F]."""
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        stored = self.first.weight.dtype
        cast = self.precision == "bf16" and stored != torch.bfloat16
        compute = torch.bfloat16 if self.precision == "bf16" else stored
        whole = x.device.type != "cpu" or torch.compiler.is_exporting()  # an exported policy takes any number of rows
        with torch.autocast(x.device.type, torch.bfloat16, enabled=cast, cache_enabled=False):  # threads share the cache (machine/threads.py)
            weight = self.first.weight * self.scale if x.dtype == torch.uint8 else self.first.weight
            hidden = []
            for part in (x,) if whole else x.split(CHUNK_ROWS):
                # transposing bytes and then widening them is a third of the cost of the other order
                pixels = part.contiguous(memory_format=torch.channels_last).to(compute)
                first = F.conv2d(pixels, weight, self.first.bias, self.first.stride, self.first.padding)
                hidden.append(self.convolutions(first).flatten(1))
            features = self.head(torch.cat(hidden) if len(hidden) > 1 else hidden[0])
        return features.float()


class NatureCNN(ImageEncoder):
    """The DQN network (Mnih et al. 2015): 32x8x8/4, 64x4x4/2, 64x3x3/1, 512. Images under 64 pixels take RLlib's network of its 42x42 speed run
    instead: 16x4x4/2, 32x4x4/2, 256, a quarter of the arithmetic."""

    def __init__(self, space: Box, precision: str, flat: bool = False, layer_norm: bool = False):
        super().__init__(space, precision, flat, layer_norm)
        channels, height, width = self.image
        if min(height, width) < 36:
            raise UserError(f"nature_cnn needs images of at least 36x36 pixels, this one is {height}x{width}; try model=mlp")
        if min(height, width) < 64:
            self.first = nn.Conv2d(channels, 16, 4, 2, padding=1)
            self.convolutions = nn.Sequential(*self.then_relu(16), nn.Conv2d(16, 32, 4, 2, padding=1), *self.then_relu(32))
            self.finish(256)
        else:
            self.first = nn.Conv2d(channels, 32, 8, 4)
            relu = self.then_relu
            self.convolutions = nn.Sequential(*relu(32), nn.Conv2d(32, 64, 4, 2), *relu(64), nn.Conv2d(64, 64, 3, 1), *relu(64))
            self.finish(512)


class _Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class ImpalaResNet(ImageEncoder):
    """IMPALA's deep network (Espeholt et al. 2018, figure 3 right): three sections of conv 3x3, max-pool 3x3/2 and two residual blocks with
    16, 32, 32 channels, then 256."""

    def __init__(self, space: Box, precision: str, flat: bool = False, channels: tuple[int, ...] = (16, 32, 32), size: int = 256):
        super().__init__(space, precision, flat)
        inputs = self.image[0]
        self.first = nn.Conv2d(inputs, channels[0], 3, padding=1)
        layers: list[nn.Module] = []
        for index, width in enumerate(channels):
            if index:
                layers.append(nn.Conv2d(channels[index - 1], width, 3, padding=1))
            layers += [nn.MaxPool2d(3, 2, padding=1), _Residual(width), _Residual(width)]
        self.convolutions = nn.Sequential(*layers, nn.ReLU())
        self.finish(size)
