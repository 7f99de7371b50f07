"""Every algorithm acts greedily and exploring, in evaluations and through rlrun.load()."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from conftest import compose, small
from families import DISCRETE, DREAMING, EVOLVING, NEEDS, REPLAYING, simple
from wired import checked

from rlrun.config.paths import inner_algorithm
from rlrun.config.run import type_config
from rlrun.config.types import save_yaml
from rlrun.core.seeding import Seeds
from rlrun.envs.registry import Factory
from rlrun.runtime import session
from rlrun.runtime.rundir import RunDir
from rlrun.runtime.trained import load
from rlrun.samplers.evaluator import Evaluator

NOISES = {
    **dict.fromkeys(("ddpg", "td3"), ("ou", "gaussian", "parameter_noise")),
    **dict.fromkeys(("dqn", "pqn"), ("epsilon_greedy", "soft_q", "parameter_noise")),
    "apex": ("epsilon_greedy",),
    "apex_ddpg": ("parameter_noise",),
}
CASES = [(algo, kind) for algo in NEEDS for kind in NOISES.get(algo, (None,))]
COLUMNS = 32


def trained(path: Path, algo: str, kind: str | None):
    inner = "inner." if inner_algorithm(algo) else ""
    words = [*small(algo, "tiny"), f"env={simple(algo)}", "env_steps=80", "resources=debug", "logger=[]"]
    words += ["env.max_episode_steps=40", "eval.every=40", "eval.episodes=3", "eval.greedy=false"]
    words += [f"algo.{inner}exploration.kind={kind}"] if kind else []
    words += (
        [f"algo.{inner}exploration.epsilon=0"] if algo in DISCRETE and kind in ("soft_q", "parameter_noise") else []
    )
    words += [f"algo.{inner}exploration.epsilon_min=null"] if algo == "apex" else []
    words += ["algo.inner.exploration.scale_min=null"] if (algo, kind) == ("apex_ddpg", "parameter_noise") else []
    words += [f"algo.{inner}replay_ratio=2"] if algo in REPLAYING and algo not in DREAMING else []
    values = compose(*words, f"run_dir={path}")
    directory = RunDir.create(path)
    save_yaml(values, path / "config.yaml")
    assert session.run(checked(type_config(values)), values, directory, None) == 0
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    assert sum(row.get("eval/return_mean") is not None for row in rows) >= 1
    return load(path)


@pytest.mark.parametrize("algo, kind", CASES)
def test_a_policy_acts_in_both_modes_outside_of_training(tmp_path, algo, kind):
    made = trained(tmp_path / "run", algo, kind)
    seeds = Seeds(1)
    maker = Factory(cfg=made.config.env, spec=made.spec, seeds=seeds, stream="evaluate", learning=False)
    evaluator = Evaluator(maker, 2, seeds)
    games = {mode: evaluator.play(made.policy, 4, mode, made.clock) for mode in ("greedy", "explore")}
    evaluator.close()
    assert all(len(played) == 4 for played in games.values())
    explores = algo not in EVOLVING  # perturbations belong to training: the policy itself has no noise
    space = made.make_env().observation_space
    if isinstance(space, gymnasium.spaces.Dict):
        space.seed(0)
        rows = [space.sample() for _ in range(COLUMNS)]
        obs, single = {name: np.stack([row[name] for row in rows]) for name in space}, rows[0]
    else:
        obs = np.random.default_rng(0).uniform(-1, 1, (COLUMNS, *made.spec.observation.field.shape)).astype(np.float32)
        single = obs[0]

    def first_action(mode: str) -> np.ndarray:
        made.reset()
        return np.asarray(made.act(obs, mode))

    best, drawn = ([first_action(mode) for _ in range(6)] for mode in ("greedy", "explore"))
    assert all(np.array_equal(best[0], other) for other in best)
    assert all(other.shape == best[0].shape for other in drawn)
    assert any(not np.array_equal(best[0], other) for other in drawn) is explores
    made.reset()
    one = [np.asarray(made.act(single, mode)) for mode in ("greedy", "explore", "greedy", "explore")]
    assert all(action.shape == best[0][0].shape for action in one)
    assert np.array_equal(one[0], one[2]) or made.policy.core_spec(), "exploring leaves nothing in greedy actions"
