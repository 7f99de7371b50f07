"""Runs the counting environment through every kind of sampler."""

import dataclasses
import os
import re

import gymnasium
import numpy as np
import pytest
import torch
from counting import LENGTH, CountingAlgorithm, check_rows
from own_parts import OneNumber
from wired import Wired

from rlrun.core.batch import Batch, Field, allocate, fragment_layout
from rlrun.core.callbacks import EnvCallback
from rlrun.core.schedule import Clock
from rlrun.policies.exploration import Chosen, Exploration
from rlrun.samplers.columns import Columns

KINDS = {
    "serial": ["resources.inference=serial", "resources.num_samplers=2"],
    "local": ["resources.inference=local", "resources.num_samplers=2"],
    "batched": ["resources.inference=batched", "resources.num_samplers=1"],
}


def counting(typed, kind: str, *words: str, env: str = "rlrun/Counting-v0") -> Wired:
    config = typed(
        "algo=impala", f"env={env}", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20", "resources.device=cpu",
        "resources.envs_per_sampler=2", *KINDS[kind], *words,
    )  # fmt: skip
    return Wired(dataclasses.replace(config, algorithm=CountingAlgorithm))


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_what_the_env_produced(typed, kind):
    wiring = counting(typed, kind)
    algorithm = wiring.algorithm()
    sampler = wiring.sampler(0)
    try:
        assert sampler.columns == 2 and sampler.total_columns == 4
        sampler.publish(algorithm.policy, Clock())
        last: dict[int, torch.Tensor] = {}
        row: dict[int, int] = {}
        episodes, live = [], 0
        for _ in range(12):
            fragments = sampler.take(2)
            for fragment in fragments:
                header, batch = fragment.header, fragment.batch
                check_rows(batch)
                assert header.first_row == row.get(header.worker, 0), "rows of a column are numbered without a gap"
                row[header.worker] = header.first_row + 5
                if header.worker in last:
                    assert torch.equal(batch.obs.observation[0], last[header.worker]), (
                        "row T of a fragment is row 0 of the next"
                    )
                last[header.worker] = batch.obs.observation[5].clone()
                assert header.env_steps == int(batch.valid.sum())
                live += header.env_steps
                episodes += header.episodes
            sampler.free(fragments)
        assert set(last) == {0, 1}, "both samplers work"
        assert {e.env for e in episodes} == {0, 1, 2, 3}
        assert all(e.length == LENGTH and e.ret == LENGTH * (LENGTH + 1) / 2 for e in episodes)
        assert live >= 24 * 10 * LENGTH / (LENGTH + 1) - 8
    finally:
        sampler.close()


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_differ_between_columns_and_repeat_between_runs(typed, kind):
    tags = []
    for _ in range(2):
        wiring = counting(typed, kind)
        sampler = wiring.sampler(0)
        try:
            sampler.publish(wiring.algorithm().policy, Clock())
            seen: dict[int, list] = {}
            while len(seen) < 2:
                fragments = sampler.take(1)
                for f in fragments:
                    seen.setdefault(f.header.worker, f.batch.obs.observation[0, :, 2].tolist())
                sampler.free(fragments)
            tags.append(seen)
        finally:
            sampler.close()
    assert tags[0] == tags[1]
    assert len({tag for column in tags[0].values() for tag in column}) == 4


