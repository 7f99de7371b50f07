"""rlrun sweep, from its command line to its runs."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from rlrun.cli import _dispatch
from rlrun.commands.sweep_check import JobCheck
from rlrun.core.errors import UserError

QUICK = ["env=CartPole-v1", "logger=[]", "resources=debug", "env_steps=600", "log_every_sec=0.2"]


def outcomes(folder):
    return {one["name"]: one for one in json.loads((folder / "outcomes.json").read_text())}


def test_dry_run_prints_the_runs_and_makes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _dispatch(["sweep", "algo=pg,a2c", *QUICK, "seed=1,2", "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "4 jobs"
    assert (
        said[1]
        == "001-pg-seed2: rlrun train env=CartPole-v1 logger=[] resources=debug env_steps=600 log_every_sec=0.2 algo=pg seed=2"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a sweep needs words that say what to run"),
        (["algo=pg,ppoo", *QUICK], "job 001-ppoo: There is no algo 'ppoo'. Did you mean ppo"),
        (["algo=pg,a2c", *QUICK, "algo.lr=-1"], "job 000-pg: algo.lr must be at least 0"),
        (["algo=pg", *QUICK, "algo.lr=interval(0.1,0.2)"], "algo.lr is an interval"),
        (["algo=pg", *QUICK, "run_dir=here"], "run_dir= cannot vary"),
        (["algo=pg", *QUICK, "++run_dir=here"], "run_dir= cannot vary"),
        (["algo=pg", *QUICK, "--job", "2"], "There is no flag --job here. Did you mean --jobs?"),
        (["algo=pg", *QUICK, "--jobs", "two"], "--jobs two: this is not a whole number"),
        (["algo=pg", *QUICK, "--jobs"], "--jobs needs a value"),
        (["algo=pg", *QUICK, "--cluster", ""], "--cluster needs a value"),
        (["algo=pg", *QUICK, "--dir="], "--dir needs a value"),
        (["algo=pg", *QUICK, "--trials", "0"], "--trials is for --search"),
        (["algo=pg", *QUICK, "--every", "0"], "--every is for --search pbt"),
        (["algo=pg", *QUICK, "--jobs=0"], "--jobs must be at least 1"),
        (["algo=pg", *QUICK, "--search", "tpo", "--trials", "2"], "There is no --search tpo. Did you mean tpe"),
        (["algo=pg", *QUICK, "--search", "tpe"], "--search needs --trials N"),
        (["algo=pg", *QUICK, "--search", "tpe", "--trials", "2"], "--search needs something to search in"),
        (
            ["algo=pg,a2c", *QUICK, "seed=1,2", "--search", "tpe", "--trials", "2"],
            "seed= varies, but a search takes one seed",
        ),
        (
            ["algo=pg,a2c", *QUICK, "++seed=1,2", "--search", "tpe", "--trials", "2"],
            "seed= varies, but a search takes one seed",
        ),
        (
            ["algo=pg", *QUICK, "seed=int(interval(1,9))", "--search", "tpe", "--trials", "2"],
            "seed= varies, but a search takes one seed",
        ),
        (["algo=pg,a2c", *QUICK, "--search", "pbt", "--trials", "2"], "--search pbt needs --every N"),
        (["algo=pg,a2c", *QUICK, "--search", "random", "--trials", "2", "--every", "9"], "--every is for --search pbt"),
        (["algo=pg,a2c", *QUICK, "--trials", "2"], "--trials is for --search"),
        (
            ["algo=pg", *QUICK, "algo.lrr=interval(0.1,0.2)", "--search", "tpe", "--trials", "2"],
            "job at the lowest values: There is no option algo.lrr",
        ),
        (["algo=pg", *QUICK, "--queue", "partition=gpu"], "--queue is for --cluster slurm and --cluster ray"),
        (["--resume", "nowhere"], "nowhere is not the directory of a sweep"),
        (
            ["--resume", "nowhere", "--trials", "9"],
            "--resume goes on with the sweep as it was, and --trials would change it",
        ),
        (
            [
                "algo=pg",
                *QUICK,
                "algo.lr=interval(0.1,0.2)",
                "--search",
                "pbt",
                "--trials",
                "2",
                "--every",
                "1e9",
                "--dry-run",
            ],
            "--every 1e+09 is more than env_steps",
        ),
        (
            ["algo=pg,a2c", *QUICK, "--search", "pbt", "--trials", "2", "--every", "300"],
            "algo: a population can change numbers",
        ),
        (
            ["algo=pg", *QUICK, "algo.fragment_length=interval(16,64)", "--search", "random", "--trials", "2"],
            "algo.fragment_length takes whole numbers, and its interval would draw fractions too: write"
            " int(interval(16,64))",
        ),
        (
            ["algo=pg", *QUICK, "++episode_window=tag(log,interval(16,64.5))", "--search", "random", "--trials", "2"],
            "++episode_window takes whole numbers, and its interval would draw fractions too: write"
            " int(tag(log,interval(16,64.5)))",
        ),
        (["--resume", "nowhere", "seed=1"], "--resume goes on with the sweep as it was"),
    ],
)
def test_what_is_no_sweep_is_a_sentence(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="^" + re.escape(said)):
        _dispatch(["sweep", *words])


def test_jobs_run_one_fails_and_resume_does_only_what_is_left(tmp_path, capsys):
    folder = tmp_path / "sweep"
    words = [
        "algo=pg",
        "env=rlrun/Counting-v0",
        "env.kwargs.fail_at=999999,30",
        "logger=[]",
        "resources=debug",
        "env_steps=1000",
        "--dir",
        str(folder),
        "--jobs=2",
    ]
    assert _dispatch(["sweep", *words]) == 1
    made = outcomes(folder)
    assert (
        made["000-fail_at999999"]["status"] == "COMPLETED"
        and made["000-fail_at999999"]["return_mean"] > 0
        and made["000-fail_at999999"]["env_steps"] >= 1000
    )
    assert made["001-fail_at30"]["status"] == "FAILED" and "was told to fail" in made["001-fail_at30"]["reason"]
    said = capsys.readouterr().out
    assert "FAILED" in said and f"rlrun sweep --resume {folder} goes on with 1 of 2 jobs" in said
    with pytest.raises(UserError, match="holds a sweep"):
        _dispatch(["sweep", *words])
    before = (folder / "000-fail_at999999" / "summary.json").stat().st_mtime_ns
    assert _dispatch(["sweep", "--resume", str(folder), "--dry-run"]) == 0
    assert "1 of 2 jobs to do" in capsys.readouterr().out
    assert _dispatch(["sweep", "--resume", str(folder)]) == 1
    now = (folder / "000-fail_at999999" / "summary.json").stat().st_mtime_ns
    assert now == before, "a finished run is left as it is"


LR = "algo.lr=interval(0.1,0.2)"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("001-seed2", ["seed=1,2"]),
        ("004-lr0.15", [LR, "--search", "random", "--trials", "5"]),
        ("member-01", [LR, "--search", "pbt", "--trials", "2", "--every", "300"]),
    ],
)
def test_a_new_sweep_takes_no_folder_that_exists(tmp_path, made, words):
    notes = tmp_path / "my sweep" / made / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("precious")
    with pytest.raises(UserError, match=f"{made} exists already, and this sweep would use it: choose another --dir"):
        _dispatch(["sweep", "algo=pg", *QUICK, *words, "--dir", str(tmp_path / "my sweep")])
    assert notes.read_text() == "precious" and not (tmp_path / "my sweep" / "sweep.json").exists()
    (tmp_path / "my sweep" / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match=r"rlrun sweep --resume '.*/my sweep' continues it"):
        _dispatch(["sweep", "algo=pg", *QUICK, *words, "--dir", str(tmp_path / "my sweep")])


@pytest.mark.parametrize("words", [["seed=1,2"], [LR, "--search", "pbt", "--trials", "2", "--every", "300"]])
@pytest.mark.parametrize("over", [False, True])
def test_a_sweep_that_began_while_the_jobs_of_another_were_checked_keeps_its_record(over, words, tmp_path, monkeypatch):
    """It may even be over by then."""
    from rlrun.commands import sweep
    from rlrun.experiments.record import held

    folder, made = tmp_path / "sweep", sweep.made
    with contextlib.ExitStack() as other:

        def made_second(flags, config):
            place = made(flags, config)
            (place / "sweep.json").write_text("that of the first")
            if not over:
                other.enter_context(held(place))
            return place

        monkeypatch.setattr(sweep, "made", made_second)
        with pytest.raises(UserError, match="--resume .* continues it" if over else "is in use by process"):
            _dispatch(["sweep", "algo=pg", *QUICK, *words, "--dir", str(folder)])
    assert (folder / "sweep.json").read_text() == "that of the first"


def test_a_run_that_was_interrupted_at_its_end_is_finished(tmp_path):
    """Its last checkpoint is there, but its summary says INTERRUPTED, or was never written."""
    folder = tmp_path / "sweep"
    assert _dispatch(["sweep", "algo=pg", *QUICK, "seed=1,2", "--jobs=2", "--dir", str(folder)]) == 0
    done = outcomes(folder)
    for name, status in (("000-seed1", "INTERRUPTED"), ("001-seed2", "RUNNING")):
        file = folder / name / "summary.json"
        whole = json.loads(file.read_text())
        facts = {key: whole[key] for key in ("seed", "algo", "env", "command", "started")}
        more = {"reason": "SIGINT received", "env_steps": whole["env_steps"]} if status == "INTERRUPTED" else {}
        file.write_text(json.dumps({"status": status, **facts, **more}))
    assert _dispatch(["sweep", "--resume", str(folder), "--jobs=2"]) == 0
    again = outcomes(folder)
    for name in done:
        assert again[name]["status"] == "COMPLETED" and "env steps" in again[name]["reason"]
        for key in ("env_steps", "return_mean"):
            assert again[name][key] == pytest.approx(done[name][key])
        assert -0.5 < again[name]["wall_sec"] - done[name]["wall_sec"] < 10, "finishing it takes a moment"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo=ppo,td3", "env=CartPole-v1"], "job 001-td3: .*td3"),
        (["algo=pg", "env=CartPole-v1", "eval.workers=1,2"], "job 000-workers1: eval.workers=1 does nothing in this run"),
        (["algo=pg", "env=CartPole-v1", "seed=1,2", "init=nosuch"], "job 000-seed1: init=nosuch is neither a run"),
        (["algo=pg", "env=CartPole-v1", "seed=1,2", "--timeout", "nan"], "--timeout must be positive"),
        (["algo=pg", "env=CartPole-v1", "seed=1,2", "-m"], "sweep needs no -m"),
        (["algo=pg", "env=CartPole-v1", "seed=1,2", "--multirun"], "sweep needs no --multirun"),
    ],
)
def test_what_train_refuses_is_refused_before_any_job_begins(words, said):
    with pytest.raises(UserError, match=f"^{said}"):
        _dispatch(["sweep", *words, "logger=[]", "resources=debug", "--dry-run"])


def test_a_value_is_checked_though_the_job_before_has_the_default():
    words = ["algo=ppo", "env=CartPole-v1", "logger=[]", "resources=debug", "--dry-run"]
    with pytest.raises(UserError, match=r"algo\.kl_target=0\.02 does nothing in this run"):
        _dispatch(["sweep", "algo.kl_target=0.01,0.02", *words])


def test_jobs_that_differ_in_seeds_and_fractions_are_planned_once(monkeypatch, capsys):
    planned = []
    monkeypatch.setattr("rlrun.commands.sweep_check.check_plan", lambda values, *_: planned.append(values["algo"]["batch_size"]))
    words = ["algo=pg", *QUICK, "algo.batch_size=200,400", "algo.lr=1e-3,1e-2", "seed=1,2", "--dry-run"]
    assert _dispatch(["sweep", *words]) == 0
    assert planned == [200, 400] and "8 jobs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seeds", "takes_seed", "count"),
    [
        ([1, 2, 3, 4], False, 4),  # two of each algorithm
        ([1, 2, 3, 4], True, 8),
        ([1, 2, 3, -4], False, 6),
        ([1, 2, "x", "1e3"], False, 8),
    ],
)
def test_jobs_that_differ_in_the_seed_alone_are_not_all_composed(seeds, takes_seed, count, monkeypatch, capsys):
    """Composing takes 0.3 s of a core, and no job's config but the first is kept."""
    composed = []

    def checked(words, name, planned):
        composed.append(name)
        algo, seed = (word.split("=")[1] for word in words)
        return {"algo": algo, "seed": seed, "path": seed if takes_seed else "here"}

    monkeypatch.setattr("rlrun.commands.sweep_check.checked", checked)
    monkeypatch.setattr("rlrun.commands.sweep_check.TELL_SEC", 0.0)
    jobs = [(f"{algo}-{seed}", (f"algo={algo}", f"seed={seed}")) for algo in ("pg", "a2c") for seed in seeds]
    assert JobCheck(plans=False).all(jobs) == checked(jobs[0][1], "again", None)
    assert len(composed) - 1 == count
    assert capsys.readouterr().err.splitlines()[-1] == "  checked 8 of 8 jobs"


