"""Simulators: games whose rules are a pure function of a state, so that a search can try moves before one is played.

A state is a row of S numbers, and all functions take B states at once. Rows of experience hold the state beside the
observation, in `game_state`, and behind it what the episode has paid so far, and whether the agent of this column
chooses the next action (1 or 0)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlrun.core.env import Rows
from rlrun.core.errors import UserError

STATE = "game_state"  # the part of rows with the simulator's state
TOO_MANY_MOVES = 100_000  # after which a game without a time limit is thought to have no end


class Moved(NamedTuple):
    """What one move led to in every one of B games."""

    state: np.ndarray  # [B, S]
    reward: np.ndarray  # [B] float32, of the one who moved; with two players, the other one is paid the negative
    over: np.ndarray  # [B] bool; a time limit is an end, because the state holds the time


class Symmetries(NamedTuple):
    """K ways to turn or mirror a board that change nothing of the game, the first of which changes nothing at all."""

    fields: np.ndarray  # [K, F]: the field of the board whose piece is seen on field f then
    actions: np.ndarray  # [K, A]: the action that is action a then


class Simulator(Protocol):
    """The rules of a game. Nothing but start() draws random numbers, and nothing changes its arguments."""

    players: int  # 1, or 2 who take turns and of whom one wins what the other loses
    actions: int  # A
    size: int  # S
    dtype: str  # of states

    def start(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Returns states [B, S] in which `count` games begin."""
        ...

    def observe(self, state: np.ndarray) -> Rows:
        """Returns what the one whose turn it is sees, as rows hold it: "observation" [B, ...], and "action_mask"
        [B, A] if some actions may be illegal."""
        ...

    def step(self, state: np.ndarray, action: np.ndarray) -> Moved:
        """Plays legal actions [B] in games that are not over."""
        ...

    def paid(self, state: np.ndarray) -> np.ndarray:
        """Returns the sum of the rewards of the episode before these states [B], with one player."""
        ...

    def known(self, state: np.ndarray) -> np.ndarray:
        """Whether step() and observe() can be called for these states [B]. Copies of an environment are gone once the
        environment has moved on."""
        ...

    def forget(self) -> None:
        """Ends a search: states that step() has returned are not needed any more."""
        ...

    def symmetries(self) -> Symmetries | None:
        """Returns how observations [B, height, width, ...] may be turned, or None if nothing is known of that."""
        ...


class Rules:
    """What most simulators share: nothing is paid before the end, and all is in the numbers of the state."""

    def paid(self, state: np.ndarray) -> np.ndarray:
        return np.zeros(len(state), dtype=np.float32)

    def known(self, state: np.ndarray) -> np.ndarray:
        return np.ones(len(state), dtype=bool)

    def forget(self) -> None: ...

    def symmetries(self) -> Symmetries | None:
        return None


@dataclass(frozen=True)
class GameSpec:
    """How a process makes its own simulator of an environment. It is picklable."""

    maker: str  # module:function, which takes cfg and `limited`
    cfg: Any  # the config of the environment
    players: int
    copies: bool  # whether states are numbers of copies that live in the process that steps the environment

    def make(self, limited: bool = True) -> Simulator:
        """limited: whether games also end by a time limit that only the environment's wrapper counts."""
        module, _, name = self.maker.partition(":")
        function: Callable[[Any, bool], Simulator] = getattr(importlib.import_module(module), name)
        return function(self.cfg, limited)


BEHIND = 2  # numbers behind the state in game_state


def split_state(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Splits rows [B, S + 2] into states [B, S] and whether the column's agent chooses the next action [B]."""
    return np.ascontiguousarray(rows[:, :-BEHIND]), rows[:, -1] > 0


def random_returns(game: Simulator, rng: np.random.Generator, count: int, limit: int | None = None) -> np.ndarray:
    """Returns the returns [count] of the first player in `count` games of random legal moves, which are broken off
    after `limit` moves if they are not over, since a simulator does not know the environment's time limit. Raises
    UserError if there is no limit and a game does not end."""
    most = TOO_MANY_MOVES if limit is None else limit
    state, total = game.start(rng, count), np.zeros(count, dtype=np.float32)
    going, sign, moves = np.arange(count), 1.0, 0
    while going.size and moves < most:
        state, reward, over = game.step(state, random_legal(game.observe(state), game.actions, rng))
        total[going] += sign * reward
        state, going = state[~over], going[~over]
        sign = -sign if game.players == 2 else sign
        moves += 1
    game.forget()
    if going.size and limit is None:
        raise UserError(
            f"a game of random moves has not ended after {most:,}, and its environment has no time limit; set"
            " env.max_episode_steps"
        )
    return total


def random_legal(rows: Rows, actions: int, rng: np.random.Generator) -> np.ndarray:
    """Returns random legal actions [B] for observations of B games."""
    count = len(next(iter(_leaves(rows))))
    weight = rng.random((count, actions))
    return (weight * (rows["action_mask"] != 0) if "action_mask" in rows else weight).argmax(1)


def _leaves(rows: Any) -> list[np.ndarray]:
    return [leaf for part in rows.values() for leaf in _leaves(part)] if isinstance(rows, dict) else [rows]