class TwoParts(gymnasium.Env):
    """Its actions have two parts of one form, whose names Gymnasium sorts. It pays for throttle=1 and steer=0."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Dict({name: gymnasium.spaces.Discrete(2) for name in ("steer", "throttle")})

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action["throttle"]) - float(action["steer"]), False, False, {}


class Throttles(Exploration):
    """Names the parts of an action in another order than the space."""

    def choose(self, wanted, obs, is_first, state, clock, rng):
        one = torch.ones(len(is_first), dtype=torch.int64)
        return Chosen(Batch(throttle=one, steer=1 - one), torch.zeros(len(is_first)))


class Throttle(OneNumber):
    """Names the parts of an action in another order than the space."""

    def sample(self, rng):
        one = torch.ones(self.numbers.shape[:-1], dtype=torch.int64)
        return Batch(throttle=one, steer=1 - one)


@pytest.mark.parametrize("kind", ["serial", "batched"])
@pytest.mark.parametrize(
    "own", ["algo.exploration.kind=test_samplers:Throttles", "model.action_distribution=test_samplers:Throttle"]
)
def test_the_parts_of_a_users_actions_are_known_by_their_names(typed, kind, own):
    wiring = Wired(typed(
        "algo=ppo", "env=test_samplers:TwoParts", "logger=[]", "algo.fragment_length=5", "algo.batch_size=20",
        "algo.minibatch_size=10", "resources.device=cpu", "resources.envs_per_sampler=2", *KINDS[kind], own,
    ))  # fmt: skip
    sampler = wiring.sampler(0)
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        for fragment in sampler.take(2):
            batch = fragment.batch
            assert (batch.action.throttle == 1).all() and (batch.action.steer == 0).all()
            assert (batch.reward == 1).all(), "the environment was given what the rows say"
    finally:
        sampler.close()


FAULTS = {"raise": "this env was told to fail", "kill": "killed by SIGKILL", "not-finite": "not finite"}
# "kill" in this process would end the tests, and numbers that are not finite are found in the same place everywhere.
FAILING = (("serial", "raise"), ("serial", "not-finite"), *((kind, fault) for kind in list(KINDS)[1:] for fault in ("raise", "kill")))


@pytest.mark.parametrize(("kind", "fault"), FAILING)
def test_a_failing_env_ends_the_run_naming_the_worker(typed, kind, fault):
    from rlrun.core.errors import EnvError, RunFailed

    wiring = counting(typed, kind, "++env.kwargs.fail_at=12", f"++env.kwargs.fault={fault}", "resources.restarts=0")
    algorithm = wiring.algorithm()
    sampler = wiring.sampler(0)
    try:
        sampler.publish(algorithm.policy, Clock())
        with pytest.raises(EnvError if kind == "serial" else RunFailed) as caught:
            for _ in range(30):
                sampler.free(sampler.take(1))
        text = str(caught.value)
        assert FAULTS[fault] in text
        assert kind == "serial" or "sampler-" in text
        assert "Traceback" not in text and "\n" not in text, "one sentence"
        if fault == "raise":
            assert re.search(r"Counting-v0, env \d+ \(seed \d+\) failed in step 12 on action", text), text
            assert re.search(r"RuntimeError: this env was told to fail \(.*envs/debug\.py, line \d+\)$", text), text
    finally:
        sampler.close()


class Watching(EnvCallback):
    """Tells of every episode what it saw of it."""

    def __init__(self):
        self.seen = {}

    def on_episode_start(self, column, obs):
        episode, step, tag = obs["observation"].tolist()
        self.seen[column] = {"starts": self.seen.get(column, {}).get("starts", 0) + 1, "episode": episode, "first_step": step, "tag": tag, "steps": 0,
                             "reward": 0.0, "actions": 0}  # fmt: skip

    def on_step(self, action, step):
        for column in np.flatnonzero(step.valid):
            kept = self.seen[column]
            kept["steps"] += 1
            kept["reward"] += step.reward[column]
            kept["actions"] += action[column]
            assert step.obs["observation"][column].tolist() == [kept["episode"], kept["steps"], kept["tag"]]

    def on_episode_end(self, column, ret, length):
        assert (ret, length) == (self.seen[column]["reward"], self.seen[column]["steps"])
        return {**self.seen[column], "column": self.columns[column]}


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_see_every_episode_where_it_is_stepped(typed, kind):
    wiring = counting(typed, kind, "callbacks=[test_samplers:Watching]")
    sampler = wiring.sampler(0)
    counts: dict[int, int] = {}
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        while len(counts) < 4 or min(counts.values()) < 3:
            fragments = sampler.take(2)
            for episode in (episode for fragment in fragments for episode in fragment.header.episodes):
                counts[episode.env] = counts.get(episode.env, 0) + 1
                told = {name.removeprefix("custom/"): value for name, value in episode.info.items()}
                assert told["column"] == episode.env and told["starts"] == counts[episode.env]
                assert told["episode"] == counts[episode.env] - 1 and told["first_step"] == 0
                assert told["steps"] == LENGTH and told["reward"] == episode.ret
                assert told["actions"] == sum(step % 5 for step in range(LENGTH))
            sampler.free(fragments)
    finally:
        sampler.close()


def test_callbacks_are_not_told_of_episodes_that_nobody_plays(typed):
    """With complete episodes, a column that is over waits for the others, and every fragment begins new episodes."""
    wiring = counting(typed, "serial")
    columns = Columns(wiring.sampler_plan(0).make_env(0, 2), 0, 0, None, 5, [watching := Watching()])
    view = allocate(
        fragment_layout({"observation": Field((3,), torch.float32)}, Field((), torch.int64), {}, {}, 13, 2, 0)
    ).numpy()
    view["action"][:] = 0
    for fragment in range(2):
        columns.begin(view)
        for t in range(13):
            columns.step(view, t)
        assert [episode.length for episode in columns.episodes] == [LENGTH] * 2
        assert [kept["starts"] for kept in watching.seen.values()] == [fragment + 1] * 2
    columns.env.close()


class FailsWithSeed(gymnasium.Env):
    """Raises in its second step if it has the seed in FAILING, which names one env of the run."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        self.seed, self.steps = seed if seed is not None else self.seed, 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and str(self.seed) == os.environ.get("FAILING"):
            raise KeyError("lost")
        return np.zeros(1, dtype=np.float32), 0.0, False, False, {}


