"""rlrun estimate: a policy's value from recorded episodes. Numbers 10 to 12 are the known answers of issue 24."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch
from conftest import compose, small

import rlrun
from rlrun.cli import _dispatch
from rlrun.commands.estimate import parsed, shown
from rlrun.config.run import type_config
from rlrun.core.batch import Batch, Field
from rlrun.core.errors import UserError
from rlrun.core.estimates import METHODS
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Agents, Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested
from rlrun.datasets.open import open_source
from rlrun.datasets.parquet_writer import Writer
from rlrun.datasets.trajectories import DataFacts, Trajectory
from rlrun.envs.previous import with_previous
from rlrun.envs.registry import Factory, make_spec
from rlrun.envs.stacked import with_stack
from rlrun.families.fitted_q import (
    FittedQ,
    FittedQConfig,
    PlayedRows,
    linear_fitted_q,
    return_range,
    returns_to_go,
)
from rlrun.models.model import Model
from rlrun.runtime.estimate import Question, discount_of, padded
from rlrun.runtime.estimate import estimate as answered
from rlrun.runtime.played_value import played_value
from rlrun.runtime.recorded_episodes import RecordedEpisodes, log_prob
from rlrun.runtime.trained import load
from rlrun.samplers.evaluator import Evaluator

SEEN = Box(shape=(4,), dtype="float32", low=(-math.inf,), high=(math.inf,))
CHAIN = EnvSpec(name="chain", obs={"observation": SEEN}, action=Discrete(n=2))
LEVER = EnvSpec(
    name="lever", obs={"observation": SEEN}, action=Box(shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,))
)
CLOCK = Clock(env_steps=1000, updates=10)
QUICK = FittedQConfig(updates=600, batch_size=64, lr=5e-3, hidden=(32,), target_tau=0.1, clip=True)
SMOOTH = FittedQConfig(updates=1000, batch_size=128, lr=1e-2, hidden=(32, 32), target_tau=0.1, clip=True)
DISCOUNT = 0.9


class Memory:
    """A data set of trajectories that are in memory."""

    name, most_rows = "memory", None

    def __init__(self, spec, trajectories, record=True):
        self.trajectories = list(trajectories)
        self.facts = DataFacts(spec=spec, record={"log_prob": Field((), torch.float32)} if record else {})

    def pieces(self):
        return 2

    def read(self, piece):
        return iter(self.trajectories[piece::2])


def made(algo, spec, *words):
    """A policy of a spec, and the options of its model."""
    env = "CartPole-v1" if isinstance(spec.action, Discrete) else "Pendulum-v1"
    config = type_config(compose("resources=debug", "logger=[]", *small(algo, "tiny"), f"env={env}", *words))
    torch.manual_seed(0)
    policy = config.algorithm.make_policy(spec, Model(config.run.model), config.algo)
    return policy.requires_grad_(False), config.run.model


def place(t):
    """The observation of the stop chain after t steps."""
    return np.eye(4, dtype=np.float32)[t]


def chain(action, t):
    """One step of the stop chain: reward, and whether it is the end. Action 1 stops."""
    return (1 + t / 2 if action == 1 else 0.0), bool(action == 1 or t == 2)


def lever(action, t):
    """Two steps, of which each pays for being near 0.3."""
    return 1 - (float(action[0]) - 0.3) ** 2, t == 1


def play(policy, spec, game, count, seed=0, whole=True, dead_at=None):
    """Episodes of a game, played by act(), which records the probabilities. dead_at: behind this step a dead row stands, as where a life was lost."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        rows = []
        state, t, end, first = policy.initial_state(1), 0, False, True
        while not end:
            obs = Batch(observation=torch.from_numpy(place(t)).unsqueeze(0))
            told = {"prev_action": 0, "prev_reward": 0.0}
            if "prev_action" in spec.obs:
                told = {
                    "prev_action": rows[-1]["action"] if rows else 0,
                    "prev_reward": rows[-1]["reward"] if rows else 0.0,
                }
                obs = obs.replace(
                    prev_action=torch.tensor([int(told["prev_action"])]),
                    prev_reward=torch.tensor([[float(told["prev_reward"])]]),
                )
            act = policy.act(obs, torch.tensor([first]), state, CLOCK, "explore", rng, ("log_prob",))
            state, first = act.state, False
            dead = dead_at == len(rows)
            reward, over = (123.0, False) if dead else game(act.action[0].numpy(), t)
            rows.append(
                {"obs": place(t), "action": act.action[0].numpy(), "reward": reward, "log_prob": float(act.record["log_prob"][0]),
                 "terminated": over or (dead_at == len(rows) + 1), "valid": not dead}
            )  # fmt: skip
            t, end = t + (not dead), over
        last = {
            "obs": place(min(t, 3)),
            "action": np.zeros_like(rows[0]["action"]),
            "reward": math.nan,
            "log_prob": math.nan,
        }
        rows.append(last | {"terminated": False, "valid": False})
        column = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
        yield Trajectory(
            obs={"observation": column["obs"]},
            action=column["action"],
            reward=column["reward"].astype(np.float32),
            terminated=column["terminated"],
            truncated=np.zeros(len(rows), dtype=bool),
            valid=column["valid"],
            record={"log_prob": column["log_prob"].astype(np.float32)},
            whole=whole,
        )


def changed(trajectory, **fields):
    return dataclasses.replace(trajectory, **fields)


