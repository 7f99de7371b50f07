"""A distribution over continuous actions: independent Laplace variables, whose tails are heavier than a Gaussian's."""

from __future__ import annotations

import math

import torch

import rlrun


class Laplace(rlrun.ActionDistribution):
    """The net puts out a mean and a log scale for each number of the action."""

    def __init__(self, numbers, space):
        super().__init__(numbers, space)
        self.mean, self.log_scale = numbers.chunk(2, -1)

    @classmethod
    def outputs(cls, space):
        if space.kind != "box":
            raise ValueError("Laplace variables are numbers")
        return 2 * space.size

    def _shaped(self, flat):
        return flat.reshape(*flat.shape[:-1], *self.space.shape)

    def rsample(self, rng, rank=0, world=1):
        uniform = torch.rand(world, *self.mean.shape, generator=rng, device=self.mean.device)[rank] - 0.5
        noise = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.4999999))
        action = self._shaped(self.mean + self.log_scale.exp() * noise)
        return action, self.log_prob(action)

    def sample(self, rng):
        return self.rsample(rng)[0]

    def mode(self):
        return self._shaped(self.mean)

    def log_prob(self, action):
        far = (action.reshape(self.mean.shape) - self.mean).abs() / self.log_scale.exp()
        return (-far - self.log_scale - math.log(2)).sum(-1)

    def entropy(self):
        return (1 + math.log(2) + self.log_scale).sum(-1)

    def kl(self, other):
        scale, others = self.log_scale.exp(), other.log_scale.exp()
        far = (self.mean - other.mean).abs()
        near = (far + scale * torch.exp(-far / scale)) / others
        return (near + other.log_scale - self.log_scale - 1).sum(-1)
