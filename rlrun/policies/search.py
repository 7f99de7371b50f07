"""Monte Carlo tree search (Silver et al. 2018, doi:10.1126/science.aar6404) in many trees at once.

The trees of B columns are arrays [B, N, A] of N = simulations + 1 nodes with A actions each, in the manner of
DeepMind's mctx. Every simulation descends in all trees in lock-step, expands one node in each, calls the simulator and
the network once for all of them, and backs up.

All values are those of the side to move at their node. With two players, who alternate, the value behind a move is
minus the value of the node that it leads to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np

from rlrun.core.conditions import SEARCHED, OnlyFor, OnlyWith
from rlrun.core.ranges import Count, NotNegative, Positive, PositiveShare, Share

CLOSED = -1e9  # the logit and the score of an illegal action, as ops/distributions.py has it


NOISE = (OnlyWith("..explore"), OnlyWith("root", "puct"), OnlyFor(SEARCHED))  # conditions for noise at the root


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How a tree is searched. conf/algo/alphazero.yaml explains each."""

    simulations: Annotated[int, NotNegative]
    root: Literal["puct", "gumbel"]
    puct: Annotated[float, NotNegative, OnlyWith("root", "puct"), OnlyFor(SEARCHED)]
    puct_base: Annotated[float, NotNegative, OnlyWith("root", "puct"), OnlyFor(SEARCHED)]
    unvisited: Annotated[Literal["parent", "zero", "minimum"], OnlyWith("root", "puct"), OnlyFor(SEARCHED)]
    normalize: Annotated[Literal["auto", "siblings", "none"], OnlyWith("root", "puct"), OnlyFor(SEARCHED)]
    dirichlet_alpha: Annotated[float, Positive, OnlyWith("dirichlet_share"), *NOISE]
    dirichlet_share: Annotated[float, Share, *NOISE]
    min_depth: Annotated[int, NotNegative, OnlyFor(SEARCHED)]
    max_depth: Annotated[Annotated[int, Count] | None, OnlyFor(SEARCHED)]
    considered: Annotated[int, Count, OnlyWith("root", "gumbel"), OnlyFor(SEARCHED)]
    value_scale: Annotated[float, Positive, OnlyWith("root", "gumbel"), OnlyFor(SEARCHED)]
    visit_offset: Annotated[float, NotNegative, OnlyWith("root", "gumbel"), OnlyFor(SEARCHED)]
    discount: Annotated[float, PositiveShare]

    def __post_init__(self):
        if self.root == "gumbel" and self.min_depth == 1:
            raise ValueError("min_depth 1 does nothing with root=gumbel, which chooses the moves at the root by itself")


class Leaf(NamedTuple):
    """What is known of B states."""

    logits: np.ndarray  # [B, A] float32 of the policy; CLOSED for illegal actions
    value: np.ndarray  # [B] float32, for the side to move


class Guide(Protocol):
    """What a search asks about states."""

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """States [B, S] and actions [B] -> new states [B, S], rewards of the side that moved [B], and whether the
        games are over [B]."""
        ...

    def evaluate(self, state: np.ndarray) -> Leaf: ...


class Searched(NamedTuple):
    """What a search found for B roots."""

    visits: np.ndarray  # [B, A] simulations that began with each action
    policy: np.ndarray  # [B, A] the policy that the search recommends to learn
    value: np.ndarray  # [B] the mean of what the simulations found, the root's own value among them
    best: np.ndarray  # [B] the best action
    q: np.ndarray  # [B, A] values of actions; those of unvisited ones are the root's own


