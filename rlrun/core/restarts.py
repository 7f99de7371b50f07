"""Restarts: what has failed and was made anew, and when that is too much.

Environments that raise are made anew where they are stepped. Processes that die or hang are replaced by their parent.
Both are counted here, in the run's first process, with a budget for a sliding window of time.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rlrun.core.env import Failure
from rlrun.core.errors import EnvError, RunFailed
from rlrun.core.outputs import tell

AT_ONCE = 100  # steps after a restart within which a failure is one that "comes back at once"
# What fails at once so often, in a row and with the same sentence, is broken. A process takes seconds to start.
ENV_REPEATS, PROCESS_REPEATS = 5, 2
NUMBER = re.compile(r"-?\d[\d.e+-]*")


def say(text: str) -> None:
    tell(f"  note: {text}")


def without_numbers(sentence: str) -> str:
    """A sentence in which environments, seeds, steps and actions, which differ in the same failure, are left out."""
    return NUMBER.sub("#", sentence)


class Repeated:
    """Finds failures that come back at once, so that a fault that repeats is not retried for ever."""

    def __init__(self, most: int) -> None:
        self.most, self.sentence, self.times = most, "", 0

    def __call__(self, sentence: str, steps: int | None) -> bool:
        """Records a failure. Returns whether it has come back too often in a row.

        steps: what was done since the last restart, in env steps; None: there was none."""
        at_once = steps is not None and steps <= AT_ONCE and sentence == self.sentence
        self.times = self.times + 1 if at_once else 1
        self.sentence = sentence
        return self.times > self.most


class Remade:
    """Counts the failures of an adapter's environments, which it makes anew."""

    def __init__(self, envs: int, allowed: bool):
        """allowed: whether environments may be made anew. Otherwise the first failure is raised."""
        self.allowed = allowed
        self.repeated = [Repeated(ENV_REPEATS) for _ in range(envs)]
        self.steps: list[int | None] = [None] * envs  # since an environment was made anew
        self.times = [0] * envs  # how often an environment was made anew
        self.failed: dict[int, str] = {}  # environments that were made anew since take(), with the reason
        self.kept: dict[int, Failure] = {}

    def stepped(self, env: int) -> None:
        """Notes that an environment has made a step."""
        steps = self.steps[env]
        if steps is not None:
            self.steps[env] = steps + 1

    def note(self, env: int, error: EnvError) -> None:
        """Records a failure, after which the environment is made anew. Raises the error where it must not be.

        A new environment that fails before its first step has come back at once, whatever it says. Until there is a
        step, the budget of the run hears nothing of it."""
        repeated, steps = self.repeated[env], self.steps[env]
        if not self.allowed or repeated(repeated.sentence if steps == 0 else error.kind, steps):
            raise error
        self.steps[env] = 0
        self.times[env] += 1
        self.failed[env] = str(error)

    def keep(self) -> None:
        """Keeps what failed in a reset of all, where no row shows it, until told() reports it."""
        self.kept |= {env: Failure(sentence, False) for env, sentence in self.failed.items()}
        self.failed = {}

    def odd(self, env: int, sentence: str) -> None:
        """Notes what is wrong with an environment that goes on, until told() reports it."""
        self.kept.setdefault(env, Failure(sentence, False, made_anew=False))

    def take(self, ended: np.ndarray) -> dict[int, Failure]:
        """Returns what has failed in this step. ended: for each environment, whether its episode was over before it."""
        failed, self.failed = self.failed, {}
        return {env: Failure(sentence, not ended[env]) for env, sentence in failed.items()}

    def told(self, failed: Mapping[int, Failure]) -> Mapping[int, Failure]:
        """Returns what a Step reports: these failures and those that were kept."""
        kept, self.kept = self.kept, {}
        return kept | dict(failed) if kept else failed


