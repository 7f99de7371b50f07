"""The watchdog of a process that steps environments itself."""

import signal
import subprocess
import sys
import time

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
