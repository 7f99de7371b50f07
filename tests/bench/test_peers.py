"""The comparison with other libraries: what is counted, whose turn it is, and how a failing peer is reported."""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "scripts" / "peers"


def load(name):
    sys.path.insert(0, str(PEERS))  # these programs import each other by name
    spec = importlib.util.spec_from_file_location(f"peers_{name}", PEERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(PEERS))
    return module


compare, common, offline, learning, atari = map(load, ("compare", "common", "offline", "learning", "atari"))


def test_the_first_quarter_of_the_time_is_not_counted():
    now = [0.0]
    meter = common.Meter(20.0, lambda: now[0])
    steps = [(0.0, 100), (4.0, 200), (6.0, 300), (12.0, 600), (21.0, 1800)]
    said = []
    for now[0], count in steps:
        said.append(meter.over(count))
    assert said == [False] * 4 + [True] and meter.rate == (1800 - 300) / (21.0 - 6.0)


def test_every_other_round_is_the_other_way_round_and_failures_are_kept():
    order, lines = [], []

    def of(name, rate):
        def call():
            order.append(name)
            if rate is None:
                raise compare.Failed("broke")
            return {"env_steps_per_sec": rate * len(order), "settings": {"workers": 2}, "versions": {name: "1"}}

        return call

    found = compare.measured(
        {"rlrun": of("rlrun", 100.0), "other": of("other", 10.0), "bad": of("bad", None)}, 2, lines.append
    )
    assert order == ["rlrun", "other", "bad", "bad", "other", "rlrun"]
    assert found["bad"] == {"rates": [], "failed": "broke"} and compare.ratios(found, "other") == [
        100.0 / 20.0,
        600.0 / 50.0,
    ]
    said = compare.table("impala", found).splitlines()
    assert "8.50 x (5.00 to 12.00)" in said[2] and "workers 2; other 1" in said[2] and said[3].endswith("failed: broke")


def script(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_a_program_is_heard_by_its_last_line_of_json(tmp_path):
    assert compare.program(script(tmp_path, "print('{\"a\": 1}'); print('[noise] {x'); print('bye')"), 1.0) == {"a": 1}
    with pytest.raises(compare.Failed, match="ZeroDivisionError"):
        compare.program(script(tmp_path, "1 / 0"), 1.0)


def gone(pid):
    """False for zombies as well: a process that was killed stays one until its parent waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_program_that_never_ends_is_ended_with_its_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "START_SEC", 2.5)
    told = tmp_path / "pid"
    text = f"""
import pathlib, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(told)!r}).write_text(str(worker.pid))
time.sleep(600)
"""
    with pytest.raises(compare.Failed, match="did not end within"):
        compare.program(script(tmp_path, text), 0.0)
    worker, deadline = int(told.read_text()), time.monotonic() + 10.0
    while not gone(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(worker)


@pytest.mark.parametrize("algo", ["impala", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "dqn"))])
def test_the_plain_loop_says_its_ways_and_measures(algo, tmp_path):
    """This peer needs no packages besides rlrun's own."""
    script = [sys.executable, str(PEERS / "cleanrl_style_peer.py")]
    ways = compare.program([*script, "--variants", algo], 5.0)
    assert ways == ["1 thread", "2 threads"]
    with pytest.raises(compare.Failed, match="variant must be one of"):
        compare.program([*script, algo, "3 threads", "1"], 5.0)


def test_every_peer_has_a_program():
    assert all((PEERS / f"{peer}_peer.py").is_file() for peer in compare.PACKAGES)
    assert all(set(peers) <= set(compare.PACKAGES) for peers in compare.KNOWN.values())


def test_figures_count_only_of_programs_that_end_well_and_workers_that_stay_keep_nobody(tmp_path):
    with pytest.raises(compare.Failed, match="exit code 1"):
        compare.program(script(tmp_path, "import sys; print('{}'); sys.exit(1)"), 1.0)
    stays = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(50)']); print('[1]')"
    )
    assert compare.program(script(tmp_path, stays), 1.0) == [1]
    with pytest.raises(compare.Failed, match=r"it printed nothing \(exit code -9\)"):
        compare.program(script(tmp_path, "import os; os.kill(os.getpid(), 9)"), 1.0)


