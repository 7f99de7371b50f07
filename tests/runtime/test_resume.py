"""rlrun resume takes a checkpoint, and says what is over before it starts anything. A failure is said at once."""

import json
import shutil

import pytest
from conftest import SMALL, small
from datasets_of_tests import data_of

import rlrun
from rlrun.cli import _dispatch
from rlrun.config.saved import save_config, saved_config
from rlrun.core.duties import Saves
from rlrun.core.errors import UserError
from rlrun.runtime.rundir import checkpoints_of

WORDS = ["train", "algo=impala", "env=CartPole-v1", *SMALL]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "run"
    assert _dispatch([*WORDS, "env_steps=300", "checkpoint.every=100", "log_every_steps=20", f"run_dir={path}"]) == 0
    return path


def names(path):
    return sorted(one.name for one in (path / "checkpoints").iterdir() if one.is_dir())


def rows(path):
    return [json.loads(line)["env_steps"] for line in (path / "progress.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("form", ["steps", "name", "folder"])
def test_it_goes_back_to_a_checkpoint(run, tmp_path, form, capsys, monkeypatch):
    path = tmp_path / "run"
    shutil.copytree(run, path)
    first, *later = names(path)
    given = {"steps": int(first), "name": first, "folder": path / "checkpoints" / first}[form]
    before = rows(path)
    begun = json.loads((path / "summary.json").read_text())
    monkeypatch.setattr("rlrun.runtime.session.git_commit", lambda: "f" * 40)
    assert _dispatch(["resume", str(path), f"checkpoint={given}", "env_steps=400"]) == 0
    said = capsys.readouterr().out
    assert f"from the checkpoint at {int(first):,} env steps" in said
    assert f"{len(later)} later checkpoints moved to {path / 'left_behind' / '1'}" in said
    assert {one.name for one in (path / "left_behind" / "1").iterdir()} >= {*later, "progress.jsonl"}
    assert rows(path / "left_behind" / "1") == before
    assert rows(path) == sorted(rows(path)) and rows(path)[-1] >= 400
    assert rlrun.load(path).clock.env_steps >= 400
    summary = json.loads((path / "summary.json").read_text())
    assert summary["git_commit"] == begun["git_commit"] and "sessions" not in begun
    assert [one["git_commit"] for one in summary["sessions"]] == [begun["git_commit"], "f" * 40]


def test_a_member_that_took_another_s_weights_over_keeps_its_own_rows(run, tmp_path):
    """Updates and seconds of the weights' checkpoint are another run's, and say nothing of the rows of this one."""
    path = tmp_path / "run"
    shutil.copytree(run, path)
    steps = int(names(path)[-1])
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps(summary | {"took_over": steps}))
    with (path / "progress.jsonl").open("a") as file:
        for updates in (10**6, 10**6 + 1, 10**6 + 2):
            file.write(json.dumps({"env_steps": steps, "time_sec": 1e6, "updates": updates}) + "\n")
    assert _dispatch(["resume", str(path), "env_steps=400"]) == 0
    kept = [json.loads(line)["updates"] for line in (path / "progress.jsonl").read_text().splitlines()]
    assert [one for one in kept if one >= 10**6] == [10**6, 10**6 + 1, 10**6 + 2]


def test_what_is_no_checkpoint_of_the_run_gets_a_sentence(run, tmp_path):
    for given, said in (
        ("7", "has no checkpoint 000000000007; it has 0000"),
        (tmp_path / "checkpoints" / "1", "is not a checkpoint of .*init="),
        ("first", "is not a checkpoint of"),
        ("best", "has no best checkpoint yet; checkpoint=last"),
    ):
        with pytest.raises(UserError, match=said):
            _dispatch(["resume", str(run), f"checkpoint={given}", "env_steps=400"])
    assert len(names(run)) == 3 and not (run / "left_behind").exists()


def test_a_run_whose_best_checkpoint_is_left_behind_finds_another(tmp_path, monkeypatch):
    """Although none is as good as the one before that, whose weights are gone."""
    path, good = tmp_path / "run", {"after 350": 10.0, "before": 9.0}
    monkeypatch.setattr(Saves, "metric", property(lambda self: good["after 350" if self.progress.clock.env_steps > 350 else "before"]))  # fmt: skip
    words = ["checkpoint.every=100", "checkpoint.keep=2", "env_steps=500", f"run_dir={path}"]
    assert _dispatch([*WORDS, *words]) == 0
    before, best, _ = names(path)
    assert checkpoints_of(path).best() == best and checkpoints_of(path).load(before)[1]["saved_best"] == 9.0
    good.update({"after 350": 7.0, "before": 6.0})
    assert _dispatch(["resume", str(path), f"checkpoint={before}"]) == 0
    assert (path / "left_behind" / "1" / "best.json").exists()
    assert checkpoints_of(path).load("best")[1]["metric"] == 7.0


@pytest.mark.parametrize("judged_by, metric, kept", [("training", 7.0, True), ("training", 10.0, False), ("evaluations", 7.0, False)])
def test_a_best_checkpoint_that_was_found_after_the_newest_one_is_not_replaced_by_a_worse_one(tmp_path, monkeypatch, judged_by, metric, kept):
    """Processes that evaluate find it while training goes on, and the run is killed before its next save. Metrics of other kinds
    cannot be compared."""
    path, now = tmp_path / "run", [5.0]
    monkeypatch.setattr(Saves, "metric", property(lambda self: now[0]))
    assert _dispatch([*WORDS, "env_steps=300", f"run_dir={path}"]) == 0
    checkpoints = checkpoints_of(path)
    tensors, run = checkpoints.load()
    later = run | {"env_steps": run["env_steps"] + 20, "updates": run["updates"] + 1, "metric": 9.0, "saved_best": 9.0, "judged_by": judged_by}
    assert run["saved_best"] == 5.0 and checkpoints.save_earlier(later["env_steps"], tensors, later) is not None
    best, now[0] = checkpoints.best(), metric
    assert _dispatch(["resume", str(path), "env_steps=500"]) == 0
    assert (checkpoints.best() == best) == kept
    assert checkpoints.load("best")[1]["metric"] == (9.0 if kept else metric)


@pytest.mark.parametrize("words, said", [
    (["env_steps=300"], "is already at 3.. env steps"),
    (["env_steps=1000", "stop.return_mean=1"], r"mean return .* >= 1; to train on: .* stop\.return_mean=null$"),
    (["env_steps=1000", "stop.wall_sec=1e-6"], r">= 1e-06; to train on: .* stop\.wall_sec=null$"),
])  # fmt: skip
def test_a_run_that_is_over_says_so_before_anything_starts(run, words, said, monkeypatch, capsys, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(run, path)
    config = (path / "config.yaml").read_text()
    monkeypatch.setattr("rlrun.runtime.session.run", None)
    if "stop.return_mean=1" in words:  # a full window of episodes
        monkeypatch.setattr("rlrun.core.metrics.EpisodeStatistics.full", True)
    with pytest.raises(UserError, match=said):
        _dispatch(["resume", str(path), *words])
    assert (path / "config.yaml").read_text() == config
    assert _dispatch(["resume", str(path), *words, "--if-needed"]) == 0
    assert "to train on" in capsys.readouterr().out
    assert json.loads((path / "summary.json").read_text())["status"] == "COMPLETED"


def test_a_failure_is_said_before_the_loggers_are_waited_for(tmp_path, monkeypatch, capsys):
    from rlrun.loggers.sinks import Sinks

    said = []
    close = Sinks.close
    monkeypatch.setattr(Sinks, "close", lambda self, *a, **o: (said.append(capsys.readouterr()), close(self, *a, **o))[1])
    words = ["train", "algo=impala", "env=rlrun/Counting-v0", "env.kwargs.fail_at=30", *SMALL]
    assert _dispatch([*words, "env_steps=300", f"run_dir={tmp_path / 'run'}"]) == 1
    assert "FAILED: " in said[0].out and "rlrun: " in said[0].err and "Counting" in said[0].err
    assert capsys.readouterr().out.strip() == str(tmp_path / "run"), "the folder is last"


def test_a_run_that_is_resumed_in_another_folder_goes_on_in_its_own_files(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlflow")
    from rlrun.datasets.open import open_source
    from rlrun.experiments.record import write
    from rlrun.experiments.runs import SavedRun, differing

    first, other = tmp_path / "100%", tmp_path / "100%" / "below"
    other.mkdir(parents=True)
    monkeypatch.chdir(first)
    words = ["algo=dqn", "env=rlrun/Counting-v0", "resources=debug", "model.hidden=[8]", "algo.batch_size=8"]
    words += ["algo.learning_starts=50", "replay.capacity=1000", "record=recorded", "replay.directory=rows"]
    words += ["logger=[mlflow]", "logger.mlflow.uri=sqlite:///store.db", "logger.mlflow.wait_sec=120"]
    assert _dispatch(["train", *words, "env_steps=100", "run_dir=run"]) == 0
    known = json.loads((first / "run" / "mlflow.json").read_text())
    monkeypatch.chdir(other)
    assert _dispatch(["resume", "../run", "env_steps=200"]) == 0
    assert list(other.iterdir()) == [] and open_source(str(first / "recorded")).most_rows >= 200
    assert "does not know this run" not in capsys.readouterr().err
    assert json.loads((first / "run" / "mlflow.json").read_text())["run_id"] == known["run_id"]
    assert _dispatch(["resume", "../run", "env_steps=220", "logger.mlflow.uri=sqlite:///../store.db"]) == 0
    assert SavedRun(first / "run").options["logger.mlflow.uri"] == f"sqlite:///{other}/../store.db".replace("%", "%25")

    logger = {"mlflow": {"enabled": True, "uri": "sqlite:///store.db", "experiment": "x"}}
    write(tmp_path, [], [], {"logger": logger, "runs_root": "runs"})  # a sweep's own MLflow run
    saved = json.loads((tmp_path / "sweep.json").read_text())["mlflow"]["uri"]
    assert saved == f"sqlite:///{other}/store.db".replace("%", "%25")
    monkeypatch.chdir(first / "run")
    assert _dispatch(["train", "--from-run", ".", "logger=[]", "record=elsewhere", "env_steps=60", "run_dir=again"]) == 0
    assert differing([SavedRun(first / "run"), SavedRun(first / "run" / "again")]) == ["env_steps"]


def test_a_run_of_an_earlier_version_goes_on_with_options_that_a_new_run_is_refused(tmp_path):
    """Factors on the rewards of data alone were allowed once, beside those of experience."""
    run, data = tmp_path / "run", data_of("CartPole-v1", tmp_path / "data")
    words = ["train", *small("dqn", "quick"), "env=CartPole-v1", f"data.path={data}", "data.share=0.5", "logger=[]"]
    assert _dispatch([*words, "env_steps=200", "data.reward_scale=3", "algo.learning_starts=20", f"run_dir={run}"]) == 0
    values = saved_config(run)
    values["data"]["reward_scale"] = "returns"
    save_config(values, run)
    assert _dispatch(["evaluate", str(run), "episodes=1"]) == 0
    assert _dispatch(["resume", str(run), "env_steps=300"]) == 0
    assert json.loads((run / "summary.json").read_text())["env_steps"] >= 300
    with pytest.raises(UserError, match="not those of experience"):
        _dispatch(["train", f"--from-run={run}", f"run_dir={tmp_path / 'new'}"])
    assert not (tmp_path / "new").exists()


class Ends(rlrun.Callback):
    """Notes with which generation of seeds a session begins, and ends it before its first update where it is told to."""

    seen = ()
    dying = False

    def on_start(self, run):
        self.seen.append(run.generation)
        if self.dying:
            raise ValueError("this session ends before it has saved anything")


@pytest.mark.parametrize("resources", ["auto", "debug"])
def test_no_two_sessions_have_the_same_seeds_unless_the_run_is_exact(tmp_path, resources, monkeypatch):
    """A session that dies before its first save is remembered. A failure that depends on its seeds would come back for ever."""
    monkeypatch.setattr(Ends, "seen", [])
    words = [*WORDS, f"resources={resources}", "resources.inference=serial", f"callbacks=[{__name__}:Ends]", "env_steps=200"]
    assert _dispatch([*words, f"run_dir={tmp_path / 'run'}"]) == 0
    saved = checkpoints_of(tmp_path / "run").load()[1]["generation"]
    monkeypatch.setattr(Ends, "dying", True)
    for _ in range(2):
        assert _dispatch(["resume", str(tmp_path / "run"), "env_steps=400"]) == 1
    monkeypatch.setattr(Ends, "dying", False)
    assert _dispatch(["resume", str(tmp_path / "run"), "env_steps=400"]) == 0
    exact = resources == "debug"
    assert Ends.seen == [0, *([saved] * 3 if exact else [1, 2, 3])]
    assert checkpoints_of(tmp_path / "run").load()[1]["generation"] == (saved + 1 if exact else 3)