def test_what_learns_from_data_is_swept_without_an_environment(tmp_path, capsys):
    data = tmp_path / "data"
    assert _dispatch(["train", "algo=pg", *QUICK, f"record={data}", f"run_dir={tmp_path / 'run'}"]) == 0
    words = ["algo=bc", f"data.path={data}", "logger=[]", "resources=debug", "env_steps=2000", "algo.batch_size=32"]
    assert _dispatch(["sweep", *words, "seed=1,2", "--dry-run"]) == 0
    assert "2 jobs" in capsys.readouterr().out
    search = [LR, "--search", "random", "--trials", "2", "--dry-run"]
    pytest.importorskip("optuna")
    with pytest.raises(UserError, match=r"--search compares runs by their return.*eval\.every=, and in which .* env="):
        _dispatch(["sweep", *words, *search])
    games = ["runner=offline", "env=CartPole-v1", "eval.every=1000"]
    assert _dispatch(["sweep", *words, *games, *search]) == 0


def test_a_search_that_is_resumed_elsewhere_finds_what_it_named(tmp_path, monkeypatch):
    """Its jobs run in the folder where it began, and are checked there."""
    pytest.importorskip("optuna")
    from rlrun.commands.sweep import supply_of
    from rlrun.core.plugins import only_installed
    from rlrun.experiments.record import Record

    began, other = tmp_path / "began", tmp_path / "other"
    for folder in (began, other, tmp_path / "sweep"):
        folder.mkdir()
    text = "from gymnasium.envs.classic_control import CartPoleEnv\n\n\nclass MyEnv(CartPoleEnv):\n    pass\n"
    (began / "env_of_this_sweep.py").write_text(text)
    monkeypatch.chdir(other)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["algo=pg", "env=env_of_this_sweep:MyEnv", "resources=debug", LR]
    said = {"kind": "random", "trials": 1, "prune": False, "every": None, "own": [], "env_steps": 600, "seed": 0}
    with only_installed():
        supply = supply_of(Record("", words, [], None, said, str(began)), tmp_path / "sweep", [], plans=True)
        assert supply.next() is not None


