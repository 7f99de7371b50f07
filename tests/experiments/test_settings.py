"""Settings of a sweep, each with the statistics over its seeds: in the report, by compare and at the end of a sweep."""

import json

import pytest
from test_runs import BASE, saved

from rlrun.cli import _dispatch
from rlrun.commands.sweep import show_settings
from rlrun.experiments.runs import find
from rlrun.experiments.settings import explained, settings_of


def sweep(folder, seeds=5):
    """A sweep of three settings: lr 0.1 reaches 1 to `seeds`, lr 0.2 12, 14, ... and lr 0.3, with two seeds, 30 and 40."""
    for seed in range(1, seeds + 1):
        saved(folder / f"a{seed}", *BASE, "algo.lr=0.1", f"seed={seed}", returns=(float(seed),))
        saved(folder / f"b{seed}", *BASE, "algo.lr=0.2", f"seed={seed}", returns=(10.0 + 2 * seed,))
    for seed in (1, 2):
        saved(folder / f"c{seed}", *BASE, "algo.lr=0.3", f"seed={seed}", returns=(20.0 + 10 * seed,))
    names = [path.name for path in sorted(folder.iterdir())]
    (folder / "sweep.json").write_text(json.dumps({"command": "rlrun sweep ...", "jobs": [{"name": n} for n in [*names, "d"]]}))
    (folder / "outcomes.json").write_text(json.dumps([{"name": "d", "status": "FAILED", "reason": "no such option"}]))
    return folder


def test_five_seeds_have_an_interval_and_fewer_have_none(tmp_path):
    few, many, other = settings_of(find([str(sweep(tmp_path))]))
    assert (few.label, many.label, other.label) == ("lr=0.3", "lr=0.2", "lr=0.1")
    assert few.scores == [30.0, 40.0] and few.interval is None and few.difference is None and not few.best
    # t with 4 degrees of freedom is 2.776; the variances are 10 and 2.5.
    assert many.interval == pytest.approx((16.0, 16 - 2.776 * 2**0.5, 16 + 2.776 * 2**0.5)) and many.best
    assert other.interval == pytest.approx((3.0, 3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5)) and not other.best
    t = 2.571 + 0.882353 * (2.447 - 2.571)  # 5.882 degrees of freedom
    assert other.difference == pytest.approx((-13.0, -13 - t * 2.5**0.5, -13 + t * 2.5**0.5), abs=1e-5)


def test_compare_shows_the_settings_of_a_sweep(tmp_path, capsys):
    assert _dispatch(["compare", str(sweep(tmp_path))]) == 0
    table, words, more, jobs = capsys.readouterr().out.split("\n\n")
    assert table.splitlines() == [
        "setting  seeds  mean return  spread                 difference to the best",
        "lr=0.3       2           35  lowest 30, highest 40",
        "lr=0.2       5           16  95 %: 12.1 to 19.9     the best",
        "lr=0.1       5            3  95 %: 1.04 to 4.96     -13 (-16.9 to -9.11)",
    ]
    assert "its mean over the last 100 games" in " ".join(words.split()) and "Welch" in more and "no such option" in jobs


def test_the_report_has_both_intervals_and_their_words(tmp_path):
    assert _dispatch(["report", str(sweep(tmp_path))]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "<td>3</td><td>1.04 to 4.96</td><td>3</td><td>1</td><td>5</td><td>-13 (-16.9 to -9.11)</td>" in text
    assert "<td>35</td><td></td>" in text and "Student&#x27;s t over seeds" in text and "Welch&#x27;s t" in text


def test_few_seeds_have_the_lowest_and_the_highest_alone(tmp_path, capsys):
    folder = sweep(tmp_path / "few", seeds=4)
    assert _dispatch(["compare", str(folder)]) == 0 and _dispatch(["report", str(folder)]) == 0
    said, text = capsys.readouterr().out, (folder / "report.html").read_text()
    assert "lowest 1, highest 4" in said and "95 %:" not in said and "difference" not in said
    assert "its 95 % interval</th>" not in text and "Fewer seeds have no interval" in text


def test_two_runs_of_one_seed_are_not_two_results(tmp_path):
    for name, seed in zip("abcde", (1, 2, 3, 4, 4)):
        saved(tmp_path / name, *BASE, f"seed={seed}")
    (setting,) = settings_of(find([str(tmp_path)]))
    assert setting.counted == "5 runs of 4" and setting.interval is None


def test_settings_are_compared_on_their_own_environment(tmp_path):
    for env, first in (("CartPole-v1", 100), ("Acrobot-v1", -100)):
        for seed in range(5):
            saved(tmp_path / f"{env}{seed}", "algo=pg", f"env={env}", "logger=[]", f"seed={seed}", returns=(float(first + seed),))
    found = settings_of(find([str(tmp_path)]))
    assert len(found) == 2 and all(one.interval and one.difference is None and not one.best for one in found)


def test_the_end_of_a_sweep_shows_settings_of_several_seeds(tmp_path, capsys):
    show_settings(sweep(tmp_path / "many"))
    said = capsys.readouterr().out
    assert "95 %: 12.1 to 19.9" in said and f"rlrun compare {tmp_path / 'many'} says what these numbers are" in said
    saved(tmp_path / "alone" / "run", *BASE)
    show_settings(tmp_path / "alone")
    (tmp_path / "empty").mkdir()
    show_settings(tmp_path / "empty")
    assert capsys.readouterr().out == "" and explained(settings_of(find([str(tmp_path / "alone")]))) == []
