"""What rlrun itself wraps around a Gymnasium environment: action repeat, and pictures as observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Repeat(gymnasium.Wrapper):
    """Takes every action `count` times, or until the episode ends, and sums the rewards. Observation and info are those
    of the last time."""

    def __init__(self, env: gymnasium.Env, count: int):
        super().__init__(env)
        self.count = count

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.count):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class Pixels(gymnasium.ObservationWrapper):
    """Shows what the environment draws (render_mode=rgb_array), squeezed into a square: [size, size, 3] uint8."""

    def __init__(self, env: gymnasium.Env, size: int):
        super().__init__(env)
        self.size = size
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        return resized(np.asarray(self.env.render()), self.size)


def resized(image: np.ndarray, size: int) -> np.ndarray:
    """[H, W, C] uint8 -> [size, size, C] uint8. Every new pixel is the mean over the area that it covers."""
    if image.shape[:2] == (size, size):
        return image
    height, width, channels = image.shape
    rows = covered(height, size) @ image.reshape(height, -1).astype(np.float32)  # [size, W * C]
    columns = rows.reshape(size, width, channels).transpose(1, 0, 2).reshape(width, -1)
    squared = (covered(width, size) @ columns).reshape(size, size, channels)  # its first axis is that of columns
    return np.rint(squared).astype(np.uint8).transpose(1, 0, 2)


def covered(old: int, new: int) -> np.ndarray:
    """[new, old] float32: which share of each of `new` equal parts of a line lies in each of `old` equal parts."""
    edges = np.arange(new + 1) * (old / new)
    starts, ends = edges[:-1, None], edges[1:, None]
    cells = np.arange(old)
    shares = np.clip(np.minimum(ends, cells + 1) - np.maximum(starts, cells), 0.0, None)
    return (shares / shares.sum(1, keepdims=True)).astype(np.float32)
