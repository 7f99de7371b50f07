"""Environments with several agents as one column each, for algorithms that learn all agents together.

Rows have an axis over the N agents: observation [N, ...], action [N, ...], action_mask [N * A], alive [N] and reward
[N]. `alive` says who takes part, also at an episode's last observation, from which values may be bootstrapped. `state`
is what the environment's state() returns or else all observations side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rlrun.core.batch import Field
from rlrun.core.env import Rows, Step, map_rows
from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space
from rlrun.envs.agent_games import AgentsConfig
from rlrun.envs.agents import AgentsEnv, AgentsSpec
from rlrun.envs.gym_spaces import MASK
from rlrun.envs.own_state import state_size

ALIVE, STATE = "alive", "state"


@dataclass(frozen=True, kw_only=True)
class JointSpec(AgentsSpec):
    """The spec of rows that hold all agents. `agent` is the spec of each agent's own rows."""

    agent: EnvSpec
    own_state: bool  # whether the environment has a state of its own


def joint_spec(spec: AgentsSpec, cfg: AgentsConfig) -> JointSpec:
    """Puts all agents into one column. Raises UserError if their observations or actions cannot be put side by side."""
    assert spec.agents is not None
    many, name = len(spec.agents.names), spec.name
    size = state_size(cfg)
    observation = _together(spec.observation, many, "observations", name)
    obs: dict[str, Any] = {"observation": observation, ALIVE: MultiBinary(shape=(many,))}
    if MASK in spec.obs:
        obs[MASK] = MultiBinary(shape=(many * spec.obs[MASK].shape[0],))
    if size is None:
        one = spec.observation
        width = many * (one.n if isinstance(one, Discrete) else one.size)  # type: ignore[union-attr]
    obs[STATE] = Box(shape=(width if size is None else size,), dtype="float32", low=(-np.inf,), high=(np.inf,))
    says = f"{name} has no state of its own: mixers and central critics see all observations side by side"
    facts = {f: getattr(spec, f) for f in ("name", "agents", "max_episode_steps", "own", "told_in_info", "turns")}
    return JointSpec(
        **facts,
        obs=obs,
        action=_together(spec.action, many, "actions", name),
        reward_row=Field((many,), torch.float32),
        joint=True,
        notes=(*spec.notes, *([says] if size is None else [])),
        agent=spec,
        own_state=size is not None,
    )


def _together(space: Space, many: int, what: str, name: str) -> Space:
    if isinstance(space, Discrete):
        return MultiDiscrete(sizes=(space.n,) * many, starts=(space.start,) * many, shape=(many,))
    if isinstance(space, Box):
        bounds = {"low": space.low, "high": space.high}
        if what == "actions":
            bounds = {end: value * many for end, value in bounds.items()}
        return replace(space, shape=(many, *space.shape), **bounds)  # type: ignore[arg-type]
    raise UserError(
        f"the {what} of {name}'s agents are {space}, and algorithms that learn all agents together take Box and"
        " Discrete"
    )


def together(spec: JointSpec, rows: Rows, alive: np.ndarray) -> Rows:
    """Rows of agents that are columns [E * N, ...] -> joint rows [E, ...], whose state is 0 where the environment has
    one of its own. alive [E, N]: who takes part."""
    shape = alive.shape
    made: Rows = {
        "observation": map_rows(rows["observation"], lambda x: x.reshape(*shape, *x.shape[1:])),
        ALIVE: alive.astype(np.int64),
    }
    if MASK in spec.obs:
        made[MASK] = rows[MASK].reshape(shape[0], -1)
    size = spec.obs[STATE].shape[0]
    made[STATE] = (
        np.zeros((shape[0], size), np.float32)
        if spec.own_state
        else flat(spec.agent.observation, rows["observation"]).reshape(shape[0], -1)
    )
    return made


def flat(space: Space, rows: np.ndarray) -> np.ndarray:
    """[B, ...] -> [B, D] float32; choices become one-hot."""
    if isinstance(space, Discrete):
        return np.eye(space.n, dtype=np.float32)[rows]
    return rows.reshape(len(rows), -1).astype(np.float32)


class JointEnv:
    """The environments of an AgentsEnv, one column each."""

    def __init__(self, env: AgentsEnv, spec: JointSpec):
        self.spec: EnvSpec = spec
        self.env, self.joint, self.count, self.many = env, spec, env.envs, len(spec.own)
        if spec.own_state:
            env.read_states(spec.obs[STATE].shape[0])

    def _rows(self, ended: np.ndarray | None) -> Rows:
        """ended [E, N]: agents whose last observation this is, and from which values are bootstrapped."""
        alive = self.env.there.reshape(self.count, self.many).copy()
        if ended is not None:
            alive |= ended
        made = together(self.joint, self.env.rows, alive)
        if self.env.states is not None:
            made[STATE] = self.env.states.copy()
        return made

    def reset(self, generation: int) -> Rows:
        self.env.reset(generation)
        return self._rows(None)

    def step(self, action: Any) -> Step:
        shape = (self.count, self.many)
        one = self.env.step(np.asarray(action).reshape(self.env.count, *np.asarray(action).shape[2:]))
        truncated = one.truncated.reshape(shape)
        over: Any = self.env.ended & one.valid.reshape(shape).any(1)
        cut: Any = over & truncated.any(1)
        return Step(
            self._rows(truncated & over[:, None]),
            one.reward.reshape(shape).copy(),
            np.array(over & ~cut, dtype=bool),
            np.array(cut, dtype=bool),
            np.array(one.valid.reshape(shape).any(1)),
            np.array(one.is_first.reshape(shape).all(1)),
            {name: _mean(value.reshape(shape)) for name, value in one.info.items()},
            None if one.decided is None else one.decided.reshape(shape),
            one.failed,  # by the number of the environment, which is also that of its column
        )

    def close(self) -> None:
        self.env.close()


def _mean(values: np.ndarray) -> np.ndarray:
    """The mean [E] over the agents that have a number; NaN where none has."""
    there = np.isfinite(values)
    return np.where(there.any(1), np.where(there, values, 0.0).sum(1) / np.maximum(there.sum(1), 1), np.nan)
