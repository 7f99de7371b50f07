"""Environments that raise are made anew, and samplers that die or hang are replaced, without a row counted twice."""

import itertools
import re
import types
from multiprocessing.connection import wait

import gymnasium
import numpy as np
import pytest
import torch
from counting import LENGTH
from test_samplers import counting
from wired import Wired
from zoo import CountingAgents

from rlrun.core.errors import EnvError, RunFailed
from rlrun.core.pulse import Pulses, watch
from rlrun.core.restarts import PROCESS_REPEATS, Repeated, Restarts, without_numbers
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Slots
from rlrun.dataflow.supervision import Supervised
from rlrun.samplers.batched import BEGIN, EnvJob, env_process

KINDS = ("serial", "local", "batched")


def play(wiring, fragments: int, until=None):
    """Takes fragments one by one. Returns copies of their headers and rows. until: ends the play when it returns True."""
    sampler, taken = wiring.sampler(0), []
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        while len(taken) < fragments or (until is not None and not until() and len(taken) < 2000):
            got = sampler.take(1)
            taken += [(one.header, one.batch.clone()) for one in got]
            sampler.free(got)
    finally:
        sampler.close()
    return taken


def check(taken) -> None:
    """Checks every row as counting.check_rows does, but lets an episode break off at a dead row."""
    for header, batch in taken:
        _, step, tag = batch.obs.observation.unbind(-1)
        assert torch.equal(batch.is_first, step == 0)
        for t, b in itertools.product(*map(range, batch.reward.shape)):
            now, after = int(step[t, b]), int(step[t + 1, b])
            assert batch.log_prob[t, b] == now, "the policy's memory counts the steps of this environment alone"
            if batch.valid[t, b]:
                assert after == now + 1 and batch.reward[t, b] == after and tag[t, b] == tag[t + 1, b]
            else:
                assert after == 0 and batch.reward[t, b] == 0
                assert not batch.terminated[t, b] and not batch.truncated[t, b]
        assert header.env_steps == int(batch.valid.sum())
        for one in header.episodes:
            assert one.length == LENGTH and one.ret == LENGTH * (LENGTH + 1) / 2, "no episode that was broken off"


@pytest.mark.parametrize(
    ("kind", "fault", "said"),
    [
        *((kind, "raise", "told to fail") for kind in KINDS),
        ("serial", "not-finite", "returned an observation that is not finite"),
        ("serial", "too-large", r"returned an observation with the number 1e\+39, which float32 cannot hold"),
        ("serial", "no-number", "returned the reward inf"),
        ("serial", "other-shape", r"returned an observation of the shape \(2,\), and its space is Box\(\[3\], float32\)"),
    ],
)
@pytest.mark.filterwarnings("error:overflow")
def test_an_environment_that_raises_is_made_anew_where_it_is(typed, kind, fault, said, tmp_path):
    """The row of the failed step is dead, and a new episode follows it."""
    words = ("++env.kwargs.fail_at=12", f"++env.kwargs.once={tmp_path / 'failed'}", "resources.restarts=3")
    words += (f"++env.kwargs.fault={fault}",)
    taken = play(counting(typed, kind, *words), 16)
    check(taken)
    failures = [one.sentence for header, _ in taken for one in header.failures]
    assert len(failures) == 1 and re.search(f"failed in step 12 .*{said}", failures[0])
    broken = [
        (t, b)
        for header, batch in taken
        if header.failures
        for t, b in (~batch.valid).nonzero().tolist()
        if batch.obs.observation[t, b, 1] != LENGTH
    ]
    assert len(broken) == 1, "the step that failed is no env step"
    episodes = [one.env for header, _ in taken for one in header.episodes]
    assert {0, 1, 2, 3} == set(episodes)


class Whole(gymnasium.ObservationWrapper):
    def observation(self, obs):
        return np.zeros(4, dtype=np.int64)


class Outside(gymnasium.ObservationWrapper):
    def observation(self, obs):
        return obs + np.float32(9)


