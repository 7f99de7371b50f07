"""AlphaZero: its losses and labels by hand, simulators against the environments that they stand for, outcomes in the
replay by their definition, runs as a whole, and what is refused."""

import copy
import itertools
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from conftest import compose, small
from gymnasium.envs.classic_control import CartPoleEnv
from test_actor_learner import run_wired
from test_all import batches, start
from wired import Wired, checked

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core import games
from rlrun.core.errors import Notice, UserError
from rlrun.core.games import STATE, random_legal, random_returns
from rlrun.core.schedule import Clock
from rlrun.envs.boards import ConnectFour, TicTacToe
from rlrun.envs.puzzles import BinPacking, Knapsack, SparseCartPole, optimum
from rlrun.policies.planning import GuidedGame
from rlrun.policies.search import Leaf, Searched, search
from rlrun.runtime.rundir import checkpoints_of

SPARSE = ["env=CartPoleSparse-v0", "++env.kwargs.max_steps=12"]
RANKED = [*SPARSE, "algo.ranked.enabled=true", "algo.ranked.games=20", "algo.ranked.initial_games=10"]


# -- environments of a user's own ---------------------------------------------------------------------------------------


class Copied(gymnasium.Env):
    """CartPoleSparse as a user of RLlib writes it, whose state is any object."""

    faults = ()

    def __init__(self, max_steps: int = 12):
        self.rules = SparseCartPole(max_steps)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "obs": gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
                "action_mask": gymnasium.spaces.Box(0, 1, (2,), np.int8),
            }
        )
        self.action_space = gymnasium.spaces.Discrete(2)

    def _seen(self):
        return {"obs": self.rules.observe(self.now)["observation"][0], "action_mask": np.ones(2, np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.count = self.rules.start(self.np_random, 1), 0
        return self._seen(), {}

    def step(self, action):
        self.count += 1
        self.now, reward, over = self.rules.step(self.now, np.array([action]))
        extra = 0.1 * self.count if "hidden" in self.faults else 0.0
        return self._seen(), float(reward[0]) + extra, bool(over[0]), False, {}

    def get_state(self):
        return {"inner": [copy.deepcopy(self.now)]}

    def set_state(self, state):
        self.now = copy.deepcopy(state["inner"][0])
        return self._seen()


class Forgetful(Copied):
    """Rewards depend on a counter that set_state() does not restore."""

    faults = ("hidden",)


class Unrestorable(Copied):
    set_state = None


class Endless(Copied):
    """It pays 1 a step and ends by Gymnasium's time limit alone, of which its state knows nothing."""

    def step(self, action):
        seen, _, _, _, _ = super().step(action)
        return seen, 1.0, False, False, {}


class Cut(Copied):
    """It says by itself that its time is up."""

    def step(self, action):
        seen, _, _, _, _ = super().step(action)
        return seen, 1.0, False, True, {}


class WithEngine(CartPoleEnv):
    """Its simulator is a physics engine, of which a search knows nothing."""

    simulator = object()


class StateCart(CartPoleEnv):
    """Gymnasium's CartPole, of which Gymnasium also has a class that steps many at once."""

    def get_state(self):
        return self.state, copy.deepcopy(self.np_random)

    def set_state(self, state):
        self.state, self.np_random = state[0], copy.deepcopy(state[1])
        self.steps_beyond_terminated = None


def shifted(**options):
    return gymnasium.wrappers.TransformReward(StateCart(**options), lambda reward: reward - 5)


gymnasium.register("tests/Shifted-v0", entry_point=shifted)
gymnasium.register(
    "tests/StateCart-v0",
    entry_point=StateCart,
    vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
    max_episode_steps=30,
)
for name in ("Copied", "Cut", "Forgetful", "Unrestorable", "WithEngine"):
    gymnasium.register(f"tests/{name}-v0", entry_point=globals()[name])
gymnasium.register("tests/Limited-v0", entry_point="rlrun.envs.puzzles:sparse_cartpole", max_episode_steps=20)
gymnasium.register("tests/Endless-v0", entry_point=Endless, max_episode_steps=15)


# -- simulators ---------------------------------------------------------------------------------------------------------


def test_sparse_cartpole_moves_as_gymnasiums():
    theirs, rules = gymnasium.make("CartPole-v1").unwrapped, SparseCartPole(200)
    obs, _ = theirs.reset(seed=3)
    state = np.concatenate([theirs.state, [0]])[None]
    for step in range(200):
        action = int(obs[2] > 0) if step % 7 else step % 2
        obs, _, fallen, _, _ = theirs.step(action)
        state, reward, over = rules.step(state, np.array([action]))
        np.testing.assert_allclose(rules.observe(state)["observation"][0], obs, rtol=1e-5)
        assert over[0] == (fallen or step == 199) and reward[0] == (step + 1 if over[0] else 0)
        if over[0]:
            break
    assert step > 20


def test_a_board_is_won_by_lines_alone():
    """Against four_in_a_row by convolutions, and tic-tac-toe's eight lines, in random games."""
    from rlrun.policies.players import four_in_a_row

    rng, eight = (
        np.random.default_rng(0),
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]],
    )
    wins = {TicTacToe: 0, ConnectFour: 0}
    for kind in wins:
        game = kind()
        state = game.start(rng, 100)
        while len(state):
            legal = game.legal(state)
            action = (rng.random(legal.shape) * legal).argmax(1)
            state, reward, over = game.step(state, action)
            own = game.seen(state, -1)[..., 0]  # of the side that has moved
            if kind is ConnectFour:
                won = four_in_a_row(torch.from_numpy(own).float()).numpy()
                board = own + game.seen(state)[..., 0]
                assert (np.diff(board, axis=1) >= 0).all(), "pieces lie on each other"
            else:
                won = own.reshape(-1, 9)[:, eight].all(-1).any(-1)
            full = (state[:, :-1] != 0).all(1)
            assert (reward == won).all() and (over == (won | full)).all()
            wins[kind] += int(won.sum())
            state = state[~over]
    assert all(20 < count <= 100 for count in wins.values())


