"""RMSProp as TensorFlow has it, with which Baselines, the A3C paper and the IMPALA paper measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class RMSpropTF(torch.optim.Optimizer):
    """RMSProp with the formulas of tf.compat.v1.train.RMSPropOptimizer (kernel ApplyRMSProp), for a gradient g:

    square_avg = decay * square_avg + (1 - decay) * g^2                         begins at 1
    grad_avg = decay * grad_avg + (1 - decay) * g                               begins at 0, only if centered
    momentum_buffer = momentum * momentum_buffer + lr * g / sqrt(square_avg - grad_avg^2 + epsilon)
    parameter -= momentum_buffer

    PyTorch's RMSprop differs in three ways: its square_avg begins at 0, epsilon is added to the root, and lr is not
    part of the momentum. With decay 0.99, its first step is therefore 10 * lr for every parameter, however small its
    gradient is; here the first step is about lr * g. The option names are PyTorch's; weight_decay * parameter is added
    to g, as PyTorch's optimisers do."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        alpha: float,
        eps: float,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ):
        """alpha is the decay."""
        super().__init__(
            params,
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            },
        )

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
                if not self.state[parameter]:
                    self.state[parameter].update(initial_statistics(parameter, group["momentum"], group["centered"]))
                self._step(parameter, parameter.grad, group, lr)

    def _step(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any], lr: float | Tensor) -> None:
        state, alpha = self.state[parameter], group["alpha"]
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        square = state["square_avg"]
        square.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
        variance = square
        if group["centered"]:
            mean = state["grad_avg"]
            mean.lerp_(gradient, 1 - alpha)
            # It is negative only by rounding, or where another process changes one of both at the same moment.
            variance = torch.addcmul(square, mean, mean, value=-1.0).clamp_(min=0.0)
        step = gradient / (variance + group["eps"]).sqrt_() * lr
        if group["momentum"]:
            step = state["momentum_buffer"].mul_(group["momentum"]).add_(step)
        parameter.sub_(step)


def initial_statistics(parameter: Tensor, momentum: float, centered: bool) -> dict[str, Tensor]:
    """The statistics of a parameter before its first step, by PyTorch's names."""
    statistics = {"square_avg": torch.ones_like(parameter)}
    if momentum:
        statistics["momentum_buffer"] = torch.zeros_like(parameter)
    if centered:
        statistics["grad_avg"] = torch.zeros_like(parameter)
    return statistics
