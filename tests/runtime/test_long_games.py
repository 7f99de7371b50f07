"""Games that may have no end: what a run and the commands say of them, and games that are cut."""

import json
import types

import gymnasium
import numpy as np
import pytest
from conftest import compose
from wired import checked

import rlrun
from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core import long_games, plugins
from rlrun.core.errors import Notice, UserError
from rlrun.core.evaluation import Evaluated
from rlrun.core.long_games import LongGames
from rlrun.core.pulse import Limits
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.runtime.advice import notes
from rlrun.samplers import evaluators
from rlrun.samplers.evaluator import Evaluator
from rlrun.samplers.evaluators import EvaluationCrew, Said

WORDS = ["algo=pg", "logger=[]", "resources=debug", "model.hidden=[8]", "algo.fragment_length=10", "algo.batch_size=20"]


class Corridor(gymnasium.Env):
    """Every second game of an environment ends after 5 steps. The others never do, unless `breaks_off` says when."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, breaks_off=None, max_steps=None):
        self.breaks_off, self.max_steps, self.games = breaks_off, max_steps, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.games, self.steps = self.games + 1, 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.games % 2 == 0 and self.steps == 5, self.steps == self.breaks_off, {}


gymnasium.register("tests/Corridor-v0", entry_point=Corridor)


def run(path, *words, env="tests/Corridor-v0"):
    assert _dispatch(["train", *WORDS, f"env={env}", "env_steps=20", *words, f"run_dir={path}"]) == 0
    return path


def test_what_is_said_of_a_long_game_comes_after_pauses_that_double(monkeypatch):
    now, said = [100.0], []
    monkeypatch.setattr(long_games, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    long = LongGames(types.SimpleNamespace(max_episode_steps=None, limit_option="env.max_episode_steps"), said.append)
    for second in range(1, 200):
        now[0] = 100.0 + second
        if second == 10:
            long.ended()
        long.look("evaluating", 1000 * second)
        assert len(said) == sum(second >= at for at in (30, 70, 150)), second
    assert said[0] == "evaluating: a game has 30,000 steps and has not ended; env.max_episode_steps limits games"
    for second in range(200, 1000):  # games of 90 seconds, which is less than the pause by now
        now[0] = 100.0 + second
        if second % 90 == 0:
            long.ended()
        long.look("evaluating", 1)
    assert len(said) == 3
    long = LongGames(types.SimpleNamespace(max_episode_steps=500), said.append)
    now[0] += 20.0
    long.look("playing", 400)
    assert said[3] == "playing: a game has 400 of at most 500 steps and has not ended"


def test_a_run_and_the_commands_say_how_long_a_game_has_become(tmp_path, monkeypatch, capsys):
    path = run(tmp_path / "run")
    monkeypatch.setattr(long_games, "FIRST_SEC", 0.0)
    capsys.readouterr()
    run(tmp_path / "other", "eval.every=20", "eval.episodes=1", "env.max_episode_steps=30")
    out = capsys.readouterr().out
    assert "  note: evaluating at 20 env steps: a game has 1 of at most 30 steps and has not ended\n" in out
    with pytest.warns(Notice, match=r"^evaluating at 20 env steps: a game has 1 of at most 7 steps"):
        _dispatch(["evaluate", str(path), "episodes=1", "max_episode_steps=7"])


def test_a_note_of_processes_beside_the_trainer_is_printed_by_it_and_once(capsys):
    zero, one = (types.SimpleNamespace(name=f"eval-{number}") for number in range(2))
    crew = EvaluationCrew(types.SimpleNamespace(workers=2), Limits(), Restarts(0, 1.0))
    messages = [(zero, Said("a game is long")), (one, Said("a game is longer")), (zero, evaluators.PLAYING)]
    answers = [(zero, (0, Evaluated([1.0]))), (one, (0, Evaluated([2.0])))]
    arriving = [messages, answers]
    crew.workers = types.SimpleNamespace(
        members=[zero, one], send=lambda *facts: None, receive_from_survivors=lambda timeout: (arriving.pop(0), [])
    )
    crew._start = lambda name: types.SimpleNamespace(name=name)
    crew.bus = types.SimpleNamespace(publish=lambda policy, clock: None)
    crew.begin(None, Clock(), 0)
    assert crew.result() is None and crew.result().returns == [1.0, 2.0]
    assert capsys.readouterr().out == "  note: a game is long\n"


def test_games_that_are_cut_are_never_called_full(tmp_path, capsys):
    """Each of two environments plays two games, the first of which never ends. Those that end at the limit are full."""
    path = run(tmp_path / "run")
    capsys.readouterr()
    assert _dispatch(["evaluate", str(path), "episodes=16", "max_episode_steps=12"]) == 0
    out = capsys.readouterr().out
    assert "over 16 games, 5 to 12" in out
    assert "  8 of these games were cut after 12 steps, so that this is not the score of full games\n" in out
    assert _dispatch(["evaluate", str(path), "episodes=16", "max_episode_steps=5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["cut_games"], told["max_episode_steps"], set(told["returns"])) == (8, 5, {5.0})
    assert rlrun.evaluate(path, episodes=8, max_episode_steps=9)["cut_games"] == 8
    own = run(tmp_path / "own", "+env.kwargs.breaks_off=8")
    capsys.readouterr()
    assert _dispatch(["evaluate", str(own), "episodes=4", "max_episode_steps=12"]) == 0
    out = capsys.readouterr().out
    assert "over 4 full games, 8 to 8" in out and "were cut" not in out, "the environment breaks them off by itself"


def test_a_limit_of_the_environment_is_not_made_longer(tmp_path):
    path = run(tmp_path / "run", "env.max_episode_steps=7")
    told = rlrun.evaluate(path, episodes=4, max_episode_steps=50)
    assert told["returns"] == [7.0] * 4 and told["cut_games"] == 0
    assert rlrun.evaluate(path, episodes=4, max_episode_steps=6)["cut_games"] == 4
    assert "cut_games" not in rlrun.evaluate(path, episodes=4)


def doors_of(path, monkeypatch):
    """Whether only installed packages may be named in the games of a run against a random player."""
    seen = set()

    def games(self, *args):
        seen.add(plugins._Door.closed)
        return real(self, *args)

    real = Evaluator.games
    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "games", games)
        assert rlrun.evaluate([path, "random"], episodes=4)["players"]
    return seen


def test_games_of_several_players_are_cut_too(tmp_path, capsys, monkeypatch):
    game = ["env=RockPaperScissors-v0", "env.time_limit=termination", "algo=multi"]
    inner = [f"algo.inner.{name}=20" for name in ("fragment_length", "batch_size", "minibatch_size")]
    path = tmp_path / "run"
    small = ["logger=[]", "resources=debug", "model.hidden=[8]", "env_steps=20"]
    assert _dispatch(["train", *game, *inner, *small, f"run_dir={path}"]) == 0
    capsys.readouterr()
    assert _dispatch(["evaluate", str(path), "random", "episodes=4", "max_episode_steps=3"]) == 0
    assert "  4 of these games were cut after 3 steps, so that" in capsys.readouterr().out
    assert doors_of(path, monkeypatch) == {False}, "a run that was made here may name the user's own modules"
    (path / ".config.yaml.signature").unlink()
    assert doors_of(path, monkeypatch) == {True}, "a run from elsewhere may not"
    told = rlrun.evaluate(path, episodes=4, opponent="random", max_episode_steps=3)
    assert told["cut_games"] == 4 and told["episode_length_mean"] == 3.0


def test_an_option_of_the_environment_is_refused_with_what_works(tmp_path):
    path = run(tmp_path / "run")
    with pytest.raises(UserError, match=r"in its own environment; max_episode_steps=N cuts games after N steps; "):
        _dispatch(["evaluate", str(path), "env.max_episode_steps=50"])


@pytest.mark.parametrize("words, noted", [
    (["eval.every=20"], True),
    ([], False),
    (["eval.every=20", "env.max_episode_steps=50"], False),
    (["eval.every=20", "+env.kwargs.max_steps=9"], False),  # the environment's own, which it tells
    (["eval.every=20", "env=CartPole-v1"], False),
    (["eval.every=20", "env=CliffWalking-v1"], True),
    (["eval.every=20", "env=RockPaperScissors-v0"], False),
    (["eval.every=20", "env=Pong"], False),
])  # fmt: skip
def test_a_run_begins_with_a_note_where_nothing_limits_games(words, noted):
    if "env=Pong" in words:
        pytest.importorskip("ale_py")
        small = ["algo=pg", "logger=[]", "resources=debug"]
    else:
        small = WORDS
    told = notes(checked(type_config(compose(*small, "env=tests/Corridor-v0", *words))))
    about = [note for note in told if "nothing that limits the length of a game" in note]
    assert len(about) == noted and all("env.max_episode_steps=N is a limit" in note for note in about)
