"""The pool of jobs, with Python scripts in place of runs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest

from rlrun.config.words import quoted
from rlrun.core.errors import UserError
from rlrun.experiments import job_parent, jobs
from rlrun.experiments.cluster import GONE_SEC, LIST_SEC, Listing, Queue, Queued, still_queued
from rlrun.experiments.jobs import Fixed, Here, Pool, command_of
from rlrun.experiments.outcomes import LOST, Outcome, TrainingJob, checkpoints, last_row, settle
from rlrun.experiments.places import Place, places
from rlrun.experiments.submitit_job import SubmittedJob
from rlrun.experiments.view import JobLines, counts, text_table

# This script leaves what a run leaves: a row and, after {sleep} seconds, a summary. After SIGTERM the summary says
# INTERRUPTED.
RUN = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r}); folder.mkdir(parents=True, exist_ok=True)
def end(status, code):
    (folder / "summary.json").write_text(json.dumps(dict(status=status, reason=status.lower(), env_steps=7, return_mean=1.5, wall_sec=0.5)))
    sys.exit(code)
signal.signal(signal.SIGTERM, lambda *_: end("INTERRUPTED", 143))
(folder / "progress.jsonl").write_text(json.dumps({{"env_steps": 3, "sample/return_mean": 0.5, "time_sec": 0.1}}) + "\\n")
(folder / "cores").write_text(json.dumps([sorted(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES")]))
time.sleep({sleep})
if {code}: print("rlrun: it broke"); sys.exit({code})
end("COMPLETED", 0)
"""


class Quiet:
    said = ""

    def show(self, outcomes):
        pass

    def say(self, text):
        self.said = text

    def close(self, outcomes):
        pass


def job(folder, name, sleep=0.0, code=0):
    return TrainingJob(
        name=name, words=(str(sleep), str(code)), run_dir=folder / name, log=folder / "logs" / f"{name}.log"
    )


def test_a_start_that_fails_is_tried_again_and_ends_no_other_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "RETRY_SEC", 0.1)
    here, tried = Here(launch), []

    def starter(one, place):
        tried.append(one.name)
        if tried.count("b") in (1, 2) and one.name == "b":
            raise RuntimeError("sbatch: error: unable to accept job")
        return here(one, place)

    two, place = [job(tmp_path, "a", sleep=1.0), job(tmp_path, "b")], Place(tuple(os.sched_getaffinity(0)), None)
    made = Pool([place] * 2, Quiet(), starter=starter).run(Fixed(two))
    assert [one.status for one in made] == ["COMPLETED"] * 2 and tried == ["a", "b", "b", "b"]
    assert capsys.readouterr().out.count("b could not be started and is tried again: RuntimeError: sbatch: error") == 2
    monkeypatch.setattr(jobs, "MOST_REFUSED", 1)
    tried.clear()
    with pytest.raises(RuntimeError, match="unable to accept"):
        Pool([place], Quiet(), starter=starter).run(Fixed([job(tmp_path / "again", "b")]))


def launch(one):
    sleep, code = one.words
    return [sys.executable, "-c", RUN.format(folder=str(one.run_dir), sleep=sleep, code=code)]


def pool(count=1, **options):
    core = sorted(os.sched_getaffinity(0))[:1]
    return Pool([Place(tuple(core), None)] * count, options.pop("view", Quiet()), starter=Here(launch), **options)


def test_a_job_that_fails_does_not_stop_the_others(tmp_path):
    jobs = [job(tmp_path, "a"), job(tmp_path, "b", code=1), job(tmp_path, "c", code=2), job(tmp_path, "d")]
    made = pool(2).run(Fixed(jobs))
    assert {outcome.job.name: outcome.status for outcome in made} == {
        "a": "COMPLETED",
        "b": "FAILED",
        "c": "FAILED",
        "d": "COMPLETED",
    }
    failed = next(outcome for outcome in made if outcome.job.name == "b")
    assert failed.reason == "it broke" and failed.env_steps == 3 and failed.return_mean == 0.5  # from the last row
    assert made[0].return_mean == 1.5 and made[0].env_steps == 7
    assert "it broke" in (tmp_path / "logs" / "b.log").read_text()