@pytest.mark.parametrize(
    ("wrapper", "wrong"),
    [("Whole", "has the dtype int64, and the space promises float32"), ("Outside", r"holds .* at \[0\], and the space allows")],
)
def test_observations_that_break_their_promise_are_told_once(typed, wrapper, wrong):
    """In one process, and never as failures that cost a restart."""
    words = ["env=CartPole-v1", f"env.wrappers=[{__name__}:{wrapper}]", "resources.inference=serial", "algo.fragment_length=32", "algo.batch_size=128"]
    taken = play(Wired(typed("algo=ppo", *words)), 2)
    told = [one for header, _ in taken for one in header.failures]
    assert told and all(re.search(wrong, one.sentence) and not one.made_anew for one in told)
    assert len(told) == len({one.sentence.partition(":")[0] for one in told}), "once for each environment"
    said = []
    restarts = Restarts(0, 1.0, tell=said.append)
    for one in told:
        restarts.env_odd(one.sentence)
    assert len(said) == 1 and "rlrun check-env CartPole-v1" in said[0] and not restarts.row()


class NamesEachStep(gymnasium.Wrapper):
    """Tells a number under a name that it has never told before."""

    steps = 0

    def step(self, action):
        *rest, info = self.env.step(action)
        self.steps += 1
        return *rest, {**info, "same": 1.0, f"step {self.steps}": 2.0}


def test_numbers_under_ever_new_names_are_counted_up_to_a_limit_and_said_once(typed, monkeypatch):
    monkeypatch.setattr("rlrun.samplers.columns.MOST_NAMES", 5)
    words = ["env=CartPole-v1", f"env.wrappers=[{__name__}:NamesEachStep]", "resources.inference=serial", "algo.fragment_length=64", "algo.batch_size=64"]
    taken = play(Wired(typed("algo=ppo", *words)), 4)
    told = [one for header, _ in taken for one in header.failures]
    assert [one.sentence for one in told] == [
        "CartPole-v1 has told 5 numbers of different names in its infos; new names, such as 'step 5', are not logged"
    ] and not told[0].made_anew
    infos = [episode.info for header, _ in taken for episode in header.episodes]
    assert set().union(*infos) == {"same", *(f"step {number}" for number in range(1, 5))} and all(info["same"] == 1.0 for info in infos)


@pytest.mark.parametrize("kind", ["local", "batched"])
@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_sampler_that_dies_or_hangs_is_replaced(typed, kind, fault, tmp_path):
    """The others go on meanwhile. The new one begins with new episodes and other seeds, and fills the slots that the
    old one had not filled."""
    words = ["++env.kwargs.fail_at=30", f"++env.kwargs.once={tmp_path / 'failed'}", "resources.restarts=3"]
    words += [f"++env.kwargs.fault={fault}", "env.step_timeout_sec=1"]
    wiring = counting(typed, kind, *words)
    told = []
    wiring.restarts = Restarts(3, 600.0, told.append)
    seen: dict[int, list] = {}
    sampler = wiring.sampler(0)
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        for _ in range(100_000):
            for one in sampler.take(1):
                check([(one.header, one.batch)])
                rows = seen.setdefault(one.header.worker, [])
                rows.append((one.header.first_row, one.batch.obs.observation[0, 0].tolist(), one.batch.is_first[0].all()))
                sampler.free([one])
            begun = [[number for number, row in enumerate(rows) if row[0] == 0] for rows in seen.values()]
            if len(seen) == 2 and max(map(len, begun)) == 2 and len(told) == 1:
                break
        else:
            raise AssertionError(f"no sampler came back: {told}")
    finally:
        sampler.close()
    assert len(told) == 1 and "sampler-" in told[0] and ("SIGKILL" if fault == "kill" else "in step() for") in told[0]
    assert wiring.restarts.processes == 1 and 0 < wiring.restarts.lost_env_steps <= 4 * 5
    again = next(rows for rows, starts in zip(seen.values(), begun, strict=True) if len(starts) == 2)
    second = again[max(number for number, row in enumerate(again) if row[0] == 0)]
    assert second[2], "new episodes"
    assert second[1][2] != again[0][1][2], "other seeds"


@pytest.mark.parametrize("kind, columns", [("local", 1), ("batched", 2)])
def test_a_fragment_of_slow_steps_may_take_longer_than_the_limit(typed, kind, columns):
    """A fragment takes 2 s, and the limit of 0.5 s is one for silence in which no environment makes a step."""
    words = ["algo=ppo", "env=slow_steps:SlowSteps", "algo.fragment_length=20", f"algo.batch_size={20 * columns}", "logger=[]"]
    words += ["algo.minibatch_size=20", f"resources.inference={kind}", "resources.num_samplers=1", "resources.device=cpu"]
    wiring = Wired(typed(*words, "resources.envs_per_sampler=1", "runner.queue_timeout_sec=0.5"))
    sampler = wiring.sampler(0)
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        fragments = sampler.take(columns)
        assert [one.batch.reward.shape for one in fragments] == columns * [(20, 1)] and not wiring.restarts.processes
        sampler.free(fragments)
    finally:
        sampler.close()


