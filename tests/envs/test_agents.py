"""Every row of an environment with several agents holds its own agent's numbers, also when agents come, go and wait."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import compose
from wired import Wired
from zoo import TupleEnv

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core.errors import EnvError, UserError
from rlrun.core.installing import install_line
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import random_actions
from rlrun.envs import names, registry
from rlrun.envs.agent_games import TupleGame, make_game
from rlrun.envs.agents import _limit_of_zoo
from rlrun.ops.returns import gae

SMALL = ("logger=[]", "resources=debug")


def made(name, *words, count=2):
    """The spec and `count` environments."""
    cfg = type_config(compose("algo=ppo", f"env={name}", *words)).env
    spec = registry.make_spec(cfg)
    return spec, registry.Factory(cfg=cfg, spec=spec, seeds=Seeds(3), stream="env", learning=True)(0, count)


def walk(env, steps, choose=None):
    """Yields (rows before, actions, step) of every step."""
    rng = np.random.default_rng(0)
    obs = {name: np.array(part) for name, part in env.reset(0).items()}
    for _ in range(steps):
        action = random_actions(env.spec, obs, env.count, rng) if choose is None else choose(obs)
        step = env.step(action)
        yield obs, action, step
        obs = {name: np.array(part) for name, part in step.obs.items()}


def test_each_row_holds_its_own_agents_numbers():
    spec, env = made("zoo:CountingAgents")
    assert spec.columns_per_env == 3 and env.count == 6 and spec.agents.names == ("a", "b", "c")
    valid, ends, firsts = [], [], []
    for t, (before, _, step) in enumerate(walk(env, 14)):
        now = t % 7 + 1  # six steps and a row that only resets
        for column, agent in enumerate("abcabc"):
            if step.valid[column]:
                assert before["observation"][column].tolist() == ["abc".index(agent), t // 7, now - 1]
                assert step.reward[column] == 100 * "abc".index(agent) + now
                assert step.obs["observation"][column].tolist() == ["abc".index(agent), t // 7, now]
            else:
                assert step.reward[column] == 0
        valid.append(step.valid[:3].tolist())
        ends.append((step.terminated[:3].tolist(), step.truncated[:3].tolist()))
        firsts.append(step.is_first[:3].tolist())
        assert (step.valid[:3] == step.valid[3:]).all()
    a, b, c = zip(*valid, strict=True)
    assert a == (True, True, True, False, False, False, False) * 2, "a leaves after three steps"
    assert b == (True,) * 6 + (False,) + (True,) * 6 + (False,)
    assert c == ((False, False) + (True,) * 4 + (False,)) * 2, "c appears after two steps"
    assert ends[2] == ([True, False, False], [False] * 3) and ends[5] == ([False] * 3, [False, True, True])
    assert firsts[1] == [False, False, True], "c's memory begins anew"
    assert firsts[6] == [True] * 3 and sum(map(any, firsts)) == 4
    assert not step.obs["observation"][2].any(), "an agent that is not there sees zeros"


def test_returns_are_sums_and_env_steps_do_not_depend_on_the_number_of_agents(typed):
    wiring = Wired(
        typed(
            "algo=ppo",
            "env=zoo:CountingAgents",
            *SMALL,
            "algo.fragment_length=14",
            "algo.batch_size=28",
            "algo.minibatch_size=14",
        )
    )
    assert wiring.plan.needs.columns == 6 and wiring.plan.fragment["valid"].shape == (14, 6)
    sampler = wiring.sampler(0)
    sampler.publish(wiring.policy_factory(acting=True)(), Clock())
    header = sampler.take(1)[0].header
    assert header.env_steps == 2 * 12 and header.agent_steps == 2 * 2 * (3 + 6 + 4)
    a, b, c = 1 + 2 + 3, 6 * 100 + 21, 4 * 200 + 3 + 4 + 5 + 6
    episodes = header.episodes
    assert {e.ret for e in episodes} == {a + b + c} and {e.length for e in episodes} == {6}
    assert {e.env for e in episodes} == {0, 1}
    assert episodes[0].info["return/a"] == a and episodes[0].info["return/c"] == c
    assert episodes[0].info["clock"] == pytest.approx((1 + 2 + 3 + 21 + 3 + 4 + 5 + 6) / 13)


def test_rows_of_all_agents_count_the_same(typed):
    """One column for each environment: the same env steps, decisions and returns as with a column for each agent."""
    words = ["algo.num_envs=2", "algo.fragment_length=14", "algo.sequence_length=7", "algo.sequence_stride=7"]
    wiring = Wired(typed("algo=vdn", "env=zoo:CountingAgents", *SMALL, *words, "model/memory=gru"))
    sampler = wiring.sampler(0)
    sampler.publish(wiring.policy_factory(acting=True)(), Clock())
    header = sampler.take(1)[0].header
    assert header.env_steps == 2 * 12 and header.agent_steps == 2 * 2 * (3 + 6 + 4)
    for episode in header.episodes:
        told = {name: value for name, value in episode.info.items() if name.startswith("return/")}
        assert told == {"return/a": 6.0, "return/b": 621.0, "return/c": 818.0} and episode.ret == 1445.0
    assert len(header.episodes) == 4, "two of each environment, so what the first one added up is forgotten"


def test_a_policy_of_several_agents_has_a_return(typed):
    words = ["algo.inner.fragment_length=14", "algo.inner.batch_size=28", "algo.inner.minibatch_size=14"]
    policies = "algo.policies={ends: [a, c], middle: [b]}"
    wiring = Wired(typed("algo=multi", "env=zoo:CountingAgents", *SMALL, *words, policies))
    sampler = wiring.sampler(0)
    sampler.publish(wiring.policy_factory(acting=True)(), Clock())
    info = sampler.take(1)[0].header.episodes[0].info
    told = {name: value for name, value in info.items() if name.startswith("return/")}
    assert told == {"return/ends": 824.0, "return/middle": 621.0, "return/a": 6.0, "return/b": 621.0, "return/c": 818.0}


@pytest.mark.parametrize(
    "words",
    ["algo=ppo algo.fragment_length=10 algo.batch_size=40 algo.minibatch_size=20", "algo=iql algo.learning_starts=40"],
)
def test_the_return_may_be_that_of_some_agents(words, tmp_path, capsys):
    """What one player of a zero-sum game wins the other loses, in training and in evaluations."""
    found, words = {}, [*words.split(), "env=RockPaperScissors-v0", "resources=debug", "logger=[]", "env_steps=120"]
    for name in ("player_0", "player_1"):
        run = tmp_path / name
        assert _dispatch(["train", *words, f"env.return_of=[{name}]", f"run_dir={run}"]) == 0
        capsys.readouterr()
        assert _dispatch(["evaluate", str(run), "episodes=3", "greedy=false", "--json"]) == 0
        evaluated = json.loads(capsys.readouterr().out)["return_mean"]
        found[name] = np.array([json.loads((run / "summary.json").read_text())["return_mean"], evaluated])
    np.testing.assert_allclose(found["player_0"], -found["player_1"])
    assert found["player_0"].any()
    with pytest.raises(UserError, match="'player_3' matches no agent of RockPaperScissors-v0"):
        _dispatch(["train", *words, "env.return_of=[player_3]", f"run_dir={tmp_path / 'x'}"])
    assert not (tmp_path / "x").exists()


def test_a_waiting_player_has_one_legal_action_and_is_paid_for_the_others_move():
    spec, env = made("turns_zoo:Turns", count=1)
    assert str(spec.obs["observation"]) == "Box([2], float32)" and spec.obs["action_mask"].shape == (3,)
    paid = np.zeros(2)
    for t, (before, _, step) in enumerate(walk(env, 9)):
        if t == 8:
            assert not step.valid.any() and step.is_first.all()
            break
        mover = t % 2
        assert before["action_mask"][mover].tolist() == [0, 1, 1] and before["action_mask"][1 - mover].tolist() == [
            1,
            0,
            0,
        ]
        assert step.valid.all() and step.decided.tolist() == [mover == 0, mover == 1]
        expected = [0.0, 0.0]
        expected[1 - mover] -= 1
        expected[0] += 10 * (t == 7)
        assert step.reward.tolist() == expected
        assert step.terminated.all() == (t == 7)
        paid += step.reward
    assert paid.tolist() == [6.0, -4.0]


def test_a_waiting_player_has_one_legal_value_of_every_choice():
    _, env = made("turns_zoo:TurnsOfChoices", count=1)
    for t, (before, _, step) in enumerate(walk(env, 9)):
        assert step.valid.all() == (t < 8)
        if t < 8:
            assert before["action_mask"][t % 2].tolist() == [0, 1, 0, 1, 1]
            assert before["action_mask"][1 - t % 2].tolist() == [1, 0, 1, 0, 0]


def test_a_mask_that_leaves_one_of_two_choices_no_value_is_named():
    _, env = made("turns_zoo:TurnsOfChoices", "++env.kwargs.stuck=3")
    with pytest.raises(EnvError, match=r"env 0 .*an action_mask that leaves no legal action for the agent 'player_1'"):
        list(walk(env, 9))


@pytest.mark.parametrize("first", [False, True])
def test_a_player_that_ends_before_its_turn_waits_until_it_is_taken_out(first):
    """It is paid until then, as by PettingZoo's own loop. What the others see afterwards holds the legal actions of the
    one that moves next."""
    _, env = made("turns_zoo:Elimination", f"+env.kwargs.first={str(first).lower()}", count=1)
    last = 0 if first else 1  # the step in which player_2 is taken out
    for t, (before, _, step) in enumerate(walk(env, 10)):
        now = t % 5  # four moves and a row that only resets
        if now < 4:
            assert before["action_mask"][now % 2].tolist() == [0, 1, 1]
            assert before["observation"][now % 2].tolist() == [now, now % 2]
        if now <= last:
            assert before["action_mask"][2].tolist() == [1, 0, 0] and before["observation"][2].tolist() == [now, 2]
        there = [now < 4, now < 4, now <= last]
        assert step.valid.tolist() == there and step.decided.tolist() == [now in (0, 2), now in (1, 3), False]
        assert step.terminated.tolist() == [now == 3, now == 3, now == last], "each ends once"
        assert step.reward.tolist() == [now in (0, 2), now in (1, 3), -5.0 * (now == last == 1)]


def test_turns_inside_of_pettingzoos_parallel_wrapper_have_the_same_rows():
    """The wrapper keeps a player that has ended among its agents until its turn."""
    pytest.importorskip("pettingzoo")
    (spec, bare), (same, wrapped) = (made(f"turns_zoo:{name}", count=1) for name in ("Elimination", "elimination_in_parallel"))
    assert same.turns and same.obs == spec.obs
    for (seen, _, step), (shown, _, other) in zip(walk(bare, 10), walk(wrapped, 10), strict=True):
        assert all((seen[name] == shown[name]).all() for name in seen)
        for name in ("valid", "decided", "reward", "terminated", "truncated"):
            assert getattr(step, name).tolist() == getattr(other, name).tolist()


@pytest.mark.parametrize("how", ["terminations", "truncations"])
def test_what_happens_while_players_are_taken_out_belongs_to_the_move_before(how):
    """The last one's reward and end, and what it sees then: as by PettingZoo's own loop."""
    _, env = made("turns:Survivor", f"+env.kwargs.how={how}", count=1)
    steps = [step._replace(obs={k: np.array(part) for k, part in step.obs.items()}) for _, _, step in walk(env, 8)]
    for now, step in enumerate(steps):
        over = now % 4 == 2  # three moves and a row that only resets
        assert step.valid.tolist() == [now % 4 < 3] * 3 and step.is_first.all() == (now % 4 == 3)
        assert step.reward.tolist() == [3.0 * over, 0, 0], "2 for the move, and 1 for being left"
        assert step.terminated.tolist() == [over and how == "terminations", over, over]
        assert step.truncated.tolist() == [over and how == "truncations", False, False]
        moves = (now + 1) % 4
        assert step.obs["observation"].tolist() == [[moves, 3 - 2 * over], [moves, 3], [moves, 3]]


def test_a_player_that_appears_plays_what_its_info_says_is_legal():
    """It moves in the step after it has appeared."""
    _, env = made("turns_zoo:LateTurns", count=1)
    deciding = []
    for before, _, step in walk(env, 8):
        mover = int(np.argmax(step.decided))
        assert before["action_mask"][mover].tolist() == [0, 1, 1] and step.decided.sum() == 1
        deciding.append(mover)
        assert step.valid.tolist() == [True, True, len(deciding) > 3]
    assert deciding == [0, 1, 0, 2, 0, 1, 2, 0] and step.terminated.all()
    clocks = [step.info["clock"][np.argmax(env.rows["action_mask"][:, 1])] for _, _, step in walk(env, 7)]
    assert clocks == [1, 2, 3, 4, 5, 6, 7], "metrics of whoever moves next"


def test_what_a_waiting_player_is_paid_belongs_to_its_last_move():
    """player_0 is paid 10 for the last move, which the other one makes: its return from every own move has it."""
    _, env = made("turns_zoo:Turns", count=1)
    steps = [step for _, _, step in walk(env, 8)]
    reward, valid, ended = (
        torch.from_numpy(np.stack([getattr(step, name) for step in steps]))
        for name in ("reward", "valid", "terminated")
    )
    nothing, discount = torch.zeros(8, 2), 0.5 * (~ended).float()
    back = gae(reward, discount, nothing, nothing, valid, 1.0)
    assert not reward[6, 0] and back[6, 0] == pytest.approx(0.5 * 9.0), "the move before the last: -1 and 10"
    assert back[5, 1] == pytest.approx(0.5 * -1.0), "the other one's move, which player_0 answers"


@pytest.mark.parametrize("algo", ["ppo", "qmix"])
def test_who_does_not_take_part_is_paid_nothing(algo):
    """An environment that goes on paying an agent that has left changes no row."""
    rewards = []
    for words in ([], ["+env.kwargs.fault=pays"]):
        cfg = type_config(compose(f"algo={algo}", "env=zoo:CountingAgents", *words)).env
        spec = registry.make_spec(cfg, joint=algo == "qmix")
        env = registry.Factory(cfg=cfg, spec=spec, seeds=Seeds(3), stream="env", learning=True)(0, 2)
        rewards.append([step.reward.tolist() for _, _, step in walk(env, 7)])
    assert rewards[0] == rewards[1]


@pytest.mark.parametrize("early", [True, False])
def test_the_limit_of_an_environment_over_tuples_is_a_truncation(early):
    spec, env = made("zoo:TupleEnv", f"+env.kwargs.early={str(early).lower()}", count=1)
    assert spec.obs["observation"].shape == (3,) and spec.action.n == 4 and spec.obs["action_mask"].shape == (4,)
    assert len(spec.notes) == 2 and spec.max_episode_steps == 5
    steps = [step for _, _, step in walk(env, 6)]
    last = steps[1 if early else 4]
    assert last.terminated.all() == early and last.truncated.all() != early
    assert steps[0].reward.tolist() == [1.0, 2.0]
    # The value of the last observation is bootstrapped from, so that its mask must be the true one.
    whole = [np.array(step.obs["action_mask"]) for _, _, step in walk(env, 5)]
    assert whole[1 if early else 4].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    env.reset(0)
    assert env.step(np.array([1, 3])).obs["observation"].tolist() == [[1, 1, 0], [1, 1, 1]], "padded with zeros"
    assert env.rows["action_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("unknown", "'z', which is not one of its possible_agents"),
        ("lost", "lost the agent 'b' in step 2"),
        ("raise", "this game was told to fail"),
    ],
)
def test_a_broken_game_is_named(fault, said):
    _, env = made("zoo:CountingAgents", f"+env.kwargs.fault={fault}")
    with pytest.raises(EnvError, match=said) as caught:
        list(walk(env, 4))
    assert "CountingAgents" in str(caught.value) and "env 0" in str(caught.value)


@pytest.mark.parametrize("form, said", [("list", r"\[False, False\]"), ("dictionary", "{'__all__': False}")])
@pytest.mark.parametrize("each", ["terminated", "truncated"])
def test_an_end_of_each_agent_of_a_tuple_is_refused(each, form, said):
    """Both count as true, so every episode would be over after one step."""
    _, env = made("zoo:TupleEnv", f"+env.kwargs.each={each}", f"+env.kwargs.form={form}")
    with pytest.raises(EnvError, match=rf"env 0 .*returned {said} as {each}.*one end for all agents"):
        list(walk(env, 1))


def test_the_info_of_a_tuple_has_a_mask_for_each_agent():
    _, env = made("zoo:TupleOfMasks")
    for t, (before, _, step) in enumerate(walk(env, 12)):
        if t % 6 < 5:
            assert before["action_mask"].tolist() == [[0, 1, 0, 0], [0, 1, 0, 1]] * 2
            np.testing.assert_equal(step.info["clock"], [t % 6 + 1, np.nan] * 2)
    with pytest.raises(EnvError, match=r"in step 1 .*an action_mask in some of its infos, and not in this one"):
        list(walk(made("zoo:TupleOfMasks", "+env.kwargs.told=reset")[1], 1))
    for told in ("once", "step"):
        steps = walk(made("zoo:TupleOfMasks", f"+env.kwargs.told={told}")[1], 6, lambda obs: np.ones(4, np.int64))
        assert len([next(steps) for _ in range(5)]) == 5, "the first episode"
        with pytest.raises(EnvError, match=r"failed in reset: .*an action_mask in some of its infos, and not in"):
            next(steps)
    with pytest.raises(UserError, match=r"fails in reset: .*a mask for each agent: tell a tuple of 2"):
        made("zoo:TupleOfMasks", "+env.kwargs.told=one")


def test_a_mask_that_reset_does_not_tell_is_refused():
    """Rows have no place for it, so that a policy would play illegal actions."""
    _, env = made("zoo:Choices", "+env.kwargs.where=late")
    with pytest.raises(EnvError, match=r"env 0 .*told an action_mask in the info of 'a', and in none of its first reset"):
        list(walk(env, 1, lambda obs: np.ones(6, np.int64)))


@pytest.mark.parametrize(
    "where, said",
    [("first", r"env 0 .*told no action_mask in the info of 'a', as it did before"), ("short", "the length of its action_mask is 1, and its actions need 2")],
)
def test_a_mask_that_is_missing_or_too_short_is_refused(where, said):
    """All actions would count as legal, or those that the mask does not tell of."""
    with pytest.raises((EnvError, UserError), match=said):
        _, env = made("zoo:Choices", f"+env.kwargs.where={where}")
        list(walk(env, 1, lambda obs: np.ones(6, np.int64)))


@pytest.mark.filterwarnings("ignore:.*Casting input x")
@pytest.mark.parametrize("kind", ["one choice", "choices", "a number"])
def test_actions_of_agents_are_in_their_spaces(kind):
    _, env = made("zoo:TypedAgents", f"+env.kwargs.kind='{kind}'")
    assert len(list(walk(env, 13))) == 13 and len(env.games[0].env.seen) > 2, "numbers are not rounded"


def test_own_limits_end_all_agents():
    _, env = made("zoo:CountingAgents", "env.max_episode_steps=4")
    steps = [step for _, _, step in walk(env, 5)]
    assert steps[3].truncated[:3].tolist() == [False, True, True] and steps[4].is_first.all()
    _, env = made("zoo:CountingAgents", "env.max_episode_steps=4", "env.time_limit=termination")
    ends = [step for _, _, step in walk(env, 5)]
    assert not any(step.truncated.any() for step in ends)
    for kept, end in zip(steps, ends, strict=True):
        assert (end.terminated == (kept.terminated | kept.truncated)).all() and (end.valid == kept.valid).all()


def test_a_limit_does_not_truncate_a_player_that_is_out():
    """player_2 has terminated and waits to be taken out. Nothing is bootstrapped from it, so it is no part of the last
    state of algorithms that learn all agents together."""
    _, env = made("turns_zoo:Elimination", "env.max_episode_steps=1", count=1)
    for t, (_, _, step) in enumerate(walk(env, 4)):
        cut = t % 2 == 0  # a move and a row that only resets
        assert step.valid.tolist() == [cut] * 3
        assert step.terminated.tolist() == [False, False, cut] and step.truncated.tolist() == [cut, cut, False]
    for limit, alive in ((1, [1, 1, 0]), (3, [1, 1, 1])):  # the second goes on, and may still pay player_2
        cfg = type_config(compose("algo=qmix", "env=turns_zoo:Elimination", f"env.max_episode_steps={limit}")).env
        spec = registry.make_spec(cfg, joint=True)
        env = registry.Factory(cfg=cfg, spec=spec, seeds=Seeds(3), stream="env", learning=True)(0, 1)
        (_, _, step), *_ = walk(env, 1)
        assert step.obs["alive"].tolist() == [alive] and step.truncated.tolist() == [limit == 1]


def test_all_rewards_of_mpe_are_counted():
    """25 rewards for each agent: PyMARL's and EPyMARL's wrappers lose the last."""
    pytest.importorskip("mpe2")
    from mpe2 import simple_spread_v3

    _, env = made("simple_spread_v3", count=1)
    total, log = np.zeros(3), []
    for _, action, step in walk(env, 25):
        total += step.reward
        log.append(action)
    assert step.truncated.all() and not step.terminated.any()
    seed = env.env_seeds[0]
    by_hand = simple_spread_v3.parallel_env()
    by_hand.reset(seed=seed)
    expected = np.zeros(3)
    for action in log:
        _, reward, *_ = by_hand.step({f"agent_{i}": int(action[i]) for i in range(3)})
        expected += [reward[f"agent_{i}"] for i in range(3)]
    assert total == pytest.approx(expected, rel=1e-5)


def test_all_rewards_of_agents_that_die_are_counted():
    """Archers and knights die one by one. The reward of an agent's last step is in its row, and none comes later."""
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    from pettingzoo.butterfly import knights_archers_zombies_v11

    _, env = made("knights_archers_zombies_v11", "++env.kwargs={spawn_delay: 2}", count=1)
    total, log, lives = np.zeros(4), [], []
    for _, action, step in walk(env, 400):
        total += step.reward
        log.append(action)
        lives.append(int(step.valid.sum()))
        if step.terminated.any() and not env.there.any():
            break
    assert len(set(lives)) > 1 and total.sum() > 0, "some died before others, and some were paid"
    by_hand = knights_archers_zombies_v11.parallel_env(spawn_delay=2)
    by_hand.reset(seed=env.env_seeds[0])
    expected, names_ = np.zeros(4), by_hand.possible_agents
    for action, alive in zip(log, lives, strict=True):
        assert len(by_hand.agents) == alive
        _, reward, *_ = by_hand.step({name: int(action[names_.index(name)]) for name in by_hand.agents})
        expected += [reward.get(name, 0.0) for name in names_]
    assert total == pytest.approx(expected) and not by_hand.agents


