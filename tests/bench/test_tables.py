"""The published tables: their data, the results that fill them, and what is drawn from both."""

import json
import re
from pathlib import Path

import pytest
import yaml

from rlrun.bench import results
from rlrun.bench.longer import cut
from rlrun.bench.publish import BEST, INTRODUCTION, commands, hardware, headings, markdown, publish, rows, spread
from rlrun.bench.reproduce import CellJob, Cells
from rlrun.bench.results import (
    CurveRow,
    Key,
    curve_of,
    expected_protocol,
    from_run,
    key_of,
    measured,
    read,
    rows_of,
    thinned,
    write,
)
from rlrun.bench.tables import Wanted, load, select
from rlrun.cli import _dispatch
from rlrun.config.paths import options
from rlrun.core.errors import UserError

ROOT = Path(__file__).parents[2]
# From RLlib's page: game -> figures in the order of the tables below.
PUBLISHED = {
    "apex_10m": (6134, 123, 15302, 686), "apex_1h": (4873, 77, 4083, 646), "impala_10m": (2071, 385, 385, 4068, 719), "impala_1h": (3181, 538, 10850, 843),
    "a2c_10m": (1401, 374, 3620, 692), "ppo_10m": (2807, 104, 11085, 671), "ppo_25m": (4480, 201, 14247, 944), "ppo_halfcheetah_1h": (9664,),
    "dqn_10m": (2869, 287, 3921, 650, 1910, 312, 7968, 1001, 4447, 410, 15780, 1025),
}  # fmt: skip


def test_the_tables_are_the_seeds():
    """IMPALA's Breakout is there twice, with two ways of reading pixels."""
    for name, figures in PUBLISHED.items():
        assert tuple(cell.published for cell in load(name).cells) == figures
    assert set(PUBLISHED) | {"a2c_1h", "impala_pong", "pong"} == set(options("benchmark"))
    assert (
        load("impala_10m").env_steps == 1e7
        and load("impala_1h").wall_sec == 3600
        and load("impala_pong").target_return == 18
    )


@pytest.mark.parametrize("name", options("benchmark"))
def test_every_cell_is_a_tuned_file_of_its_algorithm_and_its_protocol(name):
    table = load(name)
    for cell in table.cells:
        assert cell.tuned in options("tuned")
        config = config_of(Wanted(table, cell))
        assert config["env"]["name"] == expected_protocol(Wanted(table, cell))["env"]
        assert results.protocol(table, config) == expected_protocol(Wanted(table, cell)), (
            "the run would be of another protocol"
        )


@pytest.mark.parametrize("name", options("benchmark"))
def test_a_tuned_file_names_every_seed_that_the_tables_show(name):
    """A bar that one seed met and others missed is not met."""
    table = load(name)
    for cell in table.cells:
        noted = yaml.safe_load((ROOT / "tuned" / f"{cell.tuned}.yaml").read_text()).get("measured")
        shown = {one["seed"] for one in measured(ROOT / "tuned" / "results", Wanted(table, cell)).results}
        assert not noted or shown <= set(noted["seeds"]), cell.tuned


def wanted(name="impala_10m", game="Breakout"):
    return next(one for one in select([name], [game], []))


def summary(**other):
    return {"status": "COMPLETED", "return_mean": 400.0, "env_steps": 10_000_100, "wall_sec": 600.0, "episodes": 500,
            "versions": {"torch": "2"}, "hardware": {"cpu": "a CPU", "cores": 2, "gpus": []}, "git_commit": "abc", "command": "rlrun train ...",
            "started": "today", "resources": [], **other}  # fmt: skip


def run_dir(folder, config, rows_, **other):
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary(**other)))
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_))
    return folder


ROWS = [
    {
        "env_steps": n * 1000,
        "time_sec": n * 2.0,
        "sample/return_mean": None if n == 0 else float(n),
        "sample/episodes": n * 10,
    }
    for n in range(501)
]


def config_of(one, **env):
    from conftest import compose

    from rlrun.config.automatic import settled

    made, _ = settled(compose(f"tuned={one.cell.tuned}", *one.cell.words), "images")
    made["env"] |= env
    return made


