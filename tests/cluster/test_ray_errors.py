"""What Ray raises, as rlrun's own errors. No Ray is started."""

import os
import signal
import socket
import stat
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

from ray import exceptions

from rlrun.cluster import ray_engine
from rlrun.cluster.engine import HostLost
from rlrun.core.errors import ProcessLost, RunFailed, UserError
from rlrun.machine.nodes import Node


def got(error):
    def raises(answer, timeout):
        raise error

    engine = object.__new__(ray_engine.RayEngine)
    engine.ray = SimpleNamespace(exceptions=exceptions, get=raises)
    with pytest.raises(RunFailed) as caught:
        engine.get(None)
    return caught.value


def test_a_host_whose_machine_died_before_it_could_start_is_lost():
    lost = got(exceptions.ActorUnschedulableError("The node specified via NodeAffinitySchedulingStrategy doesn't exist"))
    assert isinstance(lost, HostLost) and lost.machine and str(lost) == "its machine has died"
    assert isinstance(got(exceptions.GetTimeoutError("timed out")), HostLost)


def test_what_a_machine_lacks_is_said_and_not_tried_again():
    error = exceptions.ActorDiedError()
    error._actor_init_failed, error.error_msg = True, "The actor died ...\nModuleNotFoundError: No module named 'rlrun'"
    said = got(error)
    assert not isinstance(said, HostLost) and str(said) == "ModuleNotFoundError: No module named 'rlrun'"
    assert str(got(exceptions.LocalRayletDiedError())).startswith("Ray failed: ")


def test_signals_are_left_alone_in_other_threads():
    problems = []

    def enter():
        try:
            with ray_engine._signals_kept():
                pass
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not problems


def test_a_signal_while_ray_starts_finds_our_answer():
    """Ray replaces the handler of SIGTERM by one that ends the process with code 1."""
    from ray._private import utils

    heard, before = [], signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
    try:
        with ray_engine._signals_kept():
            utils.set_sigterm_handler(lambda *_: heard.append(False))  # as ray.init() does
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [True, True]
        utils.set_sigterm_handler(signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "Ray has its function back"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_address_where_nobody_listens_is_said_at_once():
    engine = object.__new__(ray_engine.RayEngine)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        engine.cfg, engine.option = SimpleNamespace(address=address), "resources.ray."
        engine._check_reached()
    began = time.monotonic()
    with pytest.raises(UserError, match=f"resources.ray.address={address}: no Ray cluster could be joined there: .*refused"):
        engine._wants_token()
    assert time.monotonic() - began < 2.0


def test_a_ray_that_does_not_start_is_a_sentence_and_leaves_nothing(monkeypatch, tmp_path):
    import ray

    def refuses(**settings):
        raise ValueError("Attempting to cap object store memory usage\nat too little")

    monkeypatch.setattr(ray, "init", refuses)
    monkeypatch.setattr(os, "environ", os.environ | {"HOME": str(tmp_path)})  # it sets what Ray reads
    made = []
    monkeypatch.setattr(ray_engine.tempfile, "mkdtemp", lambda make=ray_engine.tempfile.mkdtemp, **how: made.append(make(**how)) or made[-1])
    cfg = SimpleNamespace(address=None, allow_open=False, simulate=0, store_mb=100)
    with pytest.raises(UserError) as caught:
        ray_engine.RayEngine(cfg, [Node("node-0", 1)])
    assert str(caught.value) == "Ray could not be started on this machine: Attempting to cap object store memory usage"
    assert len(made) == 1 and not os.path.exists(made[0])


def test_a_lost_head_ends_the_run_before_ray_does(monkeypatch):
    """Ray's calls would wait for it, and Ray would then end the process without a checkpoint."""
    monkeypatch.setattr(ray_engine, "HEAD_LOOK_SEC", 0.05)
    monkeypatch.setattr(ray_engine, "HEAD_GONE_SEC", 0.5)
    engine = object.__new__(ray_engine.RayEngine)
    engine.looked = engine.answered = time.monotonic()
    engine.headless = False
    engine.ray = SimpleNamespace(wait=lambda answers, num_returns, timeout: ([], answers))
    with socket.create_server(("127.0.0.1", 0)) as server:
        engine.head = server.getsockname()
        for _ in range(20):
            engine.wait([1], 0.0)
            time.sleep(0.05)
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"the head of the cluster at 127\.0\.0\.1:\d+ does not answer any more \(Connection refused\)") as caught:
        while time.monotonic() < began + 5.0:
            engine.wait([1], 0.0)
            time.sleep(0.02)
    assert not isinstance(caught.value, ProcessLost), "a run without a head does not begin again"
    assert 0.4 < time.monotonic() - began < 2.0
    engine.looked -= 60.0  # a long update: nobody has looked, so nobody was silent
    engine.wait([1], 0.0)


def test_a_token_is_made_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "deep" / "token"))
    ray_engine.make_token()
    made = (tmp_path / "deep" / "token").read_text()
    ray_engine.make_token()
    assert len(made) == 64 and (tmp_path / "deep" / "token").read_text() == made
    assert stat.S_IMODE(os.stat(tmp_path / "deep" / "token").st_mode) == 0o600
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["token"]
