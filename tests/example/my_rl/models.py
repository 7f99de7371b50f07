"""An encoder: a table of learnt vectors, one for each cell."""

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