def result(one, seed=1, budget=1.0, score=400.0):
    key = key_of(one, seed, budget)
    return key, {"format": 1, **key._asdict(), "label": one.cell.label, "score": score, "env_steps": 10, "wall_sec": 61.0, "episodes": 500,
                 "protocol": expected_protocol(one), "hardware": {"cpu": "a CPU", "cores": 2, "gpus": []}, "command": f"rlrun train seed={seed}",
                 "curve": [[1, 1.0, 2.0], [2, 2.0, 3.0]]}  # fmt: skip


def test_a_run_becomes_a_small_file_that_comes_back(tmp_path):
    one = wanted()
    key = key_of(one, 3, 1.0)
    values = from_run(key, one, run_dir(tmp_path / "run", config_of(one), ROWS))
    assert (
        values["score"] == 400.0 and values["seed"] == 3 and values["label"] == "IMPALA" and len(values["curve"]) == 200
    )
    assert values["curve"][0] == [1000, 2.0, 1.0] and values["curve"][-1] == [500_000, 1000.0, 500.0]
    path = write(tmp_path, key, values)
    assert path == tmp_path / "impala_10m" / "Breakout-impala_breakout-seed3.json" and path.stat().st_size < 12_000
    assert {name: value for name, value in read(tmp_path, key, one).items() if name != "sha256"} == json.loads(
        json.dumps(values)
    )
    assert read(tmp_path, key._replace(seed=4), one) is None


def test_an_altered_file_is_named(tmp_path):
    one = wanted()
    key, values = result(one)
    path = write(tmp_path, key, values)
    path.write_text(path.read_text().replace('"score": 400.0', '"score": 900.0'))
    with pytest.raises(UserError, match=re.escape(f"{path} was altered")):
        read(tmp_path, key, one)
    with pytest.raises(UserError, match="was altered"):
        _dispatch(["benchmark", "reproduce-tables", "--only-render", "--results", str(tmp_path)])
    path.write_text("{")
    with pytest.raises(UserError, match="is not a result"):
        read(tmp_path, key, one)


def test_a_file_of_another_protocol_or_cell_is_refused(tmp_path):
    one = wanted()
    key, values = result(one)
    path = write(tmp_path, key, values | {"protocol": {**values["protocol"], "sticky_actions": 0.25}})
    with pytest.raises(UserError, match="another protocol"):
        read(tmp_path, key, one)
    write(tmp_path, key, values)
    path.rename(tmp_path / key._replace(seed=2).file)
    with pytest.raises(UserError, match="to another cell"):
        read(tmp_path, key._replace(seed=2), one)


def test_a_run_of_another_protocol_or_that_has_not_ended_is_no_result(tmp_path):
    one = wanted()
    key = key_of(one, 1, 1.0)
    with pytest.raises(UserError, match=r"sticky_actions is 0\.25, not 0\.0"):
        from_run(key, one, run_dir(tmp_path / "sticky", config_of(one, sticky_actions=0.25), ROWS))
    with pytest.raises(UserError, match="is INTERRUPTED: no result yet"):
        from_run(key, one, run_dir(tmp_path / "half", config_of(one), ROWS, status="INTERRUPTED"))
    with pytest.raises(UserError, match="has no summary"):
        from_run(key, one, tmp_path / "nothing")


def test_seconds_until_a_target(tmp_path):
    one = wanted("impala_pong", "Pong")
    key = key_of(one, 1, 1.0)
    values = from_run(key, one, run_dir(tmp_path / "run", config_of(one), ROWS, status="STOPPED"))
    assert values["score"] == 36.0  # seconds at the row where the mean is 18
    lucky = [ROWS[1] | {"sample/return_mean": 21.0, "sample/episodes": 1}, *ROWS[2:]]
    values = from_run(key, one, run_dir(tmp_path / "lucky", config_of(one), lucky, status="STOPPED"))
    assert values["score"] == 36.0, "the mean of one game is not that of the last 100"
    short = from_run(key, one, run_dir(tmp_path / "short", config_of(one), ROWS[:10], return_mean=9.0))
    assert short["score"] is None
    write(tmp_path, key, short)
    assert measured(tmp_path, one).mark == "short" and spread(measured(tmp_path, one)) == "never"
    write(tmp_path, key, values)
    assert measured(tmp_path, one).mark == "beaten", "less is better"
    write(tmp_path, *result(one, 2, score=40.0))
    assert spread(measured(tmp_path, one)) == "38 (36 to 40)" and measured(tmp_path, one).mark == "beaten"
    write(tmp_path, *result(one, 3, score=None))
    assert spread(measured(tmp_path, one)) == "2 of 3 seeds: 38 (36 to 40)" and measured(tmp_path, one).mark == "short"
    assert "`short`: every seed is worse than the figure, or a seed never reached the return" in " ".join(INTRODUCTION)


