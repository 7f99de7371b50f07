"""MuJoCo's environments that are many tasks (envs/tasks.py), with RLlib's rewards and ranges of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

GOAL_RADIUS = 3.0  # of the ant's goals, in metres


class HalfCheetahRandDirec(HalfCheetahEnv):
    """A cheetah that is paid for running in the direction, 1 or -1, that is the task."""

    direction = 1.0

    def sample_tasks(self, count: int) -> np.ndarray:
        return self.np_random.choice((-1.0, 1.0), size=count)

    def set_task(self, task: float) -> None:
        self.direction = float(task)

    def _get_rew(self, x_velocity: float, action: np.ndarray) -> tuple[float, dict[str, float]]:
        forwards, cost = self.direction * x_velocity, 0.05 * float(np.square(action).sum())
        return forwards - cost, {"reward_forward": forwards, "reward_ctrl": -cost}


class AntRandGoal(AntEnv):
    """An ant that is paid for being near the goal [2] that is the task. Its episodes end by the limit alone, and it
    sees where it is."""

    goal = np.zeros(2)

    def __init__(self, **options: Any):
        super().__init__(terminate_when_unhealthy=False, exclude_current_positions_from_observation=False, **options)

    def sample_tasks(self, count: int) -> np.ndarray:
        angle = self.np_random.random(count) * 2 * np.pi
        radius = GOAL_RADIUS * np.sqrt(self.np_random.random(count))
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)

    def set_task(self, task: Sequence[float]) -> None:
        self.goal = np.asarray(task, dtype=np.float64)

    def _get_rew(self, x_velocity: float, action: np.ndarray) -> tuple[float, dict[str, float]]:
        near = -float(np.abs(self.data.body(1).xpos[:2] - self.goal).sum())
        control = 0.1 * float(np.square(action).sum())
        contact = 0.5e-3 * float(np.square(np.clip(self.data.cfrc_ext, -1, 1)).sum())
        told = {"reward_goal": near, "reward_ctrl": -control, "reward_contact": -contact}
        return near - control - contact, told
