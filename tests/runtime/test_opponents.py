"""Games between players: who sits where, who wins, and what the command says of it."""

import json
import re

import numpy as np
import pytest
import torch

import rlrun
from rlrun.bench.ratings import expected
from rlrun.cli import _dispatch
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.envs.registry import Factory
from rlrun.policies.exploration import Chosen, Exploration
from rlrun.runtime.opponents import (
    Competitor,
    by_rule,
    inputs_of,
    matches,
    of_run,
    opponents,
    outcomes,
    pair,
    play_pairs,
    seatings,
)
from rlrun.samplers.evaluator import Evaluator, FullGame

GAME = ["env=RockPaperScissors-v0", "logger=[]", "resources=debug", "model.hidden=[8]"]
SIZES = {"fragment_length": 40, "batch_size": 160, "minibatch_size": 20, "num_epochs": 1}
INNER = [f"algo.inner.{name}={value}" for name, value in SIZES.items()]
HERE, RULES = "test_opponents", "rlrun.policies.players"


class Always(Exploration):
    move = 0

    def choose(self, wanted, obs, is_first, state, clock, rng):
        return Chosen(torch.full(is_first.shape, self.move))


class Rock(Always): ...


class Paper(Always):
    move = 1


class Scissors(Always):
    move = 2


def train(path, *words):
    assert _dispatch(["train", *GAME, *words, "env_steps=160", f"run_dir={path}"]) == 0
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of self-play with three snapshots, of a policy for each agent, of another game, and of a joint policy."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "league", "algo=self_play", *INNER, "algo.snapshot_every=60")
    train(folder / "each", "algo=multi", *INNER)
    train(folder / "told", "algo=ppo", "model=lstm", "model.memory.size=4", "model.memory.prev_action=true",
          "algo.sequence_length=10", *(f"algo.{name}={value}" for name, value in SIZES.items()))  # fmt: skip
    train(folder / "other", "algo=multi", *INNER, "env=MultiAgentCartPole-v0")
    return folder


def certain(policy, move):
    """Makes a policy play one move alone."""
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.nn.functional.one_hot(torch.tensor(move), 3) * 1e4)


def playing(trained, these, episodes=4):
    seeds = Seeds(0)
    spec = inputs_of(trained.spec, these)
    factory = Factory(cfg=trained.config.env, spec=spec, seeds=seeds, stream="evaluate", learning=False)
    evaluator = Evaluator(factory, 2, seeds)
    return lambda policy, count, round_: evaluator.games(policy, count, "greedy", Clock(), round_)


