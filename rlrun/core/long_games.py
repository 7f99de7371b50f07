"""Words about games that go on for long, so that nobody takes them for a hang."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

from rlrun.core.errors import Notice
from rlrun.core.specs import EnvSpec

FIRST_SEC = 20.0  # without an end of a game, after which something is said


def warn(text: str) -> None:
    """Issues a warning, which a command prints to stderr."""
    warnings.warn(text, Notice, stacklevel=2)


class LongGames:
    """Says how long a game has become while no game ends: after 20 s, and then after twice as long each time, so that
    even environments whose games always take minutes get few lines."""

    def __init__(self, spec: EnvSpec, say: Callable[[str], None] = warn):
        """say: is given a clause without a full stop."""
        self.spec, self.say = spec, say
        self.pause_sec = FIRST_SEC
        self.ended()

    def ended(self) -> None:
        """Says that a game has ended, or that games begin."""
        self.since = time.monotonic()

    def look(self, what: str, steps: int) -> None:
        """Is called after every step. what: what is done, such as "evaluating". steps: env steps of the longest game
        that goes on."""
        if time.monotonic() - self.since < self.pause_sec:
            return
        self.ended()
        self.pause_sec *= 2
        limit = self.spec.max_episode_steps
        if limit is None:
            self.say(f"{what}: a game has {steps:,} steps and has not ended; {self.spec.limit_option} limits games")
        else:
            self.say(f"{what}: a game has {steps:,} of at most {limit:,} steps and has not ended")