gymnasium.register("FailsWithSeed-v0", entry_point="test_samplers:FailsWithSeed")


@pytest.mark.parametrize("kind", KINDS)
def test_an_env_is_named_by_its_number_among_all_of_the_run(typed, kind, monkeypatch):
    """The run's number of an env is that of its column, whichever process steps it."""
    from rlrun.core.errors import EnvError, RunFailed

    wiring = counting(typed, kind, "resources.restarts=0", env="test_samplers:FailsWithSeed-v0")
    plan = wiring.sampler_plan(0)
    groups = plan.workers * (2 if kind == "batched" else 1)
    assert groups > 1 and plan.columns > 1
    worker, slot = groups - 1, plan.columns - 1
    seed = wiring.seeds.integer("env", worker, slot, 0)
    monkeypatch.setenv("FAILING", str(seed))
    sampler = wiring.sampler(0)
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        said = rf"FailsWithSeed-v0, env {groups * plan.columns - 1} \(seed {seed}\) failed in step 2 on action \d: KeyError: 'lost' \(.*test_samplers.py"
        with pytest.raises(EnvError if kind == "serial" else RunFailed, match=said):
            for _ in range(30):
                sampler.free(sampler.take(1))
    finally:
        sampler.close()


def test_a_dead_row_holds_the_action_that_was_executed_in_place_of_the_given_one(typed):
    """As where an Atari game presses FIRE by itself. In live rows, the action is the one that was chosen."""
    wiring = Wired(typed("algo=pg", "env=CartPole-v1", "logger=[]", *KINDS["serial"], "resources.envs_per_sampler=2",
                         "algo.fragment_length=10", "algo.batch_size=40"))  # fmt: skip
    algorithm, sampler = wiring.algorithm(), wiring.sampler(0)
    env, given = sampler.collectors[0].columns.env, []
    step = env.step

    def forced(action):
        given.append(action.copy())
        made = step(action)
        valid = made.valid & np.array([len(given) % 3 > 0, True])
        return made._replace(valid=valid, executed=1 - action)

    env.step = forced
    sampler.publish(algorithm.policy, Clock())
    batch = sampler.take(1)[0].batch
    chosen = torch.from_numpy(np.stack(given))
    assert (~batch.valid).sum() >= 3
    assert torch.equal(batch.action, torch.where(batch.valid, chosen, 1 - chosen))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_episodes_fill_a_fragment(typed, kind):
    """Every column begins with a new episode and ends with the end of one, after fragment_length rows or more, and no
    row that was played is lost."""
    words = ["algo=pg", "env=CartPole-v1", "logger=[]", "algo.fragment_length=40", "algo.batch_size=160", "resources.device=cpu",
             "resources.envs_per_sampler=2", "runner.complete_episodes=true", "env.max_episode_steps=60"]  # fmt: skip
    wiring = Wired(typed(*words, *KINDS[kind]))
    algorithm, sampler = wiring.algorithm(), wiring.sampler(0)
    lengths = []
    try:
        for update in range(6):
            sampler.publish(algorithm.policy, Clock(updates=update))
            fragments = sampler.take(2)
            starts = []
            for fragment in fragments:
                header, batch = fragment.header, fragment.batch
                starts.append(batch.obs.observation[0].clone())
                assert len(batch.valid) == 40 + 80 and batch.is_first[0].all()
                assert header.env_steps == int(batch.valid.sum()) == sum(e.length for e in header.episodes)
                for column in range(2):
                    valid, ends = batch.valid[:, column], (batch.terminated | batch.truncated)[:, column]
                    last = int(valid.nonzero().max())
                    assert ends[last] and 40 <= last + 2 and last < 39 + 61, "the last live row ends an episode"
                    before = [e.length for e in header.episodes if e.env % 2 == column][:-1]
                    assert sum(before) + len(before) < 40, "and no episode began after the fragment's length"
                    assert int(ends[valid].sum()) == len(before) + 1
                lengths += [e.length for e in header.episodes]
                end = int(batch.valid.any(1).nonzero().max())
                assert not batch.action[end + 3 :].any(), "nobody acts when all episodes are over"
                assert not batch.reward[~batch.valid].any() and not (batch.terminated & ~batch.valid).any()
            sampler.free(fragments)
            assert not torch.equal(*starts), "each fragment has seeds of its own"
        if kind != "serial":
            pulses = sampler.supervised.pulses
            assert all(pulses.of(number).unfinished >= 0 for number in range(len(pulses.memory))), "nor are dead rows lost"
    finally:
        sampler.close()
    assert len(set(lengths)) > 3


