"""Noisy linear layers: exploration by learnt noise in the weights (Fortunato et al. 2018, arXiv:1706.10295)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Up to this many rows, two products are used instead of making the noisy weights first. On one core of a CPU, two
# products take 1/6 of the time for 1 row, and the same time for 32 rows.
FEW_ROWS = 16


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * e_w) x + mu_b + sigma_b * e_b (eq. 9) with factorised Gaussian noise (eq. 10, 11),
    initialised as in section 3.2. There is no noise until draw() is called."""

    def __init__(self, inputs: int, outputs: int, sigma: float):
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        # The noise is drawn anew for every use, so checkpoints need not hold it.
        self.register_buffer("noise_in", torch.zeros(inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(outputs), persistent=False)
        self.noise_in: Tensor
        self.noise_out: Tensor

    @torch.no_grad()
    def draw(self, rng: torch.Generator | None) -> None:
        """Draws new noise, or removes the noise if rng is None."""
        for noise in (self.noise_in, self.noise_out):
            if rng is None:
                noise.zero_()
            else:
                drawn = torch.randn(noise.shape, generator=rng, device=noise.device)
                noise.copy_(drawn.sign() * drawn.abs().sqrt())  # f of eq. 10

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        bias = self.bias + self.bias_sigma * self.noise_out
        # For so few rows, making the weights would cost more than using them.
        if not torch.compiler.is_exporting() and x.numel() <= FEW_ROWS * x.shape[-1]:
            return F.linear(x, self.weight, bias) + F.linear(x * self.noise_in, self.weight_sigma) * self.noise_out
        return F.linear(
            x, torch.addcmul(self.weight, self.weight_sigma, torch.outer(self.noise_out, self.noise_in)), bias
        )


def draw_noise(module: nn.Module, rng: torch.Generator | None) -> None:
    """Draws new noise in every noisy layer, or removes the noise if rng is None, as for greedy acting."""
    for layer in module.modules():
        if isinstance(layer, NoisyLinear):
            layer.draw(rng)
