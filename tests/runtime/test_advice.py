"""The note on large observations, which names an option that the run has."""

import gymnasium
import numpy as np
import pytest
from wired import checked

from rlrun.runtime.advice import notes


class Large(gymnasium.Env):
    """Observes numbers in the thousands."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([2000.0, 1.0], np.float32), {}

    def step(self, action):
        return np.array([2000.0, 1.0], np.float32), 0.0, False, False, {}


class Picture(Large):
    """Shows pixels."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full((8, 8, 3), 200, np.uint8), {}

    def step(self, action):
        return np.full((8, 8, 3), 200, np.uint8), 0.0, False, False, {}


gymnasium.register("tests/Large-v0", entry_point=Large, max_episode_steps=20)
gymnasium.register("tests/Picture-v0", entry_point=Picture, max_episode_steps=20)
FILTER, WRAPPER = "model.observation_filter=mean_std normalises them", "a wrapper (env.wrappers) can scale them"


@pytest.mark.parametrize(
    "algo, words, said",
    [
        ("ppo", [], FILTER),
        ("ppo", ["model.observation_filter=mean_std"], None),
        ("lin_ucb", [], WRAPPER),
        ("dreamer", [], WRAPPER),
        ("rnd", ["algo@algo.inner=dreamer", "model=gaussian_world_model"], WRAPPER),
        ("dreamerv3", ["model.symlog=false"], WRAPPER),
        ("dreamerv3", [], None),  # symlog makes 7.6 of 2000
    ],
)
def test_large_observations_get_a_note_that_this_run_can_follow(typed, algo, words, said):
    told = notes(checked(typed(f"algo={algo}", "env=tests/Large-v0", "logger=[]", *words)))
    about = [note for note in told if note.startswith("observations of tests/Large-v0 reach 2e+03")]
    assert len(about) == (said is not None) and all(note.endswith(said) for note in about)


@pytest.mark.parametrize("words", [["model=mlp"], []])
def test_pixels_get_the_note_where_no_convolutions_divide_them(typed, words):
    told = notes(checked(typed("algo=dqn", "env=tests/Picture-v0", "logger=[]", *words)))
    about = [note for note in told if note.startswith("observations of tests/Picture-v0 reach 200")]
    assert len(about) == len(words) and all(note.endswith(FILTER) for note in about)


def test_a_store_that_only_mlflow_s_own_variable_names_has_a_note(typed, monkeypatch):
    """Rows would go elsewhere than the user thinks, without a word."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@server:5000")

    def noted(*words):
        return [n for n in notes(checked(typed("algo=ppo", "env=CartPole-v1", *words))) if "MLFLOW_TRACKING_URI" in n]

    (note,) = noted("logger=[mlflow]")
    assert "logger.mlflow.uri=http://" in note and "secret" not in note
    assert noted("logger=[mlflow]", "logger.mlflow.uri=http://server:5000") == noted("logger=[]") == []
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert noted("logger=[mlflow]") == []
