"""Exported policies of agents with unlike action spaces: a file gives every agent its own actions, or says what becomes
of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_export import made

from rlrun.core.errors import RunFailed
from rlrun.core.spec_json import spec_to_json
from rlrun.core.specs import Discrete
from rlrun.datasets.trajectories import without_previous
from rlrun.envs import registry
from rlrun.envs.recorded import RecordedConfig, recorded_options
from rlrun.envs.recorded import make_spec as of_data
from rlrun.runtime.export import describe, observed, parity, rows_of
from rlrun.runtime.export_files import opening
from rlrun.runtime.exported_policy import Exported, example, parts_of
from rlrun.runtime.played_env import environment_of
from rlrun.runtime.trained import Trained

PAIRS = "algo.policies={first: a, others: [b, c]}"


@pytest.mark.parametrize(
    "words, kind, as_taken",
    [
        (["algo=multi", PAIRS], "bounds", True),
        (["algo=multi", PAIRS], "length", True),
        (["algo=multi", PAIRS], "start", True),
        (["algo=ppo"], "bounds", False),
        (["algo=ppo"], "length", False),
        (["algo=ppo"], "start", False),
        (["algo=qmix"], "start", True),
        (["algo=maddpg"], "bounds", True),
        (["algo=maddpg"], "length", False),
    ],
)
def test_every_agent_gets_the_actions_that_act_gives_it(words, kind, as_taken, typed):
    trained = made(typed, *words, "env=zoo:UnlikeAgents", f"+env.kwargs.kind={kind}", "model.hidden=[8]")
    joint, spaces = trained.spec.joint, {agent: own.action for agent, own in trained.agents.items()}
    rng = np.random.default_rng(0)
    seen = {agent: rng.normal(size=3).astype(np.float32) for agent in "abc"}
    own = trained.act(seen)
    game = observed(trained, 5)
    for part in parts_of(trained)[0]:
        exported = Exported(part.trained)
        assert part.as_taken == as_taken and parity(part.trained, exported, game=rows_of(part, game)) <= 1e-5
        obs, first, state = example(part.trained, 1 if joint else len(part.agents))
        obs["observation"] = torch.tensor(np.stack([seen[agent] for agent in part.agents])).view(obs["observation"].shape)
        if kind == "start":
            legal = [[choice < spaces[agent].n for choice in range(3)] for agent in part.agents]
            obs["action_mask"] = torch.tensor(legal, dtype=torch.int64).view(obs["action_mask"].shape)
        if joint:
            obs["alive"] = torch.ones_like(obs["alive"])
        actions = exported(obs, first, state)[0]["action"]
        told = describe(part, ("pt2",))
        assert ("action_spaces" in told) != as_taken
        for agent, given in zip(part.agents, actions[0] if joint else actions, strict=True):
            space = spaces[agent]
            if not as_taken and isinstance(space, Discrete):
                given = given + space.start
                assert told["action_spaces"][agent] == ("Discrete(3)" if agent == "a" else "Discrete(2) from 5 on")
            elif not as_taken:
                low, high = np.array(space.low), np.array(space.high)
                given = low + (given[: space.size].numpy() + 1) / 2 * (high - low)
                assert told["action_spaces"][agent].endswith(f"from {low[0]:g} to {high[0]:g}")
            assert np.shape(given) == np.shape(own[agent]) and np.allclose(given, own[agent], atol=1e-5)
        exported.action = trained.spec.action  # that of all agents
        if as_taken and part.agents != ["a"]:
            with pytest.raises(RunFailed, match="does not act as the run's own does"):
                parity(part.trained, exported, game=rows_of(part, game))


def test_agents_numbers_are_explained_and_agents_of_data_are_named(typed):
    trained = made(typed, "algo=ppo", "env=TwoStepGame-v0", "env.agent_id=true", "model.hidden=[8]")
    (part,) = parts_of(trained)[0]
    meaning = describe(part, ("pt2",))["obs"]["observation"]["meaning"]
    assert meaning == f"its last 2 numbers say which agent it is: 1 for one of {', '.join(trained.agents)}, in this order"
    trained = made(typed, "algo=ppo", "env=zoo:UnlikeAgents", "+env.kwargs.kind=bounds", "model.hidden=[8]")
    recorded = RecordedConfig(name=trained.spec.name, family="data", spec=spec_to_json(trained.spec), options=None, reward_clip="none")
    learnt = Trained(trained.run_dir, replace(trained.config, env=recorded), of_data(recorded), trained.policy, trained.clock)
    (part,) = parts_of(learnt)[0]
    assert part.agents == list("abc") and not part.as_taken
    with pytest.raises(ValueError, match="this run learnt from data, which do not say what each agent sees"):
        learnt.act({agent: np.zeros(3, np.float32) for agent in "abc"})


@pytest.mark.parametrize("words", [["algo=alphazero", "env=TicTacToe-v0"], ["algo=ppo", "env=TwoStepGame-v0", "model.value_sees=state"]])
def test_what_learns_from_data_is_played_without_the_parts_that_only_learners_see(words, typed):
    """Sets of earlier versions hold game_state too."""
    trained = made(typed, *words, "model.hidden=[8]")
    for spec in (trained.spec, without_previous(trained.spec)):
        recorded = RecordedConfig(name=spec.name, family="data", spec=spec_to_json(spec), options=recorded_options(trained.config.env), reward_clip="none")
        config = replace(made(typed, "algo=ppo", f"env={spec.name}", "model.hidden=[8]").config, env=recorded)
        learnt = Trained(trained.run_dir, config, of_data(recorded), trained.policy, trained.clock)
        assert not isinstance(environment_of(learnt), str)
    assert "game_state" not in without_previous(trained.spec).obs


def test_an_export_says_that_it_leaves_out_random_actions(typed):
    words = ["algo=dqn", "env=CartPole-v1", "model.hidden=[8]", "replay.capacity=2000"]
    assert "eval_epsilon=0.05" in opening(made(typed, *words, "algo.exploration.eval_epsilon=0.05"), [])
    assert "eval_epsilon" not in opening(made(typed, *words, "algo.exploration.eval_epsilon=0"), [])


def test_the_note_names_bounds(typed):
    for kind, said in (
        ("bounds", "Box([1], float32) from -1 to 1, Box([1], float32) from -5 to 3; each agent's actions are converted"),
        ("length", "Box([3], float32) from 0 to 10, Box([1], float32) from 0 to 1; smaller ones are padded to Box([3]"),
        ("start", "Discrete(3), Discrete(2) from 5 on; smaller ones are padded to Discrete(3)"),
    ):
        cfg = typed("algo=ppo", "env=zoo:UnlikeAgents", f"+env.kwargs.kind={kind}").env
        (note,) = registry.make_spec(cfg).notes
        assert f"agents have the action spaces {said}" in note