def test_rectangles_fall_as_said():
    """Pieces fill the square that they were cut from, and fall as they would one by one on a grid of cells."""
    rng, game = np.random.default_rng(4), BinPacking(6, 5)
    state = game.start(rng, 40)
    sizes = state[:, 6:].reshape(40, 2, 6)
    areas = sizes.prod(1)
    assert (areas.sum(1) == 25).all() and (np.diff(areas) <= 0).all() and (sizes >= 1).all()
    grids = np.zeros((40, 40, 5), dtype=int)
    over = np.zeros(40, dtype=bool)
    while not over.all():
        action = rng.integers(10, size=40)
        for grid, row, a in zip(grids, state, action.tolist(), strict=True):
            wide, high = (int(x) for x in row[6:].reshape(2, 6)[:, int(row[0])][:: -1 if a >= 5 else 1])
            x = min(a % 5, 5 - wide)
            y = next(y for y in range(40) if not grid[y:, x : x + wide].any())
            grid[y : y + high, x : x + wide] += 1
        state, paid, over = game.step(state, action)
    assert (grids <= 1).all() and (grids.sum((1, 2)) == 25).all()
    tall = grids.any(2).sum(1)
    assert paid == pytest.approx(5 / tall) and (game.observe(state)["observation"][:, 5:] == 0).all()
    told = [game.results(row) for row in state]
    assert [one["filled"] for one in told] == pytest.approx(5 / tall)
    assert np.mean([one["greedy_filled"] for one in told]) > np.mean(5 / tall) + 0.1


def test_the_knapsack_is_packed_as_said():
    rng, game = np.random.default_rng(1), Knapsack(8)
    for state in game.start(rng, 30):
        weight, value = np.split(state[5:], 2)
        assert (np.diff(value / weight) <= 1e-12).all() and state[4] == weight.sum() // 2
        room = int(state[4])
        best = max(
            sum(value[list(chosen)])
            for many in range(9)
            for chosen in itertools.combinations(range(8), many)
            if sum(weight[list(chosen)]) <= room
        )
        assert optimum(weight.astype(int), value, room) == best <= state[3] + 1e-9
        reached, now = set(), state[None]
        todo = [now]
        while todo:
            now = todo.pop()
            for action in (0, 1):
                after, reward, over = game.step(now, np.array([action]))
                assert after[0, 1] >= 0
                (reached.add(float(after[0, 2])) or None) if over[0] else todo.append(after)
                assert not over[0] or reward[0] == pytest.approx(after[0, 2] / state[3])
        assert max(reached) == best
        greedy = state[None]
        over = np.zeros(1, bool)
        while not over[0]:
            greedy, _, over = game.step(greedy, np.array([1]))
        told = game.results(greedy[0])
        assert told["of_optimum"] == pytest.approx(told["greedy_of_optimum"]) == pytest.approx(greedy[0, 2] / best)


