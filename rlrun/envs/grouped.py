"""All agents of an environment as one agent, for a policy that plays them all at once (RLlib's with_agent_groups).

env=rlrun/Grouped-v0 env.kwargs={game: simple_spread_v3} names the environment; its other keyword arguments stand beside
it. This is the reverse of envs/agents.py's TupleGame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.core.errors import UserError
from rlrun.envs.agent_games import AgentsConfig, make_game
from rlrun.envs.gym_spaces import MASK
from rlrun.envs.names import family_of

NAME = "rlrun/Grouped-v0"


class Grouped(gymnasium.Env):
    """Observations and actions are tuples over the agents, and the reward is the sum of theirs.

    An agent that is not there shows zeros, and its action is ignored. An episode ends when no agent is left."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, game: str = "TwoStepGame-v0", render_mode: str | None = None, **kwargs: Any):
        """game: a name of an environment with several agents, as env= takes it. Raises UserError if it is none, or if
        its agents take turns or have masks of legal actions."""
        family, name = family_of(game)
        if family != "agents":
            raise UserError(f"{NAME} puts several agents together, and {game} has one")
        self.render_mode = render_mode
        cfg = AgentsConfig(
            return_of=(),
            family="agents",
            name=name,
            kwargs=kwargs,
            agent_id=False,
            step_timeout_sec=None,
            reset_timeout_sec=None,
            stack=1,
            max_episode_steps=None,
            time_limit="truncation",
            reward_clip="none",
        )
        self.game = make_game(cfg, render_mode is not None)
        own = [self.game.spaces(agent) for agent in self.game.agents]
        masked = any(isinstance(seen, spaces.Dict) and MASK in seen.spaces for seen, _ in own)
        if self.game.turns or masked:
            what = "take turns" if self.game.turns else "have masks of legal actions"
            self.game.close()
            raise UserError(f"the agents of {game} {what}, and {NAME} is for agents that always act freely")
        self.observation_space = spaces.Tuple([seen for seen, _ in own])
        self.action_space = spaces.Tuple([action for _, action in own])

    def _together(self, obs: Mapping[str, Any]) -> tuple[Any, ...]:
        both = zip(self.game.agents, self.observation_space, strict=True)  # type: ignore[call-overload]
        return tuple(obs[agent] if agent in obs else nothing(space) for agent, space in both)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[tuple, dict]:
        super().reset(seed=seed)
        obs, infos = self.game.reset(seed)
        if any(isinstance(info, Mapping) and MASK in info for info in infos.values()):
            raise ValueError(f"its agents have masks of legal actions, and {NAME} is for agents that always act freely")
        return self._together(obs), {}

    def step(self, action: tuple) -> tuple[tuple, float, bool, bool, dict]:
        every = dict(zip(self.game.agents, action, strict=True))
        outcome = self.game.step({agent: every[agent] for agent in self.game.present})
        over = not self.game.present
        cut = over and any(outcome.truncated.values())
        return self._together(outcome.obs), float(sum(outcome.reward.values())), over and not cut, cut, {}

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()


def nothing(space: gymnasium.Space) -> Any:
    """What an agent shows that is not there: zeros, or the first choice."""
    if isinstance(space, spaces.Dict):
        return {name: nothing(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(nothing(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.start
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.copy()
    return np.zeros(space.shape or (), dtype=space.dtype)