@pytest.mark.parametrize(
    ("scores", "mark"),
    [([], "not run"), ([386.0], "beaten"), ([385.0], "within spread"), ([384.0], "short"), ([300.0, 500.0], "within spread"), ([390.0, 500.0], "beaten"),
     ([100.0, 384.9], "short")],
)  # fmt: skip
def test_marks(tmp_path, scores, mark):
    one = wanted()
    for seed, score in enumerate(scores):
        write(tmp_path, *result(one, seed, score=score))
    assert measured(tmp_path, one).mark == mark


def test_runs_of_few_games_are_shown_as_such(tmp_path):
    one = wanted()
    key, values = result(one, 1, score=400.0)
    write(tmp_path, key, values | {"episodes": 7})
    assert spread(measured(tmp_path, one)) == "400, the mean of 7 games"
    write(tmp_path, key, values | {"episodes": 0, "score": None, "return_mean": None})
    assert spread(measured(tmp_path, one)) == "none" and measured(tmp_path, one).mark == "no game"


def test_what_nobody_published_is_measured(tmp_path):
    cells = select(["pong"], [], [])
    one = next(one for one in cells if one.cell.published is None)
    write(tmp_path, *result(one, score=-5.0))
    assert measured(tmp_path, one).mark == "measured"
    assert f"| Pong | {one.cell.label} |  | -5 | measured | 1 |" in markdown(
        [(load("pong"), [measured(tmp_path, other) for other in cells])]
    )
    made = publish([load("pong")], tmp_path, None)
    assert made[-1].name == "pong.png" and made[-1].stat().st_size > 1000


def test_a_part_of_the_budget_is_partial_until_the_whole_is_there(tmp_path):
    one = wanted()
    write(tmp_path, *result(one, 1, 0.002, 500.0))
    write(tmp_path, *result(one, 1, 0.1, 600.0))
    found = measured(tmp_path, one)
    assert found.mark == "partial" and found.budget == 0.1 and found.scores == [600.0]
    assert "partial: 0.1 of the budget" in rows(load("impala_10m"), [found])[0]
    write(tmp_path, *result(one, 2, 1.0, 300.0))
    found = measured(tmp_path, one)
    assert found.mark == "short" and [value["seed"] for value in found.results] == [2]


def test_what_is_drawn_says_what_is_known(tmp_path):
    for game, score in (("BeamRider", 2100.0), ("Breakout", 400.0), ("Qbert", 5000.0), ("SpaceInvaders", 700.0)):
        for seed in (1, 2):
            write(tmp_path, *result(wanted("impala_10m", game), seed, score=score + seed))
    tables = [load(name) for name in options("benchmark")]
    made = publish(tables, tmp_path, None)
    assert [path.name for path in made] == ["TABLES.md", "tables.html", "impala_10m.png"] and all(
        path.stat().st_size > 1000 for path in made
    )
    text = made[0].read_text()
    assert "| Breakout | IMPALA | 385 | ~150 | 685 (Rainbow, Tianshou) | 402 (401 to 402) | beaten | 1, 2 |" in text
    assert "| SpaceInvaders | IMPALA | 719 | ~600 | 2,482 (FQF, Tianshou) | 702 (701 to 702) | short |" in text and "rlrun train seed=1" in text
    assert "(2 seeds: " in text and "95%" not in text, "a bootstrap over two seeds covers two thirds of the truth"
    assert "IQM of human-normalised scores" in text and "sticky actions: 0;" in text and "last100" in text
    html = made[1].read_text()
    assert (
        html.count("<h2>") == 2  # the table that has results, and the list of what has not been run
        and html.index("Not run yet") > html.index("IMPALA on Atari @10M") and html.count("<svg") == 2
        and "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"|"http://[^"]*\.dtd"', "", html)
    )
    assert "<script" not in html and "beaten" in html and "<th>verdict</th>" in html
    assert "| Breakout | IMPALA | 385 | ~150 |  |" not in text and text.count("## Not run yet") == 1
    assert f"| {tables[0].title} | Breakout |" in text.partition("## Not run yet")[2]
    again = publish(tables, tmp_path, None)
    assert again[0].read_text() == text and again[1].read_text() == html, "drawing them again changes nothing"
    assert markdown([(tables[0], [measured(tmp_path, Wanted(tables[0], cell)) for cell in tables[0].cells])])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table=impala_11m"], "There is no table 'impala_11m'. Did you mean impala_10m"),
        (["game=Brekout"], "No table here has game 'Brekout'. Did you mean Breakout"),
        (["algo=sac"], "No table here has algo 'sac'"),
        (["table=impala_10m", "algo=ppo"], "No table here has algo 'ppo'"),
        (["budget=0"], "budget is a share"),
        (["budget=2"], "budget is a share"),
        (["budget=0.1,0.2"], "budget takes one number"),
        (["budget=0.1", "budget=0.2"], "budget= is given twice"),
        (["game=Pong", "seeds=1", "game=Breakout"], "game= is given twice: write game=Pong,Breakout"),
        (["seeds=a"], "seeds=a: this is not a whole number"),
        (["tables=impala_10m"], "There is no option 'tables' here. Did you mean table"),
        (["--render"], "There is no flag --render"),
    ],
)
def test_bad_words(words, said):
    with pytest.raises(UserError, match=re.escape(said)):
        _dispatch(["benchmark", "reproduce-tables", *words, "--dry-run"])


