"""Filters, which normalise observations, rewards and values by their running means and deviations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, at
from rlrun.core.moments import Moments, RunningMoments, masked_moments_of, merged, moments_of
from rlrun.core.ranks import Ranks
from rlrun.core.specs import Box

TINY = 1e-8
BLOCK_NUMBERS = 2**17  # of an image batch that are filtered together on a CPU: 0.5 MB of float32 stay in its caches


class ObservationFilter(RunningMoments):
    """(x - mean) / deviation, bounded to [-clip, clip] (RLlib's MeanStdFilter); a clip of 0 means no bound. Constant
    numbers become 0. Until there are moments, numbers are multiplied by `scale`."""

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
        # Fragments may hold dead rows alone. Until there is a live one, the scale stays what it was.
        self.scale.copy_(torch.where(self.count > 0, (self.variance + TINY).rsqrt(), self.scale))

    def forward(self, x: Tensor) -> Tensor:
        """Filters x [..., *shape] of any dtype; the result is float32."""
        if x.dtype == torch.uint8 and x.device.type == "cpu" and not _traced():
            return self._in_blocks(x)
        x = (x.float() - self.shift) * self.scale
        return x.clamp(-self.clip, self.clip) if self.clip > 0 else x

    def _in_blocks(self, x: Tensor) -> Tensor:
        """The same numbers, a few images at a time. Each step over a whole batch would go through main memory: 160
        screens of 4x84x84 took 17 ms so, and 6 ms in blocks."""
        filtered = torch.empty(x.shape)
        blocks = (tensor.reshape(-1, *self.shift.shape).split(self._rows()) for tensor in (x, filtered))
        for source, block in zip(*blocks, strict=True):
            torch.sub(source, self.shift, out=block).mul_(self.scale)
            if self.clip > 0:
                block.clamp_(-self.clip, self.clip)
        return filtered

    def _rows(self) -> int:
        return max(1, BLOCK_NUMBERS // max(1, self.shift.numel()))


class ObservationFilters(nn.Module):
    """A filter for every part of an observation that is a Box; in images, each pixel has its own moments. Other parts
    pass unchanged. `parts` holds (path, space) of the parts to be filtered."""

    def __init__(self, parts: list[tuple[tuple[str, ...], Box]], clip: float):
        super().__init__()
        self.paths = [path for path, _ in parts]
        self.filters = nn.ModuleList(
            ObservationFilter(box.shape, clip, 1 / 255 if box.image and box.dtype == "uint8" else 1.0)
            for _, box in parts
        )

    def forward(self, obs: Tensor | Batch) -> Tensor | Batch:
        for path, one in zip(self.paths, self.filters, strict=True):
            obs = _exchange(obs, path, one)
        return obs

    def moments(self, obs: Tensor | Batch, live: Tensor) -> list[Moments]:
        """obs [T, B, ...], live [T, B] -> the moments of every filtered part over the live rows."""
        parts = [at(obs, path) for path in self.paths]
        if live.device.type == "cuda":
            return [masked_moments_of(part.flatten(0, 1), live.flatten()) for part in parts]
        return [moments_of(part[live]) for part in parts]

    def merge(self, moments: Sequence[list[Moments]], ranks: Ranks) -> None:
        """Merges what moments() returned for any number of fragments, over all learners."""
        for i, one in enumerate(self.filters):
            one.merge(merged([parts[i] for parts in moments], one.mean.shape, ranks))  # type: ignore[operator, union-attr, arg-type]


def _traced() -> bool:
    """Whether PyTorch follows this call to export it, to compile it or to run it for several policies at once; then it
    can neither split rows nor write into tensors."""
    tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    return tracing or torch._C._functorch.peek_interpreter_stack() is not None


def _exchange(obs: Tensor | Batch, path: tuple[str, ...], function: Callable[[Tensor], Tensor]) -> Tensor | Batch:
    """obs with the part at `path` replaced by the function's result for it."""
    if not path:
        assert isinstance(obs, Tensor)
        return function(obs)
    assert isinstance(obs, Batch)
    return obs.replace(**{path[0]: _exchange(obs[path[0]], path[1:], function)})


class RewardScale(RunningMoments):
    """Divides rewards by the deviation of the discounted return so far and bounds them to [-10, 10] (Engstrom et al.
    2020, arXiv:2005.12729, appendix A.2)."""

    BOUND = 10.0

    def __init__(self) -> None:
        super().__init__(())

    def forward(self, reward: Tensor) -> Tensor:
        return (reward * (self.variance + TINY).rsqrt().float()).clamp(-self.BOUND, self.BOUND)


class ValueScale(RunningMoments):
    """PopArt (van Hasselt et al. 2016, arXiv:1602.07714, eq. 7 to 9): normalises returns to mean 0 and deviation 1, and
    adjusts the value head so that its outputs keep their meaning when the moments change. The moments are those of all
    returns so far."""

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
        """Merges the moments of new returns, and changes the head, whose outputs are normalised values, so that the
        denormalised values stay the same."""
        mean, deviation = self.mean.clone(), self.deviation
        self.merge(moments)
        head.weight.mul_(deviation / self.deviation)
        head.bias.copy_((deviation * head.bias + mean - self.mean) / self.deviation)


class FiltersObservations:
    """A mixin for policies that filter observations. The policy sets `filter`, to None if it has no filter."""

    filter: ObservationFilters | None

    def seen(self, obs: Batch) -> Batch:
        """The filtered observations, which are the inputs of the nets."""
        return obs if self.filter is None else obs.replace(observation=self.filter(obs["observation"]))

    def moments(self, batch: Batch) -> list[Moments] | None:
        """See core.policy.Policy."""
        return None if self.filter is None else self.filter.moments(batch["obs"]["observation"][:-1], batch["valid"])

    def absorb(self, moments: Sequence[list[Moments]], ranks: Ranks) -> None:
        """See core.policy.Policy."""
        if self.filter is not None:
            self.filter.merge(moments, ranks)
