"""What Gymnasium's environments pay, as a function of observations and actions, for algorithms that learn a model of
the dynamics alone. A user's own environment says it with a method reward(obs, action, next_obs) for batches, as in
RLlib.

RLlib's HalfCheetah and Hopper pay for the velocity that is seen after the step, not for the distance of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

BOUND = 1000.0  # of one reward, as in RLlib


class CartPole:
    """1 while cart and pole are within their bounds."""

    def reward(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        return ((np.abs(next_obs[:, 0]) <= 2.4) & (np.abs(next_obs[:, 2]) <= 12 * 2 * math.pi / 360)).astype(np.float32)


class Pendulum:
    """The negative cost of angle, speed and torque."""

    def reward(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        angle, torque = np.arctan2(obs[:, 1], obs[:, 0]), np.clip(action[:, 0], -2.0, 2.0)
        return -(angle**2 + 0.1 * obs[:, 2] ** 2 + 0.001 * torque**2)


class HalfCheetah:
    """The velocity forwards minus the cost of the action."""

    def reward(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        return np.clip(next_obs[:, 8] - 0.1 * np.square(action).sum(1), -BOUND, BOUND)


class Hopper:
    """The velocity forwards and 1 for being alive minus the cost of the action."""

    def reward(self, obs: np.ndarray, action: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        return np.clip(next_obs[:, 5] + 1.0 - 1e-3 * np.square(action).sum(1), -BOUND, BOUND)


KNOWN = {"CartPole": CartPole, "Pendulum": Pendulum, "HalfCheetah": HalfCheetah, "Hopper": Hopper}


# Arguments of these environments that change neither what they pay nor what is seen.
HARMLESS = {"Pendulum": {"g"}, "HalfCheetah": {"reset_noise_scale"}, "Hopper": {"reset_noise_scale"}}


def reward_of(name: str, env: object, kwargs: Mapping[str, Any]) -> str | None:
    """The path of a class with the method reward() for an environment, or None if it is not known. name: as env= takes
    it. env: the environment itself, without wrappers. kwargs: arguments that the user gave it, most of which make the
    rewards of Gymnasium's environments other ones than those here."""
    kind = type(env)
    if callable(getattr(kind, "reward", None)):
        return f"{kind.__module__}:{kind.__qualname__}"
    base = name.rpartition("-v")[0]
    known = KNOWN.get(base)
    return None if known is None or set(kwargs) - HARMLESS.get(base, set()) else f"{__name__}:{known.__name__}"
