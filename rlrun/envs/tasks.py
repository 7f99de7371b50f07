"""Environments that are many tasks, from which an algorithm learns to learn, with RLlib's ranges of tasks.

Such an environment has two methods, as in RLlib: sample_tasks(count) returns tasks, and set_task(task) makes one of
them the task of this environment from its next reset on. A vectorised one has sample_tasks(count) and
set_tasks(tasks), with a task for each of its columns.

Without an algorithm that sets tasks, a pendulum has the mass 1, a cart the mass 1 and its pole the mass 0.1, a cheetah
runs forwards and an ant's goal is where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

PENDULUM_MASSES = (0.5, 2.0)
CART_MASSES = (0.5, 2.0)
POLE_MASSES = (0.05, 0.2)
EPISODE = 200  # decisions


def pendulum_masses(rng: np.random.Generator, count: int) -> np.ndarray:
    """[count] masses."""
    return rng.uniform(*PENDULUM_MASSES, size=count)


def cart_and_pole_masses(rng: np.random.Generator, count: int) -> np.ndarray:
    """[count, 2] masses of carts and of their poles."""
    return np.stack([rng.uniform(*CART_MASSES, size=count), rng.uniform(*POLE_MASSES, size=count)], 1)


class PendulumMass(PendulumEnv):
    """A pendulum whose mass is the task."""

    def sample_tasks(self, count: int) -> np.ndarray:
        return pendulum_masses(self.np_random, count)

    def set_task(self, task: float) -> None:
        self.m = float(task)


class CartPoleMass(CartPoleEnv):
    """A cart and a pole whose masses are the task. (RLlib's set_task leaves the sums that follow from them as they
    were, so that only a part of the physics changes.)"""

    def sample_tasks(self, count: int) -> np.ndarray:
        return cart_and_pole_masses(self.np_random, count)

    def set_task(self, task: Sequence[float]) -> None:
        self.masscart, self.masspole = (float(mass) for mass in task)
        self.total_mass = self.masscart + self.masspole
        self.polemass_length = self.masspole * self.length


class CartPoleMassVector(CartPoleVectorEnv):
    """CartPoleMass for all columns at once."""

    def __init__(self, num_envs: int = 1, max_episode_steps: int = EPISODE, **more: Any):
        super().__init__(num_envs, max_episode_steps, **more)

    def sample_tasks(self, count: int) -> np.ndarray:
        return cart_and_pole_masses(self.np_random, count)

    def set_tasks(self, tasks: Sequence[Sequence[float]]) -> None:
        masses = np.asarray(tasks, dtype=np.float64)  # [B, 2]
        self.masscart, self.masspole = masses[:, 0], masses[:, 1]  # type: ignore[assignment]
        self.total_mass = self.masscart + self.masspole
        self.polemass_length = self.masspole * self.length


class PendulumMassVector(gymnasium.vector.VectorEnv):
    """PendulumMass for all columns at once. Episodes end together, because each lasts max_episode_steps."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as in Gymnasium

    def __init__(self, num_envs: int = 1, max_episode_steps: int = EPISODE, g: float = 10.0, render_mode: None = None):
        one = PendulumEnv(g=g)
        self.num_envs, self.max_episode_steps, self.render_mode = num_envs, max_episode_steps, render_mode
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.observation_space = batch_space(one.observation_space, num_envs)
        self.action_space = batch_space(one.action_space, num_envs)
        self.g, self.length, self.dt = one.g, one.l, one.dt
        self.max_speed, self.max_torque = one.max_speed, one.max_torque
        self.mass = np.full(num_envs, one.m)
        self.steps, self.over = 0, False

    def sample_tasks(self, count: int) -> np.ndarray:
        return pendulum_masses(self.np_random, count)

    def set_tasks(self, tasks: Sequence[float]) -> None:
        self.mass = np.asarray(tasks, dtype=np.float64).reshape(self.num_envs)

    def _begin(self) -> None:
        high = np.array([np.pi, 1.0])
        self.angle, self.speed = self.np_random.uniform(-high, high, size=(self.num_envs, 2)).T
        self.steps, self.over = 0, False

    def _seen(self) -> np.ndarray:
        return np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], 1).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._begin()
        return self._seen(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        nobody = np.zeros(self.num_envs, dtype=bool)
        if self.over:
            self._begin()
            return self._seen(), np.zeros(self.num_envs), nobody, nobody.copy(), {}
        torque = np.clip(np.asarray(actions, dtype=np.float64), -self.max_torque, self.max_torque)[:, 0]
        angle = (self.angle + np.pi) % (2 * np.pi) - np.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        pull = 3 * self.g / (2 * self.length) * np.sin(self.angle) + 3.0 / (self.mass * self.length**2) * torque
        self.speed = np.clip(self.speed + pull * self.dt, -self.max_speed, self.max_speed)
        self.angle = self.angle + self.speed * self.dt
        self.steps += 1
        self.over = self.steps >= self.max_episode_steps
        return self._seen(), reward, nobody, np.full(self.num_envs, self.over), {}


def register() -> None:
    """Registers the environments with Gymnasium, once. MuJoCo is imported when one of the last two is made."""
    if "PendulumMass-v0" in gymnasium.registry:
        return
    here = "rlrun.envs.tasks"
    for name in ("PendulumMass", "CartPoleMass"):
        gymnasium.register(
            f"{name}-v0",
            entry_point=f"{here}:{name}",
            vector_entry_point=f"{here}:{name}Vector",
            max_episode_steps=EPISODE,
        )
    there = "rlrun.envs.mujoco_tasks"
    gymnasium.register("HalfCheetahRandDirec-v0", entry_point=f"{there}:HalfCheetahRandDirec", max_episode_steps=100)
    gymnasium.register("AntRandGoal-v0", entry_point=f"{there}:AntRandGoal", max_episode_steps=EPISODE)