def test_names_have_one_family():
    assert names.family_of("TwoStepGame-v0") == ("agents", "TwoStepGame-v0")
    assert names.family_of("CartPole-v1")[0] == "gym" and names.family_of("Pong")[0] == "atari"
    assert names.family_of("turns_zoo:Turns")[0] == "agents"
    assert names.family_of("zoo:TupleEnv")[0] == "agents" and names.family_of("zoo:UnlikeTuples")[0] == "gym"
    with pytest.raises(UserError, match=r"which is no environment with several agents.* For one agent, name its class"):
        make_game(replace(type_config(compose("algo=ppo", "env=zoo:TupleEnv")).env, name="zoo:UnlikeTuples"))
    if names.zoo_modules():
        assert names.petting_zoo("pettingzoo/connect_four_v3") == "pettingzoo.classic.connect_four_v3"
        with pytest.raises(UserError, match="simple_spread_v3 now"):
            names.family_of("simple_spread_v2")


@pytest.mark.parametrize(
    "words", ["train algo=ppo", "train algo=multi", "train algo=maddpg", "train --plan algo=iql", "explain"]
)
def test_agents_must_be_named_by_texts(words, tmp_path):
    """They are names of policies and of metrics."""
    words = [*words.split(), "env=zoo:NumberedAgents"]
    with pytest.raises(UserError, match=r"NumberedAgents holds 0, which is no text: name agents by texts, such as pl"):
        _dispatch([*words, f"run_dir={tmp_path / 'run'}"] if "train" in words else words)
    assert not (tmp_path / "run").exists()


