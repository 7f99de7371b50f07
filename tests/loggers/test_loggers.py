"""Logs are read back with the readers that people use, and failing loggers do not disturb a run."""

import io
import json
import re
import sys
import threading
import time
import urllib.request  # noqa: F401

import psutil
import pytest
from conftest import SMALL, compose, small
from rich.console import Console
from terminal import RESIZE, shown
from wired import checked

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.config.signature import sign
from rlrun.config.types import save_yaml
from rlrun.loggers.console import End, Lines, Live, console, duration, say
from rlrun.loggers.sinks import Sinks
from rlrun.runtime import session
from rlrun.runtime.rundir import RunDir


def train(tmp_path, *words, resumed=None):
    path = tmp_path / "run"
    small = [word for word in SMALL if not word.startswith("logger")]
    values = compose(
        "algo=impala",
        "env=CartPole-v1",
        *small,
        f"run_dir={path}",
        f"runs_root={tmp_path}",
        "env_steps=300",
        "log_every_sec=0.01",
        *words,
    )
    config = type_config(values)
    directory = RunDir.create(path)
    save_yaml(values, path / "config.yaml")
    sign(path / "config.yaml")
    return path, session.run(checked(config), values, directory, None)


def test_tensorboard_and_mlflow_hold_what_progress_holds(tmp_path):
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from rlrun.commands.resume import main as resume

    path, code = train(tmp_path, "logger=[tensorboard,mlflow]", "logger.mlflow.wait_sec=120", "algo.lr=0.0005")
    assert code == 0
    assert resume([str(path), "env_steps=500"]) == 0
    rows = [json.loads(line) for line in (path / "progress.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(path))
    events.Reload()
    logged = {event.step: event.value for event in events.Scalars("learn/policy_loss")}
    expected = {row["env_steps"]: row["learn/policy_loss"] for row in rows if row.get("learn/policy_loss") is not None}
    assert logged.keys() == expected.keys() and all(logged[k] == pytest.approx(expected[k]) for k in expected)

    assert not events.Tags()["histograms"], "they are an option"

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("rlrun").experiment_id])
    assert len(runs) == 1, "a resumed run continues its own MLflow run"
    run = runs[0]
    assert (
        run.info.status == "FINISHED"
        and run.data.params["algo.lr"] == "0.0005"
        and run.data.params["env.name"] == "CartPole-v1"
    )
    history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "learn/policy_loss")}
    assert history.keys() == expected.keys()
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "summary.json", "checkpoint"} <= files
    assert not (tmp_path / "mlruns").exists()


ACTIONS = "learn/actions"


@pytest.mark.parametrize("words, actions", [
    (["algo=impala", "env=rlrun/EverySpace-v0"], {
        f"{ACTIONS}/0": (0, 2), f"{ACTIONS}/1": (-9, 9), f"{ACTIONS}/2/pair/0": (0, 1), f"{ACTIONS}/2/pair/1": (0, 2),
        f"{ACTIONS}/2/flags/0": (0, 1), f"{ACTIONS}/2/flags/1": (0, 1)}),
    (["algo=sac", "env=Pendulum-v1"], {ACTIONS: (-1, 1)}),
])  # fmt: skip
def test_histograms_of_returns_and_actions(tmp_path, words, actions):
    from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, EventAccumulator

    path = tmp_path / "run"
    quick = small(words[0].removeprefix("algo="), "tiny")
    run = [*words, *quick[1:], "resources=debug", "model.hidden=[8]", "logger=[tensorboard]"]
    run += ["logger.tensorboard.histograms=true", "env_steps=300", "log_every_steps=60", f"run_dir={path}"]
    assert _dispatch(["train", *run]) == 0
    rows = {row["env_steps"]: row for row in map(json.loads, (path / "progress.jsonl").read_text().splitlines())}
    events = EventAccumulator(str(path), size_guidance={HISTOGRAMS: 0})
    events.Reload()
    tags = set(events.Tags()["histograms"])
    assert tags == {"sample/returns", "sample/episode_lengths", *actions}
    for event in events.Histograms("sample/returns"):
        row, drawn = rows[event.step], event.histogram_value
        assert drawn.num == min(row["sample/episodes"], 100)
        assert drawn.sum == pytest.approx(row["sample/return_mean"] * drawn.num)
        assert (drawn.min, drawn.max) == pytest.approx((row["sample/return_min"], row["sample/return_max"]))
    for tag, (low, high) in actions.items():
        drawn = events.Histograms(tag)
        assert len(drawn) >= 4 and all(0 < event.histogram_value.num <= 60 for event in drawn)
        assert min(event.histogram_value.min for event in drawn) >= low
        assert max(event.histogram_value.max for event in drawn) <= high


