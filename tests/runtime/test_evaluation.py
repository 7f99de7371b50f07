"""Evaluation beside training: whose weights are evaluated, saved and logged, and what interrupts it."""

import dataclasses
import json
import types
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from conftest import compose

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core import pulse
from rlrun.core.duties import improves
from rlrun.core.errors import EnvError, RunFailed, UserError
from rlrun.core.evaluation import Evaluated
from rlrun.core.pulse import Limits
from rlrun.core.restarts import PROCESS_REPEATS, Restarts
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.watchdog import watched
from rlrun.machine.machine import Machine
from rlrun.runtime import session
from rlrun.runtime.plan import plan
from rlrun.runtime.rundir import checkpoints_of
from rlrun.runtime.trained import load
from rlrun.samplers import evaluator, evaluators
from rlrun.samplers.evaluator import Evaluator
from rlrun.samplers.evaluators import Evaluating, EvaluationCrew

EXAMPLE = Path(__file__).parents[1] / "example"
WORDS = ["algo=ppo", "env=CartPole-v1", "logger=[]", "model.hidden=[8]", "algo.fragment_length=25", "algo.batch_size=50", "algo.minibatch_size=50",
         "algo.num_epochs=1", "resources.inference=serial"]  # fmt: skip
BESIDE = [*WORDS, "eval.every=400", "eval.workers=1", "eval.function=my_rl.evaluations:Second"]


@pytest.fixture(autouse=True)
def in_the_example(monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))


def evaluations(path):
    """The rows of progress.jsonl with an evaluation."""
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("eval/return_mean") is not None]


def test_an_evaluation_beside_training_belongs_to_the_weights_that_it_saw(tmp_path):
    """It is interrupted in the middle of its second evaluation, which the resumed run makes, once."""
    from my_rl.evaluations import weight

    path = tmp_path / "run"
    train = ["train", *BESIDE, "callbacks=[my_rl.evaluations:Interrupt]", "checkpoint.every=2000", "env_steps=1000000"]
    assert _dispatch([*train, f"run_dir={path}"]) == 130
    assert [row["eval/number"] for row in evaluations(path)] == [0]
    run = json.loads((path / "checkpoints" / checkpoints_of(path).names()[-1] / "run.json").read_text())
    assert run["evaluating"] and run["evaluations"] == 1
    ended = run["env_steps"]
    assert _dispatch(["resume", str(path), f"env_steps={ended + 1500}"]) == 0
    rows = evaluations(path)
    assert [row["eval/number"] for row in rows] == list(range(len(rows))) and len(rows) > 2, "none is lost, none twice"
    assert rows[1]["eval/env_steps"] == ended, "the interrupted one begins with the resumed run"
    assert any(row["env_steps"] > row["eval/env_steps"] for row in rows), "training went on"
    over = json.loads((path / "summary.json").read_text())["env_steps"]
    assert over // 400 * 400 <= rows[-1]["eval/env_steps"] <= over, "the last one is waited for"
    best = checkpoints_of(path).best()
    assert int(best) == rows[1]["eval/env_steps"]
    assert weight(load(path, checkpoint="best").policy) == pytest.approx(rows[1]["eval/weight"], rel=1e-6)
    saved = json.loads((path / "checkpoints" / best / "run.json").read_text())
    assert (saved["evaluations"], saved["eval_mean"], saved["saved_best"]) == (2, 0.0, 0.0) and not saved["evaluating"]
    assert saved["unlogged"]["eval/number"] == 1, "a run that is resumed from there logs it again"
    assert load(path, checkpoint="last").policy is not None


def test_a_killed_evaluation_ends_a_run_without_restarts(tmp_path, capfd):
    words = [*BESIDE, "callbacks=[my_rl.evaluations:Kill]", "resources.restarts=0", f"env_steps={10**7}", f"run_dir={tmp_path / 'run'}"]
    assert _dispatch(["train", *words]) == 1
    assert "eval-0 was killed by SIGKILL" in capfd.readouterr().err


def test_processes_share_the_games_and_debug_has_none(tmp_path, capfd, monkeypatch):
    made, closed = [], []

    class Watched(Evaluator):
        def __init__(self, *facts):
            super().__init__(*facts)
            made.append(self)

        def close(self):
            closed.append(self)
            super().close()

    monkeypatch.setattr(evaluators, "Evaluator", Watched)
    games = ["eval.every=100", "eval.episodes=5", "callbacks=[my_rl.evaluations:Count]", "env_steps=200"]
    apart = ["eval.workers=2", "eval.parallel=false"]
    assert _dispatch(["train", *WORDS, *games, *apart, f"run_dir={tmp_path / 'a'}"]) == 0
    assert capfd.readouterr().out.count("evaluated 5 games") == 2
    assert all(row["eval/env_steps"] == row["env_steps"] for row in evaluations(tmp_path / "a"))
    debug = ["train", *WORDS[:-1], "resources=debug", *games]
    assert _dispatch([*debug, f"run_dir={tmp_path / 'b'}"]) == 0
    assert _dispatch([*debug, "eval.workers=2", f"run_dir={tmp_path / 'c'}"]) == 0
    returns = [[row["eval/return_mean"] for row in evaluations(tmp_path / name)] for name in "bc"]
    assert returns[0] == returns[1] and len(returns[0]) == 2
    assert made == closed and len(made) == 2, "environments that evaluate in the run's own process are closed"


