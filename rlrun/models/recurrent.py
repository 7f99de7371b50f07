"""Memory over time: LSTM and GRU with resets at is_first."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec


class Memory(nn.Module):
    """An LSTM or GRU of one layer over [T, B, F], whose state is zeroed at every row that is_first."""

    def __init__(self, kind: str, inputs: int, size: int):
        super().__init__()
        self.kind, self.size = kind, size
        self.net: nn.LSTM | nn.GRU = nn.LSTM(inputs, size) if kind == "lstm" else nn.GRU(inputs, size)

    def spec(self) -> RowSpec:
        names = ("hidden", "cell") if self.kind == "lstm" else ("hidden",)
        return {name: Field((self.size,), torch.float32) for name in names}

    def forward(self, x: Tensor, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """x [T, B, F], is_first [T, B], state leaves [B, H] (before row 0) -> features [T, B, H], state after row T-1."""
        keep = (~is_first).to(x.dtype).unsqueeze(-1)  # [T, B, 1]
        # one call for every stretch of rows in which no column begins anew
        inside = is_first[1:].any(1).nonzero().flatten() + 1 if x.shape[0] > 1 else ()
        starts = [0, *(int(t) for t in inside), x.shape[0]]
        outputs = []
        hidden = {name: state[name] for name in state}
        for begin, end in itertools.pairwise(starts):
            hidden = {name: value * keep[begin] for name, value in hidden.items()}
            if self.kind == "lstm":
                out, (h, c) = self.net(x[begin:end], (hidden["hidden"].unsqueeze(0).contiguous(), hidden["cell"].unsqueeze(0).contiguous()))
                hidden = {"hidden": h[0], "cell": c[0]}
            else:
                out, h = self.net(x[begin:end], hidden["hidden"].unsqueeze(0).contiguous())
                hidden = {"hidden": h[0]}
            outputs.append(out)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0], Batch(hidden)
