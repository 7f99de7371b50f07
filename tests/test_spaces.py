"""Every kind of space through samplers, learning, evaluation, resume and rlrun.load."""

import numpy as np
import pytest
from conftest import SMALL
from test_actor_learner import run_wired
from test_samplers import KINDS

from rlrun.core.errors import EnvError
from rlrun.wiring import Wiring

LEARN = ["algo=ppo", "logger=[]", "model.hidden=[64]", "algo.fragment_length=20", "algo.batch_size=320", "algo.minibatch_size=64", "algo.lr=3e-3",
         "algo.discount=0", "resources.device=cpu"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_action_reaches_the_env_as_its_space_says(typed, tmp_path, kind):
    """The environment itself refuses any other."""
    words = ["algo=ppo", "env=rlrun/EverySpace-v0", "logger=[]", "model.hidden=[8]", "algo.fragment_length=5", "algo.batch_size=20",
             "algo.minibatch_size=10", "resources.device=cpu", "resources.envs_per_sampler=2", "env_steps=400", "algo.kl_coef=0.2"]  # fmt: skip
    _, job, rows = run_wired(Wiring(typed(*words, *KINDS[kind])), tmp_path)
    assert job.status == "COMPLETED" and rows[-1]["sample/episode_length_mean"] == 20


@pytest.mark.parametrize("more", [[], ["model.action_distribution=beta"], ["model.action_distribution=squashed_gaussian"]])
def test_all_parts_of_an_action_are_learnt_together(typed, tmp_path, more):
    """Of 60 a random policy gets about 12."""
    words = ["env=rlrun/EverySpace-v0", "resources=debug", "env_steps=200000", "stop.return_mean=48", "log_every_sec=1"]
    _, job, _ = run_wired(Wiring(typed(*LEARN, *words, *more)), tmp_path)
    assert job.status == "STOPPED", job.episodes.mean


def test_masks_are_obeyed_and_used(typed, tmp_path):
    """The environment raises on an illegal action. Of 10 a random legal policy gets 5."""
    _, job, _ = run_wired(Wiring(typed(*LEARN, "env=rlrun/Masked-v0", "resources=debug", "env_steps=60000", "stop.return_mean=6.5")), tmp_path)
    assert job.status == "STOPPED", job.episodes.mean


def test_a_mask_without_legal_actions_ends_the_run_with_a_sentence(typed, tmp_path):
    with pytest.raises(EnvError, match=r"Masked-v0, env \d \(seed \d+\).*no legal action"):
        run_wired(Wiring(typed(*LEARN, "env=rlrun/Masked-v0", "resources=debug", "++env.kwargs.stuck=later")), tmp_path)


@pytest.mark.parametrize("env", ["rlrun/EverySpace-v0", "rlrun/Masked-v0", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"])
def test_trained_policies_resume_evaluate_and_load(tmp_path, env, capsys):
    import gymnasium
    from test_session import resume, train

    import rlrun.envs.debug  # noqa: F401
    from rlrun.commands.evaluate import main as evaluate
    from rlrun.trained import load

    if env not in gymnasium.registry:
        env = env.replace("-v4", "-v3")
    path = tmp_path / "run"
    assert train(path, f"env={env}", "env_steps=300", "env.max_episode_steps=30") == 0
    assert resume(path, "env_steps=600") == 0
    assert evaluate([str(path), "episodes=3"]) == 0 and "over 3 full games" in capsys.readouterr().out
    trained = load(path)
    game = trained.make_env()
    obs, _ = game.reset(seed=0)
    for _ in range(5):
        action = trained.act(obs)
        assert game.action_space.contains(action)
        obs, _, terminated, truncated, _ = game.step(action)
        if terminated or truncated:
            obs, _ = game.reset()
            trained.reset()
    game.close()


def test_flattening_keeps_every_number(typed):
    from rlrun.models.encoders import flat_size, flatten
    from rlrun.samplers.evaluator import to_torch

    wiring = Wiring(typed("algo=ppo", "env=rlrun/EverySpace-v0", *SMALL, "algo.minibatch_size=10"))
    env = wiring.make_env(0, 3)
    rows = env.reset(0)
    space = wiring.spec.observation
    flat = flatten(space, to_torch(rows)["observation"])
    assert flat.shape == (3, flat_size(space)) == (3, 3 + 5 + 1 + 2)
    seen = rows["observation"]
    for b in range(3):
        expected = [*np.eye(3)[seen["0"][b]], *np.eye(2)[seen["1"][b][0]], *np.eye(3)[seen["1"][b][1]]]
        expected += [float(x) for name in ("flags", "number") for x in np.atleast_1d(seen["2"][name][b])]
        np.testing.assert_allclose(flat[b].numpy(), expected, rtol=1e-6)
    env.close()