def test_tuned_files_whose_runs_are_done_are_not_run_again(tmp_path, monkeypatch, capsys):
    from rlrun.bench import tuned

    monkeypatch.setattr(tuned, "choose", lambda *_: [tuned.Bar("pg/cartpole", 1.0, 4000.0, False, None)])
    results = tmp_path / "results.json"
    words = ["pg/cartpole", "--runs", str(tmp_path / "runs"), "--jobs", "1", "--json", str(results)]
    for said in ("1 of 1 runs to do", "0 of 1 runs to do"):
        assert tuned.main(words) == 0
        told = capsys.readouterr().out
        assert said in told and "1 of 1 bars met" in told
        made = json.loads(results.read_text())
        assert [one["verdict"] for one in made["results"]] == ["pass"] and "tuned=pg/cartpole" in made["results"][0]["words"]
        assert made["hardware"]["cores"] and made["versions"]["torch"] and made["command"]
        results.unlink()
    with pytest.raises(UserError, match="--json would write nothing"):
        tuned.main([*words, "--dry-run"])
    with pytest.raises(UserError, match="seeds must not be negative"):
        tuned.main(["pg/cartpole", "seeds=-1", "--dry-run"])


def test_a_killed_sweep_leaves_saved_runs_and_goes_on(tmp_path):
    folder = tmp_path / "sweep"
    words = [
        "algo=pg",
        "env=CartPole-v1",
        "logger=[]",
        "resources=debug",
        "seed=1,2",
        "env_steps=12000",
        "log_every_sec=0.2",
        "--dir",
        str(folder),
        "--jobs=1",
    ]
    command = [sys.executable, "-m", "rlrun", "sweep"]
    process = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = folder / "000-seed1"
    wait(lambda: (first / "progress.jsonl").exists() and (first / "progress.jsonl").stat().st_size > 0)
    with pytest.raises(UserError, match="is in use by process"):
        _dispatch(["sweep", "--resume", str(folder)])
    process.send_signal(signal.SIGKILL)
    process.wait()
    # The run received SIGTERM when its parent died.
    wait(lambda: json.loads((first / "summary.json").read_text())["status"] == "INTERRUPTED")
    wait(lambda: not (first / "run.lock").exists())
    steps = json.loads((first / "summary.json").read_text())["env_steps"]
    assert 0 < steps < 12000
    assert _dispatch(["sweep", "--resume", str(folder)]) == 0
    made = outcomes(folder)
    assert [made[name]["status"] for name in sorted(made)] == ["COMPLETED", "COMPLETED"]
    assert f"from the checkpoint at {steps:,} env steps" in (folder / "logs" / "000-seed1.log").read_text()