class Restarts:
    """The budget and the counts of one run."""

    def __init__(
        self,
        limit: int,
        window_sec: float,
        tell: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
    ):
        """limit: failures that are survived within any window_sec seconds; 0: none is. tell: prints a note."""
        self.limit, self.window_sec, self.tell, self.clock = limit, window_sec, tell, clock
        self.times: deque[float] = deque()
        self.envs = 0  # environments that were made anew
        self.processes = 0  # processes that were replaced
        self.lost_env_steps = 0  # env steps of fragments that were not finished, and that nothing has counted
        self.odd = ""  # the first thing that was found wrong with an environment that goes on

    def env_failed(self, sentence: str) -> None:
        """Records an environment that was made anew. Raises RunFailed where that was one too many."""
        self._note(sentence)
        self.envs += 1
        self.tell(f"{sentence}; it was made anew, and its episode does not count ({self._left()})")

    def env_odd(self, sentence: str) -> None:
        """Records that an environment does not keep its promises. Others of its kind probably do the same."""
        if not self.odd:
            self.odd = sentence
            self.tell(f"{sentence}; the run goes on")

    def process_failed(self, sentence: str, lost_env_steps: int = 0) -> None:
        """Records a process that will be replaced. Raises RunFailed where that is one too many."""
        self._note(sentence)
        self.processes += 1
        self.lost_env_steps += lost_env_steps
        lost = f", and up to {lost_env_steps} env steps that it had not handed over are lost" if lost_env_steps else ""
        self.tell(f"{sentence}; a new process takes its place{lost} ({self._left()})")

    def run_failed(self, sentence: str, env_steps: int, lost_env_steps: int) -> None:
        """Records that the whole run begins again at this many env steps. Raises RunFailed where that is one too many.

        lost_env_steps: those that were counted since, and that are taken once more."""
        self._note(sentence)
        self.processes += 1
        self.lost_env_steps += lost_env_steps
        lost = f", so {lost_env_steps} env steps are taken once more" if lost_env_steps else ""
        self.tell(f"{sentence}; the run begins again at {env_steps} env steps{lost} ({self._left()})")

    def _note(self, sentence: str) -> None:
        now = self.clock()
        while self.times and now - self.times[0] > self.window_sec:
            self.times.popleft()
        if len(self.times) >= self.limit:
            raise RunFailed(sentence + (f"\n{self._too_many()}" if self.limit else ""))
        self.times.append(now)

    def _left(self) -> str:
        return f"{len(self.times)} of {self.limit} failures allowed within {self.window_sec:g} s"

    def _too_many(self) -> str:
        return (
            f"This was failure number {self.limit + 1} within {self.window_sec:g} s, and resources.restarts is"
            f" {self.limit}."
        )

    def row(self) -> dict[str, float]:
        """Returns the counts for a row of metrics; none before the first failure."""
        made = {
            "restarts/envs": self.envs,
            "restarts/processes": self.processes,
            "restarts/lost_env_steps": self.lost_env_steps,
        }
        return {name: float(value) for name, value in made.items()} if self.envs or self.processes else {}

    def state(self) -> Sequence[int]:
        """Returns the counts, for a checkpoint."""
        return [self.envs, self.processes, self.lost_env_steps]

    def load(self, state: Sequence[int]) -> None:
        """Restores the counts of a checkpoint. What was counted after it in the same command stays counted."""
        now = self.state()
        self.envs, self.processes, self.lost_env_steps = (max(*pair) for pair in zip(now, state, strict=True))


class ToldRestarts(Restarts):
    """The budget of a process or machine beside the run's first process, which has a budget for all: it is told what
    this one counts, and tells the user."""

    def __init__(self, limit: int, window_sec: float):
        super().__init__(limit, window_sec, tell=lambda text: None)
        self.news: list[tuple[str, int]] = []  # (sentence, lost env steps) of replaced processes, until it is told

    def process_failed(self, sentence: str, lost_env_steps: int = 0) -> None:
        super().process_failed(sentence, lost_env_steps)
        self.news.append((sentence, lost_env_steps))
