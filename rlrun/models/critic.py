"""Critics: ensembles of networks that estimate the value of states and actions, computed together."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from rlrun.core.specs import Box, EnvSpec
from rlrun.models.encoders import ACTIVATIONS, NetConfig
from rlrun.models.model import Model, Seen


class EnsembleLinear(nn.Module):
    """E linear layers, computed in one batched product: [E, B, in] -> [E, B, out]."""

    def __init__(self, count: int, inputs: int, outputs: int, orthogonal_gain: float | None):
        """orthogonal_gain is the gain of orthogonal initial weights; None means PyTorch's default for linear layers."""
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))
        if orthogonal_gain is not None:
            for weight in self.weight.data:
                nn.init.orthogonal_(weight, orthogonal_gain)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[-1] == 1 and x.device.type == "cpu":  # a product with single columns is four times as slow
            return (x * self.weight.transpose(1, 2)).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation with separate weights for each of E nets: [E, B, F] -> [E, B, F]."""

    def __init__(self, count: int, size: int):
        super().__init__()
        self.size = size
        self.weight, self.bias = nn.Parameter(torch.ones(count, 1, size)), nn.Parameter(torch.zeros(count, 1, size))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (self.size,)) * self.weight + self.bias


class Critics(nn.Module):
    """E nets behind one encoder. For Box actions, each net maps an observation and an action to `outputs` numbers. For
    discrete actions, it maps an observation to `outputs` numbers for every action."""

    def __init__(self, spec: EnvSpec, model: Model, cfg: NetConfig, count: int, outputs: int = 1):
        super().__init__()
        self.count, self.outputs = count, outputs
        self.trunk = model.trunk(spec)
        space = spec.action
        self.told = space.size if isinstance(space, Box) else 0  # numbers of an action that are inputs of the nets
        self.actions = 1 if isinstance(space, Box) else space.n  # type: ignore[union-attr]
        gain = math.sqrt(2.0) if model.cfg.init == "orthogonal" else None
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise((self.trunk.features + self.told, *cfg.hidden)):
            layers += [
                EnsembleLinear(count, before, after, gain),
                *([EnsembleLayerNorm(count, after)] if cfg.layer_norm else []),
            ]
            layers += [ACTIVATIONS[cfg.activation]()]
        last = cfg.hidden[-1] if cfg.hidden else self.trunk.features + self.told
        # The user's own last layers, or None if they are linear and computed together.
        self.heads: nn.ModuleList | None = None
        if model.own_q_head is None:
            layers += [EnsembleLinear(count, last, self.actions * outputs, None if gain is None else 1.0)]
        else:
            made = [model.last_layer("q_head", last, self.actions * outputs) for _ in range(count)]
            self.heads = nn.ModuleList(made)
        self.net = nn.Sequential(*layers)

    def features(self, seen: Seen) -> Tensor:
        """The features of rows [N, F], which all nets share. Its memory begins with zeros, because samplers do not have
        the critics and store no state of theirs."""
        return self.trunk.of(seen.from_zeros())

    def of(self, features: Tensor, action: Tensor | None) -> Tensor:
        """features [B, F], action [B, D] -> [E, B, K]. With discrete actions, `action` is None and the result
        [E, B, A, K]."""
        seen = features if action is None else torch.cat([features, action], -1)
        out = self.net(seen.expand(self.count, *seen.shape))
        if self.heads is not None:
            out = torch.stack([head(one) for head, one in zip(self.heads, out, strict=True)])
        return out if action is not None else out.unflatten(-1, (self.actions, self.outputs))

    def forward(self, seen: Seen, action: Tensor | None) -> Tensor:
        return self.of(self.features(seen), action)
