"""Self-play: who plays whom, what is learnt from, and what games are worth."""

import json

import pytest
import torch
from wired import Wired

import rlrun
from rlrun.algos.self_play import SelfPlay
from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.envs.registry import Factory
from rlrun.policies import players
from rlrun.policies.exploration import Chosen, Exploration
from rlrun.policies.league import SELF
from rlrun.runtime.given_weights import begin_with
from rlrun.runtime.opponents import matches, opponents
from rlrun.samplers.evaluator import Evaluator
from rlrun.samplers.serial import SerialSampler as Sampler

GAME = ["algo=self_play", "env=RockPaperScissors-v0", "logger=[]", "resources=debug", "model.hidden=[8]"]
PPO_WORDS = [
    "algo.inner.fragment_length=40",
    "algo.inner.batch_size=160",
    "algo.inner.minibatch_size=20",
    "algo.inner.num_epochs=2",
]
LSTM = ["model/memory=lstm", "model.memory.size=6", "algo.inner.sequence_length=10"]


def collected(typed, *words, fragments=1, before=None):
    wiring = Wired(typed(*GAME, *PPO_WORDS, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    if before is not None:
        before(made)
    sampler.publish(made.policy, Clock())
    batches = []
    for _ in range(fragments):
        (fragment,) = sampler.take(1)
        batches.append(fragment.batch.clone())
        sampler.free([fragment])
    return wiring, made, batches


def shaken(made, seed=0):
    """Several snapshots that differ from main and from each other."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(3):
        with torch.no_grad():
            for parameter in made.policy.main.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=rng))
        made._snapshot(0)
    with torch.no_grad():
        for parameter in made.policy.main.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng))


@pytest.mark.parametrize("memory", [[], LSTM], ids=["plain", "lstm"])
def test_main_acts_where_it_says_so_and_a_snapshot_elsewhere(typed, memory):
    """Log-probabilities of main's rows are main's; the seat and the opponent stay the same in an episode; all seats and
    opponents occur; scores are the sums of rewards."""
    _, made, batches = collected(typed, *memory, "algo.self_share=0.25", fragments=6, before=shaken)
    seats, opponents = set(), set()
    running = None
    for batch in batches:
        length = 10 if memory else 1
        rows = batch.sequences(length)
        dist, _ = made.policy.main.unroll(rows)
        close = (dist.log_prob(rows.action) - rows.log_prob).abs() < 1e-4
        assert close[rows.mine & rows.valid].all()
        for slot, number in enumerate(made.policy.present.tolist() if not memory else ()):
            dist, _ = made.policy.snapshots[slot].unroll(rows)
            close = (dist.log_prob(rows.action) - rows.log_prob).abs() < 1e-4
            assert close[~rows.mine & rows.valid & (rows.against == number)].all(), "and a snapshot's rows its own"
        pairs = batch.mine.unflatten(1, (-1, 2))  # [T, E, 2]
        against = batch.against.unflatten(1, (-1, 2))
        assert (against[..., 0] == against[..., 1]).all()
        alone = against[..., 0] == SELF
        assert pairs[alone].all() and (pairs[~alone].sum(-1) == 1).all()
        going = ~batch.is_first[1:-1].unflatten(1, (-1, 2)).all(-1)
        assert (against[1:, :, 0] == against[:-1, :, 0])[going].all() and (pairs[1:] == pairs[:-1])[going].all()
        seats |= set(pairs[~alone].long().argmax(-1).tolist())
        opponents |= set(against.flatten().tolist())
        running = torch.zeros(batch.reward.shape[1]) if running is None else running
        for t in range(len(batch.reward)):
            running = torch.where(batch.is_first[t], torch.zeros(()), running)
            assert torch.equal(batch.score[t], running)
            running = running + batch.reward[t]
    assert seats == {0, 1} and {SELF, 1, 2, 3} <= opponents


def test_a_snapshots_actions_are_its_own(typed):
    """Snapshot 0 always plays paper, and main always scissors."""

    def certain(made):
        for policy, action in ((made.policy.snapshots[0], 1), (made.policy.main, 2)):
            with torch.no_grad():
                policy.action_head.linear.bias.copy_(torch.nn.functional.one_hot(torch.tensor(action), 3) * 1e4)

    _, _, (batch,) = collected(typed, "algo.self_share=0.3", before=certain)
    live = batch.valid
    assert (batch.action[live & batch.mine] == 2).all() and (batch.action[live & ~batch.mine] == 1).all()
    assert (~batch.mine).any() and (batch.against == SELF).any()


def test_only_mains_rows_reach_the_loss(typed):
    """Whatever snapshots did changes no weight; frozen snapshots stay equal to the bit."""
    runs = []
    for spoilt in (False, True):
        _, made, (batch,) = collected(typed, "algo.self_share=0.0", before=shaken)
        before = [snapshot.state_dict() for snapshot in made.policy.snapshots]
        before = [{key: value.clone() for key, value in state.items()} for state in before]
        if spoilt:
            theirs = ~batch.mine
            assert theirs.any()
            batch = batch.replace(
                reward=batch.reward.masked_fill(theirs & ~batch.terminated & ~batch.truncated, 1e6),
                action=batch.action.masked_fill(theirs, 0),
                log_prob=batch.log_prob.masked_fill(theirs, -3.0),
                value=batch.value.masked_fill(theirs, 1e6),
            )
        for number in range(3):
            made.update(batch, Clock(updates=number))
        assert all(
            torch.equal(state[key], value)
            for state, snapshot in zip(before, made.policy.snapshots, strict=True)
            for key, value in snapshot.state_dict().items()
        )
        runs.append(made.policy.main.state_dict())
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])


def test_rows_of_which_none_is_mains_change_nothing(typed):
    """In a game of many players main may be out while the others play on."""
    _, made, batches = collected(typed)
    theirs = batches[0].replace(valid=torch.zeros_like(batches[0].valid))
    before = {name: value.clone() for name, value in made.policy.main.named_parameters()}
    update = made.update(theirs, Clock())
    assert all(bool(torch.isfinite(torch.as_tensor(value)).all()) for value in update.metrics.values())
    assert all(torch.equal(value, before[name]) for name, value in made.policy.main.named_parameters())


def test_ratings_are_zero_sum_and_follow_the_formula(typed):
    _, made, _ = collected(typed, before=shaken)
    made.elo.fill_(1300.0)
    total = made.elo + made.elo_of.sum()
    counts = torch.zeros_like(made.results)
    counts[1] = torch.tensor([3.0, 1.0, 2.0])
    expected = 1 / (1 + 10 ** ((1200 - 1300) / 400))
    made.rate(counts)
    assert float(made.elo) == pytest.approx(1300 + 16 * (3.5 - 6 * expected))
    assert float(made.elo + made.elo_of.sum()) == pytest.approx(float(total), abs=1e-9)
    assert float(made.elo_of[1]) == pytest.approx(1200 - 16 * (3.5 - 6 * expected)) and float(made.elo_of[0]) == 1200


@pytest.mark.parametrize("k", [16.0, 100.0])
def test_many_games_at_once_do_not_drive_ratings_apart(typed, k):
    """400 games of equal players in every update, of which main wins 210 in the first: ratings settle where those of
    single games do. Where main always wins, ratings move apart as in single games."""
    _, made, _ = collected(typed, f"algo.elo_k={k}", before=shaken)
    equal, first = torch.zeros_like(made.results), torch.zeros_like(made.results)
    equal[1], first[1] = torch.tensor([200.0, 0.0, 200.0]), torch.tensor([210.0, 0.0, 190.0])
    for counts in (first, *[equal] * 30):
        made.rate(counts)
        assert abs(float(made.elo) - 1200) < 20 and abs(float(made.elo_of[1]) - 1200) < 20
    assert float(made.elo) == pytest.approx(1200, abs=1e-3)
    won = torch.zeros_like(made.results)
    won[1, 0] = 400.0
    made.rate(won)
    apart = float(made.elo - made.elo_of[1])
    one_by_one = 0.0
    for _ in range(400):
        one_by_one += 2 * k * (1 - 1 / (1 + 10 ** (-one_by_one / 400)))
    assert apart == pytest.approx(one_by_one, rel=0.05)


@pytest.mark.parametrize("words", [
    ["runner.num_sgd_iter=2"],
    ["runner.num_sgd_iter=2", "runner.minibatch_buffer_size=3"],
    ["runner.replay_proportion=1.0", "runner.replay_slots=3"],
], ids=["passes", "ring", "replay"])  # fmt: skip
def test_rows_that_are_used_again_are_games_that_count_once(typed, tmp_path, monkeypatch, words):
    """All games that an update counts, beside those that ended in the fragments that samplers made."""
    ended, counted = set(), []
    fresh, count = Sampler.take, SelfPlay.count

    def games(batch):
        over = (batch["terminated"] | batch["truncated"]) & batch["mine"] & batch["valid"] & (batch["against"] != SELF)
        return batch["game"][over].tolist()

    def take(self, wanted):
        fragments = fresh(self, wanted)
        for fragment in fragments:
            ended.update(games(fragment.batch))
        return fragments

    def counting(self, batch):
        counts = count(self, batch)
        counted.append((games(batch), int(counts.sum())))
        return counts

    monkeypatch.setattr(Sampler, "take", take)
    monkeypatch.setattr(SelfPlay, "count", counting)
    inner = ["algo@algo.inner=impala", "algo.inner.fragment_length=20", "algo.inner.batch_size=80"]
    more = ["runner=actor_learner", "algo.self_share=0.2", "env_steps=800", "eval.every=null"]
    assert _dispatch(["train", *GAME, *inner, *more, *words, f"run_dir={tmp_path / 'run'}"]) == 0
    seen = {game for found, _ in counted for game in found}
    assert len(seen) > 20 and seen <= ended
    assert sum(len(found) for found, _ in counted) > 1.3 * len(seen), "games are in several batches"
    assert sum(number for _, number in counted) == len(seen)


def test_games_are_counted_once_with_their_outcome(typed):
    _, made, batches = collected(typed, "algo.self_share=0.0", fragments=4, before=shaken)
    counts = sum(made.count(batch) for batch in batches)
    by_hand = torch.zeros_like(counts)
    paid = torch.zeros(batches[0].reward.shape[1])
    for batch in batches:
        for t in range(len(batch.reward)):
            paid = torch.where(batch.is_first[t], torch.zeros(()), paid) + batch.reward[t]
            for b in range(len(paid)):
                if batch.valid[t, b] and (batch.terminated | batch.truncated)[t, b] and batch.mine[t, b]:
                    slot = int(batch.against[t, b]) % len(made.policy.snapshots)
                    by_hand[slot, 0 if paid[b] > 0 else 1 if paid[b] == 0 else 2] += 1
    assert by_hand.sum() > 10 and torch.equal(counts, by_hand)


def test_old_snapshots_give_way_and_are_no_longer_drawn(typed):
    _, made, _ = collected(typed, "algo.window=2")
    for _ in range(4):
        made._snapshot(0)
    assert sorted(made.policy.present.tolist()) == [2, 3, 4]
    assert {n for n, p in zip(made.policy.present.tolist(), made.policy.chance.tolist(), strict=True) if p > 0} == {
        3,
        4,
    }
    _, made, _ = collected(typed, "algo.window=2", "algo.opponents=prioritized", before=shaken)
    slots = {n: i for i, n in enumerate(made.policy.present.tolist())}
    made.results[slots[3]] = torch.tensor([9.0, 0.0, 1.0])
    made.results[slots[2]] = torch.tensor([1.0, 0.0, 9.0])
    made._set_chances()
    assert float(made.policy.chance[slots[2]]) == pytest.approx(0.81 / 0.82, rel=1e-3)


def test_a_game_that_outlasts_its_snapshot_goes_on_against_the_oldest_that_is_kept(typed):
    """Rewards of a game that the newest weights played on both sides would be no result against anyone."""
    words = ("algo.window=1", "algo.self_share=0.0", "+env.kwargs.rounds=60")
    _, made, (first,) = collected(typed, *words, before=shaken)
    assert sorted(made.policy.present.tolist()) == [2, 3] and set(first.against.flatten().tolist()) == {3}
    wiring, made, _ = collected(typed, *words)
    sampler, batches = wiring.sampler(0), []
    for _ in range(4):
        sampler.publish(made.policy, Clock())
        (fragment,) = sampler.take(1)
        batches.append(fragment.batch.clone())
        sampler.free([fragment])
        shaken(made)
    assert not batches[1].is_first[0].any(), "the games of the first rows go on"
    assert [sorted(set(batch.against.flatten().tolist()))[0] for batch in batches[:2]] == [0, 2]
    counts = [int(made.count(batch).sum()) for batch in batches]
    over = [int((batch.terminated | batch.truncated)[batch.mine & batch.valid].sum()) for batch in batches]
    assert counts == over and sum(over) > 0
    for batch in batches:
        assert (batch.mine.unflatten(1, (-1, 2)).sum(-1) == 1).all()


def test_snapshots_come_when_they_are_due(typed):
    _, made, _ = collected(typed, "algo.snapshot_every=100", "algo.snapshot_win_rate=0.6")
    assert not made.due(Clock(env_steps=99)) and not made.due(Clock(env_steps=100))
    made.results[0] = torch.tensor([6.0, 0.0, 4.0])
    assert made.due(Clock(env_steps=100)) and not made.due(Clock(env_steps=99))
    made.results[0, 2] = 5
    assert not made.due(Clock(env_steps=100))


def test_a_resumed_run_draws_the_same_games(tmp_path):
    def train(path, steps):
        words = [*GAME, *PPO_WORDS, *LSTM, "algo.snapshot_every=150", "seed=5", "checkpoint.every=320"]
        assert _dispatch(["train", *words, f"env_steps={steps}", f"run_dir={path}"]) == 0

    train(tmp_path / "whole", 640)
    train(tmp_path / "cut", 320)
    assert _dispatch(["resume", str(tmp_path / "cut"), "env_steps=640"]) == 0
    whole, cut = (rlrun.load(tmp_path / name).policy.state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(whole[key], cut[key]) for key in whole) and int(whole["present"].max()) >= 2
    trained = rlrun.load(tmp_path / "whole")
    env = trained.make_env()
    obs, _ = env.reset()
    while env.agents:  # no reward is asked for, which only counts games in training
        actions = trained.act(obs)
        assert set(actions) == {"player_0", "player_1"}
        obs = env.step(actions)[0]


def test_weights_are_judged_by_their_rating(tmp_path, capsys):
    """The returns of both players add up to 0 in every game, so that no weights would be better than the first ones."""
    path = tmp_path / "run"
    words = ["episode_window=5", "checkpoint.best_every_sec=0", "eval.every=200", "eval.episodes=2", "env_steps=800"]
    assert _dispatch(["train", *GAME, *PPO_WORDS, *words, "algo.snapshot_every=150", f"run_dir={path}"]) == 0
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    assert {row["sample/return_mean"] for row in rows if row.get("sample/episodes")} == {0.0}
    last = sorted(one for one in (path / "checkpoints").iterdir() if one.name.isdigit())[-1]
    known = json.loads((last / "run.json").read_text())
    assert known["judged_by"] == "rating" and known["best"] > 1000 and known["saved_best"] == known["best"]
    summary = json.loads((path / "summary.json").read_text())
    assert summary["best_return_mean"] is None and summary["eval_return_mean"] == 0.0
    assert rlrun.load(path, "best").clock.env_steps <= 800
    capsys.readouterr()
    try:
        _dispatch(["resume", str(path), "env_steps=4000", "stop.no_improvement_steps=1"])
        said = capsys.readouterr().out
    except UserError as error:  # the run had got no better at its end
        said = str(error)
    assert "no better rating for 1 env steps" in said


@pytest.mark.parametrize("window", [10, 3])
def test_a_run_that_begins_with_another_ones_weights_has_snapshots_of_its_own(window, typed, tmp_path):
    """The first is of the weights that it begins with, and numbers, chances and ratings begin anew."""
    league = tmp_path / "league"
    words = ["algo.snapshot_every=100", "algo.window=10"]
    assert _dispatch(["train", *GAME, *PPO_WORDS, *words, "env_steps=640", f"run_dir={league}"]) == 0
    main = rlrun.load(league).policy.main.state_dict()
    made = Wired(typed(*GAME, *PPO_WORDS, *words[:1], f"algo.window={window}")).algorithm()
    begin_with(made, league, "self_play")
    policy, nothing = made.policy, [SELF] * window
    for own in (policy.main, policy.snapshots[0]):
        assert all(torch.equal(value, main[key]) for key, value in own.state_dict().items())
    assert policy.present.tolist() == [0, *nothing] and policy.chance.tolist() == [1.0, *[0.0] * window]
    made._snapshot(100)
    assert policy.present.tolist() == [0, 1, *nothing[1:]] and policy.chance.tolist()[:3] == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("words, said", [
    (["algo@algo.inner=dqn"], "dqn cannot be inside self_play, because it learns from a replay"),
    (["algo@algo.inner=maml", "runner=meta"], "maml cannot be inside self_play, because it adapts its policy to tasks"),
    (["env=CartPole-v1"], "is for environments in which several agents play; CartPole-v1 has one"),
    (["algo.self_share=1.0"], "self_share=1 never plays against a snapshot"),
])  # fmt: skip
def test_what_does_not_fit_gets_a_sentence(typed, words, said):
    inner = [] if any(word.startswith("algo@algo.inner") for word in words) else PPO_WORDS
    with pytest.raises(UserError, match=said):
        Wired(typed(*GAME, *inner, *words)).algorithm()


def test_players_by_rule():
    rng = torch.Generator().manual_seed(0)
    spec = None
    obs = Batch(observation=torch.eye(4)[[0, 1, 2, 3]])
    moves = players.BeatLast(spec).choose(None, obs, torch.zeros(4), Batch(), Clock(), rng).action
    assert moves[:3].tolist() == [1, 2, 0]
    same = players.AlwaysSame(spec)
    state = Batch(same.initial_state(50, None, torch.device("cpu")))
    first = same.choose(None, obs, torch.ones(50, dtype=torch.bool), state, Clock(), rng)
    again = same.choose(None, obs, torch.zeros(50, dtype=torch.bool), Batch(first.state), Clock(), rng)
    assert torch.equal(first.action, again.action) and set(first.action.tolist()) == {0, 1, 2}


def test_one_ply_takes_every_win():
    """Boards with three own pieces in a row, in every direction, and the column that makes four."""
    boards, columns = [], []
    for own, theirs, column in (
        ([(5, 0), (5, 1), (5, 2)], [], 3),
        ([(5, 6), (4, 6), (3, 6)], [], 6),
        ([(5, 0), (4, 1), (3, 2)], [(5, 1), (5, 2), (4, 2), (5, 3), (4, 3), (3, 3)], 3),
        ([(2, 3), (3, 4), (4, 5)], [(5, 6), (3, 3), (4, 3), (5, 3), (4, 4), (5, 4), (5, 5)][1:], 6),
    ):
        board = torch.zeros(6, 7, 2)
        for plane, places in enumerate((own, theirs)):
            for row, col in places:
                board[row, col, plane] = 1
        boards.append(board)
        columns.append(column)
    obs = Batch(observation=torch.stack(boards), action_mask=torch.ones(4, 7, dtype=torch.int64))
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        chosen = players.OnePly(None).choose(None, obs, torch.zeros(4), Batch(), Clock(), rng).action
        assert chosen.tolist() == columns
    full = obs["observation"].clone()
    full[:, :, 3] = 1.0
    legal = torch.ones(4, 7, dtype=torch.int64)
    legal[:, 3] = 0
    seen = Batch(observation=full, action_mask=legal)
    assert all(
        players.OnePly(None).choose(None, seen, torch.zeros(4), Batch(), Clock(), rng).action[0] != 3 for _ in range(50)
    )


def test_a_run_plays_against_opponents(tmp_path, capsys):
    run = tmp_path / "run"
    assert _dispatch(["train", *GAME, *PPO_WORDS, "env_steps=160", f"run_dir={run}"]) == 0
    capsys.readouterr()
    for opponent in ("random", str(run), "rlrun.policies.players:AlwaysSame"):
        assert _dispatch(["evaluate", str(run), f"opponent={opponent}", "episodes=5", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["won"] + told["drawn"] + told["lost"] == pytest.approx(1.0) and len(told["returns"]) == 5
    with pytest.raises(UserError, match="at least one episode for each agent"):
        _dispatch(["evaluate", str(run), "opponent=random", "episodes=1"])
    with pytest.raises(UserError, match="nowhere"):
        _dispatch(["evaluate", str(run), "opponent=nowhere", "episodes=4"])


def test_several_policies_may_fix_one_that_learnt_by_self_play(tmp_path):
    league, run = tmp_path / "league", tmp_path / "run"
    assert _dispatch(["train", *GAME, *PPO_WORDS, "env_steps=160", f"run_dir={league}"]) == 0
    words = ["algo=multi", *GAME[1:], *PPO_WORDS, f"++algo.fixed={{player_1: {league}}}", "env_steps=160"]
    assert _dispatch(["train", *words, f"run_dir={run}"]) == 0
    main, fixed = rlrun.load(league).policy.main.state_dict(), rlrun.load(run).policy.policy("player_1").state_dict()
    assert main.keys() == fixed.keys() and all(torch.equal(main[key], fixed[key]) for key in main)


def test_an_opponent_that_always_plays_rock_loses_to_paper(tmp_path, capsys):
    """Returns are those of the run's agent, as either player."""
    run = tmp_path / "run"
    assert _dispatch(["train", *GAME, *PPO_WORDS, "env_steps=160", f"run_dir={run}"]) == 0
    capsys.readouterr()
    made = rlrun.load(run)
    with torch.no_grad():
        made.policy.main.action_head.linear.bias.copy_(torch.tensor([0.0, 1e4, 0.0]))
    (rock,) = opponents(made, "test_self_play:Rock", False)
    for match in matches(made, rock, 6):
        seeds = Seeds(0)
        factory = Factory(cfg=made.config.env, spec=made.spec, seeds=seeds, stream="evaluate", learning=False)
        games = Evaluator(factory, 2, seeds).play(match.policy, 3, "greedy", made.clock, agent=match.agent)
        assert [ret for ret, _ in games] == [10.0] * 3


class Rock(Exploration):
    def choose(self, wanted, obs, is_first, state, clock, rng):
        return Chosen(torch.zeros(is_first.shape, dtype=torch.int64))
