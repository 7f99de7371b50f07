"""Gradient steps that can be differentiated themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.func import grad


def descended(
    loss: Callable[[Tensor, Any], tuple[Tensor, Any]],
    vector: Tensor,
    rounds: Iterable[Any],
    lr: float,
    first_order: bool = False,
    prepare: Callable[[Tensor, Any], Any] | None = None,
) -> tuple[Tensor, list[Any]]:
    """Parameters [P] after one step of gradient descent on each round's data, from `vector`, and what the loss told
    besides (Finn et al. 2017, arXiv:1703.03400, algorithm 1, line 6).

    loss(vector, data) returns a number [] and anything else. The result can be differentiated by `vector`, with second
    derivatives of the loss, or with first_order as if the steps' gradients were constants.

    prepare(vector, data): what the loss is to see of the data when a step begins. To the step's gradient it is a
    constant, but the result can be differentiated through it."""
    told = []
    for data in rounds:
        data = data if prepare is None else prepare(vector, data)
        gradient, more = grad(loss, has_aux=True)(vector, data)
        vector = vector - lr * (gradient.detach() if first_order else gradient)
        told.append(more)
    return vector, told
