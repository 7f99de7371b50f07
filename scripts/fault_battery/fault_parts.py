"""What the runs of the battery name: an environment's wrapper that counts steps, wrappers that misbehave, a callback and
a network that fail. They work in the processes of real runs."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import resource
import signal
import struct
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch

from rlrun import Callback

TALLY, RUN = "RLRUN_FAULT_TALLY", "RLRUN_FAULT_RUN"  # environment variables that the harness sets
_NUMBERS = itertools.count()


def begun() -> bool:
    """Whether the run has begun. Before that, environments are only tried."""
    try:
        return json.loads((Path(os.environ[RUN]) / "summary.json").read_text())["status"] == "RUNNING"
    except (OSError, ValueError, KeyError):
        return False


class Tally(gymnasium.Wrapper):
    """Counts the steps that have returned in a file of its own, <process>-<number>, in memory that outlives the process.

    Environments that are tried before the run has begun are not counted."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.memory, self.steps = None, 0
        if begun():
            with (Path(os.environ[TALLY]) / f"{os.getpid()}-{next(_NUMBERS)}").open("w+b") as file:
                file.truncate(8)
                self.memory = mmap.mmap(file.fileno(), 8)

    def step(self, action):
        made = self.env.step(action)
        self.steps += 1
        if self.memory is not None:
            self.memory[:] = struct.pack("q", self.steps)
        return made


def first(name: str) -> bool:
    """Whether this is the first call with this name in the run, among all of its processes."""
    if not begun():
        return False
    try:
        (Path(os.environ[TALLY]) / f"done {name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Once(gymnasium.Wrapper):
    """Misbehaves once in a run, or in every environment if `always`, after `after` steps of an environment in all."""

    def __init__(self, env: gymnasium.Env, fault: str, after: int = 40, always: bool = False):
        super().__init__(env)
        self.fault, self.after, self.always, self.steps = fault, after, always, 0
        self.held: list[np.ndarray] = []

    def _now(self) -> bool:
        return self.steps >= self.after and (self.always or first(self.fault))

    def reset(self, **options):
        if self.fault == "hang in reset" and self._now():
            time.sleep(3600)
        return self.env.reset(**options)

    def step(self, action):
        self.steps += 1
        if self.fault == "hang in reset" or not self._now():
            return self.env.step(action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.fault == "raise":
            raise RuntimeError("this environment was told to fail")
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "exit":
            os._exit(0)
        if self.fault == "nan observation":
            obs = np.full_like(obs, np.nan)
        if self.fault == "nan reward":
            reward = float("nan")
        if self.fault == "wrong shape":
            obs = np.zeros(len(obs) + 1, dtype=np.float32)
        if self.fault == "action outside":
            self.env.step(99)
        if self.fault == "memory":
            self._eat()
        return obs, reward, terminated, truncated, info

    def _eat(self) -> None:
        """Takes memory until the process may not have more: 300 MB above what it has, so that the machine survives."""
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 300 * 2**20, resource.RLIM_INFINITY))
        try:
            while True:
                self.held.append(np.ones(2**23))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class FailingNet(torch.nn.Module):
    """An encoder that raises inside the learner: in the 20th call that computes gradients."""

    def __init__(self, space):
        super().__init__()
        self.layer, self.features, self.calls = torch.nn.Linear(space.shape[0], 8), 8, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, observation] -> [N, 8]."""
        self.calls += torch.is_grad_enabled()
        if self.calls > 20:
            raise RuntimeError("this network was told to fail")
        return torch.tanh(self.layer(x))


class FailingCallback(Callback):
    """A callback that raises in the 20th update."""

    def on_update(self, clock, metrics) -> None:
        if clock.updates == 20:
            raise RuntimeError("this callback was told to fail")