def cut_after(trajectory, steps):
    """The same episode with a time limit of this many steps."""
    rows = slice(steps + 1)
    valid, terminated = np.arange(steps + 1) < steps, np.zeros(steps + 1, dtype=bool)
    return changed(
        trajectory,
        obs={name: x[rows] for name, x in trajectory.obs.items()},
        action=trajectory.action[rows],
        reward=np.where(valid, trajectory.reward[rows], math.nan).astype(np.float32),
        terminated=terminated,
        truncated=np.arange(steps + 1) == steps - 1,
        valid=valid,
        record={name: x[rows] for name, x in trajectory.record.items()},
    )


def estimate(policy, spec, clock, model, source, question, fit, told=lambda fold, update: None):
    return answered(policy, RecordedEpisodes(source, spec), clock, model, question, fit, told)


def asked(*methods, **more):
    return Question(methods=methods or METHODS, discount=DISCOUNT, **more)


def value_of(policy, steps=3, discount=DISCOUNT):
    """The exact value of a policy in the stop chain, backwards."""
    value = 0.0
    for t in reversed(range(steps)):
        obs = Batch(observation=torch.from_numpy(place(t)).view(1, 1, 4))
        p = policy.log_probs(Batch(obs=obs, is_first=torch.ones(1, 1, dtype=torch.bool)), "explore", CLOCK)[0, 0].exp()
        value = float(p[1]) * (1 + t / 2) + float(p[0]) * (discount * value if t < steps - 1 else 0.0)
    return value


def shifted(policy, by):
    """Makes a policy of two choices prefer the second one by so many logits more."""
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([0.0, by]))
    return policy


# -- the whole estimate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "words"), [("ppo", []), ("ppo", ["model=lstm"]), ("dqn", []), ("r2d2", ["model=lstm"]), ("sac", [])]
)
def test_10_a_policy_judged_by_its_own_episodes_has_weights_of_1(algo, words):
    spec, game = (LEVER, lever) if algo == "sac" else (CHAIN, chain)
    policy, model = made(algo, spec, *words)
    source = Memory(spec, play(policy, spec, game, 40))
    report = estimate(policy, spec, CLOCK, model, source, asked("is", "pdis", "wis", "step_wis"), QUICK)
    for answer in report.answers:
        assert answer.value == pytest.approx(report.data_value, rel=1e-4)
        assert answer.effective == pytest.approx(40, rel=1e-4) and answer.mean_weight == pytest.approx(1, rel=1e-4)
        assert answer.low < answer.value < answer.high
    assert report.warnings == [] and report.episodes == 40
    returns = [sum(DISCOUNT**t * r for t, r in enumerate(one.reward[:-1])) for one in source.trajectories]
    assert report.data_value == pytest.approx(np.mean(returns), rel=1e-6)
    assert report.data_return == pytest.approx(np.mean([one.ret for one in source.trajectories]), rel=1e-6)


def test_every_method_finds_the_value_of_another_policy():
    """The data are from a policy that stops half the time; the one that is judged stops more seldom."""
    behaviour, _ = made("ppo", CHAIN)
    source = Memory(CHAIN, play(shifted(behaviour, 0.0), CHAIN, chain, 1500))
    policy, model = made("ppo", CHAIN)
    shifted(policy, -1.2)
    truth, theirs = value_of(policy), value_of(behaviour)
    assert abs(truth - theirs) > 0.3
    told = []
    report = estimate(
        policy, CHAIN, CLOCK, model, source, asked(), QUICK, lambda fold, update: told.append((fold, update))
    )
    assert report.data_value == pytest.approx(theirs, abs=0.05)
    for answer in report.answers:
        assert answer.value == pytest.approx(truth, abs=0.1 if answer.method != "dm" else 0.05), answer.method
        if answer.method != "dm":
            assert answer.low < truth < answer.high, answer.method
    spread = {answer.method: answer.high - answer.low for answer in report.answers}
    assert spread["dr"] < 0.3 * spread["pdis"] and spread["wdr"] < 0.3 * spread["step_wis"], (
        "a good model takes the spread away"
    )
    assert [fold for fold, update in told if update == QUICK.updates] == [0, 1]


def test_the_value_of_a_policy_of_numbers():
    behaviour, _ = made("sac", LEVER)
    source = Memory(LEVER, play(behaviour, LEVER, lever, 400))
    policy, model = made("sac", LEVER)
    with torch.no_grad():
        policy.net.head.linear.bias.copy_(torch.tensor([0.3, -0.7]))
    own = list(play(policy, LEVER, lever, 600, seed=9))
    truth = np.mean([one.reward[0] + DISCOUNT * one.reward[1] for one in own])
    report = estimate(policy, LEVER, CLOCK, model, source, asked("pdis", "step_wis", "dm", "dr"), SMOOTH)
    assert abs(report.data_value - truth) > 0.05, "or the data's own return would do"
    for answer in report.answers:
        assert answer.value == pytest.approx(truth, abs=0.2 if answer.method == "pdis" else 0.06), answer.method


def test_the_model_learns_from_executed_actions_and_the_weights_from_drawn_ones(monkeypatch):
    """PPO's Gaussian draws numbers beyond the bounds, and its probabilities are those of what it drew."""
    policy, model = made("ppo", LEVER)
    source = Memory(LEVER, play(policy, LEVER, lever, 40))
    assert max(abs(one.action).max() for one in source.trajectories) > 1
    seen = []
    fit = FittedQ.__init__
    monkeypatch.setattr(FittedQ, "__init__", lambda self, *given: (seen.append(given[3]), fit(self, *given))[1])
    report = estimate(policy, LEVER, CLOCK, model, source, asked("dr"), dataclasses.replace(QUICK, updates=1))
    assert report.answers[0].effective == pytest.approx(40, rel=1e-4)
    for rows in seen:
        assert rows.action.abs().max() == 1 and rows.policy.abs().max() == 1


