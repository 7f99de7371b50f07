"""Estimates from data while a run learns: the same numbers as rlrun estimate, at the right env steps, in every logger."""

import dataclasses
import json
import sqlite3

import pytest
import torch
from conftest import compose
from datasets_of_tests import LOG_PROB, data_of, episode
from wired import Wired, checked

import rlrun
from rlrun.commands.train import start
from rlrun.config.run import type_config
from rlrun.config.saved import set_by_user
from rlrun.core.errors import UserError
from rlrun.core.estimates import METHODS, Estimates
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.datasets.open import open_source
from rlrun.datasets.parquet_writer import Writer
from rlrun.datasets.trajectories import DataFacts
from rlrun.machine.machine import Machine
from rlrun.runtime.estimate import FIT, Question, estimate
from rlrun.runtime.plan import plan
from rlrun.runtime.recorded_episodes import RecordedEpisodes
from rlrun.runtime.rundir import checkpoints_of
from rlrun.runtime.training_estimates import TrainingEstimates, check_estimates


def train(*words: str) -> int:
    values = compose(*words)
    return start(values, set_by_user(values))


WORDS = ["algo=marwil", "resources=debug", "model.hidden=[8]", "algo.batch_size=50", "checkpoint.every=200"]
METRICS = ("", "_low", "_high", "_effective")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return data_of("CartPole-v1", tmp_path_factory.mktemp("data") / "set")


@pytest.fixture(scope="module")
def held_out(data, tmp_path_factory):
    """Other episodes than those of `data`, of which one is not whole."""
    folder = tmp_path_factory.mktemp("data") / "held-out"
    spec = open_source(str(data)).facts.spec
    writer = Writer(folder, DataFacts(spec=spec, record=LOG_PROB, policies=("tests",)))
    for number in range(20, 29):
        one = episode(number, 6 + number % 5, spec)
        record = {"log_prob": one.record["log_prob"] * 0 - 0.69}
        writer.write(dataclasses.replace(one, action=one.action % 2, record=record, whole=number != 22))
    writer.close()
    return folder


def rows_of(run) -> list[dict]:
    rows = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    return [row for row in rows if any(name.startswith("estimate/") for name in row)]


def test_a_run_from_data_logs_what_rlrun_estimate_finds(data, held_out, tmp_path):
    run = tmp_path / "run"
    words = [*WORDS, "env=data", f"data.path={data}", "env_steps=600", "eval.every=200", "seed=3"]
    store = f"logger.mlflow.uri=sqlite:///{tmp_path / 'store.db'}"
    more = [f"eval.estimate.path={held_out}", "eval.estimate.methods=[wis,dm]", "eval.estimate.updates=30", "eval.estimate.episodes=5"]
    assert train(*words, *more, "logger=[tensorboard,mlflow]", store, "logger.mlflow.wait_sec=120", f"run_dir={run}") == 0
    rows = rows_of(run)
    assert [row["env_steps"] for row in rows] == [200, 400, 600] and "eval/return_mean" not in rows[0]
    assert len({row["estimate/wis"] for row in rows}) == 3, "the policy changes"
    played = None
    for row in rows:
        trained = rlrun.load(run, str(row["env_steps"]))
        played = RecordedEpisodes(open_source(str(held_out)), trained.spec, 5)
        question = Question(("wis", "dm"), trained.config.algo.discount, seed=3)
        fit = dataclasses.replace(FIT, updates=30)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            report = estimate(trained.policy, played, trained.clock, trained.config.run.model, question, fit)
        for one in report.answers:
            found = [row[f"estimate/{one.method}{name}"] for name in METRICS]
            assert found == pytest.approx([one.value, one.low, one.high, one.effective], rel=1e-6)
            assert one.low < one.value < one.high and "time/estimate" in " ".join(row)
    assert len(played) == 5
    # Nothing of the run itself has changed.
    assert train(*words, "eval.every=null", "logger=[]", f"run_dir={tmp_path / 'without'}") == 0
    ours, theirs = (checkpoints_of(one).load(None, parts=("algorithm",))[0]["algorithm"]["module"] for one in (run, tmp_path / "without"))  # fmt: skip
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(f"estimate/wis{name}".encode() in next(run.rglob("*tfevents*")).read_bytes() for name in METRICS)
    with sqlite3.connect(tmp_path / "store.db") as store:
        keys = {key for (key,) in store.execute("select distinct key from metrics")}
    assert {f"estimate/{method}{name}" for method in ("wis", "dm") for name in METRICS} <= keys


