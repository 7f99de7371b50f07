"""A replay that does not fit in memory: refused where its capacity was asked for, smaller where it is auto."""

import json

import pytest
import yaml
from conftest import compose, small

from rlrun.cli import _dispatch
from rlrun.commands.train import capacity_is_auto, planned_here
from rlrun.core.errors import UserError
from rlrun.machine import machine
from rlrun.machine.machine import Machine

WORDS = [*small("dqn", "tiny"), "env=CartPole-v1", "resources=debug", "logger=[]"]


def planned(free: int, *words: str):
    values = compose(*(word for word in WORDS if "capacity" not in word), *words)
    on = Machine(cores=2, free_memory=free, env_step_sec=lambda make_env, count: 1e-6)
    said = []
    made = planned_here(values, on, {}, said, capacity_is_auto(values))
    return made, values, said


def test_a_capacity_of_auto_takes_half_of_the_free_memory_at_most():
    plenty, values, said = planned(2**40)
    whole = plenty.replay.layout.bytes
    assert plenty.replay.cfg.capacity == 1_000_000 and not said
    assert values["replay"]["capacity"] == "auto", "nothing was decided here"
    little, values, said = planned(whole)
    rows = values["replay"]["capacity"]
    assert little.replay.cfg.capacity == rows and 450_000 < rows <= 500_000
    assert little.replay.layout.bytes == pytest.approx(0.5 * whole, rel=0.001)
    little.replay.check(whole, little.resources.device)
    assert said[0].startswith(f"replay.capacity={rows}: the default of 1,000,000 rows would take more than half of the")


def test_jobs_side_by_side_count_on_a_part_each(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 1000)
    assert machine.memory_share() == 1000
    monkeypatch.setenv("RLRUN_MEMORY", "400")
    assert machine.memory_share() == 400
    plan, _, _ = planned(2**40)
    values = compose(*(word for word in WORDS if "capacity" not in word))
    on = Machine(cores=2, free_memory=2**40, memory_share=plan.replay.layout.bytes, env_step_sec=lambda make_env, count: 1e-6)
    said = []
    made = planned_here(values, on, {}, said, True)
    assert 450_000 < made.replay.cfg.capacity <= 500_000 and "GB of memory that are this job's part" in said[0]


def test_a_capacity_that_was_asked_for_is_never_changed():
    """More than half of the memory is allowed, and more than all of it is refused with the number that fits."""
    plan, _, _ = planned(2**40, "replay.capacity=100000")
    need = plan.replay.layout.bytes
    plan, values, _ = planned(int(1.01 * need), "replay.capacity=100000")
    assert values["replay"]["capacity"] == 100000
    plan.replay.check(int(1.01 * need), plan.resources.device)
    plan, _, _ = planned(need // 2, "replay.capacity=100000")
    with pytest.raises(
        UserError, match=r"a replay of 100,000 rows takes .* GB are free; replay.capacity=(4[45]\d{3}) would fit"
    ):
        plan.replay.check(need // 2, plan.resources.device)


def test_a_run_keeps_the_capacity_that_it_began_with(tmp_path, monkeypatch):
    """The machine has less memory when the run is resumed, which then says so instead of forgetting rows."""
    words = [word for word in WORDS if "capacity" not in word]
    path = tmp_path / "run"
    monkeypatch.setattr(machine, "free_memory", lambda: 200_000)
    assert _dispatch(["train", *words, "env_steps=60", f"run_dir={path}"]) == 0
    capacity = yaml.safe_load((path / "config.yaml").read_text())["replay"]["capacity"]
    assert isinstance(capacity, int) and 500 < capacity < 5000
    assert _dispatch(["resume", str(path), "env_steps=120"]) == 0
    assert json.loads((path / "progress.jsonl").read_text().splitlines()[-1])["env_steps"] >= 120
    monkeypatch.setattr(machine, "free_memory", lambda: 50_000)
    with pytest.raises(UserError, match=f"a replay of {capacity:,} rows takes"):
        _dispatch(["resume", str(path), "env_steps=180"])
