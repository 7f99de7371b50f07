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
from rlrun.core.conditions import OnlyWith
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


LAYERS = OnlyWith("hidden")


@dataclass(frozen=True, kw_only=True)
class NetConfig:
    """Options of the hidden layers that an actor or a critic has behind the encoder."""

    hidden: tuple[Annotated[int, Count], ...]
    activation: Annotated[Literal["tanh", "relu", "elu", "silu"], LAYERS]
    layer_norm: Annotated[bool, LAYERS]


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


def one_hot(x: Tensor, count: int) -> Tensor:
    """Choices [...] -> [..., count] float32. PyTorch's own reads back what the choices are."""
    return (x.unsqueeze(-1) == torch.arange(count, device=x.device)).float()


def flatten(space: Space, x: Tensor | Batch) -> Tensor:
    """[N, ...] -> [N, D] float32. Numbers and switches stay as they are, choices become one-hot, and the parts of
    nested spaces are concatenated."""
    if isinstance(space, Nested):
        assert isinstance(x, Batch)
        return torch.cat([flatten(part, x[name]) for name, part in space.spaces], -1)
    assert isinstance(x, Tensor)
    if isinstance(space, Discrete):
        return one_hot(x, space.n)
    flat = x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)  # a space of shape () has a single number
    if isinstance(space, MultiDiscrete):
        return torch.cat([one_hot(flat[:, i], n) for i, n in enumerate(space.sizes)], -1)
    return flat.float()


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


Size = int | tuple[int, int]  # of a kernel or a stride: one number, or height and width
Filters = tuple[tuple[int, Size, Size], ...]  # channels, kernel and stride of each convolution
Padding = Literal["none", "same", "same_but_last"]


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """Options of the network for images. conf/model/auto.yaml explains each one with conv_ before its name."""

    filters: Filters | None = None  # None: those of the encoder
    padding: Padding = "none"
    hidden: tuple[int, ...] | None = None  # None: that of the encoder
    activation: Literal["auto", "tanh", "relu", "elu", "silu"] = "auto"


class ImageEncoder(nn.Module):
    """Convolutions over images, in chunks of rows. Subclasses set `first` and `convolutions` and call finish().

    uint8 pixels are used as they are, since the division by 255 is folded into the first layer's weights. Filtered
    pixels arrive as floats. The channels of stacked frames are the channels of one image. With `precision="bf16"` the
    convolutions and the layers after them run in bfloat16, in which 0..255 is exact; features are float32."""

    features: int
    first: nn.Conv2d
    convolutions: nn.Module
    head: nn.Module
    dense: tuple[int, ...]  # widths of the layers behind the convolutions

    def __init__(
        self,
        space: Box,
        precision: str,
        flat: bool = False,
        layer_norm: bool = False,
        options: ImageConfig = ImageConfig(),
    ):
        """If flat, the convolutions' outputs are the features, without layers behind them. layer_norm normalises the
        output of every layer for each image."""
        super().__init__()
        self.ends_flat, self.layer_norm, self.options = flat, layer_norm, options
        self.kind = "relu" if options.activation == "auto" else options.activation
        frames = space.shape[0] if len(space.shape) == 4 else 1  # a stack of images that have channels
        self.channels_last = channels_last(space)
        if self.channels_last:
            height, width, channels = space.shape[-3:]
        else:
            channels, height, width = space.shape[-3:]
        self.image = (frames * channels, height, width)
        self.border = (0, 0, 0, 0)  # zeros on the left, right, top and bottom that `first` does not add itself
        self.scale = 1.0 / 255.0 if space.dtype == "uint8" else 1.0
        self.precision = precision

    def finish(self, size: int) -> None:
        """Adds the layers behind the convolutions, which are one of `size` unless the options say otherwise."""
        self.dense = (size,) if self.options.hidden is None else self.options.hidden
        with torch.no_grad():
            numbers = self.convolutions(self.first(F.pad(torch.zeros(1, *self.image), self.border))).numel()
        bare = self.ends_flat or not self.dense
        self.features = numbers if bare else self.dense[-1]
        self.head = nn.Identity() if bare else mlp((numbers, *self.dense), self.kind, self.layer_norm)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def then(self, channels: int) -> list[nn.Module]:
        """The layers that follow a convolution."""
        # A single group normalises all numbers of an image together.
        return [*([nn.GroupNorm(1, channels)] if self.layer_norm else []), self.activation()]

    def activation(self) -> nn.Module:
        """The activation function behind a convolution."""
        return nn.ReLU() if self.kind == "relu" else ACTIVATIONS[self.kind]()

    def forward(self, x: Tensor) -> Tensor:
        """[N, *shape] -> [N, F]."""
        if self.channels_last:
            x = x.movedim(-1, -3)
        if x.ndim == 5:
            x = x.flatten(1, 2)
        stored = self.first.weight.dtype
        cast = self.precision == "bf16" and stored != torch.bfloat16
        compute = torch.bfloat16 if self.precision == "bf16" else stored
        # An exported policy must take any number of rows, so it cannot split them.
        whole = x.device.type != "cpu" or torch.compiler.is_exporting()
        # The cache is off because threads would share it (machine/threads.py).
        with torch.autocast(x.device.type, torch.bfloat16, enabled=cast, cache_enabled=False):
            weight = self.first.weight
            if x.dtype == torch.uint8:
                # It is rounded before it is scaled, as in the copies that act, whose weights are stored rounded. The
                # result has the stored type, in which the gradients of all parts are added.
                weight = (weight.to(compute) * self.scale).to(stored)
            hidden = []
            for part in (x,) if whole else x.split(CHUNK_ROWS):
                # Transposing bytes first and then widening them costs a third of the other order.
                pixels = by_pixel(part).to(compute)
                if any(self.border):
                    pixels = F.pad(pixels, self.border)
                first = F.conv2d(pixels, weight, self.first.bias, self.first.stride, self.first.padding)
                hidden.append(self.convolutions(first).flatten(1))
            features = self.head(torch.cat(hidden) if len(hidden) > 1 else hidden[0])
        return features.float()