def test_estimates_and_games_stand_in_one_row(data, tmp_path):
    """The data of the run itself are taken where no others are named. A run of experience needs a name."""
    words = ["env=CartPole-v1", "eval.every=200", "eval.episodes=2", "eval.estimate.methods=[is,pdis]", "logger=[]"]
    assert train(*WORDS, *words, f"data.path={data}", "env_steps=400", f"run_dir={tmp_path / 'run'}") == 0
    rows = rows_of(tmp_path / "run")
    assert [(row["env_steps"], row["eval/env_steps"]) for row in rows] == [(200, 200), (400, 400)]
    words = [*words, "algo=pg", "resources=debug", "algo.batch_size=50", "algo.fragment_length=25", "env_steps=400"]
    assert train(*words, f"eval.estimate.path={data}", f"run_dir={tmp_path / 'other'}") == 0
    assert len(rows_of(tmp_path / "other")) == 2


def test_every_option_changes_the_numbers(data, held_out):
    def numbers(*words):
        base = [*WORDS, "logger=[]", "env=CartPole-v1", f"data.path={data}", "eval.every=200"]
        made = plan(type_config(compose(*base, "eval.estimate.updates=5", "eval.estimate.methods=[wis,dr]", *words)), Machine(cores=2))  # fmt: skip
        torch.manual_seed(1)
        return TrainingEstimates(made)(Wired(made.config).algorithm(), Clock())

    base = numbers()
    assert numbers() == base and set(base) == {f"{method}{name}" for method in ("wis", "dr") for name in METRICS}
    for option in ("methods=[wis,wdr]", f"path={held_out}", "episodes=4", "greedy=true", "discount=0.5", "interval=t", "confidence=0.5", "updates=9"):  # fmt: skip
        assert numbers(f"eval.estimate.{option}") != base, option
    assert set(numbers(f"eval.estimate.methods=[{','.join(METHODS)}]")) == {f"{method}{name}" for method in METHODS for name in METRICS}  # fmt: skip


def test_what_a_signal_kept_from_being_estimated_is_estimated_by_the_resumed_run():
    signals, made = Signals(), []
    one = Estimates(10, lambda algorithm, clock: made.append(clock) or {"wis": 1.0}, signals)
    one.begin(Clock(0))
    assert not one.due(Clock(9)) and one.due(Clock(10))
    one.make(None, Clock(10))
    assert one.take_row() == {"estimate/wis": 1.0} and one.take_row() == {} and not one.due(Clock(19))
    signals.stop = 15
    assert not one.due(Clock(20)) and one.state() == {"estimating": True}
    other = Estimates(10, one.making, Signals())
    other.load(one.state())
    other.begin(Clock(20))
    assert other.due(Clock(20)), "at once"
    off = Estimates(None, one.making, Signals())
    off.load(one.state())
    off.begin(Clock(20))
    assert not off.due(Clock(30))


