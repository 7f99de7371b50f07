"""rlrun benchmark cluster: files of measurements, what is simulated from them, and what is fitted."""

import dataclasses
import json

import pytest

from rlrun.bench import cluster
from rlrun.bench.cluster_measure import slowdown, vectors
from rlrun.bench.cluster_model import ClusterFacts, simulate
from rlrun.cli import _dispatch
from rlrun.core.errors import UserError

FACTS = {
    "rows": 50, "columns": 10, "fragments": 1, "slots": 2, "calls_ahead": 2, "answer": 1, "step_sec": 1e-3, "pack_sec": 2e-5,
    "unpack_sec": 1e-5, "update_sec": 0.2, "put_sec": 2e-3, "call_sec": 1e-3, "load_sec": 1e-3, "step_bytes": 300.0, "weights_bytes": 6.75e6,
}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cluster" / "measured.json"
    cluster.write(path, {"facts": FACTS, "check": {"one": 100.0, "measured": 100.0, "predicted": 120.0}})
    return path


def simulated(capsys, file, *words) -> dict[str, str]:
    capsys.readouterr()
    assert _dispatch(["benchmark", "cluster", "--simulate", "--json", str(file), *words]) == 0
    return dict(line.rsplit(None, 1) for line in capsys.readouterr().out.splitlines() if line[-1] in "0123456789%")


def test_a_learner_on_a_core_is_narrow_and_one_on_a_gpu_is_not(file, capsys):
    assert float(simulated(capsys, file, "nodes=4")["env steps/s"].replace(",", "")) == pytest.approx(500 / (0.2 + 5e-3 + 3e-3), rel=0.15)
    found = simulated(capsys, file, "nodes=2", "samplers=4", "gpu=true", "bandwidth=1e9")
    assert float(found["env steps/s"].replace(",", "")) > 7000 and found["samplers works"] >= "9"


def test_what_is_no_measurement_is_a_sentence(file, tmp_path):
    for words, said in (
        (["--simulate", "nodez=2"], "There is no option nodez. Did you mean nodes"),
        (["--simulate", "nodes=0"], "nodes must be at least 1"),
        (["--simulate", "--table"], "needs one of --simulate, --measure and --table"),
        (["--table", "nodes=2"], "--table takes no nodes="),
    ):
        with pytest.raises(UserError, match=said.replace(".", r"\.")):
            _dispatch(["benchmark", "cluster", "--json", str(file), *words])
    with pytest.raises(UserError, match="--measure makes it, or --json names another"):
        cluster.read(tmp_path / "none.json")
    values = json.loads(file.read_text())
    values["check"]["predicted"] = 101.0
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match="was altered after it was written"):
        cluster.read(file)


def test_a_bar_that_is_not_met_is_called_so():
    check = {"local": 100.0, "one": 85.0, "measured": 100.0, "predicted": 120.0}
    assert cluster.comparison({"check": check}) == (
        "env steps/s: shared memory 100, one node 85 (-15%; the bar is -10%, which is not met);"
        " two simulated nodes 100, predicted 120 (+20%; the bar is 15%, which is not met)"
    )
    said = cluster.comparison({"check": check | {"predicted": 90.0, "one": 95.0}})
    assert "one node 95 (-5%; the bar is -10%, which is met)" in said and said.endswith("predicted 90 (-10%; the bar is 15%, which is met)")


def test_other_work_on_the_machine_is_found_in_the_speed_of_one_node(monkeypatch):
    monkeypatch.setattr("rlrun.bench.cluster_measure.cores", lambda: 2)
    setup = {"bandwidth": 1e9, "head_bandwidth": 1e9, "latency_sec": 5e-4, "gpu": False, "shared": True, "broadcast": 1}
    facts = ClusterFacts(**FACTS | setup, nodes=1, samplers=2, cores=2)
    slower = {name: 3 * FACTS[name] for name in FACTS if name.endswith("_sec")}
    speed = simulate(dataclasses.replace(facts, **slower)).steps_per_sec
    assert slowdown(FACTS | setup, {"samplers": 2}, speed) == pytest.approx(3.0, rel=0.1)


def test_vectors_are_sent_as_they_are():
    found = vectors()
    assert found["raw_bytes"] <= found["packed_bytes"] < 1.02 * found["raw_bytes"] and found["pack_us"] < 10
