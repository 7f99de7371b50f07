"""Recording a policy in an environment with several agents."""

import json

import numpy as np
import pytest

from rlrun.cli import _dispatch
from rlrun.core.errors import RunFailed, UserError
from rlrun.datasets.open import open_source

SMALL = ["resources=debug", "logger=[]", "model.hidden=[8]", "algo.fragment_length=8", "algo.batch_size=16",
         "algo.minibatch_size=8", "algo.num_epochs=1"]  # fmt: skip


def test_episodes_are_counted_by_environment_and_an_agent_may_be_absent(tmp_path):
    """Of both environments, the first two episodes are recorded with all that took part in them. c was in the first."""
    run, data = tmp_path / "run", tmp_path / "data"
    words = ["algo=ppo", "env=zoo:CountingAgents", "+env.kwargs.fault=rare", *SMALL, "env_steps=32"]
    assert _dispatch(["train", *words, f"run_dir={run}"]) == 0
    assert _dispatch(["record", str(run), "episodes=4", "num_envs=2", f"to={data}"]) == 0
    source = open_source(str(data))
    found = [one for piece in range(source.pieces()) for one in source.read(piece)]
    assert all(one.whole for one in found)
    named = sorted(("abc"[one.agent], int(one.obs["observation"][0, 1]), one.steps) for one in found)
    assert named == sorted(
        2 * [("a", 0, 3), ("a", 1, 3), ("b", 0, 6), ("b", 1, 6), ("c", 0, 4)]
    )


def test_probabilities_of_policies_that_do_not_learn_and_of_single_agents_returns(tmp_path, capsys):
    data = tmp_path / "data"
    words = ["algo=multi", "env=RockPaperScissors-v0", "++algo.fixed={player_1: random}", *(word.replace("algo.", "algo.inner.") for word in SMALL)]
    assert _dispatch(["train", *words, "env_steps=32", f"record={data}", f"run_dir={tmp_path / 'run'}"]) == 0
    source = open_source(str(data))
    found = [one for piece in range(source.pieces()) for one in source.read(piece) if one.agent == 1]
    assert found and all(one.has_log_prob for one in found)
    for one in found:
        np.testing.assert_allclose(np.exp(one.record["log_prob"][one.valid]), 1 / 3, rtol=1e-5)
    capsys.readouterr()
    assert _dispatch(["data", str(data)]) == 0
    assert ", of one agent each" in capsys.readouterr().out
    with pytest.raises(UserError, match="each trajectory here is one agent's"):
        _dispatch(["data", str(data), "random_return=0", "expert_return=1"])


def test_episodes_that_end_for_nobody_are_told(tmp_path):
    run = tmp_path / "run"
    words = ["algo=ppo", "env=zoo:CountingAgents", "+env.kwargs.fault=silent", *SMALL, "env_steps=32"]
    assert _dispatch(["train", *words, f"run_dir={run}"]) == 0
    with pytest.raises(RunFailed, match="without saying that any agent was terminated or truncated"):
        _dispatch(["record", str(run), "episodes=4", f"to={tmp_path / 'data'}"])


@pytest.mark.parametrize("algo", ["ppo", "vdn"])
@pytest.mark.parametrize("counted, ret", [("[]", 6 + 621 + 818), ("[a,c]", 6 + 818)])
def test_the_mean_return_is_that_of_whole_episodes(algo, counted, ret, tmp_path, capsys):
    """It is the sum over the agents that count. Recording ends in the middle of an episode, in which a has died."""
    run = tmp_path / "run"
    sizes = SMALL if algo == "ppo" else ["resources=debug", "logger=[]", "algo.num_envs=1"]
    words = [f"algo={algo}", "env=zoo:CountingAgents", *sizes, f"env.return_of={counted}", "env_steps=16"]
    assert _dispatch(["train", *words, f"run_dir={run}"]) == 0
    for much in ("episodes=3", "env_steps=30"):
        capsys.readouterr()
        assert _dispatch(["record", str(run), much, "num_envs=2", f"to={tmp_path / much}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["return_mean"] == ret
