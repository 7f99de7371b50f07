"""Several policies: each learns as if it were alone, and those that are fixed stay as they are."""

import copy
import json
import types

import numpy as np
import pytest
import torch
from wired import Wired

import rlrun
from rlrun.algos import multi
from rlrun.algos.ppo import PPO
from rlrun.cli import _dispatch
from rlrun.core.algorithm import LearnerContext
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.models.model import Model

CART = ["algo=multi", "env=MultiAgentCartPole-v0", "logger=[]", "resources=debug", "model.hidden=[8]"]
ROLLOUT = [
    "algo.inner.fragment_length=8",
    "algo.inner.batch_size=16",
    "algo.inner.minibatch_size=8",
    "algo.inner.num_epochs=2",
]
REPLAY = ["algo@algo.inner=dqn", "algo.inner.num_envs=2", "algo.inner.learning_starts=16", "algo.inner.batch_size=4", "replay.capacity=64",
          "algo.inner.fragment_length=4"]  # fmt: skip
LSTM = ["model/memory=lstm", "model.memory.size=6", "algo.inner.sequence_length=4"]
RECURRENT = ["algo@algo.inner=r2d2", "model/memory=lstm", "model.memory.size=4", "algo.inner.num_envs=2", "algo.inner.learning_starts=16",
             "algo.inner.batch_size=12", "algo.inner.fragment_length=4", "algo.inner.sequence_length=4", "algo.inner.sequence_stride=4",
             "algo.inner.burn_in=4", "replay.capacity=64"]  # fmt: skip


def collected(typed, *words):
    wiring = Wired(typed(*CART, *words))
    made, sampler = wiring.algorithm(), wiring.sampler(0)
    sampler.publish(made.policy, Clock())
    return wiring, made, sampler.take(1)[0].batch.clone()


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("memory", [[], LSTM], ids=["plain", "lstm"])
def test_independent_ppo_equals_separate_ppos_to_the_bit(typed, memory):
    """Each agent's policy after three updates, beside a PPO that only ever sees this agent's columns."""
    wiring, made, batch = collected(typed, *ROLLOUT, *memory, "++algo.options={agent_1: {lr: 0.01}}")
    alone = {}
    for number, name in enumerate(made.policy.recorded):
        cfg = made.cfg.of(name).cfg
        spec = made.learners[name].spec
        assert spec.agents.names == (name,) and spec.columns_per_env == 1
        policy = PPO.make_policy(spec, Model(wiring.config.run.model, "fp32"), cfg)
        policy.load_state_dict(made.policy.policy(name).state_dict())
        rng = torch.Generator()
        rng.set_state(made.rngs[name].get_state())
        own = PPO(policy, spec, cfg, LearnerContext(torch.device("cpu"), rng))
        columns = torch.arange(number, batch.reward.shape[1], len(made.policy.recorded))
        part = Batch({key: value for key, value in batch.items() if key != "core"}).columns(columns)
        alone[name] = own, part if not memory else part.replace(core=batch.core[name].columns(columns))
    before = {name: [p.clone() for p in own.policy.parameters()] for name, (own, _) in alone.items()}
    for update in range(3):
        told = made.update(batch, Clock(updates=update)).metrics
        for name, (own, part) in alone.items():
            metrics = own.update(part, Clock(updates=update)).metrics
            assert all(float(told[f"{name}/{key}"]) == float(value) for key, value in metrics.items())
    for name, (own, _) in alone.items():
        assert equal(own.policy, made.policy.policy(name)), name
        assert not all(torch.equal(a, b) for a, b in zip(before[name], own.policy.parameters(), strict=True))
    assert float(told["agent_1/lr"]) == pytest.approx(0.01) != float(told["agent_0/lr"])