def test_finished_cells_are_not_run_again(tmp_path, capsys):
    one = wanted(game="Qbert")
    words = [
        "benchmark",
        "reproduce-tables",
        "table=impala_10m",
        "game=Qbert",
        "seeds=1,2",
        "--dry-run",
        "--results",
        str(tmp_path),
    ]
    assert _dispatch([*words, "budget=0.1"]) == 0
    said = capsys.readouterr().out
    assert (
        "2 of 2 runs to do" in said and "tuned=impala/qbert seed=1 env_steps=1000000 stop.return_mean=null" in said
    )
    write(tmp_path, *result(one, 1))
    assert _dispatch([*words, "budget=0.1"]) == 0
    assert "1 of 2 runs to do" in capsys.readouterr().out, (
        "a result for the whole budget makes a tenth of it unnecessary"
    )
    write(tmp_path, *result(one, 2, 0.1))
    assert _dispatch([*words, "budget=0.1"]) == 0
    assert "0 of 2 runs to do" in capsys.readouterr().out
    assert _dispatch(words) == 0
    assert "1 of 2 runs to do" in capsys.readouterr().out, (
        "a result for a tenth of the budget does not count for the whole"
    )


def test_a_cell_is_run_written_and_drawn(tmp_path, capsys):
    pytest.importorskip("ale_py")
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    assert (
        _dispatch(
            ["benchmark", "reproduce-tables", "table=impala_10m", "game=Qbert", "seeds=1", "budget=0.0001", *places]
        )
        == 0
    )
    key = Key("impala_10m", "Qbert", "impala/qbert", 1, 0.0001)
    values = read(tmp_path / "results", key, wanted(game="Qbert"))
    assert values["env_steps"] >= 1000 and values["command"].startswith(
        "rlrun train tuned=impala/qbert seed=1 env_steps=1000"
    )
    assert "partial: 0.0001 of the budget" in (tmp_path / "results" / "TABLES.md").read_text()
    capsys.readouterr()
    assert (
        _dispatch(
            ["benchmark", "reproduce-tables", "table=impala_10m", "game=Qbert", "seeds=1", "budget=0.0001", *places]
        )
        == 0
    )
    assert "0 of 1 runs to do" in capsys.readouterr().out


def test_drawing_alone_makes_the_folder_of_runs_and_logs_the_tables(tmp_path):
    """As in a fresh clone, where nobody has run anything yet."""
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path / "results", *result(wanted(), score=402.0))
    runs = tmp_path / "fresh" / "runs" / "benchmark"
    words = ["--only-render", "--results", str(tmp_path / "results"), "--runs", str(runs)]
    assert _dispatch(["benchmark", "reproduce-tables", *words]) == 0
    events = EventAccumulator(str(runs / "tables"))
    events.Reload()
    (score,) = events.Scalars("tables/impala_10m/IMPALA/Breakout")
    (text,) = events.Tensors("tables/text_summary")
    assert score.value == 402.0 and b"| Breakout | IMPALA | 385 |" in text.tensor_proto.string_val[0]
    assert events.Tags()["images"] == ["tables/impala_10m"]
    client = MlflowClient(f"sqlite:///{runs.parent / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("rlrun tables").experiment_id])
    assert run.info.status == "FINISHED" and run.data.metrics == {"impala_10m/IMPALA/Breakout": 402.0}
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "TABLES.md",
        "tables.html",
        "impala_10m.png",
    }


