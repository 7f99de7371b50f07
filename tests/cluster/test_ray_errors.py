"""What Ray raises, as rlrun's own errors. No Ray is started."""

import os
import stat
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

from ray import exceptions

from rlrun.cluster import ray_engine
from rlrun.cluster.engine import HostLost
from rlrun.core.errors import RunFailed


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


def test_a_token_is_made_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "deep" / "token"))
    ray_engine.make_token()
    made = (tmp_path / "deep" / "token").read_text()
    ray_engine.make_token()
    assert len(made) == 64 and (tmp_path / "deep" / "token").read_text() == made
    assert stat.S_IMODE(os.stat(tmp_path / "deep" / "token").st_mode) == 0o600
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["token"]