def test_a_wrong_answer_of_the_users_function_is_named(tmp_path, capfd):
    words = [*WORDS, "eval.every=100", "eval.function=my_rl.evaluations:Wordless", f"run_dir={tmp_path / 'run'}"]
    assert _dispatch(["train", *words, "env_steps=200"]) == 1
    assert "my_rl.evaluations:Wordless returned {'score': 1.0}" in capfd.readouterr().err


@pytest.mark.parametrize("words, said", [
    (["eval.parallel=true"], "parallel=true needs processes"),
    (["eval.workers=11"], "workers=11 are more than the 10 episodes"),
    (["eval.workers=2", "eval.function=my_rl.evaluations:Second"], "evaluates in one process"),
    (["eval.workers=-1"], "eval.workers must be"),
    (["eval.env_steps=0"], "eval.env_steps must be"),
])  # fmt: skip
def test_what_cannot_be_evaluated_gets_a_sentence(words, said):
    with pytest.raises(UserError, match=said):
        type_config(compose(*WORDS, *words))


@pytest.mark.parametrize(
    "name, said", [("Nothing", "has no Nothing"), ("Interrupt", "no subclass of rlrun.Evaluation")]
)
def test_a_function_is_looked_at_before_the_run_exists(tmp_path, name, said):
    with pytest.raises(UserError, match=said):
        _dispatch(
            [
                "train",
                *WORDS,
                "eval.every=100",
                f"eval.function=my_rl.evaluations:{name}",
                f"run_dir={tmp_path / 'run'}",
            ]
        )
    assert not (tmp_path / "run").exists()


def test_env_steps_count_every_game_that_has_begun(typed):
    """Two columns with episodes of 7 steps play 10 env steps each, and then the games that they are in."""
    from wired import Wired

    wiring = Wired(typed("algo=ppo", "env=rlrun/Counting-v0", "logger=[]", "resources=debug"))
    evaluator = Evaluator(wiring.plan.eval_env(), 2, Seeds(0))
    policy = wiring.algorithm().policy
    games = evaluator.play(policy, 1, "greedy", Clock(), env_steps=20)
    evaluator.close()
    lengths = np.array([length for _, length in games])
    assert len(games) >= 2 and lengths.sum() >= 20 and lengths.sum() - lengths.max() < 20 + lengths.max()


def test_a_process_that_has_played_its_part_is_replaced_without_playing_it_again(monkeypatch):
    """Otherwise its second answer would count as its part of the next evaluation, and so on for ever."""
    zero, one = (types.SimpleNamespace(name=f"eval-{number}") for number in range(2))
    crew = EvaluationCrew(types.SimpleNamespace(workers=2), Limits(), Restarts(5, 60.0, tell=lambda said: None))
    sent, arriving = [], []
    crew.workers = types.SimpleNamespace(
        members=[zero, one],
        bury=lambda worker: None,
        send=lambda worker, round_: sent.append((worker.name, round_)),
        receive_from_survivors=lambda timeout: arriving.pop(0),
    )
    crew._start = lambda name: types.SimpleNamespace(name=name)
    crew.bus = types.SimpleNamespace(publish=lambda policy, clock: None)
    crew.begin(None, Clock(), 3)
    arriving += [([(zero, (3, Evaluated([1.0])))], [(zero, "eval-0 was killed")]), ([(one, (3, Evaluated([2.0])))], [])]
    assert crew.result() is None and crew.result().returns == [1.0, 2.0]
    assert sent == [("eval-0", 3), ("eval-1", 3)]
    crew.begin(None, Clock(), 4)
    arriving += [([(zero, (3, Evaluated([9.0])))], []), ([(zero, (4, Evaluated([3.0]))), (one, (4, Evaluated([4.0])))], [])]
    assert crew.result() is None, "an answer to an earlier evaluation is none"
    assert crew.result().returns == [3.0, 4.0]


