"""Outputs that nobody reads any more."""

import io
import os
import subprocess
import sys

import pytest

from rlrun.core.outputs import announce, go_on_unread

WORDS = """
import sys
from rlrun.core.outputs import announce, go_on_unread
go_on_unread()
announce("the run goes on")
sys.stdin.read()
for _ in range(3):
    print("a row", flush=True)
    print("a warning", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("unbuffered", [[], ["-u"]], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("together", [False, True], ids=["stdout alone", "stdout and stderr"])
def test_a_process_goes_on_when_nobody_reads_it(unbuffered, together):
    """It ends with its own exit code, and stderr tells once that stdout is lost."""
    process = subprocess.Popen(
        [sys.executable, *unbuffered, "-c", WORDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    process.stdin.close()
    errors = "" if together else process.stderr.read()
    assert process.wait(20) == 7
    assert errors == ("" if together else "rlrun: the run goes on\n" + 3 * "a warning\n")


def test_a_terminal_that_is_gone_is_no_error_and_a_full_disk_is(monkeypatch):
    ours, theirs = os.openpty()
    with open(theirs, "w") as text, open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", text)
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(full, write_through=True))
        go_on_unread()
        print("read")
        sys.stdout.flush()
        assert os.read(ours, 100) == b"read\r\n"
        os.close(ours)
        for _ in range(2):
            print("unread", flush=True)
        assert os.fstat(theirs).st_rdev == os.stat(os.devnull).st_rdev  # the terminal is let go
        with pytest.raises(OSError, match="No space left"):
            print("a result", file=sys.stderr)
        announce("a run goes on")
        try:
            print("a note", file=sys.stderr)  # is left out
        finally:
            announce("")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_outputs_are_closed_ends_as_otherwise(closed):
    ended = subprocess.run(["sh", "-c", f"{sys.executable} -m rlrun list algos {closed}"], capture_output=True, text=True)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr
    assert (ended.stdout == "") == (">&- " in f"{closed} ".replace("2>&-", ""))


def test_what_stands_in_the_place_of_stdout_stays(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(sys, "stdout", text)
    go_on_unread()
    assert sys.stdout is text
