"""How benchmark throughput divides a sampler's time and computes its bound."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import small

from rlrun.bench import parts as bench_parts
from rlrun.bench import throughput_all
from rlrun.bench.arguments import write_results
from rlrun.bench.parts import PartsOfRows, updates_per_row
from rlrun.bench.throughput import _Rows, _sampler_time, bound_of
from rlrun.cli import _dispatch
from rlrun.config.paths import options
from rlrun.core.errors import RunFailed, UserError
from rlrun.machine.machine import measured
from rlrun.runtime.build import build
from rlrun.runtime.plan import plan


def made(inference, samplers=2, learners=1):
    return SimpleNamespace(inference=inference, num_samplers=samplers, num_learners=learners)


def test_shares_are_of_every_process_that_steps_environments():
    assert _sampler_time(made("local"), 1000.0, {"env": 600.0, "policy": 400.0}) == pytest.approx(
        {"env": 0.3, "policy": 0.2, "rest": 0.5}
    )
    assert _sampler_time(made("local", 4, 2), 1000.0, {"env": 600.0, "policy": 400.0})["env"] == pytest.approx(0.15)
    assert _sampler_time(made("serial", 1), 1000.0, {"env": 600.0, "policy": 500.0})["rest"] == 0.0, (
        "never below 0, even where the clocks disagree"
    )


def test_the_thread_that_acts_for_all_is_apart():
    shares = _sampler_time(made("batched", 4), 2000.0, {"env": 1000.0, "policy": 100.0})
    assert shares == pytest.approx({"env": 0.5, "rest": 0.5, "inference thread": 0.2})


def test_evolution_says_nothing():
    assert _sampler_time(made("local"), 1000.0, {}) == {}


def test_a_gpu_works_beside_the_cores():
    rates = {"env": 2000.0, "inference": 100_000.0, "learning": 50_000.0}
    gpu = SimpleNamespace(inference="batched", num_samplers=15, num_learners=1, device=SimpleNamespace(type="cuda"))
    assert bound_of(gpu, rates, 16) == pytest.approx(30_000.0)
    assert bound_of(gpu, rates | {"env": 4000.0}, 16) == pytest.approx(1 / (1 / 100_000 + 1 / 50_000))
    cpu = SimpleNamespace(inference="local", num_samplers=2, num_learners=1, device=SimpleNamespace(type="cpu"))
    assert bound_of(cpu, {"env": 1500.0, "inference": 1800.0, "learning": 900.0}, 2) == pytest.approx(
        2 / (1 / 1500 + 1 / 1800 + 1 / 900)
    )


def test_an_update_stands_for_fewer_env_steps_where_batches_are_used_again(typed):
    """tests/runners/test_actor_learner.py checks that the runner uses rows this often."""
    runner = typed(
        "algo=impala",
        "env=CartPole-v1",
        "runner.num_sgd_iter=2",
        "runner.replay_proportion=0.5",
        "runner.replay_slots=5",
    ).runner
    assert updates_per_row(runner) == 3.0
    assert (
        updates_per_row(typed("algo=impala", "env=CartPole-v1").runner)
        == updates_per_row(typed("algo=ppo", "env=CartPole-v1").runner)
        == 1.0
    )


@pytest.mark.parametrize("algo", ["multi", "self_play"])
def test_an_env_step_moves_all_agents_of_an_environment(typed, monkeypatch, algo):
    """A batch of 40 env steps has 40 rows of every agent."""
    monkeypatch.setattr(bench_parts, "_rate", lambda call: call())
    parts = PartsOfRows(build(plan(typed(*small(algo, "tiny"), "algo.inner.batch_size=40", "logger=[]", "resources=debug"), measured())))
    agents, rows = parts.parts.spec.columns_per_env, parts.parts.plan.fragment_rows
    assert agents > 1
    made = parts.measure()
    assert set(made["env"]) == {parts.columns / agents} and set(made["inference"]) == {rows * parts.columns / agents}
    assert set(made["learning"]) == {40}
    assert parts.clock.updates == 3, "work that is due after some updates is measured as well"
    assert algo == "multi" or parts.fragments[0]["mine"].any(), "self-play acts with its league's weights"


def test_a_call_that_takes_long_is_measured_once(monkeypatch):
    monkeypatch.setattr(bench_parts, "PART_SEC", 0.01)
    asked = []

    def slow():
        asked.append(time.sleep(0.06))
        return 6.0

    assert 50.0 < bench_parts._rate(slow) <= 100.0 and len(asked) == 1


def test_a_measurement_lasts_until_there_are_enough_rows():
    for seconds, wanted in ((5.0, 12.0), (30.0, 31.0)):
        rows, ended = _Rows(seconds), []
        rows.ends_in = ended.append
        for updates, at in ((0, 0.0), (1, 1.0), (2, 8.0), (2, 9.0), (4, 12.0), (5, 31.0)):
            rows.log({"updates": updates, "time_sec": at})
            if ended[-1:] == [0.0]:
                break
        assert at == wanted and rows.learnt[0]["time_sec"] == 1.0 and len(ended) == 2


@pytest.mark.slow
def test_every_algorithm_has_a_small_problem_to_be_measured_on(typed, tmp_path):
    """Each is planned; those that learn from data plan with a set of the environment that they name."""
    for algo in options("algo"):
        words = throughput_all.words_of(algo, ["logger=[]"], tmp_path)
        assert throughput_all._recorded(algo, words, tmp_path) is None
        try:
            made = plan(typed(*words), measured())
        except UserError as error:
            assert "rlrun setup" in str(error) and algo in ("dreamer", "maddpg", "multi", "self_play"), error
        else:
            assert made.config.algo.name == algo


def test_algorithms_are_measured_one_by_one_and_those_that_cannot_be_are_named(tmp_path, capsys, monkeypatch):
    asked = []

    def rlrun(*words):
        asked.append(words)
        if words[0] == "train":
            (record,) = [word[7:] for word in words if word.startswith("record=")]
            Path(record).mkdir()
            return None
        if words[2] == "algo=ddpg":
            return "ddpg needs box actions"
        parts = {"env": 2000.0, "learning": 1000.0}
        updates = {"reached": 12.345}
        one = {"env": "CartPole-v1", "reached": 400.0, "bound": 500.0, "ratio": 0.8, "parts": parts, "updates": updates}
        Path(words[-1]).write_text(json.dumps(one | {"command": "with the name of a temporary folder"}))
        return None

    monkeypatch.setattr(throughput_all, "_rlrun", rlrun)
    file = tmp_path / "all.json"
    words = ["benchmark", "throughput", "--all", "algo=bc,marwil,ddpg,qmix", "algo.lr=0.1", "--json", str(file)]
    assert _dispatch(words) == 0
    assert [one[0] for one in asked] == ["train", *["benchmark"] * 4], "one data set for both that need one"
    assert all("algo.lr=0.1" in one for one in asked if one[0] == "benchmark")
    said, results = capsys.readouterr().out, json.loads(file.read_text())["results"]
    assert results["ddpg"] == {"refused": "ddpg needs box actions"} and "ddpg was not measured: ddpg needs" in said
    assert results["qmix"]["words"] == ["algo=qmix", "env=TwoStepGame-v0", "algo.lr=0.1"] and "temporary" not in str(results)
    assert ["bc", "CartPole-v1", "400", "500", "0.80", "12.3", "env", "2,000,", "learning", "1,000"] in [
        line.split() for line in said.splitlines()
    ]
    assert throughput_all.words_of("bc", ["env=Pong"], tmp_path) == ["algo=bc", "env=Pong"]
    with pytest.raises(UserError, match=r"There is no algorithm 'pppo'\. Did you mean ppo"):
        _dispatch(["benchmark", "throughput", "--all", "algo=pppo"])


@pytest.mark.slow
def test_a_run_that_learns_from_data_is_measured(tmp_path, capsys):
    file = tmp_path / "all.json"
    assert _dispatch(["benchmark", "throughput", "--all", "algo=bc,es", "seconds=5", "--json", str(file)]) == 0
    results = json.loads(file.read_text())["results"]
    assert set(results["bc"]["parts"]) == {"drawing", "learning"} and set(results["es"]["parts"]) > {"env", "learning"}
    assert all(0 < one["reached"] < 1.5 * one["bound"] and one["updates"]["reached"] > 0 for one in results.values())


def test_results_that_cannot_be_written_any_more_are_a_sentence(tmp_path):
    write_results([1], str(tmp_path / "made.json"))
    assert json.loads((tmp_path / "made.json").read_text()) == [1]
    with pytest.raises(RunFailed, match=r"--json .*gone/x\.json: the results cannot be written there: No such file"):
        write_results([1], str(tmp_path / "gone" / "x.json"))