def test_copies_of_an_environment_are_searched_as_its_simulator(typed):
    """The search of an environment with get_state() and set_state() is that of the same game as a pure function."""
    _, made, _ = start(typed, "alphazero", "env=tests/Copied-v0", "algo.search.simulations=30")
    _, pure, _ = start(
        typed, "alphazero", "env=CartPoleSparse-v0", "++env.kwargs.max_steps=12", "algo.search.simulations=30"
    )
    rng = np.random.default_rng(0)
    copies = made.policy.game.start(rng, 3)
    states = np.concatenate([_kept(number)["inner"][0] for number in copies[:, 0]])
    found = []
    for policy, at in ((made.policy, copies), (pure.policy, states)):
        root = Leaf(np.log([[0.5, 0.5]] * 3).astype(np.float32), np.zeros(3, np.float32))
        guide = GuidedGame(policy, rng)
        guide.evaluate = lambda state: Leaf(np.zeros((len(state), 2), np.float32), np.zeros(len(state), np.float32))
        found.append(search(policy.cfg, guide, at, root, 1, True))
    assert (found[0].visits == found[1].visits).all() and (found[0].value == found[1].value).all()
    made.policy.game.forget()
    assert not made.policy.game.known(copies).any(), "what is not needed any more is gone"


def _kept(number):
    from rlrun.envs import simulated

    return simulated._KEPT[int(number)].state


# -- outcomes -----------------------------------------------------------------------------------------------------------


