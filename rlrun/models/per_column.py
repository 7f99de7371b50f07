"""Evaluates one net with different parameters for every column, for evolution strategies and parameter noise, or for
every task, for MAML. The parameters of a column or task are a vector.

Frozen parameters are the net's own for all. Their names are noted when a policy is made, since no parameter of a copy
that only acts needs a gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rlrun.core.batch import Batch


def frozen_in(net: nn.Module) -> set[str]:
    """The names of a net's parameters that need no gradient."""
    return {name for name, parameter in net.named_parameters() if not parameter.requires_grad}


def learnt(net: nn.Module, frozen: Collection[str]) -> dict[str, nn.Parameter]:
    """A net's parameters apart from the frozen ones, by name."""
    return {name: parameter for name, parameter in net.named_parameters() if name not in frozen}


def size_of(net: nn.Module, frozen: Collection[str] = ()) -> int:
    """The number P of a net's parameters that are not frozen."""
    return sum(parameter.numel() for parameter in learnt(net, frozen).values())


def vector_of(net: nn.Module, frozen: Collection[str] = ()) -> Tensor:
    """A copy [P] of a net's own parameters that are not frozen, in the order of net.parameters(), which is
    differentiable if gradients are on."""
    # This is reshape() and not view() because the weights of convolutions are channels-last.
    return torch.cat([parameter.reshape(-1) for parameter in learnt(net, frozen).values()])


def named_parts(net: nn.Module, vectors: Tensor, frozen: Collection[str] = ()) -> dict[str, Tensor]:
    """Splits vectors [..., P] into views [..., *shape], by the names of a net's parameters that are not frozen."""
    named, start = {}, 0
    for name, parameter in learnt(net, frozen).items():
        named[name] = vectors[..., start : start + parameter.numel()].view(*vectors.shape[:-1], *parameter.shape)
        start += parameter.numel()
    return named


def with_vector(net: nn.Module, vector: Tensor, *inputs: Any, frozen: Collection[str] = ()) -> Any:
    """The net's output for some inputs if its parameters that are not frozen were vector [P]. Gradients reach the
    vector."""
    return functional_call(net, named_parts(net, vector, frozen), inputs)


def _as_it_is(said: Tensor) -> Tensor:
    return said


class PerColumn:
    """Evaluates `net` for every column of a batch with that column's own parameters, given as vectors [B, P] in the
    order of net.parameters() without the frozen ones."""

    def __init__(self, net: nn.Module, at_once: bool, choose: Callable[[Any], Tensor] = _as_it_is):
        """net(obs [T, B, ...], is_first [T, B], no state) returns (outputs [T, B, ...], state). choose maps its output
        for one row [1, ...] to the result [1, ...]. With at_once, all columns are computed in one call
        (torch.func.vmap), which is fastest for small nets. Otherwise columns are computed one after the other, which
        convolutions in chunks require, since they have no batched form."""
        self.net, self.at_once, self.choose = net, at_once, choose
        self.frozen = frozen_in(net)
        # The vectors that outputs() was given last, and their views by name.
        self.last: tuple[Tensor, dict[str, Tensor]] | None = None

    @property
    def size(self) -> int:
        """The number of parameters P."""
        return size_of(self.net, self.frozen)

    def vector(self) -> Tensor:
        """A copy [P] of the net's own parameters, which is differentiable if gradients are on."""
        return vector_of(self.net, self.frozen)

    def outputs(self, parameters: Tensor, obs: Batch, is_first: Tensor) -> Tensor:
        """parameters [B, P], obs [B, ...], is_first [B] -> the output of every column's net [B, ...]."""
        if not self.at_once:
            return torch.stack(
                [
                    self._one(named_parts(self.net, own, self.frozen), plain(obs[b]), is_first[b])
                    for b, own in enumerate(parameters)
                ]
            )
        if self.last is None or self.last[0] is not parameters:
            self.last = parameters, named_parts(self.net, parameters, self.frozen)
        return vmap(self._one)(self.last[1], plain(obs), is_first)

    def disturbed(self, noise: Tensor, obs: Batch, is_first: Tensor) -> Tensor:
        """The outputs [B, ...] with noise [B, P] added to the net's own parameters. Columns are computed one by one."""
        return torch.stack([self._one(self._moved(own), plain(obs[b]), is_first[b]) for b, own in enumerate(noise)])

    def _moved(self, noise: Tensor) -> dict[str, Tensor]:
        """The net's parameters plus noise [P], by name. Each sum has its parameter's memory format."""
        moves = named_parts(self.net, noise, self.frozen)
        return {name: parameter + moves[name] for name, parameter in learnt(self.net, self.frozen).items()}

    def _one(self, parameters: dict[str, Tensor], rows: Mapping[str, Any], is_first: Tensor) -> Tensor:
        """The output of one column's net for the column's row [...]."""
        said: Any = functional_call(self.net, parameters, (_batch(rows), is_first[None, None], Batch()))[0]
        return self.choose(said[0])[0]


def plain(rows: Batch) -> dict[str, Any]:
    """The rows as nested dictionaries, which vmap accepts."""
    return {name: plain(value) if isinstance(value, Batch) else value for name, value in rows.items()}


def _batch(rows: Mapping[str, Any]) -> Batch:
    """One column's row as a Batch: leaves [...] -> [1, 1, ...]."""
    return Batch(
        {name: _batch(value) if isinstance(value, Mapping) else value[None, None] for name, value in rows.items()}
    )
