"""act() of environments with several agents: it sees what training saw, and plays what is legal."""

import gymnasium
import numpy as np
import pytest
import torch
from test_export import made

from rlrun import load
from rlrun.cli import _dispatch
from rlrun.core.seeding import Seeds
from rlrun.envs.registry import Factory
from rlrun.runtime.fitting import make_spec
from rlrun.samplers.evaluator import to_torch

PPO = ["algo=ppo", "algo.fragment_length=16", "algo.batch_size=32", "algo.minibatch_size=16", "algo.num_epochs=1", "model.hidden=[8]"]
MEMORY = ["model/memory=lstm", "model.memory.size=4", "model.memory.prev_action=true", "algo.sequence_length=8"]


def trained(path, *words):
    assert _dispatch(["train", *words, "resources=debug", "logger=[]", f"run_dir={path}"]) == 0
    return load(path)


@pytest.mark.parametrize("where", ["entry", "info", "info of a", "nested"])
def test_legal_actions_are_needed_wherever_they_are_told(tmp_path, where):
    policy = trained(tmp_path / "run", *PPO, "env=zoo:Choices", f"env.kwargs={{where: '{where}'}}", "env_steps=64")
    env = policy.make_env()
    obs, infos = env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action_mask of a is missing, which is in (what the environment shows|its info)"):
        policy.act({"a": obs["a"]["observation"]} if where == "entry" else obs)
    while env.agents:
        for a in env.agents if where != "entry" else ():
            if "action_mask" in infos[a]:
                obs[a] = {"observation": obs[a], "action_mask": infos[a]["action_mask"]}
        obs, _, _, _, infos = env.step(policy.act({a: obs[a] for a in env.agents}))  # it refuses an illegal action


@pytest.mark.parametrize("wrapped", [False, True])
def test_agents_that_wait_remember_what_they_did_in_training(tmp_path, wrapped):
    """wrapped: act() is given the game inside of PettingZoo's parallel wrapper."""
    conversions = pytest.importorskip("pettingzoo.utils.conversions") if wrapped else None
    policy = trained(tmp_path / "run", *PPO, *MEMORY, "env=turns_zoo:OpenTurns", "env_steps=64")
    cfg = policy.config.env
    rows = Factory(cfg=cfg, spec=policy.spec, seeds=Seeds(0), stream="eval", learning=False)(0, 1)
    seen, first = to_torch(rows.reset(0)).clone(), torch.ones(2, dtype=torch.bool)
    state = policy.policy.initial_state(2)
    env = policy.make_env()
    env.reset(seed=0)
    given = conversions.turn_based_aec_to_parallel(env) if wrapped else env
    with pytest.raises(ValueError, match=r"take turns: act\(obs, env=env\)"):
        policy.act({agent: env.observe(agent) for agent in env.agents})
    for move in range(8):
        act = policy.policy.act(seen, first, state, policy.clock, "greedy", policy.rng)
        mover = env.agent_selection
        actions = policy.act({agent: env.observe(agent) for agent in env.agents}, env=given)
        assert actions[mover] == act.action[env.possible_agents.index(mover)]
        for name, remembered in policy.memory(2).items():
            torch.testing.assert_close(remembered, act.state[name], msg=f"{name} after move {move}")
        step = rows.step(act.action.numpy())
        env.step(actions[mover])
        seen, first, state = to_torch(step.obs).clone(), torch.from_numpy(step.is_first.copy()), act.state


def test_a_call_that_is_refused_leaves_no_frame_and_two_players_count_their_moves(typed):
    words = ["algo=ppo", "env=RockPaperScissors-v0", "env.stack=2", "model/memory=lstm", "model.memory.prev_reward=true", "model.hidden=[8]"]
    policy = made(typed, *words, "model.memory.size=4", "algo.sequence_length=8")
    seen = [dict.fromkeys(policy.agents, np.eye(4, dtype=np.float32)[one]) for one in (3, 0)]
    policy.act(seen[0])
    with pytest.raises(ValueError, match="reward"):
        policy.act(seen[1])
    policy.act(seen[1], reward=dict.fromkeys(policy.agents, 0.0))
    assert policy.last.frames[0].argmax(-1).tolist() == [3, 0]

    search = ["algo=alphazero", "env=TicTacToe-v0", "algo.search.simulations=4", "algo.temperature_moves=2", "model.hidden=[8]"]
    policy = made(typed, *search)
    env = policy.make_env()
    env.reset()
    for move in range(4):
        mover = env.agent_selection
        env.step(policy.act({mover: env.observe(mover)}, mode="explore", env=env)[mover])
        assert policy._state["moves"].tolist() == [move + 1] * 2


def test_agents_with_masks_in_infos_cannot_be_put_together():
    env = gymnasium.make("rlrun/Grouped-v0", game="zoo:Choices", where="info")
    with pytest.raises(ValueError, match="masks of legal actions"):
        env.reset(seed=0)


def test_a_registered_environment_shows_the_state_of_its_own(typed):
    for name in ("zoo:StateOfTuple", "zoo:StateOfTuple-v0"):
        config = typed("algo=ppo", f"env={name}", "model.share_value=false", "model.value_sees=state")
        assert make_spec(config, config.algorithm.needs(config.algo)).obs["state"].shape == (7 + 2,), f"{name}: the state and the agent's number"


def test_a_policy_whose_agents_never_play_is_named(tmp_path, capsys):
    words = ["algo=multi", "algo@algo.inner=dqn", "env=zoo:Absent", "algo.inner.learning_starts=40", "env_steps=200", "model.hidden=[8]"]
    trained(tmp_path / "run", *words)
    assert "nothing was learnt, because the agents of c took part in no step" in capsys.readouterr().out


def test_cycles_of_turns_are_as_many_moves_as_there_are_agents(typed, monkeypatch):
    monkeypatch.setattr("turns_zoo.Turns.max_cycles", 4, raising=False)
    config = typed("algo=ppo", "env=turns_zoo:Turns")
    assert make_spec(config, config.algorithm.needs(config.algo)).max_episode_steps == 8
