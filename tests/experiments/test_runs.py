"""Saved runs, and what plot, compare and report make of them."""

import contextlib
import copy
import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import compose

from rlrun.cli import _dispatch
from rlrun.core.errors import Notice, UserError
from rlrun.core.run_lock import RunLock
from rlrun.core.saved_files import no_run
from rlrun.experiments.runs import check_metric, differing, find, groups, telling

BASE = ("algo=pg", "env=CartPole-v1", "logger=[]")


def saved(folder, *words, returns=(10.0, 20.0, 30.0), status="COMPLETED", **other):
    """Writes a run directory without training anything."""
    folder.mkdir(parents=True)
    config = copy.deepcopy(compose(*words))
    (folder / "config.yaml").write_text(json.dumps(config))
    rows = [{"env_steps": 1000 * (n + 1), "time_sec": 2.0 * (n + 1), "updates": n, "sample/return_mean": value, "learn/entropy": 1.0 / (n + 1),
             "learn/loss": None} for n, value in enumerate(returns)]  # fmt: skip
    (folder / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {"status": status, "reason": "2000 env steps", "return_mean": returns[-1], "command": f"rlrun train {' '.join(words)}", "git_commit": "a" * 40,
             "versions": {"torch": "2.13"}, "hardware": {"cpu": "a <CPU>", "cores": 2, "gpus": []}, "resources": ["device=cpu"], **other}  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture
def runs(tmp_path):
    for seed in (1, 2):
        saved(tmp_path / "all" / f"pg-{seed}", *BASE, f"seed={seed}", returns=(10.0 * seed, 20.0 * seed))
        saved(tmp_path / "all" / f"fast-{seed}", *BASE, f"seed={seed}", "algo.lr=0.1", returns=(5.0, 6.0, 7.0))
    saved(tmp_path / "all" / "a2c", "algo=a2c", *BASE[1:], returns=(1.0,))
    return tmp_path / "all"


def test_runs_that_differ_in_their_seed_alone_are_one_group(runs):
    every = find([str(runs)])
    assert len(every) == 5 and {label: len(members) for label, members in groups(every)} == {
        "a2c": 1,
        "pg lr=0.1": 2,
        "pg lr=0.004": 2,
    }
    assert telling(every) == ["algo.name", "algo.lr"]
    same = [run for run in every if run.path.name.startswith("pg-")]
    assert groups(same) == [("pg on CartPole-v1", same)] and differing(same) == []


def test_settings_that_differ_late_have_names_of_their_own(tmp_path):
    first = [f"model.{word}" for word in ("hidden=[32]", "layer_norm=true", "activation=relu", "share_value=true")]
    saved(tmp_path / "base", *BASE)
    for number, words in enumerate(([], ["algo.lr=0.1"], ["algo.discount=0.9"], ["algo.lr=0.1", "algo.discount=0.9"])):
        saved(tmp_path / str(number), *BASE, *first, *words)
    every = find([str(tmp_path)])
    assert not {"algo.lr", "algo.discount"} & set(differing(every)[:4])
    labels = [label for label, _ in groups(every)]
    assert len(set(labels)) == 5, labels
    for label in labels:
        names = {part.partition("=")[0] for part in label.split()}
        assert {"lr", "discount"} < names and len(names) == 6, "four, and those that tell them apart"


def test_a_run_that_begins_with_given_weights_is_no_seed_of_one_that_does_not(runs):
    from rlrun.bench.reproduce import same_options
    from rlrun.experiments.outcomes import TrainingJob

    warm = saved(runs / "warm", *BASE, "seed=3", "init=a_run")
    older = json.loads((runs / "pg-2" / "config.yaml").read_text())
    del older["init"]  # the run is older than the option
    (runs / "pg-2" / "config.yaml").write_text(json.dumps(older))
    every = find([str(runs / "pg-1"), str(runs / "pg-2"), str(warm)])
    assert {label: len(members) for label, members in groups(every)} == {"init=None": 2, "init=a_run": 1}
    assert telling(every) == ["init"] and differing(every[:2]) == []
    cells = [TrainingJob(name="", words=("tuned=a",), run_dir=run.path, log=runs / "log") for run in every]
    same_options(cells[0], compose(*BASE)), same_options(cells[1], compose(*BASE))
    with pytest.raises(UserError, match="was run with init=a_run, and tuned=a has None now"):
        same_options(cells[2], compose(*BASE))


def with_evaluations(folder, evaluations):
    """Adds results of evaluations to the rows of a saved run: {number of the row: (its env steps or None, return)}."""
    rows = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    for number, (steps, value) in evaluations.items():
        rows[number] |= {"eval/return_mean": value} | ({} if steps is None else {"eval/env_steps": steps})
    (folder / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_an_evaluation_is_drawn_where_the_weights_were_that_it_evaluated(tmp_path):
    folder = saved(tmp_path / "run", *BASE, returns=(1.0, 2.0, 3.0, 4.0))
    (run,) = find([str(with_evaluations(folder, {0: (None, 5.0), 2: (1500, 6.0), 3: (4000, 7.0)}))])
    assert run.series("eval/return_mean") == ([1000, 1500, 4000], [5.0, 6.0, 7.0])
    assert run.series("eval/return_mean", "time_sec")[0] == [2.0, 6.0, 8.0]
    assert run.series("sample/return_mean")[0] == [1000, 2000, 3000, 4000]


def test_a_metric_that_is_logged_rarely_can_be_drawn(tmp_path, capsys):
    folder = with_evaluations(saved(tmp_path / "run", *BASE, returns=range(200)), {0: (1000, 5.0)})
    assert _dispatch(["plot", str(folder), "--metric", "eval/return_mean"]) == 0
    assert _dispatch(["compare", str(folder), str(folder)]) == 0
    assert re.search(r"last eval/return_mean\s+5\s+5\n", capsys.readouterr().out)


def test_a_metric_without_its_prefix_is_the_one_that_has_numbers(runs, tmp_path):
    """Runs that learn from data play no games, and their rows have the return of training as null."""
    folder = with_evaluations(saved(tmp_path / "offline", *BASE, returns=(None, None)), {1: (1500, 5.0)})
    assert check_metric("return_mean", find([str(folder)])) == "eval/return_mean"
    assert check_metric("return_mean", find([str(folder), str(runs)])) == "sample/return_mean"
    assert check_metric("sample/return_mean", find([str(folder)])) == "sample/return_mean", "the whole name was given"
    (folder / "progress.jsonl").write_text("")
    (folder / "evaluations.jsonl").unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"These runs have logged no metric yet\."):
        check_metric("return_mean", find([str(folder)]))


def test_estimates_are_compared_and_reported(tmp_path, capsys):
    folder = saved(tmp_path / "run", *BASE)
    rows = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    for value, row in zip((5.0, 6.5), rows[1:], strict=True):
        row["estimate/dr"] = value
    (folder / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = saved(tmp_path / "other", *BASE)
    assert _dispatch(["compare", str(folder), str(other)]) == 0
    assert re.search(r"last estimate/dr\s+6.5\s+-\n", capsys.readouterr().out)
    for run, has in ((folder, True), (other, False)):
        assert _dispatch(["report", str(run)]) == 0
        text = (run / "report.html").read_text()
        assert ("estimated from data" in text) == ("estimate/dr" in text) == has


def test_places_are_runs_sweeps_or_folders(runs, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"jobs": [{"name": "all/pg-1"}, {"name": "not-begun"}]}))
    assert [run.path.name for run in find([str(tmp_path)])] == ["pg-1"]
    assert len(find([str(runs), str(runs / "pg-1")])) == 5, "no run is found twice"
    for nothing in (tmp_path / "nothing", runs / "pg-1" / "progress.jsonl"):
        with pytest.raises(UserError, match="contains no run"):
            find([str(nothing)])


