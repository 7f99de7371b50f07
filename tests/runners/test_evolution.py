"""Players and their population: what is counted, that runs can be repeated, and that a lost player is replaced."""

import os
import re
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import SMALL
from test_actor_learner import run_wired
from wired import Wired

from rlrun.core.errors import RunFailed
from rlrun.core.evolution import NoiseTable
from rlrun.core.pulse import Limits
from rlrun.core.restarts import PROCESS_REPEATS, Repeated, Restarts
from rlrun.core.run import Run
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.watchdog import watched
from rlrun.runners.evolution import gathered
from rlrun.samplers.players import Order, Player, Players

TINY = ["logger=[]", "algo.noise_size=5000", "algo.actor.hidden=[4]", "log_every_sec=0.01"]
SERIAL = [word for word in SMALL if not word.startswith("algo.")] + ["model.hidden=[]", *TINY]


def wiring(typed, *words, algo="ars"):
    return Wired(typed(f"algo={algo}", *words))


def player(typed, *words, columns=3):
    made = wiring(typed, *SERIAL, *words)
    noise = made.noise()
    crew = made.population(noise).crew._replace(envs=columns)
    return Player(crew, 0, made.policy_factory(acting=True)())


def test_an_order_is_played_to_its_end_and_counted(typed):
    one = player(typed, "env=rlrun/Counting-v0", "++env.kwargs.length=5")
    report = one.play(Order(0, 10, 4, 2), Clock(0, 3))
    assert len(report.rollouts) == 4 and len(report.evaluations) == 2
    every = [*report.evaluations, *(side for rollout in report.rollouts for side in (rollout.plus, rollout.minus))]
    assert {played.length for played in every} == {5} and {played.ret for played in every} == {15.0}, (
        "1 + 2 + 3 + 4 + 5"
    )
    assert report.env_steps == 10 * 5
    again = one.play(Order(0, 10, 4, 2), Clock(0, 3))
    assert [rollout.offset for rollout in again.rollouts] == [rollout.offset for rollout in report.rollouts]
    assert [rollout.offset for rollout in one.play(Order(0, 11, 3, 0), Clock(0, 3)).rollouts] == [
        rollout.offset for rollout in report.rollouts[1:]
    ], "by number"
    assert one.play(Order(0, 10, 1, 0), Clock(0, 4)).rollouts[0].offset != report.rollouts[0].offset, (
        "anew for every update"
    )
    one.close()


def test_returns_belong_to_their_perturbation(typed):
    """IdentityBox rewards the action that equals its observation, and the action of a policy without weights is its
    bias."""
    one = player(
        typed,
        "env=rlrun/IdentityBox-v0",
        "++env.kwargs.length=400",
        "algo.noise_std=0.3",
        "algo.action_noise=0",
        "algo.actor.hidden=[]",
        "model=plain",
        "algo.reward_offset=0.25",
    )
    report = one.play(Order(0, 0, 6, 1), Clock())
    for rollout in report.rollouts:
        for sign, side in ((1, rollout.plus), (-1, rollout.minus)):
            weight, bias = (sign * 0.3 * one.crew.noise.piece(rollout.offset, 2)).tolist()
            x = np.linspace(-1, 1, 1001)
            assert side.ret / 400 == pytest.approx(-np.mean((np.clip(weight * x + bias, -1, 1) - x) ** 2), abs=0.08)
            assert side.fitness == pytest.approx(side.ret - 0.25 * 400)
    one.close()


def test_whoever_plays_an_order_plays_the_same(typed):
    made = wiring(typed, *SERIAL, "env=CartPole-v1", "algo.noise_std=0.5")
    crew = made.crew(made.noise())._replace(envs=3)
    players = [Player(crew, number, made.policy_factory(acting=True)()) for number in (0, 1)]
    first, second = (one.play(Order(2, 4, 5, 2), Clock(0, 3)) for one in players)
    assert (
        first.rollouts == second.rollouts
        and first.evaluations == second.evaluations
        and len({side.ret for pair in first.rollouts for side in pair[1:]}) > 1
    )


def test_signs_of_rewards_are_learnt_from_where_they_are_asked_for(typed):
    made = wiring(typed, *SERIAL, "env=Pendulum-v1", "algo.return_processing=sign", algo="es")
    one = Player(made.crew(made.noise())._replace(envs=2), 0, made.policy_factory(acting=True)())
    report = one.play(Order(0, 0, 1, 0), Clock())
    assert all(side.fitness == -200.0 > side.ret for side in report.rollouts[0][1:])


def test_the_filter_sees_what_players_saw(typed):
    one = player(typed, "env=rlrun/Counting-v0", "++env.kwargs.length=5")
    report = one.play(Order(0, 0, 2, 0), Clock())
    (moments,) = report.moments
    assert moments.samples == report.env_steps == 20 and isinstance(moments.mean, np.ndarray)
    one.close()