@pytest.mark.parametrize("between", ["[tensorboard]", "[]"])
def test_tensorboard_shows_no_steps_that_a_run_took_back(between, tmp_path):
    """Also where the session that took them back did not log there; only its own steps are missing then."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "run"
    run = ["algo=pg", "env=CartPole-v1", "algo.fragment_length=5", "algo.batch_size=20", "resources=debug"]
    run += ["model.hidden=[8]", "checkpoint.every=40", "checkpoint.keep=9", f"run_dir={path}", "env_steps=120"]
    assert _dispatch(["train", *run, "logger=[tensorboard]", "log_every_steps=20"]) == 0
    back = ["checkpoint=40", "env_steps=140", "log_every_steps=30", f"logger={between}"]
    assert _dispatch(["resume", str(path), *back]) == 0
    over = json.loads((path / "summary.json").read_text())["env_steps"]
    assert _dispatch(["resume", str(path), "env_steps=200", "logger=[tensorboard]"]) == 0
    rows = [json.loads(line)["env_steps"] for line in (path / "progress.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(path))
    events.Reload()
    shown = [event.step for event in events.Scalars("updates")]
    assert shown == [step for step in rows if between != "[]" or not 40 < step <= over]


def test_rows_of_one_step_that_a_run_took_back_are_not_shown_twice(tmp_path):
    """Env steps stand still while an evolution strategy plays, and between the updates of a replay ratio above one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from rlrun.loggers.jsonl import Jsonl, Moment
    from rlrun.loggers.tensorboard import TensorBoard

    def session(rows, resumed=None):
        lines = Jsonl(tmp_path / "progress.jsonl", resumed)
        board = TensorBoard(tmp_path, None if resumed is None else resumed.env_steps, lines.again)
        for steps, updates, time_sec in rows:
            row = {"env_steps": steps, "updates": updates, "time_sec": time_sec}
            lines.log(row)
            board.log(row)
        lines.close("", {})
        board.close("", {})

    # A checkpoint is saved after 2 s, before the row of that moment.
    session([(0, 0, 1.0), (100, 1, 1.5), (100, 2, 2.1), (100, 2, 2.6), (100, 3, 3.1), (200, 4, 4.1)])
    session([(100, 3, 2.8), (200, 4, 3.8)], Moment(100, 2, 2.0))
    wanted = [(0, 1.0), (100, 1.5), (100, 2.1), (100, 2.8), (200, 3.8)]
    rows = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [(row["env_steps"], row["time_sec"]) for row in rows] == wanted
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("time_sec")]
    assert shown == [(step, pytest.approx(value)) for step, value in wanted]


