"""python job_parent.py COMMAND... stands between a worker of Ray and a job.

When a worker of Ray ends, it kills its children at once, and a job that is killed saves nothing. This process is the
child that is killed. The job then loses its parent, and answers with a checkpoint (experiments/job.py). It ends in the
same way when the worker dies without a word. The environment names the worker, and names this process to the job.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

PARENT = "RLRUN_PARENT"  # an environment variable: the id of the process that must live for the job to go on


def main() -> int:
    worker = int(os.environ[PARENT])
    process = subprocess.Popen(sys.argv[1:], env={**os.environ, PARENT: str(os.getpid())})

    def forward(number: int, frame: Any) -> None:
        if process.poll() is None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != worker:
            forward(signal.SIGTERM, None)
    code = process.wait()
    if code < 0:  # it ends as the job has ended
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
