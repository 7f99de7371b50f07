"""One net, parameters of its own for every column: what evolution tries out, and parameter noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rlrun.core.batch import Batch


def _as_it_is(said: Tensor) -> Tensor:
    return said


class PerColumn:
    """Evaluates `net` for every column of a batch with that column's own parameters, given as vectors [B, P] in the order of net.parameters()."""

    def __init__(self, net: nn.Module, at_once: bool, choose: Callable[[Any], Tensor] = _as_it_is):
        """net(obs [T, B, ...], is_first [T, B], no state) -> (what it says [T, B, ...], state). choose: what it says of one row [1, ...] -> [1, ...].
        at_once: all columns in one call (torch.func.vmap), which is quickest for small nets; otherwise column after column, as convolutions of chunks,
        which have no batched form, need it."""
        self.net, self.at_once, self.choose = net, at_once, choose
        self.last: tuple[Tensor, dict[str, Tensor]] | None = None  # the vectors that outputs() was given last, and their views by name

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return sum(parameter.numel() for parameter in self.net.parameters())

    def vector(self) -> Tensor:
        """The net's own parameters [P]; a copy, differentiable where gradients are on."""
        return torch.cat([parameter.reshape(-1) for parameter in self.net.parameters()])  # reshape: convolutions' are channels-last

    def outputs(self, parameters: Tensor, obs: Batch, is_first: Tensor) -> Tensor:
        """parameters [B, P], obs [B, ...], is_first [B] -> what every column's net says [B, ...]."""
        if not self.at_once:
            return torch.stack([self._one(self._named(own), _plain(obs[b]), is_first[b]) for b, own in enumerate(parameters)])
        if self.last is None or self.last[0] is not parameters:
            self.last = parameters, self._named(parameters)
        return vmap(self._one)(self.last[1], _plain(obs), is_first)

    def disturbed(self, noise: Tensor, obs: Batch, is_first: Tensor) -> Tensor:
        """The same with noise [B, P] added to the net's own parameters, column after column."""
        return torch.stack([self._one(self._moved(own), _plain(obs[b]), is_first[b]) for b, own in enumerate(noise)])

    def _named(self, vectors: Tensor) -> dict[str, Tensor]:
        """[..., P] -> the net's parameters by name, [..., *shape], as views."""
        named, start = {}, 0
        for name, parameter in self.net.named_parameters():
            named[name] = vectors[..., start : start + parameter.numel()].view(*vectors.shape[:-1], *parameter.shape)
            start += parameter.numel()
        return named

    def _moved(self, noise: Tensor) -> dict[str, Tensor]:
        """The net's parameters by name, moved by noise [P]. Each sum has its parameter's memory format."""
        moves = self._named(noise)
        return {name: parameter + moves[name] for name, parameter in self.net.named_parameters()}

    def _one(self, parameters: dict[str, Tensor], rows: Mapping[str, Any], is_first: Tensor) -> Tensor:
        """What one column's net says of its row [...]."""
        said: Any = functional_call(self.net, parameters, (_batch(rows), is_first[None, None], Batch()))[0]
        return self.choose(said[0])[0]


def _plain(rows: Batch) -> dict[str, Any]:
    """Nested dictionaries, which vmap knows."""
    return {name: _plain(value) if isinstance(value, Batch) else value for name, value in rows.items()}


def _batch(rows: Mapping[str, Any]) -> Batch:
    """One column's leaves [...] -> [1, 1, ...]."""
    return Batch({name: _batch(value) if isinstance(value, Mapping) else value[None, None] for name, value in rows.items()})
