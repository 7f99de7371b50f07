"""The frame of rlrun's own environments that step many episodes at once in NumPy."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode


class Consequence(NamedTuple):
    """What an action led to in each of B episodes."""

    reward: np.ndarray  # [B]
    terminated: np.ndarray  # [B]
    info: dict[str, np.ndarray]  # numbers to be logged [B]; NaN where there is none


class Batched(gymnasium.vector.VectorEnv):
    """Episodes that are stepped together. A subclass defines spaces(), begin(), observe() and act().

    After an end, the next step of that episode only begins a new one, as Gymnasium's NEXT_STEP says."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  as Gymnasium has it
    length: int | None = None  # steps after which an episode is truncated; None: act() says when it is over

    def __init__(self, num_envs: int = 1, max_episode_steps: int | None = None):
        """max_episode_steps: steps after which an episode is truncated, if that is sooner than `length`."""
        self.num_envs = num_envs
        if max_episode_steps is not None:
            self.length = max_episode_steps if self.length is None else min(self.length, max_episode_steps)
        self.single_observation_space, self.single_action_space = self.spaces()
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.over = np.zeros(num_envs, dtype=bool)
        self.steps = np.zeros(num_envs, dtype=np.int64)

    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space]:
        """The spaces of one episode's observations and actions."""
        raise NotImplementedError

    def begin(self, new: np.ndarray) -> None:
        """Begins episodes anew where new [B] is true."""
        raise NotImplementedError

    def observe(self) -> Any:
        """The observations of all episodes, which later steps must not change."""
        raise NotImplementedError

    def act(self, action: np.ndarray, live: np.ndarray) -> Consequence:
        """Takes actions [B, ...]. What happens where live [B] is false does not matter: a new episode begins there."""
        raise NotImplementedError

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:  # type: ignore[override]
        if seed is not None or getattr(self, "rng", None) is None:
            self.rng = np.random.default_rng(seed)
        self.over[:], self.steps[:] = False, 0
        self.begin(np.ones(self.num_envs, dtype=bool))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        began = self.over
        reward, terminated, told = self.act(np.asarray(action), ~began)
        self.steps = np.where(began, 0, self.steps + 1)
        if began.any():
            self.begin(began)
        terminated = terminated & ~began
        truncated = np.zeros_like(began) if self.length is None else (self.steps >= self.length) & ~terminated
        self.over = terminated | truncated
        info: dict[str, np.ndarray] = {}
        for name, value in told.items():
            info[name], info[f"_{name}"] = value, ~began & ~np.isnan(value)
        return self.observe(), np.where(began, 0.0, reward), terminated, truncated, info


class Alone(gymnasium.Env):
    """One episode of a Batched environment, with Gymnasium's plain interface."""

    kind: ClassVar[type[Batched]]

    def __init__(self, **kwargs: Any):
        self.batched = self.kind(num_envs=1, **kwargs)
        self.observation_space, self.action_space = (
            self.batched.single_observation_space,
            self.batched.single_action_space,
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return _first(self.batched.reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        obs, reward, terminated, truncated, info = self.batched.step(np.asarray(action)[None])
        told = {name: float(value[0]) for name, value in info.items() if f"_{name}" in info and info[f"_{name}"][0]}
        self.batched.over[:] = False
        return _first(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), told


def _first(obs: Any) -> Any:
    return {name: value[0] for name, value in obs.items()} if isinstance(obs, dict) else obs[0]


def register(kinds: dict[str, tuple[type[Batched], type[Alone]]]) -> None:
    """Registers environments with Gymnasium by their ids, once."""
    for name, (batched, alone) in kinds.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=alone, vector_entry_point=batched)  # type: ignore[arg-type]


def choose(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number [B] of one entry of each row of weights [B, N], which need not sum to 1."""
    total = weights.cumsum(1)
    return (rng.random((len(weights), 1)) * total[:, -1:] >= total).sum(1).clip(max=weights.shape[1] - 1)
