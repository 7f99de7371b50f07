"""Slates of items, of which a user chooses one or none.

With weights v > 0 of items and v_0 of choosing nothing, item i of slate A is chosen with the probability
P(i | A) = u_p v_i / (v_0 + sum_j u_j v_j), where u_p is a factor of the item's place p. With values Q_i of what follows
a choice, the slate's value is the mean of these values (Ie et al. 2019, arXiv:1905.12767, eq. 17). All functions take
leading axes [...], C items and S places."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SlateRule = Literal["optimal", "greedy", "top_k"]
# Each round is a step of Newton's method from below. These are enough in 1,000 cases with very different weights.
ROUNDS = 8


def of_slate(x: Tensor, slate: Tensor) -> Tensor:
    """The entries [..., S] of x [..., C] of the items in slate [..., S]."""
    return x.gather(-1, slate)


def slate_value(weight: Tensor, nothing: Tensor, value: Tensor, null: Tensor, slate: Tensor, places: Tensor) -> Tensor:
    """Returns the values [...] of slates.

    Args: weight, value [..., C]; nothing, null [...], the weight and the value of choosing nothing; slate [..., S];
    places [S], the factors of places."""
    v = of_slate(weight, slate) * places
    return (nothing * null + (v * of_slate(value, slate)).sum(-1)) / (nothing + v.sum(-1))


def best_slate(
    weight: Tensor, nothing: Tensor, value: Tensor, null: Tensor, places: Tensor, rule: SlateRule = "optimal"
) -> Tensor:
    """Returns slates [..., S] of different items, the most valuable one where a place counts most.

    optimal: of all slates the one with the largest value, which the paper finds by a linear program (eq. 20 to 22). It
    is found here by Dinkelbach's method (1967): A is best if it maximises sum_A u v (Q - q) at q, A's own value.
    greedy: items are added one after the other, each the one with which the slate so far is worth most (eq. 23).
    top_k: those with the largest v_i Q_i (section 4.4).

    Args: as in slate_value."""
    if rule == "top_k":
        return ranked(weight * value, places)
    if rule == "greedy":
        return _greedy(weight, nothing, value, null, places)
    slate = ranked(weight * (value - null.unsqueeze(-1)), places)
    for _ in range(ROUNDS):
        worth = slate_value(weight, nothing, value, null, slate, places)
        slate = ranked(weight * (value - worth.unsqueeze(-1)), places)
    return slate


def ranked(score: Tensor, places: Tensor) -> Tensor:
    """Returns the S items with the largest scores [..., C], the larger where a place counts more. Of equal items the
    first is taken."""
    found = score.sort(dim=-1, descending=True, stable=True).indices[..., : len(places)]
    return found[..., places.argsort(descending=True, stable=True).argsort()]


def _greedy(weight: Tensor, nothing: Tensor, value: Tensor, null: Tensor, places: Tensor) -> Tensor:
    paid, total = (nothing * null).unsqueeze(-1), nothing.unsqueeze(-1)
    free = torch.ones_like(weight, dtype=torch.bool)
    order = places.argsort(descending=True, stable=True)
    chosen = []
    for place in order:
        v = weight * places[place]
        worth = (paid + v * value) / (total + v)
        best = worth.masked_fill(~free, -torch.inf).argmax(-1, keepdim=True)
        chosen.append(best)
        free = free.scatter(-1, best, False)
        paid, total = paid + (v * value).gather(-1, best), total + v.gather(-1, best)
    return torch.cat(chosen, -1)[..., order.argsort()]


def drawn_slate(logits: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """Returns `size` different items [..., S], drawn one after the other with the probabilities softmax(logits) of
    those that are left, logits [..., C]."""
    noise = torch.rand(logits.shape, generator=rng, device=logits.device).clamp(min=1e-20)
    return (logits - (-noise.log()).log()).topk(size, -1).indices


def drawn_log_prob(logits: Tensor, slate: Tensor) -> Tensor:
    """Returns the log-probability [...] with which drawn_slate() draws slate [..., S] in this order, -inf where an item
    stands there twice."""
    total = torch.zeros_like(logits[..., 0])
    for place in range(slate.shape[-1]):
        total = total + logits.log_softmax(-1).gather(-1, slate[..., place : place + 1]).squeeze(-1)
        logits = logits.scatter(-1, slate[..., place : place + 1], -torch.inf)
    return total