def test_without_the_package_its_install_line_is_said(monkeypatch):
    monkeypatch.setattr(names, "zoo_modules", dict)
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda name: None)
    for name in ("simple_spread_v3", "Foraging-8x8-2p-2f-coop-v3"):
        with pytest.raises(UserError, match=r"setup multi-agent"):
            names.family_of(name)


def test_one_missing_package_of_two_is_named(monkeypatch, capsys):
    """Its names stay in the list, with the line that installs it."""
    there = names.importlib.util.find_spec
    monkeypatch.setattr(names.importlib.util, "find_spec", lambda name: None if name == "mpe2" else there(name))
    names.zoo_modules.cache_clear()
    try:
        for name in ("simple_spread_v3", "mpe2/simple_tag_v3", "pettingzoo/simple_spread_v3"):
            with pytest.raises(UserError, match=r"mpe2, which is not installed: .*setup multi-agent"):
                names.family_of(name)
        assert _dispatch(["list", "envs"]) == 0
        said = capsys.readouterr().out.splitlines()
        (line,) = [line for line in said if line.startswith("simple_spread_v3 ")]
        assert line.endswith(f"mpe2, not installed: {install_line('multi-agent')}")
    finally:
        names.zoo_modules.cache_clear()


def test_an_environment_of_older_releases_is_named_with_the_release(capsys):
    if "waterworld_v4" in names.zoo_modules():
        pytest.skip("this PettingZoo has it")
    with pytest.raises(UserError, match=r"older releases of PettingZoo: pip install pettingzoo==1\.25"):
        names.family_of("waterworld_v4")
    assert names.family_of("waterworld_v4", needed=False)[0] == "agents"
    assert _dispatch(["list", "envs"]) == 0
    assert "older releases: pip install pettingzoo==1.25.0" in capsys.readouterr().out