def wait(condition, seconds=90.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.05)
    raise AssertionError("the condition never became true")


@pytest.mark.slow
def test_jobs_stand_under_one_mlflow_run_which_sync_completes(tmp_path, capsys):
    """The jobs do not wait for MLflow, so that it has not everything of them when the sweep is over."""
    from rlrun.loggers.mlflow import open_experiment

    words = [
        "algo=pg",
        "env=CartPole-v1",
        "logger=[mlflow]",
        "logger.mlflow.wait_sec=0.01",
        "resources=debug",
        "seed=1,2",
        "env_steps=400",
        f"runs_root={tmp_path}",
        "--jobs=2",
    ]
    assert _dispatch(["sweep", *words]) == 0
    (folder,) = (tmp_path / "sweeps").iterdir()
    assert _dispatch(["sync", str(folder)]) == 0
    capsys.readouterr()
    assert _dispatch(["sync", str(folder)]) == 0
    assert capsys.readouterr().out.count("nothing was missing") == 2
    client, experiment = open_experiment(None, tmp_path, "rlrun")
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    parent = next(run for name, run in runs.items() if name.startswith("sweep "))
    children = [run for name, run in runs.items() if not name.startswith("sweep ")]
    assert parent.info.status == "FINISHED" and parent.data.metrics["jobs/completed"] == 2 and len(children) == 2
    assert all(child.data.tags["mlflow.parentRunId"] == parent.info.run_id for child in children)
    assert all(child.info.status == "FINISHED" and child.data.metrics["sample/return_mean"] > 0 for child in children)


