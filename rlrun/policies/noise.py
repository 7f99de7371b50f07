"""Exploration that policies share: parameter noise per episode, and amounts of exploration that differ by column."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.models.per_column import PerColumn

ADAPTATION = 1.01  # factor of parameter noise's deviation per episode (Plappert et al. 2018, appendix C)
# Bounds on that deviation. Where no noise moves a policy as far as it should, 9,000 episodes would make it infinite,
# and actions NaN; where none moves it so little, it would in the end be 0 for good.
LEAST_DEVIATION, LARGEST_DEVIATION = 1e-6, 1e3


def ladder(highest: float | Tensor, lowest: float | None, place: Tensor | None) -> float | Tensor:
    """Returns how much every column explores [B].

    The values are spaced logarithmically from highest to lowest, as in rlpyt (in Ape-X, Horgan et al. 2018, section
    4.1, from 0.4 to 0.4^8). If lowest or place is None, it is highest for all columns. place [B] is a column's position
    among all columns, from 0 to 1."""
    if lowest is None or place is None:
        return highest
    if isinstance(highest, Tensor):
        # Where highest has fallen to 0, the quotient is infinite, and the clamp makes it 1.
        return highest * (lowest / highest).clamp(max=1.0) ** place
    return highest * (min(lowest, highest) / highest if highest > 0 else 1.0) ** place


class NoisyEpisodes:
    """Parameter noise: every column acts for an episode with its own network, whose parameters are perturbed.

    Each new episode scales the column's deviation up if the perturbed policy was closer than `near` to the
    unperturbed one, and down if it was farther.

    Source: Plappert et al. 2018, arXiv:1706.01905, section 3 and appendix C."""

    def __init__(self, net: nn.Module, std: float):
        """net maps obs [T, B, ...], is_first [T, B] and an empty state to outputs [T, B, ...] and the state."""
        self.per_column, self.std = PerColumn(net, at_once=False), std

    def state(self, columns: int, device: torch.device) -> dict[str, Tensor]:
        return {
            "noise": torch.zeros(columns, self.per_column.size, device=device),
            "deviation": torch.full((columns,), self.std, device=device),
            "moved": torch.zeros(columns, device=device),
            "rows": torch.zeros(columns, device=device),
        }

    def begin(
        self, state: Batch, is_first: Tensor, near: float, distance: Callable[[Tensor], Tensor], rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Returns the noise [B, P] and its deviation [B] for this row.

        distance computes an episode's distance [B] from the mean over its rows of the `moved` that note() received."""
        far = distance(state["moved"] / state["rows"].clamp(min=1))
        low, high = min(LEAST_DEVIATION, self.std), max(LARGEST_DEVIATION, self.std)
        adapted = (state["deviation"] * torch.where(far < near, ADAPTATION, 1 / ADAPTATION)).clamp(low, high)
        deviation = torch.where(is_first & (state["rows"] > 0), adapted, state["deviation"])
        # A user may begin to explore in the middle of an episode, in which there is no noise yet.
        noise, begins = state["noise"], (is_first | (state["rows"] == 0)).nonzero().squeeze(1)
        if begins.numel():
            fresh = torch.randn(begins.numel(), noise.shape[1], generator=rng, device=noise.device)
            noise = noise.index_copy(0, begins, fresh)
        return noise, deviation

    def note(
        self, state: Batch, is_first: Tensor, noise: Tensor, deviation: Tensor, moved: Tensor
    ) -> dict[str, Tensor]:
        """Returns the columns' new state. moved [B]: how far the row's outputs are from the unperturbed policy's."""
        kept = ~is_first
        return {
            "noise": noise,
            "deviation": deviation,
            "moved": state["moved"] * kept + moved,
            "rows": state["rows"] * kept + 1,
        }

    def outputs(self, obs: Batch, is_first: Tensor, noise: Tensor) -> Tensor:
        """Returns the outputs for obs [B, ...] with each column's own noise [B, P] added to the parameters."""
        return self.per_column.disturbed(noise, obs, is_first)
