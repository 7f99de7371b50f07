"""The lock of a run directory is held by one process at a time, whoever else releases it or asks about it meanwhile."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.cli import _dispatch
from rlrun.config.types import load_yaml
from rlrun.core.errors import UserError
from rlrun.core.run_lock import Held, RunLock, held, holder
from rlrun.core.saved_files import read_summary
from rlrun.runtime.rundir import RunDir

ROOT = Path(__file__).parents[2]
# Takes and releases the lock again and again. While it holds the lock it makes a file that must not be there already,
# so that two holders at the same time are counted.
PROGRAM = """
import os, sys, time
from pathlib import Path
from rlrun.core.run_lock import Held, RunLock, held
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
tries = twice = got = 0
end = time.monotonic() + seconds
while time.monotonic() < end:
    tries += 1
    lock = RunLock(folder)
    held(folder)
    try:
        lock.acquire(patience_sec=0.0)
    except Held:
        continue
    got += 1
    try:
        os.close(os.open(folder / "mine", os.O_CREAT | os.O_EXCL))
        os.sched_yield()
        os.unlink(folder / "mine")
    except FileExistsError:
        twice += 1
    lock.release()
print(tries, got, twice)
"""


def stress(folder: Path, processes: int, seconds: float) -> tuple[int, int, int]:
    """(tries, times that the lock was got, times that two processes had it)."""
    words, env = [sys.executable, "-c", PROGRAM, str(folder), str(seconds)], {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) for _ in range(processes)]
    told = [tuple(map(int, one.communicate(timeout=300)[0].split())) for one in started]
    assert all(one.returncode == 0 for one in started)
    return tuple(map(sum, zip(*told, strict=True)))


def test_two_processes_never_hold_it(tmp_path):
    tries, got, twice = stress(tmp_path, 4, 2.0)
    assert tries > 500 and got > 50 and twice == 0, (tries, got, twice)
    assert not (tmp_path / "run.lock").exists()


@pytest.mark.slow
def test_two_processes_never_hold_it_in_many_tries(tmp_path):
    tries, got, twice = stress(tmp_path, 6, 20.0)
    assert tries > 6000 and got > 1000 and twice == 0, (tries, got, twice)


def test_a_file_that_was_removed_does_not_count(tmp_path):
    """What happens between opening the file and locking it: its holder removes it, and another one makes a new one."""
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    (tmp_path / "run.lock").unlink()  # as by hand
    second.acquire()
    first.release()  # must leave the second one's file alone
    assert held(tmp_path) and (tmp_path / "run.lock").exists()
    with pytest.raises(Held, match=r"process \d+ on "):
        RunLock(tmp_path).acquire(patience_sec=0.05)
    second.release()
    assert not held(tmp_path)


def test_asking_does_not_turn_a_starting_run_away(tmp_path):
    """Someone asks all the time whether the directory is in use, which locks the file for a moment."""
    import threading

    over = threading.Event()
    (tmp_path / "run.lock").touch()

    def ask():
        while not over.is_set():
            held(tmp_path)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(30):
            lock = RunLock(tmp_path)
            lock.acquire()
            lock.release()
            (tmp_path / "run.lock").touch()
    finally:
        over.set()
        asking.join()


def test_a_run_directory_in_use_says_by_whom(tmp_path):
    one, two = RunDir(tmp_path), RunDir(tmp_path)
    one.acquire()
    began = time.monotonic()
    with pytest.raises(UserError, match=r"is in use by process \d+ on "):
        two.acquire()
    assert time.monotonic() - began < 5
    assert "process" in holder(tmp_path)
    one.release()
    two.acquire()
    two.release()


def test_two_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    """The second one begins when the first has passed its checks."""
    from rlrun.runtime import preflight, rundir

    class Standing(rundir.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    words = ["algo=pg", "env=CartPole-v1", "env_steps=50", "resources=debug", "logger=[]", f"runs_root={tmp_path}"]
    checks = preflight.preflight

    def second_begins(*planned):
        monkeypatch.setattr(preflight, "preflight", checks)
        assert _dispatch(["train", *words]) == 0
        return checks(*planned)

    monkeypatch.setattr(rundir, "datetime", Standing)
    monkeypatch.setattr(preflight, "preflight", second_begins)
    assert _dispatch(["train", *words]) == 0
    name = "20260102-030405-seed0"
    runs = tmp_path / "pg" / "CartPole-v1"
    assert sorted(path.name for path in runs.iterdir()) == [name, f"{name}-2"]
    for path in runs.iterdir():
        assert read_summary(path / "summary.json")["status"] == "COMPLETED"
        assert load_yaml(path / "config.yaml")["run_dir"] == str(path)


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    """As Lustre is without -o flock. Nobody holds a lock there."""

    def flock(file, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(UserError, match=r"cannot be used: its file system has no locks \(flock: Function not implemented\)"):
        RunDir.create(tmp_path / "run")
    (tmp_path / "run.lock").write_text("")
    assert not held(tmp_path)
