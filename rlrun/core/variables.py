"""Variables of the process's environment, for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock

_ONE_AT_A_TIME = RLock()


@contextmanager
def variables(change: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process's environment, which processes that start meanwhile inherit. Afterwards each has
    its former value, or none if it had none."""
    with _ONE_AT_A_TIME:  # two threads that start processes would restore each other's values
        before = {name: os.environ.get(name) for name in change}
        os.environ.update(change)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