@pytest.mark.parametrize("memory", [[], LSTM], ids=["plain", "lstm"])
def test_every_agent_acts_with_its_own_policy(typed, memory):
    """The records of a row are those of its agent's policy, and an agent's rows do not depend on other policies."""
    _, made, batch = collected(typed, *ROLLOUT, *memory)
    rows = {}
    for name, part in made.parts(batch):
        dist, value = made.policy.policy(name).unroll(part.sequences(4 if memory else 1))
        rows[name] = part.sequences(4 if memory else 1)
        assert torch.allclose(value, rows[name].value, atol=1e-5)
        assert torch.allclose(dist.log_prob(rows[name].action), rows[name].log_prob, atol=1e-5)
    assert not torch.allclose(rows["agent_0"].value, rows["agent_1"].value, atol=1e-3)


def test_each_policy_learns_from_its_own_replay(typed):
    """Rows that say whose they are, through the replays and back."""
    wiring = Wired(
        typed(
            *CART,
            *REPLAY,
            "replay=prioritized",
            "algo.policies={a: agent_0, b: [agent_1, agent_2]}",
            "++env.kwargs={num_agents: 3}",
        )
    )
    replay, sampler, made = wiring.replay(0), wiring.sampler(0), wiring.algorithm()
    sampler.publish(made.policy, Clock())
    agent = torch.arange(6) % 3
    for _ in range(12):
        (fragment,) = sampler.take(1)
        fragment.batch.reward.copy_(agent.float().expand_as(fragment.batch.reward))
        replay.add(fragment)
        sampler.free([fragment])
    drawn = replay.sample(40, Clock())
    who = drawn.reward[0].round().long()
    assert set(who[:40].tolist()) == {0} and set(who[40:].tolist()) == {1, 2}
    assert len(replay.replays["a"]) == pytest.approx(64, abs=16) and len(replay.replays["b"]) == pytest.approx(
        64, abs=16
    )
    priority = torch.where(torch.arange(80) == 47, 1000.0, 1e-6)
    replay.write(drawn.key, priority=priority)
    again = replay.sample(40, Clock())
    assert (again.key[40:] == drawn.key[47]).float().mean() > 0.3
    parts = dict(made.parts(drawn))
    assert torch.equal(parts["b"].key, drawn.key[40:]) and parts["a"].reward.shape[1] == 40


@pytest.mark.parametrize("explored", [[], ["algo.inner.exploration.epsilon_min=0.01"]], ids=["", "epsilon_min"])
def test_each_policy_learns_from_the_state_that_its_own_replay_drew(typed, explored):
    """The columns of a part are what that policy's replay draws by itself, with the recurrent state. What a policy
    explores with belongs to its state too, and is not stored."""
    wiring = Wired(typed(*CART, *RECURRENT, *explored))
    replay, sampler, made = wiring.replay(0), wiring.sampler(0), wiring.algorithm()
    sampler.publish(made.policy, Clock())
    for _ in range(12):
        (fragment,) = sampler.take(1)
        for name, stored in fragment.batch.core.items():
            now = sampler.collectors[fragment.header.worker].state[name]
            assert len(now) == len(stored) + len(explored)
            assert all(torch.equal(stored[part][-1], now[part].to(stored[part])) for part in stored)
        replay.add(fragment)
        sampler.free([fragment])
    alone = {name: own.sample(3, Clock()) for name, own in copy.deepcopy(replay).replays.items()}
    drawn = replay.sample(3, Clock())
    parts = dict(made.parts(drawn))
    assert list(parts) == ["agent_0", "agent_1"]
    for name, part in parts.items():
        assert any(leaf.abs().sum() > 0 for leaf in part["core"].leaves()), "the state matters"
        for one, other in zip(part["core"].leaves(), alone[name]["core"].leaves(), strict=True):
            assert one.shape[:2] == (1, 3) and torch.equal(one, other)
        assert torch.equal(part.key, alone[name].key) and torch.equal(part.reward, alone[name].reward)
    update = made.update(drawn, Clock())
    assert update.writes["priority"].shape == (6,)