def by_pixel(x: Tensor) -> Tensor:
    """[N, C, H, W] with the channels of a pixel side by side in memory, which convolutions are fastest with. Inside of
    torch.func's transformations (policies of several tasks) it stays as it is, because vmap knows no such order."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return x
    return x.contiguous(memory_format=torch.channels_last)


def channels_last(space: Box) -> bool:
    """Whether an image has the shape [H, W, C] and not [C, H, W].

    Where either the first two or the last two sides are equal, they are height and width. Otherwise the channels are
    the smaller one of the first and the last side, and the last one if these are equal, as in Gymnasium. Frames without
    channels that are stacked are [C, H, W]."""
    if space.stacked and len(space.shape) == 3:
        return False
    first, second, third = space.shape[-3:]
    if (first == second) != (second == third):
        return first == second
    return third <= first


class NatureCNN(ImageEncoder):
    """The DQN network (Mnih et al. 2015): 32x8x8/4, 64x4x4/2, 64x3x3/1, 512.

    For images under 64 pixels it is RLlib's network for its 42x42 speed run instead, which needs a quarter of the
    arithmetic: 16x4x4/2, 32x4x4/2, 256. For images under 36 pixels it is the network for MinAtar (Young & Tian 2019,
    arXiv:1903.03176): 16x3x3/1, 128."""

    def __init__(
        self,
        space: Box,
        precision: str,
        flat: bool = False,
        layer_norm: bool = False,
        options: ImageConfig = ImageConfig(),
    ):
        super().__init__(space, precision, flat, layer_norm, options)
        channels, height, width = self.image
        if min(height, width) < 3:
            raise UserError(
                f"nature_cnn needs images of at least 3x3 pixels, this one is {height}x{width}; try model=mlp"
            )
        if min(height, width) < 36:
            self.first = nn.Conv2d(channels, 16, 3, 1)
            self.convolutions = nn.Sequential(*self.then(16))
            self.finish(128)
        elif min(height, width) < 64:
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


class ConvolutionalNet(ImageEncoder):
    """Convolutions with the channels, kernels and strides of options.filters, and a layer of 512 as in the Nature CNN.

    With padding "same", borders of zeros make an output of size / stride, rounded up; half of an odd border is on the
    right and below, as in TensorFlow. "same_but_last" leaves the last convolution without a border, as RLlib does."""

    def __init__(
        self,
        space: Box,
        precision: str,
        flat: bool = False,
        layer_norm: bool = False,
        options: ImageConfig = ImageConfig(),
    ):
        super().__init__(space, precision, flat, layer_norm, options)
        assert options.filters
        inputs, *size = self.image
        layers: list[nn.Module] = []
        for number, (channels, *sizes) in enumerate(options.filters, 1):
            (height, width), stride = ((one, one) if isinstance(one, int) else one for one in sizes)
            last = number == len(options.filters)
            border, ends = (0, 0), (0, 0)  # what is added before and behind the rows, and the columns, of the image
            if options.padding == "same" or (options.padding == "same_but_last" and not last):
                missing = [
                    max((-(-length // step) - 1) * step + kernel - length, 0)
                    for length, step, kernel in zip(size, stride, (height, width), strict=True)
                ]
                border, ends = (missing[0] // 2, missing[1] // 2), (-(-missing[0] // 2), -(-missing[1] // 2))
            padded = [length + a + b for length, a, b in zip(size, border, ends, strict=True)]
            if height > padded[0] or width > padded[1]:
                raise UserError(
                    f"model.conv_filters: convolution {number} has a kernel of {height}x{width} and gets an image of "
                    f"{padded[0]}x{padded[1]}; choose smaller kernels or strides, or model.conv_padding=same"
                )
            even = border == ends
            uneven = (0, 0, 0, 0) if even else (border[1], ends[1], border[0], ends[0])
            convolution = nn.Conv2d(inputs, channels, (height, width), stride, padding=border if even else 0)
            if number == 1:
                self.first, self.border = convolution, uneven
            else:
                layers += [*([nn.ZeroPad2d(uneven)] if not even else []), convolution]
            layers += self.then(channels)
            size = [
                (length - kernel) // step + 1
                for length, kernel, step in zip(padded, (height, width), stride, strict=True)
            ]
            inputs = channels
        self.convolutions = nn.Sequential(*layers)
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
        options: ImageConfig = ImageConfig(),
        channels: tuple[int, ...] = (16, 32, 32),
        size: int = 256,
    ):
        super().__init__(space, precision, flat, options=options)
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