def test_rows_are_drawn_when_their_episode_is_over_with_what_followed(typed):
    wiring, _, sampler = start(typed, "alphazero", *SPARSE, "algo.search.discount=0.9", "algo.search.simulations=2")
    replay, rows = wiring.replay(0), []
    for _ in range(12):
        (fragment,) = sampler.take(1)
        replay.add(fragment)
        rows.append(fragment.batch.clone())
        sampler.free([fragment])
        whole = {
            name: torch.cat([batch[name][: len(batch.valid)] for batch in rows])
            for name in ("reward", "valid", "terminated")
        }
        wanted = {}
        for b in range(2):
            begun = 0
            for t in range(len(whole["valid"])):
                if not whole["valid"][t, b]:
                    begun = t + 1
                elif whole["terminated"][t, b]:
                    paid = whole["reward"][begun : t + 1, b].double()
                    for row in range(begun, t + 1):
                        ahead = sum(float(r) * 0.9**i for i, r in enumerate(paid[row - begun :]))
                        wanted[b, row] = (ahead, float(paid.sum()))
        assert replay.starts == len(wanted)
        if not wanted:
            continue
        drawn = replay.sample(200, Clock())
        for key, ahead, total in zip(
            drawn.key.tolist(), drawn.return_to_go[0].tolist(), drawn.episode_return[0].tolist(), strict=True
        ):
            assert (ahead, total) == pytest.approx(wanted[key % 2, key // 2], rel=1e-5)
    replay.check_valid()
    assert replay.starts > 50 and STATE not in replay.sample(2, Clock()).obs


def test_two_players_learn_from_their_own_turns_and_what_one_wins_the_other_loses(typed):
    wiring, _, sampler = start(typed, "alphazero", "env=TicTacToe-v0", "model=mlp")
    replay = wiring.replay(0)
    for _ in range(20):
        (fragment,) = sampler.take(1)
        batch = fragment.batch
        mine = batch.obs[STATE][..., -1] > 0
        assert (mine[:-1] == batch.searched).all() and (mine.view(len(mine), -1, 2).sum(-1) <= 1).all()
        turn = batch.searched & batch.valid
        legal = batch.obs.action_mask[:-1].bool()
        assert legal.gather(-1, batch.action.unsqueeze(-1)).all() and not batch.search_policy[turn][~legal[turn]].any()
        pair = batch.reward.view(len(batch.reward), -1, 2)
        assert (pair.sum(-1) == 0).all()
        replay.add(fragment)
        sampler.free([fragment])
    drawn = replay.sample(300, Clock())
    assert drawn.searched.all() and set(drawn.return_to_go.unique().tolist()) <= {-1.0, 0.0, 1.0}
    # A full board has as many pieces of the first player as it has turns before the other's.
    pieces = drawn.obs.observation[0].sum((1, 2))
    assert ((pieces[:, 0] - pieces[:, 1]) <= 0).all() and ((pieces[:, 1] - pieces[:, 0]) <= 1).all()


# -- losses -------------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_papers(typed):
    wiring, made, sampler = start(typed, "alphazero", *SPARSE, "algo.value_coef=0.5")
    (batch,) = batches(wiring, sampler, 1)
    loss, shares, _ = made.loss(batch)
    guess = made.policy.guess(batch.obs[:1])
    want = 0.0
    for b in range(20):
        z, v = batch.return_to_go[0, b], guess.value[0, b]
        cross = -sum(batch.search_policy[0, b, a] * guess.log_probs[0, b, a] for a in range(2))
        want = want + (cross + 0.5 * (z - v) ** 2) / 20
    torch.testing.assert_close(loss, want)
    assert float(shares["kl"]) >= 0 and guess.value.abs().max() < 1e3


@pytest.mark.parametrize("game, count", [(TicTacToe(), 8), (ConnectFour(), 2)], ids=["tic-tac-toe", "connect four"])
def test_a_mirrored_game_goes_on_like_the_game(game, count):
    """Moving and then mirroring leads to the same position, reward and end as mirroring and then moving."""
    fields, actions = game.symmetries()
    assert len({tuple(row) for row in fields}) == count and (fields[0] == np.arange(game.fields)).all()
    rng, state, ends = np.random.default_rng(0), game.start(np.random.default_rng(0), 40), 0
    for _ in range(game.fields):
        turned = [np.concatenate([state[:, :-1][:, seen], state[:, -1:]], 1) for seen in fields]
        move = random_legal(game.observe(state), game.actions, rng)
        after = game.step(state, move)
        for seen, action, other in zip(fields, actions, turned, strict=True):
            there = np.argsort(action)[move]  # the action whose meaning is this move
            assert (game.legal(other) == game.legal(state)[:, action]).all()
            moved = game.step(other, there)
            assert (moved.state[:, :-1] == after.state[:, :-1][:, seen]).all()
            assert (moved.reward == after.reward).all() and (moved.over == after.over).all()
        ends, state = ends + int(after.over.sum()), after.state[~after.over]
        if not len(state):
            break
    assert ends > 30


def test_rows_are_learnt_from_in_every_mirror_image(typed):
    """The board, the legal moves and the search's policy of a row are mirrored together, each way about as often."""
    wiring, made, sampler = start(typed, "alphazero", "env=TicTacToe-v0", "model=mlp", "algo.symmetries=true")
    (batch,) = batches(wiring, sampler, 1)
    fields, actions = TicTacToe().symmetries()
    seen, pi = batch.obs.observation[:1], batch.search_policy
    counted = np.zeros(8)
    for _ in range(40):
        obs, turned = made.turned(batch.obs[:1], pi)
        for b in range(pi.shape[1]):
            board, mask = seen[0, b].reshape(9, -1), batch.obs.action_mask[0, b]
            got = obs.observation[0, b].reshape(9, -1), obs.action_mask[0, b], turned[0, b]
            fits = [
                all(map(torch.equal, got, (board[fields[k]], mask[actions[k]], pi[0, b, actions[k]]))) for k in range(8)
            ]
            assert any(fits)
            counted += np.array(fits) / sum(fits)
    assert 0.5 < counted.min() / counted.mean()


def test_ranked_rewards_judge_by_the_last_returns(typed):
    wiring, made, sampler = start(typed, "alphazero", *RANKED)
    policy = made.policy
    assert int(policy.ranked_count) == 10
    policy.ranked_threshold.fill_(-torch.inf)  # as without any game: every return is above it
    first = GuidedGame(policy, np.random.default_rng(0)).labels(np.arange(40.0))
    (batch,) = batches(wiring, sampler, 1)
    assert (first == 1).all() and (made.outcome(batch)[0] == 1).all()
    policy._add_returns(np.arange(40.0))  # the last 20 are 20 .. 39
    assert policy.ranked_threshold == np.quantile(np.arange(20.0, 40.0), 0.75) == 34.25
    batch = batch.replace(episode_return=torch.linspace(30, 40, 20)[None])
    z, _ = made.outcome(batch)
    assert (z == torch.where(batch.episode_return > 34.25, 1.0, -1.0)).all()
    policy._add_returns(np.full(20, 7.0))  # all are equal
    labels = torch.cat([made.outcome(batch.replace(episode_return=torch.full((1, 20), 7.0)))[0] for _ in range(50)])
    assert abs(float(labels.mean())) < 0.12 and set(labels.unique().tolist()) == {-1.0, 1.0}
    guide = GuidedGame(policy, np.random.default_rng(0))
    drawn = guide.labels(np.full(1000, 7.0))
    assert abs(drawn.mean()) < 0.12 and (guide.labels(np.array([6.9, 7.1])) == [-1, 1]).all()
    state = policy.game.start(np.random.default_rng(0), 2)
    state[:, 4] = [11, 5]  # the first ends with the next step, with the return 12
    _, reward, over = guide.step(state, np.array([0, 1]))
    assert reward.tolist() == [1.0, 0.0] and over.tolist() == [True, False]
    _, won, _ = start(typed, "alphazero", *RANKED, "algo.ranked.ties=won")
    won.policy._add_returns(np.full(20, 7.0))
    assert (won.outcome(batch.replace(episode_return=torch.full((1, 20), 7.0)))[0] == 1).all()
    _, best, _ = start(typed, "alphazero", *RANKED, "algo.ranked.best=7")  # a solved problem is won, whatever was before
    best.policy._add_returns(np.full(20, 7.0))
    assert (best.outcome(batch.replace(episode_return=torch.full((1, 20), 7.0)))[0] == 1).all()
    assert GuidedGame(best.policy, np.random.default_rng(0)).labels(np.array([7.0, 6.9, 8.0])).tolist() == [1, -1, 1]


def test_the_returns_of_episodes_reach_the_ranks_through_moments(typed):
    _, made, sampler = start(typed, "alphazero", *RANKED)
    ended = []
    for _ in range(8):
        (fragment,) = sampler.take(1)
        ended += [episode.ret for episode in fragment.header.episodes]
        made.absorb_rows([made.policy.moments(fragment.batch)])
        sampler.free([fragment])
    count = int(made.policy.ranked_count) - 10
    held = made.policy.ranked_returns.tolist()
    assert len(ended) <= count <= len(ended) + 2 and set(ended) <= {held[(10 + i) % 20] for i in range(count)}


def test_games_of_random_moves_end_by_the_environments_time_limit(typed):
    _, made, _ = start(typed, "alphazero", "env=tests/Endless-v0", *RANKED[2:])
    assert int(made.policy.ranked_count) == 10 and made.policy.ranked_returns[:10].tolist() == [15.0] * 10


def test_copies_end_where_the_environments_time_limit_ends_them(typed):
    """Also those that begin in the middle of an episode, whose environment has counted the steps before."""
    wiring, made, _ = start(typed, "alphazero", "env=tests/Endless-v0", *RANKED[2:])
    env, game = wiring.plan.make_env()(0, 2), made.policy.game
    assert game.limit == 15
    env.reset(0)
    for played in range(18):  # the 16th step only begins another episode
        rows = env.step(np.zeros(2, np.int64)).obs["game_state"]
        state, more, over = rows[:, :1], 0, np.array([rows[0, -1] == 0] * 2)
        while not over.all():
            state, _, over = game.step(state, np.zeros(2, np.int64))
            more += 1
        assert more == (14 - played if played < 15 else 30 - played)
        game.forget()
    env.close()
    with pytest.warns(Notice, match="values grow without a bound"):
        _, plain, _ = start(typed, "alphazero", "env=tests/Endless-v0", "algo.search.simulations=2")
    assert plain.policy.game.limit is None, "a value stands for what follows a time limit"
    cut = [start(typed, "alphazero", "env=tests/Cut-v0", *words)[1].policy.game for words in (RANKED[2:], [])]
    ends = [game.step(game.start(np.random.default_rng(0), 1), np.zeros(1, np.int64)).over.tolist() for game in cut]
    assert ends == [[True], [False]], "also where the environment says it by itself"


def test_random_games_have_the_returns_of_random_play():
    returns = random_returns(SparseCartPole(500), np.random.default_rng(0), 400)
    assert 20 < returns.mean() < 25
    first = random_returns(TicTacToe(), np.random.default_rng(0), 4000)
    assert first.mean() == pytest.approx(0.585 - 0.288, abs=0.04)  # known shares of won and lost random games


def test_random_games_without_an_end_are_no_hang(monkeypatch):
    class Endless(SparseCartPole):
        def step(self, state, action):
            after, reward, over = super().step(state, action)
            return np.where(over[:, None], state, after), reward, np.zeros_like(over)

    monkeypatch.setattr(games, "TOO_MANY_MOVES", 700)
    with pytest.raises(UserError, match=r"has not ended after 700, .* set env.max_episode_steps"):
        random_returns(Endless(500), np.random.default_rng(0), 2)
    assert len(random_returns(Endless(500), np.random.default_rng(0), 2, limit=800)) == 2


def test_training_searches_as_long_without_exploration(typed):
    words = ["env=TicTacToe-v0", "model=mlp", "algo.search.simulations=5", "algo.eval_simulations=9"]
    _, _, sampler = start(typed, "alphazero", *words, "algo.explore=false")
    batch = sampler.take(1)[0].batch
    visits = batch["search_policy"][:-1][batch["searched"][:-1]] * 5
    torch.testing.assert_close(visits, visits.round(), msg="5 simulations give fifths")


# -- acting and runs ----------------------------------------------------------------------------------------------------


def test_greedy_play_is_the_same_every_time_and_training_explores(typed):
    _, made, _ = start(
        typed, "alphazero", "env=TicTacToe-v0", "model=mlp", "algo.search.simulations=20", "algo.temperature_moves=2"
    )
    policy, env = made.policy, None
    wiring = Wired(typed(*small("alphazero", "tiny"), "env=TicTacToe-v0", "model=mlp", "resources=debug", "logger=[]"))
    env = wiring.plan.make_env()(0, 4)
    from rlrun.samplers.evaluator import to_torch

    obs, first = to_torch(env.reset(0)), torch.ones(8, dtype=torch.bool)

    def act(mode, seed, state=None):
        state = policy.initial_state(8) if state is None else state
        return policy.act(obs, first, state, Clock(), mode, torch.Generator().manual_seed(seed), ("log_prob",))

    assert all(torch.equal(act("greedy", 0).action, act("greedy", seed).action) for seed in range(1, 4))
    assert len({tuple(act("explore", seed).action.tolist()) for seed in range(8)}) > 1
    late = policy.initial_state(8).replace(moves=torch.full((8,), 2))
    first = torch.zeros(8, dtype=torch.bool)
    sure = act("explore", 5, late)
    assert (sure.record.log_prob == 0).all() and (sure.state["moves"] == 3).all()
    assert (act("explore", 5).record.log_prob[::2] < 0).all()
    # Visits ** (1 / temperature) in proportion, until the moves that temperature_moves allows are made.
    share = np.zeros((2, 9), dtype=np.float32)
    share[:, :3] = 0.5, 0.3, 0.2
    found = Searched(visits=share * 10, policy=share, value=share[:, 0], best=np.array([0, 0]), q=share)
    policy.temperature = lambda clock: 0.5
    chances = policy.tempered(found, np.array([True, False, True]), torch.tensor([1, 9, 2]), Clock()).exp()
    torch.testing.assert_close(chances[0, :4], torch.tensor([0.25, 0.09, 0.04, 0.0]) / 0.38)
    assert chances[1].tolist() == [1.0] + 8 * [0.0]


def test_a_run_of_two_players_evaluates_against_all_kinds_of_players(tmp_path, capsys):
    run = tmp_path / "run"
    words = [
        "tuned=alphazero/tic_tac_toe",
        "env_steps=300",
        "algo.learning_starts=100",
        "algo.search.simulations=4",
        "logger=[]",
        "resources=debug",
        f"run_dir={run}",
    ]
    assert _dispatch(["train", *words]) == 0
    assert (
        _dispatch(
            [
                "train",
                *words[:-2],
                "algo.search.root=gumbel",
                "algo.temperature_moves=null",
                "resources=debug",
                f"run_dir={run}2",
            ]
        )
        == 0
    )
    for player in ("random", "Minimax1", "PlainMCTS", f"{run}2"):
        word = player if player == "random" or "/" in player else f"rlrun.policies.players:{player}"
        assert _dispatch(["evaluate", str(run), f"opponent={word}", "episodes=2"]) == 0
        assert "won" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [SPARSE, RANKED, ["env=tests/Copied-v0"], ["env=Knapsack-v0", "algo.search.root=gumbel"]]
)
def test_a_run_learns_from_its_games(typed, tmp_path, words):
    _, job, rows = run_wired(
        Wired(
            typed(
                *small("alphazero", "tiny"),
                *words,
                "env_steps=200",
                "resources=debug",
                "logger=[]",
                "log_every_sec=0.01",
            )
        ),
        tmp_path,
    )
    learnt = [row for row in rows if row.get("learn/kl") is not None][-1]
    assert job.status == "COMPLETED"
    assert all(np.isfinite(learnt[f"learn/{name}"]) for name in ("policy_loss", "value_loss", "kl"))


def test_an_environment_with_a_vectorised_class_is_searched_in_copies(typed):
    words = ["env=tests/StateCart-v0", "algo.search.simulations=3", "algo.num_envs=2", "algo.fragment_length=8"]
    _, _, sampler = start(typed, "alphazero", *words)
    (fragment,) = sampler.take(1)
    assert fragment.batch.valid.any() and (fragment.batch.reward[fragment.batch.valid] == 1).all()


def test_ranks_are_those_of_the_new_run(tmp_path):
    """init= takes weights. Returns of an easier game are no measure of a harder one."""
    words = ["algo=alphazero", "env=CartPoleSparse-v0", "algo.search.simulations=2", "algo.num_envs=2", "logger=[]", "model.hidden=[8]",
             "algo.learning_starts=30", "resources.device=cpu", "algo.ranked.enabled=true"]  # fmt: skip
    run = tmp_path / "run"
    assert _dispatch(["train", *words, "++env.kwargs.max_steps=9", "env_steps=200", f"run_dir={run}"]) == 0
    plain = Wired(type_config(compose(*words, "++env.kwargs.max_steps=60", "seed=5"))).algorithm().policy
    for more in (["algo.ranked.games=20"], ["algo.ranked.enabled=false"], []):
        words_now = [*words, "++env.kwargs.max_steps=60", "seed=5", f"init={run}", *more]
        made = Wired(type_config(compose(*words_now))).algorithm().policy
        theirs = checkpoints_of(run).load(parts=("policy",))[0]["policy"]
        for name, value in made.named_parameters():
            torch.testing.assert_close(value.detach(), theirs[name], rtol=0, atol=0)
    for name in made.own_state:
        assert torch.equal(getattr(made, name), getattr(plain, name)) and not torch.equal(getattr(made, name), theirs[name])


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        (["env=CartPole-v1"], "has no get_state and no set_state"),
        (["env=tests/Unrestorable-v0"], "has no set_state"),
        (["env=tests/Shifted-v0"], "is made inside of TransformReward"),
        (["env=tests/Forgetful-v0"], "does not restore what get_state"),
        (["env=TicTacToe-v0", "algo.ranked.enabled=true"], "has two players"),
        (["env=CartPoleSparse-v0", "algo.symmetries=true"], "CartPoleSparse-v0 does not"),
        (["env=MultiAgentCartPole-v0"], "has no simulator"),
        (["env=CartPoleSparse-v0", "env.stack=2"], "env.stack changes what is seen"),
        (["env=CartPoleSparse-v0", "env.max_episode_steps=5"], "does not know this limit"),
        (["env=tests/Limited-v0"], "has a time limit of 20 steps"),
        (["env=tests/WithEngine-v0"], "has no get_state and no set_state"),
        (["env=CartPoleSparse-v0", "algo.ranked.enabled=true", "algo.search.discount=0.99"], "must be 1 with ranked rewards"),
        (["env=TicTacToe-v0", "algo.search.root=gumbel", "algo.search.min_depth=1"], "min_depth 1 does nothing"),
        (["env=TicTacToe-v0", "env.max_episode_steps=4"], "does not know this limit"),
        (["env=TicTacToe-v0", "env.max_episode_steps=4", "env.time_limit=termination"], "does not know this limit"),
        (["env=CartPoleSparse-v0", "model=lstm"], "a search guesses from single states"),
        (["env=CartPoleSparse-v0", "replay=prioritized"], "writes no priorities"),
        (["env=CartPoleSparse-v0", "runner=offline", "data.path=/nowhere"], "learns from games that it plays itself"),
        (["env=tests/Copied-v0", "resources.inference=batched"], "copies"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(words, said):
    with pytest.raises(UserError, match=said):
        checked(type_config(compose("algo=alphazero", "resources.device=cpu", "logger=[]", *words)))


def again(made, before, which):
    """What a move led to, where those who made one of these moves are to move again."""
    state = made.state.copy()
    state[which, -1] = before[which, -1]
    return made._replace(state=state)


def test_simulators_whose_rewards_do_not_fit_are_refused(monkeypatch):
    """Values of games for two are between -1 and 1, and returns of one player stand beside the state in its dtype."""
    words, step = ("algo=alphazero", "resources.device=cpu", "logger=[]"), TicTacToe.step
    monkeypatch.setattr(TicTacToe, "step", lambda self, *at: (made := step(self, *at))._replace(reward=5 * made.reward))
    with pytest.raises(UserError, match="for two pays 5, and values of games for two lie between -1 and 1"):
        checked(type_config(compose(*words, "env=TicTacToe-v0")))
    monkeypatch.setattr(TicTacToe, "step", lambda self, state, move: again(step(self, state, move), state, move == 4))
    with pytest.raises(UserError, match=r"a player moves twice in a row .* a move that does nothing"):
        checked(type_config(compose(*words, "env=TicTacToe-v0")))
    plain, count = SparseCartPole.step, iter(range(10**6))
    for step, said in (
        (lambda self, state, move: plain(self, state + next(count), move), "may draw no random numbers"),
        (lambda self, state, move: plain(self, state.__iadd__(1), move), "changes the states that step"),
    ):
        with monkeypatch.context() as patch, pytest.raises(UserError, match=said):
            patch.setattr(SparseCartPole, "step", step)
            checked(type_config(compose(*words, "env=CartPoleSparse-v0")))
    monkeypatch.setattr(SparseCartPole, "dtype", "int16")
    with pytest.raises(UserError, match="has states of int16, which cannot hold the rewards"):
        checked(type_config(compose(*words, "env=CartPoleSparse-v0")))


@pytest.mark.parametrize("env", ["TicTacToe-v0", "CartPoleSparse-v0", "tests/Copied-v0"])
def test_a_loaded_policy_searches_in_the_environment_of_the_users_loop(env, typed):
    """It plays what the policy itself plays in rlrun's own environments, and holds no copy of a state afterwards."""
    from rlrun.envs import simulated
    from rlrun.runtime.export import observed
    from rlrun.runtime.trained import Trained

    ranked = [] if env == "TicTacToe-v0" else RANKED[2:]
    wiring = Wired(
        typed(*small("alphazero", "tiny"), f"env={env}", "model=mlp", "algo.search.simulations=12", *ranked, "logger=[]")
    )
    policy = wiring.algorithm().policy.requires_grad_(False)
    trained = Trained(Path("run"), wiring.config, wiring.spec, policy, Clock())
    seen = []
    own = policy.act

    def watched(obs, *rest):
        seen.append(obs[STATE].clone())
        return own(obs, *rest)

    policy.act = watched
    if env == "TicTacToe-v0":
        wanted = [action["action"] for _, action in observed(trained, 9)]
        mine, seen[:] = list(seen), []
        made = trained.make_env()
        made.reset(seed=0)
        with pytest.raises(ValueError, match="before it makes one: act"):
            trained.act({made.agent_selection: made.observe(made.agent_selection)})
        for number, action in enumerate(wanted):
            agent = made.agent_selection
            with pytest.raises(ValueError, match="it is the turn of"):
                trained.act(dict.fromkeys(made.agents, made.observe(agent)), env=made)
            taken = trained.act({agent: made.observe(agent)}, env=made)[agent]
            index = made.possible_agents.index(agent)
            assert torch.equal(seen[-1][index], mine[number][index]) and taken == action[index]
            made.step(taken)
        return
    before = len(simulated._KEPT)
    made = trained.make_env()
    obs, _ = made.reset(seed=3)
    with pytest.raises(ValueError, match="before it makes one: act"):
        trained.act(obs)
    total, reward, length = 0.0, None, 0
    while True:
        action = trained.act(obs, reward=reward, env=made)
        assert seen[-1][0, -2] == total and seen[-1][0, -1] == 1
        obs, reward, terminated, truncated, _ = made.step(action)
        total, length = total + reward, length + 1
        if terminated or truncated:
            break
    assert length > 5 and len(simulated._KEPT) == before
    if env == "tests/Copied-v0":
        trained.reset()
        obs, _ = made.reset(seed=3)
        made.step(trained.act(obs, env=made))
        with pytest.raises(ValueError, match="what an episode has paid"):
            trained.act(obs, env=made)
