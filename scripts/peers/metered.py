"""python metered.py FILE COMMAND ... runs a command and writes the CPU seconds of all its processes into FILE.

A program's workers may outlive it for a moment, or be children of a server that it does not wait for. Linux makes this
process their parent then (prctl(2), PR_SET_CHILD_SUBREAPER), and it waits for all of them. The exit code is the command's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    file, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER is refused")
    started, code = subprocess.Popen(command), 1
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid == started.pid:
            code = started.returncode = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(file).write_text(f"{used.ru_utime + used.ru_stime}\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
