"""What several benchmarks are given on the command line: how long they measure, and the file for their results."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from rlrun.core.errors import RunFailed, UserError

SHORTEST = 5.0  # seconds of a measurement of throughput


def check_seconds(seconds: float, name: str = "seconds") -> None:
    """Raises UserError where training could not be measured for so many seconds. name: of the option, for messages."""
    if not SHORTEST <= seconds < math.inf:
        raise UserError(
            f"{name} must be a number of at least {SHORTEST:g}: the first rows of a run do not show its speed"
        )


def check_results_file(name: str, flag: str = "--json") -> None:
    """Raises UserError where the results could not be written to this file after the runs."""
    file = Path(name).absolute()
    if not file.parent.is_dir():
        raise UserError(f"{flag} {name}: there is no such folder")
    if not name or (file.exists() and not file.is_file()):
        raise UserError(f"{flag} {name!r}: this is not the name of a file")
    if not os.access(file.parent, os.W_OK):
        raise UserError(f"{flag} {name}: the folder cannot be written to")


def write_results(results: Any, name: str) -> None:
    """Writes what was measured as JSON. Raises RunFailed where the file cannot be written any more."""
    from rlrun.core.checkpoint import write_atomically

    try:
        write_atomically(Path(name), json.dumps(results, indent=1) + "\n")
    except OSError as error:
        raise RunFailed(f"--json {name}: the results cannot be written there: {error.strerror}") from None
