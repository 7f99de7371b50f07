"""The watchdog of a process that steps environments itself."""

import ctypes
import signal
import subprocess
import sys
import threading
import time

import pytest

from rlrun.core import awake, pulse, watchdog

CHILD = """
import time
from rlrun.core import awake, pulse, watchdog

watchdog.LOOK_SEC = awake.LOOK_SEC = 0.05
awake.STOPPED_SEC = 0.5
dog = watchdog.Watchdog(pulse.Limits(step_sec=1.5), lambda said: print("stuck", said, flush=True))
with pulse.doing(pulse.STEP):
    print("stepping", flush=True)
    try:
        for _ in range(12):
            time.sleep(0.05)
        dog.pulse.stepped()
        dog.pulse.was_reset()
        longest = max(dog.pulse.row[pulse.LONGEST_STEP], dog.pulse.row[pulse.LONGEST_RESET])
        print("goes on", 0.5e9 < longest < 2e9, flush=True)
        time.sleep(20)
    except watchdog.Hang:
        print("hangs", flush=True)
dog.close()
"""


def test_a_process_that_was_stopped_does_not_hang():
    """As by Ctrl-Z. Its own seconds count all the same, before and after."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "stepping\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        child.send_signal(signal.SIGCONT)
        assert child.communicate(timeout=30)[0].splitlines() == ["goes on True", "hangs"]
    finally:
        child.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say how often a thread wakes up")
def test_a_step_that_keeps_pythons_lock_counts_for_as_long_as_it_took(monkeypatch):
    """Its process was not stopped, although no other thread of it could look at the clock."""
    monkeypatch.setattr(awake, "LOOK_SEC", 0.05)
    monkeypatch.setattr(awake, "STOPPED_SEC", 0.5)
    monkeypatch.setattr(awake, "_stops", None)  # a thread that looks so often begins
    one = pulse.Pulses(1).of(0)
    pulse.watch(one)
    try:
        one.beat(pulse.STEP)
        ctypes.PyDLL(None).usleep(1_500_000)  # a PyDLL keeps the lock
        one.stepped()
        assert 1.5e9 <= one.row[pulse.LONGEST_STEP] < 10e9
    finally:
        pulse.watch(None)


def test_what_hangs_in_another_thread_is_interrupted_between_two_lines_of_python(monkeypatch):
    """As in rlrun.train in a thread. One call that lasts longer than the grace ends the program there."""
    monkeypatch.setattr(watchdog, "LOOK_SEC", 0.05)
    monkeypatch.setattr(watchdog, "GRACE_SEC", 2.0)
    stuck, raised = [], []

    def steps(call_sec):
        dog = watchdog.Watchdog(pulse.Limits(step_sec=0.2), stuck.append)
        end = time.monotonic() + 10
        try:
            with pulse.doing(pulse.STEP):
                while time.monotonic() < end:
                    time.sleep(call_sec)
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
        dog.close()

    for call_sec, gives_up in ((0.02, 0), (5.0, 1)):
        thread = threading.Thread(target=steps, args=(call_sec,))
        thread.start()
        thread.join(30)
        assert len(stuck) == gives_up, stuck
        assert len(raised) == gives_up + 1 and raised[-1].startswith("Hang: hangs: it has been in step() for ")
    assert stuck[0].endswith("env.step_timeout_sec allows 0.2, and it cannot be interrupted")


def test_every_environment_has_the_time_of_a_step():
    """A process may step several, one after another."""
    one = pulse.Pulses(1).of(0)
    pulse.watch(one)
    try:
        with pulse.doing(pulse.STEP, longest=True):
            for _ in range(4):
                pulse.next_step()
                time.sleep(0.2)
                assert one.hang(pulse.Limits(step_sec=0.5)) is None
        assert 0.19e9 < one.row[pulse.LONGEST_STEP] < 0.5e9 and one.row[pulse.ACTIVITY] != pulse.STEP
        pulse.next_step()
        assert one.row[pulse.ACTIVITY] != pulse.STEP, "outside of a step it says nothing"
    finally:
        pulse.watch(None)


def test_what_was_interrupted_is_no_measure_of_what_a_step_may_take(monkeypatch):
    one = pulse.Pulses(1).of(0)
    for took, longest in ((3.0, 3.0), (2.0, 3.0), (61.0, 3.0), (4.0, 4.0), (79.0, 79.0)):  # 60 s, or 20 times the longest
        monkeypatch.setattr(pulse.Pulse, "silent_sec", lambda self, took=took: took)
        one.beat(pulse.RESET)
        one.was_reset()
        one.row[pulse.SINCE] -= int(took * 1e9)
        one.stepped()
        assert one.row[pulse.LONGEST_STEP] == longest * 1e9
    assert one.row[pulse.LONGEST_RESET] == 79e9, "a reset may take 300 s"