def test_a_greedy_policy_of_ddpg_has_a_direct_estimate_and_no_other():
    behaviour, _ = made("sac", LEVER)
    source = Memory(LEVER, play(behaviour, LEVER, lever, 400))
    policy, model = made("ddpg", LEVER)
    with torch.no_grad():
        policy.net.head.linear.bias.fill_(math.atanh(0.3))
        policy.net.head.linear.weight.zero_()
    report = estimate(policy, LEVER, CLOCK, model, source, asked("dm", mode="greedy"), SMOOTH)
    assert report.answers[0].value == pytest.approx(1 + DISCOUNT, abs=0.05), "it always pulls to 0.3"
    with pytest.raises(
        UserError, match=r"^is: a policy of one action and noise, .* gives no densities .* method=dm needs no"
    ):
        estimate(policy, LEVER, CLOCK, model, source, asked("is", mode="greedy"), QUICK)


def test_a_lost_life_does_not_end_an_episode_and_its_dead_row_is_no_step():
    """The dead row holds a reward and an action that mean nothing, and the row before it is terminated."""
    policy, _ = made("ppo", CHAIN)
    shifted(policy, -3.0)
    source = Memory(CHAIN, play(policy, CHAIN, chain, 6, dead_at=1))
    played = RecordedEpisodes(source, CHAIN)
    data, row = padded(played)
    assert int(data.reward.max()) < 100 and data.valid.sum() == sum(one.steps for one in source.trajectories)
    assert data.terminated.all()
    # Each episode: row 0, a dead row, rows 2 and 3, and the end; what is kept leaves the dead row out.
    long = played.lengths.index(5)
    assert row[data.row[long]].tolist() == [played.starts[long] + i for i in (0, 2, 3)]
    assert row[data.end[long]] == played.starts[long] + 4
    chosen = log_prob(played, policy, "explore", CLOCK)[row][data.row]
    assert (chosen - data.log_b)[data.valid].abs().max() < 1e-5


def test_memory_is_told_the_last_action_and_reward_where_the_data_do_not_hold_them():
    spec = with_previous(CHAIN, True, True)
    policy, model = made("ppo", spec, "model=lstm", "model.memory.prev_action=true", "model.memory.prev_reward=true")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3.0)
    source = Memory(CHAIN, play(policy, spec, chain, 20))
    report = estimate(policy, spec, CLOCK, model, source, asked("is", "step_wis", "dm"), QUICK)
    assert report.answers[0].effective == pytest.approx(20, rel=1e-3), "the same probabilities as when it played"


def test_stacks_of_frames_are_made_of_the_frames_of_the_data():
    spec = with_stack(CHAIN, 3)
    policy, _ = made("ppo", spec)
    source = Memory(spec, play(made("ppo", CHAIN)[0], CHAIN, chain, 4))
    played = RecordedEpisodes(source, spec)
    seen = played.rows["obs"]["observation"]
    assert seen.shape == (sum(played.lengths), 3, 4)
    start, count = played.starts[1], played.lengths[1]
    for t in range(count):
        for back in range(3):
            expected = torch.from_numpy(place(t - back)) if t >= back else torch.zeros(4)
            assert torch.equal(seen[start + t, 2 - back], expected) or t == count - 1
    assert policy.log_prob(played.rows.map(lambda x: x.unsqueeze(1)), "explore", CLOCK).isfinite().all()


# -- what is said ------------------------------------------------------------------------------------------------------


def test_small_effective_sizes_and_unfinished_episodes_are_said():
    behaviour, _ = made("ppo", CHAIN)
    policy, model = made("ppo", CHAIN)
    shifted(behaviour, 4.0), shifted(policy, -4.0)
    whole, cut = play(behaviour, CHAIN, chain, 30), play(behaviour, CHAIN, chain, 3, whole=False)
    report = estimate(policy, CHAIN, CLOCK, model, Memory(CHAIN, [*whole, *cut]), asked("is", "wis"), QUICK)
    assert report.left_out == 3 and report.episodes == 30
    said = " ".join(report.warnings)
    assert "worth" in said and "not reliable" in said and "3 trajectories of memory were left out" in said
    assert "mean weight" in said
    table = shown(report, 0.9)
    assert "90% from" in table and "the data's own" in table and said.split(". ")[0] in table
    few = estimate(behaviour, CHAIN, CLOCK, model, Memory(CHAIN, play(behaviour, CHAIN, chain, 5)), asked("dm"), QUICK)
    assert "There are only 5 episodes." in few.warnings
    own = Memory(CHAIN, play(behaviour, CHAIN, chain, 5))
    same = estimate(behaviour, CHAIN, CLOCK, model, own, asked("is", "wis"), QUICK)
    assert same.warnings == ["There are only 5 episodes."], "weights of 1 lose nothing"


def test_a_policy_that_never_does_what_the_data_show_has_no_weighted_estimate():
    behaviour, _ = made("ppo", CHAIN)
    shifted(behaviour, 30.0)
    policy, model = made("ppo", CHAIN)
    shifted(policy, -30.0)
    source = Memory(CHAIN, play(behaviour, CHAIN, chain, 10))
    report = estimate(policy, CHAIN, CLOCK, model, source, asked("is", "wis", mode="greedy"), QUICK)
    plain, weighted = report.answers
    assert (plain.value, plain.effective) == (0.0, 0.0) and weighted.value is None and weighted.low is None
    assert any("every weight is 0" in warning for warning in report.warnings)
    assert "wis" in shown(report, 0.95)


