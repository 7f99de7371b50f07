"""Players that follow a rule, as opponents: algo.fixed={player_1: rlrun.policies.players:BeatLast} in training, or
rlrun evaluate RUN opponent=rlrun.policies.players:OnePly."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.games import STATE, GameSpec, Simulator, random_legal, split_state
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.policies.exploration import Chosen, Exploration
from rlrun.policies.search import CLOSED, Leaf, SearchConfig, search

MOVES = 3  # rock, paper, scissors: each beats the one before it


def _other(obs: Batch, rng: torch.Generator) -> Tensor:
    """The other player's last move [B] in rock-paper-scissors; a random one in the first round."""
    seen = obs["observation"]
    if not isinstance(seen, Tensor) or seen.ndim != 2 or seen.shape[-1] <= MOVES:
        raise UserError("BeatLast plays RockPaperScissors-v0 alone; random plays every game")
    last = seen.argmax(-1)
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
        if "action_mask" not in obs or obs["observation"].shape[1:3] != (6, 7):  # type: ignore[union-attr]
            raise UserError("OnePly plays ConnectFour-v0 alone; random plays every game")
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


class Thinker(Exploration):
    """A player who tries moves in the simulator before one is made. It plays against runs that search themselves, whose
    rows hold the simulator's state."""

    def __init__(self, spec: EnvSpec, **kwargs: Any):
        super().__init__(spec, **kwargs)
        if not isinstance(spec.game, GameSpec) or spec.game.players != 2:
            raise UserError(
                f"{type(self).__name__} plays games for two with a simulator against runs that search (algo=alphazero)"
            )

    @cached_property
    def game(self) -> Simulator:
        return self.spec.game.make()

    def choose(
        self, wanted: object, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, rng: torch.Generator
    ) -> Chosen:
        rows, mine = split_state(obs[STATE].cpu().numpy())  # type: ignore[union-attr]
        action = np.zeros(len(rows), dtype=np.int64)
        draws = np.random.default_rng(int(torch.randint(2**62, (), generator=rng, device=rng.device)))
        if mine.any():
            action[mine] = self.think(rows[mine], draws)
        return Chosen(torch.from_numpy(action).to(is_first.device))

    def think(self, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Chooses actions [B] for states [B, S]."""
        raise NotImplementedError


class Minimax(Thinker):
    """Looks so many moves ahead, at all of them, and takes one of those that are best at random."""

    depth: ClassVar[int] = 64

    def think(self, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        values = minimax(self.game, state, self.depth)
        return (values + 1e-6 * rng.random(values.shape)).argmax(1)


class Minimax1(Minimax):
    depth = 1


class Minimax2(Minimax):
    depth = 2


class Minimax4(Minimax):
    depth = 4


def minimax(game: Simulator, state: np.ndarray, depth: int) -> np.ndarray:
    """The values [B, A] of all actions, with 0 for games that are not over after `depth` moves, and CLOSED for illegal
    ones. Every position is looked at once, so that small games can be solved."""
    legal = game.observe(state)["action_mask"] != 0
    values = np.full(legal.shape, CLOSED)
    column, action = np.nonzero(legal)
    after, reward, over = game.step(state[column], action)
    found = reward.astype(np.float64)
    open_ = ~over
    if depth > 1 and open_.any():
        ahead, place = np.unique(after[open_], axis=0, return_inverse=True)
        found[open_] -= minimax(game, ahead, depth - 1).max(1)[place.reshape(-1)]
    values[column, action] = found
    return values


class PlainMCTS(Thinker):
    """Searches a tree without a network: all moves are equally likely at first, and a new position is worth what the
    rest of the game brings if both sides move at random."""

    simulations: ClassVar[int] = 100
    explores: ClassVar[float] = 2.0  # c of U = c sqrt(N) P / (1 + n)

    def think(self, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        cfg = SearchConfig(
            simulations=self.simulations,
            root="puct",
            puct=self.explores,
            puct_base=0.0,
            unvisited="parent",
            normalize="none",
            dirichlet_alpha=1.0,
            dirichlet_share=0.0,
            min_depth=1,
            max_depth=None,
            considered=16,
            value_scale=0.1,
            visit_offset=50.0,
            discount=1.0,
        )
        guide = Rollouts(self.game, rng)
        found = search(cfg, guide, state, guide.evaluate(state), 2, False)
        return (found.visits + 1e-3 * rng.random(found.visits.shape)).argmax(1)


class PlainMCTS200(PlainMCTS):
    simulations = 200


class PlainMCTS1000(PlainMCTS):
    simulations = 1000


class Rollouts:
    """Judges positions by one game of random moves from each."""

    def __init__(self, game: Simulator, rng: np.random.Generator):
        self.game, self.rng = game, rng

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.game.step(state, action)

    def evaluate(self, state: np.ndarray) -> Leaf:
        legal = self.game.observe(state)["action_mask"] != 0
        logits = np.where(legal, 0.0, CLOSED).astype(np.float32)
        value, going, sign = np.zeros(len(state), dtype=np.float32), np.arange(len(state)), 1.0
        while going.size:
            action = random_legal(self.game.observe(state), self.game.actions, self.rng)
            state, reward, over = self.game.step(state, action)
            value[going] += sign * reward
            state, going, sign = state[~over], going[~over], -sign
        return Leaf(logits, value)