def test_what_an_unfinished_update_played_does_not_count(typed, tmp_path):
    """A run ends after a complete update or in the state before it. A resume plays the episodes of an unfinished update
    again, so they would count twice."""
    words = [
        "env=rlrun/Counting-v0",
        "++env.kwargs.length=5",
        "algo.num_rollouts=40",
        "algo.rollouts_used=40",
        "algo.eval_share=1",
        "log_every_sec=0.001",
    ]
    few = [
        "resources.inference=local",
        "resources.num_samplers=1",
        "resources.envs_per_sampler=2",
        "model=plain",
        *TINY,
    ]
    _, job, rows = run_wired(wiring(typed, *few, *words, "env_steps=1"), tmp_path)
    assert job.status == "COMPLETED" and job.clock.updates == 1 and job.clock.env_steps >= 40 * 2 * 5
    ahead = [row["sample/ahead"] for row in rows if "sample/ahead" in row]
    assert (
        ahead == sorted(ahead)
        and 0 < ahead[0] < job.clock.env_steps
        and {row["env_steps"] for row in rows} == {0, job.clock.env_steps}
    )
    tick, ticks = Run.tick, []

    def interrupted(self, clock, update):
        ticks.append(self.ahead)
        if self.ahead > 0:
            self.signals.stop = signal.SIGINT
        return tick(self, clock, update)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "tick", interrupted)
        _, job, rows = run_wired(wiring(typed, *few, *words, "env_steps=1"), tmp_path)
    assert job.status == "INTERRUPTED" and ticks[-1] > 0 and job.clock == Clock(0, 0) and job.episodes.count == 0


@pytest.mark.parametrize("algo", ["es", "ars"])
def test_it_learns_and_only_unperturbed_episodes_count(typed, tmp_path, algo):
    few = (
        ["algo.episodes_per_batch=40", "algo.env_steps_per_batch=0", "algo.lr=0.05"]
        if algo == "es"
        else ["algo.num_rollouts=16", "algo.rollouts_used=8", "algo.actor.hidden=[]"]
    )
    words = [
        *SERIAL,
        "env=rlrun/Identity-v0",
        *few,
        "algo.noise_std=0.1",
        "algo.lr=0.1",
        "algo.eval_share=0.5",
        "env_steps=300000",
        "stop.return_mean=18",
        "episode_window=20",
    ]
    _, job, rows = run_wired(wiring(typed, *words, algo=algo), tmp_path)
    assert job.status == "STOPPED" and job.episodes.mean >= 18
    assert rows[-1]["sample/episodes"] * 20 < 0.5 * rows[-1]["env_steps"], "most were perturbed"


LOCAL = ["model=plain", *TINY, "env=rlrun/Counting-v0", "++env.kwargs.length=5", "resources.num_samplers=2", "resources.inference=local",
         "resources.envs_per_sampler=2", "algo.num_rollouts=12", "algo.rollouts_used=12", "runner.queue_timeout_sec=20"]  # fmt: skip


def population(typed, *words):
    made = wiring(typed, *LOCAL, *words)
    algorithm, noise = made.algorithm(), made.noise()
    told = []
    made.restarts.tell = told.append
    people = made.population(noise)
    return algorithm, people, told


def one_update(people):
    reports = []
    deadline = time.monotonic() + 60
    while not people.done:
        assert time.monotonic() < deadline
        reports += people.take()
    return reports


def test_processes_play_what_one_would(typed):
    algorithm, people, _ = population(typed)
    try:
        people.begin(algorithm.policy, Clock(0, 7))
        reports = one_update(people)
    finally:
        people.close()
    batch = gathered(reports)
    assert (
        len(batch.offset) == 12
        and (batch.ret == 15.0).all()
        and sum(report.env_steps for report in reports) >= 12 * 2 * 5
    )
    expected = [int(Seeds(0).numpy("perturbation", 7, i).integers(5000 - algorithm.policy.size + 1)) for i in range(12)]
    assert batch.offset.tolist() == sorted(expected)


def test_a_new_process_plays_the_same_when_a_player_is_killed(typed):
    """Every perturbation is played once, whoever played it, and the orders are those of a run without a failure."""
    algorithm, people, told = population(typed)
    try:
        people.begin(algorithm.policy, Clock(0, 7))
        whole = gathered(one_update(people))
        victim, other = people.players.members.values()
        os.kill(victim.process.pid, signal.SIGSTOP)
        people.begin(algorithm.policy, Clock(0, 7))
        assert people.players.playing[0].pairs > 0
        os.kill(victim.process.pid, signal.SIGKILL)
        reports = one_update(people)
        assert len(told) == 1 and "sampler-0 was killed by SIGKILL" in told[0] and "a new process takes its place" in told[0]
        assert people.players.restarts.processes == 1 and people.players.members[1] is other
        again = gathered(reports)
        assert torch.equal(again.offset, whole.offset) and torch.equal(again.ret, whole.ret)
        assert len({report.order for report in reports}) == len(reports)
        os.kill(other.process.pid, signal.SIGKILL)
        people.players.restarts.limit = 1
        people.begin(algorithm.policy, Clock(0, 8))
        with pytest.raises(RunFailed, match="sampler-1 was killed by SIGKILL"):
            one_update(people)
    finally:
        people.close()