def test_a_fragment_that_a_sampler_handed_over_before_it_died_is_taken(typed, tmp_path):
    """Samplers run ahead while the learner makes an update, and nobody reads their pipes."""
    words = ["++env.kwargs.fail_at=8", f"++env.kwargs.once={tmp_path / 'failed'}", "++env.kwargs.fault=kill"]
    wiring = counting(typed, "local", *words)
    wiring.restarts = Restarts(3, 600.0, lambda text: None)
    sampler, begun = wiring.sampler(0), []
    try:
        sampler.publish(wiring.algorithm().policy, Clock())
        sampler.begin()
        (sentinel,) = wait([one.process.sentinel for one in sampler.supervised.members], 60)
        dead = next(i for i, one in enumerate(sampler.supervised.members) if one.process.sentinel == sentinel)
        while len(begun) < 3:
            (one,) = sampler.take(1)
            begun += [one.header.first_row] if one.header.worker == dead else []
            sampler.free([one])
    finally:
        sampler.close()
    assert begun == [0, 0, 5], "the one before it died, and two of its successor's"
    assert wiring.restarts.processes == 1 and 0 < wiring.restarts.lost_env_steps <= 2 * 3, "of the second fragment alone"


class Script:
    """In place of a pipe: says what is listed and then ends."""

    def __init__(self, said):
        self.said, self.heard = iter(said), []

    def recv(self):
        return next(self.said)

    def send(self, message):
        self.heard.append(message)


def test_rows_of_a_fragment_that_is_not_finished_are_lost_though_another_group_hands_one_over(typed):
    plan = counting(typed, "batched").sampler_plan(0)
    slots = Slots(plan.layout, 2)
    slots.memory.zero_()  # all actions are 0
    last, pulses = plan.layout["reward"].shape[0] - 1, Pulses(1)
    begun, whole = [(1, 1, BEGIN), (1, 1, 0), (1, 1, 1)], [(0, 0, t) for t in range(BEGIN, last + 1)]
    try:
        for script, rows in ((whole, 0), (begun, 2), ([*begun, *whole], 2), ([*begun, *whole, *whole], 2)):
            pulses.begin(0)
            with pytest.raises(StopIteration):
                env_process(Script(script), EnvJob(0, plan, slots, (pulses, 0)))
            assert pulses.of(0).unfinished == rows
    finally:
        watch(None)


def test_episodes_and_failures_are_sent_once_with_the_last_row(typed, tmp_path):
    """Sent with every row, they would cost the square of a fragment's rows."""
    fault = ("++env.kwargs.fail_at=12", "++env.kwargs.fault=raise", f"++env.kwargs.once={tmp_path / 'failed'}")
    words = ("algo.fragment_length=20", "algo.batch_size=80", "resources.restarts=3")
    plan = counting(typed, "batched", *words, *fault).sampler_plan(0)
    slots, pulses = Slots(plan.layout, 1), Pulses(1)
    slots.memory.zero_()
    pulses.begin(0)
    script = Script([(0, 0, t) for t in range(BEGIN, plan.layout["reward"].shape[0])])
    try:
        with pytest.raises(StopIteration):
            env_process(script, EnvJob(0, plan, slots, (pulses, 0)))
    finally:
        watch(None)
    *others, whole = script.heard[1:]
    assert all(one[3] == one[7] == () for one in others)
    assert len(whole[3]) >= 2 and len(whole[7]) >= 1


@pytest.mark.parametrize("kind", ["local", "batched"])
def test_a_budget_ends_the_run_and_says_which(typed, kind, tmp_path):
    wiring = counting(typed, kind, "++env.kwargs.fail_at=12", "++env.kwargs.fault=kill")
    wiring.restarts = Restarts(1, 600.0, lambda text: None)
    with pytest.raises(RunFailed, match=r"sampler-\d was killed by SIGKILL.*\n.*failure number 2 within 600 s"):
        play(wiring, 2000)


