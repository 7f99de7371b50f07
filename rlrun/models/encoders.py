"""Encoders: networks that map observations [N, ...] to features [N, F]."""

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

# relu overwrites the output of the layer before it, which no gradient needs.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": lambda: nn.ReLU(inplace=True),
    "elu": nn.ELU,
    "silu": nn.SiLU,
}
# Rows of images that go through the convolutions together on a CPU. 64 rows of float 84x84x4 and their activations stay
# in a last-level cache; 336 rows at once cost 1.3x as much per row on a 2.4 GHz Zen 3 core. A GPU takes all at once.
CHUNK_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """Options of the hidden layers that an actor or a critic has behind the encoder."""

    hidden: tuple[Annotated[int, Count], ...]
    activation: Literal["tanh", "relu", "elu", "silu"]
    layer_norm: bool


def mlp(sizes: tuple[int, ...], activation: str, layer_norm: bool = False) -> nn.Sequential:
    """Linear layers with an activation after each, and with layer normalisation (Ba et al. 2016) in between if
    asked."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), *([nn.LayerNorm(after)] if layer_norm else []), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def flat_size(space: Space) -> int:
    """The number of numbers D that flatten() returns for one value of this space."""
    if isinstance(space, Nested):
        return sum(flat_size(part) for _, part in space.spaces)
    return (
        space.n if isinstance(space, Discrete) else sum(space.sizes) if isinstance(space, MultiDiscrete) else space.size
    )


def flatten(space: Space, x: Tensor | Batch) -> Tensor:
    """[N, ...] -> [N, D] float32. Numbers and switches stay as they are, choices become one-hot, and the parts of
    nested spaces are concatenated."""
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
    """Hidden layers over a flattened observation."""

    def __init__(self, space: Space, hidden: tuple[int, ...], activation: str, layer_norm: bool = False):
        super().__init__()
        self.space = space
        self.net = mlp((flat_size(space), *hidden), activation, layer_norm)
        self.features = hidden[-1] if hidden else flat_size(space)

    def forward(self, x: Tensor | Batch) -> Tensor:
        """[N, ...] -> [N, F]."""
        return self.net(flatten(self.space, x))


class Parts(nn.Module):
    """An encoder of nested observations. Images go through convolutions and everything else is flattened; hidden layers
    read the concatenation."""

    def __init__(
        self,
        space: Space,
        images: list[tuple[tuple[str, ...], ImageEncoder]],
        hidden: tuple[int, ...],
        activation: str,
        layer_norm: bool = False,
    ):
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


class Behind(nn.Module):
    """Hidden layers behind the features of another encoder."""

    def __init__(self, encoder: nn.Module, hidden: tuple[int, ...], activation: str, layer_norm: bool):
        super().__init__()
        self.encoder = encoder
        self.net = mlp((encoder.features, *hidden), activation, layer_norm)  # type: ignore[arg-type]
        self.features = hidden[-1]

    def forward(self, x: Tensor | Batch) -> Tensor:
        """[N, ...] -> [N, F]."""
        return self.net(self.encoder(x))


class ImageEncoder(nn.Module):
    """Convolutions over images, in chunks of rows. Subclasses set `first` and `convolutions` and call finish().

    uint8 pixels are used as they are, since the division by 255 is folded into the first layer's weights. Filtered
    pixels arrive as floats. With `precision="bf16"` the convolutions and the layer after them run in bfloat16, in which
    0..255 is exact; features are float32."""

    features: int
    first: nn.Conv2d
    convolutions: nn.Module
    head: nn.Module

    def __init__(
        self, space: Box, precision: str, flat: bool = False, layer_norm: bool = False, activation: str = "relu"
    ):
        """If flat, the convolutions' outputs are the features, without a layer behind them. layer_norm normalises the
        output of every layer for each image."""
        super().__init__()
        self.ends_flat, self.layer_norm, self.kind = flat, layer_norm, activation
        height, width, channels = space.shape
        self.channels_last = channels <= 4 and height > 4  # most image envs have [H, W, C]; Atari's stack is [C, H, W]
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
        self.head = nn.Identity() if self.ends_flat else mlp((numbers, size), self.kind, self.layer_norm)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def then(self, channels: int) -> list[nn.Module]:
        """The layers that follow a convolution."""
        # A single group normalises all numbers of an image together.
        return [*([nn.GroupNorm(1, channels)] if self.layer_norm else []), self.activation()]

    def activation(self) -> nn.Module:
        """The activation function behind a convolution."""
        return nn.ReLU() if self.kind == "relu" else ACTIVATIONS[self.kind]()

    def spatial(self, module: nn.Module) -> int:
        """The number of outputs that `module` has for one image."""
        with torch.no_grad():
            return module(torch.zeros(1, *self.image)).numel()

    def forward(self, x: Tensor) -> Tensor:
        """[N, *shape] -> [N, F]."""
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        stored = self.first.weight.dtype
        cast = self.precision == "bf16" and stored != torch.bfloat16
        compute = torch.bfloat16 if self.precision == "bf16" else stored
        # An exported policy must take any number of rows, so it cannot split them.
        whole = x.device.type != "cpu" or torch.compiler.is_exporting()
        # The cache is off because threads would share it (machine/threads.py).
        with torch.autocast(x.device.type, torch.bfloat16, enabled=cast, cache_enabled=False):
            weight = self.first.weight * self.scale if x.dtype == torch.uint8 else self.first.weight
            hidden = []
            for part in (x,) if whole else x.split(CHUNK_ROWS):
                # Transposing bytes first and then widening them costs a third of the other order.
                pixels = part.contiguous(memory_format=torch.channels_last).to(compute)
                first = F.conv2d(pixels, weight, self.first.bias, self.first.stride, self.first.padding)
                hidden.append(self.convolutions(first).flatten(1))
            features = self.head(torch.cat(hidden) if len(hidden) > 1 else hidden[0])
        return features.float()


class NatureCNN(ImageEncoder):
    """The DQN network (Mnih et al. 2015): 32x8x8/4, 64x4x4/2, 64x3x3/1, 512. For images under 64 pixels it is RLlib's
    network for its 42x42 speed run instead, which needs a quarter of the arithmetic: 16x4x4/2, 32x4x4/2, 256."""

    def __init__(
        self, space: Box, precision: str, flat: bool = False, layer_norm: bool = False, activation: str = "relu"
    ):
        super().__init__(space, precision, flat, layer_norm, activation)
        channels, height, width = self.image
        if min(height, width) < 36:
            raise UserError(
                f"nature_cnn needs images of at least 36x36 pixels, this one is {height}x{width}; try model=mlp"
            )
        if min(height, width) < 64:
            self.first = nn.Conv2d(channels, 16, 4, 2, padding=1)
            self.convolutions = nn.Sequential(*self.then(16), nn.Conv2d(16, 32, 4, 2, padding=1), *self.then(32))
            self.finish(256)
        else:
            self.first = nn.Conv2d(channels, 32, 8, 4)
            then = self.then
            self.convolutions = nn.Sequential(
                *then(32), nn.Conv2d(32, 64, 4, 2), *then(64), nn.Conv2d(64, 64, 3, 1), *then(64)
            )
            self.finish(512)


class _Residual(nn.Module):
    def __init__(self, channels: int, activation: nn.Module):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = activation  # not in place: x is added at the end

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.activation(self.first(self.activation(x))))


class ImpalaResNet(ImageEncoder):
    """IMPALA's deep network (Espeholt et al. 2018, figure 3 right). It has three sections with 16, 32 and 32 channels,
    each of a 3x3 convolution, 3x3/2 max-pooling and two residual blocks, and then a layer of 256."""

    def __init__(
        self,
        space: Box,
        precision: str,
        flat: bool = False,
        activation: str = "relu",
        channels: tuple[int, ...] = (16, 32, 32),
        size: int = 256,
    ):
        super().__init__(space, precision, flat, activation=activation)
        inputs = self.image[0]
        self.first = nn.Conv2d(inputs, channels[0], 3, padding=1)
        layers: list[nn.Module] = []
        for index, width in enumerate(channels):
            if index:
                layers.append(nn.Conv2d(channels[index - 1], width, 3, padding=1))
            blocks = [_Residual(width, self.activation()) for _ in range(2)]
            layers += [nn.MaxPool2d(3, 2, padding=1), *blocks]
        self.convolutions = nn.Sequential(*layers, self.activation())
        self.finish(size)
