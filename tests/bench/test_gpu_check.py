"""scripts/gpu_check without a GPU: its options compose, its limits hold, and failures are reported."""

import argparse
import importlib.util
import json
import sys
import time

import pytest

from rlrun.config.paths import root


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", root() / "scripts" / "gpu" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check():
    return loaded("check")


def asked(folder):
    return argparse.Namespace(out=folder, work=folder, pong_seconds=1.0, end=time.monotonic() + 600)


def test_every_part_composes(check, typed, tmp_path):
    for name, (words, _) in check.SPEED.items():
        typed(*words)
        assert check.command_of(name, asked(tmp_path))[3:5] == ["benchmark", "throughput"]


def test_an_algorithm_is_trained_goes_on_and_is_evaluated(tmp_path, capsys):
    """With a replay; without one, whose options it refuses; and on a device that there is not."""
    every, words = loaded("every"), ["--device", "cpu", "--seconds", "30", "--jobs", "1"]
    assert every.main([str(tmp_path), "iql", *words, "--again", "cpu", "--env-steps", "600"]) == 0
    assert "1 algorithms trained, went on and were evaluated; 0 failed" in capsys.readouterr().out
    assert every.main([str(tmp_path), "pg", *words, "--again", "cuda:7"]) == 1
    assert "FAILED: resume: rlrun: " in capsys.readouterr().out
    commands = [part for part in (tmp_path / "pg.log").read_text().split("---- ") if part.startswith("rlrun train")]
    assert "learning_starts" in commands[0] and "learning_starts" not in commands[-1]


def test_the_slow_gpu_tests_are_a_part_of_their_own(check, tmp_path):
    tests, slow = (check.command_of(name, asked(tmp_path)) for name in ("tests", "compiling"))
    assert "gpu and not slow" in tests and "gpu and slow" in slow and tests[-1] == slow[-1] == "tests/gpu"


def script(monkeypatch, check, code):
    monkeypatch.setattr(check, "command_of", lambda name, asked: [sys.executable, "-c", code, "rlrun"])


def test_what_fails_or_hangs_is_said(check, monkeypatch, tmp_path):
    script(monkeypatch, check, "print('first'); raise SystemExit('no room')")
    with pytest.raises(check.Failed, match="no room"):
        check.run("impala", asked(tmp_path))
    child = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    script(monkeypatch, check, f"import subprocess, sys; print('begun', flush=True); {child}")
    monkeypatch.setattr(check, "LEAST_SEC", 0.5)
    late = asked(tmp_path)
    late.end = time.monotonic() + 2.0
    with pytest.raises(check.Failed, match="longer than 2 s; begun"):
        check.run("impala", late)
    log = (tmp_path / "impala.log").read_text()
    # Both processes write at the same time, so that parts of their lines may be mixed.
    assert log.count("Fatal Python error: ") == log.count("<string>") == 2, "both stacks"


def test_what_no_time_is_left_for_is_not_begun(check, tmp_path):
    late = asked(tmp_path)
    late.end = time.monotonic() + 5.0
    with pytest.raises(check.Failed, match="no time was left"):
        check.run("pong", late)


def test_every_part_is_said_whatever_becomes_of_the_others(check, monkeypatch, tmp_path, capsys):
    """Runs with a faked torch.cuda that reports a GPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")

    def fails() -> None:
        raise ModuleNotFoundError("No module named 'ale_py'")

    monkeypatch.setattr(check, "emulator", fails)
    script(monkeypatch, check, "print('1 passed')")
    assert check.main(["emulator", "tests", "--out", str(tmp_path / "out")]) == 1
    said, kept = capsys.readouterr().out, json.loads((tmp_path / "out" / "results.json").read_text())
    assert "FAILED: ModuleNotFoundError" in said and "1 passed" in said
    assert kept["parts"]["tests"]["met"] and "failed" in kept["parts"]["emulator"] and sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "logs.txt", "results.json", "table.txt"]  # fmt: skip


@pytest.mark.parametrize(
    "reached, emulated, met", [(31e3, None, True), (20e3, None, False), (20e3, 25e3, True), (18e3, 25e3, False)]
)
def test_a_speed_is_held_against_its_bar(check, monkeypatch, tmp_path, reached, emulated, met):
    figures = dict.fromkeys(
        ("bound", "ratio", "parts", "learner_time", "sampler_time", "policy_lag", "memory_pss_mb", "resources"), 1.0
    ) | {"reached": reached}
    (tmp_path / "impala.json").write_text(json.dumps(figures))
    script(monkeypatch, check, "pass")
    made, sentence = check.run("impala", asked(tmp_path), emulated)
    assert made["met"] is met and ("NOT met" in sentence) is not met


@pytest.mark.parametrize(
    "part, reached, met",
    [("pong", 18.2, True), ("impala_pong", 17.0, False), ("pong", None, False), ("dreamer", 3.0, None)],
)
def test_a_training_is_held_against_its_bar(check, monkeypatch, tmp_path, part, reached, met):
    """dreamer has no bar."""
    summary = {"return_mean": reached, "env_steps": 5_000_000, "updates": 90, "wall_sec": 100.0, "reason": "it was said"}
    write = f"p = pathlib.Path({str(tmp_path)!r}) / {part!r}; p.mkdir(); (p / 'summary.json').write_text({json.dumps(summary)!r})"
    script(monkeypatch, check, f"import pathlib; {write}")
    made, sentence = check.run(part, asked(tmp_path))
    assert made.get("met") is met and (made["env_steps"], made["updates"]) == (5_000_000, 90)
    assert "it was said" in sentence and ("bar" in sentence) is (met is not None)


def test_without_a_gpu_or_with_a_mistyped_part_it_says_so(check, capsys, monkeypatch):
    assert check.main(["impla"]) == 2 and "there are emulator" in capsys.readouterr().err
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 2 and "no CUDA GPU" in capsys.readouterr().err