@pytest.mark.parametrize("kind", ["tail", "gap", "no end of line", "nothing"])
def test_rows_behind_a_checkpoint_are_removed_from_a_file_of_any_size(tmp_path, kind):
    """Without reading all of it into memory."""
    import tracemalloc

    from rlrun.core.saved_files import read_rows
    from rlrun.loggers.jsonl import Jsonl, Moment

    path, count = tmp_path / "progress.jsonl", 20000
    lines = [json.dumps({"env_steps": i, "updates": i, "time_sec": float(i), "é": "x" * 100}) + "\n" for i in range(count)]
    if kind == "gap":
        lines[5] = "half a row\n"
    path.write_text("".join(lines)[: -1 if kind == "no end of line" else None])
    last = count - 1 if kind in ("no end of line", "nothing") else 9000
    tracemalloc.start()
    rows = Jsonl(path, Moment(last, last, float(last)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows.close("", {})
    assert rows.cut == (kind != "nothing") and peak < 500_000
    assert path.read_text() == "".join(line for line in lines[: last + 1] if line[0] == "{")
    assert [row["env_steps"] for row in read_rows(path)][-2:] == [last - 1, last]


def test_tensorboard_leaves_out_what_is_no_number(tmp_path):
    """A callback may put a text or None into a row."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from rlrun.loggers.tensorboard import TensorBoard

    writer = TensorBoard(tmp_path, None)
    writer.log({"env_steps": 3, "my/phase": "warm", "my/none": None, "my/number": 2})
    writer.close("COMPLETED", {})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["my/number"]
    assert [(event.step, event.value) for event in events.Scalars("my/number")] == [(3, 2.0)]


def test_a_failed_run_is_failed_in_mlflow(tmp_path):
    from mlflow import MlflowClient

    path = tmp_path / "run"
    small = [word for word in SMALL if not word.startswith("logger")]
    values = compose(
        "algo=impala",
        "env=rlrun/Counting-v0",
        "++env.kwargs.fail_at=30",
        *small,
        f"run_dir={path}",
        f"runs_root={tmp_path}",
        "logger=[mlflow]",
        "logger.mlflow.wait_sec=120",
    )
    directory = RunDir.create(path)
    save_yaml(values, path / "config.yaml")
    assert session.run(checked(type_config(values)), values, directory, None) == 1
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert client.search_runs(["1"])[0].info.status == "FAILED"
    assert json.loads((path / "summary.json").read_text())["status"] == "FAILED"


def test_a_dead_mlflow_server_costs_a_warning(tmp_path, capsys):
    started = time.monotonic()
    _, code = train(tmp_path, "logger=[mlflow]", "logger.mlflow.uri=http://127.0.0.1:9")
    assert code == 0 and time.monotonic() - started < 45
    assert "mlflow: " in capsys.readouterr().err


def test_without_mlflow_a_sentence_and_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rlrun.runtime.session.available", lambda: False)
    _, code = train(tmp_path, "logger=[mlflow]")
    assert code == 0 and "mlflow is not installed (pip install mlflow)" in capsys.readouterr().err


class Recorder:
    def __init__(self, fail_at=None, wait=None):
        self.rows, self.closed, self.fail_at, self.wait = [], None, fail_at, wait

    def log(self, row):
        if self.wait:
            self.wait.wait(10)
        if len(self.rows) == self.fail_at:
            raise OSError("disk full")
        self.rows.append(row)

    def close(self, status, summary):
        self.closed = status


def test_a_failing_sink_is_left_out_and_the_others_go_on(capsys):
    direct, good, bad = Recorder(), Recorder(), Recorder(fail_at=2)
    sinks = Sinks([direct], {"good": lambda: good, "bad": lambda: bad})
    for number in range(5):
        sinks.log({"env_steps": number})
    sinks.close("COMPLETED", {})
    assert [len(s.rows) for s in (direct, good, bad)] == [5, 5, 2] and good.closed == "COMPLETED"
    assert capsys.readouterr().err.count("disk full") == 1


def test_a_hanging_sink_never_blocks_log(capsys, monkeypatch):
    monkeypatch.setattr("rlrun.loggers.sinks.PENDING", 5)
    monkeypatch.setattr("rlrun.loggers.sinks.CLOSE_SEC", 0.3)
    gate = threading.Event()
    sinks = Sinks([], {"stuck": lambda: Recorder(wait=gate)})
    started = time.monotonic()
    for number in range(50):
        sinks.log({"env_steps": number})
    sinks.close("COMPLETED", {})
    assert time.monotonic() - started < 5 and sinks.dropped > 30
    gate.set()
    assert "were dropped" in capsys.readouterr().err


def test_the_end_waits_for_slow_sinks_that_make_progress(capsys, monkeypatch):
    """As for MLflow, whose import takes longer than a short run: the thread computes first, and then takes each row."""
    monkeypatch.setattr("rlrun.loggers.sinks.CLOSE_SEC", 0.6)
    monkeypatch.setattr("rlrun.loggers.sinks.SAY_SEC", 0.5)

    class Slow(Recorder):
        def log(self, row):
            time.sleep(0.1)  # 8 rows take longer than CLOSE_SEC
            super().log(row)

    slow = Slow()

    def import_for_long():
        begun = time.thread_time()
        while time.thread_time() - begun < 0.7:  # longer than CLOSE_SEC
            pass
        return slow

    sinks = Sinks([], {"slow": import_for_long})
    for number in range(8):
        sinks.log({"env_steps": number})
    sinks.close("COMPLETED", {})
    assert len(slow.rows) == 8 and slow.closed == "COMPLETED"
    said = capsys.readouterr()
    assert "waiting for slow to store the last rows" in said.out and not said.err


@pytest.mark.parametrize("why", ["hurried", "at_most"])
def test_the_wait_for_slow_sinks_can_be_ended(why, capsys):
    gate = threading.Event()
    sinks = Sinks([], {"stuck": lambda: Recorder(wait=gate)})
    sinks.log({"env_steps": 0})
    began = time.monotonic()
    sinks.close("COMPLETED", {}, **{"hurried": {"hurried": lambda: True}, "at_most": {"at_most": 0.3}}[why])
    gate.set()
    assert time.monotonic() - began < 2
    assert "the rest of their rows is only in progress.jsonl" in capsys.readouterr().err


def test_lines_off_a_terminal(capsys):
    row = {
        "env_steps": 500,
        "time_sec": 65.0,
        "sample/env_steps_per_sec": 100.0,
        "sample/return_mean": None,
        "sample/episodes": 0,
        "learn/entropy": 0.5,
    }
    made = console(End(1000), "impala on Pong", 100)
    assert isinstance(made, Lines)
    made.log(row)
    assert "500/1,000 steps" in (out := capsys.readouterr().out) and "no finished episode" in out and "left 5s" in out
    assert [duration(s) for s in (5, 65, 3725)] == ["5s", "1m05s", "1h02m"]


def test_self_play_shows_its_rating_in_place_of_a_return_that_is_always_0(capsys):
    row = {"env_steps": 500, "time_sec": 65.0, "sample/env_steps_per_sec": 100.0, "sample/return_mean": 0.0, "sample/episodes": 7}
    for more in ({"learn/elo": 1234.4, "learn/win_rate": 0.625}, {"learn/elo": 1200.0}, {}):
        Lines(End(1000)).log(row | more)
    first, second, other = capsys.readouterr().out.splitlines()
    assert "  Elo 1234  won 62% against snapshots (7 episodes)  " in first and "return" not in first
    assert "  Elo 1200 (7 episodes)  " in second and "  return 0.00 (7 episodes)  " in other
    live = object.__new__(Live)  # without a terminal
    live.end, live.title, live.window, live.psutil = End(1000), "self_play", 100, psutil
    screen = io.StringIO()
    Console(file=screen, width=100).print(live._table(row | {"learn/elo": 1234.4, "learn/win_rate": 0.625}))
    assert "Elo rating" in screen.getvalue() and "1,234" in screen.getvalue()
    assert "won against snapshots" in screen.getvalue() and "62%" in screen.getvalue()


def test_a_time_limit_counts_where_it_ends_the_run_sooner():
    row = {"env_steps": 500, "time_sec": 60.0, "sample/env_steps_per_sec": 100.0}
    assert (End(1000).left(row), End(1000).share(row)) == ("5s", 0.5)
    assert (End(1000, 63.0).left(row), End(1000, 63.0).share(row)) == ("3s", 60 / 63)
    assert (End(1000, 600.0).left(row), End(1000, 600.0).share(row)) == ("5s", 0.5)
    assert End(1000, 600.0).left(row | {"sample/env_steps_per_sec": None}) == "9m00s", "it is known without a speed"
    assert End(1000, 50.0).left(row) == "" and End(1000, 50.0).share(row) == 1.0


VIEW = """
import time
from rlrun.loggers.console import End, Live, console
live = console(End(1000), "impala on Pong, seed 0", 100)
assert isinstance(live, Live)
row = {
    "env_steps": 250, "time_sec": 65.0, "sample/env_steps_per_sec": 100.0, "sample/return_mean": -17.25,
    "sample/return_max": 21.0, "sample/episodes": 7, "learn/entropy": 0.5, "learn/value_loss": 0.25,
    "time/wait_share": 0.375,
}
live.log(row)
time.sleep(0.7)
live.log({**row, "env_steps": 500, "sample/return_mean": 18.125, "learn/entropy": None})
time.sleep(0.7)
print("  a note")
live.log({**row, "env_steps": 1000})
live.close("COMPLETED", {})
print("the end")
"""


@pytest.mark.parametrize("columns", [80, 140])
def test_the_live_view_shows_the_return_in_a_real_terminal(columns):
    lines = str(shown([sys.executable, "-c", VIEW], columns)).splitlines()
    assert lines[0].strip() == "a note" and lines[-1] == "the end", "what is printed meanwhile stays above the view"
    title, head, bar, *table = lines[1:-1]
    assert title == "impala on Pong, seed 0" and head == "1,000 of 1,000 env steps (100%)   100/s   1m05s"
    assert bar == "\u2501" * columns
    said = {cells[0]: cells[1] for line in table for cells in _pairs(line)}
    assert said["return, last 100"] == "-17.25" and said["best return of these"] == "21"
    assert said["entropy"] == "0.5" and said["value loss"] == "0.25" and said["episodes"] == "7"
    assert said["processor load"].endswith("%") and said["memory used"].endswith("%")
    assert said["time waiting for samples"] == "38%"


LONG = "apex_ddpg on my_package.environments:AnEnvironmentWithAVeryLongName-v12, seed 12345"


def test_nothing_is_left_behind_where_the_terminal_is_resized():
    widths = (100, 60, 120, 50)
    later = "".join(f"resize({width}); time.sleep(1.2)\n" for width in widths[1:])
    code = RESIZE + VIEW.replace('print("  a note")\n', later + 'print("  a note")\n')
    lines = str(shown([sys.executable, "-c", code], widths[0])).splitlines()
    assert sum("impala on Pong" in line for line in lines) == 1 and sum("env steps" in line for line in lines) == 1
    assert lines[0].strip() == "a note" and lines[1] == "impala on Pong, seed 0" and lines[-1] == "the end"
    assert sum("\u2501" in line for line in lines) == 1


def test_the_head_fits_80_columns():
    code = VIEW.replace("impala on Pong, seed 0", LONG).replace("End(1000", "End(100_000_000_000")
    lines = str(shown([sys.executable, "-c", code], 80)).splitlines()
    assert lines[1].startswith("apex_ddpg on my_package") and lines[1].endswith("\u2026")
    assert lines[2].startswith("1,000 of 100,000,000,000 env steps (0%)   100/s   1m05s") and lines[2].endswith("left")
    assert lines[3] == "\u2501" * 80


def _pairs(line):
    """The labels and values in a line of the view."""
    parts = re.split(r"  +", line.strip())
    return [parts[i : i + 2] for i in range(0, len(parts), 2)]


def test_a_run_in_a_terminal_ends_with_its_return_on_the_screen(tmp_path):
    words = ["train", "algo=impala", "env=CartPole-v1", *SMALL, "logger=[console]", "env_steps=3000"]
    screen = shown([sys.executable, "-m", "rlrun", *words, f"run_dir={tmp_path / 'run'}"], 80, lines=60)
    rows = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert f"return, last 100      {rows[-1]['sample/return_mean']:,.4g}  " in str(screen), screen
    assert "COMPLETED" in str(screen)


def test_lines_are_few_and_the_last_row_is_among_them(capsys):
    made = console(End(1000), "impala on Pong", 100)
    row = {"time_sec": 1.0, "sample/env_steps_per_sec": 10.0, "sample/return_mean": 1.0, "sample/episodes": 1}
    for steps in range(100):
        made.log({**row, "env_steps": steps, **({"eval/return_mean": 5.0} if steps == 50 else {})})
    made.close("COMPLETED", {})
    said = capsys.readouterr().out.splitlines()
    assert [int(line.split("/")[0]) for line in said] == [0, 50, 99]


def test_lines_above_the_live_view_end_between_words_on_a_terminal(capsys, monkeypatch):
    """Elsewhere, as in a log that is searched, a sentence is one line."""
    text = "defaults for vectors: " + ", ".join(f"algo.option_{number}={number}" for number in range(12))
    say(text)
    assert capsys.readouterr().out == f"  {text}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    say(text)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3 and max(map(len, lines)) < 60 and " ".join(line.strip() for line in lines) == text
    assert [line[:4].isspace() for line in lines] == [False] + [True] * (len(lines) - 1)


def test_a_folder_that_is_gone_is_said_once_and_without_a_traceback(tmp_path, capsys, monkeypatch):
    """As is a full disk. TensorBoard writes in a thread of its own, and Python would print its traceback."""
    from rlrun.loggers.tensorboard import TensorBoard

    said, after = [], threading.excepthook
    monkeypatch.setattr(threading, "excepthook", lambda args: said.append(args.exc_value))
    folder = tmp_path / "run"
    folder.mkdir()
    sinks = Sinks([], {"tensorboard": lambda: TensorBoard(folder, None)})
    end = time.monotonic() + 60
    while not any(file.stat().st_size for file in folder.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    folder.rename(tmp_path / "other")
    for steps in range(4):
        sinks.log({"env_steps": steps, "learn/lr": 1.0})
        time.sleep(0.1)
    sinks.close("COMPLETED", {})
    other = threading.Thread(target=lambda: 1 / 0)
    other.start()
    other.join()
    assert [type(error) for error in said] == [ZeroDivisionError] and threading.excepthook is not after
    assert capsys.readouterr().err.count("this logger is left out from now on") == 1