def test_a_pool_works_in_any_thread_of_a_program(tmp_path):
    made, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: made.extend(pool().run(Fixed([job(tmp_path, "a")]))))
    thread.start()
    thread.join(60)
    assert [outcome.status for outcome in made] == ["COMPLETED"] and signal.getsignal(signal.SIGINT) == before


def test_no_more_run_at_a_time_than_there_are_places(tmp_path):
    began = time.monotonic()
    pool(2).run(Fixed([job(tmp_path, str(number), sleep=0.5) for number in range(4)]))
    assert 1.0 <= time.monotonic() - began
    starts = sorted((tmp_path / str(number) / "cores").stat().st_mtime for number in range(4))
    ends = sorted((tmp_path / str(number) / "summary.json").stat().st_mtime for number in range(4))
    assert starts[2] >= ends[0] and starts[3] >= ends[1]


def test_a_job_has_its_cores_and_its_gpu(tmp_path):
    own = sorted(os.sched_getaffinity(0))
    one = Pool([Place((own[-1],), "3")], Quiet(), starter=Here(launch))
    one.run(Fixed([job(tmp_path, "a")]))
    assert json.loads((tmp_path / "a" / "cores").read_text()) == [[own[-1]], "3"]
    assert sorted(os.sched_getaffinity(0)) == own, "this process keeps its own cores"


def test_a_killed_job_is_named_with_its_signal(tmp_path):
    running = pool()

    def kill():
        while not running.running or not (tmp_path / "a" / "cores").exists():
            time.sleep(0.02)
        os.kill(running.running[0].process.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    made = running.run(Fixed([job(tmp_path, "a", sleep=60), job(tmp_path, "b")]))
    assert [outcome.status for outcome in made] == ["FAILED", "COMPLETED"] and made[0].reason == "killed by SIGKILL"


def test_a_job_that_takes_too_long_is_ended(tmp_path):
    made = pool(timeout_sec=1.0).run(Fixed([job(tmp_path, "a", sleep=60), job(tmp_path, "b")]))
    assert [outcome.status for outcome in made] == ["FAILED", "COMPLETED"] and "--timeout 1 s" in made[0].reason


def test_the_time_in_a_queue_is_none_of_a_job(tmp_path, monkeypatch):
    """A job waits for longer than it may run, and another one runs for too long once it has begun."""
    monkeypatch.setattr("rlrun.experiments.submitit_job.command_of", launch)

    class Handle:
        def __init__(self, function, *args):
            def later():
                time.sleep(2.0)
                return function(*args)

            self.future = ThreadPoolExecutor(1).submit(later)
            self.done, self.result = self.future.done, self.future.result

        def cancel(self, check):
            for child in psutil.Process().children():
                child.terminate()

    queue = object.__new__(Queue)
    queue.executor, queue.listing, queue.cwd = SimpleNamespace(submit=Handle), None, str(tmp_path)
    jobs = [job(tmp_path, "a"), job(tmp_path, "b", sleep=60)]
    made = Pool([Place((), None)], Quiet(), 1.0, starter=queue).run(Fixed(jobs))
    assert [outcome.status for outcome in made] == ["COMPLETED", "FAILED"] and "--timeout 1 s" in made[1].reason
    assert (tmp_path / "b" / "cores").exists(), "it was ended because it ran"


def test_slurm_runs_a_job_again_after_it_has_warned_it(tmp_path, monkeypatch):
    """SLURM sends SIGUSR2 to all processes of a job. submitit answers with checkpoint(), while the job is waited for."""

    class Again:
        def __init__(self, function):
            self.function = self.result = function

    monkeypatch.setitem(sys.modules, "submitit.helpers", SimpleNamespace(DelayedSubmission=Again))
    begun = tmp_path / "a" / "cores"
    monkeypatch.setattr("rlrun.experiments.submitit_job.command_of", launch)
    submitted = SubmittedJob(job(tmp_path, "a", sleep=60), str(tmp_path))
    (tmp_path / "logs").mkdir()
    heard = []

    def answer(number, frame):
        heard.append(submitted.checkpoint())
        raise KeyboardInterrupt

    def warn():
        while not begun.exists():
            time.sleep(0.02)
        submitted.process.send_signal(signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, answer)
    threading.Thread(target=warn, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        submitted()
    signal.signal(signal.SIGUSR2, before)
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "INTERRUPTED"
    assert heard[0].function is not submitted and heard[0].function.job == submitted.job
    # It decides when it runs again what is left to do.
    (tmp_path / "a" / "checkpoints" / "000000000100").mkdir(parents=True)
    said = 'import sys; print(sys.argv[1:])'
    monkeypatch.setattr(
        "rlrun.experiments.submitit_job.command_of", lambda one: [sys.executable, "-c", said, *command_of(one)[3:]]
    )
    assert heard[0].result() == 0
    assert submitted.job.log.read_text() == f"{['resume', str(tmp_path / 'a'), '--if-needed']}\n"
    assert SubmittedJob(submitted.job, str(tmp_path / "elsewhere"))() == 1
    assert "has no folder" in submitted.job.log.read_text().splitlines()[-1]


@pytest.mark.parametrize("preempted", [True, False])
def test_a_job_that_makes_room_for_another_asks_slurm_to_run_it_again(tmp_path, monkeypatch, preempted):
    """Most clusters warn it with SIGTERM alone, as scancel does."""
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\necho $* >> {tmp_path}/asked\n"
        f"echo 'JobId=7 Reason=a b PreemptTime={'2026-11-29T15:34:11' if preempted else 'None'} SuspendTime=None'\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr("rlrun.experiments.submitit_job.ENDING_SEC", slept := 0.3)
    monkeypatch.setattr(
        "rlrun.experiments.submitit_job.command_of", lambda one: [sys.executable, "-c", "raise SystemExit(143)"]
    )
    one = job(tmp_path, "a")
    one.log.parent.mkdir()
    began = time.monotonic()
    assert SubmittedJob(one, str(tmp_path))() == 143
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["--oneliner show job 7"] + ["requeue 7"] * preempted
    assert not preempted or time.monotonic() - began > slept


def test_results_are_read_from_a_folder_that_this_session_has_made(tmp_path, monkeypatch):
    """They are pickles, and a sweep's folder may hold others. Jobs of earlier sessions are found all the same."""
    used = []

    class Executor:
        def __init__(self, folder, cluster):
            used.append(folder)

        def update_parameters(self, **options):
            pass

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=Executor))
    for _ in range(2):
        Queue("local", {}, tmp_path, str(tmp_path))
    assert used[0] != used[1] and {folder.parent for folder in used} == {tmp_path / "queue"}
    assert all(folder.stat().st_mode & 0o777 == 0o700 and not any(folder.iterdir()) for folder in used)
    for number, folder in (("7", used[0]), ("8", tmp_path / "queue")):  # that of earlier versions
        (folder / f"{number}_submitted.pkl").touch()
    assert still_queued(tmp_path / "queue", Listing(lambda: {"7": "R", "8": "PD", "9": "R"})) == ["7", "8"]


