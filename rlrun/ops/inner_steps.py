"""Gradient steps that can be differentiated themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.func import grad


def gradient_descent(
    loss: Callable[[Tensor, Any], tuple[Tensor, Any]],
    vector: Tensor,
    rounds: Iterable[Any],
    lr: float,
    first_order: bool = False,
    prepare: Callable[[Tensor, Any], Any] | None = None,
) -> tuple[Tensor, list[Any]]:
    """Makes one step of gradient descent on each round's data, vector <- vector - lr * gradient, beginning at `vector`.

    Source: Finn et al. 2017, arXiv:1703.03400, algorithm 1, line 6.

    Returns the parameters [P] after the last step, and for each step what the loss returned beside its number. The
    parameters can be differentiated by `vector`. This uses second derivatives of the loss or, with first_order, treats
    the gradients of the steps as constants.

    Args: loss(vector, data) returns a number [] and anything else. prepare(vector, data), where given, changes the data
    when a step begins. The step's own gradient takes the prepared data for constants, but the result can be
    differentiated through them."""
    told = []
    for data in rounds:
        data = data if prepare is None else prepare(vector, data)
        gradient, more = grad(loss, has_aux=True)(vector, data)
        vector = vector - lr * (gradient.detach() if first_order else gradient)
        told.append(more)
    return vector, told