def test_what_cannot_be_estimated_gets_a_sentence():
    policy, model = made("ppo", CHAIN)
    episodes = list(play(policy, CHAIN, chain, 4))
    without = [changed(one, record={}) for one in episodes]

    def refused(match, source, spec=CHAIN, question=None):
        with pytest.raises(UserError, match=match):
            estimate(policy, spec, CLOCK, model, source, question or asked(), QUICK)

    refused(r"memory has no behaviour probabilities, and method=is,pdis,.* needs them", Memory(CHAIN, without, False))
    refused(r"no behaviour probabilities in 2 of 4 episodes", Memory(CHAIN, [*episodes[:2], *without[:2]]))
    assert estimate(policy, CHAIN, CLOCK, model, Memory(CHAIN, without, False), asked("dm"), QUICK).answers[0].value
    dense = [changed(one, record={"log_prob": np.full(len(one), 1.5, np.float32)}) for one in episodes]
    refused(r"probabilities above 1: 4.48169 is the largest", Memory(CHAIN, dense))
    refused("no whole episode", Memory(CHAIN, [changed(one, whole=False) for one in episodes]))
    other = EnvSpec(
        name="other",
        obs={"observation": Box(shape=(3,), dtype="float32", low=(0.0,), high=(1.0,))},
        action=Discrete(n=2),
    )
    refused(r"memory has observations Box\(\[3\], float32\), and the policy .* Box\(\[4\]", Memory(other, episodes))
    more = EnvSpec(name="more", obs={"observation": SEEN}, action=Discrete(n=3))
    refused(r"memory has actions Discrete\(3\), and the policy was trained with Discrete\(2\)", Memory(more, episodes))
    masked = EnvSpec(name="masked", obs={**CHAIN.obs, "action_mask": MultiBinary(shape=(2,))}, action=Discrete(n=2))
    refused("memory has action masks", Memory(masked, episodes))
    several = EnvSpec(name="two", obs=CHAIN.obs, action=CHAIN.action, agents=Agents(groups=(("g", ("a", "b")),)))
    refused("estimated for one agent, and two has 2", Memory(several, episodes))
    bounds = EnvSpec(
        name="wide", obs={"observation": SEEN}, action=Box(shape=(1,), dtype="float32", low=(-2.0,), high=(2.0,))
    )
    with pytest.raises(UserError, match="with other bounds"):
        RecordedEpisodes(Memory(bounds, episodes), LEVER)
    refused("needs bounds", Memory(CHAIN, episodes), question=asked("is", interval="bernstein"))
    limited = Memory(CHAIN, [changed(one, terminated=one.truncated, truncated=one.terminated) for one in episodes])
    forever = dataclasses.replace(asked(), discount=1.0)
    refused("^dm, dr, wdr: a time limit cut all 4 episodes, .* such as discount=0.99", limited, question=forever)
    assert estimate(policy, CHAIN, CLOCK, model, limited, dataclasses.replace(forever, methods=("is",)), QUICK).answers
    turned = asked("is", interval="bernstein", bounds=(5.0, 1.0))
    refused("a LOW that is below HIGH", Memory(CHAIN, episodes), question=turned)


def test_without_a_discount_some_episodes_have_to_come_to_their_own_end():
    """Where a limit of one step cut some, the model adds what the others show of the rest."""
    policy, model = made("ppo", CHAIN)
    played = list(play(policy, CHAIN, chain, 400))
    limited = [cut_after(one, 1) if one.steps > 1 and number % 3 else one for number, one in enumerate(played)]
    source, question = Memory(CHAIN, limited), dataclasses.replace(asked("dm", "dr"), discount=1.0)
    report = estimate(policy, CHAIN, CLOCK, model, source, question, QUICK)
    truth = value_of(policy, discount=1.0)
    assert 100 < report.cut < 300 and report.data_value < truth - 0.3, "or the data's own return would do"
    assert [one.value for one in report.answers] == pytest.approx([truth, truth], abs=0.1)
    (told,) = (warning for warning in report.warnings if "time limit cut" in warning)
    assert told.endswith("Without a discount, this value may be infinite.")
    with_discount = estimate(policy, CHAIN, CLOCK, model, source, asked("dm"), QUICK).warnings
    assert any("time limit cut" in one for one in with_discount) and not any("infinite" in one for one in with_discount)


def test_the_interval_that_was_asked_for():
    policy, model = made("ppo", CHAIN)
    source = Memory(CHAIN, play(policy, CHAIN, chain, 200))
    widths = {}
    for kind in ("bootstrap", "t", "bernstein"):
        question = asked("is", "wis", interval=kind, bounds=(0.0, 2.0))
        report = estimate(policy, CHAIN, CLOCK, model, source, question, QUICK)
        answer = report.answers[0]
        widths[kind] = answer.high - answer.low
        assert answer.low < answer.value < answer.high
        assert (report.answers[1].low is None) == (kind == "bernstein")
        assert any("weighted ones are not" in warning for warning in report.warnings) == (kind == "bernstein")
    assert widths["t"] == pytest.approx(widths["bootstrap"], rel=0.1) and widths["bernstein"] > 2 * widths["t"]
    narrow = estimate(policy, CHAIN, CLOCK, model, source, asked("is", interval="bernstein", bounds=(0.0, 0.5)), QUICK)
    assert narrow.answers[0].low is None and any("one episode contributes" in one for one in narrow.warnings)
    wide = estimate(policy, CHAIN, CLOCK, model, source, asked("is", interval="t", confidence=0.99), QUICK).answers[0]
    assert wide.high - wide.low == pytest.approx(widths["t"] * 2.6006 / 1.9720, rel=1e-3)


