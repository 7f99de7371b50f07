"""Board games for two as simulators (core/games.py), and as environments with PettingZoo's turn-based interface.

A state is the board, 1 for the pieces of the side to move and -1 for the other's, and behind it the number of that
side, 0 or 1. Observations are PettingZoo's: the pieces of the one who looks, and the other's, [height, width, 2]."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.core.env import Rows
from rlrun.core.games import Moved, Rules, Simulator, Symmetries


@cache
def lines_of(height: int, width: int, length: int) -> np.ndarray:
    """The fields of every row, column and diagonal of `length` fields [L, length]."""
    found = []
    for row in range(height):
        for column in range(width):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                ends = row + down * (length - 1), column + right * (length - 1)
                if ends[0] < height and 0 <= ends[1] < width:
                    found.append([(row + i * down) * width + column + i * right for i in range(length)])
    return np.array(found)


@cache
def lines_through(height: int, width: int, length: int) -> np.ndarray:
    """The lines through every field [fields, most lines, length]. Fields with fewer lines repeat their first one."""
    lines = lines_of(height, width, length)
    through = [lines[(lines == field).any(1)] for field in range(height * width)]
    most = max(map(len, through))
    return np.stack([np.concatenate([some, some[:1].repeat(most - len(some), 0)]) for some in through])


class Board(Rules):
    """A game in which both sides put pieces on a board and `length` in a line win. A win pays 1."""

    players = 2
    dtype = "int8"

    def __init__(self, height: int, width: int, length: int, actions: int):
        self.height, self.width, self.actions = height, width, actions
        self.fields = height * width
        self.size = self.fields + 1
        self.through = lines_through(height, width, length)

    def start(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.zeros((count, self.size), dtype=np.int8)

    def observe(self, state: np.ndarray) -> Rows:
        return {"observation": self.seen(state), "action_mask": self.legal(state)}

    def seen(self, state: np.ndarray, side: int = 1) -> np.ndarray:
        """What the side to move sees [B, height, width, 2], or the other side with side=-1."""
        board = state[:, : self.fields].reshape(-1, self.height, self.width)
        return np.stack([board == side, board == -side], -1).view(np.int8)

    def legal(self, state: np.ndarray) -> np.ndarray:
        """Legal actions [B, A] int64."""
        raise NotImplementedError

    def field(self, state: np.ndarray, action: np.ndarray) -> np.ndarray:
        """The field [B] onto which each action puts a piece."""
        return action

    def step(self, state: np.ndarray, action: np.ndarray) -> Moved:
        rows, field = np.arange(len(state)), self.field(state, action)
        after = state.copy()
        after[rows, field] = 1
        won = (after[rows[:, None, None], self.through[field]] == 1).all(-1).any(-1)
        full = (after[:, : self.fields] != 0).all(1)
        after[:, : self.fields] *= -1
        after[:, -1] = 1 - after[:, -1]
        return Moved(after, won.astype(np.float32), won | full)


class TicTacToe(Board):
    """Three in a line on 3 x 3 fields, which are numbered by rows."""

    def __init__(self) -> None:
        super().__init__(3, 3, 3, 9)

    def symmetries(self) -> Symmetries:
        """The eight turns and mirror images of a square, whose actions are its fields."""
        square = np.arange(9).reshape(3, 3)
        turned = [np.rot90(board, turns).reshape(-1) for board in (square, square.T) for turns in range(4)]
        return Symmetries(np.stack(turned), np.stack(turned))

    def legal(self, state: np.ndarray) -> np.ndarray:
        return (state[:, :9] == 0).astype(np.int64)


class ConnectFour(Board):
    """Four in a line on 6 x 7 fields, of which row 0 is on top. An action is a column, into which a piece falls."""

    def __init__(self) -> None:
        super().__init__(6, 7, 4, 7)

    def symmetries(self) -> Symmetries:
        """Left and right may be exchanged."""
        fields, columns = np.arange(42).reshape(6, 7), np.arange(7)
        return Symmetries(
            np.stack([fields.reshape(-1), fields[:, ::-1].reshape(-1)]), np.stack([columns, columns[::-1]])
        )

    def legal(self, state: np.ndarray) -> np.ndarray:
        return (state[:, :7] == 0).astype(np.int64)

    def field(self, state: np.ndarray, action: np.ndarray) -> np.ndarray:
        board = state[:, :42].reshape(-1, 6, 7)
        free = (board[np.arange(len(state)), :, action] == 0).sum(1)
        return (free - 1) * 7 + action


class BoardEnv:
    """A simulator of a game for two with PettingZoo's turn-based (AEC) interface."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "is_parallelizable": False}

    def __init__(self, simulator: Simulator):
        self.simulator: Any = simulator
        self.possible_agents = ["player_0", "player_1"]
        self.agents: list[str] = []
        self.state_row = simulator.start(np.random.default_rng(0), 1)
        shape = simulator.observe(self.state_row)["observation"].shape[1:]
        legal = Box(0, 1, (simulator.actions,), np.int8)
        self._space = gymnasium.spaces.Dict({"observation": Box(0, 1, shape, np.int8), "action_mask": legal})
        self._action = Discrete(simulator.actions)

    @property
    def unwrapped(self) -> BoardEnv:
        return self

    @property
    def game_state(self) -> np.ndarray:
        """The simulator's state [S]."""
        return self.state_row[0]

    @property
    def agent_selection(self) -> str:
        return self.possible_agents[int(self.state_row[0, -1])]

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self._space

    def action_space(self, agent: str) -> gymnasium.Space:
        return self._action

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.state_row = self.simulator.start(np.random.default_rng(seed), 1)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        mine = agent == self.agent_selection
        legal = self.simulator.legal(self.state_row)[0].astype(np.int8)
        seen = self.simulator.seen(self.state_row, 1 if mine else -1)[0]
        return {"observation": seen, "action_mask": legal if mine else np.zeros_like(legal)}

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        if action is None:  # the interface asks for such a step of every agent that has ended
            self.agents.remove(self.agents[0])
            return
        if not self.simulator.legal(self.state_row)[0, action]:
            raise ValueError(f"the action {action} of {mover} is illegal")
        self.state_row, reward, over = self.simulator.step(self.state_row, np.array([action]))
        for agent in self.agents:
            self.rewards[agent] = float(reward[0]) if agent == mover else -float(reward[0])
            self.terminations[agent] = bool(over[0])

    def render(self) -> np.ndarray:
        """The board as a picture [H, W, 3] uint8: black are the pieces of player_0 and red those of player_1."""
        board = self.state_row[0, :-1].reshape(self.simulator.height, self.simulator.width)
        first = board if self.state_row[0, -1] == 0 else -board
        colors = np.array([[200, 40, 40], [235, 235, 220], [30, 30, 30]], dtype=np.uint8)
        small = colors[first + 1]
        tiles = small.repeat(32, 0).repeat(32, 1)
        tiles[::32], tiles[:, ::32] = 128, 128
        return tiles

    def close(self) -> None: ...


def tic_tac_toe() -> BoardEnv:
    return BoardEnv(TicTacToe())


def connect_four() -> BoardEnv:
    return BoardEnv(ConnectFour())
