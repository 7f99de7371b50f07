"""A wrapper for MiniGrid's observations: env.wrappers=[rlrun.envs.minigrid:OneHot]."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIZES = (11, 6, 3)  # kinds of objects, colours and states of doors (minigrid/core/constants.py)
DIRECTIONS = 4


class OneHot(gymnasium.ObservationWrapper):
    """Makes one vector of zeros and ones of what a MiniGrid agent sees: [H * W * 20 + 4] float32.

    Each square of the view is three numbers, an object, a colour and a state, which are choices and no brightness; each
    becomes one-hot. The last four numbers say where the agent looks. The mission's text is left out."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        space = env.observation_space
        image = space.spaces.get("image") if isinstance(space, gymnasium.spaces.Dict) else None
        if image is None or image.shape is None or image.shape[-1:] != (3,) or "direction" not in space.spaces:  # type: ignore[attr-defined]
            raise ValueError(f"it reads MiniGrid's own observations, not {space}")
        size = int(np.prod(image.shape[:-1])) * sum(SIZES) + DIRECTIONS
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        image = observation["image"].reshape(-1, 3)  # [H * W, 3]
        parts = [np.eye(size, dtype=np.float32)[image[:, i]] for i, size in enumerate(SIZES)]
        looks = np.eye(DIRECTIONS, dtype=np.float32)[int(observation["direction"])]
        return np.concatenate([np.concatenate(parts, -1).ravel(), looks])
