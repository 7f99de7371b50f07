"""Filters: running mean and deviation of observations, running scale of rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, at
from rlrun.core.moments import Moments, RunningMoments, merged, moments_of
from rlrun.core.ranks import Ranks
from rlrun.core.specs import Box

TINY = 1e-8


class ObservationFilter(RunningMoments):
    """(x - mean) / deviation, bounded to [-clip, clip] (RLlib's MeanStdFilter; 0: no bound). Constant numbers become 0. `scale` is what numbers are
    multiplied by until there are moments."""

    def __init__(self, shape: tuple[int, ...], clip: float, scale: float = 1.0):
        super().__init__(shape)
        self.clip = clip
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.full(shape, scale))
        self.shift: Tensor
        self.scale: Tensor

    def merge(self, other: Moments) -> None:
        super().merge(other)
        self.shift.copy_(self.mean)
        self.scale.copy_((self.variance + TINY).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] of any dtype -> float32."""
        x = (x.float() - self.shift) * self.scale
        return x.clamp(-self.clip, self.clip) if self.clip > 0 else x


class ObservationFilters(nn.Module):
    """A filter for every part of an observation that is a Box, pixel by pixel in images; other parts pass as they are. `parts`: (path, space) of those."""

    def __init__(self, parts: list[tuple[tuple[str, ...], Box]], clip: float):
        super().__init__()
        self.paths = [path for path, _ in parts]
        self.filters = nn.ModuleList(ObservationFilter(box.shape, clip, 1 / 255 if box.image and box.dtype == "uint8" else 1.0) for _, box in parts)

    def forward(self, obs: Tensor | Batch) -> Tensor | Batch:
        for path, one in zip(self.paths, self.filters, strict=True):
            obs = _exchange(obs, path, one)
        return obs

    def moments(self, obs: Tensor | Batch, live: Tensor) -> list[Moments]:
        """obs [T, B, ...], live [T, B] -> moments of every filtered part over live rows."""
        return [moments_of(at(obs, path)[live]) for path in self.paths]

    def merge(self, moments: Sequence[list[Moments]], ranks: Ranks) -> None:
        """What moments() made of any number of fragments, by all learners."""
        for i, one in enumerate(self.filters):
            one.merge(merged([parts[i] for parts in moments], one.mean.shape, ranks))  # type: ignore[operator, union-attr, arg-type]


def _exchange(obs: Tensor | Batch, path: tuple[str, ...], function: Callable[[Tensor], Tensor]) -> Tensor | Batch:
    """obs with the part at `path` sent through the function."""
    if not path:
        assert isinstance(obs, Tensor)
        return function(obs)
    assert isinstance(obs, Batch)
    return obs.replace(**{path[0]: _exchange(obs[path[0]], path[1:], function)})


class RewardScale(RunningMoments):
    """Rewards divided by the deviation of the discounted return so far (Engstrom et al. 2020, arXiv:2005.12729, appendix A.2), bounded to [-10, 10]."""

    BOUND = 10.0

    def __init__(self) -> None:
        super().__init__(())

    def forward(self, reward: Tensor) -> Tensor:
        return (reward * (self.variance + TINY).rsqrt().float()).clamp(-self.BOUND, self.BOUND)


class ValueScale(RunningMoments):
    """Returns to mean 0 and deviation 1, and a value head whose outputs keep their meaning when those change: PopArt (van Hasselt et al. 2016,
    arXiv:1602.07714, eq. 7 to 9), here over all returns so far."""

    def __init__(self) -> None:
        super().__init__(())

    @property
    def deviation(self) -> Tensor:
        return (self.variance + TINY).sqrt()

    def normalize(self, value: Tensor) -> Tensor:
        return ((value - self.mean) / self.deviation).float()

    def denormalize(self, value: Tensor) -> Tensor:
        return (value * self.deviation + self.mean).float()

    @torch.no_grad()
    def follow(self, moments: Moments, head: nn.Linear) -> None:
        """Merges moments of new returns; the head, whose outputs are normalised values, is changed so that what they stand for stays."""
        mean, deviation = self.mean.clone(), self.deviation
        self.merge(moments)
        head.weight.mul_(deviation / self.deviation)
        head.bias.copy_((deviation * head.bias + mean - self.mean) / self.deviation)


class FiltersObservations:
    """The part of a policy that its filter of observations is: a policy sets `filter`, to None where it has none."""

    filter: ObservationFilters | None

    def seen(self, obs: Batch) -> Batch:
        """Observations as the nets get them."""
        return obs if self.filter is None else obs.replace(observation=self.filter(obs["observation"]))

    def moments(self, batch: Batch) -> list[Moments] | None:
        """See core.policy.Policy."""
        return None if self.filter is None else self.filter.moments(batch["obs"]["observation"][:-1], batch["valid"])

    def absorb(self, moments: Sequence[list[Moments]], ranks: Ranks) -> None:
        """See core.policy.Policy."""
        if self.filter is not None:
            self.filter.merge(moments, ranks)