def test_a_failure_that_comes_back_at_once_is_not_retried_for_ever(typed):
    """Every new environment fails in the same step, and the message is that of the environment."""
    with pytest.raises(EnvError, match=r"failed in step 12 .*told to fail"):
        play(counting(typed, "serial", "++env.kwargs.fail_at=12", "resources.restarts=1000"), 2000)
    again = Repeated(PROCESS_REPEATS)
    assert [again("x", None), again("x", 5), again("x", 5)] == [False, False, True]
    numbered = Repeated(PROCESS_REPEATS)
    said = [f"env {i} (seed {10 * i}) failed in step {i} with action {i - 1}: KeyError: 'x'" for i in range(3)]
    assert [numbered(without_numbers(sentence), 5) for sentence in said] == [False, False, True]
    later = Repeated(PROCESS_REPEATS)
    assert not any(later("x", steps) for steps in (None, 101, 500, 2, 1000, 3))


@pytest.mark.parametrize("envs, survived", [(1, 2), (16, 5)])
def test_a_process_lives_for_the_env_steps_of_all_its_environments(envs, survived):
    """95 steps of each are fewer than 100 env steps only if it has a single environment."""
    pulses, worker = Pulses(1), types.SimpleNamespace(name="sampler-0")
    ours = types.SimpleNamespace(number=lambda one: 0, pulses=pulses, times=[0], rows=envs, repeated=[Repeated(PROCESS_REPEATS)], waiting={},
                                 workers=types.SimpleNamespace(bury=lambda one: None), restarts=Restarts(20, 600.0, lambda text: None))  # fmt: skip
    for death in range(5):
        pulses.begin(0)
        for _ in range(95):
            pulses.of(0).stepped()
        if death < survived:
            Supervised._bury(ours, worker, "sampler-0: killed by SIGKILL")
        else:
            with pytest.raises(RunFailed, match="SIGKILL"):
                Supervised._bury(ours, worker, "sampler-0: killed by SIGKILL")
            break
        ours.times[0] += 1
    assert ours.restarts.processes == survived


def test_the_budget_is_for_a_window_that_slides():
    now = [0.0]
    budget = Restarts(2, 10.0, lambda text: None, lambda: now[0])
    for at in (0.0, 1.0, 11.5, 12.0):
        now[0] = at
        budget.env_failed("it failed")
    with pytest.raises(RunFailed, match=r"it failed\nThis was failure number 3 within 10 s"):
        budget.env_failed("it failed")
    assert budget.row() == {"restarts/envs": 4.0, "restarts/processes": 0.0, "restarts/lost_env_steps": 0.0}
    other = Restarts(2, 10.0)
    other.load(budget.state())
    assert other.row() == budget.row() and Restarts(2, 10.0).row() == {}


def test_faults_of_agents_and_of_resets(typed):
    """A game of several agents is made anew too, and a reset that fails drops no finished episode."""
    faulty = "env.wrappers=[{name: rlrun.envs.debug:Faulty, fails_to_reset: 0.3}]"
    wiring = counting(typed, "serial", faulty, "resources.restarts=1000")
    taken = play(wiring, 40)
    check(taken)
    assert sum(len(header.failures) for header, _ in taken) > 10
    steps = sum(header.env_steps for header, _ in taken)
    episodes = sum(len(header.episodes) for header, _ in taken)
    assert np.isclose(episodes, steps / LENGTH, atol=4), "every finished episode is counted"


class FailsInItsSecondEpisode(CountingAgents):
    def step(self, actions):
        if self.episode == 1 and self.now == 3:
            raise RuntimeError("told to fail")
        return super().step(actions)


def test_an_episode_of_agents_in_one_column_that_breaks_off_does_not_count(typed):
    """Every second episode breaks off after 3 steps: it is noted as a failure, and only whole episodes are counted."""
    words = ["resources.inference=serial", "resources.device=cpu", "resources.restarts=100", "algo.num_envs=2", "logger=[]"]
    words += ["algo.fragment_length=44", "algo.sequence_length=22", "algo.sequence_stride=22", "model/memory=gru"]
    wiring = Wired(typed("algo=vdn", f"env={__name__}:FailsInItsSecondEpisode", *words))
    sampler = wiring.sampler(0)
    try:
        sampler.publish(wiring.policy_factory(acting=True)(), Clock())
        header = sampler.take(1)[0].header  # 4 times 6 rows, a reset, 3 rows and the step that fails
    finally:
        sampler.close()
    assert len(header.failures) == 8 and all(one.broken_off for one in header.failures)
    assert all("failed in step 4" in one.sentence and "told to fail" in one.sentence for one in header.failures)
    assert header.env_steps == 2 * 4 * (6 + 3)
    assert [(one.length, one.ret) for one in header.episodes] == [(6, 1445.0)] * 8
