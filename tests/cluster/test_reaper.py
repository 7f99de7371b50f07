"""What a killed process has started is ended by its reaper, and nothing else."""

import subprocess
import sys
import time
from pathlib import Path

CODE = """
import pathlib, subprocess, sys, time
from rlrun.cluster.reaper import Reaper
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
left = subprocess.Popen(["sleep", "100"], stdout=(folder / "log").open("w"), start_new_session=True)
reaper = Reaper(folder)
print(left.pid, reaper.process.pid, flush=True)
if sys.argv[2] == "closes":
    reaper.close()
else:
    time.sleep(100)
"""


def there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begin(folder, how):
    started = subprocess.Popen([sys.executable, "-c", CODE, folder, how], stdout=subprocess.PIPE, text=True)
    return started, [int(pid) for pid in started.stdout.readline().split()]


def test_it_ends_what_a_killed_process_has_left(tmp_path):
    other = subprocess.Popen(["sleep", "100"], stdout=(tmp_path / "other").open("w"))
    killed, (left, reaper) = begin(tmp_path / "ray", "waits")
    closed, (kept, ended) = begin(tmp_path / "ray2", "closes")
    try:
        assert closed.wait(30) == 0 and there(kept) and not there(ended)
        assert there(left) and there(reaper)
        killed.kill()
        end = time.monotonic() + 60
        while there(left) or there(reaper):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert not (tmp_path / "ray").exists() and (tmp_path / "ray2").is_dir()
        assert other.poll() is None and there(kept)
    finally:
        for process in (other, killed, closed):
            process.kill()
            process.wait()
        subprocess.run(["kill", str(kept)])