def test_the_names_of_missing_packages_are_those_that_they_have():
    if len(names.zoo_modules()) > 12:  # both are installed
        known = {name: module.split(".")[0] for name, module in names.zoo_modules().items()}
        assert known == {name: package for package, every in names.ABSENT.items() for name in every}


@pytest.mark.parametrize("prefix", names.PREFIXES)
def test_every_prefix_names_an_environment_of_its_own(prefix):
    examples = {
        "atari": ("Pong", "Pong"), "gym": ("CartPole-v1", "CartPole-v1"), "rlrun": ("TwoStepGame-v0", "TwoStepGame-v0"),
        "pettingzoo": ("pong_v3", "pettingzoo/pong_v3"), "mpe2": ("simple_v3", "mpe2/simple_v3"),
        "lbforaging": ("Foraging-8x8-2p-2f-coop-v3", "lbforaging:Foraging-8x8-2p-2f-coop-v3"), "rware": ("rware-tiny-2ag-v2", "rware:rware-tiny-2ag-v2"), "dmc": ("walker_walk", "walker_walk"), "crafter": ("crafter", "crafter"),
        "minigrid": ("MiniGrid-Empty-8x8-v0", "MiniGrid-Empty-8x8-v0"),
    }  # fmt: skip
    name, canonical = examples[prefix]
    try:
        assert names.family_of(f"{prefix}/{name}") == (names.PREFIXES[prefix], canonical)
        assert names.family_of(name)[0] == names.PREFIXES[prefix]
    except UserError as error:
        assert "not installed: " in str(error) and " setup " in str(error)
    other = "CartPole-v1" if prefix != "gym" else "TwoStepGame-v0"
    with pytest.raises(UserError, match=r"There is no env|not installed"):
        names.family_of(f"{prefix}/{other}")