def test_a_result_says_what_has_changed_since_it_was_made(tmp_path, capsys):
    one = wanted()
    key = key_of(one, 1, 1.0)
    values = from_run(key, one, run_dir(tmp_path / "run", config_of(one), ROWS))
    assert values["options"]["algo.batch_size"] == 200 and "env_steps" not in values["options"]
    words = ["benchmark", "reproduce-tables", "table=impala_10m", "game=Breakout", "seeds=1", "--results", str(tmp_path)]
    write(tmp_path, key, values)
    assert _dispatch([*words, "--dry-run"]) == 0
    assert "another value" not in capsys.readouterr().out
    options = values["options"] | {"algo.batch_size": 500, "algo.gone": 1}
    began = {"git_commit": "0123456789abcdef+", "hardware": {"cpu": "a CPU", "cores": 2, "gpus": []}}
    went_on = {"git_commit": "e" * 40, "hardware": {"cpu": "another", "cores": 8, "gpus": []}}
    facts = {"git_commit": began["git_commit"], "settings_commit": "f" * 40, "sessions": [began, went_on]}
    write(tmp_path, key, values | {"options": options} | facts)
    assert _dispatch([*words, "--dry-run"]) == 0
    assert "seed1.json: algo.batch_size had another value when this result was made" in capsys.readouterr().out
    found = measured(tmp_path, one)
    (said,) = commands([found])
    assert said.endswith(
        "  # at commit 0123456789 + local changes; resumed at commit eeeeeeeeee; its settings are those of commit"
        " ffffffffff; algo.batch_size has another value today"
    )
    assert hardware(found) == "2 x a CPU; 8 x another"
    with pytest.raises(UserError, match=r"--only-render draws all tables and runs nothing, so that seeds=1, --dry-run, --jobs"):
        _dispatch(["benchmark", "reproduce-tables", "--only-render", "seeds=1", "--dry-run", "--jobs", "3"])


def test_the_cut_of_a_longer_run():
    rows_ = [CurveRow(n * 1000, n * 2.0, float(n), n) for n in range(1, 501)]
    hour, whole, target = (load(name) for name in ("a2c_1h", "a2c_10m", "impala_pong"))
    rows_[0] = rows_[0]._replace(return_mean=30.0)  # of a single game
    assert cut(rows_, hour, 10) is None and cut(rows_, whole, 10) is None, "it ends before the hour and before 10M env steps"
    longer = [row._replace(env_steps=row.env_steps * 30, wall_sec=row.wall_sec * 10) for row in rows_]
    assert cut(longer, hour, 10)[-1].wall_sec == 3600 and cut(longer, whole, 10)[-1].env_steps == 9_990_000
    assert cut(rows_, target, 10)[-1].return_mean == 18
    assert cut(rows_[:10], target, 10) is None
    assert len(cut([*rows_[:10], CurveRow(5_000_001, 9.0, 1.0, 9)], target, 10)) == 10
    late = [*rows_[:10], CurveRow(5_000_001, 9.0, 1.0, 11), CurveRow(8_000_000, 20.0, 18.5, 20)]
    assert cut(late, target, 10)[-1].env_steps == 10_000, "the return was reached after the table's end"


def test_a_cell_that_another_run_contains_is_not_run(tmp_path, capsys):
    """IMPALA's run on Pong to 5M env steps contains the seconds until 18, also where it was interrupted after that."""
    places = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    words = ["benchmark", "reproduce-tables", "table=impala_pong", "seeds=1", *places]
    whole = next(one for one in select(["pong"], [], ["impala"]))
    folder = tmp_path / "runs" / key_of(whole, 1, 1.0).run
    run_dir(folder, config_of(whole), ROWS, status="INTERRUPTED", return_mean=None)
    assert _dispatch(words) == 0
    said = capsys.readouterr().out
    assert f"impala_pong-Pong-impala_pong-seed1 is the beginning of {folder}" in said and "1 completed" in said
    one = wanted("impala_pong", "Pong")
    values = read(tmp_path / "results", key_of(one, 1, 1.0), one)
    assert (values["score"], values["env_steps"], values["wall_sec"]) == (36.0, 18_000, 36.0)
    assert values["command"].startswith("rlrun train tuned=impala/pong env.size=42 seed=1 env_steps=5000000")
    assert values["command"].endswith("# its first 18,000 env steps") and values["curve"][-1] == [18_000, 36.0, 18.0]
    assert not (tmp_path / "results" / key_of(whole, 1, 1.0).file).exists(), "the longer run is not over"


