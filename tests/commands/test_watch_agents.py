"""rlrun watch draws environments with several agents, whichever way a run sees them."""

import itertools

import numpy as np
import pytest
from conftest import small

import rlrun
from rlrun.cli import _dispatch
from rlrun.commands.watch import DEFAULTS, WatchOptions, record
from rlrun.core.errors import UserError

PPO = ["algo=ppo", "model.hidden=[8]", "algo.fragment_length=8", "algo.batch_size=16", "algo.minibatch_size=8"]
OPTIONS = WatchOptions(**DEFAULTS, episodes=2, max_steps=200, gif=False, imagine=False, window=False)


def watched(words, path):
    """The frames and the returns of a run of these words that has hardly learnt."""
    assert _dispatch(["train", *words, "resources=debug", "logger=[]", "env_steps=16", f"run_dir={path}"]) == 0
    frames: list = []
    returns = record(rlrun.load(path), OPTIONS, lambda frame, rate: frames.append(frame) is None)
    assert len({frame.shape for frame in frames}) == 1 and frames[0].shape[-1] == 3
    return np.stack(frames), returns


@pytest.mark.parametrize("words", [PPO, small("qmix", "tiny")], ids=["ppo", "qmix"])
def test_every_step_is_drawn_and_the_return_is_of_the_agents_that_count(words, tmp_path):
    """The maker takes no render_mode. a is paid 1 + 2 + 3, and the picture shows the step."""
    frames, returns = watched([*words, "env=zoo:DrawnAgents", "env.return_of=[a]"], tmp_path / "run")
    assert returns == [6.0, 6.0] and frames[:, 0, 0, 0].tolist() == [*range(7), *range(7)]


def test_copies_are_drawn_side_by_side(tmp_path):
    pytest.importorskip("pygame")
    frames, _ = watched([*PPO, "env=MultiAgentCartPole-v0", "+env.kwargs.num_agents=3"], tmp_path / "run")
    assert frames.shape[1:] == (400, 1800, 3) and (frames[-1] != frames[0]).reshape(400, 3, -1).any((0, 2)).all()


def test_a_search_has_the_state_of_the_drawn_game(tmp_path):
    words = [*small("alphazero", "tiny"), "env=TicTacToe-v0", "model=mlp"]
    frames, returns = watched(words, tmp_path / "run")
    pieces = (frames[:, 16::32, 16::32] != [235, 235, 220]).any(-1).sum((1, 2))
    begins = [*np.flatnonzero(pieces == 0), len(pieces)]
    for begin, end in itertools.pairwise(begins):
        assert pieces[begin:end].tolist() == list(range(end - begin)), "a piece more in every picture"
    assert returns == [0.0, 0.0] and len(begins) == 3


def test_a_package_s_game_is_drawn_for_all_agents_in_one_column(tmp_path):
    pytest.importorskip("mpe2")
    frames, returns = watched([*small("qmix", "tiny"), "env=simple_spread_v3"], tmp_path / "run")
    assert len(frames) == 2 * 26 and len(returns) == 2 and (frames[0] != frames[26]).any()


def test_a_game_without_pictures_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"TwoStepGame-v0 cannot be drawn: its render\(\) returns no picture"):
        watched([*PPO, "env=TwoStepGame-v0"], tmp_path / "run")
