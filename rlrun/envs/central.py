"""The state of the whole environment beside each agent's own observation, for critics that see it (MAPPO, Yu et al.
2022, arXiv:2103.01955; only the learner needs it)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlrun.core.env import Rows, Step
from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.envs.agent_games import AgentsConfig
from rlrun.envs.agents import AgentsEnv, AgentsSpec
from rlrun.envs.joint import STATE, flat
from rlrun.envs.own_state import state_size


def with_state(spec: AgentsSpec, cfg: AgentsConfig) -> EnvSpec:
    """Adds the state to the rows: the environment's own, or all observations side by side where it has none, and behind
    it the agent's number, one-hot, where there are several agents."""
    many, one = len(spec.own), spec.observation
    own = state_size(cfg)
    said: tuple[str, ...] = ()
    if own is None:
        if not isinstance(one, Box | Discrete):
            raise UserError(
                f"model.value_sees=state: {cfg.name} has no state of its own, and its observations {one} cannot stand"
                " side by side"
            )
        said = (f"{cfg.name} has no state of its own: values are those of all observations side by side",)
    size = many * (one.n if isinstance(one, Discrete) else one.size) if own is None else own  # type: ignore[union-attr]
    wide = size + (many if many > 1 else 0)
    state = Box(shape=(wide,), dtype="float32", low=(-np.inf,), high=(np.inf,))
    return replace(spec, obs={**spec.obs, STATE: state}, notes=(*spec.notes, *said))


class Central:
    """Adds the state to the rows of an AgentsEnv. The agents of an environment have equal states but for their
    numbers."""

    def __init__(self, env: AgentsEnv, spec: EnvSpec, own_state: bool):
        """own_state: whether the environment has a state of its own."""
        self.env, self.spec, self.count, self.many = env, spec, env.count, len(env.names)
        self.state = np.zeros((env.envs, self.many, spec.obs[STATE].shape[0]), np.float32)
        if self.many > 1:
            self.state[..., -self.many :] = np.eye(self.many, dtype=np.float32)
        self.size = self.state.shape[-1] - (self.many if self.many > 1 else 0)
        if own_state:
            env.read_states(self.size)

    def _with(self, obs: Rows) -> Rows:
        seen = self.env.states
        if seen is None:
            seen = flat(self.env.spec.observation, obs["observation"]).reshape(self.env.envs, self.size)
        self.state[..., : self.size] = seen[:, None]
        return {**obs, STATE: self.state.reshape(self.count, -1)}

    def reset(self, generation: int) -> Rows:
        return self._with(self.env.reset(generation))

    def step(self, action: object) -> Step:
        step = self.env.step(action)
        return step._replace(obs=self._with(step.obs))

    def close(self) -> None:
        self.env.close()
