"""Searches, where outcomes are made up instead of training runs."""

import json
import math

import pytest

pytest.importorskip("optuna")

from rlrun.core.errors import UserError
from rlrun.experiments.grid import parse
from rlrun.experiments.outcomes import Outcome
from rlrun.experiments.search import Trials, left_of

WORDS = [
    "algo=pg,a2c",
    "env=CartPole-v1",
    "algo.lr=tag(log, interval(1e-5, 1e-1))",
    "algo.batch_size=int(interval(2, 9))",
]


def allowed(words, name):
    return {}


def values_of(job):
    return dict(word.split("=", 1) for word in job.words)


def trials(folder, method="random", count=10, prune=False, check=allowed, seed=0):
    return Trials(parse(WORDS), method, count, prune, 1000, seed, folder, check)


def finish(supply, job, mean, status="COMPLETED"):
    supply.done(Outcome(job=job, status=status, summary={"return_mean": mean} if mean is not None else {}))


def test_values_are_drawn_from_lists_and_intervals(tmp_path):
    supply = trials(tmp_path, count=30)
    seen = []
    while (job := supply.next()) is not None:
        values = values_of(job)
        assert (
            values["algo"] in ("pg", "a2c")
            and 1e-5 <= float(values["algo.lr"]) <= 1e-1
            and int(values["algo.batch_size"]) in range(2, 10)
        )
        assert values["env"] == "CartPole-v1" and job.run_dir.parent == tmp_path
        seen.append(values)
        finish(supply, job, 1.0)
    assert (
        len(seen) == 30
        and {one["algo"] for one in seen} == {"pg", "a2c"}
        and len({one["algo.batch_size"] for one in seen}) > 5
    )
    assert sum(float(one["algo.lr"]) < 1e-3 for one in seen) > 8, "half of a logarithmic interval lies below its middle"
    (tmp_path / "narrow").mkdir()
    narrow = parse(["algo.discount=interval(0.9999991, 0.9999999)"])
    job = Trials(narrow, "random", 1, False, 1000, 0, tmp_path / "narrow", allowed).next()
    assert 0.9999991 <= float(values_of(job)["algo.discount"]) <= 0.9999999


def test_the_same_seed_draws_the_same(tmp_path):
    def words(folder, seed):
        folder.mkdir()
        return [trials(folder, seed=seed).next().words for _ in range(1)]

    assert words(tmp_path / "a", 3) == words(tmp_path / "b", 3) != words(tmp_path / "c", 4)
    assert words(tmp_path / "d", 2**32 + 3) == words(tmp_path / "e", 3), "Optuna takes no seed of 2**32 or more"


def test_tpe_learns_where_returns_are_high(tmp_path):
    """With a peak at lr 1e-3, the later half of 60 trials must look there more often than chance would.

    A fifth of the interval lies within a factor of 2.5 of the peak.
    """
    supply = trials(tmp_path, "tpe", 60)
    near = []
    while (job := supply.next()) is not None:
        distance = abs(math.log10(float(values_of(job)["algo.lr"])) + 3)
        near.append(distance < 0.4)
        finish(supply, job, -distance)
    assert sum(near[30:]) > 12
    assert "best of 60" in supply.best()


def test_tpe_learns_where_runs_fail(tmp_path):
    """Returns grow with lr until 1e-2, where runs diverge: a quarter of the interval."""
    supply = trials(tmp_path, "tpe", 40)
    bad = []
    while (job := supply.next()) is not None:
        lr = float(values_of(job)["algo.lr"])
        bad.append(lr > 1e-2)
        finish(supply, job, None if lr > 1e-2 else math.log10(lr), "FAILED" if lr > 1e-2 else "COMPLETED")
    assert sum(bad[20:]) <= 10
    again = trials(tmp_path, "tpe", 40)
    assert again.over == {number: "FAILED" for number, failed in enumerate(bad) if failed}


