"""Action heads: features [..., F] -> a distribution over an action space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.batch import Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, MultiBinary, MultiDiscrete, Nested, Space
from rlrun.ops.distributions import Bernoulli, Beta, Categorical, Distribution, Gaussian, Joint, MultiCategorical, SquashedGaussian

BoxDistribution = Literal["gaussian", "squashed_gaussian", "beta"]
Linear = Callable[[int, int, float], nn.Linear]  # inputs, outputs, gain
SMALL_GAIN = 0.01  # of an action head's last layer: the first policy is nearly uniform (Andrychowicz et al. 2021)


class ActionHead(nn.Module):
    """`dist_spec` says what the distribution of one row records."""

    dist_spec: RowSpec

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        raise NotImplementedError


def _numbers(*names: str, width: int) -> RowSpec:
    return {name: Field((width,), torch.float32) for name in names}


class DiscreteHead(ActionHead):
    """Categorical over one choice, or independent ones over several."""

    def __init__(self, space: Discrete | MultiDiscrete, inputs: int, linear: Linear):
        super().__init__()
        self.space = space
        self.sizes = (space.n,) if isinstance(space, Discrete) else space.sizes
        self.linear = linear(inputs, sum(self.sizes), SMALL_GAIN)
        self.dist_spec = _numbers("log_probs", width=sum(self.sizes))

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        logits, legal = self.linear(features), None if mask is None else mask.bool()
        if isinstance(self.space, Discrete):
            return Categorical(logits, legal)
        return MultiCategorical(logits, self.sizes, self.space.shape, legal)


class BinaryHead(ActionHead):
    def __init__(self, space: MultiBinary, inputs: int, linear: Linear):
        super().__init__()
        self.shape = space.shape
        self.linear = linear(inputs, space.size, SMALL_GAIN)
        self.dist_spec = _numbers("logits", width=space.size)

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        return Bernoulli(self.linear(features), self.shape)


class BoxHead(ActionHead):
    """Gaussian, with a free log standard deviation per number; squashed Gaussian, whose deviation depends on the features as in SAC; or Beta."""

    LOG_STD = (-5.0, 2.0)  # of squashed Gaussians

    def __init__(self, space: Box, inputs: int, linear: Linear, kind: BoxDistribution, log_std: float):
        super().__init__()
        self.kind, self.shape = kind, space.shape
        self.linear = linear(inputs, space.size if kind == "gaussian" else 2 * space.size, SMALL_GAIN)
        if kind == "gaussian":
            self.log_std = nn.Parameter(torch.full((space.size,), log_std))
        self.dist_spec = _numbers("alpha", "beta", width=space.size) if kind == "beta" else _numbers("mean", "log_std", width=space.size)
        self.first_log_std = log_std

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        out = self.linear(features)
        if self.kind == "gaussian":
            return Gaussian(out, self.log_std, self.shape)
        a, b = out.chunk(2, -1)
        if self.kind == "beta":
            return Beta(1.0 + F.softplus(a), 1.0 + F.softplus(b), self.shape)
        return SquashedGaussian(a, (b + self.first_log_std).clamp(*self.LOG_STD), self.shape)


class JointHead(ActionHead):
    """One head per part of a tuple or dictionary."""

    def __init__(self, heads: dict[str, ActionHead]):
        super().__init__()
        self.heads = nn.ModuleList(heads.values())  # names may hold dots, which a ModuleDict refuses
        self.names = tuple(heads)
        self.dist_spec = {name: head.dist_spec for name, head in heads.items()}

    def forward(self, features: Tensor, mask: Tensor | None) -> Distribution:
        return Joint({name: head(features, None) for name, head in zip(self.names, self.heads, strict=True)})


def action_head(space: Space, inputs: int, linear: Linear, kind: BoxDistribution, log_std: float) -> ActionHead:
    """Raises UserError where the distribution asked for does not fit the space."""
    if isinstance(space, Nested):
        return JointHead({name: action_head(part, inputs, linear, kind, log_std) for name, part in space.spaces})
    if isinstance(space, Discrete | MultiDiscrete):
        return DiscreteHead(space, inputs, linear)
    if isinstance(space, MultiBinary):
        return BinaryHead(space, inputs, linear)
    if kind != "gaussian" and not space.bounded:
        raise UserError(f"model.action_distribution={kind} needs bounded actions, not {space} without bounds; use gaussian")
    return BoxHead(space, inputs, linear, kind, log_std)