def test_a_name_that_two_families_know_needs_a_prefix(monkeypatch):
    """Nothing that is installed here has such a name; somebody's own id may."""
    monkeypatch.setitem(names.gymnasium.registry, "TwoStepGame-v0", names.gymnasium.registry["CartPole-v1"])
    with pytest.raises(UserError, match=r"2 families: say env=gym/TwoStepGame-v0 or env=rlrun/TwoStepGame-v0"):
        names.family_of("TwoStepGame-v0")
    assert names.family_of("gym/TwoStepGame-v0") == ("gym", "TwoStepGame-v0")
    assert names.family_of("rlrun/TwoStepGame-v0") == ("agents", "TwoStepGame-v0")
    monkeypatch.undo()
    every = {*names._registered(), *names.games(), *names.AGENT_GAMES, *names.zoo_names(), *names.own_names()}
    assert not [name for name in every if len({names.PREFIXES[one] for one in names.known_to(name)}) != 1]


def test_your_own_environment_is_judged_by_what_it_is():
    found = {
        name: names.family_of(name)[0]
        for name in ("turns_zoo:Turns", "zoo:CountingAgents", "zoo:TupleEnv", "zoo:Alone", "zoo:Choosy")
    }
    assert found == {
        "turns_zoo:Turns": "agents",
        "zoo:CountingAgents": "agents",
        "zoo:TupleEnv": "agents",
        "zoo:Alone": "gym",
        "zoo:Choosy": "gym",
    }
    assert names.family_of("zoo:Choosy", "agents") == ("agents", "zoo:Choosy"), "env.family overrules"


