"""Processes that start too slowly are named, and new processes are told what the first one knows."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import forkserver

import numpy as np
import psutil
import pytest
import torch
from conftest import compose

from rlrun.config.run import type_config
from rlrun.core.errors import Notice, ProcessLost, RunFailed, UserError
from rlrun.dataflow.workers import FORKS, READY, START_SEC, Workers, carrying, cool, start_sec, start_within, warm


def ready(pipe, *names):
    pipe.send(READY)
    pipe.recv()  # start_all() reads all that is there, and would lose an answer that nobody has asked for
    pipe.send([os.environ.get(name) for name in names])
    pipe.recv()


def own(pipe):
    pipe.send(READY)
    pipe.recv()
    imported = "rlrun.dataflow.preload" in sys.modules and "rlrun.samplers.collector" in sys.modules
    pipe.send((imported and os.environ.get("RLRUN_TEST_LATE"), os.getppid(), np.random.rand(), torch.rand(()).item()))
    pipe.recv()


def environment(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}


def never_ready(pipe):
    time.sleep(60)


def deaf(pipe):
    """Does not hear that its pipe is closed."""
    pipe.send(READY)
    time.sleep(60)


def hung_up(pipe, error):
    pipe.send(READY)
    pipe.recv()
    raise error("the simulator hung up: licence expired")


def last_words(pipe, how):
    """Says two words, and ends before anybody has read them."""
    pipe.send(READY)
    pipe.recv()
    for word in ("one", "two"):
        pipe.send(word)
    if how == "raise":
        raise RuntimeError("told to fail")
    if how == "inside":  # a third word, which is longer than what the pipe holds, so that sending it waits for a reader
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        pipe.send(bytes(4_000_000))
    os.kill(os.getpid(), signal.SIGKILL)


def set_variable(name):
    os.environ[name] = "known"


@pytest.fixture(autouse=True)
def as_before():
    yield
    start_within(START_SEC)


def test_a_process_that_does_not_start_is_named():
    start_within(0.3)
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"^sampler-0 did not start within 0\.3 s \(nor did 1 other\).*start_timeout_sec"):
        Workers().start_all(never_ready, {"sampler-0": (), "sampler-1": ()})
    assert time.monotonic() - began < 30


def slow(pipe, seconds):
    if not pipe.poll(seconds):
        pipe.send(READY)
        pipe.recv()


def test_processes_that_start_are_counted_by_whoever_does_not_wait_for_all():
    """Each has its time after the one before, whether or not somebody waited meanwhile."""
    start_within(4.0)
    workers = Workers()
    try:
        workers.start_all(slow, {"one": (0.0,), "two": (2.5,), "three": (5.0,)}, wait=False)
        found = [workers.until_ready(0.1)]
        while found[-1]:
            time.sleep(0.1)
            found.append(workers.until_ready(0.1))
        assert sorted(set(found)) == [0, 1, 2, 3][: found[0] + 1] and found == sorted(found, reverse=True)
        start_within(0.2)
        workers.start_all(slow, {"late": (0.4,), "never": (60.0,)}, wait=False)
        time.sleep(3.0)
        assert workers.until_ready(0.0) == 1, "one that was ready is not late because nobody looked"
        with pytest.raises(RunFailed, match=r"never did not start within 0\.2 s:"):
            workers.until_ready(5.0)
    finally:
        workers.stop()


@pytest.mark.parametrize(
    ("how", "why"),
    [("raise", "RuntimeError: told to fail"), ("kill", "was killed by SIGKILL"), ("inside", "was killed by SIGKILL")],
)
def test_what_a_process_said_before_it_died_is_heard(how, why):
    workers = Workers()
    try:
        (worker,) = workers.start_all(last_words, {"sampler-0": (how,)})
        workers.send(worker, "speak")
        worker.process.join(60)
        messages, lost = workers.receive_from_survivors(30.0)
        assert [message for _, message in messages] == ["one", "two"]
        assert [one for one, _ in lost] == [worker] and why in lost[0][1]
    finally:
        workers.stop()


def test_processes_that_are_ended_in_haste_do_not_live_on():
    """Whoever presses Ctrl-C while they are given time to end wants to wait no longer."""

    def ctrl_c(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ctrl_c)
    workers = Workers()
    try:
        pids = [worker.process.pid for worker in workers.start_all(deaf, {"one": (), "two": ()})]
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            workers.stop(grace_sec=30.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 10 and not any(map(psutil.pid_exists, pids)) and not workers.members
    workers.stop()


@pytest.mark.skipif(not FORKS, reason="the fork server tells how a process ended")
@pytest.mark.parametrize("buried", [True, False])
def test_a_process_that_does_not_end_when_it_is_killed_is_left_alone(monkeypatch, buried):
    """A fork server that is stopped cannot tell that its process has ended, which looks the same."""
    monkeypatch.setattr("rlrun.dataflow.workers.KILLED_SEC", 0.2)
    workers = Workers()
    try:
        workers.start_all(deaf, {"stuck": ()})
        server, (worker,) = forkserver._forkserver._forkserver_pid, workers.members
        os.kill(server, signal.SIGSTOP)
        try:
            with pytest.warns(Notice, match=r"stuck \(process \d+\) was killed and has not ended for 0.2 s"):
                if buried:
                    workers.bury(worker)
                else:
                    workers.stop(0.1)
        finally:
            os.kill(server, signal.SIGCONT)
        assert worker.process not in multiprocessing.active_children() and not workers.members
    finally:
        workers.stop()


def test_new_processes_call_what_is_carried():
    workers = Workers()
    try:
        with carrying([functools.partial(set_variable, "RLRUN_TEST_CARRIED")]):
            (worker,) = workers.start_all(ready, {"one": ("RLRUN_TEST_CARRIED",)})
        workers.send(worker, "what do you know?")
        assert worker.pipe.poll(60)
        assert worker.pipe.recv() == ["known"] and "RLRUN_TEST_CARRIED" not in os.environ
    finally:
        workers.stop()


@pytest.mark.skipif(not FORKS, reason="workers are spawned here")
def test_forked_workers_are_processes_of_their_own(monkeypatch):
    """They know today's environment and have random numbers of their own; when the fork server dies, so do they, and
    others can be started."""
    warm()
    monkeypatch.setenv("RLRUN_TEST_LATE", "known")  # after the server has begun
    parents, numbers, others = set(), set(), set()
    for _ in range(2):
        workers = Workers()
        try:
            for worker in workers.start_all(own, {"one": (), "two": ()}):
                workers.send(worker, "what do you have?")
                assert worker.pipe.poll(60)
                variable, parent, number, other = worker.pipe.recv()
                assert variable == "known"
                parents.add(parent)
                numbers.add(number)
                others.add(other)
            assert parents != {os.getpid()}
            os.kill(parent, signal.SIGKILL)
            os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)  # the next start asks whether it is still there
            with pytest.raises(ProcessLost, match=r"(one|two) (was killed by|exited with|closed its pipe)"):
                workers.receive(30)
        finally:
            workers.stop()
    assert len(parents) == 2 and len(numbers) == len(others) == 4


@pytest.mark.skipif(not FORKS, reason="workers are spawned here")
def test_a_command_that_starts_no_worker_leaves_nothing(tmp_path):
    """Its output goes to files, because whoever reads a pipe would wait until a fork server that stays has imported."""
    text = "import sys; sys.argv = ['rlrun', 'train', 'algo=ppo', 'env=CartPole-v1', 'algo.lrr=1']; import rlrun.cli as c; c.main()"
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        environ = {**os.environ, "RLRUN_T": str(tmp_path)}
        code = subprocess.run([sys.executable, "-c", text], stdout=out, stderr=err, env=environ).returncode
    said = (tmp_path / "err").read_text()
    assert code == 2 and "algo.lr" in said and "Traceback" not in said
    found = [one for one in psutil.process_iter() if environment(one).get("RLRUN_T") == str(tmp_path)]
    psutil.wait_procs(found, timeout=0.2)
    left = [one for one in found if environment(one)]  # a process that has ended and was not reaped has none
    assert not left

    warm()
    cool()
    assert forkserver._forkserver._forkserver_pid is None, "nothing had come from it"
    workers = Workers()
    try:
        workers.start_all(ready, {"one": ()})
        cool()
        assert workers.members[0].process.is_alive(), "a server that is used stays"
    finally:
        workers.stop()


def test_the_option_is_the_time_that_processes_have(tmp_path):
    from rlrun.commands.train import start
    from rlrun.config.saved import _as_before

    words = ("algo=pg", "env=CartPole-v1", "algo.batch_size=20", "algo.fragment_length=5", "logger=[]", "env_steps=20")
    values = compose(*words, "resources=debug", "resources.start_timeout_sec=7.5", f"run_dir={tmp_path / 'run'}")
    assert start(values, {}) == 0 and start_sec() == 7.5
    with pytest.raises(UserError, match=r"resources\.start_timeout_sec must be positive"):
        type_config(compose(*words, "resources.start_timeout_sec=0"))
    del values["resources"]["start_timeout_sec"]
    _as_before(values)
    assert values["resources"]["start_timeout_sec"] == START_SEC, "runs of earlier versions had as long"


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, BrokenPipeError])
def test_a_connection_of_the_users_code_that_breaks_is_an_error_like_another(error):
    workers = Workers()
    try:
        (worker,) = workers.start_all(hung_up, {"sampler-0": (error,)})
        worker.pipe.send("go on")
        with pytest.raises(RunFailed, match=f"sampler-0 failed: {error.__name__}: the simulator hung up: licence expired"):
            workers.receive(60.0)
    finally:
        workers.stop()


LATE = """
import rlrun
policy = rlrun.train({"name": "pg", "fragment_length": 5, "batch_size": 10}, "CartPole-v1", env_steps=20,
    run_dir=RUN, logger=[], model={"hidden": (8,)}, quiet=True, resources={"inference": "local", "num_samplers": 1})
print(policy.summary["status"], __file__)
"""


@pytest.mark.skipif(not FORKS, reason="there is no fork server")
def test_processes_start_for_a_program_on_standard_input_whose_temporary_folder_has_a_long_path(tmp_path):
    """New processes could not import <stdin>, nor could the system hold a socket below such a path."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    done = subprocess.run(
        [sys.executable, "-"], input=f"RUN = {str(tmp_path / 'run')!r}\n{LATE}", capture_output=True, text=True,
        timeout=120, env=os.environ | {"TMPDIR": str(long)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == ["COMPLETED", "<stdin>"], done.stderr


def test_without_a_folder_for_sockets_nothing_starts(monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/long" * 30)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="set TMPDIR to one"):
        Workers().start("sampler-0", ready, ())
