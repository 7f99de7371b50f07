"""The quick part of the fault battery (scripts/faults), on real runs: one strong test of each kind of protection.

What tests/samplers/test_restarts.py and tests/runtime/test_session.py hold to is not repeated here: environments and
samplers that fail or hang inside of a test's process, damaged checkpoints, directories in use."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def battery():
    sys.path.insert(0, str(SCRIPTS))
    try:
        from fault_battery import harness, rows_environments, rows_files, rows_processes, rows_services

        assert harness.ROWS.keys() >= {"signals", "disk-full"} and rows_environments and rows_files
        assert rows_processes and rows_services
        return harness
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.mark.parametrize(
    "row, tries",
    [
        ("env-ends-the-run", None),  # a run that ended without a word is known to have failed, and goes on
        ("signals", 2),  # while it starts and while it saves
        ("parent-killed", None),  # no process outlives it
        ("disk-full", None),  # while training and at a resume
        ("shm-small", None),  # refused before anything starts
        ("too-many-files", None),
        ("learner-raises", None),
    ],
)
def test_what_the_battery_promises(battery, row, tries, tmp_path):
    made = battery.attempt(row, quick=True, folder=tmp_path, tries=tries)
    assert made.problems == ()
    if made.skipped:
        pytest.skip(made.skipped)
    assert made.tries > 0 and made.survived + made.ended > 0