class Trees:
    """B trees with room for N nodes each. Node 0 is the root; fields of actions have shape [B * N, A]."""

    def __init__(self, cfg: SearchConfig, sign: float, normalize: bool, state: np.ndarray, root: Leaf):
        """sign: -1 if the sides alternate. normalize: whether values of siblings are stretched over [0, 1]."""
        self.cfg, self.sign, self.normalize = cfg, sign * cfg.discount, normalize
        (self.roots, size), self.actions = state.shape, root.logits.shape[1]
        self.nodes = cfg.simulations + 1
        total = self.roots * self.nodes
        self.base = np.arange(self.roots) * self.nodes
        self.state = np.zeros((total, size), dtype=state.dtype)
        self.logits = np.zeros((total, self.actions), dtype=np.float32)
        self.prior = np.zeros((total, self.actions), dtype=np.float32)
        self.legal = np.ones((total, self.actions), dtype=bool)
        self.visits = np.zeros((total, self.actions), dtype=np.float32)
        self.sums = np.zeros((total, self.actions), dtype=np.float32)  # of the values found behind each action
        self.child = np.full((total, self.actions), -1, dtype=np.int64)
        self.reward = np.zeros((total, self.actions), dtype=np.float32)
        self.count = np.ones(total, dtype=np.float32)  # visits of nodes
        self.value = np.zeros(total, dtype=np.float32)  # the network's
        self.over = np.zeros(total, dtype=bool)
        self._add(self.base, state, root)

    def _add(self, node: np.ndarray, state: np.ndarray, leaf: Leaf) -> None:
        self.state[node], self.logits[node], self.value[node] = state, leaf.logits, leaf.value
        self.prior[node], self.legal[node] = softmax(leaf.logits), leaf.logits > CLOSED / 2

    def simulate(self, number: int, guide: Guide, first: np.ndarray | None = None) -> None:
        """Makes simulation `number`, from 1. first: the root's actions [B], if they are chosen already."""
        node, column = self.base, np.arange(self.roots)
        path: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # (columns, nodes, actions) by depth
        gain = np.zeros(self.roots, dtype=np.float32)  # the value of where each path ends, for the side to move there
        grown_column: list[np.ndarray] = []
        grown_node: list[np.ndarray] = []
        grown_action: list[np.ndarray] = []
        depth, deepest = 0, self.cfg.max_depth
        while column.size:
            if depth == deepest:  # the path ends at a node that is there already
                gain[column] = self.value[node]
                break
            action = first if depth == 0 and first is not None else self._choose(node, depth)
            path.append((column, node, action))
            child = self.child[node, action]
            new = child < 0
            if new.any():
                grown_column.append(column[new])
                grown_node.append(node[new])
                grown_action.append(action[new])
                column, child = column[~new], child[~new]
            node = child
            ended = self.over[node]
            if ended.any():  # nothing follows; its reward is on the edge
                column, node = column[~ended], node[~ended]
            depth += 1
        if grown_column:
            column, parent = np.concatenate(grown_column), np.concatenate(grown_node)
            gain[column] = self._grow(number, guide, column, parent, np.concatenate(grown_action))
        for column, node, action in reversed(path):
            gain[column] = back = self.reward[node, action] + self.sign * gain[column]
            self.sums[node, action] += back
            self.visits[node, action] += 1
            self.count[node] += 1

    def _grow(
        self, number: int, guide: Guide, column: np.ndarray, parent: np.ndarray, action: np.ndarray
    ) -> np.ndarray:
        """Adds one node to each of these trees. Returns the nodes' values [columns]."""
        node = self.base[column] + number
        state, reward, over = guide.step(self.state[parent], action)
        self.child[parent, action], self.reward[parent, action], self.over[node] = node, reward, over
        value = np.zeros(column.size, dtype=np.float32)
        going = ~over
        if going.any():
            leaf = guide.evaluate(state[going])
            self._add(node[going], state[going], leaf)
            value[going] = leaf.value
        return value

    def values(self, node: np.ndarray, unvisited: str) -> np.ndarray:
        """Values of actions [..., A] at nodes [...]; those of unvisited ones as said."""
        visits, sums = self.visits[node], self.sums[node]
        seen = visits > 0
        q = sums / np.maximum(visits, 1.0)
        own = self.value[node][..., None]
        if self.normalize:
            low = np.minimum(own, np.where(seen, q, own).min(-1, keepdims=True))
            high = np.maximum(own, np.where(seen, q, own).max(-1, keepdims=True))
            missing = own if unvisited == "parent" else low if unvisited == "minimum" else np.clip(0.0, low, high)
            return (np.where(seen, q, missing) - low) / np.maximum(high - low, 1e-8)
        if unvisited == "zero":
            return q
        if unvisited == "minimum":
            return np.where(seen, q, np.minimum(own, np.where(seen, q, own).min(-1, keepdims=True)))
        return np.where(seen, q, own)

    def _choose(self, node: np.ndarray, depth: int) -> np.ndarray:
        """The action [n] that a simulation tries at each node [n]."""
        cfg = self.cfg
        if cfg.root == "gumbel" and depth > 0:  # Danihelka et al. 2022, section 5
            visits = self.visits[node]
            score = softmax(self.logits[node] + self.sigma(node)) - visits / self.count[node][:, None]
            score[~self.legal[node]] = CLOSED
        else:
            score = self.upper_bounds(node)
        if depth < cfg.min_depth:
            score = score + 1e6 * ((self.visits[node] == 0) & (self.legal[node]))
        return score.argmax(-1)

    def upper_bounds(self, node: np.ndarray) -> np.ndarray:
        """Q + c sqrt(N) P / (1 + n) [n, A], where N counts the node's own evaluation too."""
        cfg = self.cfg
        count = self.count[node]
        c = cfg.puct if not cfg.puct_base else cfg.puct + np.log((count + cfg.puct_base) / cfg.puct_base)
        wide = (c * np.sqrt(count))[:, None]
        score = self.values(node, cfg.unvisited) + wide * self.prior[node] / (1.0 + self.visits[node])
        score[~self.legal[node]] = CLOSED
        return score

    # -- Gumbel (Danihelka et al. 2022, "Policy improvement by planning with Gumbel") ----------------------------------

    def sigma(self, node: np.ndarray) -> np.ndarray:
        """The transformed values sigma(q) [n, A] of all actions; those of unvisited ones are completed by the node's
        mixed value (appendix D), and values are stretched over [0, 1]."""
        visits, legal = self.visits[node], self.legal[node]
        q = self.sums[node] / np.maximum(visits, 1.0)
        seen, total = visits > 0, visits.sum(-1, keepdims=True)
        weight = np.where(seen, self.prior[node], 0.0)
        mean = (weight * q).sum(-1, keepdims=True) / np.maximum(weight.sum(-1, keepdims=True), 1e-12)
        mixed = (self.value[node][:, None] + total * np.where(total > 0, mean, 0.0)) / (1.0 + total)
        q = np.where(seen, q, mixed)
        low = np.where(legal, q, np.inf).min(-1, keepdims=True)
        high = np.where(legal, q, -np.inf).max(-1, keepdims=True)
        stretched = (q - low) / np.maximum(high - low, 1e-8)
        return (self.cfg.visit_offset + visits.max(-1, keepdims=True)) * self.cfg.value_scale * stretched


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [..., A] of logits, of which CLOSED ones are 0."""
    made = np.exp(logits - logits.max(-1, keepdims=True))
    return made / made.sum(-1, keepdims=True)


@cache
def considered_visits(actions: int, simulations: int) -> tuple[int, ...]:
    """Sequential halving (Karnin et al. 2013): for every simulation, how often the action that it tries has been tried
    before."""
    if actions <= 1:
        return tuple(range(simulations))
    rounds, left = math.ceil(math.log2(actions)), actions
    made: list[int] = []
    visits = [0] * actions
    while len(made) < simulations:
        for _ in range(max(1, simulations // (rounds * left))):
            made += visits[:left]
            visits = [count + 1 for count in visits[:left]] + visits[left:]
        left = max(2, left // 2)
    return tuple(made[:simulations])


def noisy(cfg: SearchConfig, root: Leaf, rng: np.random.Generator) -> Leaf:
    """The root with Dirichlet noise in its policy, over legal actions (AlphaGo Zero, methods)."""
    legal = root.logits > CLOSED / 2
    drawn = np.where(legal, rng.standard_gamma(cfg.dirichlet_alpha, legal.shape), 0.0)
    drawn /= np.maximum(drawn.sum(-1, keepdims=True), 1e-30)
    mixed = (1 - cfg.dirichlet_share) * softmax(root.logits) + cfg.dirichlet_share * drawn
    return root._replace(logits=np.where(legal, np.log(np.maximum(mixed, 1e-30)), CLOSED).astype(np.float32))


def search(
    cfg: SearchConfig,
    guide: Guide,
    state: np.ndarray,
    root: Leaf,
    players: int,
    normalize: bool,
    gumbel: np.ndarray | None = None,
) -> Searched:
    """Searches from B states [B, S] with legal actions, whose evaluation is `root`, noise included.

    gumbel [B, A]: the noise of root=gumbel; None: none. Without simulations, the policy is the root's own."""
    trees = Trees(cfg, -1.0 if players == 2 else 1.0, normalize, state, root)
    node = trees.base
    legal = root.logits > CLOSED / 2
    if cfg.root == "gumbel":
        gumbel = np.zeros_like(root.logits) if gumbel is None else gumbel
        tables = np.array(
            [considered_visits(min(cfg.considered, many), cfg.simulations) for many in legal.sum(1).tolist()]
        )
        for number in range(1, trees.nodes):
            trees.simulate(number, guide, _gumbel_action(trees, gumbel, legal, tables[:, number - 1]))
        policy = softmax(root.logits + trees.sigma(node)) if cfg.simulations else softmax(root.logits)
        best = _gumbel_action(trees, gumbel, legal, trees.visits[node].max(-1))
    else:
        for number in range(1, trees.nodes):
            trees.simulate(number, guide)
        visits = trees.visits[node]
        policy = visits / np.maximum(visits.sum(-1, keepdims=True), 1.0) if cfg.simulations else softmax(root.logits)
        best = policy.argmax(-1)
    visits, sums = trees.visits[node], trees.sums[node]
    value = (trees.value[node] + sums.sum(-1)) / trees.count[node]
    trees.normalize = False
    return Searched(visits, policy.astype(np.float32), value, best, trees.values(node, "parent"))


def _gumbel_action(trees: Trees, gumbel: np.ndarray, legal: np.ndarray, visits: np.ndarray) -> np.ndarray:
    """The root's action [B] with the highest g + logits + sigma(q) among those with so many visits [B]."""
    node = trees.base
    score = gumbel + trees.logits[node] + trees.sigma(node)
    score[~legal | (trees.visits[node] != visits[:, None])] = CLOSED
    return score.argmax(-1)
