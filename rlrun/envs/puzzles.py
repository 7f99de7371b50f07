"""Games for one player as simulators (core/games.py), and as Gymnasium environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlrun.core.env import Rows
from rlrun.core.games import Moved, Rules, Simulator


class SparseCartPole(Rules):
    """Gymnasium's CartPole, whose rewards are all paid at the end (RLlib's CartPoleSparseRewards).

    The episode ends when the pole falls, and after max_steps. A state is [x, its speed, angle, its speed, steps]."""

    players, actions, size, dtype = 1, 2, 5, "float64"

    def __init__(self, max_steps: int = 500):
        if max_steps < 1:
            raise ValueError("max_steps is at least 1")
        self.max_steps = max_steps

    def start(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.concatenate([rng.uniform(-0.05, 0.05, (count, 4)), np.zeros((count, 1))], 1)

    def observe(self, state: np.ndarray) -> Rows:
        return {"observation": state[:, :4].astype(np.float32)}

    def step(self, state: np.ndarray, action: np.ndarray) -> Moved:
        x, speed, angle, turning, steps = state.T
        cos, sin = np.cos(angle), np.sin(angle)
        push = np.where(action == 1, 10.0, -10.0)
        # Barto, Sutton and Anderson 1983, with Gymnasium's masses, lengths and Euler steps of 0.02 s.
        part = (push + 0.05 * np.square(turning) * sin) / 1.1
        bend = (9.8 * sin - cos * part) / (0.5 * (4.0 / 3.0 - 0.1 * np.square(cos) / 1.1))
        drift = part - 0.05 * bend * cos / 1.1
        after = np.stack(
            [x + 0.02 * speed, speed + 0.02 * drift, angle + 0.02 * turning, turning + 0.02 * bend, steps + 1], 1
        )
        fallen = (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 12 * 2 * np.pi / 360)
        over = fallen | (after[:, 4] >= self.max_steps)
        return Moved(after, np.where(over, after[:, 4], 0.0).astype(np.float32), over)


class Knapsack(Rules):
    """The 0/1 knapsack: which of `items` items, with weights and values from 1 to 100, are packed into half of the
    room that all would take? (The setting of Laterre et al. 2018: one reward at the end.)

    Items are offered by falling value per weight, and an action leaves one (0) or packs it (1). Items that do not fit
    are passed over, and where all that are left fit, they are packed. Always packing is thus the greedy rule. The
    reward is the value packed, divided by the bound of the linear relaxation, which is at least the optimum.

    A state is [next item, room, value packed, bound, room at the start, weights, values]."""

    players, actions, dtype = 1, 2, "float64"
    FIRST = 5  # place of the first weight

    def __init__(self, items: int = 30):
        if items < 2:
            raise ValueError("items is at least 2")
        self.items, self.size = items, self.FIRST + 2 * items

    def start(self, rng: np.random.Generator, count: int) -> np.ndarray:
        weight, value = rng.integers(1, 101, (2, count, self.items)).astype(np.float64)
        order = np.argsort(-value / weight, 1, kind="stable")
        weight, value = (np.take_along_axis(part, order, 1) for part in (weight, value))
        room = np.floor(weight.sum(1) / 2)
        state = np.zeros((count, self.size))
        state[:, 1], state[:, 3], state[:, 4] = room, self._relaxed(weight, value, room), room
        state[:, self.FIRST :] = np.concatenate([weight, value], 1)
        # With room for half of the weights, the first item may still not fit, and never do all.
        state[:, 0] = self._next(state)
        return state

    @staticmethod
    def _relaxed(weight: np.ndarray, value: np.ndarray, room: np.ndarray) -> np.ndarray:
        """The best value [B] if parts of items could be packed: the first items, and a part of the next."""
        before = np.cumsum(weight, 1) - weight
        share = np.clip((room[:, None] - before) / weight, 0.0, 1.0)
        return (share * value).sum(1)

    def _parts(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights and values [B, items], and which items are still to come [B, items]."""
        weight, value = np.split(state[:, self.FIRST :], 2, 1)
        return weight, value, np.arange(self.items) >= state[:, :1]

    def _next(self, state: np.ndarray) -> np.ndarray:
        """The next item that fits [B]; `items` if there is none."""
        weight, _, left = self._parts(state)
        fits = left & (weight <= state[:, 1:2])
        return np.where(fits.any(1), fits.argmax(1), self.items)

    def observe(self, state: np.ndarray) -> Rows:
        """[B, 4 + 3 * items]: shares of room, items and value, and of every item that is left, the next one first, its
        weight and its value, divided by room and by the bound of what is left, and whether it is there."""
        weight, value, left = self._parts(state)
        order = np.minimum(np.arange(self.items) + state[:, :1], self.items - 1).astype(np.int64)
        there = np.arange(self.items) + state[:, :1] < self.items
        weight, value = (np.where(there, np.take_along_axis(part, order, 1), 0.0) for part in (weight, value))
        room, bound = np.maximum(state[:, 1], 1.0), state[:, 3]
        more = self._relaxed(np.where(there, weight, 1.0), value, room)
        numbers = [state[:, 1] / state[:, 4], left.mean(1), state[:, 2] / bound, (state[:, 2] + more) / bound]
        items = [np.minimum(weight / room[:, None], 2.0), value / np.maximum(more, 1.0)[:, None], there]
        return {"observation": np.concatenate([np.stack(numbers, 1), *items], 1).astype(np.float32)}

    def step(self, state: np.ndarray, action: np.ndarray) -> Moved:
        after, rows = state.copy(), np.arange(len(state))
        item = state[:, 0].astype(np.int64)
        packed = action == 1
        after[:, 1] -= packed * state[rows, self.FIRST + item]
        after[:, 2] += packed * state[rows, self.FIRST + self.items + item]
        after[:, 0] += 1
        weight, value, left = self._parts(after)
        rest = (weight * left).sum(1)
        all_fit = rest <= after[:, 1]
        after[:, 2] += np.where(all_fit, (value * left).sum(1), 0.0)
        after[:, 1] -= np.where(all_fit, rest, 0.0)
        after[:, 0] = np.where(all_fit, self.items, self._next(after))
        over = after[:, 0] >= self.items
        return Moved(after, np.where(over, after[:, 2] / after[:, 3], 0.0).astype(np.float32), over)

    def results(self, state: np.ndarray) -> dict[str, float]:
        """What a game that is over [S] reached, as shares of the best value, which dynamic programming finds."""
        weight, value, _ = self._parts(state[None])
        best = optimum(weight[0].astype(np.int64), value[0], int(state[4]))
        greedy = room = 0.0
        room = float(state[4])
        for w, v in zip(weight[0], value[0], strict=True):
            if w <= room:
                room, greedy = room - w, greedy + v
        return {"of_optimum": float(state[2]) / best, "greedy_of_optimum": greedy / best}