@pytest.mark.parametrize(
    ("words", "family", "said"),
    [
        (["env=zoo:Choosy", "env.family=agents", "env.kwargs={many: 2}"], "agents", "2 agents, each a column"),
        (["env=zoo:Alone"], "gym", "Box([2], float32)"),
        (["env=ALE/Pong-v5", "env.family=gym"], "gym", "210, 160, 3"),
        (["env=ALE/Pong-v5"], "atari", "84, 84"),
    ],
)
def test_the_family_of_the_command_line_overrules_the_table(words, family, said, capsys):
    if "ALE" in words[0] and not names.games():
        pytest.skip("ale-py is not installed")
    assert _dispatch(["train", "--plan", "algo=ppo", *words]) == 0
    assert said in capsys.readouterr().out
    for wrong, reason in (
        ("env.family=box", "must be one of atari, gym, agents"),
        ("env.family=atari", "is no Atari game"),
    ):
        if family != "atari" and "ALE" not in words[0]:
            with pytest.raises(UserError, match=reason):
                _dispatch(["train", "--plan", "algo=ppo", words[0], wrong])


def test_grouped_agents_are_one_agent(tmp_path):
    """The group's observations and sums of rewards are those of the game, also after an agent has left."""
    from rlrun.envs.grouped import Grouped

    name = "MultiAgentCartPole-v0"
    group = Grouped(name, num_agents=2)
    alone = make_game(type_config(compose("algo=ppo", f"env={name}")).env)
    assert group.observation_space[1].shape == (4,) and group.action_space[0].n == 2
    obs, _ = group.reset(seed=3)
    seen, _ = alone.reset(3)
    rewards = []
    while True:
        assert all(
            np.array_equal(part, seen.get(agent, np.zeros(4))) for part, agent in zip(obs, alone.agents, strict=True)
        )
        if not alone.present:
            break
        obs, reward, terminated, truncated, _ = group.step((0, len(rewards) % 2))
        outcome = alone.step({agent: (0, len(rewards) % 2)[int(agent[-1])] for agent in alone.present})
        seen = outcome.obs
        assert reward == sum(outcome.reward.values()) and terminated == (not alone.present) and not truncated
        rewards.append(reward)
    assert rewards[0] == 2.0 and rewards[-1] == 1.0, "one agent left before the other"
    words = ["train", "algo=ppo", "env=rlrun/Grouped-v0", "env.kwargs={game: MultiAgentCartPole-v0}", "resources=debug", "logger=[]",
             *LEARNERS["ppo"], "env_steps=64", f"run_dir={tmp_path / 'run'}"]  # fmt: skip
    assert _dispatch(words) == 0 and _dispatch(["evaluate", str(tmp_path / "run"), "episodes=1"]) == 0