def test_plot_writes_what_its_name_says(runs, tmp_path, capsys):
    assert _dispatch(["plot", str(runs), "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert (
        _dispatch(["plot", str(runs), "--metric", "return_mean,learn/entropy", "--out", str(tmp_path / "b.svg")]) == 0
    )
    assert capsys.readouterr().out.split()[-2:] == [
        str(tmp_path / "b-sample_return_mean.svg"),
        str(tmp_path / "b-learn_entropy.svg"),
    ]
    text = (tmp_path / "b-learn_entropy.svg").read_text()
    assert "pg lr=0.1 (2 seeds)" in text and "env steps, thousands" in text
    assert _dispatch(["plot", str(runs), "--out", str(tmp_path / "c.html")]) == 0
    assert "<svg" in (tmp_path / "c.html").read_text()


def test_the_band_covers_what_all_runs_have_reached():
    from rlrun.bench.charts import Curve, band

    x, mean, low, high = band([Curve([0, 10], [0.0, 10.0]), Curve([0, 20], [2.0, 42.0])], points=3)
    assert list(x) == [0, 5, 10] and list(mean) == [1.0, 8.5, 16.0]
    assert list(low) == [0.0, 5.0, 10.0] and list(high) == [2.0, 12.0, 22.0]  # of two runs: lowest and highest
    _, mean, low, high = band([Curve([0, 10], [float(value)] * 2) for value in (1, 2, 3, 4, 5)], points=2)
    width = 2.776 * (2.5 / 5) ** 0.5  # Student's t with four degrees of freedom, and a variance of 2.5
    assert mean[0] == 3.0 and high[0] == pytest.approx(3 + width) and low[0] == pytest.approx(3 - width)


def test_plot_writes_beside_the_runs_unless_told(runs, tmp_path, capsys, monkeypatch):
    from rlrun.commands.plot import beside

    monkeypatch.chdir(tmp_path)
    assert _dispatch(["plot", str(runs)]) == 0
    assert Path(capsys.readouterr().out.split()[-1]).resolve() == (runs / "curves.png").resolve()
    assert not (tmp_path / "curves.png").exists()
    first, second = tmp_path / "runs" / "a", tmp_path / "runs" / "b"
    first.mkdir(parents=True), second.mkdir()
    assert beside(["runs/a"]) == Path("runs/a") and beside(["runs/a", str(second)]) == Path("runs")


def test_a_commit_has_changes_where_tracked_files_or_sources_differ(tmp_path, monkeypatch):
    from rlrun.runtime import rundir

    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    for file in ("conf/train.yaml", "rlrun/runtime/rundir.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    monkeypatch.setattr(rundir, "__file__", str(tmp_path / "rlrun/runtime/rundir.py"))
    git("init", "-q"), git("add", "."), git("commit", "-qm", "first")
    assert len(rundir.git_commit()) == 40
    for name in ("curves.png", "runs/video.mp4", "notes.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert not rundir.git_commit().endswith("+")
    (tmp_path / "rlrun/algos.py").write_text("x")
    assert rundir.git_commit().endswith("+")  # a source of rlrun's own that git does not know
    (tmp_path / "rlrun/algos.py").unlink()
    (tmp_path / "conf/train.yaml").write_text("seed: 2")
    assert rundir.git_commit().endswith("+")
    (tmp_path / "conf/train.yaml").unlink()
    assert rundir.git_commit() is None  # rlrun is installed below a repository that is not its own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plot", "RUNS", "--metric", "retrun_mean"], "There is no metric 'retrun_mean' in these runs. Did you mean"),
        (["plot", "RUNS", "--out", "a.pdf"], "the name must end with .png, .svg or .html"),
        (["plot", "RUNS", "--metric", "learn/loss"], "learn/loss has no value yet"),
        (["plot", "RUNS", "--metric", ","], "--metric ',' names no metric"),
        (["plot", "RUNS", "--metric="], "--metric needs a value"),
        (["plot", "--out", "a.png"], "plot needs run directories"),
        (["plot", "RUNS", "--metrics", "x"], "There is no flag --metrics here. Did you mean --metric"),
        (["plot", "RUNS", "--out", "/nowhere/a.png"], "cannot be written"),
        (["compare", "RUNS/a2c"], "compare takes two run directories, or the directory of one sweep"),
        (["compare", "RUNS/a2c", "RUNS/a2c", "RUNS/a2c"], "compare takes two run directories"),
        (["compare", "NOWHERE"], "NOWHERE contains no run"),
        (["compare", "RUNS", "RUNS"], "is not a run directory"),
        (["report", "RUNS", "--out", "a.pdf"], "the name must end with .html"),
        (["report"], None),
    ],
)
def test_bad_words(words, said, runs):
    words = [word.replace("RUNS", str(runs)) for word in words]
    if said is None:
        assert _dispatch(words) == 2
        return
    with pytest.raises(UserError, match=re.escape(said)):
        _dispatch(words)


def test_compare_says_options_machine_and_outcome(runs, tmp_path, capsys):
    other = saved(
        tmp_path / "other", *BASE, "seed=7", "algo.lr=0.1", returns=(1.0, 2.0, 3.0, 4.0), versions={"torch": "2.14"}
    )
    assert _dispatch(["compare", str(runs / "pg-1"), str(other)]) == 0
    said = capsys.readouterr().out
    assert (
        re.search(r"algo\.lr\s+0\.004\s+0\.1", said)
        and re.search(r"seed\s+1\s+7", said)
        and re.search(r"torch\s+2\.13\s+2\.14", said)
    )
    assert (
        re.search(r"return at 2,000 env steps\s+20\s+2\n", said)
        and re.search(r"best return, last 100 games\s+20\s+4\n", said)
        and "run_dir" not in said
    )
    assert _dispatch(["compare", str(other), str(other)]) == 0
    assert "the same options" in capsys.readouterr().out


def test_returns_at_the_same_steps_are_between_rows(tmp_path, capsys):
    from rlrun.commands.compare import commit, return_at

    one = saved(tmp_path / "one", *BASE, returns=(0.0, 10.0, 20.0))
    other = saved(tmp_path / "other", *BASE, returns=(0.0, 10.0, 20.0))
    rows = (other / "progress.jsonl").read_text().splitlines()
    (other / "progress.jsonl").write_text("\n".join([rows[0], rows[2].replace("3000", "2500")]) + "\n")
    assert return_at(find([str(one)])[0], 2500) == 15.0 and return_at(find([str(one)])[0], 3500) is None
    assert _dispatch(["compare", str(one), str(other)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"return at 2,500 env steps\s+15\s+20", said), said
    assert (
        commit("a" * 40 + "+") == "aaaaaaaaaa + local changes"
        and commit("a" * 40) == "aaaaaaaaaa"
        and commit(None) == "-"
    )


def test_a_seed_that_was_run_twice_is_no_second_seed(tmp_path):
    from rlrun.commands.plot import curves

    for name, seed in (("a", 1), ("b", 2), ("c", 2)):
        saved(tmp_path / "all" / name, *BASE, f"seed={seed}")
    ((label, _),) = [(group.label, group.curves) for group in curves(find([str(tmp_path)]), "sample/return_mean")[0]]
    assert label == "pg on CartPole-v1 (3 runs of 2 seeds)"
    assert _dispatch(["report", str(tmp_path / "all")]) == 0
    assert "<td>3 runs of 2</td>" in (tmp_path / "all" / "report.html").read_text()


def test_a_job_that_never_became_a_run_is_in_the_report(tmp_path):
    """Also where another sweep in the report has a run of its name."""
    there, other = tmp_path / "sweep", tmp_path / "other"
    saved(there / "good", *BASE)
    saved(other / "bad", *BASE, "seed=7")
    (there / "sweep.json").write_text(
        json.dumps({"command": "rlrun sweep ...", "jobs": [{"name": "good"}, {"name": "bad"}]})
    )
    outcomes = [
        {"name": "good", "status": "COMPLETED", "reason": ""},
        {"name": "bad", "status": "FAILED", "reason": "rlrun: dqn needs <discrete> actions"},
    ]
    (there / "outcomes.json").write_text(json.dumps(outcomes))
    assert _dispatch(["report", str(there), str(other / "bad"), "--out", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert (
        "rlrun sweep ..." in text
        and "dqn needs &lt;discrete&gt; actions" in text
        and "<span>failed</span><b>1</b>" in text
    )


def test_a_report_counts_whole_runs_and_knows_what_the_sweep_ended(tmp_path):
    """Runs of lr 0.1 were ended by --prune and --timeout, for themselves an interruption; one seed of lr 0.2 failed."""
    for name, *words, returns, status in [
        ("a", "algo.lr=0.1", (400.0,), "INTERRUPTED"), ("b", "algo.lr=0.1", "seed=2", (300.0,), "INTERRUPTED"),
        ("c", "algo.lr=0.2", (20.0,), "FAILED"), ("d", "algo.lr=0.2", "seed=2", (410.0,), "COMPLETED"),
        ("e", "algo.lr=0.3", (405.0,), "COMPLETED"), ("f", "algo.lr=0.3", "seed=2", (405.0,), "INTERRUPTED"),
    ]:  # fmt: skip
        saved(tmp_path / name, *BASE, *words, returns=returns, status=status, reason="SIGTERM received")
    jobs = [{"name": name} for name in "abcdef"]
    (tmp_path / "sweep.json").write_text(json.dumps({"command": "rlrun sweep ...", "jobs": jobs}))
    ended = {"a": ("PRUNED", "others did better"), "b": ("FAILED", "took too long"), "c": ("FAILED", "diverged"),
             "d": ("COMPLETED", ""), "e": ("COMPLETED", ""), "f": ("FAILED", "took too long")}  # fmt: skip
    saved_ones = [{"name": name, "status": status, "reason": why} for name, (status, why) in ended.items()]
    (tmp_path / "outcomes.json").write_text(json.dumps(saved_ones))
    (tmp_path / "f" / "summary.json").write_text((tmp_path / "e" / "summary.json").read_text())  # somebody went on with it
    assert _dispatch(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "<b>lr=0.2</b>" in text and "<span>its mean return</span><b>410</b>" in text
    assert "<td>1; 1 unfinished run does not count</td>" in text and "<td>2, unfinished</td>" in text
    assert "others did better" in text and "<td>pruned</td>" in text and "<span>failed</span><b>2</b>" in text


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("sweep.json", text) for text in ("[]", "{}", '{"jobs": 3}', '{"jobs": [1]}', '{"jobs": [{"name": 1}]}')),
        *(("outcomes.json", text) for text in ("{}", "[1]", '[{"status": "FAILED"}]')),
        *((file, text) for file in ("sweep.json", "outcomes.json") for text in ("", '[{"na', "[" * 100_000)),
    ],
)
def test_a_damaged_file_of_a_sweep_is_a_sentence(file, text, tmp_path):
    saved(tmp_path / "good", *BASE)
    (tmp_path / "sweep.json").write_text(json.dumps({"command": "rlrun sweep ...", "jobs": [{"name": "good"}]}))
    (tmp_path / file).write_text(text)
    for command in ("report", "plot") if file == "sweep.json" else ("report",):
        with pytest.raises(UserError, match=f"{file} is damaged: .") as caught:
            _dispatch([command, str(tmp_path)])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.yaml", "algo: [", "config.yaml cannot be read"),
        ("config.yaml", "seed: 1", "config.yaml"),
        ("progress.jsonl", '{"env_steps": "x"}', "line 1: env_steps is 'x', and it must be a number"),
        ("progress.jsonl", b"\xff", "holds no text"),
    ],
)
def test_a_damaged_run_among_several_is_left_out(file, text, said, runs, tmp_path):
    (runs / "a2c" / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.warns(Notice, match=f"a run is left out, because {runs}.*{said}"):
        assert len(find([str(runs)])) == 4
    with pytest.raises(UserError, match=said):
        find([str(runs / "a2c")])
    with pytest.warns(Notice, match="a run is left out"):
        assert _dispatch(["plot", str(runs), "--out", str(tmp_path / "x.png")]) == 0


def test_commands_are_shown_as_one_would_type_them():
    from rlrun.commands.report import typed

    assert (
        typed("rlrun train algo=ppo 'logger=[]' 'run_dir='\"'\"'/tmp/a b'\"'\"'' logger.mlflow.parent=732c")
        == "rlrun train algo=ppo 'logger=[]'"
    )
    assert typed("rlrun 'open") == "rlrun 'open"


def test_settings_of_two_environments_have_no_best(tmp_path):
    saved(tmp_path / "all" / "a", *BASE)
    saved(tmp_path / "all" / "b", "algo=pg", "env=Acrobot-v1", "logger=[]")
    assert _dispatch(["report", str(tmp_path / "all")]) == 0
    assert "best setting" not in (tmp_path / "all" / "report.html").read_text()


def test_curves_without_a_common_stretch_are_drawn_all_the_same():
    from rlrun.bench.charts import Curve, Group, draw, figure

    _, axis = figure(3, 2)
    draw(axis, [Group("short", [Curve([100], [1.0]), Curve([200], [2.0])])], "env steps")
    assert [list(line.get_xdata()) for line in axis.lines] == [[100], [200]] and axis.lines[0].get_marker() == "o"


def test_reports_say_it_all_and_need_nothing_else(runs, tmp_path):
    assert _dispatch(["report", str(runs / "pg-1")]) == 0
    text = (runs / "pg-1" / "report.html").read_text()
    assert (
        "pg on CartPole-v1, seed 1" in text
        and "a &lt;CPU&gt;" in text
        and "learn/entropy" in text
        and "algo.discount" in text
        and "2,000" in text
    )
    assert not re.search(r'(src|href)="(?!#)', text) and "<script" not in text
    assert _dispatch(["report", str(runs), "--out", str(tmp_path / "many.html")]) == 0
    text = (tmp_path / "many.html").read_text()
    assert "pg lr=0.1" in text and "<td>30</td>" in text, "the mean of the two seeds' last returns"
    assert text.index('<td class="left">pg lr=0.004</td>') < text.index('<td class="left">pg lr=0.1</td>'), (
        "the best setting comes first"
    )


def test_reports_show_options_as_they_are_written(tmp_path):
    for share, lr in (("true", "0.00012345678"), ("false", "0.00012345679")):
        words = (f"model.share_value={share}", f"algo.lr={lr}", "model.hidden=[1024]", "env_steps=12345")
        assert _dispatch(["report", str(saved(tmp_path / "all" / share, *BASE, *words))]) == 0
    text = (tmp_path / "all" / "true" / "report.html").read_text()
    shown = dict(re.findall(r'<tr><td class="left">([\w.]+)</td><td class="left">([^<]*)</td></tr>', text))
    expected = {"model.share_value": "true", "algo.lr": "0.00012345678", "model.hidden": "[1024]"}
    expected |= {"env_steps": "12345", "stop.return_mean": "null"}
    assert {key: shown[key] for key in expected} == expected
    assert _dispatch(["report", str(tmp_path / "all")]) == 0
    text = (tmp_path / "all" / "report.html").read_text()
    for cell in ("true", "false", "0.00012345678", "0.00012345679"):
        assert f'<td class="left">{cell}</td>' in text, cell


def test_a_run_whose_process_was_killed_is_not_shown_as_running(runs, tmp_path, capsys):
    """One that a process still holds is."""
    killed = saved(tmp_path / "killed", *BASE, status="RUNNING")
    for status in ("FAILED", "RUNNING"):
        with contextlib.ExitStack() as end:
            if status == "RUNNING":
                lock = RunLock(killed)
                lock.acquire()
                end.callback(lock.release)
            assert _dispatch(["compare", str(killed), str(runs / "pg-1")]) == 0
            assert re.search(rf"status\s+{status}\s+COMPLETED\n", capsys.readouterr().out)
            assert _dispatch(["report", str(killed)]) == 0
            text = (killed / "report.html").read_text()
            assert f">{status.lower()}<" in text and ("its process ended without a word" in text) == (status == "FAILED")


def test_a_run_without_a_finished_game_has_a_report(tmp_path):
    folder = saved(tmp_path / "young", *BASE, returns=(None,), status="RUNNING")
    assert _dispatch(["report", str(folder)]) == 0
    assert "no game has ended" in (folder / "report.html").read_text()


def test_self_play_is_rated_in_report_compare_and_plot(tmp_path, capsys):
    words = ("algo=self_play", "env=RockPaperScissors-v0", "logger=[]")
    places = []
    for seed, last in ((1, 1234.0), (2, 1187.0)):
        folder = saved(tmp_path / "all" / str(seed), *words, f"seed={seed}")
        rows = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
        for row, elo in zip(rows, (1200.0, 1210.0, last), strict=True):
            row |= {"learn/elo": elo, "learn/elo_of_oldest": 1199.0}
        rows[1] |= {"learn/win_rate": 0.6, "learn/draw_rate": 0.1}  # not every update has games against snapshots
        (folder / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        places.append(str(folder))
    assert _dispatch(["report", places[0]]) == 0
    text = (tmp_path / "all" / "1" / "report.html").read_text()
    drawn = dict(re.findall(r"<h2>([^<]*)</h2>\n<figure>(.*?)</figure>", text, re.S))
    assert "the newest weights" in drawn["Elo"] and "the oldest snapshot that is kept" in drawn["Elo"]
    assert ">won<" in drawn["Games against snapshots"] and "<span>Elo</span><b>1,234</b>" in text
    assert _dispatch(["report", str(tmp_path / "all")]) == 0
    assert "<h2>Elo</h2>" in (tmp_path / "all" / "report.html").read_text()
    capsys.readouterr()
    assert _dispatch(["compare", *places]) == 0
    assert re.search(r"last learn/elo\s+1,234\s+1,187\n", capsys.readouterr().out)
    out = tmp_path / "elo.html"
    assert _dispatch(["plot", *places, "--metric", "elo,elo_of_oldest", "--out", str(out)]) == 0
    assert "<h2>learn/elo</h2>" in out.read_text() and "<h2>learn/elo_of_oldest</h2>" in out.read_text()


def test_a_checkpoints_folder_is_named_with_its_run(tmp_path):
    place = tmp_path / "run" / "checkpoints" / "000000000100"
    place.mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").touch()
    assert no_run(place).endswith(f"as in {tmp_path / 'run'} checkpoint=100")