def test_the_way_that_is_the_fastest_is_kept(monkeypatch):
    rates = {"slow": 10.0, "fast": 30.0, "broken": None}
    asked = []

    def program(command, seconds, folder=None):
        if "--variants" in command:
            return list(rates)
        way = command[3]
        asked.append(way)
        if rates[way] is None:
            raise compare.Failed("no")
        return {"env_steps_per_sec": rates[way]}

    monkeypatch.setattr(compare, "program", program)
    call = compare.peer_contestant("rllib", "impala", Path("python"), 20.0, lambda line: None)
    assert call() == {"env_steps_per_sec": 30.0} and asked == ["slow", "fast", "broken", "fast"]
    rates.update(slow=None, fast=None)
    with pytest.raises(compare.Failed, match="slow: no; fast: no"):
        compare.peer_contestant("rllib", "impala", Path("python"), 20.0, lambda line: None)


def test_what_is_printed_as_json_is_what_is_read(capsys, monkeypatch):
    monkeypatch.setattr(common.importlib.metadata, "version", lambda name: "9")
    common.result(12.5, {"workers": 2}, ["ray"])
    told = json.loads(capsys.readouterr().out)
    assert told["env_steps_per_sec"] == 12.5 and set(told["versions"]) == {"ray", "torch", "gymnasium", "ale-py"}


def cql(wall, cpu):
    return [{"updates_per_sec": a, "cpu_sec_per_update": b, "versions": {"torch": "2"}} for a, b in zip(wall, cpu, strict=True)]


def test_cql_is_compared_with_the_faster_peer_of_every_round():
    found = {"rlrun": cql([6.0, 8.0, 3.0], [0.1] * 3), "d3rlpy": cql([4.0, 4.0, 2.0], [0.2] * 3), "corl_style": cql([2.0, 5.0, 1.0], [0.3] * 3)}
    text, reached = offline.table("3x256", found)
    assert reached and "rlrun is 1.50 (1.50 to 1.60) x the faster peer: the bar of 1.5 is met" in text
    assert "rlrun is 1.50 (1.50 to 2.00) x, and 2.00 (2.00 to 2.00) x by CPU" in text
    for one in found["rlrun"]:
        one["updates_per_sec"] -= 0.1
    assert offline.table("3x256", found)[1] is False


def test_pages_of_defaults_say_which_runs_had_local_changes():
    made = {"final": 20.0, "area": 10.0, "std": 1.0, "episodes": 100, "cpu_sec": 9.0, "wall_sec": 60.0,
            "hardware": {"cpu": "CPU", "cores": 2, "gpus": []}, "versions": {"torch": "2"}}  # fmt: skip
    changed, clean = ({**made, "git_commit": name} for name in ("a" * 40 + "+", "b" * 40))
    page = learning.markdown({"ppo/CartPole-v1": {"rlrun": [clean, changed]}}, "command")
    assert "rlrun at aaaaaaaaaa + local changes, bbbbbbbbbb, on 2 cores" in page
    page = atari.markdown({("ppo", "Pong"): clean, ("ppo", "Qbert"): changed}, {"Pong": made, "Qbert": made})
    assert "\naaaaaaaaaa + local changes, bbbbbbbbbb on 2 cores" in page


def test_processor_time_of_processes_that_nobody_waits_for_is_counted(tmp_path):
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}]); print('over'); sys.exit(3)"
    code, lines, cpu_sec = learning.metered([sys.executable, "-c", orphan], tmp_path, dict(os.environ))
    assert (code, lines) == (3, ["over"]) and 0.4 <= cpu_sec < 4.4


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["corl_style", "rlrun"])
def test_programs_of_cql_learn_from_the_same_rows_and_say_how_fast(peer):
    """The third program needs d3rlpy."""
    told = compare.program([sys.executable, str(PEERS / f"{peer}_cql_peer.py"), "2x256", "1 thread", "0.5"], 0.5)
    assert told["updates_per_sec"] > 0 and 0.002 < told["cpu_sec_per_update"] < 5
    assert all((PEERS / f"{name}_cql_peer.py").is_file() for name in (*offline.PEERS, "rlrun"))