@pytest.mark.parametrize(
    ("game", "said"),
    [("CartPole-v1", "has one"), ("connect_four_v3", "take turns"), ("zoo:Masked", "masks of legal actions")],
)
def test_what_cannot_be_grouped_is_said(game, said):
    from rlrun.envs.grouped import Grouped

    if game == "connect_four_v3" and not names.zoo_modules():
        pytest.skip("PettingZoo is not installed")
    with pytest.raises(UserError, match=said):
        Grouped(game)


LEARNERS = {
    "ppo": ("algo.fragment_length=16", "algo.batch_size=32", "algo.minibatch_size=16", "algo.num_epochs=2"),
    "ppo_lstm": (
        "algo=ppo",
        "model/memory=lstm",
        "algo.sequence_length=8",
        "algo.fragment_length=16",
        "algo.batch_size=32",
        "algo.minibatch_size=16",
    ),
    "a2c": ("algo.fragment_length=5", "algo.batch_size=20"),
    "impala": ("algo.fragment_length=10", "algo.batch_size=20"),
    "pqn": ("algo.fragment_length=16", "algo.batch_size=32", "algo.minibatch_size=16"),
    "dqn": ("algo.learning_starts=50", "replay.capacity=1000", "model.hidden=[16]"),
    "r2d2": ("algo.learning_starts=50", "replay.capacity=2000", "model.memory.size=8", "algo.batch_size=4"),
    "es": ("algo.episodes_per_batch=4", "algo.env_steps_per_batch=20", "algo.noise_size=200000"),
}


@pytest.mark.parametrize("algo", LEARNERS)
def test_single_agent_algorithms_train_all_agents_with_one_policy(algo, tmp_path):
    words = [word for word in LEARNERS[algo] if not word.startswith("algo=")]
    path = tmp_path / "run"
    code = _dispatch(
        [
            "train",
            f"algo={algo.partition('_')[0]}",
            "env=zoo:CountingAgents",
            *SMALL,
            "env_steps=200",
            *words,
            f"run_dir={path}",
            "log_every_sec=0.01",
            "model.observation_filter=mean_std" if algo == "ppo" else "seed=1",
        ]
    )
    assert code == 0
    row = json.loads((path / "progress.jsonl").read_text().splitlines()[-1])
    assert row["sample/return_mean"] == 6 + 621 + 818, "the sum over agents"
    assert row["sample/episode_length_mean"] == 6
    if algo != "es":
        assert (
            row["sample/return/b"] == 621
            and 13 / 6 * 0.8 < row["sample/agent_steps"] / row["env_steps"] <= 13 / 6 * 1.2
        )
    assert all(math.isfinite(value) for name, value in row.items() if name.startswith("learn/") and value is not None)


def test_a_bit_exact_run_resumes_in_the_middle_of_an_episode(tmp_path):
    """Agents of the environments have left at the checkpoint."""
    words = [
        "train",
        "algo=ppo",
        "env=MultiAgentCartPole-v0",
        "env.kwargs.num_agents=3",
        *SMALL,
        *LEARNERS["ppo"],
        "checkpoint.every=60",
        "seed=2",
    ]
    assert _dispatch([*words, "env_steps=120", f"run_dir={tmp_path / 'whole'}"]) == 0
    assert _dispatch([*words, "env_steps=60", f"run_dir={tmp_path / 'half'}"]) == 0
    assert _dispatch(["resume", str(tmp_path / "half"), "env_steps=120"]) == 0
    final = [
        sorted(p for p in (tmp_path / name / "checkpoints").iterdir() if p.is_dir())[-1] for name in ("whole", "half")
    ]
    one, other = (torch.load(path / "policy.pt", weights_only=True) for path in final)
    flat = [dict(_leaves(tensors)) for tensors in (one, other)]
    assert flat[0].keys() == flat[1].keys() and all(torch.equal(flat[0][k], flat[1][k]) for k in flat[0])


def _leaves(tree, path=""):
    for name, value in tree.items():
        yield from _leaves(value, f"{path}{name}.") if isinstance(value, dict) else [(f"{path}{name}", value)]


