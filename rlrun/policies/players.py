"""Players that follow a rule, as opponents: algo.fixed={player_1: rlrun.policies.players:BeatLast} in training, or
rlrun evaluate RUN opponent=rlrun.policies.players:OnePly."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rlrun.core.batch import Batch
from rlrun.core.schedule import Clock
from rlrun.policies.exploration import Chosen, Exploration

MOVES = 3  # rock, paper, scissors: each beats the one before it


def _other(obs: Batch, rng: torch.Generator) -> Tensor:
    """The other player's last move [B] in rock-paper-scissors; a random one in the first round."""
    last = obs["observation"].argmax(-1)  # type: ignore[union-attr]
    drawn = torch.randint(MOVES, last.shape, generator=rng, device=last.device)
    return torch.where(last < MOVES, last, drawn)


class BeatLast(Exploration):
    """Plays what would have beaten the other player's last move in rock-paper-scissors (RLlib's BeatLastHeuristic)."""

    def choose(
        self, wanted: object, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, rng: torch.Generator
    ) -> Chosen:
        return Chosen((_other(obs, rng) + 1) % MOVES)


class AlwaysSame(Exploration):
    """Plays one move for a whole episode of rock-paper-scissors, drawn at its start (RLlib's AlwaysSameHeuristic)."""

    def initial_state(self, columns: int, place: Tensor | None, device: torch.device) -> dict[str, Tensor]:
        return {"move": torch.zeros(columns, dtype=torch.int64, device=device)}

    def choose(
        self, wanted: object, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, rng: torch.Generator
    ) -> Chosen:
        drawn = torch.randint(MOVES, is_first.shape, generator=rng, device=is_first.device)
        move = torch.where(is_first, drawn, state["move"])  # type: ignore[arg-type]
        return Chosen(move, None, {"move": move})


class OnePly(Exploration):
    """Looks one move ahead in connect four: takes a move that wins at once, if there is one, and else a random one."""

    def choose(
        self, wanted: object, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, rng: torch.Generator
    ) -> Chosen:
        board, legal = obs["observation"].float(), obs["action_mask"].bool()  # type: ignore[union-attr]
        own, taken = board[..., 0], board.sum(-1)  # [B, 6, 7], row 0 on top
        draws = torch.rand(legal.shape, generator=rng, device=legal.device)
        wins = torch.stack([four_in_a_row(self._after(own, taken, column)) for column in range(legal.shape[-1])], -1)
        return Chosen((draws + wins.float()).masked_fill(~legal, -1.0).argmax(-1))

    @staticmethod
    def _after(own: Tensor, taken: Tensor, column: int) -> Tensor:
        """The own pieces [B, 6, 7] after a piece has fallen into this column."""
        free = own.shape[1] - taken[:, :, column].sum(1).long()  # empty places of the column
        row = (free - 1).clamp(min=0)
        after = own.clone()
        after[torch.arange(len(own), device=own.device), row, column] = 1.0
        return after


def four_in_a_row(pieces: Tensor) -> Tensor:
    """Whether four of these pieces [B, 6, 7] of 0 and 1 stand in a row, a column or a diagonal [B]."""
    line, square = torch.ones(4, device=pieces.device), torch.eye(4, device=pieces.device)
    found = [
        (F.conv2d(pieces.unsqueeze(1), kernel.view(1, 1, *kernel.shape)) == 4).flatten(1).any(1)
        for kernel in (line.view(1, 4), line.view(4, 1), square, square.flip(0))
    ]
    return torch.stack(found).any(0)