def test_a_run_with_other_options_contains_nothing(tmp_path):
    one, whole = wanted("impala_pong", "Pong"), next(one for one in select(["pong"], [], ["impala"]))
    config = config_of(whole)
    config["algo"]["batch_size"] += 20
    run_dir(tmp_path / key_of(whole, 1, 1.0).run, config, ROWS)
    supply = Cells(*waiting_for(tmp_path, one), tmp_path / "results", tmp_path)
    assert supply.next() is not None


def test_a_cell_waits_for_the_run_that_may_contain_it(tmp_path):
    target, whole = wanted("impala_pong", "Pong"), next(one for one in select(["pong"], [], ["impala"]))
    jobs, outcomes = waiting_for(tmp_path, target, whole)
    supply = Cells(jobs, outcomes, tmp_path / "results", tmp_path)
    first = supply.next()
    assert first.name.startswith("pong-") and supply.next() is None
    run_dir(first.run_dir, config_of(whole), ROWS[:10], return_mean=9.0)
    outcomes[1].status = "COMPLETED"
    supply.done(outcomes[1])
    assert supply.next().name.startswith("impala_pong-"), "a run that did not get so far contains nothing"


def waiting_for(folder, *cells):
    """The jobs of cells with seed 1, and their outcomes, as Cells takes them."""
    from rlrun.experiments.outcomes import Outcome, TrainingJob
    from rlrun.loggers.mlflow import flatten

    jobs = {key_of(one, 1, 1.0).run: CellJob(key_of(one, 1, 1.0), one, dict(flatten(config_of(one)))) for one in cells}
    made = [TrainingJob(name=name, words=(), run_dir=folder / name, log=folder / "log") for name in jobs]
    return jobs, [Outcome(job=job) for job in made]


def test_thinning_keeps_both_ends():
    assert thinned(list(range(1000)), 5) == [0, 250, 500, 749, 999] and thinned([1, 2], 5) == [1, 2]


def test_curves_leave_out_what_no_game_has_ended_for(tmp_path):
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]) + '{"env_steps": 5')
    assert curve_of(rows_of(tmp_path)) == [[1000, 2.0, 1.0], [2000, 4.0, 2.0]]


def test_texts_of_result_files_stay_text_in_the_tables():
    from rlrun.bench.publish import plain_text

    assert plain_text("<img src=x onerror=alert(1)>") == "&lt;img src=x onerror=alert(1)&gt;"
    assert plain_text("2 x A|B\n[c](javascript:d)") == r"2 x A\|B \[c\](javascript:d)"
    assert plain_text("beaten, 2,071 (1.5 to 3)") == "beaten, 2,071 (1.5 to 3)"


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_names_of_the_colours_are_inside_the_picture(count):
    from rlrun.bench.charts import Bars, table_bars

    bars = [Bars(f"game {n}", 374.0, 150.0, [8.8, 9.1], True) for n in range(count)]
    made = table_bars("A2C on Atari @10M env steps", bars, "Mnih et al. A3C, 16 workers")
    made.canvas.draw()
    (axis,) = made.axes
    box = axis.get_legend().get_window_extent()
    assert 0 <= box.x0 and box.x1 <= made.bbox.x1 and 0 <= box.y0
    word = next(text for text in axis.texts if text.get_text() == "partial")
    assert word.get_window_extent().y0 > axis.transData.transform((0, 9.1 / 374))[1] + 3, "it covers no seed"


def test_every_game_at_10m_env_steps_names_the_best_published_score(tmp_path):
    for table in map(load, options("benchmark")):
        assert bool(table.best) == table.name.endswith("_10m")
        for cell in table.cells if table.best else ():
            assert cell.published < table.best[cell.game].score
            row = dict(zip(headings(table), rows(table, [measured(tmp_path, Wanted(table, cell))])[0], strict=True))
            assert table.best[cell.game].who in row[BEST]
    assert "table" in BEST and "Rainbow" in " ".join(INTRODUCTION), "a curve has more on Qbert than any table"