@pytest.mark.parametrize("words", [[*ROLLOUT, *LSTM], REPLAY, RECURRENT], ids=["lstm", "dqn", "r2d2"])
def test_a_resumed_run_goes_on_to_the_bit(tmp_path, words):
    def weights(path):
        return rlrun.load(path).policy.state_dict()

    def train(path, steps, *more):
        assert (
            _dispatch(
                [
                    "train",
                    *CART,
                    *words,
                    "seed=3",
                    "checkpoint.every=64",
                    f"env_steps={steps}",
                    f"run_dir={path}",
                    *more,
                ]
            )
            == 0
        )

    train(tmp_path / "whole", 128)
    train(tmp_path / "cut", 64)
    assert _dispatch(["resume", str(tmp_path / "cut"), "env_steps=128"]) == 0
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert whole.keys() == cut.keys() and all(torch.equal(whole[key], cut[key]) for key in whole)
    assert any(key.startswith("policies.agent_1.") for key in whole)


def test_fixed_policies_do_not_learn_and_may_come_from_another_run(tmp_path, typed, capsys):
    first = tmp_path / "first"
    assert _dispatch(["train", *CART, *ROLLOUT, "env_steps=64", f"run_dir={first}"]) == 0
    old = rlrun.load(first).policy
    fixed = f"++algo.fixed={{agent_1: {first}, agent_2: random}}"
    words = [*ROLLOUT, fixed, "env.kwargs={num_agents: 3}"]
    assert _dispatch(["train", *CART, *words, "env_steps=64", f"run_dir={tmp_path / 'second'}"]) == 0
    new = rlrun.load(tmp_path / "second")
    assert equal(new.policy.policy("agent_1"), old.policy("agent_1"))
    row = json.loads((tmp_path / "second" / "progress.jsonl").read_text().splitlines()[-1])
    assert {key.split("/")[1] for key in row if key.startswith("learn/agent")} == {"agent_0"}
    assert "sample/return/agent_2" in row
    seen = {f"agent_{i}": np.zeros(4, dtype=np.float32) for i in range(3)}
    drawn = []
    for _ in range(30):
        drawn.append(new.act(seen)["agent_2"])
    assert set(drawn) == {0, 1}, "a random policy stays random in evaluation"
    alone = rlrun.load(first)
    assert _dispatch(["evaluate", str(tmp_path / "second"), "episodes=2"]) == 0
    (tmp_path / "shared").mkdir()
    with pytest.raises(UserError, match="neither a run directory"):
        Wired(typed(*CART, *ROLLOUT, f"++algo.fixed={{agent_1: {tmp_path / 'shared'}}}")).algorithm()
    with pytest.raises(UserError, match="weights do not fit"):
        Wired(typed(*CART, *ROLLOUT, "model.hidden=[9]", f"++algo.fixed={{agent_1: {first}}}")).algorithm()
    assert alone.agents
    capsys.readouterr()
    words += ["model.activation=relu", "env_steps=64"]
    assert _dispatch(["train", *CART, *words, f"run_dir={tmp_path / 'third'}"]) == 0
    assert f"note: model.activation is relu, and tanh in {first}" in capsys.readouterr().out
    first.rename(tmp_path / "moved")
    parts = Wired(typed(*CART, *ROLLOUT, f"++algo.fixed={{agent_1: {first}}}"))
    with pytest.raises(UserError, match="neither a run directory"):
        parts.algorithm()
    parts.goes_on = True  # as where a run begins again from its own checkpoint
    parts.algorithm()
    assert _dispatch(["resume", str(tmp_path / "second"), "env_steps=128"]) == 0, "its own checkpoint has the weights"
    assert equal(rlrun.load(tmp_path / "second").policy.policy("agent_1"), old.policy("agent_1"))


def test_policies_may_have_unlike_algorithms(typed):
    _, made, batch = collected(
        typed,
        *ROLLOUT,
        "+algo@algo.options.agent_1=a2c",
        "++algo.options.agent_1.fragment_length=8",
        "++algo.options.agent_1.batch_size=16",
    )
    assert [type(learner).__name__ for learner in made.learners.values()] == ["PPO", "A2C"]
    metrics = made.update(batch, Clock()).metrics
    assert (
        "agent_0/clip_fraction" in metrics
        and "agent_1/clip_fraction" not in metrics
        and "agent_1/policy_loss" in metrics
    )


