"""Centralised critics (MAPPO): the value sees the state of all agents, and acting does not."""

import dataclasses

import numpy as np
import pytest
import torch
from wired import Wired

import rlrun
from rlrun.cli import _dispatch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.specs import Agents, Box, Discrete, EnvSpec
from rlrun.models.model import Model
from rlrun.policies import DistributionPolicy

SMALL = [
    "env=MultiAgentCartPole-v0",
    "logger=[]",
    "resources=debug",
    "model.hidden=[8]",
    "algo.fragment_length=8",
    "algo.batch_size=16",
]
CENTRAL = ["model.value_sees=state"]
LSTM = ["model/memory=lstm", "model.memory.size=6"]
FILTER = ["model.observation_filter=mean_std"]
KINDS = {"plain": {}, "lstm": {"ppo": [*LSTM, "algo.sequence_length=4"], "a2c": LSTM}, "filter": dict.fromkeys(("ppo", "a2c"), FILTER)}
PPO = ["algo=ppo", "algo.minibatch_size=8", "algo.num_epochs=2"]
ALGOS = {"ppo": PPO, "a2c": ["algo=a2c"], "impala": ["algo=impala", "resources.inference=serial"]}


def collected(typed, *words):
    wiring = Wired(typed(*SMALL, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    return wiring, made, sampler.take(1)[0].batch.clone()


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("algo", ["ppo", "a2c"])
def test_for_a_team_of_one_whose_state_is_its_observation_nothing_changes(typed, algo, kind):
    """MAPPO is then PPO, to the bit, over two updates. A filter of observations is the state's too."""
    one, words = "++env.kwargs={num_agents: 1}", [*ALGOS[algo], *KINDS[kind].get(algo, [])]
    runs = [collected(typed, *words, one, *more) for more in ([], CENTRAL)]
    for number in range(2):
        told = [made.update(batch, Clock(updates=number)).metrics for _, made, batch in runs]
        assert {k: float(v) for k, v in told[0].items()} == {k: float(v) for k, v in told[1].items()}
        for _, made, batch in runs:
            made.absorb_rows([made.policy.moments(batch)])
    own, central = (made.policy.state_dict() for _, made, _ in runs)
    assert all(torch.equal(own[key], central[key]) for key in own)
    assert (kind == "filter") == any(key.startswith("state_filter") for key in central), "it is saved with the policy"


def test_rows_hold_the_state_of_all_and_the_agents_number(typed):
    _, _, batch = collected(typed, *PPO, *CENTRAL, "++env.kwargs={num_agents: 3}")
    state, seen = batch.obs["state"], batch.obs["observation"]
    assert state.shape[-1] == 3 * 4 + 3
    by_env = seen.unflatten(1, (-1, 3))  # [T + 1, E, 3, 4]
    together = by_env.flatten(2).repeat_interleave(3, 1)
    assert torch.equal(state[..., :12], together)
    assert torch.equal(state[..., 12:], torch.eye(3).repeat(state.shape[1] // 3, 1).expand(*state.shape[:2], 3))


def test_the_value_depends_on_all_agents_and_the_action_on_its_own(typed):
    _, made, batch = collected(typed, *PPO, *CENTRAL)
    rows = batch.sequences(1)
    dist, value = made.policy.unroll(rows)
    state = rows.obs["state"].clone()
    state[..., 4:8] += 1.0  # what the second agent sees
    other_dist, other = made.policy.unroll(rows.replace(obs=rows.obs.replace(state=state)))
    assert (value != other).all() and torch.equal(dist.log_probs, other_dist.log_probs)
    seen = rows.obs["observation"] + 1.0
    other_dist, other = made.policy.unroll(rows.replace(obs=rows.obs.replace(observation=seen)))
    assert torch.equal(value, other) and not torch.equal(dist.log_probs, other_dist.log_probs)


@pytest.mark.parametrize("algo", list(ALGOS))
def test_a_run_trains_and_acts_without_a_state(tmp_path, algo):
    path, more = tmp_path / "run", FILTER if algo == "ppo" else []
    assert _dispatch(["train", *SMALL, *ALGOS[algo], *CENTRAL, *more, "env_steps=64", f"run_dir={path}"]) == 0
    seen = {f"agent_{i}": np.full(4, 0.01, dtype=np.float32) for i in range(2)}
    assert set(rlrun.load(path).act(seen)) == set(seen)
    assert _dispatch(["evaluate", str(path), "episodes=2"]) == 0
    assert _dispatch(["export", str(path), "--formats", "pt2", "--dir", str(tmp_path / "out")]) == 0


def test_an_environments_own_state_is_used(typed):
    pytest.importorskip("mpe2")
    wiring = Wired(typed(*SMALL, *PPO, *CENTRAL, "env=simple_spread_v3"))
    assert wiring.spec.obs["state"].shape == (54 + 3,)


@pytest.mark.parametrize("changes", [
    {"encoder": "nature_cnn"}, {"encoder": "impala_resnet"}, {"conv_filters": ((4, 4, 2),), "conv_padding": "same"},
    {"conv_activation": "elu", "conv_hidden": (8,)},
])  # fmt: skip
def test_values_of_a_state_of_numbers_have_no_convolutions(typed, changes):
    """Convolutions are for what the agents see. Where no hidden layers stand behind these, the values have some."""
    seen = Box(shape=(3, 40, 40), dtype="uint8", low=(0.0,), high=(255.0,))
    state = Box(shape=(10,), dtype="float32", low=(-1.0,), high=(1.0,))
    agents = Agents(groups=(("agent", ("a", "b")),))
    spec = EnvSpec(name="x", obs={"observation": seen, "state": state}, action=Discrete(n=3), agents=agents)
    cfg = typed(*PPO, *SMALL, *CENTRAL).run.model
    policy = DistributionPolicy(spec, Model(dataclasses.replace(cfg, hidden=(), activation="relu", **changes)))
    parts = list(policy.value_trunk.modules())
    assert [part.out_features for part in parts if isinstance(part, torch.nn.Linear)] == [256, 256]
    assert not any(isinstance(part, torch.nn.Conv2d) for part in parts)
    assert any(isinstance(part, torch.nn.Conv2d) for part in policy.trunk.modules())


def test_agents_numbers_are_part_of_what_they_see(typed):
    _, made, batch = collected(typed, *PPO, "env.agent_id=true", "++env.kwargs={num_agents: 3}")
    seen = batch.obs["observation"]
    assert seen.shape[-1] == 7
    assert torch.equal(seen[..., 4:], torch.eye(3).repeat(seen.shape[1] // 3, 1).expand(*seen.shape[:2], 3))
    same = seen[:1].clone()
    same[..., :4] = 0.1
    dist, _ = made.policy.unroll(batch.replace(obs=batch.obs.replace(observation=same), is_first=batch.is_first[:1]))
    logits = dist.log_probs[0, :3]
    assert not torch.equal(logits[0], logits[1]), "agents that see the same may act differently"


@pytest.mark.parametrize("words, said", [
    (["env=CartPole-v1"], "model.value_sees=state is for environments with several agents; CartPole-v1 has one"),
    (["model.share_value=true"], "set share_value=false"),
    (["env=zoo:ImageAgents"], "env.agent_id=true is for observations that are vectors"),
])  # fmt: skip
def test_what_does_not_fit_gets_a_sentence(typed, words, said):
    more = ["env.agent_id=true"] if words[0].startswith("env=zoo") else CENTRAL
    with pytest.raises(UserError, match=said):
        Wired(typed(*SMALL, *PPO, *more, *words))