def test_the_matrix_of_players_whose_games_are_known(runs, capsys):
    """BeatLast loses at most its first round of ten against players that never change their move."""
    names = [f"{HERE}:Rock", f"{HERE}:Paper", f"{HERE}:Scissors", f"{RULES}:BeatLast", f"{RULES}:AlwaysSame"]
    assert _dispatch(["evaluate", str(runs / "league"), *names, "random", "episodes=5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    points = np.array(told["points"], dtype=float)
    circle = points[1:4, 1:4]
    assert circle[~np.eye(3, dtype=bool)].tolist() == [0, 1, 1, 0, 0, 1]
    assert points[4, [1, 2, 3, 5]].tolist() == [1, 1, 1, 1] and points[[1, 2, 3, 5], 4].tolist() == [0, 0, 0, 0]
    apart = ~np.eye(7, dtype=bool)
    np.testing.assert_allclose((points + points.T)[apart], 1.0)
    games = sum(np.array(told[word]) for word in ("won", "drawn", "lost"))
    assert (games == 5 * apart).all() and (np.array(told["won"]) == np.array(told["lost"]).T).all()
    assert [player["name"] for player in told["players"]] == [str(runs / "league"), *names, "random"]
    elo = np.array([player["elo"] for player in told["players"]])
    assert elo.mean() == pytest.approx(1200.0) and told["players"][0]["checkpoint_env_steps"] >= 160
    with_draw = np.where(apart, 5 * points + 0.5, 0.0)
    np.testing.assert_allclose((6 * apart * expected(elo)).sum(1), with_draw.sum(1), atol=1e-6)
    assert [player["points"] for player in told["players"]] == pytest.approx(np.nanmean(points, 1))


def test_a_pair_plays_both_seats(runs):
    """Of a run that plays rock as the first player and paper as the second, against rock and against paper."""
    made = rlrun.load(runs / "each")
    for number, name in enumerate(made.policy.policies):
        certain(made.policy.policy(name), number)
    rock, paper = (by_rule(f"{HERE}:{name}", made.spec, "player") for name in ("Rock", "Paper"))
    these = [of_run(made, "each"), rock, paper]
    results = play_pairs(these, 6, playing(made, these))
    assert results.counts[0, 1].tolist() == [3, 3, 0] and results.counts[0, 2].tolist() == [0, 3, 3]
    assert results.points.tolist() == [[0, 4.5, 1.5], [1.5, 0, 0], [4.5, 6, 0]] and results.repeated == 3


def test_main_plays_each_snapshot_by_itself(runs, capsys):
    made = rlrun.load(runs / "league")
    certain(made.policy.main, 1)
    held = {number: slot for slot, number in enumerate(made.policy.present.tolist()) if number >= 0}
    assert sorted(held) == [0, 1, 2]
    for number, slot in held.items():
        certain(made.policy.snapshots[slot], number)
    found = {}
    for other in opponents(made, "snapshots", False):
        play = playing(made, [other])
        found[other.name] = sum(
            outcomes(play(match.policy, match.episodes, 0), match.agent) for match in matches(made, other, 5)
        ).tolist()
    assert found == {"snapshot 0": [5, 0, 0], "snapshot 1": [0, 5, 0], "snapshot 2": [0, 0, 5]}
    assert _dispatch(["evaluate", str(runs / "league"), "opponent=snapshots", "episodes=4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told["snapshots"]] == list(found) and len(told["returns"]) == 12
    assert told["won"] == pytest.approx(np.mean([one["won"] for one in told["snapshots"]]))
    # Both players are greedy and nothing else is random, so that each match is one game, played twice.
    assert (told["matches"], told["repeated_matches"], told["return_mean_95"]) == (6, 6, None)
    assert _dispatch(["evaluate", str(runs / "league"), "opponent=snapshots", "episodes=4"]) == 0
    assert "In 6 of 6 matches (an opponent and its seat), all games were alike" in capsys.readouterr().out
    assert _dispatch(["evaluate", str(runs / "league"), "opponent=snapshots", "episodes=20", "greedy=false", "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["repeated_matches"] == 0 and drawn["return_mean_95"] is not None


def test_in_a_game_of_three_each_plays_alone_against_copies_of_the_other():
    rock, paper = (Competitor(kind.__name__, (kind(None),) * 3) for kind in (Rock, Paper))
    made = seatings(rock, paper, 8)
    assert [(one.agent, one.swapped, one.episodes) for one in made] == [
        (0, False, 2), (1, False, 2), (2, False, 1), (0, True, 1), (1, True, 1), (2, True, 1),
    ]  # fmt: skip
    for one in made:
        state = one.policy.initial_state(6)
        seen = Batch(observation=torch.zeros(6, 4))
        act = one.policy.act(seen, torch.ones(6, dtype=torch.bool), state, Clock(), "greedy", torch.Generator())
        alone = (torch.arange(6) % 3 == one.agent).long()
        assert act.action.tolist() == (alone if one.swapped else 1 - alone).tolist()
    with pytest.raises(UserError, match="episodes=6"):
        seatings(rock, paper, 5)


def test_the_side_with_the_higher_return_wins():
    """Returns of the side of several agents are their mean; sums that differ by rounding alone are a draw."""
    games = [
        FullGame(sum(each), 1, np.array(each))
        for each in ([2.0, 1.0, 2.0], [1.0, 2.0, 0.0], [1.0, 3.0, 0.0], [-0.3, -(0.1 + 0.2), -0.3])
    ]
    assert outcomes(games, 0).tolist() == [1, 2, 1] and outcomes(games, 2).tolist() == [1, 1, 2]


def test_the_table_with_snapshots_and_policies_that_see_more(runs, capsys):
    """A policy with memory of its last actions plays against others that are not told them."""
    words = [str(runs / "told"), str(runs / "league"), "snapshots", f"{RULES}:AlwaysSame"]
    assert _dispatch(["evaluate", *words, "episodes=4"]) == 0
    said = capsys.readouterr().out
    assert "6 players, 4 games of each pair, 60 in all" in said and "points of a row in a game against a column" in said
    rows = [re.split(r"\s{2,}", line) for line in said.splitlines() if re.match(r"\d ", line)]
    assert [row[0].partition(" ")[2] for row in rows] == [
        str(runs / "told"), str(runs / "league"), *(f"{runs / 'league'} snapshot {n}" for n in range(3)), words[-1],
    ]  # fmt: skip
    assert all(row[i + 1] == "-" and len(row) == 10 for i, row in enumerate(rows))
    assert "greedy=false draws their actions" in said


def test_a_player_explores_as_at_its_own_checkpoint(runs):
    """DQN plays at random at its first checkpoints and hardly at all at its last ones. A policy of algo=multi that does
    not learn plays as at the last ones, whatever its run's checkpoint."""
    train(runs / "wild", "algo=dqn", "algo.learning_starts=10000")
    fixed = f"algo.fixed={{player_1: {runs / 'wild'}}}"
    train(runs / "half", "algo=multi", "algo@algo.inner=dqn", "algo.inner.learning_starts=10000", fixed)
    rock = by_rule(f"{HERE}:Rock", rlrun.load(runs / "wild").spec, "player")
    seen, first = Batch(observation=torch.eye(4)[[3]].repeat(800, 1)), torch.ones(800, dtype=torch.bool)

    def at_random(run, seat, env_steps=None):
        made = rlrun.load(runs / run)
        made.clock = made.clock if env_steps is None else Clock(env_steps=env_steps)
        told = set()
        for policy in (pair(of_run(made, run), rock, seat), pair(rock, of_run(made, run), 1 - seat)):
            rng = torch.Generator().manual_seed(0)
            moves = policy.act(seen, first, policy.initial_state(800), Clock(), "explore", rng).action[seat::2]
            told.add(int(moves.bincount().max()) < 200)
        (same,) = told
        return same

    assert at_random("wild", 0) and at_random("wild", 1) and not at_random("wild", 0, 10**9)
    assert at_random("half", 0) and not at_random("half", 1)


@pytest.mark.parametrize("words, said", [
    (["LEAGUE", "random", "episodes=1"], "in at least one episode: set episodes=2 or more"),
    (["LEAGUE", "random", "opponent=random"], "opponent is for one run"),
    (["LEAGUE", "LEAGUE/"], "is named twice"),
    (["LEAGUE", "nowhere"], "nowhere is no player"),
    (["LEAGUE", "--episodes", "3"], "--episodes is not a flag of evaluate: options are key=value, as in episodes=..."),
    (["LEAGUE", "env.kwargs.n=3"], "env.kwargs.n: a run is played in its own environment"),
    (["LEAGUE", "nowhere:Name"], "cannot import nowhere"),
    (["LEAGUE", "OTHER"], "was trained on MultiAgentCartPole-v0, and cannot play RockPaperScissors-v0"),
    (["LEAGUE", "opponent=OTHER"], "was trained on MultiAgentCartPole-v0, and cannot play RockPaperScissors-v0"),
    (["random", "snapshots"], "needs a run directory among the players"),
    (["OTHER", "snapshots"], "there is no such run among the players"),
    (["OTHER", "opponent=snapshots"], "is for runs of algo=self_play, which hold snapshots"),
    (["SINGLE", "random"], "games between several players are for runs whose algorithm plays one of several agents"),
])  # fmt: skip
def test_bad_words_get_a_sentence(runs, words, said, capsys):
    single = runs / "single"
    if "SINGLE" in words and not single.exists():
        train(single, "algo=pg", "env=CartPole-v1", "algo.batch_size=40", "algo.fragment_length=40")
    places = {"LEAGUE": runs / "league", "OTHER": runs / "other", "SINGLE": single}
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    with pytest.raises(UserError, match=said):
        _dispatch(["evaluate", *words])