def test_a_job_that_slurm_no_longer_has_is_lost(tmp_path, monkeypatch):
    """Without sacct's database nothing else says so. A controller that does not answer loses no job."""
    now, there = 1000.0, {"7": "R"}

    def ask():
        if there is None:
            raise OSError("squeue: command not found")
        return there

    monkeypatch.setattr("rlrun.experiments.cluster.time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    listing = Listing(ask)
    handle = SimpleNamespace(job_id="7", paths=SimpleNamespace(result_pickle=tmp_path / "7_0_result.pkl"), result=lambda: 3)
    one = Queued(handle, tmp_path / "log", None, listing)
    for name in ("7", "8"):
        (tmp_path / f"{name}_submitted.pkl").touch()
    assert one.poll() is None and still_queued(tmp_path, listing) == ["7"]
    there, now = None, now + LIST_SEC
    assert one.poll() is None and still_queued(tmp_path, listing) == []
    there, now = {}, now + LIST_SEC
    assert one.poll() is None
    there, now = {"7": "R"}, now + GONE_SEC - 1  # it runs again
    assert one.poll() is None
    there, now = {}, now + LIST_SEC
    assert one.poll() is None
    now += GONE_SEC + 1
    assert one.poll() == LOST
    handle.paths.result_pickle.touch()
    assert one.poll() == 3
    handle.result = lambda: 143  # SLURM ends it: to run it again, or because somebody cancelled it
    for state in ("R", "CG", "PD"):
        assert handle.paths.result_pickle.exists()
        there, now = {"7": state}, now + LIST_SEC
        assert one.poll() is None
    assert not handle.paths.result_pickle.exists()
    handle.paths.result_pickle.touch()
    there, now = {}, now + LIST_SEC
    assert one.poll() == 143
    handle.paths.result_pickle.unlink()
    there = None  # a sweep that ends does not wait for ever for a queue that says nothing

    def asleep(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr("rlrun.experiments.cluster.time", SimpleNamespace(monotonic=lambda: now, sleep=asleep))
    assert one.wait() == LOST


def test_a_signal_lets_running_jobs_save_and_starts_no_more(tmp_path):
    running = pool()

    def interrupt():
        while not (tmp_path / "a" / "cores").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    made = running.run(Fixed([job(tmp_path, "a", sleep=60), job(tmp_path, "b")]))
    assert (
        running.signal == signal.SIGINT
        and [outcome.status for outcome in made] == ["INTERRUPTED"]
        and not (tmp_path / "b").exists()
    )
    assert "Ctrl-C again ends them at once" in running.view.said
    assert signal.getsignal(signal.SIGINT) == before


def test_the_two_signals_of_a_session_that_ends_are_one(tmp_path):
    running = pool()
    running._on_signal(signal.SIGTERM, None)
    running._on_hangup(signal.SIGHUP, None)
    assert running.interrupted and not running.again
    running.signalled_at -= 2.0
    running._on_signal(signal.SIGTERM, None)
    assert running.again


def test_the_second_signal_does_not_wait(tmp_path):
    running = pool()
    deaf = RUN.replace(
        'signal.signal(signal.SIGTERM, lambda *_: end("INTERRUPTED", 143))',
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    )
    running.starter = Here(lambda one: [sys.executable, "-c", deaf.format(folder=str(one.run_dir), sleep=60, code=0)])

    def interrupt():
        while not (tmp_path / "a" / "cores").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(jobs.SAME_SEC + 0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    made = running.run(Fixed([job(tmp_path, "a", sleep=60)]))
    assert time.monotonic() - began < 20 and made[0].reason == "killed by SIGKILL" and running.signal == signal.SIGTERM


@pytest.mark.parametrize("broken", ["the supply", "the view"])
def test_jobs_save_where_the_sweep_itself_fails(tmp_path, broken):
    class Full(Fixed):
        def done(self, outcome):
            raise OSError(28, "No space left on device")

    class Closed(Quiet):
        def show(self, outcomes):
            if (tmp_path / "a" / "summary.json").exists():
                raise OSError(5, "Input/output error")

    running = pool(2, view=Quiet() if broken == "the supply" else Closed())
    jobs = [job(tmp_path, "a", sleep=0.2), job(tmp_path, "b", sleep=60)]
    with pytest.raises(OSError, match=r"No space|Input/output"):
        running.run(Full(jobs) if broken == "the supply" else Fixed(jobs))
    assert json.loads((tmp_path / "b" / "summary.json").read_text())["status"] == "INTERRUPTED"
    assert {one.job.name: one.status for one in running.outcomes}["b"] == "INTERRUPTED"


@pytest.mark.parametrize(("saves", "asked", "status"), [(1, 1, "INTERRUPTED"), (0, 1, "INTERRUPTED"), (1, 0, "INTERRUPTED"), (0, 0, "FAILED")])
def test_a_job_that_its_queue_ends(tmp_path, saves, asked, status):
    """submitit says only that it was cancelled, or that its machine was lost."""

    class Handle:
        code = None if asked else LOST

        def poll(self):
            if saves and not asked and not one.run_dir.exists():
                self.save()
            return self.code

        def save(self):
            one.run_dir.mkdir()
            (one.run_dir / "summary.json").write_text(json.dumps({"status": "INTERRUPTED"}))

        def send_signal(self, number):
            self.code = LOST
            if saves:
                self.save()

    class Ends(Fixed):
        def next(self):
            if not self.jobs and asked:
                os.kill(os.getpid(), signal.SIGINT)
            return super().next()

    one = job(tmp_path, "a")
    made = Pool([Place((), None)] * 2, Quiet(), starter=lambda job, place: Handle()).run(Ends([one]))
    assert made[0].status == status and made[0].lost == (not saves)


def test_the_supply_may_end_a_job_and_hears_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr("rlrun.experiments.jobs.LOOK_SEC", 0.05)
    heard = []

    class Judge(Fixed):
        def look(self, outcome):
            return outcome.job.name == "a" and outcome.row["env_steps"] == 3

        def done(self, outcome):
            heard.append((outcome.job.name, outcome.status))

    pool().run(Judge([job(tmp_path, "a", sleep=60), job(tmp_path, "b")]))
    assert heard == [("a", "PRUNED"), ("b", "COMPLETED")]


def test_places_share_cores_and_gpus():
    assert [place.cores for place in places(2, [0, 1, 2, 3], [])] == [(0, 1), (2, 3)]
    assert [place.cores for place in places(3, [0, 1], [])] == [(0,), (0,), (1,)]
    assert [place.cores for place in places(4, [0, 1], [])] == [(0,), (0,), (1,), (1,)], "all have as much of a core"
    shared = places(3, [0, 1, 2], ["0", "1"])
    assert [(place.gpu, place.beside) for place in shared] == [("0", 2), ("1", 1), ("0", 2)]
    assert (
        len(places(None, list(range(16)), ["0"])) == 1
        and len(places(None, list(range(16)), [])) == 8
        and len(places(None, [0], [])) == 1
    )
    assert [core for place in places(5, list(range(16)), []) for core in place.cores] == list(range(16))
    with pytest.raises(UserError, match="at least 1"):
        places(0)


@pytest.mark.parametrize("between", [False, True])
def test_a_job_ends_whose_parent_had_ended_before_it_looked(between):
    """The parent is a sweep, or a worker of Ray, which has a process between it and the job."""
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    command = [sys.executable, "-m", "rlrun.experiments.job", "train", "--help"]
    if between:
        command = [sys.executable, job_parent.__file__, sys.executable, "-c", "import time; time.sleep(60)"]
    ended = subprocess.run(command, env={**os.environ, "RLRUN_PARENT": str(gone.pid)}, capture_output=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM if between else 143, b"")


def test_every_starter_names_itself_to_its_jobs(tmp_path, monkeypatch):
    """And a job does not hand the name on to those that it starts."""
    said = "import os; print(os.environ.get('RLRUN_PARENT'))"
    Pool([Place(tuple(os.sched_getaffinity(0)), None)], Quiet(), starter=Here(lambda one: [sys.executable, "-c", said])).run(
        Fixed([one := job(tmp_path, "a")])
    )
    handed = f"from rlrun.experiments.job import end_with_parent; end_with_parent(); {said}"
    for code in (said, handed):
        monkeypatch.setattr("rlrun.experiments.submitit_job.command_of", lambda one: [sys.executable, "-c", code])  # noqa: B023
        assert SubmittedJob(one, os.getcwd())() == 0
    assert one.log.read_text().split() == [str(os.getpid())] * 2 + ["None"]


def test_under_a_quota_jobs_share_all_cores_and_know_their_number(tmp_path, monkeypatch):
    """As in containers with --cpus=3 on a machine of 64 cores, which would otherwise all crowd the same three."""
    own = sorted(os.sched_getaffinity(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
        patch.setattr("rlrun.machine.machine.cores_allowed", lambda: 3.0)
        assert [place.share for place in places(2, devices=[])] == [1, 2] and len(places(None, devices=[])) == 1
        assert [place.share for place in places(4, devices=["0"])] == [1] * 4, "with more jobs than cores, some share one"
        assert all(place.cores == tuple(range(64)) for place in places(4, devices=[]))
        patch.setattr("rlrun.machine.machine.cores_allowed", lambda: None)
        assert {(len(place.cores), place.share) for place in places(2, devices=[])} == {(32, None)}
    said = "import os; from rlrun.machine.machine import cores; print(cores(), sorted(os.sched_getaffinity(0)))"
    starter = Here(lambda one: [sys.executable, "-c", said])
    Pool([Place(tuple(own), None, 1)], Quiet(), starter=starter).run(Fixed([one := job(tmp_path, "a")]))
    assert one.log.read_text() == f"1 {own}\n"


def test_a_run_with_a_checkpoint_goes_on(tmp_path):
    one = TrainingJob(name="a", words=("algo=pg", "seed=1"), run_dir=tmp_path / "it's", log=tmp_path / "log")
    assert command_of(one)[3:] == ["train", "algo=pg", "seed=1", f"run_dir={quoted(str(one.run_dir))}"]
    (one.run_dir / "checkpoints" / "000000000100").mkdir(parents=True)
    assert checkpoints(one.run_dir) == ["000000000100"] and command_of(one)[3:] == ["resume", str(one.run_dir), "--if-needed"]


def test_what_is_quoted_reaches_hydra_whole():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for text in ("/tmp/a b", "it's", "a=b,c", "x[1]{2}", "back\\slash", "end\\"):
        assert OverridesParser.create().parse_override(f"run_dir={quoted(text)}").value() == text


@pytest.mark.parametrize("size", [900, 20_000, 300_000])
def test_the_last_row_of_a_torn_file(size, tmp_path):
    """Whatever the size of rows is: those of hundreds of agents take more than 16 KiB."""
    assert last_row(tmp_path) is None
    (tmp_path / "progress.jsonl").write_text('{"env_steps": 10')
    assert last_row(tmp_path) is None
    rows = [json.dumps({"env_steps": number, "filler": "x" * size}) for number in range(100)]
    (tmp_path / "progress.jsonl").write_text("\n".join(rows) + '\n{"env_steps": 10')
    assert last_row(tmp_path)["env_steps"] == 99


def test_a_run_that_nobody_ended_has_failed(tmp_path):
    outcome = Outcome(job=job(tmp_path, "a"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "summary.json").write_text(json.dumps({"status": "RUNNING", "seed": 1}))
    settle(outcome, None)
    assert outcome.status == "FAILED" and outcome.return_mean is None
    (tmp_path / "a" / "summary.json").write_text("torn {")
    settle(outcome, None)
    assert outcome.status == "FAILED"


def test_a_run_that_is_resumed_before_its_sweep_looks_has_not_failed(tmp_path):
    from rlrun.runtime.rundir import RunDir

    outcome = Outcome(job=job(tmp_path, "a"))
    holding = RunDir.create(tmp_path / "a")
    holding.summary(status="RUNNING", algo="pg", env="CartPole-v1", seed=1)
    settle(outcome, 0)
    assert (outcome.status, outcome.reason) == ("COMPLETED", "another process has resumed the run since")
    holding.release()
    settle(outcome, 0)
    assert outcome.status == "FAILED"


def test_a_job_that_begins_anew_has_no_row_of_the_run_before(tmp_path):
    running, one = pool(), job(tmp_path, "a")
    running.outcomes = [Outcome(job=one, row={"env_steps": 1468})]
    made = running.run(Fixed([one]))
    assert [outcome.row["env_steps"] for outcome in made] == [3]
    running.outcomes, running.starter = [Outcome(job=one, row={"env_steps": 1468})], Here(
        lambda one: [sys.executable, "-c", "raise SystemExit(2)"]
    )
    (one.run_dir / "progress.jsonl").unlink()
    assert [outcome.row for outcome in running.run(Fixed([one]))] == [{}]


def test_a_job_that_goes_on_is_told_again_every_five_minutes(tmp_path, capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("rlrun.experiments.view.monotonic", lambda: now)
    view, one = JobLines(1), Outcome(job=job(tmp_path, "a"), status="RUNNING")
    for now in (0.0, 200.0, 301.0, 400.0, 602.0):
        one.row = {"env_steps": int(now)}
        view.show([one])
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]] == ["301", "602"]


def test_lines_say_every_change_once(tmp_path, capsys):
    view = JobLines(3)
    one, two = Outcome(job=job(tmp_path, "a"), status="RUNNING"), Outcome(job=job(tmp_path, "b"), status="RUNNING")
    view.show([one])
    view.show([one, two])
    one.status, one.summary = "COMPLETED", {"env_steps": 1234, "return_mean": 5.0, "wall_sec": 61.0}
    view.show([one, two])
    two.status, two.reason = "FAILED", "it broke"
    view.close([one, two])
    said = capsys.readouterr().out
    assert (
        said.count("RUNNING") == 2
        and "1,234 env steps  return 5.00  1m01s" in said
        and "it broke" in said
        and "1 completed, 1 failed, 1 waiting" in said
    )
    assert counts([], 3, 1) == "2 waiting, 1 left out"
    assert text_table([["1", "22"], ["b", "3"]], ["x", "n"]) == "x   n\n1  22\nb   3"


def test_the_summary_of_an_earlier_session_is_no_outcome_of_this_one(tmp_path):
    """A job that fails before it writes a summary has failed, whatever an older summary says."""
    one = job(tmp_path, "a")
    one.run_dir.mkdir()
    for status in ("COMPLETED", "INTERRUPTED"):
        (one.run_dir / "summary.json").write_text(
            json.dumps({"status": status, "reason": "20480 env steps", "return_mean": 33.0})
        )
        starter = Here(lambda one: [sys.executable, "-c", "import sys; print('rlrun: it will not start'); sys.exit(2)"])
        made = Pool([Place((sorted(os.sched_getaffinity(0))[0],), None)], Quiet(), starter=starter).run(Fixed([one]))
        assert (made[0].status, made[0].reason, made[0].return_mean) == ("FAILED", "it will not start", None)


def test_a_signal_before_a_job_listens_is_an_interruption(tmp_path):
    running = pool()
    # SIGTERM ends it.
    running.starter = Here(lambda one: [sys.executable, "-c", "import time; open('/dev/null'); time.sleep(60)"])

    def interrupt():
        while not running.running:
            time.sleep(0.02)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    made = running.run(Fixed([job(tmp_path, "a")]))
    assert [outcome.status for outcome in made] == ["INTERRUPTED"] and made[0].reason == "killed by SIGTERM"


def test_a_run_that_still_saves_is_waited_for_while_others_run(tmp_path, capsys):
    from rlrun.core.run_lock import held
    from rlrun.runtime.rundir import RunDir

    one, two = job(tmp_path, "a"), job(tmp_path, "b")
    holding = RunDir.create(one.run_dir)
    holding.summary(status="RUNNING", algo="pg", env="CartPole-v1", seed=1)
    (one.run_dir / "old").touch()
    assert held(one.run_dir)

    class Releases(Fixed):
        def done(self, outcome):
            if outcome.job is two:
                assert held(one.run_dir), "b runs while a is waited for"
                threading.Timer(0.6, holding.release).start()

    began = time.monotonic()
    made = pool().run(Releases([one, two]))
    assert {outcome.job.name: outcome.status for outcome in made} == {"a": "COMPLETED", "b": "COMPLETED"}
    assert time.monotonic() - began > 0.5 and not (one.run_dir / "old").exists(), "it begins anew"
    assert capsys.readouterr().out.count(f"a waits: {one.run_dir} is in use by process {os.getpid()}") == 1
    assert not held(tmp_path)


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_directory_that_stays_in_use_costs_no_other_job(tmp_path, monkeypatch, interrupted):
    from rlrun.runtime.rundir import RunDir

    monkeypatch.setattr("rlrun.experiments.jobs.GRACE_SEC", 60.0 if interrupted else 0.5)
    jobs = [job(tmp_path, name) for name in "abc"]
    holding, heard = RunDir.create(jobs[0].run_dir), []

    class Hears(Fixed):
        def done(self, outcome):
            heard.append((outcome.job.name, outcome.status, outcome.lost))
            if interrupted and outcome.job.name == "c":
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()

    running, began = pool(), time.monotonic()
    try:
        made = running.run(Hears(jobs))
    finally:
        holding.release()
    given_up = [] if interrupted else [("a", "FAILED", True)]
    assert sorted(heard) == [*given_up, ("b", "COMPLETED", False), ("c", "COMPLETED", False)]
    assert time.monotonic() - began < 30 and running.interrupted == interrupted
    reasons = " ".join(one.reason for one in made)
    assert interrupted or f"{jobs[0].run_dir} is still in use by process {os.getpid()}" in reasons


def test_only_what_a_run_has_made_is_cleared(tmp_path):
    from rlrun.experiments.jobs import clear

    one = job(tmp_path, "000")
    one.run_dir.mkdir()
    for name, text in (("notes.txt", "precious"), ("config.yaml", "mine: 1"), ("summary.json", '{"status": "done"}')):
        (one.run_dir / name).write_text(text)
        clear(one)
        assert (one.run_dir / "notes.txt").read_text() == "precious"
    groups = "".join(f"{group}: {{name: x}}\n" for group in ("algo", "env", "runner", "model", "resources"))
    (one.run_dir / "config.yaml").write_text(f"{groups}seed: 1\n")
    clear(one)
    assert not one.run_dir.exists()
