"""scripts/slurm/train.sbatch with an srun that notes what it is called with and runs the command of the head."""


import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.core.run_lock import RunLock
from rlrun.runtime.leftovers import move_aside

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm" / "train.sbatch"
SRUN = """#!/bin/bash
if [ "${@: -1}" = --ip-address ]; then echo "10.0.0.7 fe80::1"; exit; fi
{ echo "$RAY_AUTH_MODE $(stat -c %a "$RAY_AUTH_TOKEN_PATH") $(wc -c < "$RAY_AUTH_TOKEN_PATH")"; printf '%s\\n' "$@"; } > "$NOTED"
while [ "$1" != -- ]; do shift; done
shift
"$@"
"""
PYTHON = """#!/bin/bash
if [ "$1" = -c ]; then exec "$REAL" "$@"; fi
trap 'echo saved >> "$NOTED"; exit 143' TERM
echo "ran $*" >> "$NOTED"
for i in $(seq "${SECONDS_TO_RUN:-0}"); do sleep 1 & wait $!; done
"""


@pytest.fixture
def job(tmp_path):
    """The command and the environment of a job with three machines, whose tools note what they are asked."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("python", PYTHON), ("scontrol", "#!/bin/bash\necho node7; echo node8; echo node9\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(stat.S_IRWXU)
    noted = {"NOTED": str(tmp_path / "noted"), "REAL": sys.executable, "HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}
    slurm = {"JOB_ID": "77", "JOB_NODELIST": "node[7-9]", "JOB_NUM_NODES": "3", "CPUS_PER_TASK": "16"}
    return os.environ | noted | {f"SLURM_{name}": value for name, value in slurm.items()}


def run(job, *words, **more):
    return subprocess.run(["bash", SCRIPT, *words], env=job | more, capture_output=True, text=True, timeout=60)


def test_it_is_bash_and_asks_slurm_for_what_it_needs():
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0
    asked = re.findall(r"^#SBATCH (\S+)", SCRIPT.read_text(), re.M)
    assert {"--nodes=2", "--ntasks-per-node=1", "--exclusive", "--requeue", "--no-kill", "--signal=B:TERM@120"} <= set(asked)


def test_it_starts_ray_with_a_token_and_trains_on_the_head(job, tmp_path):
    found = run(job, "algo=impala", "env=Pong", f"run_dir={tmp_path / 'a run'}")
    assert found.returncode == 0, found.stderr
    token, *words = (tmp_path / "noted").read_text().splitlines()
    assert token == "token 600 64" and not list((tmp_path / ".ray").iterdir()), "the token is this user's, and goes with the job"
    ray = words.index("ray")
    assert {"--nodes=3", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0"} <= set(words[:ray])
    dashes = words.index("--")
    assert words[ray:dashes] == ["ray", "symmetric-run", "--address", "10.0.0.7:6379", "--min-nodes", "3", "--num-cpus", "16",
                                 "--object-store-memory", str(2000 * 2**20)]  # fmt: skip
    assert words[-1] == (
        f"ran -m rlrun train algo=impala env=Pong run_dir={tmp_path / 'a run'} resources=ray resources.ray.address=10.0.0.7:6379"
        " resources.ray.nodes=3"
    )


def test_it_resumes_a_run_that_has_a_checkpoint_and_passes_sigterm_on(job, tmp_path):
    (tmp_path / "run" / "checkpoints" / "000000000100").mkdir(parents=True)
    script = subprocess.Popen(["bash", SCRIPT, "algo=impala", f"run_dir={tmp_path / 'run'}"], env=job | {"SECONDS_TO_RUN": "60"})
    noted, end = tmp_path / "noted", time.monotonic() + 60
    while not noted.is_file() or "ran" not in noted.read_text():
        assert time.monotonic() < end and script.poll() is None
        time.sleep(0.05)
    script.send_signal(signal.SIGTERM)
    assert script.wait(60) == 143
    said = noted.read_text().splitlines()
    assert said[-2:] == [f"ran -m rlrun resume {tmp_path / 'run'} resources.ray.address=10.0.0.7:6379 resources.ray.nodes=3 --if-needed", "saved"]


def test_a_job_that_is_started_again_before_the_first_checkpoint_begins_anew(job, tmp_path):
    """What the run has left stays there under another name. A directory without a run, or one that a process holds, is
    left as it is."""
    run_dir = tmp_path / "run"
    for number in (1, 2):
        (run_dir / "checkpoints" / ".000000000100.tmp").mkdir(parents=True)
        (run_dir / "config.yaml").write_text(f"seed: {number}\n")
        assert run(job, "algo=impala", f"run_dir={run_dir}").returncode == 0 and run_dir.exists(), "it may be another job's"
        found = run(job, "algo=impala", f"run_dir={run_dir}", SLURM_RESTART_COUNT=str(number))
        assert found.returncode == 0, found.stderr
        assert (tmp_path / f"run.ended-{number}" / "config.yaml").read_text() == f"seed: {number}\n" and not run_dir.exists()
        assert f"it is now {tmp_path / f'run.ended-{number}'}" in found.stdout
        assert (tmp_path / "noted").read_text().splitlines()[-1].startswith(f"ran -m rlrun train algo=impala run_dir={run_dir} ")
    run_dir.mkdir()
    (run_dir / "notes.txt").write_text("mine")
    assert move_aside(run_dir) is None
    (run_dir / "config.yaml").write_text("seed: 3\n")
    lock = RunLock(run_dir)
    lock.acquire()
    assert move_aside(run_dir) is None
    lock.release()
    assert move_aside(run_dir) == tmp_path / "run.ended-3" and (tmp_path / "run.ended-3" / "notes.txt").exists()


@pytest.mark.parametrize(("words", "said"), [(["algo=ppo"], "give run_dir="), (["run_dir=x", "resources=auto"], "leave resources=auto out")])
def test_what_it_cannot_do_is_a_sentence(job, tmp_path, words, said):
    found = run(job, *words)
    assert found.returncode == 2 and said in found.stderr and not (tmp_path / "noted").exists()

