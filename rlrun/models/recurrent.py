"""Recurrent memory: an LSTM or GRU whose state is reset by a mask, state * (1 - is_first), at every row that begins an
episode."""

from __future__ import annotations

import itertools
import warnings

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec

# The optimiser keeps all parameters in one vector (core/optimizer.py), where those of a recurrent layer are not one
# piece as cuDNN wants them. cuDNN copies them at every call, and PyTorch warns about it.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")


class Memory(nn.Module):
    """An LSTM or GRU of one layer over [T, B, F], whose state is set to zero at every row where is_first.

    It works in one of two ways, which agree up to rounding. By default there is one call for each stretch of rows, up
    to the next row at which some column begins an episode; this is fastest on a CPU, but has to read is_first. With
    fixed_kernels, which core.policy.fix_kernels sets, there is one cell call for every row. This reads nothing back and
    launches the same kernels whatever the rows hold, so that a GPU can record it (machine/graphs.py)."""

    fixed_kernels = False

    def __init__(self, kind: str, inputs: int, size: int):
        super().__init__()
        self.kind, self.size = kind, size
        self.net: nn.LSTM | nn.GRU = nn.LSTM(inputs, size) if kind == "lstm" else nn.GRU(inputs, size)

    def spec(self) -> RowSpec:
        names = ("hidden", "cell") if self.kind == "lstm" else ("hidden",)
        return {name: Field((self.size,), torch.float32) for name in names}

    def forward(self, x: Tensor, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """x [T, B, F], is_first [T, B], state before row 0 with leaves [B, H] -> features [T, B, H] and the state after
        row T-1."""
        keep = (~is_first).to(x.dtype).unsqueeze(-1)  # [T, B, 1]
        return self._row_by_row(x, keep, state) if self.fixed_kernels else self._by_stretches(x, is_first, keep, state)

    def _row_by_row(self, x: Tensor, keep: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        # The weights of the input and of the hidden state, and both biases, in the order that PyTorch's cells take.
        weights = list(self.net.parameters())
        outputs, after = [], state
        for row, kept in zip(x.unbind(), keep.unbind(), strict=True):
            before = {name: after[name] * kept for name in after}
            if self.kind == "lstm":
                hidden, cell = torch.lstm_cell(row, (before["hidden"], before["cell"]), *weights)
                after = Batch(hidden=hidden, cell=cell)
            else:
                after = Batch(hidden=torch.gru_cell(row, before["hidden"], *weights))
            outputs.append(after["hidden"])
        return torch.stack(outputs), after

    def _by_stretches(self, x: Tensor, is_first: Tensor, keep: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        inside = is_first[1:].any(1).nonzero().flatten() + 1 if x.shape[0] > 1 else ()
        starts = [0, *(int(t) for t in inside), x.shape[0]]
        outputs = []
        hidden = {name: state[name] for name in state}
        for begin, end in itertools.pairwise(starts):
            hidden = {name: value * keep[begin] for name, value in hidden.items()}
            if self.kind == "lstm":
                out, (h, c) = self.net(
                    x[begin:end], (hidden["hidden"].unsqueeze(0).contiguous(), hidden["cell"].unsqueeze(0).contiguous())
                )
                hidden = {"hidden": h[0], "cell": c[0]}
            else:
                out, h = self.net(x[begin:end], hidden["hidden"].unsqueeze(0).contiguous())
                hidden = {"hidden": h[0]}
            outputs.append(out)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0], Batch(hidden)
