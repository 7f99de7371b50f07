"""Runs that begin with the weights of another one say where these compute something else."""

import pytest
from conftest import compose

from rlrun.config.types import save_yaml
from rlrun.runtime.given_weights import other_functions

PPO, SAC = ("algo=ppo", "env=Pendulum-v1"), ("algo=sac", "env=Pendulum-v1")
DREAMER, DREAMERV3 = ("algo=dreamer", "env=Pendulum-v1"), ("algo=dreamerv3", "env=Pendulum-v1")
C51, ZERO = ("algo=c51", "env=CartPole-v1"), ("algo=alphazero", "env=CartPoleSparse-v0")
OFFSET = (*PPO, "model.free_log_std=false")


@pytest.mark.parametrize("words, theirs, ours", [
    (PPO, "model.activation=relu", "model.activation=elu"),
    (("algo=ppo", "env=CartPole-v1"), "model.temperature=1.0", "model.temperature=2.0"),
    (PPO, "model.action_distribution=squashed_gaussian", "model.action_distribution=beta"),
    (OFFSET, "model.log_std=0.0", "model.log_std=-1.0"),
    (SAC, "model.log_std=0.0", "model.log_std=-1.0"),
    (C51, "algo.v_min=-10.0", "algo.v_min=-5.0"),
    (C51, "algo.v_max=10.0", "algo.v_max=500.0"),
    (ZERO, "algo.ranked.enabled=false", "algo.ranked.enabled=true"),
    (DREAMER, "model.mean_scale=5.0", "model.mean_scale=2.0"),
    (DREAMER, "model.init_std=5.0", "model.init_std=1.0"),
    (DREAMERV3, "model.unimix=0.01", "model.unimix=0.0"),
    (DREAMERV3, "model.max_std=1.0", "model.max_std=2.0"),
    (DREAMERV3, "model.symlog=true", "model.symlog=false"),
])  # fmt: skip
def test_the_same_shapes_with_another_meaning_are_noted(words, theirs, ours, tmp_path):
    save_yaml(compose(*words, theirs), tmp_path / "config.yaml")
    key, value = ours.split("=")
    said = other_functions(compose(*words, ours), tmp_path)
    there = compose(*words, theirs)
    for name in key.split("."):
        there = there[name]
    assert said is not None and said.startswith(f"{key} is ") and f", and {there} in {tmp_path}" in said, value
    assert other_functions(compose(*words, theirs), tmp_path) is None


@pytest.mark.parametrize("words, theirs, ours", [
    (PPO, "model.log_std=0.0", "model.log_std=-1.0"),  # a weight, whose first value alone it is
    ((*PPO, "model.observation_filter=none"), "model.observation_clip=5.0", "model.observation_clip=9.0"),
    (PPO, "algo.lr=1e-3", "algo.lr=1e-4"),
])  # fmt: skip
def test_what_changes_no_function_is_not_noted(words, theirs, ours, tmp_path):
    save_yaml(compose(*words, theirs), tmp_path / "config.yaml")
    assert other_functions(compose(*words, ours), tmp_path) is None