@pytest.mark.parametrize("kind", ["bootstrap", "t"])
def test_what_is_no_number_is_left_out_of_the_report(kind):
    """One episode has no interval. A weight above 1e308 is no number of JSON, and neither is an interval as wide."""
    policy, model = made("ppo", CHAIN)
    one, *others = play(policy, CHAIN, chain, 3)
    report = estimate(policy, CHAIN, CLOCK, model, Memory(CHAIN, [one]), asked("is", interval=kind), QUICK)
    assert (report.answers[0].low, report.answers[0].high, report.data_low, report.data_high) == (None,) * 4
    assert report.answers[0].value is not None and "is has no interval: there is only one episode." in report.warnings
    for log_b in (-800.0, -600.0):
        heavy = changed(one, record={"log_prob": np.full(len(one), log_b / one.steps, np.float32)})
        source = Memory(CHAIN, [heavy, *others])
        report = estimate(policy, CHAIN, CLOCK, model, source, asked("is", "wis", interval=kind), QUICK)
        json.dumps(dataclasses.asdict(report), allow_nan=False)
        assert any("episodes are worth 1.0 episodes" in warning for warning in report.warnings)
    assert report.answers[0].mean_weight > 1e250, "as large as it is, this is a number"


def test_the_discount_is_that_of_the_algorithm_inside():
    for algo, discount in (("rnd", "inner.discount"), ("apex", "inner.discount"), ("alphazero", "search.discount"), ("ppo", "discount")):  # fmt: skip
        env = "CartPoleSparse-v0" if algo == "alphazero" else "CartPole-v1"
        words = [f"env={env}", f"algo.{discount}=0.7", *(["algo.ranked.enabled=false"] if algo == "alphazero" else [])]
        assert discount_of(type_config(compose(f"algo={algo}", *words)).algo) == 0.7, algo
    assert discount_of(type_config(compose("algo=bc", "env=CartPole-v1")).algo) == 1.0


# -- fitted Q ----------------------------------------------------------------------------------------------------------