@pytest.mark.parametrize(
    "words, said",
    [
        (["eval.estimate.methods=[wsi]"], r"methods\[0\] must be one of is, pdis.*not 'wsi'.*wis"),
        (["eval.estimate.methods=[wis,wis]"], "names one of wis, wis twice"),
        (["eval.estimate.methods=[wis]", "eval.every=null"], "used only where eval.every is set"),
        (["eval.estimate.greedy=true", "env=CartPole-v1"], "used only where eval.estimate.methods is set"),
        (["eval.estimate.methods=[wis]", "eval.estimate.updates=5"], "for estimates that fit a model"),
        (["eval.estimate.methods=[wis]", "eval.episodes=5"], "for runs that have an environment to play in"),
        (["eval.estimate.methods=[wis]", "eval.estimate.path=nowhere"], "there is no file or folder nowhere"),
        (["eval.estimate.methods=[wis]", "eval.estimate.path=UNKNOWN"], "eval.estimate.methods=wis needs the probabilities of the actions, and .* has none in 3 of 4 episodes; dm needs none"),
        (["eval.estimate.methods=[dr,dm]", "eval.estimate.path=UNKNOWN"], "eval.estimate.methods=dr needs the prob"),
        (["eval.estimate.methods=[wis]", "eval.estimate.path=CUT"], "has no whole episode"),
        (["algo=bc", "algo.batch_size=50", "eval.estimate.methods=[wis,dm]", "eval.estimate.path=LIMITED"], "eval.estimate.methods=dm: a time limit cut all 4 episodes, .* such as eval.estimate.discount=0.99"),
        (["eval.estimate.methods=[wis]", "eval.estimate.path=OTHER"], r"has observations Box\(\[3\]"),
        (["eval.estimate.methods=[wis]", "++data.path={SET: 0.5, UNKNOWN: 0.5}"], "and data.path has 2 data sets: say which with eval.estimate.path=DIR"),
        (["algo=td3_bc", "eval.estimate.methods=[is]", "data.path=OTHER", "eval.estimate.greedy=true", "algo.batch_size=10"], "eval.estimate.methods=is: .*dm needs no probabilities"),
        (["algo=dqn", "env=CartPole-v1", "data.path=null", "eval.estimate.methods=[dm]"], "there is no data.path: say which"),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence(words, said, data, tmp_path, monkeypatch):
    """And with dm, nothing of this is missing."""
    monkeypatch.chdir(tmp_path)
    spec = open_source(str(data)).facts.spec
    for name in ("UNKNOWN", "CUT", "LIMITED"):
        writer = Writer(tmp_path / name, DataFacts(spec=spec, record=LOG_PROB, policies=("tests",)))
        for number in range(4):
            one = episode(number, 5, spec, terminated=name != "LIMITED")
            log_prob = one.record["log_prob"] * (float("nan") if name == "UNKNOWN" and number else 1.0)
            writer.write(dataclasses.replace(one, action=one.action % 2, record={"log_prob": log_prob}, whole=name != "CUT"))
        writer.close()
    data_of("Pendulum-v1", tmp_path / "OTHER")
    base = [word for word in WORDS if not (word.startswith("algo") and any(one.startswith("algo=") for one in words))]
    env = [] if any(word.startswith("env=") for word in words) else ["env=data"]
    path = [] if any("data.path=" in word for word in words) else [f"data.path={data}"]
    words = [word.replace("SET", str(data)) for word in words]
    with pytest.raises(UserError, match=said):
        train(*base, *env, *path, "logger=[]", "eval.every=200", *words, f"run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def test_a_model_without_discount_may_judge_data_in_which_an_episode_ended_by_itself(data, tmp_path):
    spec = open_source(str(data)).facts.spec
    writer = Writer(tmp_path / "partly", DataFacts(spec=spec, record=LOG_PROB, policies=("tests",)))
    for number in range(4):
        one = episode(number, 5, spec, terminated=number == 3)
        writer.write(dataclasses.replace(one, action=one.action % 2))
    writer.close()
    words = ["algo=bc", "algo.batch_size=50", "resources=debug", "logger=[]", "env=CartPole-v1", f"data.path={tmp_path / 'partly'}"]
    estimates = ["eval.every=9", "eval.estimate.methods=[dm]"]
    check_estimates(checked(type_config(compose(*words, *estimates))), 1_000_000)
    with pytest.raises(UserError, match="cut all 3 episodes"):
        check_estimates(checked(type_config(compose(*words, *estimates, "eval.estimate.episodes=3"))), 1_000_000)


def test_episodes_that_do_not_fit_into_memory_are_said(data):
    made = checked(type_config(compose(*WORDS, "logger=[]", "env=CartPole-v1", f"data.path={data}", "eval.every=9", "eval.estimate.methods=[dm]")))  # fmt: skip
    check_estimates(made, 1_000_000)
    with pytest.raises(UserError, match=r"10 episodes of .* GB are free; eval.estimate.episodes=\d reads fewer"):
        check_estimates(made, 5000)
