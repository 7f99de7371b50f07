"""The last observations of an environment as one observation (RLlib's framestack; Mnih et al. 2015 for Atari).

Atari games are stacked by their emulator (rlrun/envs/atari.py), and all other environments here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlrun.core.env import Rows, Step, VectorEnv
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested, Space


def with_stack(spec: EnvSpec, stack: int) -> EnvSpec:
    """Returns the spec whose observations are the last `stack` ones. Every part of them has a first axis for these."""

    def many(space: Space) -> Space:
        if isinstance(space, Nested):
            return replace(space, spaces=tuple((name, many(part)) for name, part in space.spaces))
        if isinstance(space, Discrete):
            return MultiDiscrete(sizes=(space.n,) * stack, starts=(space.start,) * stack, shape=(stack,))
        if isinstance(space, MultiDiscrete):
            return MultiDiscrete(sizes=space.sizes * stack, starts=space.starts * stack, shape=(stack, *space.shape))
        shape = (stack, *space.shape)
        return replace(space, shape=shape, stacked=True) if isinstance(space, Box) else MultiBinary(shape=shape)

    return spec if stack == 1 else replace(spec, obs={**spec.obs, "observation": many(spec.observation)}, stack=stack)


def without_stack(spec: EnvSpec) -> EnvSpec:
    """The inverse of with_stack."""

    def one(space: Space) -> Space:
        if isinstance(space, Nested):
            return replace(space, spaces=tuple((name, one(part)) for name, part in space.spaces))
        if isinstance(space, MultiDiscrete):
            if len(space.shape) == 1:
                return Discrete(n=space.sizes[0], start=space.starts[0])
            count = len(space.sizes) // spec.stack
            return MultiDiscrete(sizes=space.sizes[:count], starts=space.starts[:count], shape=space.shape[1:])
        assert isinstance(space, Box | MultiBinary)
        shape = space.shape[1:]
        return replace(space, shape=shape, stacked=False) if isinstance(space, Box) else MultiBinary(shape=shape)

    return spec if spec.stack == 1 else replace(spec, obs={**spec.obs, "observation": one(spec.observation)}, stack=1)


class LastFrames:
    """The last observations of B columns, the newest one last. Those from before an episode's first one are 0."""

    def __init__(self, stack: int):
        self.stack = stack
        self.reset()

    def reset(self) -> None:
        """Forgets all observations."""
        self.frames: Any = None

    @property
    def columns(self) -> int | None:
        """B, or None before the first observation."""
        frames = self.frames
        while isinstance(frames, dict):
            frames = next(iter(frames.values()))
        return None if frames is None else len(frames)

    def push(self, obs: Any, is_first: np.ndarray) -> Any:
        """Adds observations (every part [B, ...]), which begin an episode where is_first [B]. Returns new arrays with
        the last ones (every part [B, stack, ...])."""
        self.frames = self._pushed(self.frames, obs, is_first)
        return self.frames

    def _pushed(self, old: Any, new: Any, is_first: np.ndarray) -> Any:
        if isinstance(new, dict):
            return {
                name: self._pushed(None if old is None else old[name], part, is_first) for name, part in new.items()
            }
        made = np.zeros((len(new), self.stack, *new.shape[1:]), dtype=new.dtype)
        if old is not None:
            made[:, :-1] = old[:, 1:]
            made[is_first, :-1] = 0
        made[:, -1] = new
        return made


class Stacked:
    """An environment whose observations are the last `spec.stack` ones. An action mask stays that of the newest one."""

    def __init__(self, env: VectorEnv, spec: EnvSpec):
        self.env, self.spec, self.count = env, spec, env.count
        self.last = LastFrames(spec.stack)

    def _stacked(self, obs: Rows, is_first: np.ndarray) -> Rows:
        return {**obs, "observation": self.last.push(obs["observation"], is_first)}

    def reset(self, generation: int) -> Rows:
        self.last.reset()
        return self._stacked(self.env.reset(generation), np.ones(self.count, dtype=bool))

    def step(self, action: Any) -> Step:
        step = self.env.step(action)
        return step._replace(obs=self._stacked(step.obs, step.is_first))

    def close(self) -> None:
        self.env.close()