@pytest.mark.slow
def test_a_search_finds_its_values_and_says_the_best(tmp_path, capsys):
    pytest.importorskip("optuna")
    folder = tmp_path / "search"
    words = [
        "algo=pg",
        *QUICK,
        "algo.lr=tag(log,interval(1e-4,1e-2))",
        "--search",
        "tpe",
        "--trials",
        "2",
        "--prune",
        "--jobs",
        "2",
        "--dir",
        str(folder),
    ]
    assert _dispatch(["sweep", *words]) == 0
    made = outcomes(folder)
    assert (
        len(made) == 2
        and all(one["status"] == "COMPLETED" for one in made.values())
        and "best of 2: return" in capsys.readouterr().out
    )
    lrs = {word for one in made.values() for word in one["words"] if word.startswith("algo.lr=")}
    assert len(lrs) == 2 and len(json.loads((folder / "sweep.json").read_text())["jobs"]) == 2
    assert _dispatch(["sweep", "--resume", str(folder)]) == 0, "nothing is left to do"


@pytest.mark.slow
def test_a_population_trains_in_parts_and_takes_over(tmp_path, capsys):
    folder = tmp_path / "pbt"
    words = [
        "algo=pg",
        "env=CartPole-v1",
        "logger=[]",
        "resources=debug",
        "env_steps=3200",
        "algo.lr=tag(log,interval(1e-5,1e-2))",
    ]
    assert (
        _dispatch(
            [
                "sweep",
                *words,
                "--search",
                "pbt",
                "--trials",
                "2",
                "--every",
                "1600",
                "--jobs",
                "2",
                "--dir",
                str(folder),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "takes over from" in said and "best of 2: member-0" in said
    assert {one["status"] for one in outcomes(folder).values()} == {"COMPLETED"} and all(
        one["env_steps"] >= 3200 for one in outcomes(folder).values()
    )
    state = json.loads((folder / "population.json").read_text())["members"]
    assert (
        all(member["generation"] == 2 for member in state)
        and sum("took_over" in entry for member in state for entry in member["history"]) >= 1
    )
    log = (folder / "logs" / "member-00.log").read_text()
    assert "rlrun resume: pg on CartPole-v1" in log and "from the checkpoint at" in log


def test_jobs_go_through_a_queue(tmp_path, capsys):
    pytest.importorskip("submitit")
    folder = tmp_path / "queued"
    words = [
        "algo=pg",
        *QUICK,
        "seed=1,2",
        "--cluster",
        "local",
        "--queue",
        "timeout_min=5",
        "--jobs",
        "2",
        "--dir",
        str(folder),
    ]
    assert _dispatch(["sweep", *words]) == 0
    assert [one["status"] for one in outcomes(folder).values()] == ["COMPLETED", "COMPLETED"]
    assert "rlrun train: pg on CartPole-v1" in (folder / "logs" / "000-seed1.log").read_text() and list(
        (folder / "queue").iterdir()
    )
    for flag, value, said in (
        ("--cluster", "slrum", "There is no --cluster slrum. Did you mean slurm"),
        ("--queue", "partition", "say key=value"),
    ):
        other = ["--cluster", "local", "--jobs", "1", "--dir", str(tmp_path / flag.strip("-")), flag, value]
        with pytest.raises(UserError, match=said):
            _dispatch(["sweep", "algo=pg", *QUICK, *other])