def log(job, *rows):
    """Appends rows to the job's progress.jsonl: pairs of env steps and mean return, or whole rows."""
    rows = [row if isinstance(row, dict) else {"env_steps": row[0], "sample/return_mean": row[1]} for row in rows]
    job.run_dir.mkdir(exist_ok=True)
    with (job.run_dir / "progress.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def look(supply, job, *rows):
    log(job, *rows)
    return supply.look(Outcome(job=job))


def test_a_run_that_does_worse_than_half_at_its_age_is_pruned(tmp_path):
    supply = trials(tmp_path, prune=True, count=20)
    for mean in (10.0, 20.0, 30.0, 40.0, 50.0):  # the first five are never pruned
        job = supply.next()
        for step in range(50, 1001, 50):
            assert not look(supply, job, (step, mean))
        finish(supply, job, mean)
    job = supply.next()
    asked = [look(supply, job, (step, 25.0)) for step in range(50, 501, 50)]
    assert asked[-1] and not asked[0], "25 is below the median of 30, but a young run is not pruned"
    finish(supply, job, None, "PRUNED")
    job = supply.next()
    assert not any(look(supply, job, (step, 45.0)) for step in range(50, 1001, 50))
    assert not look(supply, job, (1060, None))
    finish(supply, job, 45.0)
    job = supply.next()  # a run that learns from data has evaluations alone, and most rows have none
    nothing = {"env_steps": 490, "sample/return_mean": None}
    assert not look(supply, job, nothing)
    assert look(supply, job, {"env_steps": 500, "eval/return_mean": 25.0}, nothing | {"env_steps": 510})


def test_runs_are_compared_after_as_many_env_steps_whenever_they_are_looked_at(tmp_path):
    """Runs grow by 1 in every env step, and their rows are few and nowhere near those of the others."""
    supply = trials(tmp_path, prune=True, count=20)
    for run in range(5):
        job, steps = supply.next(), range(20 + 31 * run, 1200, 170 + 10 * run)
        assert not look(supply, job, *((step, step) for step in steps))
        finish(supply, job, 1000.0)
    reported = [trial.intermediate_values for trial in supply.study.trials]
    for values in reported:
        assert all(mean == pytest.approx(50 * rung) for rung, mean in values.items()) and max(values) >= 20
    shared = set.intersection(*map(set, reported))
    assert shared == set(range(min(shared), 21)) and min(shared) <= 4, "every run has passed these rungs"
    job = supply.next()
    assert not look(supply, job, (40, 45.0), (990, 995.0), (1001, 1006.0)), "it was better at every age"
    finish(supply, job, 1006.0)
    job = supply.next()
    assert look(supply, job, (40, 35.0), (990, 985.0)), "a single row behind many rungs shows that it was worse"
    finish(supply, job, None, "PRUNED")
    job = supply.next()  # it ends before anybody looks
    log(job, (0, 0.0), (1000, 1000.0))
    finish(supply, job, 1000.0)
    assert set(supply.study.trials[-1].intermediate_values) == set(range(1, 21))


def test_a_search_goes_on_where_it_was(tmp_path):
    supply = trials(tmp_path, count=4)
    first, second = supply.next(), supply.next()
    finish(supply, first, 5.0)
    finish(supply, second, None, "INTERRUPTED")
    later = trials(tmp_path, count=4)
    again = later.next()
    assert again.name == second.name and again.words == second.words, (
        "the interrupted run goes on with the values it had"
    )
    finish(later, again, 7.0)
    names = {first.name, again.name}
    while (job := later.next()) is not None:
        assert job.words not in (first.words, second.words)
        names.add(job.name)
        finish(later, job, 1.0)
    assert len(names) == 4 and "return 7.00" in later.best() and "best of 4" in later.best()


def test_a_job_that_the_queue_lost_goes_on_later(tmp_path):
    supply = trials(tmp_path, count=2)
    first, second = supply.next(), supply.next()
    supply.done(Outcome(job=first, status="FAILED", lost=True))
    supply.done(Outcome(job=second, status="FAILED"))
    later = trials(tmp_path, count=2)
    assert later.next().name == first.name and later.next() is None
    assert later.status(first.name) is None and later.status(second.name) == "FAILED"


def test_the_study_is_not_read_again_for_every_question(tmp_path, monkeypatch):
    """A sweep asks for the next job five times a second until its last run has ended, and for the status of every job
    when it goes on. The study copies all of its trials whenever it is asked for them."""
    supply = trials(tmp_path, count=3)
    jobs = [supply.next() for _ in range(3)]
    finish(supply, jobs[0], 1.0)
    finish(supply, jobs[1], None, "PRUNED")
    finish(supply, jobs[2], None, "FAILED")
    for goes_on in (supply, trials(tmp_path, count=3)):
        with monkeypatch.context() as patch:
            patch.setattr(type(goes_on.study), "get_trials", None)
            assert goes_on.next() is None
            goes_on.status(jobs[0].name)
    assert [goes_on.status(job.name) for job in jobs] == [None, "PRUNED", "FAILED"]
    assert trials(tmp_path, count=4).next().name.startswith("003")


def test_a_study_whose_last_line_was_cut_goes_on(tmp_path, capsys):
    """Optuna appends to it, and could read nothing that comes later."""
    supply = trials(tmp_path, count=3)
    finish(supply, supply.next(), 1.0)
    first = supply.next()
    study = tmp_path / "study.jsonl"
    whole = study.read_bytes()
    study.write_bytes(whole[:-20])
    for _ in range(2):
        again = trials(tmp_path, count=3).next()
        drawn = values_of(first).items() & values_of(again).items()
        assert values_of(again).keys() == values_of(first).keys() and len(drawn) >= len(first.words) - 1
    assert capsys.readouterr().out.count("was cut short") == 1
    study.write_bytes(b"nothing\n" + whole)
    with pytest.raises(UserError, match=r"study.jsonl is damaged"):
        trials(tmp_path, count=3)


def test_what_was_reported_before_is_not_reported_again(tmp_path, recwarn):
    supply = trials(tmp_path, prune=True, count=2)
    job = supply.next()
    look(supply, job, (500, 1.0))
    supply.done(Outcome(job=job, status="INTERRUPTED"))
    later = trials(tmp_path, prune=True, count=2)
    assert later.next().name == job.name
    look(later, job, (500, 1.0))
    assert not [one for one in recwarn if "already reported" in str(one.message)]


def test_runs_that_share_the_best_return_are_counted(tmp_path, recwarn):
    supply = trials(tmp_path, "tpe", 3)
    assert not recwarn.list, "Optuna's word on constant_liar is not for our users"
    for value in (21.591, 5.0, 21.594):
        finish(supply, supply.next(), value)
    assert supply.best().startswith("best of 3: return 21.59, which 2 runs reached, one of them with ")


def test_failed_runs_and_values_that_do_not_fit_are_told(tmp_path, capsys):
    def check(words, name):
        if "algo=pg" in words:
            raise UserError(f"job {name}: no pg today")

    supply = trials(tmp_path, count=12, check=check)
    ran = []
    while (job := supply.next()) is not None:
        ran.append(values_of(job)["algo"])
        finish(supply, job, None, "FAILED")
    assert set(ran) == {"a2c"} and 0 < len(ran) < 12 and "no pg today" in capsys.readouterr().out
    assert supply.best() is None and supply.refused == 12 - len(ran)
    assert left_of(tmp_path, 14) == (dict.fromkeys(range(12), "FAILED"), 2)
