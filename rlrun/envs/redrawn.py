"""Draws the state that an observation means with the environment's own renderer, where the observation holds the whole
state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlrun.envs.gym import GymConfig, make_one

FAR = 4.8  # metres of CartPole; the screen ends at 2.4, and the renderer cannot draw a cart that is too far away


def _cartpole(env: Any, obs: np.ndarray) -> None:
    """obs: position, speed, angle and angular speed, which are the state."""
    env.state = np.array([np.clip(obs[0], -FAR, FAR), *obs[1:]], dtype=np.float64)


def _pendulum(env: Any, obs: np.ndarray) -> None:
    """obs: cosine and sine of the angle, and angular speed. The torque, an arrow, is no part of it."""
    env.state, env.last_u = np.array([np.arctan2(obs[1], obs[0]), obs[2]], dtype=np.float64), None


SETTERS: dict[str, Callable[[Any, np.ndarray], None]] = {"CartPole-v1": _cartpole, "Pendulum-v1": _pendulum}


class Redrawn:
    """An environment that shows any observation."""

    def __init__(self, cfg: GymConfig):
        self.set = SETTERS[cfg.name]
        self.env = make_one(cfg, render=True)
        self.env.reset(seed=0)

    def frame(self, obs: np.ndarray) -> np.ndarray:
        """The picture [H, W, 3] uint8 of an observation [D]."""
        self.set(self.env.unwrapped, obs)
        made: Any = self.env.render()
        return made

    def close(self) -> None:
        self.env.close()


def redrawn(cfg: Any) -> Redrawn | None:
    """Returns what draws observations of this environment, or None. Wrappers, pixels and stacks show something else
    than the state."""
    fits = isinstance(cfg, GymConfig) and cfg.name in SETTERS and not (cfg.wrappers or cfg.draws or cfg.stack > 1)
    return Redrawn(cfg) if fits else None
