"""policies/search.py against a search written plainly, and searches whose result is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlrun.envs.boards import ConnectFour, TicTacToe
from rlrun.policies.players import PlainMCTS, Rollouts, minimax
from rlrun.policies.search import CLOSED, Leaf, SearchConfig, considered_visits, noisy, search, softmax

CFG = SearchConfig(
    simulations=60,
    root="puct",
    puct=1.25,
    puct_base=100.0,
    unvisited="parent",
    normalize="none",
    dirichlet_alpha=1.0,
    dirichlet_share=0.25,
    min_depth=0,
    max_depth=None,
    considered=4,
    value_scale=0.1,
    visit_offset=50.0,
    discount=1.0,
)


class Paying:
    """A game for one in which every move pays; it is over after five moves, or earlier where the sum divides by 7."""

    players, actions, size, dtype = 1, 3, 2, "int64"

    def step(self, state, action):
        after = np.stack([state[:, 0] + 1, state[:, 1] * 3 + action], 1)
        over = (after[:, 0] >= 5) | (after[:, 1] % 7 == 6)
        return after, np.sin(after[:, 1] + 0.5).astype(np.float32), over

    def legal(self, state):
        made = np.ones((len(state), 3), dtype=bool)
        made[state[:, 1] % 2 == 1, 2] = False
        return made


class Guide:
    """Guesses that follow from the numbers of the state, in place of a network."""

    def __init__(self, game, uniform=False):
        self.game, self.uniform, self.asked = game, uniform, 0

    def step(self, state, action):
        return tuple(self.game.step(state, action))

    def evaluate(self, state):
        self.asked += len(state)
        legal = self.game.legal(state) != 0
        mixed = state.astype(np.float64) @ np.cos(np.arange(1, state.shape[1] + 1) * 1.7)
        value = 0.0 * mixed if self.uniform else np.tanh(np.sin(3.1 * mixed))
        logits = np.sin(np.outer(mixed + 1.0, np.arange(1, legal.shape[1] + 1)))
        return Leaf(
            np.where(legal, 0.0 if self.uniform else logits, CLOSED).astype(np.float32), value.astype(np.float32)
        )


class Node:
    """A node of a search as one would write it for a single game."""

    def __init__(self, state, leaf, over):
        self.state, self.over, self.children, self.rewards = state, over, {}, {}
        self.visits, self.sums = {}, {}
        if not over:
            logits = leaf.logits[0]
            self.value = float(leaf.value[0])
            self.legal = [a for a in range(len(logits)) if logits[a] > CLOSED / 2]
            total = sum(math.exp(logits[a]) for a in self.legal)
            self.prior = {a: math.exp(logits[a]) / total for a in self.legal}


def recursive(cfg, guide, state, leaf, sign):
    """The root after all simulations, each of which is one recursive call."""

    def q(node, a):
        return node.sums[a] / node.visits[a] if a in node.visits else node.value

    def upper(node, a):
        values = [q(node, b) for b in node.legal] + [node.value]
        low, high = min(values), max(values)
        value = (q(node, a) - low) / max(high - low, 1e-8) if cfg.normalize == "siblings" else q(node, a)
        count = 1 + sum(node.visits.values())
        c = cfg.puct + math.log((count + cfg.puct_base) / cfg.puct_base)
        return value + c * math.sqrt(count) * node.prior[a] / (1 + node.visits.get(a, 0))

    def visit(node, depth):
        if node.over:
            return 0.0
        if depth == cfg.max_depth:
            return node.value
        untried = [a for a in node.legal if a not in node.visits]
        choice = untried if depth < cfg.min_depth and untried else node.legal
        a = max(choice, key=lambda a: upper(node, a))
        if a in node.children:
            behind = visit(node.children[a], depth + 1)
        else:
            after, reward, over = guide.step(node.state, np.array([a]))
            node.children[a] = Node(after, None if over[0] else guide.evaluate(after), bool(over[0]))
            node.rewards[a] = float(reward[0])
            behind = 0.0 if over[0] else node.children[a].value
        gain = node.rewards[a] + sign * cfg.discount * behind
        node.visits[a] = node.visits.get(a, 0) + 1
        node.sums[a] = node.sums.get(a, 0.0) + gain
        return gain

    root = Node(state, leaf, False)
    for _ in range(cfg.simulations):
        visit(root, 0)
    return root


def positions(game, count, seed=0):
    """States from random games that are not over."""
    rng, found = np.random.default_rng(seed), []
    while len(found) < count:
        state = game.start(rng, 1)
        for _ in range(rng.integers(6)):
            legal = np.flatnonzero(game.legal(state)[0])
            state, _, over = game.step(state, rng.choice(legal, 1))
            if over[0]:
                break
        else:
            found.append(state)
    return np.concatenate(found)


@pytest.mark.parametrize("normalize", ["none", "siblings"])
@pytest.mark.parametrize(
    "more", [{}, {"min_depth": 2}, {"max_depth": 2}, {"discount": 0.9}], ids=["plain", "min", "max", "discount"]
)
def test_values_and_visits_equal_those_of_a_plain_recursive_search(normalize, more):
    cfg = replace(CFG, normalize=normalize, **more)
    for game, states, sign in (
        (Paying(), np.array([[0, 1], [0, 2], [1, 4], [2, 9]]), 1),
        (TicTacToe(), positions(TicTacToe(), 5), -1),
    ):
        guide = Guide(game)
        made = search(cfg, guide, states, guide.evaluate(states), 2 if sign < 0 else 1, normalize == "siblings")
        for b, state in enumerate(states):
            root = recursive(cfg, guide, state[None], guide.evaluate(state[None]), sign)
            visits = [root.visits.get(a, 0) for a in range(made.visits.shape[1])]
            assert made.visits[b].tolist() == visits
            seen = list(root.visits)
            assert made.q[b, seen] == pytest.approx([root.sums[a] / root.visits[a] for a in seen], abs=1e-5)
            whole = (root.value + sum(root.sums.values())) / (1 + cfg.simulations)
            assert made.value[b] == pytest.approx(whole, abs=1e-5)


def test_a_root_is_searched_alike_whatever_is_searched_beside_it_and_its_state_stays():
    game = ConnectFour()
    states, guide = positions(game, 8), Guide(game)
    before = states.copy()
    for root in ("puct", "gumbel"):
        cfg = replace(CFG, root=root)
        together = search(cfg, guide, states, guide.evaluate(states), 2, False)
        for b in range(8):
            alone = search(cfg, guide, states[b : b + 1], guide.evaluate(states[b : b + 1]), 2, False)
            assert (alone.visits[0] == together.visits[b]).all() and alone.value[0] == together.value[b]
    assert (states == before).all()


def test_no_simulations_give_the_prior_and_one_visits_its_largest_entry():
    game = TicTacToe()
    states, guide = positions(game, 6), Guide(game)
    root = guide.evaluate(states)
    none = search(replace(CFG, simulations=0), guide, states, root, 2, False)
    assert none.policy == pytest.approx(softmax(root.logits)) and (none.value == root.value).all()
    one = search(replace(CFG, simulations=1), guide, states, root, 2, False)
    assert (one.policy == np.eye(9)[root.logits.argmax(1)]).all()


def test_visits_add_up_to_the_simulations_and_none_is_illegal():
    game = TicTacToe()
    states, guide = positions(game, 6), Guide(game)
    for root in ("puct", "gumbel"):
        made = search(replace(CFG, root=root), guide, states, guide.evaluate(states), 2, False)
        assert (made.visits.sum(1) == CFG.simulations).all() and (made.visits[game.legal(states) == 0] == 0).all()
        assert (made.policy[game.legal(states) == 0] == 0).all() and made.policy.sum(1) == pytest.approx(1, abs=1e-5)
    empty = game.start(np.random.default_rng(0), 1)
    guide = Guide(ConnectFour(), uniform=True)
    empty = guide.game.start(np.random.default_rng(0), 1)
    even = search(replace(CFG, simulations=24, max_depth=1), guide, empty, guide.evaluate(empty), 2, False).visits
    assert even.max() - even.min() <= 1


class Chain:
    """Twelve places; 1 goes on and 0 stops. Stopping pays `pays` times the place, and the last place pays it thrice."""

    players, actions, size, dtype = 1, 2, 1, "int64"

    def __init__(self, pays):
        self.pays = pays

    def legal(self, state):
        return np.ones((len(state), 2), dtype=bool)

    def step(self, state, action):
        after = state + 1
        last = after[:, 0] >= 12
        paid = self.pays * np.where(action == 0, state[:, 0], np.where(last, 36, 0))
        return after, paid.astype(np.float32), (action == 0) | last

    def evaluate(self, state):
        return Leaf(np.zeros((len(state), 2), np.float32), np.full(len(state), 36 * self.pays, np.float32))


def test_with_exact_values_the_most_visited_action_is_the_best_whatever_the_scale_of_rewards():
    states = np.array([[0], [5], [11]])
    found = []
    for pays in (1.0, 1000.0):
        game = Chain(pays)
        cfg = replace(CFG, simulations=100, puct=0.01, puct_base=0.0)
        made = search(cfg, game, states, game.evaluate(states), 1, True)
        assert (made.best == 1).all() and made.q[:, 1] == pytest.approx(36 * pays, rel=0.1)
        found.append(made.visits)
    assert (found[0] == found[1]).all()


def test_gumbel_improves_the_policy_in_expectation():
    game = Paying()
    states, guide = np.array([[0, n] for n in range(60)]), Guide(game)
    root = guide.evaluate(states)
    truth = np.stack([[_best_behind(game, s, a) for a in range(3)] for s in states])
    exact = _Exact(game)
    for simulations in (2, 4, 16):
        cfg = replace(CFG, root="gumbel", simulations=simulations)
        noise = np.random.default_rng(0).gumbel(size=(60, 3)).astype(np.float32)
        made = search(cfg, exact, states, Leaf(root.logits, exact.evaluate(states).value), 1, True, noise)
        prior = softmax(root.logits)
        legal = game.legal(states)
        gain = np.where(legal, (made.policy - prior) * np.where(legal, made.q, 0), 0).sum(1)
        assert (gain >= -1e-5).all() and gain.mean() > 0
    assert np.isfinite(truth[game.legal(states)]).all()


class _Exact(Guide):
    """The same priors, and true values."""

    def evaluate(self, state):
        best = [max(_best_behind(self.game, s, a) for a in range(3)) for s in state]
        return super().evaluate(state)._replace(value=np.array(best, dtype=np.float32))


def _best_behind(game, state, action):
    if not game.legal(state[None])[0, action]:
        return -math.inf
    after, reward, over = game.step(state[None], np.array([action]))
    ahead = 0.0 if over[0] else max(_best_behind(game, after[0], a) for a in range(3))
    return float(reward[0]) + ahead


def test_sequential_halving_spends_all_simulations():
    assert considered_visits(4, 8) == (0, 0, 0, 0, 1, 1, 2, 2)
    assert considered_visits(1, 3) == (0, 1, 2)
    for actions in (2, 5, 16):
        assert len(considered_visits(actions, 50)) == 50


def test_noise_at_the_root_is_a_share_and_only_of_legal_moves():
    game = TicTacToe()
    states, guide = positions(game, 4), Guide(game)
    root = guide.evaluate(states)
    prior, legal = softmax(root.logits), game.legal(states) != 0
    drawn = np.mean([softmax(noisy(CFG, root, np.random.default_rng(n)).logits) for n in range(3000)], 0)
    uniform = legal / legal.sum(1, keepdims=True)
    assert drawn == pytest.approx(0.75 * prior + 0.25 * uniform, abs=0.01) and (drawn[~legal] == 0).all()


def test_a_search_finds_every_win_in_one_and_blocks_the_other_sides():
    game = TicTacToe()
    states = np.unique(positions(game, 300, seed=1), axis=0)
    wins = minimax(game, states, 1)
    threats = minimax(game, states, 2)
    winning = (wins == 1).any(1)
    blocking = ~winning & (threats == -1).any(1) & (threats > -1).any(1)
    assert winning.sum() > 20 and blocking.sum() > 20
    guide = Guide(game, uniform=True)
    for root in ("puct", "gumbel"):
        cfg = replace(CFG, root=root, simulations=200, min_depth=2, considered=16)
        best = search(cfg, guide, states, guide.evaluate(states), 2, False).best
        assert (wins[np.arange(len(states)), best][winning] == 1).all()
        assert (threats[np.arange(len(states)), best][blocking] > -1).all()


def test_the_other_side_sees_the_board_turned_round():
    for game in (TicTacToe(), ConnectFour()):
        for state in positions(game, 20):
            seen, other = game.seen(state[None]), game.seen(state[None], -1)
            assert (seen[..., ::-1] == other).all()
            legal = np.flatnonzero(game.legal(state[None])[0])
            after = game.step(state[None], legal[:1]).state
            assert game.seen(after, -1)[..., 0].sum() == seen[..., 0].sum() + 1 and after[0, -1] == 1 - state[-1]
    # Known answer 27: the pieces and the side to move exchanged, a position is worth the same to the side to move, and
    # the opposite to the first player. States are written as the side to move sees them, so that only its number changes.
    game = ConnectFour()
    states = positions(game, 30, seed=3)
    turned = states.copy()
    turned[:, -1] = 1 - turned[:, -1]
    assert np.array_equal(minimax(game, states, 3), minimax(game, turned, 3))
    found, other = (search(CFG, guide, side, guide.evaluate(side), 2, False) for side in (states, turned) for guide in [Guide(game, uniform=True)])
    assert np.array_equal(found.visits, other.visits) and np.array_equal(found.value, other.value)
    solved = minimax(TicTacToe(), TicTacToe().start(np.random.default_rng(0), 1), 9)
    assert (solved == 0).all()  # tic-tac-toe is a draw, whatever the first move


def test_plain_mcts_finds_a_win():
    game = ConnectFour()
    state = game.start(np.random.default_rng(0), 1)
    for move in (3, 0, 3, 0, 3, 1):
        state = game.step(state, np.array([move])).state
    guide = Rollouts(game, np.random.default_rng(0))
    player = PlainMCTS.__new__(PlainMCTS)
    player.__dict__["game"] = game
    assert guide.evaluate(state).logits.shape == (1, 7) and player.think(state, np.random.default_rng(0)).tolist() == [
        3
    ]