def test_a_trained_run_acts_for_every_agent_and_is_exported(tmp_path):
    import rlrun

    path = tmp_path / "run"
    words = [
        "algo=ppo",
        "env=zoo:CountingAgents",
        "model/memory=lstm",
        "algo.sequence_length=8",
        *SMALL,
        *LEARNERS["ppo"],
    ]
    assert _dispatch(["train", *words, "env_steps=60", f"run_dir={path}"]) == 0
    trained = rlrun.load(path)
    env = trained.make_env()
    obs, _ = env.reset(seed=0)
    seen = []
    while env.agents:
        actions = trained.act(obs)
        assert set(actions) == set(obs) and all(action in (0, 1) for action in actions.values())
        seen.append(sorted(actions))
        obs = {agent: value for agent, value in env.step(actions)[0].items() if agent in env.agents}
    assert seen == [["a", "b"]] * 2 + [["a", "b", "c"]] + [["b", "c"]] * 3
    with pytest.raises(ValueError, match="dictionary by agent, of a, b, c"):
        trained.act({"nobody": np.zeros(3)})
    assert _dispatch(["evaluate", str(path), "episodes=3"]) == 0
    assert _dispatch(["export", str(path), "--formats", "pt2"]) == 0


@pytest.mark.parametrize(
    "fault, said",
    [
        ("raises", "failed in step 2 on the actions .*told to fail"),
        ("leaves", "failed in step 2 on the actions .*SystemExit: 3"),
        ("shape", r"does not fit for the agent 'b': ValueError: an observation of the shape \(4,\)"),
        ("reward", r"returned for the agent 'b' in step 2 the reward \[1, 2\], which is no number: return a finite number"),
        ("unknown", "'z', which is not one of its possible_agents"),
        ("nothing", "failed in step 2 on the actions .*NoneType"),
    ],
)
def test_a_game_that_fails_is_made_anew(fault, said):
    """The rows of all its agents are dead in the failed step, a new episode follows, and the other game goes on."""
    cfg = type_config(compose("algo=ppo", "env=zoo:CountingAgents")).env
    spec = registry.make_spec(cfg)
    env = registry.Factory(cfg=cfg, spec=spec, seeds=Seeds(3), stream="env", learning=True, restarts=True)(0, 2)

    def fail(actions):
        if fault == "raises":
            raise RuntimeError("told to fail")
        if fault == "leaves":
            raise SystemExit(3)
        outcome = type(env.games[0]).step(env.games[0], actions)
        if fault == "shape":
            outcome.obs["b"] = np.zeros(4, np.float32)
        if fault == "reward":
            outcome.reward["b"] = [1, 2]
        if fault == "unknown":
            outcome.info["z"] = {"clock": 0.0}
        return outcome if fault != "nothing" else outcome._replace(obs=None)

    steps = []
    for t, (_, _, step) in enumerate(walk(env, 6)):
        steps.append((step.valid.copy(), step.is_first.copy(), dict(step.failed), step.obs["observation"].copy()))
        if t == 1:
            assert not (step.reward[:3].any() or step.terminated[:3].any() or step.truncated[:3].any())
            assert np.isnan(step.info["clock"][:3]).all() and not np.isnan(step.info["clock"][3:]).all()
        if t == 0:
            env.games[0].step = fail
    valid, first, failed, obs = steps[1]
    assert not valid[:3].any() and first[:3].all() and valid[3:].sum() == 2 and not first[3:].all(), "agents come and go"
    assert re.search(rf"env 0 \(seed \d+\) .*{said}", failed[0].sentence)
    assert failed[0].broken_off and list(failed) == [0]
    assert obs[:3, 2].tolist() == [0, 0, 0] and steps[2][0][:3].any() and set(steps[2][3][:3, 2]) <= {0, 1}
    assert all(not one[2] for number, one in enumerate(steps) if number != 1)
    begin = env.games[1].reset
    env.games[1].reset = lambda seed: ({"a": np.zeros(4, np.float32)}, begin(seed)[1])
    env.reset(1)
    step = env.step(random_actions(env.spec, env.rows, env.count, np.random.default_rng(0)))
    assert step.valid[[0, 1, 3, 4]].all() and "does not fit for the agent 'a'" in step.failed[1].sentence
    env.reset(2)
    env.games[1].step = lambda actions: env.games[1].nothing
    env.remade.allowed = False
    with pytest.raises(EnvError, match=r"env 1 .*no attribute 'nothing'"):
        env.step(random_actions(env.spec, env.rows, env.count, np.random.default_rng(0)))


def test_a_termination_in_the_last_allowed_step_is_the_limit_unless_the_environment_tells_truncations():
    ends = iter([(False, False), (True, False), (False, False), (False, True), (False, False), (True, False)])

    class Ends(TupleEnv):
        def step(self, action):
            obs, reward, _, _, info = super().step(action)
            return obs, reward, *next(ends), info

    game, told = TupleGame(Ends(), 2), []
    for _ in range(3):
        game.reset(None)
        acts = dict.fromkeys(game.agents, 0)
        game.step(acts)
        last = game.step(acts)
        told.append((last.terminated["agent_0"], last.truncated["agent_0"]))
    assert told == [(False, True), (False, True), (True, False)]


@pytest.mark.parametrize("turns, limit", [(False, 7), (True, 14)])
def test_an_environment_that_derives_from_no_class_of_pettingzoo_tells_its_limit_too(turns, limit):
    game = SimpleNamespace(env=SimpleNamespace(max_cycles=7), turns=turns, agents=("a", "b"))
    assert _limit_of_zoo(game) == limit