@pytest.mark.parametrize("words, said", [
    (["algo.policies={good: agent_0}"], "the agent agent_1 has no policy"),
    (["algo.policies={good: ['agent_*'], bad: ['adversary_*']}"], r"the pattern 'adversary_\*' of algo.policies.bad matches no agent"),
    (["algo.policies={good: ['agent_*'], bad: agent_1}"], "algo.policies.bad gets no agent"),
    (["algo.policies={good: []}"], "policies.good has no pattern"),
    (["algo.policies={train: agent_0, b: agent_1}"], "a policy cannot be called 'train'"),
    (["algo.policies={a.b: agent_0, b: agent_1}"], "a policy cannot be called 'a.b'"),
    (["++algo.options={agent_7: {lr: 0.1}}"], "names the policy 'agent_7'.*Did you mean"),
    (["algo.policies={good: 'agent_*'}", "++algo.fixed={agent_0: random}"], "fixed names the policy 'agent_0'"),
    (["++algo.fixed={agent_0: random, agent_1: random}"], "every policy is fixed"),
    (["++algo.fixed={agent_0: nowhere}"], "algo.fixed.agent_0=nowhere is neither a run directory"),
    (["++algo.fixed={agent_0: checkpoint}"], "algo.fixed.agent_0=checkpoint is neither a run directory"),
    (["++algo.options={agent_0: {learning_rate: 0.1}}"], "algo.options.agent_0.learning_rate"),
    (["++algo.options={agent_0: {lr: fast}}"], "algo.options.agent_0.lr"),
    (["algo.policies={a: agent_0, b: agent_1}", "++algo.options={b: {batch_size: 32}}"], "algo.inner \\(ppo\\) and options.b \\(ppo\\) must have the same batch_size \\("),
    (["algo.inner.normalize_reward=true"], "cannot be inside multi, because it scales rewards"),
    (["++algo.options={agent_1: {normalize_reward: true}}"], r"options.agent_1 \(ppo\) cannot be inside multi, because it scales rewards"),
    (["algo.policies={a: agent_0, b: agent_1}", "++algo.options={b: {normalize_reward: true}}"], r"options.b \(ppo\) cannot be inside multi, because it scales"),
    (["algo@algo.inner=maml", "runner=meta"], "maml cannot be inside multi, because it adapts one policy to tasks"),
    (["env=CartPole-v1"], "is for environments with several agents; CartPole-v1 has one"),
    (["runner=async_gradients"], "runner=async_gradients learns one policy, and multi has several; use runner=on_policy or"),
    (["algo@algo.inner=dqn", "runner=distributed_replay"], "use runner=replay"),
    (["algo@algo.inner=qmix"], "qmix cannot be inside multi"),
    (["algo@algo.inner=icm"], "icm cannot be inside multi: it holds another algorithm itself"),
])  # fmt: skip
def test_what_does_not_fit_gets_a_sentence(typed, words, said):
    inner = [] if any(word.startswith("algo@algo.inner") for word in words) else ROLLOUT
    with pytest.raises(UserError, match=said):
        Wired(typed(*CART, *inner, *words)).algorithm()


def test_an_agent_whose_name_has_the_signs_of_patterns_is_found_by_its_name():
    cfg = types.SimpleNamespace(policies={}, fixed={}, options={}, patterns={"one": ("robot[1]",), "rest": ("robot*",)})
    assert multi.members(cfg, ("robot[1]", "robot[2]")) == {"one": (0,), "rest": (1,)}


def test_a_policy_is_a_team_unless_it_is_named_after_its_only_agent():
    cfg = types.SimpleNamespace(policies={}, fixed={}, options={}, patterns={"hero": ("a",), "b": ("b",), "rest": ("c", "d")})
    assert multi.Multi.teams(cfg, tuple("abcd")) == {"hero": ("a",), "rest": ("c", "d")}


def test_agents_whose_policies_would_share_a_name_are_refused():
    each = types.SimpleNamespace(policies="each", fixed={}, options={})
    assert multi.members(each, ("a.b", "c")) == {"a_b": (0,), "c": (1,)}
    with pytest.raises(UserError, match=r"names that differ only by a dot.*first: \[a\.b\]"):
        multi.members(each, ("a.b", "a_b"))
