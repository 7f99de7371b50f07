"""An encoder, a table of learnt vectors, one for each cell; and a last layer for values."""

from __future__ import annotations

from torch import Tensor, nn


class Positions(nn.Module):
    """`space` says what is observed (space.n cells); `features` is how many numbers come out."""

    def __init__(self, space, size: int = 16):
        super().__init__()
        self.features = size
        self.table = nn.Embedding(space.n, size)

    def forward(self, x: Tensor) -> Tensor:
        """[N] cells -> [N, size]."""
        return self.table(x)


class TwoLayers(nn.Module):
    """A last layer for values with a hidden layer of its own."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 8), nn.SiLU(), nn.Linear(8, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return self.net(x)