def test_a_player_that_died_while_nobody_listened_is_replaced_once(typed):
    """Evaluating or saving may take longer than queue_timeout_sec, and so may the start of a process."""
    algorithm, people, told = population(typed, "runner.queue_timeout_sec=1")
    try:
        people.begin(algorithm.policy, Clock())
        one_update(people)
        victim = people.players.members[0]
        os.kill(victim.process.pid, signal.SIGSTOP)
        people.begin(algorithm.policy, Clock(0, 1))
        os.kill(victim.process.pid, signal.SIGKILL)
        time.sleep(1.5)
        assert len(gathered(one_update(people)).offset) == 12
        assert len(told) == 1 and "was killed by SIGKILL" in told[0] and len(people.players.workers.members) == 2
    finally:
        people.close()


def test_a_player_that_falls_silent_is_replaced(typed):
    algorithm, people, told = population(typed, "runner.queue_timeout_sec=3")
    try:
        people.begin(algorithm.policy, Clock())
        one_update(people)
        os.kill(people.players.members[0].process.pid, signal.SIGSTOP)
        people.begin(algorithm.policy, Clock(0, 1))
        assert len(gathered(one_update(people)).offset) == 12
        assert len(told) == 1 and "was silent for 3 s" in told[0]
    finally:
        people.close()


def test_an_env_that_fails_everywhere_ends_the_run_with_its_words(typed):
    algorithm, people, told = population(typed, "++env.kwargs.fail_at=1", "resources.restarts=1")
    try:
        people.begin(algorithm.policy, Clock())
        with pytest.raises(RunFailed, match="this env was told to fail"):
            one_update(people)
        assert len(told) == 1 and "this env was told to fail" in told[0] and "a new process takes its place" in told[0]
    finally:
        people.close()


@pytest.mark.parametrize("fault, said", [("raise", "told to fail"), ("hang", r"Hang: hangs: it has been in step\(\)")])
def test_an_episode_that_breaks_off_is_played_again(typed, tmp_path, fault, said):
    """A player in the run's own process notices an environment that hangs, too."""
    one = player(typed, "env=rlrun/Counting-v0", "++env.kwargs.length=5", "++env.kwargs.fail_at=3", f"++env.kwargs.once={tmp_path / 'x'}",
                 f"++env.kwargs.fault={fault}", "resources.exact=false", "resources.restarts=3")  # fmt: skip
    with watched(Limits(step_sec=0.5)):
        report = one.play(Order(0, 10, 4, 2), Clock(0, 3))
    assert re.search(said, report.failures[0].sentence)
    sides = [side for rollout in report.rollouts for side in (rollout.plus, rollout.minus)]
    assert len(sides) == 8 and {played.ret for played in (*sides, *report.evaluations)} == {15.0}
    assert [failure.broken_off for failure in report.failures] == [True] and report.env_steps == 10 * 5 + 2
    one.close()


def test_the_table_is_shared_not_copied():
    table = NoiseTable(1000, Seeds(3))
    assert table.numbers.is_shared() and abs(table.numbers.mean()) < 0.15 and abs(table.numbers.std() - 1) < 0.1
    assert (
        torch.equal(table.numbers, NoiseTable(1000, Seeds(3)).numbers)
        and table.piece(5, 3).data_ptr() == table.numbers.data_ptr() + 20
    )


def test_an_order_of_a_lost_player_has_the_same_perturbations_and_other_games(typed):
    """A game that ended one process would end its successors too."""
    one = player(typed, "env=CartPole-v1")
    first, again, lost = (one.play(Order(0, 0, 8, 4, lost), Clock(0, 3)) for lost in (0, 0, 1))
    assert first.rollouts == again.rollouts and first.evaluations == again.evaluations
    assert [one.offset for one in lost.rollouts] == [one.offset for one in first.rollouts]
    assert lost.rollouts != first.rollouts
    one.close()


def test_a_player_that_is_lost_in_the_middle_of_a_long_order_has_made_progress():
    """Env steps that it has only told of count too: no fault that comes back at once lets it play so many."""
    def lost(taken: int) -> int:
        """Loses a player again and again, each time after so many env steps. Returns how often it was replaced."""
        players = object.__new__(Players)
        worker = SimpleNamespace(name="sampler-0", pipe=SimpleNamespace(send=lambda order: None))
        players.workers = SimpleNamespace(bury=lambda one: None, start=lambda *args: worker)
        players.members, players.repeated, players.restarts = {0: worker}, {0: Repeated(PROCESS_REPEATS)}, Restarts(100, 600.0, tell=str)
        players.crew, players.bus, players.since, players.starting = None, None, {}, set()
        players.playing, players.heard, players.taken = {}, {}, {}
        for times in range(10):
            players.give(0, Order(0, 0, 1, 0))
            players.taken[0] = taken
            try:
                players._replace(0, "sampler-0 was killed by SIGKILL")
            except RunFailed as error:
                assert "in a row, soon after each start" in str(error)
                return times
        return 10

    assert lost(taken=500) == 10 and lost(taken=0) == PROCESS_REPEATS
