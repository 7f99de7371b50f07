"""Exploration that policies share: parameters disturbed for an episode, and columns that explore more or less than others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.models.per_column import PerColumn

ADAPTATION = 1.01  # of the deviation of parameter noise, per episode (Plappert et al. 2018, appendix C)


def ladder(highest: float | Tensor, lowest: float | None, place: Tensor | None) -> float | Tensor:
    """How much every column explores [B]: spaced in logarithm from highest to lowest (rlpyt; Ape-X's, Horgan et al. 2018, section 4.1, is 0.4 to 0.4^8), or
    highest for all. place [B]: where a column stands among all, from 0 to 1."""
    if lowest is None or place is None:
        return highest
    if isinstance(highest, Tensor):
        return highest * (lowest / highest).clamp(max=1.0) ** place  # infinite, so 1, where nobody explores any more
    return highest * (min(lowest, highest) / highest if highest > 0 else 1.0) ** place


class NoisyEpisodes:
    """Parameter noise (Plappert et al. 2018, arXiv:1706.01905): every column acts for an episode with a network of its own, whose parameters are disturbed.

    An episode's deviation is the last one's, larger where the disturbed policy was nearer than `near` to the other one, smaller where it was farther
    (section 3, appendix C)."""

    def __init__(self, net: nn.Module, std: float):
        """net(obs [T, B, ...], is_first [T, B], no state) -> (outputs [T, B, ...], state)."""
        self.per_column, self.std = PerColumn(net, at_once=False), std

    def state(self, columns: int, device: torch.device) -> dict[str, Tensor]:
        return {"noise": torch.zeros(columns, self.per_column.size, device=device), "deviation": torch.full((columns,), self.std, device=device),
                "moved": torch.zeros(columns, device=device), "rows": torch.zeros(columns, device=device)}  # fmt: skip

    def begin(self, state: Batch, is_first: Tensor, near: float, distance: Callable[[Tensor], Tensor], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Noise [B, P] and deviation [B] of this row. distance: of an episode, from the mean over its rows of what note() was told [B]."""
        far = distance(state["moved"] / state["rows"].clamp(min=1))
        adapted = state["deviation"] * torch.where(far < near, ADAPTATION, 1 / ADAPTATION)
        deviation = torch.where(is_first & (state["rows"] > 0), adapted, state["deviation"])
        noise, begins = state["noise"], is_first.nonzero().squeeze(1)
        if begins.numel():
            fresh = torch.randn(begins.numel(), noise.shape[1], generator=rng, device=noise.device)
            noise = noise.index_copy(0, begins, fresh)
        return noise, deviation

    def note(self, state: Batch, is_first: Tensor, noise: Tensor, deviation: Tensor, moved: Tensor) -> dict[str, Tensor]:
        """What columns carry on. moved [B]: how far this row's outputs were from the undisturbed policy's."""
        kept = ~is_first
        return {"noise": noise, "deviation": deviation, "moved": state["moved"] * kept + moved, "rows": state["rows"] * kept + 1}

    def outputs(self, obs: Batch, is_first: Tensor, noise: Tensor) -> Tensor:
        """The net's outputs for every column of obs [B, ...] with its own noise [B, P] added to the parameters."""
        return self.per_column.disturbed(noise, obs, is_first)