def random_mdp(states=5, actions=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    following = torch.rand(states, actions, states, generator=rng, dtype=torch.float64)
    following = following / following.sum(-1, keepdim=True)
    reward = torch.randn(states, actions, generator=rng, dtype=torch.float64)
    policy = torch.softmax(torch.randn(states, actions, generator=rng, dtype=torch.float64), -1)
    ends = torch.rand(states, actions, generator=rng) < 0.2
    return following, reward, policy, ends


def solved(following, reward, policy, ends, discount):
    """Q^pi by the linear solve (I - discount P_pi) Q = r."""
    states, actions = reward.shape
    step = (following * ~ends.unsqueeze(-1)).unsqueeze(-1) * policy  # [S, A, S', A']
    step = step.reshape(states * actions, states * actions)
    return torch.linalg.solve(torch.eye(states * actions) - discount * step, reward.flatten()).view(states, actions)


def test_12_fitted_q_of_a_table_is_the_linear_solve():
    """Of rows drawn at random, it is that of the MDP whose chances are their frequencies."""
    following, reward, policy, ends = random_mdp()
    rng = torch.Generator().manual_seed(1)
    state = torch.randint(5, (4000,), generator=rng)
    action = torch.randint(3, (4000,), generator=rng)
    after = torch.multinomial(following[state, action], 1, generator=rng).squeeze(1)
    seen = torch.zeros(5, 3, 5, dtype=torch.float64)
    seen.index_put_((state, action, after), torch.ones(4000, dtype=torch.float64), accumulate=True)
    seen = seen / seen.sum(-1, keepdim=True)
    table = torch.eye(15, dtype=torch.float64)
    features = table[state * 3 + action]
    then = (policy[after].unsqueeze(-1) * table.view(5, 3, 15)[after]).sum(1) * ~ends[state, action].unsqueeze(1)
    for discount in (0.0, 0.9, 0.99):
        made = linear_fitted_q(features, reward[state, action], then, discount).view(5, 3)
        torch.testing.assert_close(made, solved(seen, reward, policy, ends, discount), atol=1e-9, rtol=1e-9)
    with pytest.raises(ValueError, match="does not converge"):
        linear_fitted_q(torch.ones(2, 1), torch.ones(2), 2 * torch.ones(2, 1), 0.9)


def test_fitted_q_of_the_wall_beside_the_cliff_has_its_known_values():
    """RLlib's CliffWalkingWall on its best path: -1 for every step and 10 for the last one, discount 0.99 (rllib, estimators' tests)."""
    known = [-2.50, -1.51, -0.52, 0.49, 1.50, 2.53, 3.56, 4.61, 5.67, 6.73, 7.81, 8.90, 10.00]
    places = torch.eye(13, dtype=torch.float64)
    then = torch.cat([places[1:], torch.zeros(1, 13, dtype=torch.float64)])
    reward = torch.tensor([-1.0] * 12 + [10.0])
    assert linear_fitted_q(places, reward, then, 0.99).tolist() == pytest.approx(known, abs=0.006)


def test_12_dr_with_the_solved_values_of_a_deterministic_chain_has_no_spread():
    """The model is fitted to the episodes as a table, and judges them again: DR is the value in every one of them."""
    from rlrun.ops.estimators import doubly_robust

    behaviour, _ = made("ppo", CHAIN)
    shifted(behaviour, 0.0)
    policy, _ = made("ppo", CHAIN)
    shifted(policy, -1.2)
    data, row = padded(played := RecordedEpisodes(Memory(CHAIN, play(behaviour, CHAIN, chain, 60)), CHAIN))
    log_pi = log_prob(played, policy, "explore", CLOCK)[row][data.row]
    obs = played.rows["obs"]["observation"][row].argmax(-1)  # the number of steps so far [M]
    action = played.rows["action"][row]
    seen = Batch(obs=Batch(observation=torch.eye(4).unsqueeze(1)), is_first=torch.ones(4, 1, dtype=torch.bool))
    chance = policy.log_probs(seen, "explore", CLOCK)[:, 0].exp().double()
    table = torch.eye(8, dtype=torch.float64)
    step = data.row[data.valid]
    ended = torch.zeros(len(row), dtype=torch.bool)
    ended[data.end - 1] = True
    then = (chance[obs[step + 1]].unsqueeze(-1) * table.view(4, 2, 8)[obs[step + 1]]).sum(1) * ~ended[step].unsqueeze(1)
    q = linear_fitted_q(table[obs[step] * 2 + action[step]], data.reward[data.valid], then, DISCOUNT).view(4, 2)
    value = (chance * q).sum(-1)
    made_of = doubly_robust(
        data.reward, log_pi - data.log_b, data.valid, DISCOUNT, value[obs[data.row]], q[obs[data.row], action[data.row]],
        torch.zeros(60),
    )  # fmt: skip
    assert float(made_of.each.std()) < 1e-6 and float(made_of.value) == pytest.approx(value_of(policy), abs=1e-5)


def three_steps_of_one_state() -> PlayedRows:
    """A state that pays 1 for ever, cut after 3 steps."""
    return PlayedRows(
        obs=Batch(observation=torch.ones(4, 4)),
        action=torch.zeros(4, dtype=torch.int64),
        reward=torch.tensor([1.0, 1.0, 1.0, math.nan]),
        terminated=torch.zeros(4, dtype=torch.bool),
        step=torch.arange(3),
        policy=torch.tensor([[1.0, 0.0]]).expand(4, 2),
    )


def test_the_network_goes_on_at_a_time_limit_and_not_at_the_end():
    """One state that pays 1 for ever, cut after 3 steps: with truncation the value is 1 / (1 - 0.9), and with a real end it is that of the steps left."""
    rows = three_steps_of_one_state()
    _, model = made("ppo", CHAIN)
    cfg = FittedQConfig(updates=1500, batch_size=16, lr=5e-2, hidden=(), target_tau=0.1, clip=True)
    rng = torch.Generator().manual_seed(0)
    torch.testing.assert_close(returns_to_go(rows, 0.9), torch.tensor([2.71, 1.9, 1.0, 0.0], dtype=torch.float64))
    fitted = FittedQ(CHAIN, Model(model), cfg, rows, 0.9, rng)
    assert float(fitted.value(rows, torch.tensor([0]))) == pytest.approx(10, abs=0.3)
    ended = rows._replace(terminated=torch.tensor([True, True, True, False]))
    assert float(FittedQ(CHAIN, Model(model), cfg, ended, 0.9, rng).q(ended, torch.tensor([0]))) == pytest.approx(
        1, abs=0.05
    )
    again = FittedQ(CHAIN, Model(model), cfg, rows, 0.9, torch.Generator().manual_seed(0))
    assert torch.equal(fitted.value(rows, torch.tensor([0])), again.value(rows, torch.tensor([0]))), "seeded"


@pytest.mark.parametrize("case", ["images", "several choices", "nested actions", "nested observations"])
def test_the_network_takes_every_space(case):
    """Rows that pay 1 for one action and 0 for another, and end: Q tells them apart, and V is their mean under the policy."""
    observation, action = SEEN, Discrete(n=2)
    good, bad = torch.tensor(1), torch.tensor(0)
    if case == "images":
        observation = Box(shape=(1, 36, 36), dtype="uint8", low=(0.0,), high=(255.0,), stacked=True)
    elif case == "nested observations":
        observation = Nested(spaces=(("number", SEEN), ("choice", Discrete(n=3))), ordered=False)
    elif case == "several choices":
        action = MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,))
        good, bad = torch.tensor([1, 2]), torch.tensor([1, 0])
    else:
        action = Nested(spaces=(("push", LEVER.action), ("pick", Discrete(n=2))), ordered=True)
        good = Batch(push=torch.tensor([0.5]), pick=torch.tensor(1))
        bad = Batch(push=torch.tensor([-0.5]), pick=torch.tensor(1))
    spec = EnvSpec(name="any", obs={"observation": observation}, action=action)
    _, model = made("ppo", CHAIN, "model.hidden=[16]", "model.encoder=auto")

    rng = torch.Generator().manual_seed(0)
    seen = (
        torch.randint(255, (64, 1, 36, 36), generator=rng, dtype=torch.uint8)
        if case == "images"
        else torch.randn(64, 4, generator=rng)
    )
    if case == "nested observations":
        seen = Batch(number=seen, choice=torch.randint(3, (64,), generator=rng))
    pays = (torch.arange(64) // 2) % 2
    pick = lambda a, b: torch.where(pays.view(-1, *[1] * a.ndim) == 1, a, b)  # noqa: E731
    action_rows = (
        Batch({name: pick(good[name], bad[name]) for name in good}) if isinstance(good, Batch) else pick(good, bad)
    )
    drawn = (
        Batch({name: torch.stack([good[name], bad[name]]).expand(64, 2, *good[name].shape) for name in good})
        if isinstance(good, Batch)
        else torch.stack([good, bad]).expand(64, 2, *good.shape)
    )
    rows = PlayedRows(
        obs=Batch(observation=seen),
        action=action_rows,
        reward=pays.float(),
        terminated=torch.ones(64, dtype=torch.bool),
        step=torch.arange(0, 64, 2),
        policy=torch.full((64, 2), 0.5) if isinstance(action, Discrete) else drawn,
    )
    cfg = FittedQConfig(updates=150, batch_size=32, lr=5e-3, hidden=(16,), target_tau=0.1, clip=True)
    fitted = FittedQ(spec, Model(model), cfg, rows, 0.9, rng)
    assert (fitted.q(rows, rows.step) - pays[rows.step]).abs().max() < 0.35
    assert abs(float(fitted.value(rows, rows.step).mean()) - 0.5) < 0.2


def test_targets_are_clipped_to_what_returns_can_be():
    assert return_range(torch.tensor([1.0, 3.0]), 0.5) == (0.0, 6.0)
    assert return_range(torch.tensor([-2.0, 1.0]), 0.0) == (-2.0, 1.0)
    assert return_range(torch.tensor([0.0, 1.0]), 1.0) == (0.0, math.inf)

    class Boasting(FittedQ):
        """One whose target network says that every state is worth 1,000."""

        def value(self, rows, index):
            return torch.full(index.shape, 1e3)

    rows = three_steps_of_one_state()
    _, model = made("ppo", CHAIN)
    cfg = FittedQConfig(updates=100, batch_size=8, lr=0.1, hidden=(), target_tau=1.0, clip=True)
    fitted = Boasting(CHAIN, Model(model), cfg, rows, 0.5, torch.Generator().manual_seed(0))
    assert float(fitted.q(rows, torch.tensor([0]))) == pytest.approx(2, abs=0.05), "1 / (1 - 0.5), and not 501"


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_and_data(tmp_path_factory):
    place = tmp_path_factory.mktemp("estimate")
    run, data = place / "run", place / "data"
    words = ["algo=ppo", "env=CartPole-v1", "logger=[]", "resources=debug", "model.hidden=[8]", "env_steps=1000"]
    words += ["algo.fragment_length=25", "algo.batch_size=50", "algo.minibatch_size=50", "algo.num_epochs=1"]
    assert _dispatch(["train", *words, f"run_dir={run}", f"record={data}"]) == 0
    return run, data


def test_the_command_prints_a_table_or_json(run_and_data, capsys):
    run, data = run_and_data
    capsys.readouterr()
    words = ["estimate", str(run), f"data.path={data}", "model.updates=20", "model.hidden=[8]"]
    assert _dispatch([*words, "episodes=9"]) == 0
    table = capsys.readouterr().out
    for word in (*METHODS[:-1], "effective", "the data's own", "learnt by 40 updates", "CartPole-v1, the exploring policy", "covers played"):
        assert word in table, word
    assert "The policy played 9 episodes with a mean return of" in table and "with this discount, and of" in table
    assert _dispatch([*words, "method=wis,dm", "discount=0.5", "interval=t", "episodes=30", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in said["answers"]] == ["wis", "dm"] and said["discount"] == 0.5
    assert said["data_low"] < said["data_value"] < said["data_high"] <= 2.0 + 1e-3
    assert said["episodes"] > 10 and not said["greedy"] and said["interval"] == "t"
    assert said["answers"][0]["value"] == pytest.approx(2.0, abs=0.1), "CartPole pays 1 in every step"
    played = said["played"]
    assert played["episodes"] == 30 and played["low"] < played["value"] < played["high"] and said["not_played"] is None
    assert played["return_mean"] == played["length_mean"] > 8, "1 in every step, without discount"
    assert played["value"] == pytest.approx(2.0, abs=0.05), "and with it"
    for one in said["answers"]:
        assert one["covers_played"] is (one["low"] <= played["value"] <= one["high"])
    assert _dispatch([*words[:3], "method=wis", "data.episodes=4", "episodes=0", "greedy=true", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["episodes"] == 4 and said["greedy"] and said["played"] is None
    assert said["answers"][0]["covers_played"] is None and said["not_played"] == "episodes=0 plays none"


def test_what_has_no_finite_estimate_is_left_out_unless_it_is_asked_for(run_and_data, tmp_path, capsys):
    run, data = run_and_data
    source = open_source(str(data))
    for name, ended in (("limited", 0), ("partly", 1)):
        writer = Writer(tmp_path / name, source.facts)
        for number, one in enumerate(source.read(0)):
            cut = changed(one, terminated=one.truncated, truncated=one.terminated)
            writer.write(one if number < ended else cut)
        writer.close()
    words = ["estimate", str(run), f"data.path={tmp_path / 'limited'}", "discount=1", "episodes=0"]
    capsys.readouterr()
    assert _dispatch([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in said["answers"]] == ["is", "pdis", "wis", "step_wis"]
    assert sum("dm and dr are left out: a time limit cut" in warning for warning in said["warnings"]) == 1
    for asked_for in (["method=is,dm"], ["model.updates=20"]):
        with pytest.raises(UserError, match=r"dm.*: a time limit cut"):
            _dispatch([*words, *asked_for, "--json"])
    small_model = ["model.updates=20", "model.hidden=[8]", "model.batch_size=16"]
    for name, discount in (("limited", 0.99), ("partly", 1)):
        more = [f"data.path={tmp_path / name}", f"discount={discount}", "episodes=0", *small_model, "--json"]
        assert _dispatch([*words[:2], *more]) == 0
        assert [one["method"] for one in json.loads(capsys.readouterr().out)["answers"]][-2:] == ["dm", "dr"]


def test_rllib_s_files_are_read_as_the_run_reads_them_or_as_is_asked(run_and_data, capsys, monkeypatch):
    run, data = run_and_data
    asked, opened = [], open_source
    monkeypatch.setattr(
        "rlrun.datasets.open.open_source", lambda path, *more: (asked.append(more[-1]), opened(path, *more))[1]
    )

    def with_units(*given):
        made = load(*given)
        own = dataclasses.replace(made.config.run.data, actions_normalized=False)
        made.config = dataclasses.replace(made.config, run=dataclasses.replace(made.config.run, data=own))
        return made

    words = ["estimate", str(run), f"data.path={data}", "method=wis", "episodes=0"]
    assert _dispatch(words) == 0
    monkeypatch.setattr("rlrun.runtime.trained.load", with_units)
    with pytest.raises(UserError, match=r"data.actions_normalized is for RLlib's files .* holds none"):
        _dispatch([*words, "data.actions_normalized=true"])
    monkeypatch.setattr("rlrun.runtime.unused.in_units", lambda spec, sources: True)
    assert _dispatch(words) == _dispatch([*words, "data.actions_normalized=true"]) == 0
    assert asked == [True, True, False, True]


def test_discounted_returns_of_games_are_those_of_their_rewards(run_and_data):
    """CartPole pays 1 in every step. An exploring policy plays others than a greedy one, from the same seeds."""
    trained = rlrun.load(run_and_data[0])
    factory = Factory(cfg=trained.config.env, spec=trained.spec, seeds=Seeds(3), stream="estimate", learning=False)
    means = {}
    for mode in ("explore", "greedy"):
        evaluator = Evaluator(factory, 4, Seeds(3))
        games = evaluator.games(trained.policy, 10, mode, trained.clock, discount=0.9)
        evaluator.close()
        assert len({game.length for game in games}) > 3
        for game in games:
            assert game.discounted == pytest.approx((1 - 0.9**game.length) / 0.1) and game.ret == game.length
        means[mode] = sum(game.discounted for game in games) / 10
    again = played_value(trained.policy, factory, "greedy", trained.clock, 0.9, 1, Seeds(3), 0.95)
    assert (again.low, again.return_high, again.covered_by(None, None)) == (None, None, None)
    assert means["explore"] != means["greedy"]


def test_a_run_without_an_environment_is_played_where_the_data_s_is_known(run_and_data, tmp_path, capsys, monkeypatch):
    run, data = tmp_path / "run", run_and_data[1]
    words = ["algo=bc", f"data.path={data}", "logger=[]", "resources=debug", "model.hidden=[8]"]
    assert _dispatch(["train", *words, "algo.batch_size=50", "env_steps=500", f"run_dir={run}"]) == 0

    def said():
        capsys.readouterr()
        words = ["estimate", str(run), f"data.path={data}", "method=wis", "episodes=5", "discount=1"]
        assert _dispatch(words) == 0
        return capsys.readouterr().out

    assert re.search(r"The policy played 5 episodes with a mean return of \d+\.?\d* \(95%: [\d.-]+ to [\d.]+\)\.", said())
    assert _dispatch(["evaluate", str(run), "episodes=3"]) == 0
    assert "CartPole-v1 at 500 env steps: return" in capsys.readouterr().out
    assert _dispatch(["record", str(run), "episodes=2", f"to={tmp_path / 'again'}"]) == 0
    assert "2 trajectories" in capsys.readouterr().out
    with pytest.raises(UserError, match="Acrobot-v1 has other observations here than in the data"):
        _dispatch(["evaluate", str(run), "env=Acrobot-v1"])
    with pytest.raises(UserError, match="env= is for runs that learnt from data"):
        _dispatch(["evaluate", str(run_and_data[0]), "env=CartPole-v1"])
    own = make_spec(rlrun.load(run_and_data[0]).config.env)
    for change, why in (
        (("names", lambda: ["Pendulum-v1"]), "this machine has none that is called CartPole-v1"),
        (("make_spec", lambda *given: dataclasses.replace(own, max_episode_steps=77)), "other steps in an episode here"),
        (("make_spec", lambda *given: LEVER), "other actions here"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"rlrun.runtime.played_env.{change[0]}", change[1])
            table = said()
            with pytest.raises(UserError, match=f"the run learnt from data, without an environment, and .*{why}.*nothing to play"):
                _dispatch(["evaluate", str(run)])
        assert "no value of games that the policy played: the run learnt from data, without an environment, and" in table
        assert why in table and "covers played" not in table


def test_bad_words_get_a_sentence(run_and_data):
    run, data = run_and_data
    for words, match in (
        ([f"data.path={data}", "method=[]"], r"method=\[\] asks for no estimate: name some of"),
        ([f"data.path={data}", "method=wsi"], r"method must be some of .* not 'wsi'.*wis"),
        ([], "data.path=DIR"),
        ([f"data.path={data}/nothing"], "no file or folder"),
        ([f"data.path={data}", "model.update=3"], r"There is no option model.update\. Did you mean .*updates"),
        ([f"data.path={data}", "discount=2"], "discount must be between 0 and 1"),
        ([f"data.path={data}", "episodes=-1"], "episodes must be at least 0"),
        ([f"data.path={data}", "data.episodes=0"], r"data\.episodes must be"),
        (["data.episodes=3"], "data.path=DIR"),
        ([f"data.path={data}", "interval=normal"], "interval must be one of bootstrap, t, bernstein"),
        ([f"data.path={data}", "bounds=[0,1]"], "bounds is for interval=bernstein, and the interval is bootstrap"),
        ([f"data.path={data}", "method=is,wis", "folds=2", "model.updates=5"], r"^folds, model\.updates: only dm, dr and wdr learn a model, and method=is,wis asks for none"),
        ([f"data.path={data}", "method=is", "num_actions=9"], "^num_actions: only dm"),
        ([f"data.path={data}", "method=dm", "model.updates=5", "num_actions=9"], "num_actions has no effect: the policy gives the probabilities of all choices"),
    ):
        with pytest.raises(UserError, match=match):
            _dispatch(["estimate", str(run), *words])
    assert parsed(["data.path=x", "method=[dm,dm]"]).methods == ("dm",)