def test_an_evaluation_may_be_silent_for_long_but_no_step_may(monkeypatch):
    """As where the user's own evaluation computes something without an environment for an hour."""
    worker, told = types.SimpleNamespace(name="eval-0"), []
    crew = EvaluationCrew(types.SimpleNamespace(workers=1), Limits(step_sec=60.0), Restarts(9, 60.0, tell=told.append))
    crew.workers = types.SimpleNamespace(
        members=[worker], bury=lambda one: None, send=lambda *facts: None, receive_from_survivors=lambda timeout: ([], [])
    )
    crew._start, crew.bus = lambda name: worker, types.SimpleNamespace(publish=lambda policy, clock: None)
    crew.begin(None, Clock(), 0)
    silent = [3600.0]
    monkeypatch.setattr(pulse, "awake_since", lambda moment: silent[0])
    crew.pulses.of(0).beat(pulse.POLICY)
    assert crew.result() is None and not told
    seen = []
    pulse.watch(crew.pulses.of(0))
    try:  # it makes its environments when it plays for the first time
        part = Evaluating(types.SimpleNamespace(workers=1, part=lambda number: (1, None), function=None, make_env=lambda number, count: seen.append(int(crew.pulses.of(0).row[pulse.ACTIVITY]))))
        part._make_env(2)
    finally:
        pulse.watch(None)
    assert seen == [pulse.STARTING]
    crew.pulses.of(0).beat(pulse.STEP)
    for _ in range(PROCESS_REPEATS):
        assert crew.result() is None
        silent[0] += 0.1
    assert len(told) == PROCESS_REPEATS and "eval-0 hangs: it has been in step() for 3600.0 s" in told[0]
    with pytest.raises(RunFailed, match=r"for 3600\.2 s, and env\.step_timeout_sec allows 60"):
        crew.result()


def test_an_evaluation_in_the_runs_own_process_survives_one_failure_within_the_budget(monkeypatch):
    """It is played anew, once, and a hang counts as a failure."""
    played, closed, told = [], [], []

    class Fails:
        def __init__(self, plan):
            self.faults = iter(plan.faults)

        def __call__(self, policy, clock, round_, stop):
            played.append(round_)
            if next(self.faults):
                raise EnvError("Env-v0", range(3, 4), 7, "failed in step 2: Hang")
            return Evaluated([1.0])

        def close(self):
            closed.append(True)
            raise ValueError("it does not close either")

    @dataclasses.dataclass
    class Plan:
        faults: tuple
        workers: int = 0

        def evaluation(self):
            return self

    monkeypatch.setattr(session, "Evaluating", Fails)
    algorithm = types.SimpleNamespace(policy=None)
    play = session._Evaluation(Plan((True, False, True, True)), Restarts(5, 60.0, tell=told.append))
    assert play(algorithm, Clock(), 1, bool).returns == [1.0] and played == [1, 1] and len(closed) == 1
    assert "in an evaluation, Env-v0, env 3 (seed 7) failed in step 2" in told[0]
    with pytest.raises(EnvError):
        play(algorithm, Clock(), 2, bool)
    with pytest.raises(EnvError):
        session._Evaluation(Plan((True,)), Restarts(0, 60.0))(algorithm, Clock(), 1, bool)


def test_a_hang_in_an_evaluation_is_seen(tmp_path):
    faults = [f"++env.kwargs.{word}" for word in ("fail_at=3", "fault=hang", f"once={tmp_path / 'hung'}")]
    config = type_config(compose(*WORDS, "env=rlrun/Counting-v0", *faults))
    made = plan(config, Machine(cores=2))
    with watched(Limits(step_sec=0.5)), pytest.raises(EnvError, match=r"Hang: hangs: it has been in step\(\)"):
        Evaluator(made.eval_env(), 1, Seeds(1)).play(made.policy_factory(acting=True)(), 2, "greedy", Clock())


def test_what_is_not_a_number_is_never_the_best():
    assert improves(1.0, None) and improves(2.0, 1.0) and improves(1.0, float("nan"))
    assert not any(improves(*pair) for pair in ((None, None), (1.0, 1.0), (float("nan"), None), (float("nan"), 1.0)))


def test_an_episode_without_an_end_is_no_hang(tmp_path, monkeypatch, capsys):
    gymnasium.register("tests/NoEnd-v0", "gymnasium.envs.classic_control:PendulumEnv")
    monkeypatch.setattr(evaluator, "ENDLESS", 60)
    run, small = tmp_path / "run", ["algo.fragment_length=10", "algo.batch_size=20", "resources=debug", "logger=[]"]
    words = ["algo=pg", "env=tests/NoEnd-v0", *small, "model.hidden=[8]", "env_steps=40"]
    assert _dispatch(["train", *words, f"run_dir={run}"]) == 0
    assert _dispatch(["train", *words, "eval.every=20", f"run_dir={tmp_path / 'other'}"]) == 1
    for command in (["evaluate", str(run)], ["record", str(run), "random", f"to={tmp_path / 'data'}"]):
        with pytest.raises(RunFailed, match=r"no limit, and has not ended after 60 steps; .*: set (env\.)?max_episode_steps$"):
            _dispatch([*command, "episodes=1"])
    assert _dispatch(["record", str(run), "random", "env_steps=100", f"to={tmp_path / 'rows'}"]) == 0
