"""The last action and reward as part of the observation, for models with memory.

R2D2 uses both; RLlib has them as lstm_use_prev_action and lstm_use_prev_reward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rlrun.core.env import Rows, Step, VectorEnv, map_rows
from rlrun.core.specs import Box, EnvSpec, executed

REWARD = Box(shape=(1,), dtype="float32", low=(-np.inf,), high=(np.inf,))


def with_previous(spec: EnvSpec, action: bool, reward: bool) -> EnvSpec:
    """Returns the spec with prev_action and prev_reward added to its rows, as asked for."""
    more: dict[str, Any] = {
        **({"prev_action": spec.action} if action else {}),
        **({"prev_reward": REWARD} if reward else {}),
    }
    return replace(spec, obs={**spec.obs, **more})


class Previous:
    """Adds the last action, as it was executed, and the last raw reward to an environment's rows; both are 0 in an
    episode's first row."""

    def __init__(self, env: VectorEnv, spec: EnvSpec):
        self.env, self.spec, self.count = env, spec, env.count

    def _with(self, obs: Rows, action: Any, reward: np.ndarray) -> Rows:
        more: Rows = {}
        if "prev_action" in self.spec.obs:
            more["prev_action"] = action
        if "prev_reward" in self.spec.obs:
            more["prev_reward"] = reward[:, None].astype(np.float32)
        return {**obs, **more}

    def reset(self, generation: int) -> Rows:
        nothing = map_rows(self.spec.action.sample(np.random.default_rng(0), self.count), np.zeros_like)
        return self._with(self.env.reset(generation), nothing, np.zeros(self.count))

    def step(self, action: Any) -> Step:
        step = self.env.step(action)
        going = ~step.is_first

        def kept(value: np.ndarray) -> np.ndarray:
            value = np.asarray(value)
            return np.where(going.reshape(-1, *[1] * (value.ndim - 1)), value, np.zeros_like(value))

        taken = action if step.executed is None else step.executed
        done = map_rows(executed(self.spec.action, taken), kept)
        return step._replace(obs=self._with(step.obs, done, kept(step.reward)))

    def close(self) -> None:
        self.env.close()
