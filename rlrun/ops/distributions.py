"""Action distributions. torch.distributions samples from the global stream; these take a generator, so that runs can be repeated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlrun.core.batch import Batch


class Categorical:
    """Over A actions, from unnormalised logits [..., A]."""

    def __init__(self, logits: Tensor):
        self.log_probs = torch.log_softmax(logits, -1)

    def __getitem__(self, index) -> Categorical:
        return self.from_record(Batch(log_probs=self.log_probs[index]))

    def record(self) -> Batch:
        """What from_record makes the same distribution of."""
        return Batch(log_probs=self.log_probs)

    @staticmethod
    def from_record(record: Batch) -> Categorical:
        part = object.__new__(Categorical)
        part.log_probs = record.log_probs
        return part

    def sample(self, rng: torch.Generator) -> Tensor:
        """[...] int64, by the Gumbel trick: argmax(log p - log E), E exponential."""
        exponential = torch.empty_like(self.log_probs).exponential_(generator=rng)
        return (self.log_probs - exponential.log()).argmax(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """log p(action) [...] for action [...]."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other) [...]."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


class Gaussian:
    """Independent normals over an action [..., D] (log_prob sums over D)."""

    def __init__(self, mean: Tensor, log_std: Tensor):
        self.mean, self.log_std = mean, log_std.expand_as(mean)

    def __getitem__(self, index) -> Gaussian:
        return Gaussian(self.mean[index], self.log_std[index])

    def record(self) -> Batch:
        """What from_record makes the same distribution of."""
        return Batch(mean=self.mean, log_std=self.log_std)

    @staticmethod
    def from_record(record: Batch) -> Gaussian:
        return Gaussian(record.mean, record.log_std)

    def sample(self, rng: torch.Generator) -> Tensor:
        noise = torch.randn(self.mean.shape, generator=rng, device=self.mean.device, dtype=self.mean.dtype)
        return self.mean + self.log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other) [...]."""
        ratio = (2 * (self.log_std - other.log_std)).exp()
        shift = ((self.mean - other.mean) * torch.exp(-other.log_std)).square()
        return 0.5 * (ratio + shift - 1 - ratio.log()).sum(-1)


Distribution = Categorical | Gaussian


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q) [...] of two distributions of one kind."""
    if isinstance(p, Categorical) and isinstance(q, Categorical):
        return p.kl(q)
    assert isinstance(p, Gaussian) and isinstance(q, Gaussian), (type(p), type(q))
    return p.kl(q)