def optimum(weight: np.ndarray, value: np.ndarray, room: int) -> float:
    """The best value of a 0/1 knapsack, by dynamic programming over the room. weight [N] are whole numbers."""
    best = np.zeros(room + 1)
    for w, v in zip(weight.tolist(), value.tolist(), strict=True):
        if w <= room:
            best[w:] = np.maximum(best[w:], best[: room + 1 - w] + v)
    return float(best[-1])


class BinPacking(Rules):
    """Packing rectangles (after Laterre et al. 2018, who cut a box into items and pay once, by how tight they are put
    together again). A square of side x side is cut into `items` rectangles, which come by falling area. An action turns
    an item or not and chooses the column where it falls onto the others: actions below `side` are columns of items as
    they come, the others those of turned ones, and an item that would stand out on the right is moved to the left. At
    the end it pays side / height of the pile, which is 1 for the square.

    A state is [next item, height of each column, widths, heights]."""

    players, dtype = 1, "float64"

    def __init__(self, items: int = 10, side: int = 10):
        if not 2 <= items <= side * side // 4:
            raise ValueError(f"items={items} must be from 2 to side * side / 4, which is {side * side // 4}")
        self.items, self.side = items, side
        self.actions, self.size = 2 * side, 1 + side + 2 * items

    def start(self, rng: np.random.Generator, count: int) -> np.ndarray:
        state = np.zeros((count, self.size))
        for row in state:
            row[1 + self.side :] = self._cut(rng).T.ravel()
        return state

    def _cut(self, rng: np.random.Generator) -> np.ndarray:
        """Cuts pieces in two, larger ones more often, until there are enough. Returns widths and heights [items, 2]."""
        pieces = [np.array([self.side, self.side])]
        while len(pieces) < self.items:
            areas = np.array([piece.prod() for piece in pieces], dtype=np.float64)
            piece = pieces.pop(int(rng.choice(len(pieces), p=areas / areas.sum())))
            way = int(rng.integers(2)) if piece.min() > 1 else int(piece.argmax())
            if piece[way] == 1:  # one cell
                pieces.append(piece)
                continue
            part = piece.copy()
            part[way] = rng.integers(1, piece[way])
            rest = piece.copy()
            rest[way] -= part[way]
            pieces += [part, rest]
        made = np.array(pieces)
        return made[np.argsort(-made.prod(1), kind="stable")]

    def _parts(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Heights of columns [B, side], and widths and heights of items [B, 2, items]."""
        return state[:, 1 : 1 + self.side], state[:, 1 + self.side :].reshape(len(state), 2, self.items)

    def observe(self, state: np.ndarray) -> Rows:
        """[B, side + 3 * items]: heights of columns, and of each item that is left, the next one first, its width, its
        height and whether it is there; all lengths are divided by side."""
        columns, sizes = self._parts(state)
        place = np.arange(self.items) + state[:, :1].astype(np.int64)
        there = place < self.items
        left = np.take_along_axis(sizes, np.minimum(place, self.items - 1)[:, None], 2) * there[:, None]
        numbers = [columns / self.side, left.reshape(len(state), -1) / self.side, there]
        return {"observation": np.concatenate(numbers, 1).astype(np.float32)}

    def step(self, state: np.ndarray, action: np.ndarray) -> Moved:
        after = state.copy()
        columns, sizes = self._parts(after)
        item = sizes[np.arange(len(state)), :, state[:, 0].astype(np.int64)]  # [B, 2]
        wide, high = np.where((action >= self.side)[:, None], item[:, ::-1], item).T
        first = np.minimum(action % self.side, self.side - wide)
        at = np.arange(self.side)
        under = (at >= first[:, None]) & (at < (first + wide)[:, None])
        top = np.where(under, columns, 0.0).max(1) + high
        columns[:] = np.where(under, top[:, None], columns)
        after[:, 0] += 1
        over = after[:, 0] >= self.items
        return Moved(after, np.where(over, self.side / columns.max(1), 0.0).astype(np.float32), over)

    def greedy(self, state: np.ndarray) -> np.ndarray:
        """The action [B] after which the item's top is lowest; of several, the one furthest to the left."""
        columns, _ = self._parts(state)
        tops = np.zeros((len(state), self.actions))
        for action in range(self.actions):
            made = self.step(state, np.full(len(state), action)).state[:, 1 : 1 + self.side]
            tops[:, action] = np.where(made != columns, made, 0.0).max(1)
        return tops.argmin(1)

    def results(self, state: np.ndarray) -> dict[str, float]:
        """What a game that is over [S] reached, and what greedy() reaches with the same items."""
        again = state[None].copy()
        again[:, : 1 + self.side] = 0.0
        over = np.zeros(1, dtype=bool)
        paid = np.zeros(1)
        while not over[0]:
            again, paid, over = self.step(again, self.greedy(again))
        return {"filled": self.side / float(state[1 : 1 + self.side].max()), "greedy_filled": float(paid[0])}


class PuzzleEnv(gymnasium.Env):
    """A simulator of a game for one as a Gymnasium environment."""

    def __init__(self, simulator: Simulator):
        self.simulator: Any = simulator
        shape = simulator.observe(simulator.start(np.random.default_rng(0), 1))["observation"].shape[1:]
        self.observation_space = Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = Discrete(simulator.actions)

    @property
    def game_state(self) -> np.ndarray:
        """The simulator's state [S]."""
        return self.state[0]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state = self.simulator.start(self.np_random, 1)
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return self.simulator.observe(self.state)["observation"][0]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.state, reward, over = self.simulator.step(self.state, np.array([int(action)]))
        told = self.simulator.results(self.state[0]) if over[0] and hasattr(self.simulator, "results") else {}
        return self._seen(), float(reward[0]), bool(over[0]), False, told


def sparse_cartpole(max_steps: int = 500) -> PuzzleEnv:
    return PuzzleEnv(SparseCartPole(max_steps))


def knapsack(items: int = 30) -> PuzzleEnv:
    return PuzzleEnv(Knapsack(items))


def bin_packing(items: int = 10, side: int = 10) -> PuzzleEnv:
    return PuzzleEnv(BinPacking(items, side))
