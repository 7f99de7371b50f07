"""LaProp, which normalises gradients before it averages them (Ziyin et al. 2020, arXiv:2002.04839)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class LaProp(torch.optim.Optimizer):
    """For the t-th gradient g of a parameter:

    exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g^2
    exp_avg = beta1 exp_avg + (1 - beta1) g / (sqrt(exp_avg_sq / (1 - beta2^t)) + epsilon)
    parameter -= lr (exp_avg / (1 - beta1^t) + weight_decay parameter)

    Both averages begin at 0. The first step moves every number by lr, as the sign of its gradient says. The names are
    those of PyTorch's Adam, whose exp_avg is of g itself."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Steps every parameter that has a gradient. There is no closure."""
        assert closure is None
        for group in self.param_groups:
            self.step_with(group["lr"])

    @torch.no_grad()
    def step_with(self, lr: float | Tensor) -> None:
        """Takes a step with this lr, which may be a tensor [] on the parameters' device. Nothing is read back from the
        device, so that the step can be recorded."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    state.update(zeros, step=torch.zeros((), device=parameter.device))
                self._step(parameter, parameter.grad, state, group, lr)

    def _step(
        self,
        parameter: nn.Parameter,
        gradient: Tensor,
        state: dict[str, Tensor],
        group: dict[str, Any],
        lr: float | Tensor,
    ) -> None:
        (beta1, beta2), count, square, mean = group["betas"], state["step"], state["exp_avg_sq"], state["exp_avg"]
        count.add_(1.0)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        root = (square / (1.0 - beta2**count)).sqrt_().add_(group["eps"])
        mean.lerp_(gradient / root, 1.0 - beta1)
        step = mean / (1.0 - beta1**count)
        if group["weight_decay"]:
            step.add_(parameter, alpha=group["weight_decay"])
        parameter.sub_(step.mul_(lr))
