"""Action distributions that sample from a given generator, so that runs can be repeated.

torch.distributions would sample from the global one. All classes have the methods of Distribution. Leading dimensions
are written [...]; actions have the leading dimensions of the parameters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlrun.core.batch import Batch

# Logit of an illegal action. Its probability is exactly 0, and it adds 0 * MASKED = 0 to the entropy; -inf would add
# NaN.
MASKED = -1e9
EDGE = 1e-6  # smallest distance of a squashed action or a Beta sample from its bounds
SMALLEST = -80.0  # bound on the logarithm of a ratio of variances; below e^-87, float32 has none
CERTAIN = 6.0  # deviations within which a normal variable lies with probability 1 - 1e-9


class Distribution(Protocol):
    def __getitem__(self, index) -> Any: ...
    def sample(self, rng: torch.Generator) -> Any: ...
    def mode(self) -> Any: ...
    def log_prob(self, action: Any) -> Tensor: ...
    def entropy(self) -> Tensor: ...
    def given(self, action: Any) -> Any:
        """Returns this distribution where the parts that others depend on are those of `action`."""
        ...

    def kl(self, other: Any) -> Tensor:
        """KL(self || other) [...]."""
        ...

    def record(self) -> Batch: ...
    def from_record(self, record: Batch) -> Any:
        """Makes a distribution of the same kind from what record() returned."""
        ...


class Whole:
    """A distribution without parts, or with independent ones."""

    def given(self, action: Any) -> Any:
        return self


class ActionDistribution(Whole):
    """The base class of a user's own distribution over actions, model.action_distribution=my_package.module:Name.

    It is made of the numbers [..., K] that a network puts out, where K is outputs(space). Actions are in the form that
    rows have: choices count from 0, and numbers of a bounded Box lie in [-1, 1]; those of nested spaces are Batches.
    Subclasses define outputs, sample, mode, log_prob, entropy and kl, all without loops over rows. sac, tqc, cql
    and crr also need rsample."""

    def __init__(self, numbers: Tensor, space: Any):
        """space: rlrun's description of the action space (rlrun.core.specs), with its shape, n or sizes."""
        self.numbers, self.space = numbers, space

    @classmethod
    def outputs(cls, space: Any) -> int:
        """Returns how many numbers K describe the distribution of one row. Raises ValueError for a space that does not
        fit."""
        raise NotImplementedError

    def sample(self, rng: torch.Generator) -> Any:
        """Returns an action for each row [..., *shape], drawn with random numbers of `rng` alone."""
        raise NotImplementedError

    def mode(self) -> Any:
        """Returns the action of each row that greedy acting takes [..., *shape]."""
        raise NotImplementedError

    def log_prob(self, action: Any) -> Tensor:
        """Returns the log probability, or density, of an action for each row [...]."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Returns the entropy of each row [...]."""
        raise NotImplementedError

    def kl(self, other: Any) -> Tensor:
        """Returns KL(self || other) of each row [...]."""
        raise NotImplementedError

    def rsample(self, rng: torch.Generator, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
        """Returns an action [..., *shape] and its log density [...], both differentiable.

        With `world` learners each draws the noise of all of them, [world, ...], and keeps the part of its rank."""
        raise NotImplementedError

    def __getitem__(self, index) -> Any:
        return type(self)(self.numbers[index], self.space)

    def record(self) -> Batch:
        return Batch(numbers=self.numbers)

    def from_record(self, record: Batch) -> Any:
        return type(self)(record.numbers, self.space)


def categorical_sample(log_probs: Tensor, rng: torch.Generator) -> Tensor:
    """Samples [...] int64 from log_probs [..., A] by the Gumbel trick: argmax(log p - log E) with E exponential."""
    exponential = torch.empty_like(log_probs).exponential_(generator=rng)
    return (log_probs - exponential.log()).argmax(-1)


def without_masked(log_prob: Tensor) -> Tensor:
    """Returns log-probabilities in which those of illegal actions are -inf."""
    return log_prob.masked_fill(log_prob < 0.5 * MASKED, -math.inf)


def of_every_choice(dist: Any, shape: tuple[int, ...], choices: int) -> Tensor:
    """Returns the log-probabilities [*shape, A] of all choices under a distribution of one choice, with leading
    dimensions `shape`. Those of illegal actions are -inf."""
    if isinstance(dist, Categorical):
        return without_masked(dist.log_probs)
    return torch.stack([dist.log_prob(torch.full(shape, choice)) for choice in range(choices)], -1)


def _flat(action: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[..., *shape] -> [..., D]."""
    return action.reshape(*action.shape[: action.ndim - len(shape)], -1)


def legal_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Returns logits [..., A] in which those of illegal actions, where mask [..., A] is False, are MASKED. Legal ones
    are kept well above it, however large the numbers are from which they were made."""
    return logits.clamp_min(0.25 * MASKED).masked_fill(~mask, MASKED)


class Categorical(Whole):
    """A choice of A actions with unnormalised logits [..., A]; the probability is 0 where mask [..., A] is False."""

    def __init__(self, logits: Tensor, mask: Tensor | None = None):
        self.log_probs = torch.log_softmax(logits if mask is None else legal_logits(logits, mask), -1)

    def __getitem__(self, index) -> Categorical:
        return self.from_record(Batch(log_probs=self.log_probs[index]))

    def record(self) -> Batch:
        return Batch(log_probs=self.log_probs)

    def from_record(self, record: Batch) -> Categorical:
        part = object.__new__(Categorical)
        part.log_probs = record.log_probs
        return part

    def sample(self, rng: torch.Generator) -> Tensor:
        return categorical_sample(self.log_probs, rng)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Returns log p(action) [...] for action [...]."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


class MultiCategorical(Whole):
    """D independent choices of sizes n_1 .. n_D, with logits [..., sum n] and actions [..., *shape] of D numbers."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...], shape: tuple[int, ...], mask: Tensor | None = None):
        masks = [None] * len(sizes) if mask is None else mask.split(list(sizes), -1)
        self.parts = [Categorical(part, m) for part, m in zip(logits.split(list(sizes), -1), masks, strict=True)]
        self.sizes, self.shape = sizes, shape

    def _with(self, parts: list[Categorical]) -> MultiCategorical:
        made = object.__new__(MultiCategorical)
        made.parts, made.sizes, made.shape = parts, self.sizes, self.shape
        return made

    def __getitem__(self, index) -> MultiCategorical:
        return self._with([part[index] for part in self.parts])

    def record(self) -> Batch:
        return Batch(log_probs=torch.cat([part.log_probs for part in self.parts], -1))

    def from_record(self, record: Batch) -> MultiCategorical:
        split = record.log_probs.split(list(self.sizes), -1)
        return self._with([part.from_record(Batch(log_probs=x)) for part, x in zip(self.parts, split, strict=True)])

    def _shaped(self, choices: list[Tensor]) -> Tensor:
        return torch.stack(choices, -1).unflatten(-1, self.shape)

    def sample(self, rng: torch.Generator) -> Tensor:
        return self._shaped([part.sample(rng) for part in self.parts])

    def mode(self) -> Tensor:
        return self._shaped([part.mode() for part in self.parts])

    def log_prob(self, action: Tensor) -> Tensor:
        flat = _flat(action, self.shape)
        return torch.stack([part.log_prob(flat[..., i]) for i, part in enumerate(self.parts)]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: MultiCategorical) -> Tensor:
        return torch.stack([a.kl(b) for a, b in zip(self.parts, other.parts, strict=True)]).sum(0)


class Bernoulli(Whole):
    """Independent switches, on with probability sigmoid(logits) [..., N]; actions [..., *shape] are 0 or 1."""

    def __init__(self, logits: Tensor, shape: tuple[int, ...]):
        self.logits, self.shape = logits, shape

    def __getitem__(self, index) -> Bernoulli:
        return Bernoulli(self.logits[index], self.shape)

    def record(self) -> Batch:
        return Batch(logits=self.logits)

    def from_record(self, record: Batch) -> Bernoulli:
        return Bernoulli(record.logits, self.shape)

    def sample(self, rng: torch.Generator) -> Tensor:
        uniform = torch.rand(self.logits.shape, generator=rng, device=self.logits.device, dtype=self.logits.dtype)
        return (uniform < torch.sigmoid(self.logits)).long().unflatten(-1, self.shape)

    def mode(self) -> Tensor:
        return (self.logits > 0).long().unflatten(-1, self.shape)

    def log_prob(self, action: Tensor) -> Tensor:
        on = _flat(action, self.shape).to(self.logits.dtype)
        return (on * F.logsigmoid(self.logits) + (1 - on) * F.logsigmoid(-self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        p = torch.sigmoid(self.logits)
        return -(p * F.logsigmoid(self.logits) + (1 - p) * F.logsigmoid(-self.logits)).sum(-1)

    def kl(self, other: Bernoulli) -> Tensor:
        p = torch.sigmoid(self.logits)
        on = F.logsigmoid(self.logits) - F.logsigmoid(other.logits)
        off = F.logsigmoid(-self.logits) - F.logsigmoid(-other.logits)
        return (p * on + (1 - p) * off).sum(-1)


class Gaussian(Whole):
    """Independent normals with mean, log_std [..., D] and actions [..., *shape] of D numbers; log_prob sums over D."""

    def __init__(self, mean: Tensor, log_std: Tensor, shape: tuple[int, ...] | None = None):
        self.mean, self.log_std = mean, log_std.expand_as(mean)
        self.shape = mean.shape[-1:] if shape is None else shape

    def __getitem__(self, index) -> Gaussian:
        return type(self)(self.mean[index], self.log_std[index], self.shape)

    def record(self) -> Batch:
        return Batch(mean=self.mean, log_std=self.log_std)

    def from_record(self, record: Batch) -> Gaussian:
        return type(self)(record.mean, record.log_std, self.shape)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def _noisy(self, rng: torch.Generator) -> Tensor:
        noise = torch.randn(self.mean.shape, generator=rng, device=self.mean.device, dtype=self.mean.dtype)
        return self.mean + self.log_std.exp() * noise

    def sample(self, rng: torch.Generator) -> Tensor:
        return self._shaped(self._noisy(rng))

    def mode(self) -> Tensor:
        return self._shaped(self.mean)

    def _deviations(self, x: Tensor) -> Tensor:
        """How far each number [..., D] is from the mean, in standard deviations."""
        return (x - self.mean) * torch.exp(-self.log_std)

    def _log_densities(self, deviations: Tensor) -> Tensor:
        """The log densities of single numbers [..., D] that are so many standard deviations from the mean."""
        return -0.5 * deviations.square() - self.log_std - 0.5 * math.log(2 * math.pi)

    def log_prob(self, action: Tensor) -> Tensor:
        return self._log_densities(self._deviations(_flat(action, self.shape))).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        ratio = (2 * (self.log_std - other.log_std)).clamp_min(SMALLEST).exp()
        shift = ((self.mean - other.mean) * torch.exp(-other.log_std)).square()
        return 0.5 * (ratio + shift - 1 - ratio.log()).sum(-1)


class SquashedGaussian(Gaussian):
    """tanh of a Gaussian, with actions inside (-1, 1) (Haarnoja et al. 2018, arXiv:1801.01290, appendix C).

    kl() is that of the inner Gaussians, because a bijection does not change it. entropy() has no closed form and is
    integrated by the trapezoidal rule.
    """

    @staticmethod
    @functools.cache
    def quadrature(device: torch.device) -> tuple[Tensor, Tensor]:
        """Nodes [48] of a standard normal variable, in deviations, and their probabilities [48].

        The nodes are evenly spaced, because the error of the trapezoidal rule falls exponentially with their number as
        soon as a step, times the deviation, is shorter than the bend of tanh. For log_std up to 2 the entropy is within
        0.001. Gauss-Hermite nodes are spread too widely for such deviations: 64 of them are wrong by 0.02.

        They are cached because a GPU cannot receive them while a CUDA graph is recorded.
        """
        nodes = np.linspace(-4.5, 4.5, 48)
        weights = np.exp(-0.5 * nodes**2)
        return tuple(torch.from_numpy(x).float().to(device) for x in (nodes, weights / weights.sum()))  # type: ignore[return-value]

    def sample(self, rng: torch.Generator) -> Tensor:
        return self._shaped(torch.tanh(self._noisy(rng)))

    def rsample(self, rng: torch.Generator, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
        """Returns an action and its log density [...], both differentiable (Haarnoja et al. 2018, appendix C).

        With `world` learners each draws the noise of all of them and keeps the part of its rank.
        """
        noise = torch.randn(world, *self.mean.shape, generator=rng, device=self.mean.device, dtype=self.mean.dtype)[
            rank
        ]
        x = torch.addcmul(self.mean, self.log_std.exp(), noise)
        density = -0.5 * noise.square() - 0.5 * math.log(2 * math.pi) - self.log_std  # (x - mean) / std is the noise
        return self._shaped(torch.tanh(x)), (density - squash_log_slope(x)).sum(-1)

    def mode(self) -> Tensor:
        return self._shaped(torch.tanh(self.mean))

    def log_prob(self, action: Tensor) -> Tensor:
        """A number within EDGE of a bound has too few digits to tell which number tanh was taken of. It stands for all
        that lie there, whose density is their probability divided by EDGE."""
        flat = _flat(action, self.shape)
        x = torch.atanh(flat.clamp(-1 + EDGE, 1 - EDGE))
        inside = flat.abs() < 1 - EDGE
        deviations = self._deviations(x)
        # Beyond CERTAIN deviations the probability is 1, and its second derivative would become NaN. Numbers inside,
        # which are nearly all, do not use this probability. They stand at 0, where log_ndtr takes a third of the time.
        outside = torch.where(inside, 0.0, -x.sign() * deviations).clamp(max=CERTAIN)
        density = torch.where(inside, self._log_densities(deviations), torch.special.log_ndtr(outside))
        return density.sum(-1) - torch.where(inside, squash_log_slope(x), math.log(EDGE)).sum(-1)

    def entropy(self) -> Tensor:
        nodes, weights = self.quadrature(self.mean.device)
        x = self.mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * nodes  # [..., D, 48]
        return super().entropy() + (squash_log_slope(x) * weights).sum((-2, -1))


def squash_log_slope(x: Tensor) -> Tensor:
    """Returns log(1 - tanh(x)^2), in a form that is stable for large |x|."""
    return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class Beta(Whole):
    """D independent Beta variables stretched from [0, 1] to [-1, 1] (Chou et al. 2017).

    alpha and beta are [..., D]; above 1, the density has a single peak.
    """

    def __init__(self, alpha: Tensor, beta: Tensor, shape: tuple[int, ...]):
        self.alpha, self.beta, self.shape = alpha, beta, shape

    def __getitem__(self, index) -> Beta:
        return Beta(self.alpha[index], self.beta[index], self.shape)

    def record(self) -> Batch:
        return Batch(alpha=self.alpha, beta=self.beta)

    def from_record(self, record: Batch) -> Beta:
        return Beta(record.alpha, record.beta, self.shape)

    def _shaped(self, unit: Tensor) -> Tensor:
        return (2.0 * unit - 1.0).reshape(*unit.shape[:-1], *self.shape)

    def _draw(self, rng: torch.Generator) -> Tensor:
        a, b = (torch._standard_gamma(x.contiguous(), generator=rng) for x in (self.alpha, self.beta))
        return (a / (a + b)).clamp(EDGE, 1 - EDGE)

    def sample(self, rng: torch.Generator) -> Tensor:
        return self._shaped(self._draw(rng).detach())

    def rsample(self, rng: torch.Generator, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
        """Returns an action and its log density [...], both differentiable, for one learner only.

        Gamma variables have implicit gradients (Figurnov et al. 2018, arXiv:1805.08498).
        """
        assert world == 1, "learners would use up different amounts of random numbers"
        unit = self._draw(rng)
        return self._shaped(unit), self._log_density(unit)

    def mode(self) -> Tensor:
        """The peak of the density; the middle where alpha and beta are 1, because all actions are equally likely."""
        above, total = self.alpha - 1, (self.alpha - 1) + (self.beta - 1)
        return self._shaped(torch.where(total > 0, above / torch.where(total > 0, total, 1.0), 0.5))

    def _log_norm(self) -> Tensor:
        return torch.lgamma(self.alpha) + torch.lgamma(self.beta) - torch.lgamma(self.alpha + self.beta)

    def log_prob(self, action: Tensor) -> Tensor:
        return self._log_density(((_flat(action, self.shape) + 1.0) * 0.5).clamp(EDGE, 1 - EDGE))

    def _log_density(self, x: Tensor) -> Tensor:
        return ((self.alpha - 1) * x.log() + (self.beta - 1) * torch.log1p(-x) - self._log_norm() - math.log(2.0)).sum(
            -1
        )

    def entropy(self) -> Tensor:
        a, b = self.alpha, self.beta
        inner = (
            self._log_norm()
            - (a - 1) * torch.digamma(a)
            - (b - 1) * torch.digamma(b)
            + (a + b - 2) * torch.digamma(a + b)
        )
        return (inner + math.log(2.0)).sum(-1)

    def kl(self, other: Beta) -> Tensor:
        a, b, c, d = self.alpha, self.beta, other.alpha, other.beta
        inner = other._log_norm() - self._log_norm() + (a - c) * torch.digamma(a) + (b - d) * torch.digamma(b)
        return (inner + (c - a + d - b) * torch.digamma(a + b)).sum(-1)


class Joint(Whole):
    """Named independent distributions; actions are Batches with the same names."""

    def __init__(self, parts: Mapping[str, Distribution]):
        self.parts = dict(parts)

    def __getitem__(self, index) -> Joint:
        return Joint({name: part[index] for name, part in self.parts.items()})

    def record(self) -> Batch:
        return Batch({name: part.record() for name, part in self.parts.items()})

    def from_record(self, record: Batch) -> Joint:
        return Joint({name: part.from_record(record[name]) for name, part in self.parts.items()})

    def sample(self, rng: torch.Generator) -> Batch:
        return Batch({name: part.sample(rng) for name, part in self.parts.items()})

    def mode(self) -> Batch:
        return Batch({name: part.mode() for name, part in self.parts.items()})

    def log_prob(self, action: Batch) -> Tensor:
        return torch.stack([part.log_prob(action[name]) for name, part in self.parts.items()]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts.values()]).sum(0)

    def kl(self, other: Joint) -> Tensor:
        return torch.stack([part.kl(other.parts[name]) for name, part in self.parts.items()]).sum(0)
