"""A Gymnasium environment whose errors say which one it is, and that is made anew where it fails."""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.errors import FAILURES, EnvError, told
from rlrun.core.pulse import RESET, doing, next_step
from rlrun.core.restarts import Remade
from rlrun.envs.infos import numbers_of
from rlrun.envs.misfits import Looker, amiss, paid, useless

GYMNASIUM = Path(gymnasium.__file__).parent


@contextmanager
def global_generators(seed: int) -> Iterator[None]:
    """Lets Python's and NumPy's global generators begin with a seed, and restores them."""
    states = random.getstate(), np.random.get_state()
    random.setstate(random.Random(seed).getstate())
    np.random.set_state(np.random.RandomState(seed).get_state())
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


class NamedEnv(gymnasium.Wrapper):
    """Adds the environment's name, number, seed and last action to its errors, and makes it anew where it may.

    It keeps the numbers of an info as floats, and hands on none. Gymnasium gathers the infos of several environments in
    arrays of the first one's type, into which the others' text, None or fractions do not fit, and takes "_name" for
    itself."""

    def __init__(
        self, make: Callable[[], gymnasium.Env], name: str, number: int, slot: int, remade: Remade, new: Callable
    ):
        """slot: the environment's number in `remade`. new: called with this wrapper when it holds a new environment;
        returns the seed of its first reset."""
        super().__init__(make())
        self.make, self.name, self.number, self.slot, self.remade, self.new = make, name, number, slot, remade, new
        self.seed: int | None = None
        self.steps = 0
        self.told: dict[str, float] = {}  # the numbers of the last info by name
        self.look, self.useless = Looker(self.env.observation_space), useless(self.env.observation_space)

    def reset(self, *, seed=None, options=None):
        try:
            return self._reset(seed, options)
        except FAILURES as error:
            return self._anew(self._failed("reset", error), error)

    def _reset(self, seed: int | None, options: dict | None = None) -> tuple[Any, dict]:
        if seed is not None:
            self.seed = seed
        with doing(RESET):
            outcome = self.env.reset(seed=seed, options=options)
        if (what := amiss(outcome, 2, "(observation, info)")) is None:
            self._look(outcome[0])
            what = self.useless(outcome[0])
        if what is not None:
            raise ValueError(f"it returned {what}{self._hint()}")
        observation, info = outcome
        self.told = numbers_of(info)
        return observation, {}

    def step(self, action):
        self.steps += 1
        self.remade.stepped(self.slot)
        next_step()
        try:
            outcome = self.env.step(action)
            if (what := amiss(outcome, 5, "(observation, reward, terminated, truncated, info)")) is not None:
                raise ValueError(f"it returned {what}{self._hint()}")
            observation, reward, terminated, truncated, info = outcome
            if terminated is None or truncated is None:  # an array of bools would silently hold False
                raise TypeError(f"it returned None for terminated or truncated, and each must be a bool{self._hint()}")
            self._look(observation)
            number, what = paid(reward)
            if (what := self.useless(observation) or what) is not None:
                raise ValueError(f"it returned {what}{self._hint()}")
            self.told = numbers_of(info)
            return observation, number, bool(terminated), bool(truncated), {}
        except FAILURES as error:
            failed = self._failed(f"step {self.steps} on action {' '.join(str(action).split())}", error)
            obs, info = self._anew(failed, error)
            return obs, 0.0, False, False, info

    def _look(self, observation: Any) -> None:
        if (wrong := self.look(observation)) is not None:
            self.remade.odd(
                self.slot, f"{self.name}, env {self.number}: {wrong}; `rlrun check-env {self.name}` says how to mend it"
            )

    def _anew(self, failed: EnvError, error: BaseException) -> tuple[Any, dict]:
        """Replaces an environment that has failed, until reset() of a new one returns something, and returns that.
        Raises the last failure where it must not be replaced."""
        while True:
            try:
                self.remade.note(self.slot, failed)
            except EnvError:
                raise failed from error
            with contextlib.suppress(*FAILURES):  # it is broken
                self.env.close()
            try:
                self.env = self.make()
            except FAILURES as again:
                what = f"could not be made anew after it {failed.what}: {told(again, __file__)}"
                raise EnvError(self.name, failed.numbers, self.seed, what) from again
            self.steps, seed = 0, self.new(self)
            try:
                return self._reset(seed)
            except FAILURES as again:
                failed, error = self._failed("reset", again), again

    def _failed(self, doing: str, error: BaseException) -> EnvError:
        one = range(self.number, self.number + 1)
        frames = traceback.extract_tb(error.__traceback__)
        # What Gymnasium's own code does not understand, as five values that were four, check-env explains.
        hint = self._hint() if frames and Path(frames[-1].filename).is_relative_to(GYMNASIUM) else ""
        return EnvError(self.name, one, self.seed, f"failed in {doing}: {told(error, __file__)}{hint}")

    def _hint(self) -> str:
        return f" (rlrun check-env {self.name} looks for such mistakes)"
