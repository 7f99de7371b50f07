#!/usr/bin/env python3
"""Simulations per second of AlphaZero's search on connect four, 32 games at once, against a search written plainly.

Both play by the rules of ConnectFour-v0 and ask the same network (tuned=alphazero/connect_four, with new weights). The
plain search has an object for each node, a board of plain lists that a move changes in place and a search takes back
(so that nothing is copied), and one call of the network for each node; it searches one game after the other. What is
counted is seconds of this process's CPU time, one thread each, in turns, so that other work on the machine disturbs
both alike.

    scripts/peers/plain_search.py [rounds=5] [simulations=100] [games=32]
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch

HEIGHT, WIDTH = 6, 7
LINES = [
    [(row + i * down, column + i * right) for i in range(4)]
    for row in range(HEIGHT)
    for column in range(WIDTH)
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    if row + 3 * down < HEIGHT and 0 <= column + 3 * right < WIDTH
]
THROUGH = {(r, c): [line for line in LINES if (r, c) in line] for r in range(HEIGHT) for c in range(WIDTH)}


class Game:
    """Connect four. Row 0 is on top; pieces are 1 and -1, and `side` is to move."""

    def __init__(self):
        self.board = [[0] * WIDTH for _ in range(HEIGHT)]
        self.side, self.moves = 1, []

    def legal(self) -> list[int]:
        return [column for column in range(WIDTH) if self.board[0][column] == 0]

    def play(self, column: int) -> tuple[float, bool]:
        """Returns the reward of the side that moves, and whether the game is over."""
        row = next(row for row in reversed(range(HEIGHT)) if self.board[row][column] == 0)
        self.board[row][column] = side = self.side
        self.moves.append((row, column))
        self.side = -side
        won = any(all(self.board[r][c] == side for r, c in line) for line in THROUGH[row, column])
        return float(won), won or len(self.moves) == HEIGHT * WIDTH

    def take_back(self) -> None:
        row, column = self.moves.pop()
        self.board[row][column], self.side = 0, -self.side

    def seen(self) -> np.ndarray:
        board = np.array(self.board, dtype=np.int8) * self.side
        return np.stack([board == 1, board == -1], -1).astype(np.int8)


class Node:
    __slots__ = ("children", "count", "legal", "over", "prior", "reward", "sums", "value", "visits")

    def __init__(self, reward: float = 0.0, over: bool = False):
        self.reward, self.over, self.count, self.children = reward, over, 1, {}


def expand(node: Node, game: Game, ask) -> None:
    node.legal = game.legal()
    prior, node.value = ask(game, node.legal)
    node.prior = dict(zip(node.legal, prior, strict=True))
    node.visits, node.sums = dict.fromkeys(node.legal, 0), dict.fromkeys(node.legal, 0.0)


def plain_search(game: Game, ask, simulations: int, puct: float, base: float) -> Node:
    root = Node()
    expand(root, game, ask)
    for _ in range(simulations):
        node, path = root, []
        while True:
            c = (puct + math.log((node.count + base) / base)) * math.sqrt(node.count)
            best, action = -math.inf, -1
            for a in node.legal:
                n = node.visits[a]
                score = (node.sums[a] / n if n else node.value) + c * node.prior[a] / (1 + n)
                if score > best:
                    best, action = score, a
            path.append((node, action))
            if action not in node.children:
                child = node.children[action] = Node(*game.play(action))
                gain = 0.0
                if not child.over:
                    expand(child, game, ask)
                    gain = child.value
                break
            node = node.children[action]
            game.play(action)
            if node.over:
                gain = 0.0
                break
        for node, action in reversed(path):
            game.take_back()
            gain = node.children[action].reward - gain
            node.sums[action] += gain
            node.visits[action] += 1
            node.count += 1
    return root


def policy_of(*words: str):
    """The policy of tuned=alphazero/connect_four, with new weights."""
    from rlrun.cli import compose
    from rlrun.config.automatic import settled
    from rlrun.config.run import type_config
    from rlrun.config.types import plain
    from rlrun.machine.machine import measured
    from rlrun.runtime.plan import plan as plan_of

    made = []

    def job(cfg, choices) -> int:
        config = type_config(settled(plain(cfg))[0])
        made.append(plan_of(config, measured()).policy_factory(acting=True)())
        return 0

    compose(["tuned=alphazero/connect_four", "resources.device=cpu", *words], job)
    return made[0]


def main() -> int:
    options = dict(word.split("=") for word in sys.argv[1:])
    rounds, simulations, games = (
        int(options.get(k, v)) for k, v in (("rounds", 5), ("simulations", 100), ("games", 32))
    )
    torch.set_num_threads(1)
    from rlrun.core.batch import Batch
    from rlrun.policies.planning import GuidedGame
    from rlrun.policies.search import search

    policy = policy_of(f"algo.search.simulations={simulations}")
    cfg, rules = policy.cfg, policy.game

    def ask(game: Game, legal: list[int]):
        mask = torch.zeros(1, 1, WIDTH, dtype=torch.int64)
        mask[0, 0, legal] = 1
        obs = Batch(observation=torch.from_numpy(game.seen())[None, None], action_mask=mask)
        with torch.inference_mode():
            guess = policy.guess(obs)
        return guess.log_probs[0, 0, legal].exp().tolist(), float(guess.value)

    rng = np.random.default_rng(0)
    plain, state = [], rules.start(rng, games)
    for number in range(games):  # a few random moves, so that games differ
        game = Game()
        for move in rng.integers(WIDTH, size=4).tolist():
            game.play(move)
        plain.append(game)
        board = np.array(game.board) * game.side
        state[number, :-1], state[number, -1] = board.reshape(-1), 0 if game.side == 1 else 1
    spent, visits = {"plain": 0.0, "rlrun": 0.0}, {}
    for _ in range(rounds):
        began = time.process_time()
        roots = [plain_search(game, ask, simulations, cfg.puct, cfg.puct_base) for game in plain]
        spent["plain"] += time.process_time() - began
        began = time.process_time()
        root = policy.look(rules.observe(state))
        found = search(cfg, GuidedGame(policy, rng), state, root, 2, policy.normalize)
        spent["rlrun"] += time.process_time() - began
        visits = [[root.visits.get(a, 0) for a in range(WIDTH)] for root in roots]
    same = np.mean([(np.array(one) == two).all() for one, two in zip(visits, found.visits, strict=True)])
    total = rounds * simulations * games
    for name, seconds in spent.items():
        print(f"{name}: {total / seconds:,.0f} simulations/s of CPU time")
    print(f"rlrun / plain: {spent['plain'] / spent['rlrun']:.1f}; {same:.0%} of the roots have the same visits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
