"""What games in an evaluation have paid, and how a single game is stepped, where some rows are no decisions."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlrun.core.env import Step
from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.envs.single import SingleGame
from rlrun.samplers.evaluator import RunningGames

SPEC = EnvSpec(
    name="any",
    obs={"observation": Box(shape=(1,), dtype="float32", low=(0.0,), high=(9.0,))},
    action=Discrete(n=2),
)


def step(reward, valid=1, terminated=0, truncated=0, is_first=0) -> Step:
    """A step of one environment."""
    ends = (np.array([bool(x)]) for x in (terminated, truncated, valid, is_first))
    return Step({"observation": np.zeros((1, 1))}, np.array([reward], dtype=np.float32), *ends, {})


def test_rows_without_a_decision_are_no_time_and_do_not_change_how_a_game_ended():
    running = RunningGames(SPEC, 1, 0.5)
    for one in (step(1.0), step(4.0, valid=0), step(2.0), step(8.0, truncated=1), step(0.0, valid=0, is_first=1)):
        running.add(one)
    game = running.end(0)
    assert (game.ret, game.length, game.truncated) == (15.0, 3, True)
    assert game.discounted == pytest.approx(1 + 0.5 * 4 + 0.5 * 2 + 0.25 * 8)
    for one in (step(3.0), step(2.0, terminated=1), step(0.0, valid=0, is_first=1)):
        running.add(one)
    game = running.end(0)
    assert (game.ret, game.length, game.truncated, game.discounted) == (5.0, 2, False, 4.0), "nothing is left over"


def test_a_single_game_pays_what_the_rows_paid_that_it_skips():
    steps = [step(1.0, valid=0), step(2.0, valid=0), step(4.0), step(8.0, valid=0, terminated=1)]
    game = SingleGame(SimpleNamespace(spec=SPEC))
    game.env = SimpleNamespace(step=lambda action: steps.pop(0), close=lambda: None)
    assert game.step(0)[1:4] == (7.0, False, False) and game.step(1)[1:4] == (8.0, True, False)