@pytest.mark.parametrize("algo", ["ppo", "pg"])
def test_whole_episodes_are_learnt_from(typed, tmp_path, algo):
    words = ["env=rlrun/Identity-v0", "resources=debug", "logger=[]", "model.hidden=[64]", "env_steps=60000", "stop.return_mean=18", "episode_window=20",
             "algo.fragment_length=10", "algo.batch_size=40", "algo.lr=3e-3", "algo.discount=0", "algo.entropy_coef=0", "runner.complete_episodes=true",
             "env.max_episode_steps=20", *(["algo.minibatch_size=20", "algo.sequence_length=10"] if algo == "ppo" else [])]  # fmt: skip
    from test_actor_learner import run_wired

    _, job, _ = run_wired(Wired(typed(f"algo={algo}", *words)), tmp_path)
    assert job.status == "STOPPED" and job.episodes.mean >= 18


@pytest.mark.parametrize("words, said", [
    (["env=rlrun/Identity-v0"], "has no limit; set env.max_episode_steps"),
    (["env=Pong"], "may last 27000 steps"),
    (["algo=ddppo", "env=CartPole-v1", "resources.num_learners=2"], "needs algo.cut_share=1"),
    (["algo=ddppo", "env=CartPole-v1", "resources.num_learners=2", "runner.complete_episodes=false", "record=rows"], "record= needs algo.cut_share=1"),
])  # fmt: skip
def test_whole_episodes_need_a_limit(typed, words, said):
    from rlrun.core.errors import UserError

    with pytest.raises(UserError, match=said):
        Wired(typed("algo=ppo", "logger=[]", "runner.complete_episodes=true", *words))
